"""What serving blocks are served: page sizes, forms, and how a decoding step is cut. Nothing here launches anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.paged_op import MOST_STEPS
from cudnn_fe.core.dtypes import dtype as dtype_of
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.require import require_one_of

__all__ = [
    "CACHE_WRITE_SMALL_M_DEFAULT_MAX_ROWS",
    "DECODE_CLAIMED_MAX_N_Q",
    "DECODE_CLAIMED_MAX_S_Q",
    "DECODE_MAX_ROWS",
    "DECODE_MAX_S_Q",
    "DECODE_PDL_DEFAULT_CCS",
    "DECODE_PREFILL_ROUTE_MIN_CTAS",
    "DECODE_PREFILL_TILE_ROWS",
    "DECODE_ROUTE_POLICIES",
    "DECODE_ROUTE_SINGLE_UNIT",
    "DECODE_ROUTE_TOKEN_UNITS",
    "SERVING_PAGE_SIZES",
    "SERVING_POOL_LAYOUTS",
    "DecodeEnvelope",
    "DecodeRoute",
    "ExtendEnvelope",
    "ServingEnvelope",
    "decode_route",
    "serving_envelope",
]

SERVING_PAGE_SIZES = (16, 32, 64, 128)
SERVING_POOL_LAYOUTS = ("hnd", "nhd", "unified")
DECODE_MAX_ROWS = DECODE_MAX_S_Q = MOST_STEPS
DECODE_CLAIMED_MAX_S_Q, DECODE_CLAIMED_MAX_N_Q = 4, 32
DECODE_PREFILL_TILE_ROWS, DECODE_PREFILL_ROUTE_MIN_CTAS = 128, 64
DECODE_ROUTE_SINGLE_UNIT, DECODE_ROUTE_TOKEN_UNITS = "single_unit", "token_units"
DECODE_ROUTE_POLICIES = (None, DECODE_ROUTE_SINGLE_UNIT, DECODE_ROUTE_TOKEN_UNITS)
DECODE_PDL_DEFAULT_CCS: tuple[tuple[int, int], ...] = ()  # chips on which launches overlap unless told otherwise
CACHE_WRITE_SMALL_M_DEFAULT_MAX_ROWS = 128
_DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class DecodeRoute:
    """How the rows of a decoding step are cut; a hint, which no result depends on.

    Attributes:
        s_q: Tokens of the step.
        rows: Query rows that share a key head: tokens times heads of a group.
        route: ``"single_unit"``: all rows of a key head at once; ``"token_units"``: token by token.
        q_tile: Rows of a unit.
        units: Units of a key head.
    """

    s_q: int
    rows: int
    route: str
    q_tile: int
    units: int


@dataclass(frozen=True)
class DecodeEnvelope:
    """What decoding steps are served.

    Attributes:
        served: Whether any are.
        max_s_q: Tokens of the longest step.
        routes: How steps of 1 to ``max_s_q`` tokens are cut.
    """

    served: bool
    max_s_q: int
    routes: tuple[DecodeRoute, ...]


@dataclass(frozen=True)
class ExtendEnvelope:
    """What packed sequences are served over pages.

    Attributes:
        served: Whether any are.
        causal_bottom_right: What the geometry must say.
    """

    served: bool
    causal_bottom_right: bool


@dataclass(frozen=True)
class ServingEnvelope:
    """What serving blocks of a geometry are served.

    Attributes:
        served: Whether any are.
        reason: Why not, or None.
        page_sizes: Tokens of a page that were asked for most; any multiple of 16 is served.
        pool_layouts: How pools may lie in memory: all are strides of (pages, Hkv, P, D).
        dtypes: Types of h and of the cache.
        write_through: Whether blocks write to pages while they attend to their own keys.
        extend: Packed sequences over pages.
        decode: Decoding steps over pages.
        declines: What is declined, and the kind of error.
    """

    served: bool
    reason: str | None
    page_sizes: tuple[int, ...]
    pool_layouts: tuple[str, ...]
    dtypes: tuple[str, ...]
    write_through: bool
    extend: ExtendEnvelope
    decode: DecodeEnvelope
    declines: tuple[tuple[str, str], ...]


_DECLINES = (
    ("write_through", "ValueError"),
    ("decode_rows", "NotImplementedError"),
    ("sparse", "NotImplementedError"),
    ("diagonal", "ValueError"),
    ("token_capacity_dense", "ValueError"),
    ("token_capacity_training", "NotImplementedError"),
)


def decode_route(
    geometry: GatedAttentionBlockGeometry,
    s_q: int,
    policy: str | None = None,
    max_q_tile: int | None = None,
    batch: int | None = None,
) -> DecodeRoute:
    """How a decoding step is cut; a hint, which no result depends on.

    Args:
        geometry: Extents and mask.
        s_q: Tokens of the step.
        policy: One of ``DECODE_ROUTE_POLICIES``; None takes one unit where its rows fit a tile.
        max_q_tile: Most rows of a unit; None is ``DECODE_PREFILL_TILE_ROWS``.
        batch: Sequences; not used.

    Raises:
        OptionError: A step of no tokens or too many, an unknown policy, a tile of no rows.
    """
    del batch
    geometry.validate()
    require_one_of(policy, "policy", DECODE_ROUTE_POLICIES)
    if isinstance(s_q, bool) or not isinstance(s_q, int) or not 1 <= s_q <= DECODE_MAX_S_Q:
        raise OptionError("s_q", got=repr(s_q), wanted=f"an int of 1..{DECODE_MAX_S_Q}", remedy="pack longer ones")
    most = DECODE_PREFILL_TILE_ROWS if max_q_tile is None else max_q_tile
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise OptionError("max_q_tile", got=repr(max_q_tile), wanted="an int above 0, or None", remedy="leave it out")
    rows = s_q * geometry.gqa_ratio
    route = policy or (DECODE_ROUTE_SINGLE_UNIT if rows <= most else DECODE_ROUTE_TOKEN_UNITS)
    unit = rows if route == DECODE_ROUTE_SINGLE_UNIT else geometry.gqa_ratio
    tile = min(unit, most)
    return DecodeRoute(s_q, rows, route, tile, -(-rows // tile))


def serving_envelope(
    geometry: GatedAttentionBlockGeometry,
    dtype: Any,
    device: Any,
    *,
    device_cc: tuple[int, int] | None = None,
    decode_route_policy: str | None = None,
    decode_q_tile_max: int | None = None,
) -> ServingEnvelope:
    """What serving blocks of a geometry are served, without launching anything.

    Args:
        geometry: Extents and mask.
        dtype: Type of h.
        device: Where; every device is served, by the definition.
        device_cc: Compute capability; not used.
        decode_route_policy: As in `decode_route`.
        decode_q_tile_max: As in `decode_route`.
    """
    del device, device_cc
    geometry.validate()
    name = dtype_of(dtype).name
    reason = None
    if name not in _DTYPES:
        reason = f"h of {name} is not served: {', '.join(_DTYPES)} are"
    served, paged = reason is None, reason is None and geometry.causal_bottom_right
    steps = range(1, DECODE_MAX_S_Q + 1) if paged else ()
    routes = tuple(decode_route(geometry, n, decode_route_policy, decode_q_tile_max) for n in steps)
    return ServingEnvelope(
        served,
        reason,
        SERVING_PAGE_SIZES,
        SERVING_POOL_LAYOUTS,
        _DTYPES,
        served,
        ExtendEnvelope(paged and geometry.qsa is None, True),
        DecodeEnvelope(paged, DECODE_MAX_S_Q if paged else 0, routes),
        _DECLINES,
    )
