"""What the kernels of LayerNorm-Multiply-SiLU-Dropout are compiled for, and the memory that they need beside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.row_plan import RowPlan, row_plan
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.norm_rope.hstu_lmsd.dropout import GATE, PRODUCT, X

__all__ = ["LmsdSpec", "partials", "specialise"]

_BACKWARD_BLOCK = 512  # threads: one such block on a multiprocessor has registers and rows under way enough
_FORWARD_BLOCK = 64  # threads, of which eight blocks or sixteen run at once: the next starts as soon as one has ended
_WIDE = 128  # columns from which a thread can have four vectors, with neighbours' still side by side


@dataclass(frozen=True, slots=True)
class LmsdSpec:
    """What the kernels are compiled for; rows, their distance, ratio and seed are met at run time.

    Attributes:
        columns: Channels of a row.
        plan: Threads and registers.
        apply_u_silu: Whether the gate is SiLU of u, or u.
        concat_u: Whether the gate is a segment of y.
        concat_x: Whether x is.
        dropout: Whether anything is dropped.
        seed_operand: Whether the seed comes as an array.
        compute_dweight: Whether the backward gives the weight's gradient.
        multiprocessors: Of the chip.
        arch: The compiler's target.
    """

    columns: int
    plan: RowPlan
    apply_u_silu: bool
    concat_u: bool
    concat_x: bool
    dropout: bool
    seed_operand: bool
    compute_dweight: bool
    multiprocessors: int
    arch: str

    @property
    def planes(self) -> tuple[int, ...]:
        """What the segments of a row of y are, as planes of the counter and bits of the mask."""
        return (*((GATE,) if self.concat_u else ()), *((X,) if self.concat_x else ()), PRODUCT)


def specialise(problem: Any, where: Device, *, backward: bool) -> LmsdSpec:
    """What a problem's kernel is compiled for."""
    columns = problem.x_tensor.shape[1]
    dropout = problem.mask_tensor is not None if backward else problem.dropout
    return LmsdSpec(
        columns=columns,
        plan=_plan(columns, backward, dropout),
        apply_u_silu=problem.apply_u_silu,
        concat_u=problem.concat_u,
        concat_x=problem.concat_x,
        dropout=dropout,
        seed_operand=not backward and problem.dropout and problem.seed_tensor is not None,
        compute_dweight=backward and problem.compute_dweight,
        multiprocessors=where.multiprocessors if backward else 0,
        arch=where.arch,
    )


def _plan(columns: int, backward: bool, dropout: bool) -> RowPlan:
    if backward:
        vectors, block = 1, _BACKWARD_BLOCK
    elif dropout:
        vectors, block = (4 if columns >= _WIDE else 2), _FORWARD_BLOCK
    else:
        return row_plan(columns, vectors=2)
    plan = row_plan(columns, vectors=vectors)
    return replace(plan, groups=block // plan.threads)


def partials(problem: Any, spec: LmsdSpec) -> tuple[TensorSpec, ...]:
    """Each block's sums of the gradients of weight and bias."""
    rows, columns = problem.x_tensor.shape
    blocks = max(min(spec.multiprocessors, -(-rows // spec.plan.groups)), 1)
    names = ("dweight_partials", "dbias_partials") if spec.compute_dweight else ("dbias_partials",)
    return tuple(TensorSpec((blocks, columns), (columns, 1), dtype("float32"), problem.device, 16, n) for n in names)
