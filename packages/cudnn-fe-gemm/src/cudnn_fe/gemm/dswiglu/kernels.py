"""The kernel of SwiGLU's derivative: one portable kernel, bound by memory, serves every GPU."""

from __future__ import annotations

from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.gemm.dswiglu.kernel_spec import DswigluSpec

__all__ = ["KERNELS"]


def _specialise(problem: object, where: Device) -> DswigluSpec:
    from cudnn_fe.gemm.dswiglu.op import Dswiglu  # the op's record names this module's kernels

    assert isinstance(problem, Dswiglu)
    return DswigluSpec(
        ab12_dtype=problem.ab12.dtype.name,
        dc_dtype=problem.dc.dtype.name,
        upstream_dtype=problem.upstream.dtype.name if problem.upstream is not None else None,
        out_dtype=problem.dtype.name,
        major=problem.major,
        arch=where.arch,
    )


KERNELS = (
    Kernel(
        backend="portable",
        module="cudnn_fe.gemm.dswiglu.portable",
        refuse=portable_refusal,
        specialise=_specialise,
        targets=PORTABLE_TARGETS,
        verified=("H200",),
    ),
)
