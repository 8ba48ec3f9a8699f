"""GEMM shapes of models that people run: N and K of the MLP's up and gate projections, and the rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CPU_ROWS", "CPU_SHAPES", "MODEL_SHAPES", "ROWS", "SQUARE_SHAPES", "Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Columns and depth of one weight.

    Attributes:
        name: The model and layer that has it.
        n: Rows of B: both projections together.
        k: Width of the model.
        rows: Its own list of M, where it has one.
    """

    name: str
    n: int
    k: int
    rows: tuple[int, ...] = ()


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
