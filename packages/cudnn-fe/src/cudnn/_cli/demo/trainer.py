"""What the training loop asks of a framework: one model, one optimiser, one way through the MLP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cudnn._cli.demo.config import DemoConfig
from cudnn._cli.demo.weights import Weights

__all__ = ["ADAM_BETAS", "ADAM_EPSILON", "Gradients", "Routing", "Trainer", "learning_rate"]

ADAM_BETAS = (0.9, 0.95)
ADAM_EPSILON = 1e-8


Routing = tuple[NDArray[np.int32], ...]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Loss and gradients of one batch.

    Attributes:
        loss: Nats per byte.
        values: The gradients, also of what spreads bytes over experts.
        routing: In a mixture, the experts of each byte, (rows, `CHOSEN`), layer by layer.
    """

    loss: float
    values: Weights[NDArray[np.float32]]
    routing: Routing = ()


class Trainer(Protocol):
    """A model being trained."""

    def weights(self) -> Weights[NDArray[np.float32]]:
        """A copy of the present weights."""
        ...

    def gradients(
        self, weights: Weights[NDArray[np.float32]], tokens: NDArray[np.int32], routing: Routing | None = None
    ) -> Gradients:
        """Loss and gradients of a (batch, context + 1) batch at ``weights``, bytes going to the experts that
        ``routing`` tells if it is given; changes nothing."""
        ...

    def step(self, tokens: NDArray[np.int32], rate: float) -> float:
        """One optimiser step; returns the loss before it, after the device has finished."""
        ...

    def next_byte_logits(self, window: NDArray[np.int32], last: int) -> NDArray[np.float32]:
        """(256,) logits of the byte after position ``last`` of a (context,) window."""
        ...


def learning_rate(config: DemoConfig, step: int) -> float:
    """Linear warm-up, then a cosine to a tenth of the peak."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.learning_rate * (0.55 + 0.45 * math.cos(math.pi * min(1.0, progress)))
