"""What the Hopper kernels do with a block of accumulators: scale by expert and row, add a bias, activate."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, cute

from cudnn_fe.core.cute.activations import geglu, swiglu
from cudnn_fe.core.cute.epilogue_sm90 import (
    BlockPlace,
    Epilogue,
    Output,
    ReadingEpilogue,
    fragment_column,
    fragment_row,
)
from cudnn_fe.core.cute.exact import multiply
from cudnn_fe.grouped.kernel_spec import RowsSpec, WgradSpec

__all__ = ["Factors", "gated_epilogue", "plain_epilogue", "sum_epilogue"]


class Factors(NamedTuple):
    """What the epilogues read besides the sums.

    Attributes:
        alpha: (L,) scales of the experts; an empty tuple without.
        prob: (M,) gates of the rows; an empty tuple without.
        bias: (N, L); an empty tuple without.
        offset: GeGLU's offset of up; 0 elsewhere.
    """

    alpha: Any
    prob: Any
    bias: Any
    offset: Float32


def _row_gates(where: BlockPlace, prob: cute.Tensor) -> list[Float32]:
    """prob of the thread's two rows; of the group's last row where they lie behind it, whose results are dropped."""
    first = where.row + fragment_row(where.thread)
    return [prob[cutlass.min(first + 8 * half, where.end - 1)] for half in range(2)]


def _biases(where: BlockPlace, bias: cute.Tensor, count: int) -> list[Float32]:
    """The bias of each value of a fragment; the last column's behind N, whose results are dropped."""
    last = Int32(bias.shape[0]) - 1
    pairs = {}
    for index in range(count):
        if index // 2 % 2 == 0:
            column = cutlass.min(where.column + fragment_column(where.thread, index), last)
            pairs[index // 4, index % 2] = Float32(bias[column, where.batch])
    return [pairs[index // 4, index % 2] for index in range(count)]


def plain_epilogue(spec: RowsSpec) -> Epilogue:
    """D, and C if it is wanted, of the unfused GEMM."""

    def epilogue(block: cute.Tensor, where: BlockPlace, factors: Factors) -> tuple[cute.Tensor, ...]:
        alpha = factors.alpha[where.batch] if spec.alpha else Float32(1.0)
        gates = _row_gates(where, factors.prob) if spec.prob else [Float32(1.0)] * 2
        count = cute.size(block)
        c = cute.make_rmem_tensor(block.shape, Float32)
        if spec.bias_dtype is not None:
            biases = _biases(where, factors.bias, count)
            for i in range(count):
                c[i] = block[i] * alpha + gates[i // 2 % 2] * biases[i]
            return (c, c)[: 2 if "c" in spec.wanted else 1]
        d = cute.make_rmem_tensor(block.shape, Float32)
        for i in range(count):
            c[i] = block[i] * alpha
            d[i] = c[i] * gates[i // 2 % 2] if spec.prob else c[i]
        return (d, c)[: 2 if "c" in spec.wanted else 1]

    return epilogue


def gated_epilogue(spec: RowsSpec) -> Epilogue:
    """D, and C if it is wanted, of the GEMM with a gated activation; a block is 32 gate and 32 up columns."""

    def epilogue(block: cute.Tensor, where: BlockPlace, factors: Factors) -> tuple[cute.Tensor, ...]:
        alpha = factors.alpha[where.batch]
        gates = _row_gates(where, factors.prob)
        count = cute.size(block)
        c = cute.make_rmem_tensor(block.shape, Float32)
        biases = _biases(where, factors.bias, count) if spec.bias_dtype is not None else None
        for i in range(count):
            c[i] = block[i] * alpha if biases is None else block[i] * alpha + biases[i]
        half = count // 2
        d = cute.make_rmem_tensor((half,), Float32)
        for i in range(half):
            gate, up = c[i], c[half + i]
            value = geglu(up, gate, factors.offset) if spec.activation == "geglu" else swiglu(up, gate)
            d[i] = value * gates[i // 2 % 2]
        return (d, c)[: 2 if "c" in spec.wanted else 1]

    return epilogue


def sum_epilogue(spec: WgradSpec, result: Output) -> Epilogue:
    """The sums, times the expert's two factors; where the spec says so added, once rounded, to what was there.

    It gets the factors, ``()`` without, and stores its blocks as `result`.
    """
    return _Added(result) if spec.adds else _scaled


def _scaled(block: cute.Tensor, where: BlockPlace, factors: Any) -> tuple[cute.Tensor, ...]:
    if not factors:
        return (block,)
    factor = multiply(factors[0][where.batch], factors[1][where.batch])
    scaled = cute.make_rmem_tensor(block.shape, Float32)
    for i in range(cute.size(block)):
        scaled[i] = multiply(block[i], factor)
    return (scaled,)


class _Added(ReadingEpilogue):
    """In place, too: a block is read before it is stored, and nothing else of the result is it."""

    def __init__(self, result: Output) -> None:
        self.source = result

    def __call__(
        self, block: cute.Tensor, where: BlockPlace, arguments: Any, read: cute.Tensor
    ) -> tuple[cute.Tensor, ...]:
        (sums,) = _scaled(block, where, arguments)
        total = cute.make_rmem_tensor(block.shape, Float32)
        for i in range(cute.size(block)):
            total[i] = Float32(self.source.element(sums[i])) + read[i]
        return (total,)
