"""Tensors and tiles as the copy engine sees them."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

__all__ = ["TmaTile", "load_tile", "store_tile", "tma_view"]

ALIGNMENT = 16


class TmaTile(NamedTuple):
    """A copy atom and the coordinate tensor that it addresses."""

    atom: cute.CopyAtom
    tensor: cute.Tensor


def tma_view(tensor: cute.Tensor, contiguous: int, element: Any = None) -> cute.Tensor:
    """A rank-3 tensor under the promises that TMA needs: unit stride where said, other strides multiples of 16 bytes.

    The caller has checked them. A dimension of one element may carry any stride, so its stride is replaced by a legal
    one.
    """
    element = element or tensor.element_type
    multiple = ALIGNMENT * 8 // element.width
    strides: list[Any] = []
    for mode in range(3):
        if mode == contiguous:
            strides.append(1)
        else:
            single = Int32(tensor.shape[mode]) == 1
            stride = Int64(cutlass.select_(single, Int64(multiple), Int64(tensor.stride[mode])))
            strides.append(cute.assume(stride, divby=multiple))
    shape = tuple(Int32(extent) for extent in tensor.shape)
    return cute.make_tensor(tensor.iterator.align(ALIGNMENT), cute.make_layout(shape, stride=tuple(strides)))


def load_tile(
    tensor: cute.Tensor,
    smem_layout: Any,
    tile: tuple[int, int],
    multicast: int,
    internal: Any = None,
) -> TmaTile:
    """Loads of `tile` (rows, columns) into one stage; every one of `multicast` CTAs fetches its part for all."""
    op = cpasync.CopyBulkTensorTileG2SOp() if multicast == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
    info = cpasync.make_tiled_tma_atom(op, tensor, smem_layout, tile, num_multicast=multicast, internal_type=internal)
    return TmaTile(info.atom, info.tma_tensor)


def store_tile(tensor: cute.Tensor, smem_layout: Any, tile: tuple[int, int]) -> TmaTile:
    """Stores of `tile` (rows, columns) from shared memory; the engine drops what lies outside the tensor."""
    info = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), tensor, smem_layout, tile)
    return TmaTile(info.atom, info.tma_tensor)
