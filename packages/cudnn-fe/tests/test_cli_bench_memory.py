"""The benchmark of ops that memory bounds: cases come with the op, a copy is the ceiling, everyone is checked first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cudnn._cli.app import app
from cudnn._cli.bench.rows import load_rows
from cudnn._cli.bench.torch_memory import objection_to
from cudnn_fe.core.bench import Entrant
from cudnn_fe.core.op import resolve
from cudnn_fe.core.registry import ops
from cudnn_fe.grouped import torch_bench as grouped_bench
from cudnn_fe.norm_rope import torch_bench

runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
CASED = [op for op in ops(public=False) if op.memory_cases]


def bench(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, ["bench", *arguments, "--device", "cpu", "--rounds", "3"])
    return result.exit_code, result.output + str(result.exception or "")


def test_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    code, text = bench("tail_rope", "--json", str(path))
    assert code == 0, text
    rows = load_rows(path)
    assert [(row.who, row.does) for row in rows] == [("cudnn-fe (reference)", "op"), ("torch eager", "op")]
    ours, rival = rows
    assert ours.op == "tail_rope_forward"
    assert ours.shape == (64, 4, 128)
    # x and the result, two tables.
    assert ours.rate * ours.microseconds * 1e6 == pytest.approx(64 * (4 * 4 * 128 + 256), rel=1e-3)
    assert ours.ratio_to_rival == pytest.approx(rival.microseconds / ours.microseconds, rel=0.01, abs=1e-3)
    assert ours.rival == "torch eager"
    assert "a copy of as many bytes" in ours.ceiling


def test_products_are_rated_by_their_work(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    code, text = bench("grouped_gemm_wgrad_forward", "--model", "even", "--json", str(path))
    assert code == 0, text
    ours, rival = load_rows(path)
    assert (ours.who, rival.who) == ("cudnn-fe (reference)", "torch, expert by expert")
    assert ours.shape == (96, 128, 64, 4)
    assert ours.rate * ours.microseconds == pytest.approx(2 * 96 * 128 * 64 / 1e6, rel=0.02)
    assert ours.rate_unit == "TFLOP/s"
    assert "GEMM of 1024 cubed" in ours.ceiling


def test_options_of_products_are_refused() -> None:
    code, text = bench("tail_rope_forward", "--m", "16")
    assert code != 0
    assert "--m: got '16', wanted none: tail_rope_forward has its own" in text
    _, text = bench("tail_rope_forward", "--model", "nobody's")
    assert "part of a case's name" in text
    _, text = bench("unheard_of")
    assert "rmsnorm_silu_forward" in text  # of those that have cases


@pytest.mark.parametrize("op", CASED, ids=lambda op: op.name)
def test_everyone_here_computes_the_op(op: object) -> None:
    for case in resolve(str(getattr(op, "memory_cases", "")))(False):
        assert case.nbytes > 0
        entrants = case.entrants("cpu", 1, None)
        assert entrants[0].ours
        assert [objection_to(entrant, case.allowed) for entrant in entrants] == [None] * len(entrants)


def entrant(run: Callable[[int], list[torch.Tensor]]) -> Entrant:
    return Entrant("x", run, lambda: [torch.ones(4), torch.tensor([0x21], dtype=torch.uint8)])


def test_objections_name_the_fault() -> None:
    def broken(index: int) -> list[torch.Tensor]:
        raise RuntimeError("no such kernel")

    codes = torch.tensor([0x21], dtype=torch.uint8)
    assert "it failed: RuntimeError: no such kernel" in str(objection_to(entrant(broken), 0.1))
    assert "shapes [(3,)]" in str(objection_to(entrant(lambda i: [torch.ones(3)]), 0.1))
    assert "relative RMS 5.0e-01" in str(objection_to(entrant(lambda i: [torch.full((4,), 1.5), codes]), 0.1))
    assert objection_to(entrant(lambda i: [torch.ones(4), codes]), 0.0) is None
    # One FP4 code of two is a step off, and the sign counts.
    assert "relative RMS" in str(objection_to(entrant(lambda i: [torch.ones(4), codes + 1]), 0.3))
    assert "relative RMS" in str(objection_to(entrant(lambda i: [torch.ones(4), codes + 0x80]), 0.3))


@pytest.mark.parametrize("cases", torch_bench.__all__)
def test_cases_on_a_gpu_fit_it(cases: str) -> None:
    found = getattr(torch_bench, cases)(True)
    assert len({case.name for case in found}) == len(found)
    assert all(64 << 20 < case.nbytes < 4 << 30 or case.shape[0] <= 8649 for case in found)


@pytest.mark.parametrize("cases", ["dglu", "glu", "unfused", "wgrad"])
def test_cases_of_experts_differ_in_name_and_routing(cases: str) -> None:
    found = getattr(grouped_bench, cases)(True)
    assert len({case.name for case in found}) == len(found) >= 10
    assert all(case.flops == 2 * m * n * k for case in found for m, n, k, _ in [case.shape])
    assert sum("Zipf" in case.name for case in found) == len(found) // 2
