"""Options of the documented signatures that choose nothing here: validated as documented, then without effect."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError

__all__ = ["check_fixed", "check_hints"]

_REMEDY = "leave it at its default"


def _pair(value: Any, name: str) -> tuple[int, int]:
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(extent, int) for extent in value):
        return value[0], value[1]
    raise OptionError(name, got=repr(value), wanted="a pair of ints", remedy=_REMEDY)


def check_hints(mma_tiler_mn: Any, cluster_shape_mn: Any, *, step: int) -> None:
    """Raises OptionError unless tile and cluster are documented; ``step`` is what the tile's N is a multiple of."""
    tile_m, tile_n = _pair(mma_tiler_mn, "mma_tiler_mn")
    if tile_m not in (128, 256) or tile_n % step or not step <= tile_n <= 256:
        raise OptionError(
            "mma_tiler_mn",
            got=str((tile_m, tile_n)),
            wanted=f"128 or 256, and a multiple of {step} up to 256",
            remedy=_REMEDY,
        )
    if cluster_shape_mn is None:
        return
    m, n = _pair(cluster_shape_mn, "cluster_shape_mn")
    if m < 1 or n < 1 or m & (m - 1) or n & (n - 1) or m * n > 16:
        wanted = "powers of two with a product of at most 16"
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
