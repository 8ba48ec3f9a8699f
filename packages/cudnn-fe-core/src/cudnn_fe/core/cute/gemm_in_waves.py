"""A dense Hopper GEMM in one launch, or in two: whole waves of tiles, then the other columns with a tile of their own.

The second launch's CTAs take the place of the first's as these end, so that multiprocessors wait for nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import Int32, cute

from cudnn_fe.core.cute.epilogue_sm90 import Epilogue, Output
from cudnn_fe.core.cute.gemm_sm90 import GemmSm90
from cudnn_fe.core.gemm_spec import GemmSpec, GemmTile, full_columns

__all__ = ["gemm_in_waves"]

Outputs = Callable[[GemmTile], tuple[tuple[Output, ...], int]]


def gemm_in_waves(spec: GemmSpec, outputs: Outputs, epilogue: Epilogue) -> Any:
    """The jitted ``launch(stream, a, b, outs, arguments)`` of this spec.

    Args:
        spec: What is compiled.
        outputs: From a tile, the outputs and how many accumulator columns one call of the epilogue sees.
        epilogue: The function from these to the outputs' fragments.
    """
    tile = spec.tile or GemmTile()

    def gemm(tile: GemmTile, part: Literal["whole", "first", "rest"]) -> GemmSm90:
        stored, columns = outputs(tile)
        return GemmSm90(replace(spec, tile=tile, rest=None), stored, epilogue, columns, part=part)

    gemms = [gemm(tile, "whole")] if spec.rest is None else [gemm(tile, "first"), gemm(spec.rest, "rest")]

    @cute.jit
    def launch(stream: CUstream, a: cute.Tensor, b: cute.Tensor, outs: tuple[cute.Tensor, ...], arguments: Any) -> None:
        if cutlass.const_expr(len(gemms) == 1):
            gemms[0](stream, a, b, outs, arguments)
        else:
            ends = (Int32(0), full_columns(tile, a.shape[0], b.shape[0]), b.shape[0])
            for part in cutlass.range_constexpr(2):
                begin, end = ends[part], ends[part + 1]
                stored = []
                for output, out in zip(gemms[part].outputs, outs, strict=True):
                    share, of = output.columns, gemms[part].block_columns
                    stored.append(_between(out, 1, begin * share // of, end * share // of))
                gemms[part](stream, a, _between(b, 0, begin, end), tuple(stored), arguments)

    return launch


def _between(tensor: cute.Tensor, dim: int, begin: Int32, end: Int32) -> cute.Tensor:
    """The part of a tensor from ``begin`` to ``end`` of a dim."""
    corner = tuple([begin if i == dim else 0 for i in range(cute.rank(tensor))])
    shape = tuple([end - begin if i == dim else tensor.shape[i] for i in range(cute.rank(tensor))])
    moved = cute.domain_offset(corner, tensor)
    return cute.make_tensor(moved.iterator, cute.make_layout(shape, stride=tensor.stride))
