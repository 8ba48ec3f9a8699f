"""Options of the documented signatures that choose nothing here: validated as documented, then without effect."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError

__all__ = ["check_fixed", "check_tiles", "pair_of"]

_REMEDY = "leave it at its default"


def pair_of(value: Any, name: str) -> tuple[int, int]:
    """``value`` as two ints; raises OptionError if it is something else."""
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(extent, int) for extent in value):
        return value[0], value[1]
    raise OptionError(name, got=repr(value), wanted="a pair of ints", remedy=_REMEDY)


def check_tiles(
    mma_tiler_mn: Any, cluster_shape_mn: Any, columns: Container[int], described: str, *, most: int = 16
) -> None:
    """Raises OptionError unless tile and cluster are documented.

    Args:
        mma_tiler_mn: 128 or 256 rows, and columns.
        cluster_shape_mn: Powers of two, or None.
        columns: The documented tiles of N.
        described: What they are, in words.
        most: Largest extent of a cluster.
    """
    tile_m, tile_n = pair_of(mma_tiler_mn, "mma_tiler_mn")
    if tile_m not in (128, 256) or tile_n not in columns:
        wanted = f"128 or 256, and {described}"
        raise OptionError("mma_tiler_mn", got=str((tile_m, tile_n)), wanted=wanted, remedy=_REMEDY)
    if cluster_shape_mn is None:
        return
    m, n = pair_of(cluster_shape_mn, "cluster_shape_mn")
    if m < 1 or n < 1 or m & (m - 1) or n & (n - 1) or m * n > 16 or max(m, n) > most:
        wanted = f"powers of two up to {most} with a product of at most 16"
    elif tile_m == 256 and m % 2:
        wanted = "an even first extent with mma_tiler_mn[0] == 256"
    elif m // (2 if tile_m == 256 else 1) * tile_m not in (128, 256):
        wanted = "a cluster of 128 or 256 rows of an instruction"
    else:
        return
    raise OptionError("cluster_shape_mn", got=str((m, n)), wanted=wanted, remedy=_REMEDY)


def check_fixed(acc_dtype: Any = None, cd_major: Any = "n", m_aligned: Any = 256) -> None:
    """Raises OptionError unless sums are float32, results row-major and ``m_aligned`` 256.

    ``m_aligned`` promises that groups end at multiples of it; nothing here relies on the promise.
    """
    if acc_dtype is not None and dtype(acc_dtype, operand="acc_dtype").name != "float32":
        raise OptionError("acc_dtype", got=str(dtype(acc_dtype)), wanted="float32", remedy=_REMEDY)
    if cd_major != "n":
        raise OptionError("cd_major", got=repr(cd_major), wanted='"n"', remedy=_REMEDY)
    if m_aligned != 256:
        raise OptionError("m_aligned", got=repr(m_aligned), wanted="256", remedy=_REMEDY)
