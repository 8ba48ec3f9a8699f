"""Where a scale lies in memory: the plain layout, and the packed one of 512-byte atoms for 128 rows and 4 scales."""

from __future__ import annotations

from cudnn_fe.core.codecs.bits import Array, namespace_of
from cudnn_fe.core.errors import ShapeError

__all__ = [
    "ATOM_COLUMNS",
    "ATOM_ROWS",
    "TO_ATOM",
    "TO_PHYSICAL",
    "atom_view",
    "physical_view",
    "scale_shape",
    "swizzle_scales",
    "unswizzle_scales",
]

ATOM_ROWS = 128
ATOM_COLUMNS = 4
TO_ATOM = (3, 4, 1, 5, 2, 0)
TO_PHYSICAL = (5, 2, 4, 0, 1, 3)


def scale_shape(rows: int, columns: int, batch: int = 1) -> tuple[int, int, int, int, int, int]:
    """The packed shape of a matrix of scales.

    Args:
        rows: Rows of the quantised matrix.
        columns: Scales per row.
        batch: Matrices.

    Returns:
        ``(batch, ceil(rows / 128), ceil(columns / 4), 32, 4, 4)``.

    Example:
        >>> scale_shape(200, 9)
        (1, 2, 3, 32, 4, 4)

    The order of cuBLAS's and cuDNN's 128x4 block scaling.
    """
    return (batch, -(-rows // ATOM_ROWS), -(-columns // ATOM_COLUMNS), 32, 4, 4)


def swizzle_scales(scales: Array) -> Array:
    """Packs plain scales: scale (l, r, c) goes to ``[l, r // 128, c // 4, r % 32, r % 128 // 32, c % 4]``.

    Args:
        scales: Array of one-byte elements, (rows, columns) or (batch, rows, columns).

    Returns:
        Contiguous array of shape ``scale_shape(rows, columns, batch)``; entries without a source are 0.

    Raises:
        FrameworkError: ``scales`` is no array.
        ShapeError: Another rank.

    Example:
        >>> import numpy as np
        >>> packed = swizzle_scales(np.arange(128 * 4, dtype=np.uint8).reshape(128, 4))
        >>> packed.ravel()[:8].tolist()  # row 0, then row 32
        [0, 1, 2, 3, 128, 129, 130, 131]

    The order of cuBLAS's and cuDNN's 128x4 block scaling.
    """
    xp = namespace_of(scales, operand="scales")
    if scales.ndim == 2:
        scales = scales[None]
    if scales.ndim != 3:
        raise ShapeError("scales", got=f"{scales.ndim} dims", wanted="2 or 3", remedy="pass (batch, rows, columns)")
    batch, rows, columns = scales.shape
    _, row_atoms, column_atoms, *_ = scale_shape(rows, columns, batch)
    scales = _padded(xp, _padded(xp, scales, 1, row_atoms * ATOM_ROWS), 2, column_atoms * ATOM_COLUMNS)
    split = xp.reshape(scales, (batch, row_atoms, 4, 32, column_atoms, 4))
    packed = xp.permute_dims(split, (0, 1, 4, 3, 2, 5))
    return xp.reshape(xp.reshape(packed, (-1,)), packed.shape)  # a copy: its bytes are what the layout is about


def unswizzle_scales(packed: Array, rows: int, columns: int) -> Array:
    """The inverse of `swizzle_scales`; what stands beyond ``rows`` and ``columns`` is dropped.

    Args:
        packed: Physical form, atom view, or the same bytes in one dim.
        rows: Rows of the quantised matrix.
        columns: Scales per row.

    Returns:
        (batch, rows, columns).

    Raises:
        FrameworkError: ``packed`` is no array.
        ShapeError: Its extents do not fit.

    Example:
        >>> import numpy as np
        >>> plain = np.arange(300, dtype=np.uint8).reshape(1, 60, 5)
        >>> bool((unswizzle_scales(swizzle_scales(plain), 60, 5) == plain).all())
        True

    The order of cuBLAS's and cuDNN's 128x4 block scaling.
    """
    xp = namespace_of(packed, operand="packed")
    _, row_atoms, column_atoms, *rest = scale_shape(rows, columns)
    size = 512 * row_atoms * column_atoms
    if packed.ndim == 1 and size and packed.shape[0] % size == 0:
        packed = xp.reshape(packed, (packed.shape[0] // size, row_atoms, column_atoms, *rest))
    if packed.ndim == 6:
        packed = physical_view(packed)
    if packed.ndim != 6 or tuple(packed.shape[1:]) != (row_atoms, column_atoms, *rest):
        raise ShapeError(
            "packed",
            got=str(tuple(packed.shape)),
            wanted=f"(batch, {row_atoms}, {column_atoms}, 32, 4, 4) for {rows} rows of {columns} scales",
            remedy="pack with swizzle_scales",
        )
    split = xp.permute_dims(packed, (0, 1, 4, 3, 2, 5))
    whole = xp.reshape(split, (packed.shape[0], row_atoms * ATOM_ROWS, column_atoms * ATOM_COLUMNS))
    return whole[:, :rows, :columns]


def atom_view(packed: Array) -> Array:
    """The physical form seen as ``(32, 4, rows / 128, 4, columns / 4, batch)``; the same memory in NumPy and torch.

    Args:
        packed: Physical form, or already the atom view.

    Returns:
        The view.

    Raises:
        FrameworkError: ``packed`` is no array.
        ShapeError: It is neither.

    Example:
        >>> import numpy as np
        >>> atom_view(np.zeros((1, 2, 3, 32, 4, 4), np.uint8)).shape
        (32, 4, 2, 4, 3, 1)

    Named after CuTe's layout atoms.
    """
    xp = namespace_of(packed, operand="packed")
    return packed if _is_atom(packed) else xp.permute_dims(packed, TO_ATOM)


def physical_view(packed: Array) -> Array:
    """The inverse of `atom_view`.

    Args:
        packed: Atom view, or already the physical form.

    Returns:
        The view of shape ``(batch, rows / 128, columns / 4, 32, 4, 4)``.

    Raises:
        FrameworkError: ``packed`` is no array.
        ShapeError: It is neither.

    Example:
        >>> import numpy as np
        >>> physical_view(np.zeros((32, 4, 2, 4, 3, 1), np.uint8)).shape
        (1, 2, 3, 32, 4, 4)

    Named after CuTe's layout atoms.
    """
    xp = namespace_of(packed, operand="packed")
    return xp.permute_dims(packed, TO_PHYSICAL) if _is_atom(packed) else packed


def _is_atom(packed: Array) -> bool:
    shape = tuple(packed.shape)
    if len(shape) == 6 and (shape[0], shape[1], shape[3]) == (32, 4, 4):
        return True
    if len(shape) == 6 and shape[3:] == (32, 4, 4):
        return False
    raise ShapeError(
        "packed",
        got=str(shape),
        wanted="(batch, rows / 128, columns / 4, 32, 4, 4) or its atom view (32, 4, rows / 128, 4, columns / 4, batch)",
        remedy="pack with swizzle_scales",
    )


def _padded(xp: Array, x: Array, axis: int, extent: int) -> Array:
    if x.shape[axis] == extent:
        return x
    index = (slice(None),) * axis
    missing = extent - x.shape[axis]
    if x.shape[axis] == 0:
        shape = list(x.shape)
        shape[axis] = missing
        return xp.zeros(shape, dtype=x.dtype)
    zeros = xp.zeros_like(x[(*index, slice(0, 1))])
    return xp.concat((x, *([zeros] * missing)), axis=axis)
