"""Derivatives of the block-scaled forwards in what is not quantised, against torch's autograd in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe_testkit.scaled_gemm import wrap
from cudnn_fe_testkit.scaled_moe import Case

grouped: Any = cudnn_fe.grouped  # operands are handed over by name
OPS = ["swiglu", "geglu", "situglu", "srelu", "srelu 2.5", "none", "none biased"]


def exact(case: Case, op: str, leaves: dict[str, torch.Tensor], weight: Any) -> torch.Tensor:
    """The weighted sum of D, differentiable, in float64."""
    owner = torch.from_numpy(np.minimum(np.searchsorted(case.ends, np.arange(case.m), side="right"), case.count - 1))
    x = torch.from_numpy(case.s) * leaves["alpha"][owner][:, None]
    prob = leaves["prob"][:, None]
    shift = leaves["bias"].T[owner]
    if op.startswith("none"):
        y = x + shift * prob if "biased" in op else x * prob
    else:
        x = x + shift
        if op.startswith("srelu"):
            scale = float(op.removeprefix("srelu") or 0)
            y = torch.relu(x) ** 2 if not scale else (scale * torch.tanh(torch.relu(x) / scale)) ** 2
        else:
            gate, up = (half.reshape(case.m, -1) for half in x.reshape(case.m, -1, 2, 32).unbind(2))
            if op == "geglu":
                gate, up = gate.clamp(max=7), up.clamp(-7, 7) + 1
            if op == "situglu":
                y = 100 * torch.tanh(gate / 4) * torch.sigmoid(gate) * torch.tanh(up / 25)
            else:
                y = torch.sigmoid((1.702 if op == "geglu" else 1) * gate) * gate * up
        y = y * prob
    return (y * torch.from_numpy(weight) * torch.from_numpy(case.inside)[:, None]).sum()


def call(op: str, v: Any, bias: Any) -> Any:
    options: dict[str, Any] = {"d_dtype": "float32", "sf_vec_size": 16}
    if op.startswith("none"):
        return grouped.grouped_gemm_quant_forward(**v, bias_tensor=bias if "biased" in op else None, **options)
    if op.startswith("srelu"):
        clamp = float(op.removeprefix("srelu") or 0) or None
        return grouped.grouped_gemm_srelu_forward(**v, bias_tensor=bias, tanh_clamp_scale=clamp, **options)
    return grouped.grouped_gemm_glu_forward(**v, bias_tensor=bias, act_func=op, **options)


@pytest.mark.parametrize(("framework", "op"), [("torch", op) for op in OPS] + [("jax", "swiglu")])
def test_gradients(framework: str, op: str) -> None:
    case = Case("nvfp4", 64)
    width = 32 if op.endswith("glu") else 64
    weight = np.random.default_rng(1).standard_normal((case.m, width)) * case.inside[:, None]
    wide = {name: torch.tensor(getattr(case, name), dtype=torch.float64, requires_grad=True)
            for name in ("alpha", "prob", "bias")}  # fmt: skip
    exact(case, op, wide, weight).backward()
    v = {name: x for name, x in case.wrapped(framework).items() if name != "norm_const_tensor"}
    names = {"alpha": "alpha_tensor", "prob": "prob_tensor"}
    if framework == "torch":
        leaves = {name: torch.tensor(getattr(case, name), requires_grad=True) for name in wide}
        given = v | {names[name]: leaves[name] for name in names}
        out = call(op, given, leaves["bias"])
        (out["d_tensor"] * torch.from_numpy(weight.astype(np.float32))).sum().backward()
        found: Any = {name: leaf.grad for name, leaf in leaves.items()}
    else:
        import jax

        def total(alpha: Any, prob: Any, bias: Any) -> Any:
            out = call(op, v | {"alpha_tensor": alpha, "prob_tensor": prob}, bias)
            return (out["d_tensor"] * weight.astype(np.float32)).sum()

        parts = [wrap("jax", getattr(case, name)) for name in wide]
        found = dict(zip(wide, jax.grad(total, (0, 1, 2))(*parts), strict=True))
    for name, leaf in wide.items():
        if leaf.grad is None:
            continue
        wanted, got = leaf.grad.numpy(), np.asarray(found[name], np.float64)
        error = np.sqrt(((got - wanted) ** 2).mean() / (wanted**2).mean())
        assert error <= 64 * 2.0**-24 * case.k**0.5, name


def leaves_of(v: Any, *names: str) -> dict[str, torch.Tensor]:
    return {name: v[name].clone().requires_grad_() for name in names}


def test_gradients_of_row_factors_and_through_c() -> None:
    case = Case("nvfp4", 64)
    v = {name: x for name, x in case.wrapped("torch").items() if name != "norm_const_tensor"}
    factors = torch.linspace(-2, 2, case.m, requires_grad=True)
    d = grouped.grouped_gemm_quant_forward(**v, row_scale_tensor=factors, d_dtype="float32")["d_tensor"]
    (found,) = torch.autograd.grad(d.sum(), factors)
    s = case.s * case.inside[:, None]
    wanted = (s * case.rows(case.alpha) * case.prob[:, None]).sum(1)
    assert np.abs(found.numpy() - wanted).max() <= 64 * 2.0**-24 * np.abs(s).sum(1).max()
    leaves = leaves_of(v, "alpha_tensor")
    c = grouped.grouped_gemm_srelu_forward(**v | leaves, c_dtype="float32", d_dtype="float32")["c_tensor"]
    (found,) = torch.autograd.grad(c.sum(), list(leaves.values()))
    begins = [0, *case.ends[:-1]]
    wanted = np.array([s[begin:end].sum() for begin, end in zip(begins, case.ends, strict=True)])
    assert np.abs(found.numpy() - wanted).max() <= 2.0**-24 * np.abs(s).sum()


def test_gradients_beside_weights_behind_addresses() -> None:
    v = {name: x for name, x in Case("mxfp8_e4m3", 64).wrapped("torch").items() if name != "norm_const_tensor"}
    dense = {name: v.pop(name) for name in ("b_tensor", "sfb_tensor")}
    owned = [[x.clone() for x in matrices.view(torch.uint8)] for matrices in dense.values()]
    pointers = [torch.tensor([x.data_ptr() for x in group]) for group in owned]
    discrete = {"b_ptrs": pointers[0], "sfb_ptrs": pointers[1], "n": 64, "b_dtype": torch.float8_e4m3fn}
    found = []
    for weights in (dense, discrete):
        leaves = leaves_of(v, "alpha_tensor", "prob_tensor")
        out = grouped.grouped_gemm_srelu_forward(**v | leaves, **weights, d_dtype="float16", sf_vec_size=32)
        found.append(torch.autograd.grad(out["d_tensor"].float().sum(), list(leaves.values())))
    assert all(torch.equal(first, second) for first, second in zip(*found, strict=True))


def test_gradient_under_jit_in_the_dtype_of_prob() -> None:
    import jax
    import jax.numpy as jnp

    case = Case("nvfp4", 64)
    v = {name: x for name, x in case.wrapped("jax").items() if name != "norm_const_tensor"}

    def total(prob: Any) -> Any:
        return grouped.grouped_gemm_srelu_forward(**v | {"prob_tensor": prob}, d_dtype="float32")["d_tensor"].sum()

    found = jax.jit(jax.grad(total))(v["prob_tensor"].astype(jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    wanted = (np.maximum(case.s * case.rows(case.alpha) * case.inside[:, None], 0) ** 2).sum(1)
    assert (np.abs(np.asarray(found, np.float64) - wanted) <= 2.0**-8 * wanted).all()


def test_results_with_scales_and_quantised_operands_carry_none() -> None:
    case = Case("mxfp8_e4m3", 64)
    v = case.wrapped("torch")
    v["prob_tensor"].requires_grad_()
    out = grouped.grouped_gemm_srelu_forward(**v, d_dtype="float8_e4m3fn", sf_vec_size=32)
    with pytest.raises(NotYetSupportedError, match="a gradient of a result with scales"):
        out["d_tensor"].backward(torch.ones_like(out["d_tensor"]))
    v["a_tensor"].requires_grad_()
    with pytest.raises(NotYetSupportedError, match="an operand of float8_e4m3fn that needs a gradient"):
        grouped.grouped_gemm_srelu_forward(**v, sf_vec_size=32)
