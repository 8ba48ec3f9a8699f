"""How large the model is and how long it trains, on a CPU and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["BALANCE", "CHOSEN", "CPU", "GPU", "MODELS", "MOE_CPU", "MOE_GPU", "VOCABULARY", "DemoConfig"]

VOCABULARY = 256
CHOSEN = 2  # experts of a byte, in a mixture
BALANCE = 0.01  # weight of the loss that spreads bytes over the experts


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """One training.

    Attributes:
        layers: Transformer blocks.
        width: Model width.
        heads: Attention heads.
        hidden: Columns of the MLP after the gate, a multiple of 32; of each expert in a mixture.
        context: Bytes the model sees at once.
        batch: Sequences a step.
        steps: Optimiser steps.
        learning_rate: Peak of the schedule.
        warmup: Steps of linear increase before the cosine decay.
        compute_dtype: Element type of every matrix multiplication's operands; the weights themselves are float32.
        experts: MLPs of a block, of which each byte goes through `CHOSEN`; 0 for a single MLP.
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
    experts: int = 0

    @property
    def op(self) -> str:
        """The op that the MLPs go through first."""
        return "grouped_gemm_glu_forward" if self.experts else "gemm_swiglu_forward"

    @property
    def through(self) -> str:
        """Short for the ops that the MLPs go through."""
        return "grouped_gemm_glu" if self.experts else "gemm_swiglu"

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
# As many multiplications for a byte in each block as above, but for the router's. Plain JAX takes several times as long
# for a step as plain torch does.
MOE_CPU = replace(CPU, hidden=CPU.hidden // CHOSEN, experts=8, steps=240)
MOE_GPU = replace(GPU, hidden=GPU.hidden // CHOSEN, experts=8, layers=4, steps=200)
MODELS = {"moe": (MOE_CPU, MOE_GPU), "dense": (CPU, GPU)}
