"""What the grouped kernels are compiled for: plain data, no kernel, no framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cudnn_fe.core.gemm_spec import GemmSpec

__all__ = ["RowsSpec", "WgradSpec"]


@dataclass(frozen=True, slots=True)
class RowsSpec:
    """A kernel that multiplies each row by its expert's weights.

    Attributes:
        gemm: Types, layouts and alignment of A and B, and the types of the results in the op's order.
        activation: What becomes of gate and up columns.
        alpha: Whether there is a factor for each expert.
        prob: Whether there is a factor for each row.
        bias_dtype: Element type of the bias, None without one.
        c_dtype: Element type of what the forward kept, None but in a backward.
        wanted: Which of the results that a call may leave out it wants.
        round_product: Whether the product is rounded to A's type before it is used.
        zero_tail: Whether rows past the last end become zeros; else they keep what they held.
        addresses: Element type of the array of the experts' matrices' addresses, where such a one stands for B.
    """

    gemm: GemmSpec
    activation: Literal["none", "swiglu", "geglu"] = "none"
    alpha: bool = True
    prob: bool = True
    bias_dtype: str | None = None
    c_dtype: str | None = None
    wanted: frozenset[str] = frozenset()
    round_product: bool = False
    zero_tail: bool = True
    addresses: str | None = None


@dataclass(frozen=True, slots=True)
class WgradSpec:
    """A kernel that sums products over the rows of each expert.

    Attributes:
        gemm: Types, layouts and alignment of A (h, t) and B (i, t), whose K is t, and the result's type.
        adds: Whether the result is added to what was there before.
        factors: Whether each expert's sum is multiplied by two factors of its own.
        ragged: Whether an expert's part of an operand that is contiguous along t is compact by itself.
        addresses: Element type of the array of the results' addresses, where they name the results' places.
    """

    gemm: GemmSpec
    adds: bool = False
    factors: bool = False
    ragged: bool = False
    addresses: str | None = None
