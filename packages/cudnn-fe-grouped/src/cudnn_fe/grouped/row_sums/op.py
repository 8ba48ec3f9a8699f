"""The contract of the sums of experts' rows: rules, outputs, kernels, documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Kernel, Op, Problem, TensorRule
from cudnn_fe.core.require import require_same_device
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.operands import output, require_experts, require_rows

__all__ = ["PART_ROWS", "ROW_SUMS", "RowSums"]

PART_ROWS = 64  # rows that one part of a sum covers


@dataclass(frozen=True)
class RowSums(Problem):
    """One call: each expert's rows, added."""

    operands: ClassVar[tuple[str, ...]] = ("x", "offsets")
    output_count: ClassVar[int] = 1

    x: TensorSpec
    offsets: TensorSpec

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call."""
        x, offsets = operands
        assert x is not None
        assert offsets is not None
        assert not options
        x.require_rank(2, "(M, X)")
        require_rows(x, x.shape, "(M, X)", "float32")
        require_experts(offsets)
        require_same_device(x, offsets)
        return cls(x, offsets)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """(L, X)."""
        return (output("sums", (self.offsets.shape[0], self.x.shape[1]), "float32", self.x.device),)

    @property
    def degenerate(self) -> bool:
        """Nothing to add."""
        return 0 in self.x.shape

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


def _scratch(problem: Any, spec: Any) -> tuple[TensorSpec, ...]:
    """Parts of the sums, (places, X)."""
    del spec
    (rows, columns), experts = problem.x.shape, problem.offsets.shape[0]
    return (output("scratch", (rows // PART_ROWS + experts + 1, columns), "float32", problem.x.device),)


def _architecture(problem: Any, where: Device) -> str:
    del problem
    return where.arch


ROW_SUMS = Op(
    name="grouped_row_sums",
    package="cudnn-fe-grouped",
    problem=RowSums,
    reference="cudnn_fe.grouped.row_sums.reference:row_sums",
    kernels=(
        Kernel(
            backend="portable",
            module="cudnn_fe.grouped.row_sums.portable",
            refuse=portable_refusal,
            specialise=_architecture,
            targets=PORTABLE_TARGETS,
            scratch=_scratch,
            verified=("H200",),
        ),
    ),
    summary="The sum of each expert's rows, in a fixed order.",
    formula=r"S_{gn} = \sum_{m \in g} X_{mn}",
    tensors=(
        TensorRule("x", "(M, X)", "contiguous", ("float32",), "rows"),
        TensorRule("offsets", "(L,)", "contiguous", ("int32",), "end of each expert's rows"),
        TensorRule("sums", "(L, X)", "contiguous", ("float32",), "sums"),
    ),
    results=("sums",),
    public=False,
)
