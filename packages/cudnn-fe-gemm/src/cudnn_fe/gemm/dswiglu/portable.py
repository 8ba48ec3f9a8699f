"""dAB12 from AB12 and dC, element by element, on any GPU from SM80 up.

With value X, gate G and s = sigmoid(G): dX = dC * G * s and dG = dC * X * s * (1 + G * (1 - s)), in fp32, plus the
gradient that reached AB12 by other ways. Bound by memory: every tensor is read or written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, cute

from cudnn_fe.core.cute.activations import swiglu_gradient
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.vectors import load_words, store_vector, widen
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.gemm.dswiglu.kernel_spec import DswigluSpec

__all__ = ["fake_arguments", "launcher"]

_THREADS = 128
_VECTOR = 8  # elements of dC: 16 bytes
_UNROLL = 4  # vectors of a thread, all of whose loads are in flight together
_PAIR = 32  # columns of values, followed by as many of gates


class _Dswiglu:
    def __init__(self, spec: DswigluSpec) -> None:
        self.line, self.inner = (0, 1) if spec.major == "n" else (1, 0)

    @cute.jit
    def launch(self, stream: cuda.CUstream, ab12: Any, dc: Any, upstream: Any, dab12: Any) -> None:
        misaligned = Int64(dc.shape[self.inner] % _VECTOR)
        for tensor in [tensor for tensor in (ab12, dc, upstream, dab12) if tensor is not None]:
            size = tensor.element_type.width // 8
            misaligned |= (Int64(tensor.stride[self.inner]) ^ 1) | (tensor.iterator.toint() & 15)
            for dim in (self.line, 2):
                # The stride of a dim of extent 1 may be anything.
                misaligned |= Int64(tensor.stride[dim]) * size * Int64(tensor.shape[dim] > 1) & 15
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
        # Every load comes before the first use.
        inside, loaded = [], []
        for part in cutlass.range_constexpr(_UNROLL):
            down, along = divmod(segment * (_THREADS * _UNROLL) + part * _THREADS + thread, by_line)
            line = band * group + down
            inside.append(Int32(down < group) & Int32(line < lines))
            places = _Places(self.line, count, batch, line, along * count)
            loaded.append(_Loaded(ab12, dc, upstream, places, inside[part]))
        for part in cutlass.range_constexpr(_UNROLL):
            if inside[part] != 0:
                _store_gradients(loaded[part], dab12)


@dataclass(frozen=True)
class _Places:
    """Where ``count`` elements of dC lie, and their values and gates.

    Attributes:
        line_dim: The dim along which ``line`` counts, 0 or 1; ``inner`` counts along the other.
        count: How many elements; more than one lie side by side in memory.
        batch: Index along L.
        line: Index of the line.
        inner: Index of the first element in it, in dC.
    """

    line_dim: int
    count: int
    batch: Any
    line: Any
    inner: Any

    def of(self, tensor: Any) -> Int64:
        """Address in a tensor of dC's shape."""
        return self._address(tensor, self.line, self.inner)

    def of_pair(self, tensor: Any) -> tuple[Int64, Int64]:
        """Addresses of values and gates in a tensor of AB12's shape."""
        line, inner = self.line, self.inner
        if self.line_dim == 0:
            inner = inner + inner // _PAIR * _PAIR
        else:
            line = line + line // _PAIR * _PAIR
        values = self._address(tensor, line, inner)
        step = _PAIR if self._dense(1) else Int64(tensor.stride[1]) * _PAIR
        return values, values + step * (tensor.element_type.width // 8)

    def _dense(self, dim: int) -> bool:
        return dim != self.line_dim and self.count > 1

    def _address(self, tensor: Any, line: Any, inner: Any) -> Int64:
        offset = Int64(self.batch) * Int64(tensor.stride[2]) + Int64(line) * Int64(tensor.stride[self.line_dim])
        inner_dim = 1 - self.line_dim
        offset += Int64(inner) if self._dense(inner_dim) else Int64(inner) * Int64(tensor.stride[inner_dim])
        return tensor.iterator.toint() + offset * (tensor.element_type.width // 8)


class _Loaded:
    """Elements of dC in registers, with their values, gates and upstream gradients.

    Args:
        ab12: AB12.
        dc: dC.
        upstream: The gradient to add, or None.
        places: Where they lie.
        inside: Whether they are within the extents; nothing is read otherwise.
    """

    def __init__(self, ab12: Any, dc: Any, upstream: Any, places: _Places, inside: Any) -> None:
        self.places, self.inside = places, inside
        self.pairs = [self._load(ab12, address) for address in places.of_pair(ab12)]
        self.outer = self._load(dc, places.of(dc))
        self.added = [] if upstream is None else [self._load(upstream, address) for address in places.of_pair(upstream)]

    def _load(self, tensor: Any, address: Int64) -> tuple[Any, list[Int32], int]:
        kind, count = tensor.element_type, self.places.count
        return kind, load_words(kind, address, count, self.inside), count


def _store_gradients(loaded: _Loaded, dab12: Any) -> None:
    """Compute and store the gradients of the values and of the gates."""
    values, gates = (widen(*words) for words in loaded.pairs)
    of_values, of_gates = [], []
    for value, gate, outer in zip(values, gates, widen(*loaded.outer), strict=True):
        to_value, to_gate, _ = swiglu_gradient(value, gate)
        of_values.append(outer * to_value)
        of_gates.append(outer * to_gate)
    results = [of_values, of_gates]
    if loaded.added:
        added = [widen(*words) for words in loaded.added]
        results = [[x + y for x, y in zip(*sides, strict=True)] for sides in zip(results, added, strict=True)]
    for address, result in zip(loaded.places.of_pair(dab12), results, strict=True):
        store_vector(dab12.element_type, address, result)


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
