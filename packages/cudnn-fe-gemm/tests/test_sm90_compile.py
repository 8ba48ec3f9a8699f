"""Every kind of Hopper GEMM compiles without a GPU, to the instructions it was written for."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.gemm_spec import GemmSpec, GemmTile
from cudnn_fe.core.gemm_tiles import choose_tile
from cudnn_fe_testkit.machine_code import stack_bytes

FP8 = GemmTile(m=128, n=192)
PING_PONG = GemmTile(m=128, n=128, warpgroups_m=1, ping_pong=True)
SPLIT = GemmTile(m=64, n=128, warpgroups_m=1, cluster_m=1, split_k=2)
SPLIT_MULTICAST = GemmTile(m=128, n=256, split_k=2)
FEW_ROWS = GemmTile(m=64, n=256, warpgroups_m=1, warpgroups_n=2, cluster_m=1, fetched_m=16, early_launch=True)
BF16 = GemmSpec("bfloat16", "bfloat16", ("bfloat16",))
SWIGLU = replace(BF16, out_dtypes=("bfloat16", "bfloat16"), epilogue="swiglu")

MATMULS = {
    **{
        f"{a}-{b}-{out}": replace(BF16, a_major=a, b_major=b, out_major=out)
        for a in ("k", "mn")
        for b in ("k", "mn")
        for out in ("n", "m")
    },
    "float16": GemmSpec("float16", "float16", ("float16",)),
    "tf32": GemmSpec("float32", "float32", ("float32",)),
    "tf32-m": GemmSpec("float32", "float32", ("float32",), out_major="m"),
    "e4m3": GemmSpec("float8_e4m3fn", "float8_e4m3fn", ("bfloat16",), tile=FP8),
    "e5m2": GemmSpec("float8_e5m2", "float8_e5m2", ("float32",), tile=FP8),
    "ping-pong": replace(BF16, tile=PING_PONG),
    "split": replace(BF16, tile=SPLIT),
    "split-multicast": replace(BF16, tile=SPLIT_MULTICAST),
    "few-rows": replace(BF16, tile=FEW_ROWS),
    "224": replace(BF16, tile=GemmTile(m=128, n=224)),
    "two-launches": replace(BF16, rest=GemmTile(n=192)),
}
SWIGLUS = {
    "ping-pong": replace(SWIGLU, tile=PING_PONG),
    "ping-pong-float32": replace(SWIGLU, out_dtypes=("float32", "float16"), tile=PING_PONG),
    "ping-pong-mn-m": replace(SWIGLU, a_major="mn", b_major="mn", out_major="m", tile=PING_PONG),
    "split": replace(SWIGLU, tile=SPLIT),
    "two-launches": replace(SWIGLU, rest=GemmTile(n=192)),
    "e4m3": GemmSpec("float8_e4m3fn", "float8_e4m3fn", ("float32", "float16"), epilogue="swiglu", tile=FP8),
    "tf32": GemmSpec("float32", "float32", ("float32", "float16"), epilogue="swiglu"),
}
CASES = [("matmul", name, spec) for name, spec in MATMULS.items()] + [
    ("swiglu", name, spec) for name, spec in SWIGLUS.items()
]
WGMMA = {
    "bfloat16": "bf16.bf16",
    "float16": "f16.f16",
    "float32": "tf32.tf32",
    "float8_e4m3fn": "e4m3.e4m3",
    "float8_e5m2": "e5m2.e5m2",
}


@pytest.mark.parametrize(("op", "name", "spec"), CASES, ids=[f"{op}-{name}" for op, name, _ in CASES])
def test_compiles_to_wgmma_and_tma(op: str, name: str, spec: GemmSpec, tmp_path: Path) -> None:
    start = time.monotonic()
    compile_now(f"cudnn_fe.gemm.{op}.sm90", spec, "sm_90a", f"--keep-ptx --keep-cubin --dump-dir={tmp_path}")
    seconds = time.monotonic() - start
    (ptx,) = (path.read_text() for path in tmp_path.glob("*.ptx"))
    assert re.search(rf"wgmma\.mma_async\.sync\.aligned\.\S*f32\.{WGMMA[spec.a_dtype]}", ptx), name
    assert "cp.async.bulk.tensor" in ptx
    (cubin,) = (path.read_bytes() for path in tmp_path.glob("*.cubin"))
    assert stack_bytes(cubin) == 0, "registers are spilled"
    assert seconds < 60, f"{seconds:.0f} s to compile"


def test_a_split_that_does_not_fit_is_refused() -> None:
    tile = GemmTile(m=64, n=256, warpgroups_m=1, warpgroups_n=2, cluster_m=1, split_k=8)
    with pytest.raises(ValueError, match="K split in 8 needs more shared memory"):
        compile_now("cudnn_fe.gemm.matmul.sm90", replace(BF16, tile=tile), "sm_90a")


def test_partial_rows_need_a_contiguous_along_k() -> None:
    with pytest.raises(ValueError, match="contiguous along K"):
        compile_now("cudnn_fe.gemm.matmul.sm90", replace(BF16, a_major="mn", tile=FEW_ROWS), "sm_90a")


@pytest.mark.slow
@pytest.mark.parametrize("epilogue", ["identity", "swiglu"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float32"])
def test_every_tile_that_can_be_chosen_compiles(dtype: str, epilogue: Literal["identity", "swiglu"]) -> None:
    tiles = {
        choose_tile(m, n, k, 1, dtype=dtype, epilogue=epilogue, multiprocessors=132)
        for m in (1, 17, 64, 65, 256, 1024, 8192, 16384)
        for n in (64, 512, 4096, 7168, 28672, 57344)
        for k in (64, 2048, 7168, 28672)
    }
    op = "matmul" if epilogue == "identity" else "swiglu"
    for tile in tiles:
        outs = ("bfloat16",) if epilogue == "identity" else ("bfloat16", "bfloat16")
        compile_now(f"cudnn_fe.gemm.{op}.sm90", GemmSpec(dtype, dtype, outs, epilogue=epilogue, tile=tile), "sm_90a")
