"""How large the model is and how long it trains, on a CPU and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CPU", "GPU", "VOCABULARY", "DemoConfig"]

VOCABULARY = 256


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """One training.

    Attributes:
        layers: Transformer blocks.
        width: Model width.
        heads: Attention heads.
        hidden: Columns of the MLP after the gate, a multiple of 32.
        context: Bytes the model sees at once.
        batch: Sequences a step.
        steps: Optimiser steps.
        learning_rate: Peak of the schedule.
        warmup: Steps of linear increase before the cosine decay.
        compute_dtype: Element type of every matrix multiplication's operands; the weights themselves are float32.
    """

    layers: int
    width: int
    heads: int
    hidden: int
    context: int
    batch: int
    steps: int
    learning_rate: float
    warmup: int
    compute_dtype: str

    @property
    def tokens_per_step(self) -> int:
        """Bytes trained on in one step."""
        return self.batch * self.context


CPU = DemoConfig(
    layers=2,
    width=128,
    heads=4,
    hidden=256,
    context=128,
    batch=4,
    steps=600,
    learning_rate=2e-3,
    warmup=20,
    compute_dtype="float32",
)
GPU = DemoConfig(
    layers=6,
    width=768,
    heads=12,
    hidden=2048,
    context=512,
    batch=32,
    steps=300,
    learning_rate=1e-3,
    warmup=30,
    compute_dtype="bfloat16",
)
