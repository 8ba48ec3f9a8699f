"""Gradients of LayerNorm-Multiply-SiLU-Dropout: lanes keep their columns from row to row and add up in registers."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.activations import sigmoid
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.column_sum import add_rows
from cudnn_fe.core.cute.exact import fused_multiply_add
from cudnn_fe.core.cute.ptx_base import load_global, load_shared, store_shared
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.row_vectors import VECTOR, load_vectors, row_address, store_floats, store_words
from cudnn_fe.core.cute.small_floats import as_float
from cudnn_fe.norm_rope.hstu_lmsd.op import LmsdSpec

__all__ = ["fake_arguments", "launcher"]

_PRODUCT, _X, _GATE = 0, 1, 2  # bits of the mask


class _Backward:
    def __init__(self, spec: LmsdSpec) -> None:
        self.spec, self.plan = spec, spec.plan
        self.per_row = spec.columns // VECTOR
        self.groups = RowGroups(spec.plan.threads, spec.plan.groups)
        self.sums = 2 if spec.compute_dweight else 1

    @cute.jit
    def launch(self, stream: cuda.CUstream, tensors: cutlass.Constexpr, scale: Float32) -> None:
        given, rows, affine, partials = tensors
        self.kernel(*given, *rows, *partials, scale).launch(
            grid=(partials[-1].shape[0], 1, 1),
            block=(self.groups.block, 1, 1),
            stream=stream,
            min_blocks_per_mp=3,
            preferred_smem_carveout=-1,
        )
        for sums, target in zip(partials, affine, strict=True):
            if cutlass.const_expr(sums is not None):
                add_rows(stream, sums, target.iterator.toint(), self.spec.columns, "bfloat16")

    @cute.kernel
    def kernel(
        self,
        dy: cute.Tensor,
        x: cute.Tensor,
        u: cute.Tensor,
        weight: cute.Tensor,
        bias: cute.Tensor,
        mean: cute.Tensor,
        rstd: cute.Tensor,
        mask: Any,
        dx: cute.Tensor,
        du: cute.Tensor,
        weight_partials: Any,
        bias_partials: cute.Tensor,
        scale: Float32,
    ) -> None:
        count = self.plan.vectors
        sums_bytes = self.groups.block * VECTOR * count * 4
        shared = SmemAllocator().allocate(sums_bytes + 4 * self.groups.shared_words(2), 16).toint()
        group, lane = self.groups.place()
        block, blocks = Int32(cute.arch.block_idx()[0]), Int32(cute.arch.grid_dim()[0])
        ws, bs, xs, us, of_product, of_gate, of_x = (cute.make_rmem_tensor(4 * count, Int32) for _ in range(7))
        kept = cute.make_rmem_tensor(2 * count, Int32)
        scaled = cute.make_rmem_tensor(VECTOR * count, Float32)
        weight_sums, bias_sums = (cute.make_rmem_tensor(VECTOR * count, Float32) for _ in range(2))
        weight_sums.fill(0.0)
        bias_sums.fill(0.0)
        load_vectors(ws, weight.iterator.toint(), lane, self.plan.threads, self.per_row, 16)
        load_vectors(bs, bias.iterator.toint(), lane, self.plan.threads, self.per_row, 16)
        step = blocks * self.plan.groups
        rows = Int32(x.shape[0])
        for turn in cutlass.range((rows - block * self.plan.groups + step - 1) // step, unroll=1):
            row = Int64(turn) * step + block * self.plan.groups + group
            limit = cutlass.select_(row < rows, Int32(self.per_row), Int32(0))
            self.load(dy, x, u, mask, row, lane, limit, of_gate, of_x, of_product, xs, us, kept)
            inside = Int32(row < rows)
            centre, spread = (
                as_float(load_global(statistic.iterator.toint() + row * 4, 4, inside)[0]) for statistic in (mean, rstd)
            )
            shift = -centre * spread
            first, second = Float32(0.0), Float32(0.0)
            for index in cutlass.range_constexpr(count):
                gradient = self.undropped(of_product, kept, index, _PRODUCT, scale)
                direct = self.undropped(of_gate, kept, index, _GATE, scale)
                x8, u8, w8, b8 = (_widened(part, index) for part in (xs, us, ws, bs))
                results = []
                for at in cutlass.range_constexpr(VECTOR):
                    normal = fused_multiply_add(x8[at], spread, shift)
                    gate, slope = u8[at], Float32(1.0)
                    if cutlass.const_expr(self.spec.apply_u_silu):
                        share = sigmoid(u8[at])
                        gate = u8[at] * share
                        slope = fused_multiply_add(gate, Float32(1.0) - share, share)
                    value = fused_multiply_add(normal, w8[at], b8[at])
                    results.append(gradient[at] * value * slope + direct[at] * slope)
                    of_norm = gradient[at] * gate
                    through = w8[at] * of_norm
                    scaled[index * VECTOR + at] = through
                    first += normal * through
                    second += through
                    bias_sums[index * VECTOR + at] += of_norm
                    if cutlass.const_expr(self.spec.compute_dweight):
                        weight_sums[index * VECTOR + at] += of_norm * normal
                self.store(du, row, lane, index, results, limit)
            first, second = self.groups.sum([first, second], shared + sums_bytes, turn & 1)
            first, second = first * Float32(1.0 / self.spec.columns), second * Float32(1.0 / self.spec.columns)
            for index in cutlass.range_constexpr(count):
                direct = self.undropped(of_x, kept, index, _X, scale)
                x8 = _widened(xs, index)
                results = []
                for at in cutlass.range_constexpr(VECTOR):
                    normal = fused_multiply_add(x8[at], spread, shift)
                    rest = scaled[index * VECTOR + at] - (normal * first + second)
                    results.append(direct[at] + rest * spread)
                self.store(dx, row, lane, index, results, limit)
        if cutlass.const_expr(self.spec.compute_dweight):
            self.add_groups(weight_sums, weight_partials, shared, group, lane, block)
            cute.arch.sync_threads()
        self.add_groups(bias_sums, bias_partials, shared, group, lane, block)

    @cute.jit
    def load(
        self,
        dy: cute.Tensor,
        x: cute.Tensor,
        u: cute.Tensor,
        mask: Any,
        row: Int64,
        lane: Int32,
        limit: Int32,
        of_gate: cute.Tensor,
        of_x: cute.Tensor,
        of_product: cute.Tensor,
        xs: cute.Tensor,
        us: cute.Tensor,
        kept: cute.Tensor,
    ) -> None:
        """Everything of a row; gradients of segments that y does not have are zeros."""
        segment = row_address(dy, row)
        for wanted, target in ((self.spec.concat_u, of_gate), (self.spec.concat_x, of_x), (True, of_product)):
            if cutlass.const_expr(wanted):
                load_vectors(target, segment, lane, self.plan.threads, limit, 16)
                segment += self.spec.columns * 2
            else:
                target.fill(0)
        load_vectors(xs, row_address(x, row), lane, self.plan.threads, limit, 16)
        load_vectors(us, row_address(u, row), lane, self.plan.threads, limit, 16)
        if cutlass.const_expr(self.spec.dropout):
            for index in cutlass.range_constexpr(self.plan.vectors):
                vector = lane + index * self.plan.threads
                at = mask.iterator.toint() + row * self.spec.columns + Int64(vector) * VECTOR
                for part, word in enumerate(load_global(at, 8, Int32(vector < limit))):
                    kept[2 * index + part] = word

    def undropped(self, words: Any, kept: Any, index: int, bit: int, scale: Any) -> list[Float32]:
        """The gradient of a segment before dropout: scaled where it was kept, else 0."""
        values = _widened(words, index)
        if not self.spec.dropout:
            return values
        results = []
        for at, value in enumerate(values):
            keep = (kept[2 * index + at // 4] >> (at % 4 * 8 + bit)) & 1
            results.append(cutlass.select_(keep != 0, value * scale, Float32(0.0)))
        return results

    def store(self, target: Any, row: Any, lane: Any, index: int, values: list[Any], limit: Any) -> None:
        vector = lane + index * self.plan.threads
        store_words(row_address(target, row) + Int64(vector) * 16, narrow_pairs(values), 16, Int32(vector < limit))

    @cute.jit
    def add_groups(
        self, sums: cute.Tensor, partials: cute.Tensor, shared: Int32, group: Int32, lane: Int32, block: Int32
    ) -> None:
        """Add the sums of the block's groups, in order, into the block's row of the partial sums."""
        row_bytes = self.plan.threads * self.plan.vectors * VECTOR * 4
        for index in cutlass.range_constexpr(self.plan.vectors):
            for half in cutlass.range_constexpr(2):
                at = shared + group * row_bytes + (lane + index * self.plan.threads) * 32 + half * 16
                store_shared(at, [sums[index * VECTOR + half * 4 + part] for part in range(4)], 16)
        cute.arch.sync_threads()
        thread = Int32(cute.arch.thread_idx()[0])
        quads = self.spec.columns // 4
        for turn in cutlass.range_constexpr((quads + self.groups.block - 1) // self.groups.block):
            quad = thread + turn * self.groups.block
            # Past the row's end the sums lie in padding or beyond it: read the first instead, and store nothing.
            source = shared + cutlass.select_(quad < quads, quad, Int32(0)) * 16
            totals = load_shared(source, 4, Float32)
            for other in cutlass.range_constexpr(1, self.plan.groups):
                part = load_shared(source + other * row_bytes, 4, Float32)
                totals = [total + value for total, value in zip(totals, part, strict=True)]
            at = partials.iterator.toint() + (Int64(block) * self.spec.columns + quad * 4) * 4
            store_floats(at, totals, Int32(quad < quads))


def _widened(words: Any, index: int) -> list[Float32]:
    return widen_pairs([words[index * 4 + part] for part in range(4)])


def _launcher_class(dropout: bool, dweight: bool) -> type[_Backward]:
    return {
        (True, True): _WithBoth,
        (True, False): _WithMask,
        (False, True): _WithWeight,
        (False, False): _WithNeither,
    }[dropout, dweight]


class _WithBoth(_Backward):
    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, dy: cute.Tensor, x: cute.Tensor, u: cute.Tensor, weight: cute.Tensor,
        bias: cute.Tensor, mean: cute.Tensor, rstd: cute.Tensor, mask: cute.Tensor, dx: cute.Tensor, du: cute.Tensor,
        dweight: cute.Tensor, dbias: cute.Tensor, weight_partials: cute.Tensor, bias_partials: cute.Tensor,
        scale: Float32,
    ) -> None:  # fmt: skip
        given = (dy, x, u, weight, bias, mean, rstd, mask)
        self.launch(stream, (given, (dx, du), (dweight, dbias), (weight_partials, bias_partials)), scale)


class _WithMask(_Backward):
    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, dy: cute.Tensor, x: cute.Tensor, u: cute.Tensor, weight: cute.Tensor,
        bias: cute.Tensor, mean: cute.Tensor, rstd: cute.Tensor, mask: cute.Tensor, dx: cute.Tensor, du: cute.Tensor,
        dbias: cute.Tensor, bias_partials: cute.Tensor, scale: Float32,
    ) -> None:  # fmt: skip
        given = (dy, x, u, weight, bias, mean, rstd, mask)
        self.launch(stream, (given, (dx, du), (None, dbias), (None, bias_partials)), scale)


class _WithWeight(_Backward):
    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, dy: cute.Tensor, x: cute.Tensor, u: cute.Tensor, weight: cute.Tensor,
        bias: cute.Tensor, mean: cute.Tensor, rstd: cute.Tensor, dx: cute.Tensor, du: cute.Tensor,
        dweight: cute.Tensor, dbias: cute.Tensor, weight_partials: cute.Tensor, bias_partials: cute.Tensor,
        scale: Float32,
    ) -> None:  # fmt: skip
        given = (dy, x, u, weight, bias, mean, rstd, None)
        self.launch(stream, (given, (dx, du), (dweight, dbias), (weight_partials, bias_partials)), scale)


class _WithNeither(_Backward):
    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, dy: cute.Tensor, x: cute.Tensor, u: cute.Tensor, weight: cute.Tensor,
        bias: cute.Tensor, mean: cute.Tensor, rstd: cute.Tensor, dx: cute.Tensor, du: cute.Tensor,
        dbias: cute.Tensor, bias_partials: cute.Tensor, scale: Float32,
    ) -> None:  # fmt: skip
        given = (dy, x, u, weight, bias, mean, rstd, None)
        self.launch(stream, (given, (dx, du), (None, dbias), (None, bias_partials)), scale)


def launcher(spec: LmsdSpec) -> Any:
    """The host function of a spec: operands, outputs, partial sums, scale; absent ones left out."""
    return _launcher_class(spec.dropout, spec.compute_dweight)(spec)


def fake_arguments(spec: LmsdSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's arguments."""

    def matrix(kind: str = "bfloat16", alignment: int = 16) -> Any:
        return fake_tensor(kind, 1, rank=2, alignment=alignment)

    def vector(kind: str = "bfloat16", alignment: int = 16) -> Any:
        return fake_tensor(kind, 0, rank=1, alignment=alignment)

    affine = 2 if spec.compute_dweight else 1
    return (
        *(matrix() for _ in range(3)),
        *(vector() for _ in range(2)),
        *(vector("float32", 4) for _ in range(2)),
        *((matrix("int8", 8),) if spec.dropout else ()),
        *(matrix() for _ in range(2)),
        *(vector() for _ in range(affine)),
        *(matrix("float32") for _ in range(affine)),
        Float32(1.0),
    )
