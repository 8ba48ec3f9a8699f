"""Tuning parameters of the legacy signatures: validated as documented, then taken as hints without effect."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.hints import pair_of

__all__ = ["check_scaled_hints", "check_tile_hints"]

_REMEDY = "leave it at its default: tiles are chosen from the shape"


def check_tile_hints(mma_tiler_mn: Any, cluster_shape_mn: Any, *, scaled: bool = False) -> None:
    """Raises OptionError unless the tile and cluster shapes are in the documented sets.

    The block-scaled mode has clusters of tiles of 128 rows too.
    """
    tile_m, tile_n = pair_of(mma_tiler_mn, "mma_tiler_mn")
    if tile_m not in (128, 256):
        raise OptionError("mma_tiler_mn", got=str((tile_m, tile_n)), wanted="128 or 256 first", remedy=_REMEDY)
    if tile_n % 32 or not 32 <= tile_n <= 256:
        raise OptionError(
            "mma_tiler_mn", got=str((tile_m, tile_n)), wanted="a multiple of 32 in 32..256 second", remedy=_REMEDY
        )
    if cluster_shape_mn is None:
        return
    m, n = pair_of(cluster_shape_mn, "cluster_shape_mn")
    if m < 1 or n < 1 or m & (m - 1) or n & (n - 1) or m * n > 16:
        wanted = "powers of two with a product of at most 16"
    elif tile_m == 256 and m % 2:
        wanted = "an even first extent with mma_tiler_mn[0] == 256"
    elif tile_m == 128 and (m, n) != (1, 1) and not scaled:
        wanted = "(1, 1) with mma_tiler_mn[0] == 128"
    else:
        return
    raise OptionError("cluster_shape_mn", got=str((m, n)), wanted=wanted, remedy=_REMEDY)


def check_scaled_hints(mma_tiler_mn: Any, cluster_shape_mn: Any, tile_ns: tuple[int, ...], *, paired: bool) -> None:
    """The same for the block-scaled GEMMs.

    Args:
        mma_tiler_mn: Tile of M, 128 or 256, and N.
        cluster_shape_mn: Cluster, or None.
        tile_ns: Documented tiles of N.
        paired: Whether tiles of 256 rows ask for an even number of blocks along M.
    """
    tile_m, tile_n = pair_of(mma_tiler_mn, "mma_tiler_mn")
    if tile_m not in (128, 256) or tile_n not in tile_ns:
        wanted = f"128 or 256, and one of {tile_ns}"
        raise OptionError("mma_tiler_mn", got=str((tile_m, tile_n)), wanted=wanted, remedy=_REMEDY)
    if cluster_shape_mn is None:
        return
    m, n = pair_of(cluster_shape_mn, "cluster_shape_mn")
    if m not in (1, 2, 4) or n not in (1, 2, 4):
        raise OptionError("cluster_shape_mn", got=str((m, n)), wanted="1, 2 or 4 each", remedy=_REMEDY)
    if paired and tile_m == 256 and m % 2:
        wanted = "an even first extent with mma_tiler_mn[0] == 256"
        raise OptionError("cluster_shape_mn", got=str((m, n)), wanted=wanted, remedy=_REMEDY)
