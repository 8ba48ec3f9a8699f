"""GEMM on Hopper: core's WGMMA kernel with the plain epilogue."""

from __future__ import annotations

from typing import Any

from cuda.bindings.driver import CUstream
from cutlass import Float32, cute

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.epilogue_sm90 import Output, identity_epilogue
from cudnn_fe.core.cute.gemm_in_waves import gemm_in_waves
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gemm_spec import GemmSpec, GemmTile

__all__ = ["fake_arguments", "launcher"]


def launcher(spec: GemmSpec) -> Any:
    """The jitted ``launch(stream, a, b, d, alpha)`` of this spec."""
    (out_dtype,) = spec.out_dtypes

    def outputs(tile: GemmTile) -> tuple[tuple[Output, ...], int]:
        columns = 64 if dtype(out_dtype).bits == 16 and tile.n // tile.warpgroups_n % 64 == 0 else 32
        return (Output(out_dtype, spec.out_major, columns),), columns

    gemm = gemm_in_waves(spec, outputs, identity_epilogue)

    @cute.jit
    def launch(stream: CUstream, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, alpha: Float32) -> None:
        gemm(stream, a, b, (d,), alpha)

    return launch


def fake_arguments(spec: GemmSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (a, b, d, alpha)."""
    return (
        fake_tensor(spec.a_dtype, 1 if spec.a_major == "k" else 0),
        fake_tensor(spec.b_dtype, 1 if spec.b_major == "k" else 0),
        fake_tensor(spec.out_dtypes[0], 1 if spec.out_major == "n" else 0),
        Float32(1.0),
    )
