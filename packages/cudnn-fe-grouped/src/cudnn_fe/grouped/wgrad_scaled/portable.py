"""The weight gradient of quantised operands: both to bfloat16, tokens outermost, then a main loop of core's.

Values are exact in bfloat16 but for MXFP8's smallest scales: see `cudnn_fe.core.block_scale.dequantizer`. Experts begin
at whole atoms of scales, so the 32 or 64 tokens of a warp's tile are one expert's, whose codes and scales are read as a
matrix of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, cute

import cudnn_fe.grouped.wgrad.portable as wgrad_portable
import cudnn_fe.grouped.wgrad.sm90 as wgrad_sm90
from cudnn_fe.core.cute.arguments import fake_tensor, named
from cudnn_fe.core.cute.block_dequantize import DequantizeTiles
from cudnn_fe.core.cute.block_tiles import (
    SIDE,
    THREADS,
    LanePlace,
    Matrix,
    ScalePlace,
    lane_place,
    store_rows,
    tile_walk,
)
from cudnn_fe.core.cute.exact import multiply
from cudnn_fe.core.cute.expert_rows import row_owner, row_range
from cudnn_fe.core.cute.numerics import kind_name
from cudnn_fe.grouped.portable_parts import fake_typed
from cudnn_fe.grouped.scaled.portable_product import fake_codes
from cudnn_fe.grouped.scaled.product_spec import CodesSpec
from cudnn_fe.grouped.wgrad_scaled.kernel_spec import ScaledWgradSpec

__all__ = ["fake_arguments", "launcher"]

_RESULT = (2, 0, 1)  # batch, row and column dim of (t, wide), which has no batch


class _ExpertCodes(DequantizeTiles):
    """An operand to bfloat16 (t, wide), whichever of its dims is contiguous.

    Args:
        spec: The whole kernel's.
        operand: The operand's.
        t_dim: The dim of the codes that counts tokens.
    """

    def __init__(self, spec: ScaledWgradSpec, operand: CodesSpec, t_dim: int) -> None:
        self.along_t, self.t_dim = operand.major == "k", t_dim
        self.ragged = spec.ragged and self.along_t
        self.atom_tokens = 4 * spec.block
        dims = (2, 1 - t_dim, t_dim) if self.along_t else (2, t_dim, 1 - t_dim)
        place = ScalePlace(columns=not self.along_t, block=spec.block, packed=True)
        super().__init__(spec.element, place, spec.scale, operand.access, SIDE, dims, _RESULT)
        self.per_byte = 2 if self.fp4 else 1

    @cute.jit
    def launch_experts(
        self, stream: cuda.CUstream, codes: cute.Tensor, scales: cute.Tensor, offsets: cute.Tensor, out: cute.Tensor
    ) -> None:
        tokens, width = Int32(out.shape[0]), Int32(codes.shape[1 - self.t_dim])
        rows, columns = (width, tokens) if self.along_t else (tokens, width)
        blocks, walk = tile_walk(cutlass.max(rows, 1), cutlass.max(columns, 1), 1)
        kernel = self.experts_kernel(codes, scales, offsets, out, walk)
        kernel.launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def experts_kernel(
        self, codes: cute.Tensor, scales: cute.Tensor, offsets: cute.Tensor, out: cute.Tensor, walk: Any
    ) -> None:
        at = lane_place(walk)
        lane = cute.arch.thread_idx()[0] % 32
        token = at.column - lane % 8 * SIDE if self.along_t else at.row - lane // 8 * SIDE
        first, count = row_range(offsets, Int32(out.shape[0]), row_owner(offsets, token))
        if count > 0:
            begin = first // self.atom_tokens * self.atom_tokens  # it is that already, or no scale would be its own
            matrix, place = self.of_expert(self.source(codes), at, begin, count)
            width = matrix.rows if self.along_t else matrix.columns
            atoms = Int64(begin // self.atom_tokens) * ((width + 127) // 128)
            result = Matrix.of(out, _RESULT)
            target = replace(result, address=result.place(0, begin, 0), rows=count)
            self.tile(place, matrix, scales.iterator.toint() + atoms * 512, None, target, out.element_type)

    def of_expert(self, whole: Matrix, at: LanePlace, begin: Any, count: Any) -> tuple[Matrix, LanePlace]:
        """An expert's codes, and a lane's place in them."""
        if not self.along_t:
            address = whole.place(0, begin // self.per_byte, 0)
            return replace(whole, address=address, rows=count), replace(at, row=at.row - begin)
        address, row_bytes = whole.address + Int64(begin) // self.per_byte, whole.row_bytes
        if self.ragged:
            address = whole.address + Int64(begin) * whole.rows // self.per_byte
            row_bytes = Int64(count) // self.per_byte
        own = replace(whole, address=address, row_bytes=row_bytes, columns=count)
        return own, replace(at, column=at.column - begin)

    def tile(self, at: Any, source: Matrix, scales: Any, factor: Any, target: Matrix, kind: Any) -> None:
        """Dequantise a lane's rows and columns, and turn them where tokens lie along rows."""
        if not self.along_t:
            super().tile(at, source, scales, factor, target, kind)
            return
        codes = self.load_scales(scales, source, at)
        loaded, by = self.load(source, at), self.multipliers(codes, factor)
        rows = [[multiply(value, by[j]) for value in self.decode(loaded, j)] for j in range(SIDE)]
        turned = [list(token) for token in zip(*rows, strict=True)]
        place = LanePlace(at.batch, at.column, at.row)
        store_rows(target, kind_name(kind), turned, place, SIDE, False, kind.width)


class _ScaledWgrad:
    def __init__(self, spec: ScaledWgradSpec) -> None:
        self.spec = spec
        self.a, self.b = _ExpertCodes(spec, spec.a, 1), _ExpertCodes(spec, spec.b, 0)
        self.sums = (wgrad_sm90 if spec.backend == "sm90" else wgrad_portable).launcher(spec.product)

    def names(self) -> list[tuple[str, bool]]:
        """The launch's tensors, and whether they are there."""
        product = self.spec.product
        addressed = product.addresses is not None
        found = [(name, True) for name in ("a", "b", "sfa", "sfb", "offsets")]
        found += [(name, product.factors) for name in ("factor", "factor_too")]
        found += [("old", product.adds and not addressed), ("places", addressed)]
        return [*found, ("w", True), ("wide_a", True), ("wide_b", True)]

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *tensors: cute.Tensor) -> None:
        t = named(self.names(), tensors)
        self.a.launch_experts(stream, t.a, t.sfa, t.offsets, t.wide_a)
        self.b.launch_experts(stream, t.b, t.sfb, t.offsets, t.wide_b)
        tokens = Int32(t.wide_a.shape[0])
        a = cute.make_layout((Int32(t.a.shape[0]), tokens), stride=(1, t.wide_a.stride[0]))
        b = cute.make_layout((tokens, Int32(t.b.shape[1])), stride=(t.wide_b.stride[0], 1))
        operands = [cute.make_tensor(t.wide_a.iterator, a), cute.make_tensor(t.wide_b.iterator, b)]
        more = [x for x in (t.factor, t.factor_too, t.old, t.places) if x is not None]
        self.sums(stream, *operands, t.offsets, *more, t.w)


def launcher(spec: ScaledWgradSpec) -> Any:
    """The host function of a spec, to be compiled: its tensors are the op's operands, its output, and scratch.

    Args:
        spec: What to compile for.
    """
    return _ScaledWgrad(spec)


def fake_arguments(spec: ScaledWgradSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins in the launcher's order."""
    product = spec.product
    (a, sfa), (b, sfb) = fake_codes(spec.a), fake_codes(spec.b)
    kind = product.gemm.out_dtypes[0]
    given = [a, b, sfa, sfb, fake_typed("int32", 1), *[fake_typed("float32", 1)] * (2 if product.factors else 0)]
    result = fake_tensor(kind, 2)
    if product.addresses is not None:
        given += [fake_tensor(product.addresses, 0, rank=1, alignment=8), fake_typed("float32", 1)]
    else:
        given += [result] * (2 if product.adds else 1)
    return (*given, fake_tensor("bfloat16", 1, rank=2), fake_tensor("bfloat16", 1, rank=2))
