"""A mixture-of-experts MLP through torch's autograd and JAX's grad, against float64, expert by expert."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.grouped import (
    grouped_gemm_forward,
    grouped_gemm_glu_backward,
    grouped_gemm_glu_forward,
    grouped_gemm_jax_forward,
    grouped_gemm_wgrad_forward,
)
from cudnn_fe_testkit.compare import assert_close, to_float64
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

HIDDEN, INNER = 16, 32
NAMES = ("x", "w1", "w2", "alpha", "prob", "bias1", "bias2")
TOLERANCE = 64 * 2.0**-24 * (2 * INNER) ** 0.5  # float32 throughout: two chained sums, forward and backward


def inputs(routing: str) -> tuple[dict[str, Any], Any, Any]:
    counts, tail = ROUTINGS[routing]
    rng = np.random.default_rng(3)
    m, count = sum(counts) + tail, len(counts)
    shapes = {
        "x": (m, HIDDEN),
        "w1": (count, 2 * INNER, HIDDEN),
        "w2": (count, HIDDEN, INNER),
        "alpha": (count,),
        "prob": (m,),
        "bias1": (2 * INNER, count),
        "bias2": (HIDDEN, count),
    }
    data = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weight = rng.standard_normal((m, HIDDEN)).astype(np.float32)
    weight[sum(counts) :] = 0  # what a loss gives for rows that nobody computed
    return data, ends_of(counts), weight


def mlp(v: Any, ends: Any, act: str, ones: Any, *, biased: bool, generate_c: bool) -> Any:
    hidden = grouped_gemm_glu_forward(
        v["x"], None, ends, v["alpha"], v["w1"], None, v["bias1"] if biased else None, prob_tensor=v["prob"],
        act_func=act, d_dtype="float32", c_dtype="float32", generate_c=generate_c,
    )["d_tensor"]  # fmt: skip
    bias = v["bias2"] if biased else None
    return grouped_gemm_forward(hidden, ends, v["alpha"], v["w2"], bias, prob_tensor=ones, d_dtype="float32")[0]


def exact(data: dict[str, Any], ends: Any, weight: Any, act: str, biased: bool) -> dict[str, Any]:
    v = {name: value.astype(np.float64) for name, value in data.items()}
    m = len(v["x"])
    alpha = of_rows(v["alpha"], ends, m)[:, None]
    s1 = products(v["x"], v["w1"], ends)
    pre = alpha * s1 + (of_rows(v["bias1"].T, ends, m) if biased else 0)
    inside = (np.arange(m) < ends[-1])[:, None]
    value = activation(act, pre) * inside
    hidden = value * v["prob"][:, None]
    dy = weight.astype(np.float64)
    s2 = products(hidden, v["w2"], ends)
    dh = products(alpha * dy, v["w2"].transpose(0, 2, 1), ends)
    dpre = activation_gradient(act, pre, dh * v["prob"][:, None]) * inside
    return {
        "x": products(alpha * dpre, v["w1"].transpose(0, 2, 1), ends),
        "w1": weight_gradients(alpha * dpre, v["x"], ends),
        "w2": weight_gradients(alpha * dy, hidden, ends),
        "alpha": sums(((dpre * s1).sum(1) + (dy * s2).sum(1))[:, None], ends)[:, 0],
        "prob": (dh * value).sum(1),
        "bias1": sums(dpre, ends).T,
        "bias2": sums(dy, ends).T,
    }


def check(got: dict[str, Any], wanted: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        found = to_float64(got[name])
        assert found.shape == wanted[name].shape
        if name in ("w1", "w2"):
            assert worst_expert(found, wanted[name]) <= TOLERANCE, name
        elif name in ("bias1", "bias2"):
            assert worst_expert(found.T, wanted[name].T) <= TOLERANCE, name
        else:
            assert_close(found, wanted[name], TOLERANCE, name)


def names_of(biased: bool) -> tuple[str, ...]:
    return NAMES if biased else NAMES[:5]


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize(("act", "biased", "generate_c"), [("swiglu", False, True), ("geglu", True, False)])
def test_torch(routing: str, act: str, biased: bool, generate_c: bool) -> None:
    data, ends, weight = inputs(routing)
    leaves = {name: torch.from_numpy(value).requires_grad_() for name, value in data.items()}
    y = mlp(leaves, torch.from_numpy(ends), act, torch.ones(len(weight)), biased=biased, generate_c=generate_c)
    (y * torch.from_numpy(weight)).sum().backward()
    names = names_of(biased)
    check({name: leaves[name].grad for name in names}, exact(data, ends, weight, act, biased), names)


@pytest.mark.parametrize("routing", ["uneven", "none at all"])
@pytest.mark.parametrize(("act", "generate_c"), [("swiglu", True), ("geglu", False)])
def test_scales_that_need_no_gradient(routing: str, act: str, generate_c: bool) -> None:
    """The gradient of the sums then leaves the activation's derivative scaled already."""
    data, ends, weight = inputs(routing)
    leaves = {name: torch.from_numpy(value).requires_grad_(name != "alpha") for name, value in data.items()}
    y = mlp(leaves, torch.from_numpy(ends), act, torch.ones(len(weight)), biased=False, generate_c=generate_c)
    (y * torch.from_numpy(weight)).sum().backward()
    names = ("x", "w1", "w2", "prob")
    check({name: leaves[name].grad for name in names}, exact(data, ends, weight, act, False), names)


@pytest.mark.parametrize("routing", ["uneven", "empty first, middle, last", "none at all"])
@pytest.mark.parametrize(("act", "biased", "generate_c"), [("swiglu", False, True), ("geglu", True, False)])
def test_jax(routing: str, act: str, biased: bool, generate_c: bool) -> None:
    data, ends, weight = inputs(routing)

    @jax.jit
    def grads(v: Any, ends: Any) -> Any:
        def loss(v: Any) -> Any:
            ones = jnp.ones(len(weight))
            return (mlp(v, ends, act, ones, biased=biased, generate_c=generate_c) * weight).sum()

        return jax.grad(loss)(v)

    got = grads({name: jnp.asarray(value) for name, value in data.items()}, jnp.asarray(ends))
    check(got, exact(data, ends, weight, act, biased), names_of(biased))


def test_a_wrong_expert_is_noticed() -> None:
    data, ends, weight = inputs("uneven")
    wanted = exact(data, ends, weight, "swiglu", False)
    wrong = {name: value.copy() for name, value in wanted.items()}
    wrong["w1"][0] *= 1.01  # one row of 138 is its
    with pytest.raises(AssertionError, match="w1"):
        check(wrong, wanted, ("w1",))


def test_explicit_backward_is_autograd() -> None:
    """GLU forward, its fused backward with the second layer's weights as they are held, and the two wgrads."""
    data, ends, weight = inputs("uneven")
    t = {name: torch.from_numpy(value) for name, value in data.items()}
    offsets, dy, one = torch.from_numpy(ends), torch.from_numpy(weight), torch.ones(len(ends))
    out = grouped_gemm_glu_forward(
        t["x"], None, offsets, one, t["w1"], prob_tensor=t["prob"], d_dtype="float32", c_dtype="float32",
        generate_c=True,
    )  # fmt: skip
    dprob = torch.zeros(len(weight))
    back = grouped_gemm_glu_backward(
        dy, out["c_tensor"], None, offsets, one, one, t["prob"], dprob, t["w2"], b_major="n", d_dtype="float32"
    )
    dpre = back["d_row_tensor"]
    got = {
        "w1": grouped_gemm_wgrad_forward(dpre.T, t["x"], None, None, offsets, wgrad_dtype="float32")[0],
        "w2": grouped_gemm_wgrad_forward(dy.T, out["d_tensor"], None, None, offsets, wgrad_dtype="float32")[0],
        "x": grouped_gemm_forward(
            dpre, offsets, one, t["w1"], prob_tensor=torch.ones(len(dy)), b_major="n", d_dtype="float32"
        )[0],
        "prob": dprob,
    }
    check(got, exact(data | {"alpha": np.ones(len(ends), np.float32)}, ends, weight, "swiglu", False), tuple(got))


def test_gradient_of_c_joins_in() -> None:
    data, ends, weight = inputs("uneven")
    t = {name: torch.from_numpy(value).requires_grad_() for name, value in data.items()}
    prob, offsets = t["prob"].detach(), torch.from_numpy(ends)
    out = grouped_gemm_forward(
        t["x"], offsets, t["alpha"].detach(), t["w2"].transpose(1, 2).contiguous()[:, :, :HIDDEN], prob_tensor=prob,
        d_dtype="float32", c_dtype="float32", generate_c=True,
    )  # fmt: skip
    inside = (torch.arange(len(weight)) < offsets[-1])[:, None]
    (out["d_tensor"] * 2 + out["c_tensor"])[inside[:, 0]].sum().backward()
    v = {name: value.astype(np.float64) for name, value in data.items()}
    alpha = of_rows(v["alpha"], ends, len(weight))[:, None]
    ds = alpha * (2 * v["prob"][:, None] + 1) * np.ones((1, INNER)) * inside.numpy()
    assert_close(t["x"].grad, products(ds, v["w2"], ends), TOLERANCE)


def test_kernel_form_and_autocast_carry_gradients() -> None:
    data, ends, weight = inputs("uneven")
    w = torch.from_numpy(data["w2"]).requires_grad_()
    x = torch.from_numpy(np.ascontiguousarray(data["x"][:, :1].repeat(INNER, 1)))
    arguments = (x[:, :, None], torch.from_numpy(ends), torch.ones(len(ends)), w.permute(1, 2, 0))
    with torch.autocast("cpu", torch.bfloat16):
        d = grouped_gemm_forward(*arguments, prob_tensor=torch.ones(len(x), 1, 1))["d_tensor"]
    assert d.dtype == torch.bfloat16
    (d[..., 0].float() * torch.from_numpy(weight)).sum().backward()
    assert w.grad is not None
    wanted = weight_gradients(weight.astype(np.float64), x.double().numpy(), ends)
    # Operands, cotangent and result are rounded to bfloat16.
    assert worst_expert(to_float64(w.grad), wanted) <= 4 * 2.0**-9


def test_second_derivatives_and_those_without_rule_raise() -> None:
    data, ends, weight = inputs("even")
    x = torch.from_numpy(data["x"]).requires_grad_()
    offsets, one = torch.from_numpy(ends), torch.ones(3)
    y = grouped_gemm_forward(x, offsets, one, torch.from_numpy(data["w1"]), prob_tensor=torch.ones(24))[0]
    (first,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
    with pytest.raises(NotYetSupportedError, match="gradient of grouped_gemm_forward"):
        first.sum().backward()
    w = grouped_gemm_wgrad_forward(x.T, x, None, None, offsets)[0]
    with pytest.raises(NotYetSupportedError, match="grouped_gemm_wgrad_forward"):
        w.float().sum().backward()
    del weight


def test_torch_compile_and_vmap() -> None:
    data, ends, weight = inputs("uneven")
    t = {name: torch.from_numpy(value) for name, value in data.items()}
    offsets = torch.from_numpy(ends)

    def run(x: Any, w: Any) -> Any:
        return grouped_gemm_forward(x, offsets, t["alpha"], w, prob_tensor=t["prob"], d_dtype="float32")[0]

    found = []
    for call in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        x, w = t["x"].clone().requires_grad_(), t["w1"].clone().requires_grad_()
        found.append(torch.autograd.grad(call(x, w)[: ends[-1]].sum(), (x, w)))
    for eager, compiled in zip(*found, strict=True):
        assert torch.equal(eager, compiled)
    several = jnp.stack([jnp.asarray(ends), jnp.asarray(np.array([10, 20, 30, 40], np.int32))])
    j = {name: jnp.asarray(value) for name, value in data.items()}

    def one(e: Any) -> Any:
        return grouped_gemm_jax_forward(
            j["x"], e, j["alpha"], prob_tensor=j["prob"], b_tensor=j["w1"], d_dtype="float32"
        )[0]

    both = jax.vmap(one)(several)
    for i in range(2):
        assert_close(both[i], one(several[i]), 2.0**-22)
    del weight
