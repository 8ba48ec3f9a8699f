"""Column scales of a grouped GEMM, packed as one matrix or expert after expert."""

from __future__ import annotations

from cudnn_fe.core.block_scale.layouts import ATOM_ROWS, physical_view
from cudnn_fe.core.codecs.bits import Array, Namespace, namespace_of
from cudnn_fe.core.errors import ShapeError

__all__ = ["join_expert_columns", "split_expert_columns"]


def split_expert_columns(packed: Array, padded_offsets: Array) -> Array:
    """Reorders packed column scales of the whole buffer so that each expert's are a packed matrix of their own.

    Both forms hold the same 512-byte atoms, one per 128 rows of tokens and 128 columns. As one matrix the order is
    columns outside, rows inside; per expert it is expert, columns, rows.

    Args:
        packed: Packed column scales, physical form or atom view, with batch 1: ``swizzle_scales(scales.T)`` of plain
            column scales (token rows / 32, columns).
        padded_offsets: (experts,) int32, each expert's exclusive last row, all multiples of 128. Device data is never
            read by the host. Atoms past the last expert keep their order, as one more expert.

    Returns:
        (atoms, 32, 4, 4) in the new order.

    Raises:
        FrameworkError: ``packed`` is no array.
        ShapeError: Another batch or form.

    Example:
        >>> import numpy as np
        >>> numbers = np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1, 1, 1)
        >>> packed = np.broadcast_to(numbers, (1, 2, 4, 32, 4, 4))
        >>> split_expert_columns(packed, np.asarray([256, 512], np.int32))[:, 0, 0, 0].tolist()
        [0, 1, 4, 5, 2, 3, 6, 7]

    The form that a grouped GEMM over the token dim reads expert by expert.
    """
    xp, physical = _checked(packed)
    _, column_tiles, row_tiles, *rest = physical.shape
    starts, ends = _tiles(xp, padded_offsets, row_tiles)
    atoms = _arange(xp, column_tiles * row_tiles, padded_offsets)
    expert = _count_passed(xp, atoms, ends * column_tiles)
    start, count = xp.take(starts, expert, axis=0), xp.take(ends - starts, expert, axis=0)
    within = atoms - start * column_tiles
    # An expert without rows holds no atom, but the division is evaluated for it all the same in a traced program.
    count = xp.where(count < 1, 1, count)
    source = within // count * row_tiles + start + within % count
    return xp.take(xp.reshape(physical, (column_tiles * row_tiles, *rest)), source, axis=0)


def join_expert_columns(atoms: Array, padded_offsets: Array, rows: int) -> Array:
    """The inverse of `split_expert_columns`.

    Args:
        atoms: (atoms, 32, 4, 4), expert after expert.
        padded_offsets: (experts,) int32, as there.
        rows: Token rows of the whole buffer.

    Returns:
        Physical form of shape (1, column tiles, row tiles, 32, 4, 4).

    Raises:
        FrameworkError: ``atoms`` is no array.
        ShapeError: The atoms do not divide into tiles of 128 rows.

    Example:
        >>> import numpy as np
        >>> atoms, ends = np.zeros((6, 32, 4, 4), np.uint8), np.asarray([128, 256], np.int32)
        >>> join_expert_columns(atoms, ends, 256).shape
        (1, 3, 2, 32, 4, 4)

    The form that a grouped GEMM over the token dim reads expert by expert.
    """
    xp = namespace_of(atoms, operand="atoms")
    row_tiles = -(-rows // ATOM_ROWS)
    if atoms.ndim != 4 or row_tiles == 0 or atoms.shape[0] % row_tiles:
        raise ShapeError(
            "atoms",
            got=str(tuple(atoms.shape)),
            wanted=f"(column tiles * {row_tiles}, 32, 4, 4)",
            remedy="reshape the bytes to whole atoms",
        )
    column_tiles = atoms.shape[0] // row_tiles
    starts, ends = _tiles(xp, padded_offsets, row_tiles)
    row = _arange(xp, row_tiles, padded_offsets)
    expert = _count_passed(xp, row, ends)
    start, count = xp.take(starts, expert, axis=0), xp.take(ends - starts, expert, axis=0)
    column = _arange(xp, column_tiles, padded_offsets)
    source = xp.reshape((start * column_tiles + row - start)[None] + column[:, None] * count[None], (-1,))
    return xp.reshape(xp.take(atoms, source, axis=0), (1, column_tiles, row_tiles, *atoms.shape[1:]))


def _checked(packed: Array) -> tuple[Namespace, Array]:
    xp = namespace_of(packed, operand="packed")
    physical = physical_view(packed)
    if physical.shape[0] != 1:
        raise ShapeError(
            "packed", got=f"batch {physical.shape[0]}", wanted="batch 1", remedy="experts are not a batch: join them"
        )
    return xp, physical


def _tiles(xp: Namespace, padded_offsets: Array, row_tiles: int) -> tuple[Array, Array]:
    """First and exclusive last row tile of each expert and of what follows the last."""
    ends = xp.astype(padded_offsets, xp.int32) // ATOM_ROWS
    zero = ends[:1] * 0
    return xp.concat((zero, ends)), xp.concat((ends, zero + row_tiles))


def _arange(xp: Namespace, count: int, like: Array) -> Array:
    device = None if hasattr(like, "at") else getattr(like, "device", None)
    return xp.arange(count, dtype=xp.int32, device=device)


def _count_passed(xp: Namespace, positions: Array, ends: Array) -> Array:
    """How many experts end at or before each position."""
    return xp.astype(xp.sum(xp.astype(positions[:, None] >= ends[None, :], xp.int32), axis=1), xp.int32)
