"""GEMM + SwiGLU on Hopper: core's WGMMA kernel with the SwiGLU epilogue in registers."""

from __future__ import annotations

from typing import Any

from cuda.bindings.driver import CUstream
from cutlass import Float32, cute

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.epilogue_sm90 import Output, swiglu_epilogue
from cudnn_fe.core.cute.gemm_in_waves import gemm_in_waves
from cudnn_fe.core.gemm_spec import GemmSpec

__all__ = ["fake_arguments", "launcher"]

_PAIR_COLUMNS = 64


def launcher(spec: GemmSpec) -> Any:
    """The jitted ``launch(stream, a, b, ab12, c, alpha)`` of this spec."""
    ab12_dtype, c_dtype = spec.out_dtypes
    outputs = (
        Output(ab12_dtype, spec.out_major, _PAIR_COLUMNS),
        Output(c_dtype, spec.out_major, _PAIR_COLUMNS // 2),
    )
    gemm = gemm_in_waves(spec, lambda tile: (outputs, _PAIR_COLUMNS), swiglu_epilogue)

    @cute.jit
    def launch(
        stream: CUstream, a: cute.Tensor, b: cute.Tensor, ab12: cute.Tensor, c: cute.Tensor, alpha: Float32
    ) -> None:
        gemm(stream, a, b, (ab12, c), alpha)

    return launch


def fake_arguments(spec: GemmSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (a, b, ab12, c, alpha)."""
    contiguous_out = 1 if spec.out_major == "n" else 0
    return (
        fake_tensor(spec.a_dtype, 1 if spec.a_major == "k" else 0),
        fake_tensor(spec.b_dtype, 1 if spec.b_major == "k" else 0),
        *(fake_tensor(name, contiguous_out) for name in spec.out_dtypes),
        Float32(1.0),
    )
