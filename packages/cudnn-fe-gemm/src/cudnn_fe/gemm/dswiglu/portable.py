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
from cudnn_fe.core.cute.vectors import load_vector, store_vector
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.gemm.dswiglu.kernel_spec import DswigluSpec

__all__ = ["fake_arguments", "launcher"]

_THREADS = 128
_VECTOR = 8  # elements of dC: 16 bytes
_UNROLL = 2  # vectors of a thread, all of whose loads are in flight together
_PAIR = 32  # columns of values, followed by as many of gates


class _Dswiglu:
    def __init__(self, spec: DswigluSpec) -> None:
        self.line, self.inner = (0, 1) if spec.major == "n" else (1, 0)

    @cute.jit
    def launch(self, stream: cuda.CUstream, ab12: Any, dc: Any, upstream: Any, dab12: Any) -> None:
        misaligned = Int64(dc.shape[self.inner] % _VECTOR)
        for tensor in [tensor for tensor in (ab12, dc, upstream, dab12) if tensor is not None]:
            size = tensor.element_type.width // 8
            misaligned |= Int64(tensor.stride[self.inner]) ^ 1
            for part in (tensor.iterator.toint(), *(Int64(tensor.stride[dim]) * size for dim in (self.line, 2))):
                misaligned |= part & 15
        if misaligned == 0:
            self.launch_wide(stream, ab12, dc, upstream, dab12, _VECTOR)
        else:
            self.launch_wide(stream, ab12, dc, upstream, dab12, 1)

    @cute.jit
    def launch_wide(
        self, stream: cuda.CUstream, ab12: Any, dc: Any, upstream: Any, dab12: Any, count: cutlass.Constexpr
    ) -> None:
        """Launch with ``count`` elements of dC a vector.

        A block takes a segment of a line or, where lines are short, a group of whole lines; all blocks lie along the
        grid's x. The divisions that this needs are prepared here: in the kernel they would delay its first load.
        """
        per_line, lines = Int32(dc.shape[self.inner]) // count, Int32(dc.shape[self.line])
        per_block = _THREADS * _UNROLL
        group = cutlass.max(Int32(per_block) // per_line, Int32(1))
        segments = (per_line - 1) // per_block + 1
        groups = (lines - 1) // group + 1
        walk = (
            cute.fast_divmod_create_divisor_v2(segments),
            cute.fast_divmod_create_divisor_v2(groups),
            cute.fast_divmod_create_divisor_v2(per_line),
            group,
        )
        grid = (segments * groups * Int32(dc.shape[2]), 1, 1)
        self.kernel(ab12, dc, upstream, dab12, walk, count).launch(grid=grid, block=(_THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(
        self,
        ab12: cute.Tensor,
        dc: cute.Tensor,
        upstream: Any,
        dab12: cute.Tensor,
        walk: Any,
        count: cutlass.Constexpr,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        by_segments, by_groups, by_line, group = walk
        across, segment = divmod(block, by_segments)
        batch, band = divmod(across, by_groups)
        lines = Int32(dc.shape[self.line])
        # Every load comes before the first use; threads past the end load the last line and store nothing.
        inside, loaded = [], []
        for part in cutlass.range_constexpr(_UNROLL):
            down, along = divmod(segment * (_THREADS * _UNROLL) + part * _THREADS + thread, by_line)
            line = band * group + down
            inside.append(Int32(down < group) & Int32(line < lines))
            last = cutlass.min(line, lines - 1)
            loaded.append(_Loaded(self.inner, ab12, dc, upstream, last, along * count, batch, count))
        for part in cutlass.range_constexpr(_UNROLL):
            if inside[part] != 0:
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
        self.added = None if upstream is None else [_load(upstream, place, count) for place in self.places]


def _store_gradients(loaded: _Loaded, dab12: Any) -> None:
    """Compute and store the gradients of the values and of the gates."""
    of_values, of_gates = [], []
    for value, gate, outer in zip(loaded.values, loaded.gates, loaded.outer, strict=True):
        share = sigmoid(gate)
        # Far out, s or 1 - s is an exact zero and its partner finite: no inf * 0.
        slope = share * (Float32(1.0) + gate * (Float32(1.0) - share))
        of_values.append(outer * (gate * share))
        of_gates.append(outer * (value * slope))
    if loaded.added is not None:
        of_values, of_gates = (
            [result + more for result, more in zip(results, added, strict=True)]
            for results, added in zip((of_values, of_gates), loaded.added, strict=True)
        )
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
