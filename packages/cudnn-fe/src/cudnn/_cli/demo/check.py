"""Whether the training through the op is the training in plain ops, and how large a difference rounding explains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cudnn._cli.demo.config import DemoConfig
from cudnn._cli.demo.train import Outcome
from cudnn_fe.core.dtypes import dtype

__all__ = ["Check", "checks", "gradient_tolerance"]

# Two trainings that differ by rounding drift apart as any chaotic system does, so their curves can only be held to
# a share of the loss; what is exact is checked at equal weights.
DRIFT = 0.02
# The share of the first loss that a short training must come down to: 600 steps reach 39%.
LEARNT, ENOUGH_STEPS, FEW_STEPS = 0.8, 50, 5


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison.

    Attributes:
        what: What is compared.
        measured: The value seen.
        allowed: The largest value that passes.
        reason: Where the allowance comes from.
    """

    what: str
    measured: float
    allowed: float
    reason: str

    @property
    def passed(self) -> bool:
        """Whether the value is within the allowance; NaN is not."""
        return self.measured <= self.allowed


def gradient_tolerance(config: DemoConfig) -> float:
    """Relative RMS by which rounding alone may move a gradient.

    Each block rounds twice to bfloat16 at the op's boundary (the output, and its gradient on the way back), and
    these 2 * layers contributions add as independent ones. With bfloat16 operands either side may round an
    intermediate that the other keeps: two unit roundoffs u. With float32 operands the sums differ by the order of
    their K terms, e = 2 * sqrt(K) * 2^-24; a value that close to a rounding boundary (probability e / 2u) then lands
    one spacing 2u apart: RMS sqrt(2 e u), carried by so few elements that it varies by a factor of 4.

    A mixture has two ops in each block, hence twice as many boundaries. With float32 operands it rounds nothing to
    bfloat16: there are only the errors e of six products, two on the way forward and four on the way back.
    """
    u = dtype("bfloat16").unit_roundoff
    e = 2.0 * math.sqrt(config.width) * dtype("float32").unit_roundoff
    if config.compute_dtype == "bfloat16":
        return 2.0 * u * math.sqrt((4 if config.experts else 2) * config.layers)
    if config.experts:
        return e * math.sqrt(6 * config.layers)
    return 4.0 * math.sqrt(2.0 * e * u) * math.sqrt(2 * config.layers)


def checks(config: DemoConfig, outcome: Outcome) -> list[Check]:
    """Every comparison the demo's verdict rests on."""
    gradient = gradient_tolerance(config)
    start, end = outcome.ours.start(), outcome.ours.end()
    # A batch's loss averages one independent rounding error per byte, and is float32 itself.
    loss = gradient * start / math.sqrt(config.tokens_per_step) + 4.0 * start * dtype("float32").unit_roundoff
    worst_loss = max((a.loss for a in outcome.agreements), key=_nan_last)
    worst = max(outcome.agreements, key=lambda a: _nan_last(a.gradient))
    found = [
        Check("loss, at equal weights", worst_loss, loss, "rounding, over a batch"),
        Check("gradients, at equal weights", worst.gradient, gradient, f"rounding; {worst.where}"),
        Check(
            "final loss",
            abs(end - outcome.plain.end()),
            DRIFT * end,
            f"{DRIFT:.0%} of it: drift",
        ),
    ]
    if config.steps >= FEW_STEPS:
        share = LEARNT if config.steps >= ENOUGH_STEPS else 1.0
        found.append(Check("the final loss itself", end, share * start, f"{share:.0%} of the first"))
    return found


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value
