"""Values of every op on every framework against float64, for groups of any size."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cudnn_fe.grouped import (
    grouped_gemm_forward,
    grouped_gemm_glu_backward,
    grouped_gemm_glu_forward,
    grouped_gemm_glu_jax_backward,
    grouped_gemm_wgrad_forward,
)
from cudnn_fe_testkit.compare import assert_close
from cudnn_fe_testkit.moe import (
    ROUTINGS,
    activation,
    activation_gradient,
    ends_of,
    of_rows,
    products,
    sums,
    weight_gradients,
    worst_expert,
)

K, N = 16, 64
# One JAX program serves all offsets of a shape (`test_jax_traces_offsets_once`), so a few shapes say all.
EVERYWHERE = [
    (routing, framework)
    for routing in ROUTINGS
    for framework in ("numpy", "torch", "jax")
    if framework != "jax" or routing in ("uneven", "empty first, middle, last")
]
# float32 sums of K products, and a few float32 operations on them; exp among these is good to a few units.
TOLERANCE = 16 * 2.0**-24 * K**0.5
MAKE: dict[str, Any] = {"numpy": np.asarray, "torch": lambda x: torch.from_numpy(x.copy()), "jax": jnp.asarray}


def case(routing: str, seed: int = 0) -> dict[str, Any]:
    counts, tail = ROUTINGS[routing]
    rng = np.random.default_rng(seed)
    m, count = sum(counts) + tail, len(counts)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    data = {
        "a": normal(m, K),
        "b": normal(count, N, K),
        "ends": ends_of(counts),
        "alpha": normal(count),
        "beta": normal(count),
        "prob": normal(m),
        "bias": normal(N, count),
        "c": 4 * normal(m, 2 * N),
    }
    data["inside"] = np.arange(m) < sum(counts)
    data["a"][~data["inside"]] = np.nan  # rows past the end are not read
    data["c"][~data["inside"]] = np.nan
    data["prob"][~data["inside"]] = np.nan
    return data


def exact(data: dict[str, Any]) -> dict[str, Any]:
    wide = {key: np.nan_to_num(value.astype(np.float64)) for key, value in data.items() if value.dtype == np.float32}
    return wide | {"ends": data["ends"], "inside": data["inside"]}


@pytest.mark.parametrize(("routing", "framework"), EVERYWHERE)
@pytest.mark.parametrize("with_bias", [False, True])
def test_unfused(routing: str, framework: str, with_bias: bool) -> None:
    data, make = case(routing), MAKE[framework]
    wide, bias = exact(data), make(data["bias"]) if with_bias else None
    d, c = grouped_gemm_forward(
        make(data["a"]), make(data["ends"]), make(data["alpha"]), make(data["b"]), bias,
        prob_tensor=make(data["prob"]), d_dtype="float32", c_dtype="float32", generate_c=True,
    )  # fmt: skip
    m = len(data["a"])
    pre = products(wide["a"], wide["b"], data["ends"]) * of_rows(wide["alpha"], data["ends"], m)[:, None]
    prob = wide["prob"][:, None]
    pre += prob * of_rows(wide["bias"].T, data["ends"], m) if with_bias else 0
    assert_close(c, pre, TOLERANCE)
    assert_close(d, pre if with_bias else pre * prob, TOLERANCE)


@pytest.mark.parametrize(("routing", "framework"), EVERYWHERE)
@pytest.mark.parametrize("act", ["swiglu", "geglu"])
def test_glu(routing: str, framework: str, act: str) -> None:
    data, make = case(routing), MAKE[framework]
    wide = exact(data)
    out = grouped_gemm_glu_forward(
        make(data["a"]), None, make(data["ends"]), make(data["alpha"]), make(data["b"]), None, make(data["bias"]),
        prob_tensor=make(data["prob"]), act_func=act, d_dtype="float32", c_dtype="float32", generate_c=True,
    )  # fmt: skip
    m = len(data["a"])
    pre = products(wide["a"], wide["b"], data["ends"]) * of_rows(wide["alpha"], data["ends"], m)[:, None]
    pre += of_rows(wide["bias"].T, data["ends"], m)
    wanted = activation(act, pre) * wide["prob"][:, None] * data["inside"][:, None]
    assert_close(out["c_tensor"], pre, TOLERANCE)
    assert_close(out["d_tensor"], wanted, 4 * TOLERANCE)


@pytest.mark.parametrize(("routing", "framework"), EVERYWHERE)
@pytest.mark.parametrize("act", ["swiglu", "geglu"])
def test_dglu(routing: str, framework: str, act: str) -> None:
    data, make = case(routing), MAKE[framework]
    wide, m = exact(data), len(data["a"])
    begin = np.float32(0.5) * np.ones(m, np.float32)
    given = [make(data[key]) for key in ("a", "c", "ends", "alpha", "beta", "prob")]
    if framework == "jax":
        out = grouped_gemm_glu_jax_backward(
            given[0],
            given[1],
            given[2],
            given[3],
            given[4],
            prob_tensor=given[5],
            b_tensor=make(data["b"]),
            act_func="d" + act,
            d_dtype="float32",
            generate_dbias=True,
        )
        dprob = np.asarray(out["dprob_tensor"]) + np.where(data["inside"], 0.5, 0.0)
    else:
        buffer = make(begin.copy())
        out = grouped_gemm_glu_backward(
            given[0],
            given[1],
            None,
            given[2],
            given[3],
            given[4],
            given[5],
            buffer,
            make(data["b"]),
            act_func="d" + act,
            d_dtype="float32",
            generate_dbias=True,
        )
        assert out["dprob_tensor"] is buffer
        dprob = np.where(data["inside"], np.asarray(buffer), 0.0)
        assert np.array_equal(np.asarray(buffer)[~data["inside"]], begin[~data["inside"]])  # not written
    r = products(wide["a"], wide["b"], data["ends"]) * of_rows(wide["alpha"], data["ends"], m)[:, None] ** 2
    pre = wide["c"] * of_rows(wide["beta"], data["ends"], m)[:, None]
    d = activation_gradient(act, pre, r * wide["prob"][:, None])
    assert_close(out["d_row_tensor"], d, 4 * TOLERANCE)
    assert_close(dprob, np.where(data["inside"], (r * activation(act, pre)).sum(1) + 0.5, 0.0), 8 * TOLERANCE)
    dbias = out["dbias_tensor"]
    dbias = np.asarray(dbias.float() if framework == "torch" else dbias.astype(np.float32), np.float64)[..., 0]
    assert worst_expert(dbias, sums(d, data["ends"])) <= 2.0**-8 + 4 * TOLERANCE


@pytest.mark.parametrize(("routing", "framework"), EVERYWHERE)
@pytest.mark.parametrize("majors", ["row row", "row column", "column row", "column column"])
def test_wgrad(routing: str, framework: str, majors: str) -> None:
    if framework == "jax" and "column" in majors:
        pytest.skip("JAX arrays are row-major")
    data, make = case(routing), MAKE[framework]
    b = np.random.default_rng(1).standard_normal((len(data["a"]), 24)).astype(np.float32)
    first, second = majors.split()
    a = make(np.ascontiguousarray(data["a"].T)) if first == "row" else make(data["a"]).T
    right = make(b) if second == "row" else make(np.ascontiguousarray(b.T)).T
    (w,) = grouped_gemm_wgrad_forward(a, right, None, None, make(data["ends"]), wgrad_dtype="float32")
    wanted = weight_gradients(exact(data)["a"], b.astype(np.float64), data["ends"])
    assert worst_expert(np.asarray(w, np.float64), wanted) <= TOLERANCE * 4


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_wgrad_accumulates_and_reads_ragged_storage(framework: str) -> None:
    data, make = case("uneven"), MAKE[framework]
    a, ends = np.nan_to_num(data["a"]), data["ends"]
    m = len(a)
    storage, begin = np.full(m * K, np.nan, np.float32), 0
    for end in ends:  # each expert's (K, rows) block compact by itself
        storage[K * begin : K * end] = a[begin:end].T.reshape(-1)
        begin = end
    old = np.random.default_rng(2).standard_normal((len(ends), K, K)).astype(np.float32)
    buffer = make(old.copy())
    out = grouped_gemm_wgrad_forward(
        make(storage.reshape(K, m)), make(a), None, None, make(ends), wgrad_tensor=buffer,
        accumulate_on_output=True, input_order="tensor_ragged",
    )  # fmt: skip
    assert out["wgrad_tensor"] is buffer
    wide = a.astype(np.float64)
    assert worst_expert(np.asarray(buffer, np.float64), old + weight_gradients(wide, wide, ends)) <= 4 * TOLERANCE


def test_every_form_of_the_weights_gives_the_same_bits() -> None:
    data = case("uneven")
    a, ends, alpha, prob = (torch.from_numpy(data[key]) for key in ("a", "ends", "alpha", "prob"))
    b = torch.from_numpy(data["b"]).bfloat16()
    a = a.bfloat16()
    plain = grouped_gemm_forward(a, ends, alpha, b, prob_tensor=prob)["d_tensor"]
    kernel = grouped_gemm_forward(
        a[:, :, None], ends, alpha, b.permute(1, 2, 0), prob_tensor=prob[:, None, None]
    )["d_tensor"]  # fmt: skip
    turned = grouped_gemm_forward(
        a, ends, alpha, b.transpose(1, 2).contiguous(), prob_tensor=prob, b_major="n"
    )["d_tensor"]  # fmt: skip
    assert kernel.shape == (*plain.shape, 1)
    assert torch.equal(kernel[..., 0], plain)
    assert torch.equal(turned, plain)


def test_buffers_keep_rows_past_the_end() -> None:
    data = case("uneven")
    a, ends, alpha, b, prob = (torch.from_numpy(data[key]) for key in ("a", "ends", "alpha", "b", "prob"))
    d = torch.full((len(a), N), 7.0)
    out = grouped_gemm_forward(a, ends, alpha, b, prob_tensor=prob, d_dtype="float32", d_tensor=d)
    assert out["d_tensor"] is d
    assert (d[~torch.from_numpy(data["inside"])] == 7).all()
    assert torch.equal(d[:138], grouped_gemm_forward(a, ends, alpha, b, prob_tensor=prob, d_dtype="float32")[0][:138])


def test_jax_traces_offsets_once() -> None:
    traces = []
    data = case("uneven")
    a, alpha, b, prob = (jnp.asarray(np.nan_to_num(data[key])) for key in ("a", "alpha", "b", "prob"))

    @jax.jit
    def run(ends: Any) -> Any:
        traces.append(ends)
        return grouped_gemm_forward(a, ends, alpha, b, prob_tensor=prob, d_dtype="float32")[0]

    for counts in ([1, 130, 0, 7], [0, 0, 0, 140], [35, 35, 35, 35], [0, 0, 0, 0]):
        ends = ends_of(counts)
        wide = exact(data)
        pre = products(wide["a"], wide["b"], ends) * of_rows(wide["alpha"], ends, len(a))[:, None]
        assert_close(run(jnp.asarray(ends)), pre * wide["prob"][:, None], TOLERANCE)
    assert len(traces) == 1


def test_many_experts() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(700, rng.dirichlet(np.full(1024, 0.1))).tolist()
    a, b = rng.standard_normal((700, 8)).astype(np.float32), rng.standard_normal((1024, 8, 8)).astype(np.float32)
    ones = np.ones(1024, np.float32)
    d, _ = grouped_gemm_forward(a, ends_of(counts), ones, b, prob_tensor=ones[:700], d_dtype="float32")
    assert_close(d, products(a.astype(np.float64), b.astype(np.float64), ends_of(counts)), TOLERANCE)
