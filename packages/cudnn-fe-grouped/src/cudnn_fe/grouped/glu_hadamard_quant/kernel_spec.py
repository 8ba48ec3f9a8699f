"""What the kernels of the FP4 grouped GEMM with quantised transforms are compiled for, and the memory they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.operands import output
from cudnn_fe.grouped.scaled.forward_spec import ForwardSpec, forward_spec
from cudnn_fe.grouped.scaled.problem import is_fp4
from cudnn_fe.grouped.scaled.product_spec import Backend, product_scratch

__all__ = ["HadamardQuantSpec", "quant_scratch", "quant_spec"]

BLOCK = 16


@dataclass(frozen=True, slots=True)
class HadamardQuantSpec:
    """What becomes of an activation that is rounded to bfloat16.

    Attributes:
        forward: What comes before.
        quantised: Whether D is FP4.
        scale: Format of its scales.
        rows: ``"bfloat16"`` or ``"float4_e2m1fn"`` of the transform along columns; None where it is not wanted.
        columns: Whether the transform along each expert's rows is wanted.
        alpha: Factor of a gated activation, None for 1.
        limit: Bound of gate and up, or None.
    """

    forward: ForwardSpec
    quantised: bool
    scale: str
    rows: str | None
    columns: bool
    alpha: float | None
    limit: float | None


def _format(kind: DType | None) -> str | None:
    return None if kind is None else "float4_e2m1fn" if is_fp4(kind) else kind.name


def quant_spec(problem: Any, where: Device, *, backend: Backend, numbers: int) -> HadamardQuantSpec:
    """What the kernel of a problem is compiled for."""
    return HadamardQuantSpec(
        forward_spec(problem, where, backend=backend, numbers=numbers),
        is_fp4(problem.d_dtype),
        problem.outputs[2].dtype.name,
        _format(problem.rht_rowwise_dtype),
        problem.rht_colwise_dtype is not None,
        problem.glu_alpha,
        problem.glu_limit,
    )


def quant_scratch(problem: Any, spec: HadamardQuantSpec) -> tuple[TensorSpec, ...]:
    """The product's; for the transform along rows D in bfloat16, and codes and scales of blocks of rows."""
    found = product_scratch(problem, spec.forward.product)
    if not spec.columns:
        return found
    (m, *_, count), width, place = problem.extents, problem.width, problem.device
    slots = m // BLOCK + count + 1
    kept = (output("scratch", (m, width), "bfloat16", place),) if spec.quantised else ()
    codes, scales = (output("scratch", shape, "uint8", place) for shape in ((slots, width, BLOCK // 2), (slots, width)))
    return (*found, *kept, codes, scales)
