"""The gradient of gates and ups from that of their activation, a warp to a row, on any GPU from SM80 up.

Bound by memory: every tensor is read or written once.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute

from cudnn_fe.core.cute.activations import GEGLU_ALPHA, GEGLU_CLAMP, geglu_gradient, swiglu_gradient
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.expert_rows import row_owner
from cudnn_fe.core.cute.matrix_part import MatrixPart
from cudnn_fe.core.cute.numerics import element_type
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.vectors import load_words, store_vector, widen
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.grouped.glu_gradient.kernels import GluGradientSpec

__all__ = ["fake_arguments", "launcher"]

_WARPS = 4
_PAIR = 32  # columns of gates, followed by as many of what they gate
_VECTOR = 8
_UNROLL = 2  # vectors of a lane, all of whose loads are in flight together


class _GluGradient:
    def __init__(self, spec: GluGradientSpec) -> None:
        self.spec = spec

    @cute.jit
    def launch(
        self,
        stream: cuda.CUstream,
        c: cute.Tensor,
        dd: cute.Tensor,
        offsets: cute.Tensor,
        prob: cute.Tensor,
        alpha: Any,
        dc: Any,
        ds: cute.Tensor,
        dprob: cute.Tensor,
        linear_offset: Float32,
    ) -> None:
        grid = ((Int32(c.shape[0]) + (_WARPS - 1)) // _WARPS, 1, 1)
        kernel = self.kernel(c, dd, offsets, prob, alpha, dc, ds, dprob, Float32(linear_offset))
        kernel.launch(grid=grid, block=(32 * _WARPS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(
        self,
        c: cute.Tensor,
        dd: cute.Tensor,
        offsets: cute.Tensor,
        prob: cute.Tensor,
        alpha: Any,
        dc: Any,
        ds: cute.Tensor,
        dprob: cute.Tensor,
        linear_offset: Float32,
    ) -> None:
        row = Int32(cute.arch.block_idx()[0]) * _WARPS + Int32(cute.arch.thread_idx()[0]) // 32
        if row < c.shape[0]:
            expert = row_owner(offsets, row)
            inside = Int32(expert < offsets.shape[0])
            factors = [_number(prob, row, inside), None if alpha is None else _number(alpha, expert, inside)]
            parts: list[Any] = [
                None if tensor is None else MatrixPart.of(tensor).from_row(row) for tensor in (c, dd, dc, ds)
            ]
            misaligned = Int64(0)
            for part in parts:
                if cutlass.const_expr(part is not None):
                    misaligned |= part.address
            target = MatrixPart.of_vector(dprob).from_row(row).address
            if (misaligned & 15) == 0:
                _row(self.spec, parts, factors, inside, target, linear_offset, _VECTOR)
            else:
                _row(self.spec, parts, factors, inside, target, linear_offset, 1)


def _number(vector: Any, index: Any, inside: Any) -> Float32:
    """An element of a float32 vector, 0 unless ``inside``."""
    (word,) = load_global(MatrixPart.of_vector(vector).from_row(index).address, 4, inside)
    return widen(Float32, [word], 1)[0]


@cute.jit
def _row(
    spec: cutlass.Constexpr,
    parts: cutlass.Constexpr,
    factors: cutlass.Constexpr,
    inside: Int32,
    target: Int64,
    linear_offset: Float32,
    count: cutlass.Constexpr,
) -> None:
    """A warp's row: its gradients, and its part of dprob; zeros unless ``inside``.

    Args:
        spec: The kernel's `GluGradientSpec`.
        parts: C, dD, dC from elsewhere or None, and the result, from the row on.
        factors: prob, and alpha or None.
        inside: Whether the row is an expert's.
        target: Where its dprob goes.
        linear_offset: What geglu adds to up.
        count: Columns of a vector.
    """
    lane = Int32(cute.arch.thread_idx()[0]) % 32
    vectors = parts[1].columns // count
    share = Float32(0.0)
    for turn in cutlass.range((vectors + (32 * _UNROLL - 1)) // (32 * _UNROLL)):
        loaded = []
        for part in cutlass.range_constexpr(_UNROLL):
            vector = (turn * _UNROLL + part) * 32 + lane
            loaded.append(_load(spec, parts, vector * count, count, inside & Int32(vector < vectors)))
        for part in cutlass.range_constexpr(_UNROLL):
            vector = (turn * _UNROLL + part) * 32 + lane
            of_gates, of_ups, added = _gradients(spec, loaded[part], factors, linear_offset, count)
            share += added
            if vector < vectors:
                _store(spec, parts[3], vector * count, (of_gates, of_ups))
    for step in cutlass.range_constexpr(5):
        share += cute.arch.shuffle_sync_bfly(share, 1 << step)
    if lane == 0:
        store_vector(Float32, target, [share])


def _pair(inner: Any) -> Any:
    """The column of the gate that belongs to a column of the activation."""
    return inner + inner // _PAIR * _PAIR


def _load(spec: GluGradientSpec, parts: Any, inner: Any, count: int, valid: Any) -> Any:
    """Words of gates, ups, dD, and gates' and ups' gradients from elsewhere."""
    c, dd, dc, _ = parts

    def words(part: Any, kind: str, column: Any) -> Any:
        element = element_type(kind)
        return load_words(element, part.address + Int64(column) * (element.width // 8), count, valid)

    found = [words(c, spec.c_dtype, _pair(inner) + half * _PAIR) for half in range(2)]
    found.append(words(dd, spec.dd_dtype, inner))
    if spec.dc_dtype is not None:
        found += [words(dc, spec.dc_dtype, _pair(inner) + half * _PAIR) for half in range(2)]
    return found


def _gradients(spec: GluGradientSpec, loaded: Any, factors: Any, linear_offset: Float32, count: int) -> Any:
    """Gradients of ``count`` gates and of their ups, and the sum of dD times the activation."""
    prob, alpha = factors
    kinds = [spec.c_dtype, spec.c_dtype, spec.dd_dtype, *([spec.dc_dtype] * 2 if spec.dc_dtype is not None else [])]
    values = [widen(element_type(kind), words, count) for kind, words in zip(kinds, loaded, strict=True)]
    of_gates, of_ups, share = [], [], Float32(0.0)
    for index in range(count):
        gate, up, outer = (row[index] for row in values[:3])
        if spec.activation == "swiglu":
            to_up, to_gate, value = swiglu_gradient(up, gate)
        else:
            to_up, to_gate, value = geglu_gradient(
                up, gate, linear_offset, Float32(GEGLU_ALPHA), Float32(GEGLU_CLAMP), Float32(-GEGLU_CLAMP)
            )
        share += outer * value
        weighted = outer * prob
        pair = [weighted * to_gate, weighted * to_up]
        if spec.dc_dtype is not None:
            pair = [x + more[index] for x, more in zip(pair, values[3:], strict=True)]
        if alpha is not None:
            pair = [x * alpha for x in pair]
        of_gates.append(pair[0])
        of_ups.append(pair[1])
    return of_gates, of_ups, share


def _store(spec: GluGradientSpec, part: Any, inner: Any, results: Any) -> None:
    kind = element_type(spec.out_dtype)
    for half, values in enumerate(results):
        store_vector(kind, part.address + Int64(_pair(inner) + half * _PAIR) * (kind.width // 8), values)


class _Plain(_GluGradient):
    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        c: cute.Tensor,
        dd: cute.Tensor,
        offsets: cute.Tensor,
        prob: cute.Tensor,
        ds: cute.Tensor,
        dprob: cute.Tensor,
        linear_offset: Float32,
    ) -> None:
        self.launch(stream, c, dd, offsets, prob, None, None, ds, dprob, linear_offset)


class _WithOne(_GluGradient):
    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        c: cute.Tensor,
        dd: cute.Tensor,
        offsets: cute.Tensor,
        prob: cute.Tensor,
        extra: cute.Tensor,
        ds: cute.Tensor,
        dprob: cute.Tensor,
        linear_offset: Float32,
    ) -> None:
        alpha, dc = (extra, None) if self.spec.scaled else (None, extra)
        self.launch(stream, c, dd, offsets, prob, alpha, dc, ds, dprob, linear_offset)


class _WithBoth(_GluGradient):
    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        c: cute.Tensor,
        dd: cute.Tensor,
        offsets: cute.Tensor,
        prob: cute.Tensor,
        alpha: cute.Tensor,
        dc: cute.Tensor,
        ds: cute.Tensor,
        dprob: cute.Tensor,
        linear_offset: Float32,
    ) -> None:
        self.launch(stream, c, dd, offsets, prob, alpha, dc, ds, dprob, linear_offset)


def launcher(spec: GluGradientSpec) -> Any:
    """The host function ``launch(stream, c, dd, offsets, prob[, alpha][, dc], ds, dprob, linear_offset)`` of a spec.

    Args:
        spec: What to compile for.
    """
    extras = int(spec.scaled) + int(spec.dc_dtype is not None)
    return (_Plain, _WithOne, _WithBoth)[extras](spec)


def fake_arguments(spec: GluGradientSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's arguments."""

    def fake(name: str, rank: int) -> Any:
        return fake_tensor(name, -1, rank=rank, alignment=dtype(name).itemsize)

    extras = [fake("float32", 1)] if spec.scaled else []
    extras += [fake(spec.dc_dtype, 2)] if spec.dc_dtype is not None else []
    operands = [fake(spec.c_dtype, 2), fake(spec.dd_dtype, 2), fake("int32", 1), fake("float32", 1)]
    return (*operands, *extras, fake(spec.out_dtype, 2), fake("float32", 1), Float32(0.0))
