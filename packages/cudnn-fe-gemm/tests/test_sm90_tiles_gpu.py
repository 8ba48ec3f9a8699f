"""Every tile that can be chosen, on a Hopper GPU, against float64: edges, several tiles a CTA, batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cudnn_fe.core.compile import compiled
from cudnn_fe.core.gemm_spec import GemmSpec, GemmTile, full_columns
from cudnn_fe.core.gemm_tiles import tile_candidates
from cudnn_fe_testkit.compare import gemm_tolerance
from cudnn_fe_testkit.on_gpu import rel_rms
from cudnn_fe_testkit.swiglu import c_tolerance, exact

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]
ROWS = (16, 32, 64, 128, 8192)  # one of every class of M that has tiles of its own


def _cases() -> list[tuple[str, str, int, GemmTile]]:
    cases = []
    for kind in ("bfloat16", "float8_e4m3fn"):
        for epilogue in ("identity", "swiglu"):
            for rows in ROWS:
                for tile in tile_candidates(rows, dtype=kind, epilogue=epilogue):
                    cases.append((kind, epilogue, rows, replace(tile, early_launch=True)))
    return cases


def _operand(rows: int, k: int, batch: int, kind: str, seed: int) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    memory = torch.full((batch, rows, k + 16), float("nan"), device="cuda").to(getattr(torch, kind))
    memory[..., :k] = torch.randn((batch, rows, k), generator=generator, device="cuda").to(memory.dtype)
    return memory[..., :k].permute(1, 2, 0)


def _output(rows: int, columns: int, batch: int) -> tuple[Any, Any]:
    """A poisoned output, and the guard rows behind each of its batches."""
    memory = torch.full((batch, rows + 5, columns), float("nan"), device="cuda", dtype=torch.bfloat16)
    return memory[:, :rows].permute(1, 2, 0), memory[:, rows:]


@pytest.mark.parametrize(("kind", "epilogue", "rows", "tile"), _cases(), ids=lambda value: str(value)[:60])
def test_a_tile_computes_any_shape(kind: str, epilogue: str, rows: int, tile: GemmTile) -> None:
    op, count = ("matmul", 1) if epilogue == "identity" else ("swiglu", 2)
    spec = GemmSpec(kind, kind, ("bfloat16",) * count, epilogue=epilogue, tile=tile)  # type: ignore[arg-type]
    kernel = compiled(f"cudnn_fe.gemm.{op}.sm90", spec, "sm_90a")
    shapes = [(rows, 576, 1104, 2), (max(rows * 3 // 4, 1), 4160, 208, 1)]
    if rows == ROWS[-1]:  # fewer rows than that, but enough for several tiles a CTA
        shapes = [(300, 576, 1104, 2), (3000, 4160, 208, 1), (2048, 8192, 64, 1)]
    for m, n, k, batch in shapes:
        a, b = _operand(m, k, batch, kind, 1), _operand(n, k, batch, kind, 2)
        outputs = [_output(m, n // (index + 1), batch) for index in range(count)]
        kernel(a, b, *(view for view, _ in outputs), 0.75)
        wanted = exact(a.double(), b.double(), 0.75) if n % 64 == 0 else ()
        limits = (gemm_tolerance(k, kind, "bfloat16"), c_tolerance(k, kind, "bfloat16"))
        for (view, guard), reference, limit in zip(outputs, wanted, limits, strict=False):
            assert rel_rms(view, reference) <= limit, f"{m=} {n=} {k=} {batch=}: {rel_rms(view, reference):.2e}"
            assert guard.isnan().all(), "rows behind the output were written"


def _in_two_launches(kind: str, epilogue: str, first: int, rest: int) -> GemmSpec:
    count = 1 if epilogue == "identity" else 2
    tile = GemmTile(n=first, persistent_ctas=8, early_launch=True)  # few CTAs, so that small shapes fill waves
    return GemmSpec(
        kind, kind, ("bfloat16",) * count, epilogue=epilogue, tile=tile, rest=replace(tile, n=rest)  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "epilogue", "first", "rest"),
    [("bfloat16", "swiglu", 256, 192), ("bfloat16", "identity", 192, 256), ("float8_e4m3fn", "swiglu", 192, 128)],
)
def test_whole_waves_and_the_rest_meet(kind: str, epilogue: str, first: int, rest: int) -> None:
    spec = _in_two_launches(kind, epilogue, first, rest)
    count = len(spec.out_dtypes)
    kernel = compiled(f"cudnn_fe.gemm.{'swiglu' if count == 2 else 'matmul'}.sm90", spec, "sm_90a")
    for m, n, k in ((256, 1664, 1104), (300, 2112, 208), (600, 1728, 64)):
        assert spec.tile is not None
        assert 0 < full_columns(spec.tile, m, n) < n
        a, b = _operand(m, k, 1, kind, 1), _operand(n, k, 1, kind, 2)
        outputs = [_output(m, n // (index + 1), 1) for index in range(count)]
        kernel(a, b, *(view for view, _ in outputs), 0.75)
        wanted = exact(a.double(), b.double(), 0.75)
        limits = (gemm_tolerance(k, kind, "bfloat16"), c_tolerance(k, kind, "bfloat16"))
        for (view, guard), reference, limit in zip(outputs, wanted, limits, strict=False):
            assert rel_rms(view, reference) <= limit, f"{m=} {n=} {k=}: {rel_rms(view, reference):.2e}"
            assert guard.isnan().all(), "rows behind the output were written"


def test_split_sums_do_not_depend_on_timing() -> None:
    tile = GemmTile(m=64, n=128, warpgroups_m=1, cluster_m=1, split_k=2, early_launch=True)
    spec = GemmSpec("bfloat16", "bfloat16", ("bfloat16",), tile=tile)
    kernel = compiled("cudnn_fe.gemm.matmul.sm90", spec, "sm_90a")
    a, b = _operand(64, 4096, 1, "bfloat16", 1), _operand(512, 4096, 1, "bfloat16", 2)
    results = [torch.empty(64, 512, 1, device="cuda", dtype=torch.bfloat16) for _ in range(20)]
    for result in results:
        kernel(a, b, result, 1.0)
    assert all(torch.equal(result, results[0]) for result in results)


def _chain(kernel: Any, steps: int = 30) -> Any:
    """The end of many products in a row, each of the one before."""
    weights = [_operand(1024, 1024, 1, "bfloat16", seed) / 32 for seed in range(4)]
    source = _operand(64, 1024, 1, "bfloat16", 9).contiguous()
    buffers = [torch.full_like(source, float("nan")) for _ in range(2)]
    for step in range(steps):
        kernel(source, weights[step % 4], buffers[step % 2], 1.0)
        source = buffers[step % 2]
    return source


@pytest.mark.parametrize("parts", [1, 2])
def test_early_launches_wait_for_each_other(parts: int) -> None:
    tile = GemmTile(m=64, n=128, warpgroups_m=1, cluster_m=1, split_k=2)
    spec = GemmSpec("bfloat16", "bfloat16", ("bfloat16",), tile=tile)
    if parts == 2:
        tile = GemmTile(m=128, n=128, cluster_m=1, persistent_ctas=3)
        spec = replace(spec, tile=tile, rest=tile)
    early = replace(spec, tile=replace(tile, early_launch=True), rest=spec.rest and replace(tile, early_launch=True))
    wanted = _chain(compiled("cudnn_fe.gemm.matmul.sm90", spec, "sm_90a")).clone()
    assert torch.isfinite(wanted).all()
    kernel = compiled("cudnn_fe.gemm.matmul.sm90", early, "sm_90a")
    assert all(torch.equal(_chain(kernel), wanted) for _ in range(20))
