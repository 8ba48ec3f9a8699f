"""What a GEMM kernel is compiled for: plain data, no kernel, no framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.powers import common_power_of_two
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["GemmSpec", "GemmTile", "Major", "full_columns", "operand_alignment"]

Major = Literal["k", "mn"]


@dataclass(frozen=True, slots=True)
class GemmTile:
    """The part of a kernel's configuration that does not follow from the operands.

    Attributes:
        m: Rows of an output tile, 64 or 128.
        n: Columns of an output tile.
        warpgroups_m: Consumer warpgroups that share a tile, side by side along M.
        warpgroups_n: Consumer warpgroups that share a tile, side by side along N.
        ping_pong: Two consumer warpgroups take whole tiles in turn, one multiplying while the other stores.
        cluster_m: CTAs along M that share one tile of B through multicast.
        cluster_n: CTAs along N that share one tile of A through multicast.
        split_k: CTAs of a cluster that each sum a part of K for the same output tile.
        group_m: Cluster rows visited together before the order moves on along N; sets what L2 holds.
        persistent_ctas: Most CTAs launched; each then walks over several tiles.
        fetched_m: Rows of A's tile that are loaded, 0 for all `m`. Fewer only where M is no larger: the other rows of
            the stage keep what was there, and the products made of them are never stored.
        early_launch: Start while the stream's previous kernel drains, and let the next one do so (programmatic
            dependent launch); operands are touched only after the previous kernel has finished.
    """

    m: int = 128
    n: int = 256
    warpgroups_m: int = 2
    warpgroups_n: int = 1
    ping_pong: bool = False
    cluster_m: int = 2
    cluster_n: int = 1
    split_k: int = 1
    group_m: int = 8
    persistent_ctas: int = 132
    fetched_m: int = 0
    early_launch: bool = False


@dataclass(frozen=True, slots=True)
class GemmSpec:
    """Everything that one compiled GEMM depends on; extents and strides stay symbolic.

    Attributes:
        a_dtype: Element type of A (M, K, L).
        b_dtype: Element type of B (N, K, L).
        out_dtypes: Element types of the outputs, in the op's order.
        a_major: ``"k"`` when K is A's unit-stride dimension, ``"mn"`` when M is.
        b_major: ``"k"`` when K is B's unit-stride dimension, ``"mn"`` when N is.
        out_major: ``"n"`` or ``"m"``: the outputs' unit-stride dimension.
        epilogue: What becomes of the accumulator.
        tile: The configuration; a kernel without choices ignores it.
        rest: If there is one, `tile` serves only the columns that fill whole waves (`full_columns`), and a second
            launch with this tile computes the others.
        arch: The target that the kernel is compiled for.
        alignment: Bytes (16, 8, 4, 2 or 1, at least an element) that divide A's and B's base addresses, strides other
            than the unit one, and unit-stride extents. The portable kernel's load width; others demand 16.
    """

    a_dtype: str
    b_dtype: str
    out_dtypes: tuple[str, ...]
    a_major: Major = "k"
    b_major: Major = "k"
    out_major: Literal["n", "m"] = "n"
    epilogue: Literal["identity", "swiglu"] = "identity"
    tile: GemmTile | None = field(default_factory=GemmTile)
    rest: GemmTile | None = None
    arch: str = "sm_90a"
    alignment: int = 16

    @property
    def is_fp8(self) -> bool:
        """Whether the operands are FP8, whose products lose bits unless promoted to float32 along K."""
        return dtype(self.a_dtype).is_fp8


def full_columns(tile: GemmTile, m: Any, n: Any) -> Any:
    """How many of B's rows, the output's columns, a GEMM's whole waves of tiles cover; M and N may be device integers.

    Args:
        tile: The configuration, whose CTAs all run at once.
        m: Rows of A.
        n: Rows of B.
    """
    height, width = tile.m * tile.cluster_m, tile.n * tile.cluster_n
    at_once = tile.persistent_ctas // (tile.cluster_m * tile.cluster_n)
    down, across = (m + height - 1) // height, (n + width - 1) // width
    return down * across // at_once * at_once // down * width


def operand_alignment(spec: TensorSpec, dense: int) -> int:
    """Bytes, up to 16, that divide an operand's address, its strides other than that of dim ``dense``, and its rows.

    Args:
        spec: The operand.
        dense: Its contiguous dim.
    """
    steps = [step for dim, step in enumerate(spec.strides) if dim != dense and spec.shape[dim] > 1]
    return common_power_of_two(spec.alignment, *(count * spec.dtype.itemsize for count in (*steps, spec.shape[dense])))
