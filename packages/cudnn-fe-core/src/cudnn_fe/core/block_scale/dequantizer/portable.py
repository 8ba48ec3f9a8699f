"""Codes and scales to numbers, rows or columns, on any GPU from SM80 up."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute

from cudnn_fe.core.block_scale.dequantizer.spec import DequantizeSpec
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.block_dequantize import DequantizeTiles
from cudnn_fe.core.cute.block_tiles import ScalePlace
from cudnn_fe.core.cute.small_floats import has_fp8

__all__ = ["fake_arguments", "launcher"]


def launcher(spec: DequantizeSpec) -> Any:
    """The host function ``launch(stream, codes, scales, [factor], out)`` of a spec, to be compiled."""
    place = ScalePlace(spec.columns, spec.block, spec.packed)
    native = has_fp8(spec.arch)
    tiles = DequantizeTiles(spec.element, place, spec.scale, spec.in_access, spec.out_access, native=native)

    @cute.jit
    def launch(stream: cuda.CUstream, codes: cute.Tensor, scales: cute.Tensor, *others: cute.Tensor) -> None:
        factor = others[0] if cutlass.const_expr(spec.factor_rank is not None) else None
        tiles.launch(stream, codes, scales, factor, others[-1])

    return launch


def fake_arguments(spec: DequantizeSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins in the launcher's order; no stride is fixed, since a dim of extent 1 may have any."""
    per_byte = 2 if spec.element == "float4_e2m1fn" and not spec.columns else 1
    given = [
        fake_tensor(spec.codes_dtype, -1, alignment=max(spec.in_access // per_byte, 1)),
        fake_tensor(spec.scales_dtype, -1, rank=spec.scales_rank, alignment=1),
    ]
    if spec.factor_rank is not None:
        given.append(fake_tensor("float32", -1, rank=spec.factor_rank, alignment=4))
    return (*given, fake_tensor(spec.out_dtype, -1))
