"""The toy op's kernel: one thread an element, compiled in a second or two."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, Int32, cute

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe_testkit.toy import ToySpec

__all__ = ["fake_arguments", "launcher"]

_THREADS = 128


@cute.kernel
def _scale(x: cute.Tensor, y: cute.Tensor, alpha: Float32) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    position = block * _THREADS + thread
    if position < x.shape[0] * x.shape[1]:
        row, column = position // x.shape[1], position % x.shape[1]
        y[row, column] = (x[row, column].to(Float32) * alpha).to(y.element_type)


@cute.jit
def _launch(stream: cuda.CUstream, x: cute.Tensor, y: cute.Tensor, alpha: Float32) -> None:
    blocks = (x.shape[0] * x.shape[1] + _THREADS - 1) // _THREADS
    _scale(x, y, alpha).launch(grid=(Int32(blocks), 1, 1), block=(_THREADS, 1, 1), stream=stream)


def launcher(spec: ToySpec) -> Any:
    """The function to compile."""
    del spec
    return _launch


def fake_arguments(spec: ToySpec) -> tuple[Any, ...]:
    """x, y and alpha, without data."""
    x = fake_tensor(spec.x_dtype, 1, rank=2, alignment=spec.alignment)
    return x, fake_tensor("float32", 1, rank=2), Float32(1.0)
