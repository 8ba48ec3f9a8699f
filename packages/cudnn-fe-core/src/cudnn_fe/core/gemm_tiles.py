"""Which of a few tiles suits a GEMM's shape on Hopper: a pure function, so that few kernels are ever compiled.

The estimate counts one multiprocessor's clock cycles. Its constants are fitted to timings of all tiles on the shapes of
five models (Llama-3 8B and 70B, Mixtral 8x7B, DeepSeek-V3), M from 16 to 16384, on an H200.
"""

from __future__ import annotations

from dataclasses import replace

from cudnn_fe.core.dtypes import dtype as element
from cudnn_fe.core.gemm_spec import GemmTile, full_columns

__all__ = ["choose_tile", "choose_tiles", "estimate_cycles", "tile_candidates"]

STAGE_BYTES_K = 128
PAIR_COLUMNS = 64
FP8_COLUMNS = 192  # of one warpgroup: two accumulators must fit its registers
FEW_ROWS = (16, 32)  # of A's tile that are loaded: TMA fills the rows past M with zeros, at a cost
LONG_WORK = 1.0e12  # M N K from which power bounds the clock rate: shared memory keeps up, L2 costs energy

LOAD_BYTES_PER_CYCLE = 90.0  # into one multiprocessor's shared memory
DRAM_BYTES_PER_CYCLE = 2280.0  # of a card with 132 multiprocessors
LAUNCH = 3600.0
START = 1500.0  # of one tile's main loop, from the epilogue before it
EXPOSED = 5500.0  # epilogue of a 128 x 256 tile that no other work hides
LAST_EXPOSED = {"identity": 2700.0, "swiglu": 3200.0}  # with ping-pong only the last one shows
EXCHANGE = 9500.0  # sending and adding partial sums of a 128 x 256 tile
NARROW = 1.05  # products of 128 columns or fewer, relative to wide ones
PING_PONG = 1.05  # its products at full clock rate: tiles of half the width read more than shared memory delivers
RELAUNCH = 1500.0  # of a second launch that starts while the first one ends
SHARED_WIDTHS = (256, 192, 128)  # of two launches: the first one's tile, and those that the second may have
WORTH_A_LAUNCH = 0.985  # of the time of one launch, below which the estimate is trusted to choose two
OVERLAP = 6.6  # exponent of the norm that joins multiplying and DRAM time: infinity would be a perfect overlap


def _one_cta(m: int, n: int, warpgroups: tuple[int, int], split_k: int = 1) -> GemmTile:
    return GemmTile(m, n, *warpgroups, cluster_m=1, split_k=split_k)


_SMALL = (  # M up to 64
    _one_cta(64, 192, (1, 1)),
    _one_cta(64, 128, (1, 1)),
    _one_cta(64, 128, (1, 1), 2),
    _one_cta(64, 64, (1, 1)),
    _one_cta(64, 64, (1, 1), 2),
)
_MEDIUM = (  # M up to 128, where nobody shares B
    _one_cta(128, 256, (2, 1)),
    _one_cta(128, 192, (2, 1)),
    _one_cta(128, 128, (2, 1)),
    _one_cta(128, 256, (2, 1), 2),
    _one_cta(128, 128, (2, 1), 2),
)
_LARGE = (
    GemmTile(128, 128, 1, 1, ping_pong=True),
    GemmTile(128, 256),
    GemmTile(128, 224),
    GemmTile(128, 192),
    GemmTile(128, 128),
    _one_cta(128, 256, (2, 1)),
    _one_cta(128, 256, (2, 1), 2),
    _one_cta(128, 224, (2, 1), 2),
    _one_cta(128, 128, (2, 1), 2),
)


def tile_candidates(m: int, *, dtype: str, epilogue: str, majors: tuple[str, str] = ("k", "k")) -> tuple[GemmTile, ...]:
    """The tiles that a problem with ``m`` rows may get.

    Args:
        m: Rows of A.
        dtype: Element type of A and B.
        epilogue: ``"identity"`` or ``"swiglu"``.
        majors: Majors of A and B, each ``"k"`` or ``"mn"``.
    """
    tiles: tuple[GemmTile, ...] = _SMALL if m <= 64 else _MEDIUM if m <= 128 else _LARGE
    fetched = next((rows for rows in FEW_ROWS if m <= rows), 0)
    if fetched and majors[0] == "k":
        tiles = tuple(replace(tile, fetched_m=fetched) for tile in tiles)
    return tuple(tile for tile in tiles if _possible(tile, dtype, epilogue, majors))


def _possible(tile: GemmTile, dtype: str, epilogue: str, majors: tuple[str, str]) -> bool:
    columns = tile.n // tile.warpgroups_n
    if element(dtype).is_fp8 and (columns > FP8_COLUMNS or tile.ping_pong):
        return False
    return columns % PAIR_COLUMNS == 0 or (epilogue == "identity" and majors[1] == "k")


def resident_clusters(tile: GemmTile, multiprocessors: int) -> int:
    """Clusters that run at once: those of more than two CTAs do not fill every GPC."""
    size = tile.cluster_m * tile.cluster_n * tile.split_k
    usable = multiprocessors if size <= 2 else multiprocessors * 10 // 11
    return max(usable // size, 1)


def _clusters(tile: GemmTile, m: int, n: int, batches: int) -> int:
    return -(-m // (tile.m * tile.cluster_m)) * -(-n // (tile.n * tile.cluster_n)) * batches


def estimate_cycles(
    tile: GemmTile, m: int, n: int, k: int, batches: int, *, dtype: str, epilogue: str, multiprocessors: int
) -> float:
    """About how many clock cycles a GEMM takes with a tile."""
    itemsize = element(dtype).itemsize
    waves = -(-_clusters(tile, m, n, batches) // resident_clusters(tile, multiprocessors))
    k_tiles = -(-k * itemsize // (STAGE_BYTES_K * tile.split_k))
    size = tile.m * tile.n / (128 * 256)
    long = m * n * k * batches >= LONG_WORK
    multiply = 1024 * size * (NARROW if tile.n <= 128 else 1.0) * (PING_PONG if tile.ping_pong and not long else 1.0)
    load = (min(tile.m, m) / tile.cluster_n + tile.n / tile.cluster_m) * STAGE_BYTES_K / LOAD_BYTES_PER_CYCLE
    step = max(multiply, load)
    if tile.ping_pong:
        busy = waves * k_tiles * step + LAST_EXPOSED[epilogue]
    else:
        busy = waves * (k_tiles * step + EXPOSED * size + START)
    if long and not tile.ping_pong:
        busy *= 1 + 0.1 * (256 - tile.n) / 128
    if tile.split_k > 1:
        busy += EXCHANGE * size
    outputs = 2 * m * n * (1.5 if epilogue == "swiglu" else 1.0)
    memory = ((m + n) * k * itemsize + outputs) * batches / (DRAM_BYTES_PER_CYCLE * multiprocessors / 132)
    return float((busy**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP)) + LAUNCH


def choose_tile(
    m: int,
    n: int,
    k: int,
    l: int,  # noqa: E741
    *,
    dtype: str,
    epilogue: str,
    multiprocessors: int,
    majors: tuple[str, str] = ("k", "k"),
) -> GemmTile:
    """The tile with the least estimated time for a GEMM (M, N, K, L).

    Args:
        m: Rows of A.
        n: Rows of B.
        k: Summed extent.
        l: Batches.
        dtype: Element type of A and B, e.g. ``"bfloat16"``.
        epilogue: ``"identity"`` or ``"swiglu"``.
        multiprocessors: Of the device.
        majors: Majors of A and B, each ``"k"`` or ``"mn"``.
    """
    candidates = tile_candidates(m, dtype=dtype, epilogue=epilogue, majors=majors)
    best = min(
        (tile for tile in candidates if tile.split_k == 1 or _clusters(tile, m, n, l) <= multiprocessors),
        key=lambda tile: estimate_cycles(
            tile, m, n, k, l, dtype=dtype, epilogue=epilogue, multiprocessors=multiprocessors
        ),
    )
    return _ready(best, multiprocessors)


def choose_tiles(
    m: int,
    n: int,
    k: int,
    l: int,  # noqa: E741
    *,
    dtype: str,
    epilogue: str,
    multiprocessors: int,
    majors: tuple[str, str] = ("k", "k"),
) -> tuple[GemmTile, GemmTile | None]:
    """`choose_tile`, or two tiles where a wave that is hardly filled would cost more than another launch.

    The first then computes the columns of its whole waves (`full_columns`), the second the others.
    """
    one = choose_tile(m, n, k, l, dtype=dtype, epilogue=epilogue, multiprocessors=multiprocessors, majors=majors)
    if l != 1 or one.split_k > 1:
        return one, None

    def cost(tile: GemmTile, columns: int) -> float:
        return estimate_cycles(tile, m, columns, k, 1, dtype=dtype, epilogue=epilogue, multiprocessors=multiprocessors)

    best: tuple[GemmTile, GemmTile | None] = (one, None)
    least = WORTH_A_LAUNCH * cost(one, n)
    tile, *narrower = (_ready(GemmTile(n=width), multiprocessors) for width in SHARED_WIDTHS)
    columns = full_columns(tile, m, n)
    if m <= tile.m or not _possible(tile, dtype, epilogue, majors) or not 0 < columns < n:
        return best
    for rest in narrower:
        both = cost(tile, columns) + cost(rest, n - columns) - LAUNCH + RELAUNCH
        if both < least:
            best, least = (tile, rest), both
    return best


def _ready(tile: GemmTile, multiprocessors: int) -> GemmTile:
    return replace(tile, persistent_ctas=multiprocessors, early_launch=True)
