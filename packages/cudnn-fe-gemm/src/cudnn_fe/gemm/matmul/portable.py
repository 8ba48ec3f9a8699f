"""D = alpha * A * B^T on any GPU from SM80 up."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, cute

from cudnn_fe.core.cute.gemm_portable import PortableGemm, fake_operands, fake_outputs
from cudnn_fe.core.cute.loaders_plain import THREADS
from cudnn_fe.core.cute.store_plain import store_tile
from cudnn_fe.core.gemm_spec import GemmSpec

__all__ = ["fake_arguments", "launcher"]


class _Matmul(PortableGemm):
    @cute.jit
    def __call__(self, stream: cuda.CUstream, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, alpha: Float32) -> None:
        grid = (self.tiles(a, b).total(), 1, 1)
        self.kernel(a, b, d, alpha).launch(grid=grid, block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, alpha: Float32) -> None:
        staged, tile = self.staged(a, b, alpha)
        store_tile(staged, d.element_type, self.part(d, tile))


def launcher(spec: GemmSpec) -> Any:
    """The host function ``launch(stream, a, b, d, alpha)`` of a spec, to be compiled.

    Args:
        spec: What to compile for; ``tile`` is ignored.
    """
    return _Matmul(spec)


def fake_arguments(spec: GemmSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (a, b, d, alpha)."""
    return (*fake_operands(spec), *fake_outputs(spec), Float32(1.0))
