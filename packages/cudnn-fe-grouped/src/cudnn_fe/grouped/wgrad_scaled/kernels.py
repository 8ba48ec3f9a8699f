"""Which kernels serve the weight gradient of quantised operands, and the memory that they need beside."""

from __future__ import annotations

from functools import partial
from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.gemm_spec import GemmSpec
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.hopper import sums_refusal
from cudnn_fe.grouped.kernel_spec import WgradSpec
from cudnn_fe.grouped.operands import output
from cudnn_fe.grouped.scaled.product_spec import Backend, codes_spec, padded
from cudnn_fe.grouped.tiles import choose_sum_tile
from cudnn_fe.grouped.wgrad_scaled.kernel_spec import ScaledWgradSpec

__all__ = ["SCALED_WGRAD_KERNELS"]


def _widths(problem: Any) -> tuple[int, int]:
    return problem.a_tensor.shape[0], problem.b_tensor.shape[1]


def _specialise(problem: Any, where: Device, *, backend: Backend) -> ScaledWgradSpec:
    format, pointers = problem.format, problem.wgrad_ptrs
    tile = choose_sum_tile(*_widths(problem), where.multiprocessors) if backend == "sm90" else None
    gemm = GemmSpec("bfloat16", "bfloat16", (problem.wgrad_dtype.name,), "mn", "mn", tile=tile, arch=where.arch)
    product = WgradSpec(
        gemm,
        adds=problem.wgrad_tensor is not None or problem.accumulate,
        factors=problem.global_scale_a is not None,
        addresses=None if pointers is None else pointers.dtype.name,
    )
    return ScaledWgradSpec(
        element=format.element.name,
        scale=format.scale.name,
        block=format.block,
        a=codes_spec(problem.a_tensor, problem.sfa_tensor, 1, 0),
        b=codes_spec(problem.b_tensor, problem.sfb_tensor, 0, 1),
        ragged=problem.ragged,
        backend=backend,
        product=product,
    )


def _scratch(problem: Any, spec: Any) -> tuple[TensorSpec, ...]:
    """A^T (t, h) and B (t, i) in bfloat16, padded."""
    del spec
    return tuple(
        output("scratch", (problem.rows, padded(width)), "bfloat16", problem.device) for width in _widths(problem)
    )


def _row(backend: Backend, refuse: Any, targets: tuple[str, ...]) -> Kernel:
    return Kernel(
        backend=backend,
        module="cudnn_fe.grouped.wgrad_scaled.portable",
        refuse=refuse,
        specialise=partial(_specialise, backend=backend),
        targets=targets,
        scratch=_scratch,
        verified=("H200",),
    )


SCALED_WGRAD_KERNELS = (
    _row("sm90", sums_refusal, ("sm_90a",)),
    _row("portable", portable_refusal, PORTABLE_TARGETS),
)
