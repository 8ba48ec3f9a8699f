"""The weight gradient of each expert, summed over its own rows, on any GPU from SM80 up."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.arguments import fake_tensor, named
from cudnn_fe.core.cute.exact import multiply
from cudnn_fe.core.cute.expert_rows import row_range
from cudnn_fe.core.cute.gemm_portable import BAND, PortableGemm
from cudnn_fe.core.cute.loaders_plain import THREADS, TILE_ROWS
from cudnn_fe.core.cute.matrix_part import MatrixPart
from cudnn_fe.core.cute.numerics import element_type
from cudnn_fe.core.cute.store_plain import StagedTile, same_elements, store_tile
from cudnn_fe.core.cute.tile_scheduler import DenseTiles
from cudnn_fe.core.cute.vectors import load_words, widen
from cudnn_fe.grouped.kernel_spec import WgradSpec
from cudnn_fe.grouped.portable_parts import fake_typed

__all__ = ["fake_arguments", "launcher"]


class _Wgrad(PortableGemm):
    def __init__(self, spec: WgradSpec) -> None:
        super().__init__(spec.gemm)
        self.spec = spec

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *tensors: Any) -> None:
        addressed = self.spec.addresses is not None
        names = [(name, True) for name in ("a", "b", "offsets")]
        names += [(name, self.spec.factors) for name in ("factor", "factor_too")]
        names += [("old", self.spec.adds and not addressed), ("places", addressed), ("w", True)]
        t = named(names, tensors)
        factors = (t.factor, t.factor_too) if cutlass.const_expr(self.spec.factors) else ()
        grid = (self.expert_tiles(t.a, t.b, t.offsets).total(), 1, 1)
        kernel = self.kernel(t.a, t.b, t.offsets, factors, t.old, t.places, t.w)
        kernel.launch(grid=grid, block=(THREADS, 1, 1), stream=stream)

    def expert_tiles(self, a: Any, b: Any, offsets: Any) -> DenseTiles:
        """The output's tiles, one for each block, whether an expert has rows or not."""
        h, i, experts = a.shape[0], b.shape[1], offsets.shape[0]
        return DenseTiles.of((h, i, Int32(0), experts), (TILE_ROWS, TILE_ROWS, self.main_loop.a.depth), (1, 1, 1), BAND)

    @cute.kernel
    def kernel(
        self, a: cute.Tensor, b: cute.Tensor, offsets: cute.Tensor, factors: Any, old: Any, places: Any, w: cute.Tensor
    ) -> None:
        tile = self.expert_tiles(a, b, offsets).coordinate(cute.arch.block_idx()[0], (Int32(0), Int32(0), Int32(0)))
        rows = row_range(offsets, Int32(b.shape[0]), tile.batch)
        operands = [
            self._of_expert(MatrixPart.of(a), self.spec.gemm.a_major, rows).from_row(tile.m * TILE_ROWS),
            self._of_expert(MatrixPart.of(b).transposed(), self.spec.gemm.b_major, rows).from_row(tile.n * TILE_ROWS),
        ]
        shared = SmemAllocator().allocate(self.shared_bytes, 128).toint()
        factor = Float32(1.0)
        if cutlass.const_expr(self.spec.factors):
            factor = multiply(factors[0][tile.batch], factors[1][tile.batch])
        staged = self.staged_parts(*operands, factor, shared)
        kind = element_type(self.spec.gemm.out_dtypes[0])
        target, source = self._results(kind, tile, (a.shape[0], b.shape[1]), old, places, w)
        elements = _added(kind, source) if self.spec.adds else same_elements
        store_tile(staged, kind, target, elements=elements, beside=source)
        if cutlass.const_expr(places is not None):
            _store_token(w)

    def _results(self, kind: Any, tile: Any, extents: Any, old: Any, places: Any, w: Any) -> list[Any]:
        """The tile's place, and what it is added to or None."""
        if places is None:
            matrices = [None if tensor is None else MatrixPart.of(tensor, tile.batch, 0) for tensor in (w, old)]
        else:
            matrix = MatrixPart.at(places, tile.batch, kind, extents)
            matrices = [matrix, matrix if self.spec.adds else None]
        return [
            None if matrix is None else matrix.from_row(tile.m * TILE_ROWS).from_column(tile.n * TILE_ROWS)
            for matrix in matrices
        ]

    def _of_expert(self, part: MatrixPart, major: str, rows: Any) -> MatrixPart:
        """An operand's columns that are an expert's rows."""
        begin, count = rows
        if self.spec.ragged and major == "k":
            size = part.column_stride
            address = part.address + Int64(begin) * part.rows * size
            return part._replace(address=address, row_stride=Int64(count) * size, columns=count)
        return part.from_column(begin, count)


@cute.jit
def _store_token(token: cute.Tensor) -> None:
    """Zero the result that stands for those at the addresses."""
    if cute.arch.block_idx()[0] == 0 and cute.arch.thread_idx()[0] == 0:
        token[0] = Float32(0.0)


def _added(kind: Any, source: MatrixPart) -> Any:
    """Elements of the result: the sum rounded to its type, plus what was there before."""

    def elements(staged: StagedTile, line: Any, inner: Any, count: int) -> list[Float32]:
        address = source.address + Int64(line) * source.row_stride + Int64(inner) * (kind.width // 8)
        before = widen(kind, load_words(kind, address, count, Int32(1)), count)
        return [x.to(kind).to(Float32) + y for x, y in zip(staged.read(line, inner, count), before, strict=True)]

    return elements


def launcher(spec: WgradSpec) -> Any:
    """The host function ``launch(stream, a, b, offsets[, two factors][, old][, addresses], w)``, to be compiled.

    Where addresses name the results' places, w is a single float32 that becomes zero.

    Args:
        spec: What to compile for.
    """
    return _Wgrad(spec)


def fake_arguments(spec: WgradSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's tensors."""
    gemm = spec.gemm
    operands = [fake_tensor(name, -1, rank=2, alignment=gemm.alignment) for name in (gemm.a_dtype, gemm.b_dtype)]
    tables = [fake_typed("int32", 1), *[fake_typed("float32", 1)] * (2 if spec.factors else 0)]
    old = [fake_typed(gemm.out_dtypes[0], 3)] if spec.adds else []
    if spec.addresses is not None:
        places = fake_tensor(spec.addresses, -1, rank=1, alignment=8)
        return (*operands, *tables, places, fake_typed("float32", 1))
    return (*operands, *tables, *old, fake_typed(gemm.out_dtypes[0], 3))
