"""What a kernel of SwiGLU's derivative is compiled for: plain data, no kernel, no framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DswigluSpec"]


@dataclass(frozen=True, slots=True)
class DswigluSpec:
    """Everything that one compiled kernel depends on; extents, strides and alignments are met at run time.

    Attributes:
        ab12_dtype: Element type of AB12 (M, N, L).
        dc_dtype: Element type of dC (M, N/2, L).
        upstream_dtype: Element type of the gradient (M, N, L) that reached AB12 by other ways, None if there is none.
        out_dtype: Element type of dAB12 (M, N, L).
        major: ``"n"`` or ``"m"``: the dim that threads walk along, which should be the tensors' contiguous one.
        arch: The target that the kernel is compiled for.
    """

    ab12_dtype: str
    dc_dtype: str
    upstream_dtype: str | None = None
    out_dtype: str = "bfloat16"
    major: Literal["n", "m"] = "n"
    arch: str = "sm_90a"
