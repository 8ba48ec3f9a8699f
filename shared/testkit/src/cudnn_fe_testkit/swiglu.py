"""What the tests of GEMM + SwiGLU share: the float64 definition, apart from the reference, and its tolerance."""

from __future__ import annotations

from typing import Any, Literal

from cudnn_fe.core.dtypes import dtype
from cudnn_fe_testkit.compare import gemm_tolerance

DTYPES = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2")


def exact(a: Any, b: Any, alpha: float = 1.0) -> tuple[Any, Any]:
    """(AB12, C) of float64 torch tensors, column by column as the page defines it."""
    import torch

    s = alpha * torch.einsum("mkl,nkl->mnl", a, b)
    columns = torch.arange(b.shape[0] // 2, device=a.device)
    value = s[:, 64 * (columns // 32) + columns % 32]
    gate = s[:, 64 * (columns // 32) + 32 + columns % 32]
    return s, value * gate / (1 + torch.exp(-gate))


def c_tolerance(k: int, operands: str, c: str, *, tensor_cores: bool = True) -> float:
    """C's bound: d(x g sigma(g)) is at most |1 + g (1 - sigma(g))| < 1.3 relative errors of g and one of x, where C is
    not negligible; the approximate exponential and reciprocal add 2^-20."""
    of_sums = gemm_tolerance(k, operands, "float32", tensor_cores=tensor_cores)
    return dtype(c).unit_roundoff + 2.3 * of_sums + 2.0**-20


def order(major: Literal["k", "mn"]) -> tuple[int, int, int]:
    """Dims of an operand of that major, from the innermost to the outermost."""
    return (1, 0, 2) if major == "k" else (0, 1, 2)
