"""GEMM shapes of models that people run: N and K of the MLP's up and gate projections, and the rows of a batch; for
mixtures of experts those of one expert, how many there are, and the rows of all of them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CPU_EXPERTS",
    "CPU_ROWS",
    "CPU_SHAPES",
    "EXPERT_SHAPES",
    "MODEL_SHAPES",
    "ROUTINGS",
    "ROWS",
    "SQUARE_SHAPES",
    "Shape",
]


@dataclass(frozen=True, slots=True)
class Shape:
    """Columns and depth of one weight.

    Attributes:
        name: The model and layer that has it.
        n: Rows of B: both projections together.
        k: Width of the model.
        rows: Its own list of M, where it has one.
        experts: Weights of this shape; 0 for a dense layer.
    """

    name: str
    n: int
    k: int
    rows: tuple[int, ...] = ()
    experts: int = 0


MODEL_SHAPES = (
    Shape("Llama-3 8B", 28672, 4096),
    Shape("Llama-3 70B", 57344, 8192),
    Shape("Mixtral 8x7B expert", 28672, 4096),
    Shape("DeepSeek-V3 dense", 36864, 7168),
    Shape("DeepSeek-V3 expert", 4096, 7168),
)
ROWS = (16, 64, 256, 1024, 4096, 8192, 16384)
# What the speed of a plain GEMM is usually quoted at.
SQUARE_SHAPES = (Shape("square 4096", 4096, 4096, (4096,)), Shape("square 8192", 8192, 8192, (8192,)))
# Small enough for a core or two.
CPU_SHAPES = (Shape("small", 1024, 512), Shape("wide", 4096, 256))
CPU_ROWS = (16, 256)
# Of DeepSeek-V3's 256 experts, what one of eight GPUs holds.
EXPERT_SHAPES = (
    Shape("8 experts of 2048 rows", 14336, 4096, (16384,), 8),
    Shape("64 experts of 256 rows", 2816, 2048, (16384,), 64),
    Shape("Mixtral 8x7B, up and gate", 28672, 4096, (16384,), 8),
    Shape("Mixtral 8x7B, down", 4096, 14336, (16384,), 8),
    Shape("DeepSeek-V3, up and gate", 4096, 7168, (4096, 16384), 32),
    Shape("DeepSeek-V3, down", 7168, 2048, (4096, 16384), 32),
    Shape("Qwen3-235B, up and gate", 3072, 4096, (4096, 16384), 128),
    Shape("Qwen3-235B, down", 4096, 1536, (4096, 16384), 128),
)
CPU_EXPERTS = (Shape("small", 256, 128, (96,), 8),)
# How the rows are spread over the experts: evenly, or expert i in some order with a share of 1 / (i + 1).
ROUTINGS = ("even", "Zipf")
