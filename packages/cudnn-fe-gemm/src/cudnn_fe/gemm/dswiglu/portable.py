"""dAB12 from AB12 and dC, element by element, on any GPU from SM80 up.

With value X, gate G and s = sigmoid(G): dX = dC * G * s and dG = dC * X * s * (1 + G * (1 - s)), in fp32, plus the
gradient that reached AB12 by other ways. Bound by memory: every tensor is read or written once.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.activations import sigmoid
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.ptx_base import unsigned_divide
from cudnn_fe.core.cute.vectors import load_vector, store_vector
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.gemm.dswiglu.kernel_spec import DswigluSpec

__all__ = ["fake_arguments", "launcher"]

_THREADS = 256
_VECTOR = 8  # elements of dC: 16 bytes
_UNROLL = 2  # vectors of a thread, all of whose loads are in flight together
_BATCHES = 65535  # extent of the grid's y
_PAIR = 32  # columns of values, followed by as many of gates


class _Dswiglu:
    def __init__(self, spec: DswigluSpec) -> None:
        self.line, self.inner = (0, 1) if spec.major == "n" else (1, 0)

    @cute.jit
    def launch(self, stream: cuda.CUstream, ab12: Any, dc: Any, upstream: Any, dab12: Any) -> None:
        # The grid suits vectors; the scalar path loops over the rest.
        items = Int64(dc.shape[0]) * Int64(dc.shape[1])
        blocks = Int32((items - 1) // (_THREADS * _UNROLL * _VECTOR) + 1)
        grid = (blocks, cutlass.min(Int32(dc.shape[2]), Int32(_BATCHES)), 1)
        self.kernel(ab12, dc, upstream, dab12).launch(grid=grid, block=(_THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, ab12: cute.Tensor, dc: cute.Tensor, upstream: Any, dab12: cute.Tensor) -> None:
        tensors = [tensor for tensor in (ab12, dc, upstream, dab12) if tensor is not None]
        misaligned = Int64(dc.shape[self.inner] % _VECTOR)
        for tensor in tensors:
            size = tensor.element_type.width // 8
            misaligned |= Int64(tensor.stride[self.inner]) ^ 1
            for part in (tensor.iterator.toint(), *(Int64(tensor.stride[dim]) * size for dim in (self.line, 2))):
                misaligned |= part & 15
        _, first_batch, _ = cute.arch.block_idx()
        _, batch_step, _ = cute.arch.grid_dim()
        for turn in cutlass.range((Int32(dc.shape[2]) - first_batch - 1) // batch_step + 1, unroll=1):
            batch = first_batch + turn * batch_step
            if misaligned == 0:
                self.slice(ab12, dc, upstream, dab12, batch, _VECTOR)
            else:
                self.slice(ab12, dc, upstream, dab12, batch, 1)

    @cute.jit
    def slice(
        self,
        ab12: cute.Tensor,
        dc: cute.Tensor,
        upstream: Any,
        dab12: cute.Tensor,
        batch: Int32,
        count: cutlass.Constexpr,
    ) -> None:
        """One batch index, ``count`` elements of dC at a time."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        per_line = Int32(dc.shape[self.inner]) // count
        lines = Int32(dc.shape[self.line])
        per_block = _THREADS * _UNROLL
        total = Int64(per_line) * Int64(lines)
        first, step = Int64(block) * per_block, Int64(blocks) * per_block
        for turn in cutlass.range(Int32((total - first + step - 1) // step), unroll=1):
            start = first + turn * step
            # 64-bit division once a block; what is left per thread fits 32 bits.
            first_line = start // Int64(per_line)
            offset = Int32(start - first_line * Int64(per_line)) + thread
            # Every load comes before the first use; threads past the end load the last line and store nothing.
            lines_of, loaded = [], []
            for part in cutlass.range_constexpr(_UNROLL):
                item = offset + part * _THREADS
                down = unsigned_divide(item, per_line)
                line, inner = Int32(first_line) + down, (item - down * per_line) * count
                lines_of.append(line)
                loaded.append(
                    _Loaded(self.inner, ab12, dc, upstream, cutlass.min(line, lines - 1), inner, batch, count)
                )
            for part in cutlass.range_constexpr(_UNROLL):
                if lines_of[part] < lines:
                    _store_gradients(loaded[part], dab12)


class _Loaded:
    """``count`` elements of dC in registers, with their values, gates and upstream gradients.

    Args:
        inner_dim: The dim that the elements lie along.
        ab12: AB12.
        dc: dC.
        upstream: The gradient to add, or None.
        line: Index along the other dim.
        inner: Index of the first element along ``inner_dim`` (of dC).
        batch: Index along L.
        count: How many elements.
    """

    def __init__(
        self, inner_dim: int, ab12: Any, dc: Any, upstream: Any, line: Any, inner: Any, batch: Any, count: int
    ) -> None:
        row, column = line, inner
        if inner_dim == 0:
            row, column = inner, line
        value_column = column + column // _PAIR * _PAIR
        self.places = ((row, value_column, batch), (row, value_column + _PAIR, batch))
        self.values, self.gates = (_load(ab12, place, count) for place in self.places)
        self.outer = _load(dc, (row, column, batch), count)
        self.added = [[Float32(0.0)] * count] * 2
        if upstream is not None:
            self.added = [_load(upstream, place, count) for place in self.places]


def _store_gradients(loaded: _Loaded, dab12: Any) -> None:
    """Compute and store the gradients of the values and of the gates."""
    of_values, of_gates = [], []
    for value, gate, outer, more_value, more_gate in zip(
        loaded.values, loaded.gates, loaded.outer, *loaded.added, strict=True
    ):
        share = sigmoid(gate)
        # Far out, s or 1 - s is an exact zero and its partner finite: no inf * 0.
        slope = share * (Float32(1.0) + gate * (Float32(1.0) - share))
        of_values.append(outer * (gate * share) + more_value)
        of_gates.append(outer * (value * slope) + more_gate)
    for place, result in zip(loaded.places, (of_values, of_gates), strict=True):
        store_vector(dab12.element_type, _address(dab12, place), result)


class _WithoutUpstream(_Dswiglu):
    @cute.jit
    def __call__(self, stream: cuda.CUstream, ab12: cute.Tensor, dc: cute.Tensor, dab12: cute.Tensor) -> None:
        self.launch(stream, ab12, dc, None, dab12)


class _WithUpstream(_Dswiglu):
    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, ab12: cute.Tensor, dc: cute.Tensor, upstream: cute.Tensor, dab12: cute.Tensor
    ) -> None:
        self.launch(stream, ab12, dc, upstream, dab12)


def _address(tensor: Any, place: tuple[Any, Any, Any]) -> Int64:
    offset = sum((Int64(at) * Int64(stride) for at, stride in zip(place, tensor.stride, strict=True)), Int64(0))
    return tensor.iterator.toint() + offset * (tensor.element_type.width // 8)


def _load(tensor: Any, place: tuple[Any, Any, Any], count: int) -> list[Float32]:
    return load_vector(tensor.element_type, _address(tensor, place), count)


def launcher(spec: DswigluSpec) -> Any:
    """The host function ``launch(stream, ab12, dc, dab12)`` of a spec, to be compiled.

    With ``upstream_dtype`` it is ``launch(stream, ab12, dc, upstream, dab12)``. Strides are free in every dim, zero
    (an expanded gradient) included; dAB12's elements are distinct.

    Args:
        spec: What to compile for.
    """
    return _WithoutUpstream(spec) if spec.upstream_dtype is None else _WithUpstream(spec)


def fake_arguments(spec: DswigluSpec) -> tuple[Any, ...]:
    """Fake tensors in the launcher's order for the compiler: every extent and every stride is symbolic."""
    names = (spec.ab12_dtype, spec.dc_dtype, spec.upstream_dtype, spec.out_dtype)
    return tuple(fake_tensor(name, -1, alignment=dtype(name).itemsize) for name in names if name is not None)
