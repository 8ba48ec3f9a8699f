"""The gradient of gate and up columns on Hopper: core's WGMMA kernel, differentiated in registers.

Sums along a row (dprob) and along an expert's rows (dbias) are made of parts, which two more kernels add in a fixed
order: no atomics, equal bits in every run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, cute

from cudnn_fe.core.cute.activations import geglu_gradient, swiglu_gradient
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.epilogue_sm90 import BlockPlace, Output, ReadingEpilogue, fragment_row
from cudnn_fe.core.cute.gemm_sm90 import GemmSm90
from cudnn_fe.core.cute.numerics import element_type
from cudnn_fe.core.pairs import PAIR_BLOCK
from cudnn_fe.grouped.dglu.portable_sums import add_column_parts, add_row_parts, part_place
from cudnn_fe.grouped.kernel_spec import RowsSpec
from cudnn_fe.grouped.launch_sm90 import fake_vector, fake_weights, row_groups, row_tables, tensors_and_scalars

__all__ = ["PART_COLUMNS", "PART_ROWS", "fake_arguments", "launcher"]

PART_COLUMNS, PART_ROWS = PAIR_BLOCK, 16  # of the product that one part of dprob, and of dbias, sums: a warp's share
_PAIRS = PAIR_BLOCK // 8  # pairs of neighbouring columns that a thread has of a block's row


class _Operands(NamedTuple):
    alpha: cute.Tensor
    beta: cute.Tensor
    prob: cute.Tensor
    row_parts: cute.Tensor
    column_parts: cute.Tensor
    numbers: tuple[Float32, ...]


def launcher(spec: RowsSpec) -> Any:
    """The jitted ``launch(stream, a, c, b, offsets, alpha, beta, prob, d, dprob, dbias, activation, row_parts,
    column_parts, linear_offset, geglu_alpha, glu_clamp_max, glu_clamp_min)`` of this spec.
    """
    again = "activation" in spec.wanted
    d_dtype, _, _, again_dtype = spec.gemm.out_dtypes
    outputs = (Output(d_dtype, "n", 2 * PAIR_BLOCK), *([Output(again_dtype, "n", PAIR_BLOCK)] if again else []))
    gemm = GemmSm90(spec.gemm, outputs, _Gradients(spec), PAIR_BLOCK, row_groups(spec))

    @cute.jit
    def launch(stream: CUstream, *arguments: Any, **scalars: Any) -> None:
        tensors, numbers = tensors_and_scalars(arguments, scalars, 4)
        a, c, b, offsets, alpha, beta, prob, d, dprob, dbias, activation, row_parts, column_parts = tensors
        outs = (d, activation) if again else (d,)
        b, tables = row_tables(spec, a, b, offsets, c.shape[1] // 2, outs)
        numbers = tuple(Float32(number) for number in numbers)
        gemm(stream, a, b, outs, _Operands(alpha, beta, prob, row_parts, column_parts, numbers), tables, (c,))
        add_row_parts(stream, row_parts, offsets, dprob, spec.zero_tail)
        if cutlass.const_expr("dbias" in spec.wanted):
            add_column_parts(stream, column_parts, offsets, Int32(a.shape[0]), dbias, PART_ROWS)

    return launch


def fake_arguments(spec: RowsSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the arguments of a launch."""
    gemm = spec.gemm
    assert spec.c_dtype is not None
    return (
        fake_tensor(gemm.a_dtype, 1, rank=2),
        fake_tensor(spec.c_dtype, 1, rank=2),
        fake_weights(spec),
        fake_vector("int32"),
        *(fake_vector("float32") for _ in range(3)),
        fake_tensor(gemm.out_dtypes[0], 1, rank=2),
        fake_vector(gemm.out_dtypes[1]),
        fake_tensor(gemm.out_dtypes[2], -1, alignment=2),
        fake_tensor(gemm.out_dtypes[3], 1, rank=2),
        *(fake_tensor("float32", 1, rank=2) for _ in range(2)),
        *(Float32(0.0),) * 4,
    )


class _Gradients(ReadingEpilogue):
    """D of a block of 32 columns of the product, the activation if wanted, and the parts of the sums."""

    def __init__(self, spec: RowsSpec) -> None:
        assert spec.c_dtype is not None
        self.spec, self.source = spec, Output(spec.c_dtype, "n", 2 * PAIR_BLOCK)

    def __call__(
        self, block: cute.Tensor, where: BlockPlace, given: _Operands, read: cute.Tensor
    ) -> tuple[cute.Tensor, ...]:
        spec = self.spec
        rows = [where.row + fragment_row(where.thread) + 8 * half for half in range(2)]
        scale, beta = given.alpha[where.batch], given.beta[where.batch]
        scale = scale * scale
        probs = [given.prob[cutlass.min(row, where.end - 1)] for row in rows]
        factors = probs if spec.round_product else [scale * prob for prob in probs]
        count = cute.size(block)
        d = cute.make_rmem_tensor((2 * count,), Float32)
        again = cute.make_rmem_tensor((count,), Float32)
        shares = [Float32(0.0), Float32(0.0)]
        for i in range(count):
            half = i // 2 % 2
            product = block[i]
            if spec.round_product:
                product = (product * scale).to(element_type(spec.gemm.a_dtype)).to(Float32)
            gate, up = read[i] * beta, read[count + i] * beta
            if spec.activation == "geglu":
                of_up, of_gate, value = geglu_gradient(up, gate, *given.numbers)
            else:
                of_up, of_gate, value = swiglu_gradient(up, gate)
            weighted = product * factors[half]
            d[i], d[count + i] = weighted * of_gate, weighted * of_up
            again[i] = value * probs[half]
            shares[half] += product * value
        if not spec.round_product:
            shares = [share * scale for share in shares]
        _store_row_parts(given.row_parts, shares, where)
        if "dbias" in spec.wanted:
            _store_column_parts(given.column_parts, d, [Int32(row < where.end) for row in rows], where)
        return (d, again) if "activation" in spec.wanted else (d,)


@cute.jit
def _store_row_parts(parts: cute.Tensor, shares: list[Float32], where: BlockPlace) -> None:
    """The block's part of dprob: sums over the four lanes that share a row."""
    for distance in cutlass.range_constexpr(1, 3):
        shares = [share + cute.arch.shuffle_sync_bfly(share, distance) for share in shares]
    half = where.thread % 4
    row = where.row + fragment_row(where.thread) + 8 * half
    part = where.column // PART_COLUMNS
    if half < 2 and row < where.end and part < Int32(parts.shape[0]):
        parts[part, row] = cutlass.select_(half == 0, shares[0], shares[1])


@cute.jit
def _store_column_parts(parts: cute.Tensor, d: cute.Tensor, kept: list[Int32], where: BlockPlace) -> None:
    """A warp's part of dbias: each step halves the columns that a lane sums, and doubles the rows."""
    sums = []
    for pair in cutlass.range_constexpr(2 * _PAIRS):
        for odd in cutlass.range_constexpr(2):
            first, second = (
                cutlass.select_(keep != 0, d[4 * pair + 2 * half + odd], Float32(0.0)) for half, keep in enumerate(kept)
            )
            sums.append(first + second)
    lane = where.thread % 32
    for distance in cutlass.range_constexpr(3):
        bit = 16 >> distance
        upper = lane // bit % 2 == 1
        middle = len(sums) // 2
        low, high = sums[:middle], sums[middle:]
        given = [cutlass.select_(upper, left, right) for left, right in zip(low, high, strict=True)]
        mine = [cutlass.select_(upper, right, left) for left, right in zip(low, high, strict=True)]
        sums = [own + cute.arch.shuffle_sync_bfly(other, bit) for own, other in zip(mine, given, strict=True)]
    row = where.row + where.thread // 32 * PART_ROWS
    column = 2 * where.column + 8 * (lane // 4 % 2 + lane // 8 % 2 * 2) + lane // 16 * PAIR_BLOCK + lane % 4 * 2
    place = part_place(where.begin, where.batch, PART_ROWS) + (row - where.begin) // PART_ROWS
    if row < where.end and 2 * where.column < Int32(parts.shape[1]):
        parts[place, column] = sums[0]
        parts[place, column + 1] = sums[1]
