"""The choice of a tile: few in number, legal for the operands, sensible at the ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_fe.core.gemm_spec import GemmTile, full_columns
from cudnn_fe.core.gemm_tiles import FP8_COLUMNS, choose_tile, choose_tiles, estimate_cycles

EXTENT = st.integers(1, 100_000)
DTYPE = st.sampled_from(["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"])
EPILOGUE = st.sampled_from(["identity", "swiglu"])
MAJORS = st.tuples(st.sampled_from(["k", "mn"]), st.sampled_from(["k", "mn"]))


@given(m=EXTENT, n=EXTENT, k=EXTENT, batches=st.integers(1, 64), dtype=DTYPE, epilogue=EPILOGUE, majors=MAJORS)
def test_a_chosen_tile_is_legal(
    m: int, n: int, k: int, batches: int, dtype: str, epilogue: str, majors: tuple[str, str]
) -> None:
    if dtype == "float32" or dtype.startswith("float8"):
        majors = ("k", "k")
    tile = choose_tile(m, n, k, batches, dtype=dtype, epilogue=epilogue, multiprocessors=132, majors=majors)
    columns = tile.n // tile.warpgroups_n
    assert tile.m == 64 * tile.warpgroups_m * (2 if tile.m == 128 and tile.warpgroups_m == 1 else 1)
    assert epilogue == "identity" or columns % 64 == 0, "a value's gate would lie in another tile"
    assert not dtype.startswith("float8") or columns <= FP8_COLUMNS
    assert tile.fetched_m == 0 or (m <= tile.fetched_m and majors[0] == "k")
    assert majors[1] == "k" or columns % 64 == 0


def test_few_tiles_serve_all_shapes() -> None:
    chosen = {
        choose_tile(m, n, k, 1, dtype="bfloat16", epilogue="identity", multiprocessors=132)
        for m in (1, 8, 16, 17, 33, 64, 65, 128, 200, 256, 511, 1024, 2048, 4096, 16384, 100_000)
        for n in (8, 64, 512, 4096, 7168, 14336, 28672, 57344, 131072)
        for k in (8, 64, 512, 2048, 4096, 7168, 14336, 28672)
    }
    assert 4 <= len(chosen) <= 30


def test_the_same_kernel_serves_neighbouring_batch_sizes() -> None:
    rows = range(4096, 4096 + 512)
    tiles = {choose_tile(m, 28672, 4096, 1, dtype="bfloat16", epilogue="swiglu", multiprocessors=132) for m in rows}
    assert len(tiles) <= 2


@pytest.mark.parametrize(("split", "m", "n", "k"), [(True, 64, 4096, 14336), (False, 8192, 8192, 8192)])
def test_k_is_split_where_tiles_are_few(split: bool, m: int, n: int, k: int) -> None:
    tile = choose_tile(m, n, k, 1, dtype="bfloat16", epilogue="identity", multiprocessors=132)
    assert (tile.split_k > 1) is split


@given(m=EXTENT, n=EXTENT, k=EXTENT, dtype=DTYPE, epilogue=EPILOGUE)
def test_two_tiles_share_the_columns(m: int, n: int, k: int, dtype: str, epilogue: str) -> None:
    tile, rest = choose_tiles(m, n, k, 1, dtype=dtype, epilogue=epilogue, multiprocessors=132)
    columns = full_columns(tile, m, n)
    if rest is None:
        assert tile == choose_tile(m, n, k, 1, dtype=dtype, epilogue=epilogue, multiprocessors=132)
        return
    assert 0 < columns < n
    assert columns % (64 if epilogue == "swiglu" else 32) == 0  # whole pairs; addresses of 16 bytes
    assert tile.split_k == rest.split_k == 1


@pytest.mark.parametrize(
    ("m", "columns", "launches"),
    [(256, 28672, 2), (8192, 8192, 1), (64, 28672, 1)],
)
def test_a_second_launch_serves_a_wave_that_is_hardly_filled(m: int, columns: int, launches: int) -> None:
    tile, rest = choose_tiles(m, columns, 4096, 1, dtype="bfloat16", epilogue="swiglu", multiprocessors=132)
    assert launches == (1 if rest is None else 2)
    if rest is not None:
        assert full_columns(tile, m, columns) == 132 // 2 * tile.n  # one row of clusters, one wave


def test_more_multiprocessors_never_cost_time() -> None:
    def cycles(multiprocessors: int) -> float:
        return estimate_cycles(
            GemmTile(), 8192, 8192, 8192, 1, dtype="bfloat16", epilogue="identity", multiprocessors=multiprocessors
        )

    assert cycles(132) < cycles(114) < cycles(78)
