"""Which kernels serve the grouped GEMMs, and what they are compiled for."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.gemm_spec import GemmSpec, operand_alignment
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.kernel_spec import RowsSpec

__all__ = ["rows_kernels"]


def _dense(spec: TensorSpec) -> int:
    """The contiguous dim of an operand whose last dim counts K; the last where both are."""
    return spec.ndim - 1 if spec.dense_in(spec.ndim - 1) else spec.ndim - 2


def rows_spec(problem: Any, where: Device) -> RowsSpec:
    """What the portable kernel of a forward is compiled for."""
    a, b, bias = problem.a_tensor, problem.b_tensor, problem.bias_tensor
    gemm = GemmSpec(
        a.dtype.name,
        b.dtype.name,
        tuple(spec.dtype.name for spec in problem.outputs),
        b_major="k" if _dense(b) == 2 else "mn",
        tile=None,
        arch=where.arch,
        alignment=min(operand_alignment(a, 1), operand_alignment(b, _dense(b))),
    )
    return RowsSpec(
        gemm,
        getattr(problem, "act_func", "none"),
        prob=problem.prob_tensor is not None,
        bias_dtype=None if bias is None else bias.dtype.name,
        wanted=frozenset({"c"} if problem.generate_c else ()),
        zero_tail=getattr(problem, "zero_tail", True),
    )


def rows_kernels(folder: str) -> tuple[Kernel, ...]:
    """The kernels of the forward in ``cudnn_fe.grouped.<folder>``, best first."""
    return (
        Kernel(
            backend="portable",
            module=f"cudnn_fe.grouped.{folder}.portable",
            refuse=portable_refusal,
            specialise=rows_spec,
            targets=PORTABLE_TARGETS,
        ),
    )
