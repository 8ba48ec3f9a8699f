"""The kernel of the gated activation's gradient: one portable kernel, bound by memory, serves every GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal

__all__ = ["KERNELS", "GluGradientSpec"]


@dataclass(frozen=True, slots=True)
class GluGradientSpec:
    """Everything that one compiled kernel depends on.

    Attributes:
        c_dtype: Element type of C.
        dd_dtype: Element type of the activation's gradient.
        dc_dtype: Element type of C's gradient from elsewhere, None without one.
        out_dtype: Element type of the result.
        activation: ``"swiglu"`` or ``"geglu"``.
        scaled: Whether there is an alpha.
        arch: The target that the kernel is compiled for.
    """

    c_dtype: str
    dd_dtype: str
    dc_dtype: str | None
    out_dtype: str
    activation: str
    scaled: bool
    arch: str = "sm_90a"


def _specialise(problem: Any, where: Device) -> GluGradientSpec:
    return GluGradientSpec(
        problem.c.dtype.name,
        problem.dd.dtype.name,
        None if problem.dc is None else problem.dc.dtype.name,
        problem.dtype.name,
        problem.act_func,
        problem.alpha is not None,
        where.arch,
    )


KERNELS = (
    Kernel(
        backend="portable",
        module="cudnn_fe.grouped.glu_gradient.portable",
        refuse=portable_refusal,
        specialise=_specialise,
        targets=PORTABLE_TARGETS,
        verified=("H200",),
    ),
)
