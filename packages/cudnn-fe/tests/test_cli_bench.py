"""The benchmark: rows as data, fair turns, and nobody timed before their result is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cudnn._cli.app import app
from cudnn._cli.bench import timing
from cudnn._cli.bench.rows import load_rows, save_rows
from cudnn._cli.bench.shapes import MODEL_SHAPES, Shape
from cudnn._cli.bench.timing import ROTATION_BYTES, rotation, time_alternating
from cudnn._cli.bench.torch_contenders import Case, Contender, contenders
from cudnn._cli.bench.torch_verify import objection
from cudnn_fe import gemm

runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
SMALL = Shape("tiny", 128, 64)


def bench(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, ["bench", *arguments, "--device", "cpu", "--rounds", "3"], catch_exceptions=False)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("op", "who", "rival"),
    [
        (
            "gemm_swiglu_forward",
            ["cudnn-fe (reference)", "cudnn-fe GEMM (reference)", "torch matmul", "torch eager"],
            "torch eager",
        ),
        ("matmul", ["cudnn-fe GEMM (reference)", "torch matmul"], "torch matmul"),
    ],
)
def test_rows(op: str, who: list[str], rival: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    code, text = bench(op, "--m", "16", "--model", "small", "--json", str(path))
    assert code == 0, text
    assert "It says nothing about the kernels" in text
    rows = load_rows(path)
    assert [row.who for row in rows] == who
    times = {row.who: row.microseconds for row in rows}
    for row in rows:
        assert row.op == op
        assert row.shape == (16, 1024, 512, 1)
        assert row.rate == pytest.approx(2 * 16 * 1024 * 512 / row.microseconds / 1e6, rel=0.05, abs=1e-4)
        assert row.rival == rival
        assert row.ratio_to_rival == pytest.approx(times[rival] / row.microseconds, rel=0.01, abs=1e-3)
        assert row.rounds == 3
        assert row.sm_clock_mhz is None
        assert any(version.startswith("torch ") for version in row.versions)
    save_rows(tmp_path / "again.json", rows)
    assert (tmp_path / "again.json").read_text() == path.read_text()


def test_rivals_that_the_host_times_are_compared_among_themselves(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    code, text = bench("grouped_gemm_forward", "--model", "even", "--json", str(path))
    assert code == 0, text
    rows = {row.who: row for row in load_rows(path)}
    pairs = {"cudnn-fe (reference)": "torch, expert by expert", "cudnn-fe in JAX (reference)": "jax.lax.ragged_dot"}
    assert set(rows) == {*pairs, *pairs.values()}
    for ours, rival in pairs.items():
        assert rows[ours].rival == rows[rival].rival == rival
        assert rows[rival].ratio_to_rival == 1


def test_a_legacy_name_means_the_op() -> None:
    code, text = bench("gemm_swiglu_wrapper_sm100", "--m", "8", "--model", "small")
    assert code == 0
    assert "cudnn-fe (reference)" in text


def test_a_wrong_contender_is_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real: Callable[..., Any] = gemm.gemm_swiglu_forward
    monkeypatch.setattr(gemm, "gemm_swiglu_forward", lambda *a, **o: {"c_tensor": real(*a, **o)["c_tensor"] * 1.05})
    path = tmp_path / "rows.json"
    _, text = bench("gemm_swiglu_forward", "--m", "8", "--model", "small", "--json", str(path))
    assert "cudnn-fe is not timed at small, M 8: it is wrong: relative RMS 5." in text
    assert "cudnn-fe (reference)" not in [row.who for row in load_rows(path)]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("op", ["matmul", "gemm_swiglu_forward"])
def test_every_contender_here_is_right(op: str, kind: str) -> None:
    case = Case(SMALL, 5, kind, "cpu", 2)
    found = contenders(op, case, None)
    assert [objection(case, contender) for contender in found] == [None] * len(found)


def test_objections_name_the_fault() -> None:
    case = Case(SMALL, 5, "float32", "cpu", 2)

    def broken(index: int) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    def zero(index: int) -> torch.Tensor:
        return torch.zeros(5, 128)

    assert "it failed: RuntimeError: no such kernel" in str(objection(case, Contender("x", broken, "product")))
    assert "it is wrong: relative RMS 1.0e+00" in str(objection(case, Contender("x", zero, "product")))


def test_layouts_of_rivals_hold_the_same_rows() -> None:
    case = Case(Shape("tiny", 128, 64), 5, "float32", "cpu", 1)
    b, halves, pairs = case.b[0], case.b_halves[0], case.b_pairs[0]
    for column in (0, 31, 32, 63):  # of the activation
        block, within = divmod(column, 32)
        value, gate = b[64 * block + within], b[64 * block + 32 + within]
        assert torch.equal(halves[column], value)
        assert torch.equal(halves[64 + column], gate)
        assert torch.equal(pairs[2 * column], gate)
        assert torch.equal(pairs[2 * column + 1], value)


def test_contenders_take_turns_and_operands_rotate() -> None:
    order: list[tuple[str, int]] = []
    calls = [lambda i, name=name: order.append((name, i)) for name in "abc"]
    timings = time_alternating(calls, 2, rounds=6, cuda=False)
    timed = order[6:]  # the warm-up runs each on each set
    assert len(timings) == 3
    assert Counter(name for name, _ in timed) == {"a": 6, "b": 6, "c": 6}
    assert [name for name, _ in timed[:6]] == ["a", "b", "c", "b", "c", "a"]
    assert {index for _, index in timed} == {0, 1}


class FakeGpu:
    """A GPU that runs what the host launches, in order, on a clock of its own."""

    def __init__(self, launch_seconds: float) -> None:
        self.host = self.device = 0.0
        self.launch_seconds = launch_seconds

    def kernel(self, seconds: float) -> None:
        self.host += self.launch_seconds
        self.device = max(self.device, self.host) + seconds

    def _sleep(self, cycles: int) -> None:
        self.kernel(cycles / 2e9)

    def synchronize(self) -> None:
        self.host = max(self.host, self.device)

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.at = max(self.gpu.device, self.gpu.host)

    def query(self) -> bool:
        return self.gpu.host >= self.at

    def synchronize(self) -> None:
        self.gpu.host = max(self.gpu.host, self.at)

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) * 1e3


@pytest.mark.parametrize("launch_us", [1, 30, 200])
def test_gpu_times_are_the_devices_however_slow_the_host_is(launch_us: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(launch_us * 1e-6)
    monkeypatch.setattr(timing, "_cuda", lambda: gpu)
    monkeypatch.setattr(timing, "sm_clock_mhz", lambda: 1980)
    lengths = (5e-6, 40e-6, 3e-3)
    calls = [lambda i, seconds=seconds: gpu.kernel(seconds) for seconds in lengths]
    found = time_alternating(calls, 2, rounds=4, cuda=True)
    assert [row.microseconds for row in found] == pytest.approx([5, 40, 3000], rel=0.01)
    assert {(row.rounds, row.clock_mhz) for row in found} == {(4, 1980)}


def test_rotation_exceeds_the_cache() -> None:
    assert rotation(1 << 20) * (1 << 20) > ROTATION_BYTES
    assert rotation(1 << 30) == 2


def test_model_shapes() -> None:
    assert {shape.name: (shape.k, shape.n) for shape in MODEL_SHAPES} == {
        "Llama-3 8B": (4096, 28672),
        "Llama-3 70B": (8192, 57344),
        "Mixtral 8x7B expert": (4096, 28672),
        "DeepSeek-V3 dense": (7168, 36864),
        "DeepSeek-V3 expert": (7168, 4096),
    }
