"""What every problem of this family knows that multiplies A (M, K, L) by B (N, K, L)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from cudnn_fe.core.op import Problem
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.gemm.operands import stack_calls

__all__ = ["GemmProblem"]


@dataclass(frozen=True)
class GemmProblem(Problem):
    """A batched GEMM: operands, extents, work."""

    operands: ClassVar[tuple[str, ...]] = ("a", "b")

    a: TensorSpec
    b: TensorSpec

    @property
    @abstractmethod
    def out_major(self) -> Literal["m", "n"]:
        """Contiguous dim of the results."""

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """(M, N, K, L)."""
        return (self.a.shape[0], self.b.shape[0], self.a.shape[1], self.a.shape[2])

    @property
    def degenerate(self) -> bool:
        """No products to sum, or nothing to write."""
        return 0 in self.extents

    @property
    def flops(self) -> int:
        """2 M N K L; what an epilogue adds is not counted."""
        m, n, k, batch = self.extents
        return 2 * m * n * k * batch

    def batched(self, size: int) -> Self | None:
        """``size`` calls with L = 1 are one call with L = ``size``."""
        if self.a.shape[2] != 1:
            return None
        return replace(self, a=stack_calls(self.a, size), b=stack_calls(self.b, size))
