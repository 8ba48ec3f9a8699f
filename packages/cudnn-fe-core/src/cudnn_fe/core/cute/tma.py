"""Tensors and tiles as the copy engine sees them."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Int64, Uint64, cute
from cutlass.cute.nvgpu import cpasync

__all__ = [
    "TmaTile",
    "addressed_place",
    "addressed_view",
    "k_tiles",
    "load_tile",
    "ragged_place",
    "ragged_view",
    "store_tile",
    "tile_at",
    "tma_view",
]

ALIGNMENT = 16
_RAGGED = 2**30  # extent of a ragged mode: more rows than any tensor has here
_WRAP = 2**64 // _RAGGED  # elements: `_RAGGED` such steps come back to the same address, whatever an element's size
_ANY = 2**31 - 1
_STEPS = 2**30


class TmaTile(NamedTuple):
    """A copy atom and the coordinate tensor that it addresses."""

    atom: cute.CopyAtom
    tensor: cute.Tensor


def tma_view(tensor: cute.Tensor, contiguous: int, element: Any = None) -> cute.Tensor:
    """A tensor under the promises that TMA needs: unit stride where said, other strides multiples of 16 bytes.

    The caller has checked them. A dimension of one element may carry any stride, so its stride is replaced by a legal
    one.
    """
    element = element or tensor.element_type
    multiple = ALIGNMENT * 8 // element.width
    strides: list[Any] = []
    for mode in range(cute.rank(tensor)):
        if mode == contiguous:
            strides.append(1)
        else:
            single = Int32(tensor.shape[mode]) == 1
            stride = Int64(cutlass.select_(single, Int64(multiple), Int64(tensor.stride[mode])))
            strides.append(cute.assume(stride, divby=multiple))
    shape = tuple(Int32(extent) for extent in tensor.shape)
    return cute.make_tensor(tensor.iterator.align(ALIGNMENT), cute.make_layout(shape, stride=tuple(strides)))


def ragged_view(tensor: cute.Tensor, mode: int) -> cute.Tensor:
    """A rank-2 `tma_view` whose other boundary in `mode` is any that a copy names, rather than the tensor's.

    TMA checks coordinates against the tensor's extents only. Here that mode has a fixed large extent R, and two more
    modes carry a copy to its place: with coordinates R - size + i in the mode, and (end, R) in the new ones, the
    address is that of row ``end - size + i``, since R steps of the last mode and of `mode` together add a multiple of
    2^64 bytes; and rows ``i >= size`` lie outside the extent. Loads then bring zeros, stores write nothing.
    """
    step = tensor.stride[mode]
    shape = [_RAGGED if dim == mode else extent for dim, extent in enumerate(tensor.shape)]
    wrap = cute.assume(Int64(_WRAP) - Int64(step), divby=ALIGNMENT * 8 // tensor.element_type.width)
    layout = cute.make_layout((*shape, _ANY, _ANY), stride=(*tensor.stride, step, wrap))
    return cute.make_tensor(tensor.iterator, layout)


def ragged_place(begin: Int32, end: Int32, row: Int32) -> tuple[Int32, tuple[Int32, Int32]]:
    """The coordinates of row ``begin + row`` of a `ragged_view` that ends at `end`: in its mode and in the new ones."""
    return _RAGGED - (end - begin) + row, (end, Int32(_RAGGED))


def addressed_view(tensor: cute.Tensor) -> cute.Tensor:
    """A rank-2 `tma_view` that a copy can move to any address that is a multiple of 16 bytes.

    Two more modes, of steps of 16 bytes and of 2^30 such steps, reach every address from the tensor's own, which only
    serves as the origin: one descriptor serves matrices that lie anywhere.
    """
    unit = ALIGNMENT * 8 // tensor.element_type.width
    shape, stride = (*tensor.shape, _STEPS, _STEPS), (*tensor.stride, unit, unit * _STEPS)
    return cute.make_tensor(tensor.iterator, cute.make_layout(shape, stride=stride))


def addressed_place(address: Int64, origin: Int64) -> tuple[Int32, Int32]:
    """The coordinates in the new modes of an `addressed_view` with this origin; addresses count modulo 2^64."""
    steps = Uint64(address - origin) // ALIGNMENT
    return Int32(steps % _STEPS), Int32(steps // _STEPS)


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


def tile_at(tensor: cute.Tensor, corner: tuple[Any, ...], tile: tuple[int, int], rest: Any = 0) -> cute.Tensor:
    """The tile of a TMA tensor whose first element has the coordinates `corner`; or with `rest` None all along K."""
    outer = (0,) * (len(corner) - 2)
    return cute.local_tile(cute.domain_offset(corner, tensor), tile, (0, rest, *outer))


def k_tiles(
    load: TmaTile, corner: tuple[Any, ...], tile: tuple[int, int], stages: cute.Tensor, rank: Int32, sharers: int
) -> tuple[cute.Tensor, cute.Tensor]:
    """One operand's tiles along K from `corner` on, and the stages, each as this one of `sharers` CTAs copies it."""
    source = cute.group_modes(tile_at(load.tensor, corner, tile, None), 0, 2)
    smem, gmem = cpasync.tma_partition(
        load.atom, rank, cute.make_layout(sharers), cute.group_modes(stages, 0, 2), source
    )
    return gmem, smem
