"""Two trainings side by side, on the same batches from the same weights: through the op, and in plain framework ops."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cudnn._cli.demo.config import DemoConfig
from cudnn._cli.demo.data import Corpus, batch
from cudnn._cli.demo.trainer import Gradients, Routing, Trainer, learning_rate
from cudnn._cli.demo.weights import flatten, names

__all__ = ["Agreement", "Curve", "Outcome", "sample", "train"]

CHECKPOINTS = 8


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the two models are apart at the same weights, on one batch.

    Attributes:
        step: When.
        loss: Absolute difference of the losses.
        gradient: Largest relative RMS difference of any weight's gradient.
        where: Name of that weight.
    """

    step: int
    loss: float
    gradient: float
    where: str


@dataclass(frozen=True, slots=True)
class Curve:
    """One training: the loss before each step, and how long the step took."""

    losses: tuple[float, ...]
    seconds: tuple[float, ...]

    def start(self) -> float:
        """Loss of the untrained model."""
        return self.losses[0]

    def end(self) -> float:
        """Mean loss of the last tenth of the steps: a single batch's loss is noisy."""
        return float(np.mean(self.losses[-max(1, len(self.losses) // 10) :]))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo saw; ``routing`` is that of the last step, before it."""

    ours: Curve
    plain: Curve
    agreements: tuple[Agreement, ...]
    routing: Routing = ()


def train(
    config: DemoConfig,
    corpus: Corpus,
    seed: int,
    ours: Trainer,
    plain: Trainer,
    on_step: Callable[[float, float], None],
) -> Outcome:
    """Train both models; at `CHECKPOINTS` steps and the last one also compare them at equal weights."""
    losses: tuple[list[float], list[float]] = ([], [])
    seconds: tuple[list[float], list[float]] = ([], [])
    agreements = []
    routing: Routing = ()
    for step in range(config.steps):
        tokens = batch(corpus, seed=seed, step=step, size=config.batch, context=config.context)
        if step % max(1, config.steps // CHECKPOINTS) == 0 or step == config.steps - 1:
            found, routing = _compare(step, tokens, ours, plain)
            agreements.append(found)
        for which, trainer in enumerate((ours, plain)):
            began = time.perf_counter()
            losses[which].append(trainer.step(tokens, learning_rate(config, step)))
            seconds[which].append(time.perf_counter() - began)
        on_step(losses[0][-1], losses[1][-1])
    curves = [Curve(tuple(loss), tuple(duration)) for loss, duration in zip(losses, seconds, strict=True)]
    return Outcome(curves[0], curves[1], tuple(agreements), routing)


def _compare(step: int, tokens: NDArray[np.int32], ours: Trainer, plain: Trainer) -> tuple[Agreement, Routing]:
    weights = ours.weights()
    first = ours.gradients(weights, tokens)
    # Of two experts that a router likes nearly equally, rounding would choose: both models take the same.
    second = plain.gradients(weights, tokens, first.routing)
    gradient, where = _worst(first, second)
    return Agreement(step, abs(first.loss - second.loss), gradient, where), first.routing


def _worst(ours: Gradients, plain: Gradients) -> tuple[float, str]:
    def relative(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
        # Differences of near values are exact, and their float32 sums close enough; float64 copies take seconds.
        return float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-30)

    pairs = zip(flatten(ours.values), flatten(plain.values), strict=True)
    # A NaN must win, so that it reaches the check.
    return max(
        zip((relative(a, b) for a, b in pairs), names(ours.values), strict=True),
        key=lambda found: np.inf if np.isnan(found[0]) else found[0],
    )


def sample(trainer: Trainer, context: int, seed: int, prompt: bytes = b"def ", length: int = 240) -> str:
    """Text that the trained model continues ``prompt`` with, drawn at temperature 0.6."""
    generator = np.random.default_rng(seed)
    text = list(prompt)
    for _ in range(length):
        recent = text[-context:]
        window = np.zeros(context, np.int32)
        window[: len(recent)] = recent
        logits = trainer.next_byte_logits(window, len(recent) - 1).astype(np.float64) / 0.6
        if not np.isfinite(logits).all():
            return "(the model's output is not finite)"
        chance = np.exp(logits - logits.max())
        text.append(int(generator.choice(chance.size, p=chance / chance.sum())))
    return bytes(text).decode("utf-8", "replace")
