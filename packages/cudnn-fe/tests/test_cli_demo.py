"""The demo: it passes with the right op, in both frameworks, and fails with a wrong one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cudnn._cli.app import app
from cudnn._cli.demo.chart import text_chart
from cudnn._cli.demo.check import checks, gradient_tolerance
from cudnn._cli.demo.config import CPU, GPU, MOE_CPU, MOE_GPU, DemoConfig
from cudnn._cli.demo.data import batch, read_corpus
from cudnn._cli.demo.train import Agreement, Curve, Outcome
from cudnn._cli.demo.weights import flatten, initial_weights, names, unflatten
from cudnn_fe import gemm, grouped
from cudnn_fe.core.errors import OptionError
from cudnn_fe_testkit.compare import assert_close

runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
Forward = Callable[..., Mapping[str, Any]]


def run_demo(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, ["demo", "--device", "cpu", *arguments], catch_exceptions=False)
    return result.exit_code, result.output


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize(("model", "op"), [("moe", "grouped_gemm_glu"), ("dense", "gemm_swiglu")])
def test_the_demo_passes(framework: str, model: str, op: str, tmp_path: Path) -> None:
    picture = tmp_path / "loss.png"
    named = () if model == "moe" else ("--model", model)
    code, text = run_demo("--framework", framework, "--steps", "16", "--plot", str(picture), *named)
    assert code == 0, text
    assert "PASS" in text
    assert f"reference serves {op}" in text
    assert f"kB/s through {op}" in text
    assert ("Tokens per expert" in text) == (model == "moe")
    assert "def " in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def scaled(factor: float) -> Callable[[Forward], Forward]:
    def wrong(real: Forward) -> Forward:
        def forward(*arguments: Any, **options: Any) -> Mapping[str, Any]:
            result = real(*arguments, **options)
            return {"c_tensor": result["c_tensor"] * factor}

        return forward

    return wrong


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 1.02


def wrong_gradient(real: Forward) -> Forward:
    """Right results, and a gradient of the weight that is 2 % too large: an optimiser like Adam hides it."""

    def forward(a: torch.Tensor, b: torch.Tensor, **options: Any) -> Mapping[str, Any]:
        return real(a, _ScaledGradient.apply(b), **options)

    return forward


def swapped(real: Forward) -> Forward:
    """Value and gate exchanged."""

    def forward(a: torch.Tensor, b: torch.Tensor, **options: Any) -> Mapping[str, Any]:
        return real(a, b.view(-1, 2, 32, b.shape[1], 1).flip(1).reshape(b.shape), **options)

    return forward


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (scaled(1.01), "gradients"),
        (scaled(float("nan")), "loss"),
        (wrong_gradient, "gradients"),
        (swapped, "loss"),
    ],
    ids=["1 % too large", "NaN", "gradient 2 % too large", "value and gate swapped"],
)
def test_a_wrong_op_fails_the_demo(
    wrong: Callable[[Forward], Forward], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "gemm_swiglu_forward", wrong(gemm.gemm_swiglu_forward))
    code, text = run_demo("--model", "dense", "--steps", "2")
    assert code == 1
    assert complaint in text.rpartition("FAIL")[2]
    assert "PASS" not in text


def wrong_expert(real: Forward) -> Forward:
    """One expert's rows multiplied by another's weights."""

    def forward(rows: Any, sfa: Any, ends: Any, alpha: Any, weights: torch.Tensor, **options: Any) -> Mapping[str, Any]:
        swapped = torch.cat((weights[1:2], weights[1:]))
        return real(rows, sfa, ends, alpha, swapped, **options)

    return forward


def lost_row(real: Forward) -> Forward:
    """The last row of each expert left to the next one."""

    def forward(rows: Any, sfa: Any, ends: torch.Tensor, *arguments: Any, **options: Any) -> Mapping[str, Any]:
        return real(rows, sfa, (ends - 1).clamp(min=0), *arguments, **options)

    return forward


@pytest.mark.parametrize("wrong", [wrong_expert, lost_row])
def test_a_wrong_grouped_op_fails_the_demo(
    wrong: Callable[[Forward], Forward], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped, "grouped_gemm_glu_forward", wrong(grouped.grouped_gemm_glu_forward))
    code, text = run_demo("--steps", "1")
    assert code == 1
    assert "PASS" not in text


@pytest.mark.parametrize("name", ["torch_mixture", "jax_mixture"])
def test_experts_agree_where_some_have_no_rows(name: str) -> None:
    """Through the ops and in plain ones, for groups of no, one and many rows."""
    module = importlib.import_module(f"cudnn._cli.demo.{name}")
    rng = np.random.default_rng(0)
    shapes = (40, 32), (4, 64, 32), (4, 32, 32), (40,)
    rows, up_gate, down, gates = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    arrays = [rows, np.array([0, 1, 1, 40], np.int32), up_gate, down, gates]
    given = list(map(torch.from_numpy, arrays)) if name == "torch_mixture" else list(map(jnp.asarray, arrays))
    plain = module.experts_by_torch if name == "torch_mixture" else module.experts_by_jax
    assert_close(module.experts_by_op(*given), np.asarray(plain(*given)), 64 * 2.0**-24)


def test_a_wrong_op_fails_the_jax_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    real = gemm.gemm_swiglu_jax_forward

    def wrong(*arguments: Any, **options: Any) -> tuple[Any, Any]:
        pre_activation, activated = real(*arguments, **options)
        return pre_activation, activated * 1.01

    monkeypatch.setattr(gemm, "gemm_swiglu_jax_forward", wrong)
    code, text = run_demo("--model", "dense", "--framework", "jax", "--steps", "1")
    assert code == 1
    assert "FAIL" in text


def outcome(**changes: float) -> Outcome:
    values = {"loss": 0.0, "gradient": 0.0, "ours": 2.0, "plain": 2.0} | changes
    curves = [Curve((5.5,) * 50 + (values[name],) * 50, (0.1,) * 100) for name in ("ours", "plain")]
    return Outcome(curves[0], curves[1], (Agreement(0, values["loss"], values["gradient"], "layer 0 down"),))


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({}, []),
        ({"gradient": 1.01 * gradient_tolerance(CPU)}, ["gradients, at equal weights"]),
        ({"loss": 1e-3}, ["loss, at equal weights"]),
        ({"loss": float("nan")}, ["loss, at equal weights"]),
        ({"plain": 2.05}, ["final loss"]),
        ({"ours": 5.0, "plain": 5.0}, ["the final loss itself"]),
    ],
)
def test_checks(changes: dict[str, float], failing: list[str]) -> None:
    found = checks(replace(CPU, steps=100), outcome(**changes))
    assert [check.what for check in found if not check.passed] == failing


def test_tolerances_are_the_derived_numbers() -> None:
    # 4 * sqrt(2 e u) * sqrt(2 * 2 layers), e = 2 * sqrt(128) * 2^-24, u = 2^-8
    assert gradient_tolerance(CPU) == pytest.approx(4 * (2 * 2 * 128**0.5 * 2**-24 * 2**-8) ** 0.5 * 2)
    assert gradient_tolerance(GPU) == pytest.approx(2 * 2**-8 * 12**0.5)
    # e * sqrt(6 products * 2 layers), and 4 boundaries in each of 4 layers.
    assert gradient_tolerance(MOE_CPU) == pytest.approx(2 * 128**0.5 * 2**-24 * 12**0.5)
    assert gradient_tolerance(MOE_GPU) == pytest.approx(2 * 2**-8 * 16**0.5)


def test_batches_depend_on_seed_and_step_alone() -> None:
    corpus = read_corpus()
    first = batch(corpus, seed=1, step=5, size=3, context=16)
    assert first.shape == (3, 17)
    np.testing.assert_array_equal(first, batch(read_corpus(), seed=1, step=5, size=3, context=16))
    assert (first != batch(corpus, seed=1, step=6, size=3, context=16)).any()
    assert (first != batch(corpus, seed=2, step=5, size=3, context=16)).any()
    assert bytes(first[0].astype(np.uint8)) in corpus.text.tobytes()


def test_a_library_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="at least 100000 bytes"):
        read_corpus(tmp_path)


@pytest.mark.parametrize("config", [CPU, MOE_CPU])
def test_weights_are_a_tree(config: DemoConfig) -> None:
    weights = initial_weights(config, 0)
    arrays = flatten(weights)
    assert len(arrays) == len(names(weights)) == len(set(names(weights)))
    assert all(a is b for a, b in zip(arrays, flatten(unflatten(arrays, config)), strict=True))
    assert (flatten(initial_weights(config, 0))[0] == arrays[0]).all()
    assert (flatten(initial_weights(config, 1))[0] != arrays[0]).any()


def test_text_chart_falls_with_the_loss() -> None:
    lines = text_chart([4.0, 3.0, 2.0, 1.0], columns=4, rows=4, unicode=False)
    columns = [sum(line[8 + index : 9 + index].strip() != "" for line in lines) for index in range(4)]
    assert columns == sorted(columns, reverse=True)
    assert columns[0] == 4
    assert columns[-1] == 1
    assert text_chart([1.0, float("nan")]) == ["(the loss is not finite)"]
