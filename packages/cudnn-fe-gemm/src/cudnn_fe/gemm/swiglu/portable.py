"""AB12 = alpha * A * B^T and C = SwiGLU(AB12) on any GPU from SM80 up."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, cute

from cudnn_fe.core.cute.activations import swiglu
from cudnn_fe.core.cute.gemm_portable import PortableGemm, fake_operands, fake_outputs
from cudnn_fe.core.cute.loaders_plain import THREADS, TILE_ROWS
from cudnn_fe.core.cute.store_plain import StagedTile, store_tile
from cudnn_fe.core.gemm_spec import GemmSpec

__all__ = ["fake_arguments", "launcher"]

_PAIR = 32  # columns of values, followed by as many of gates


class _GemmSwiglu(PortableGemm):
    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        a: cute.Tensor,
        b: cute.Tensor,
        ab12: cute.Tensor,
        c: cute.Tensor,
        alpha: Float32,
    ) -> None:
        grid = (self.tiles(a, b).total(), 1, 1)
        self.kernel(a, b, ab12, c, alpha).launch(grid=grid, block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, ab12: cute.Tensor, c: cute.Tensor, alpha: Float32) -> None:
        staged, tile = self.staged(a, b, alpha)
        store_tile(staged, ab12.element_type, self.part(ab12, tile))
        half = TILE_ROWS // 2
        store_tile(staged, c.element_type, self.part(c, tile, half), half, _gated)


def _gated(staged: StagedTile, line: Any, inner: Any, count: int) -> list[Float32]:
    """``count`` elements of C from the values and gates of a staged tile."""
    if staged.major == "n":
        column = inner + inner // _PAIR * _PAIR
        values, gates = staged.read(line, column, count), staged.read(line, column + _PAIR, count)
    else:
        column = line + line // _PAIR * _PAIR
        values, gates = staged.read(column, inner, count), staged.read(column + _PAIR, inner, count)
    return [swiglu(value, gate) for value, gate in zip(values, gates, strict=True)]


def launcher(spec: GemmSpec) -> Any:
    """The host function ``launch(stream, a, b, ab12, c, alpha)`` of a spec, to be compiled.

    Args:
        spec: What to compile for; ``tile`` is ignored.
    """
    return _GemmSwiglu(spec)


def fake_arguments(spec: GemmSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (a, b, ab12, c, alpha)."""
    return (*fake_operands(spec), *fake_outputs(spec), Float32(1.0))
