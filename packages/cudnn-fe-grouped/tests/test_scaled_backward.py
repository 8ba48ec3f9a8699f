"""Block-scaled grouped GEMMs that go backward, against torch's autograd in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe_testkit.moe import sums, worst_expert
from cudnn_fe_testkit.scaled_gemm import KINDS, numbers, wrap
from cudnn_fe_testkit.scaled_moe import Case, check_quantised, check_results, plain_scales, raw
from cudnn_fe_testkit.scaled_moe_backward import activation, check_amax, derivative, kept

grouped: Any = cudnn_fe.grouped  # operands are handed over by name
N = 96
FORMATS = [("numpy", kind) for kind in KINDS] + [("torch", "mxfp8_e4m3"), ("torch", "nvfp4"), ("jax", "mxfp8_e5m2")]
formats = pytest.mark.parametrize(("framework", "kind"), FORMATS)
KEYS = ["d_row_tensor", "d_col_tensor", "dprob_tensor", "dbias_tensor", "amax_tensor", "sfd_row_tensor",
        "sfd_col_tensor"]  # fmt: skip


def options_of(case: Case) -> dict[str, Any]:
    return {"d_dtype": "float16" if case.fp4 else "float8_e4m3fn", "sf_vec_size": case.format.block}


@formats
def test_dswiglu(framework: str, kind: str) -> None:
    case = Case(kind, N, seed=4)
    c = kept(case, 2 * N)
    v, options = case.wrapped(framework), options_of(case)
    out = grouped.grouped_gemm_swiglu_backward(
        **v, c_tensor=wrap(framework, c), beta_tensor=wrap(framework, case.beta), **options
    )
    assert list(out.keys()) == [key for key in KEYS if key != "dbias_tensor"]
    d, error, dprob, room = derivative(case, "swiglu", c, beta=True)
    check_results(case, out, d, error, options["d_dtype"], "d_row_tensor")
    assert (np.abs(numbers(out["dprob_tensor"]) - dprob) <= room).all()
    if case.fp4:
        assert out["amax_tensor"].shape == (3, 2, 1)
        check_amax(out, d, case, error)


@pytest.mark.parametrize(("framework", "act"), [("numpy", "geglu"), ("torch", "situglu"), ("torch", "geglu")])
def test_dglu(framework: str, act: str) -> None:
    case = Case("mxfp8_e4m3", N, seed=5)
    c = kept(case, 2 * N)
    c[:40] *= 4  # on both sides of the clamps
    begin = np.linspace(0, 1, case.m).astype(np.float32)
    buffer = wrap(framework, begin.copy())
    out = grouped.grouped_gemm_glu_backward(
        **case.wrapped(framework), c_tensor=wrap(framework, c), beta_tensor=wrap(framework, case.beta),
        dprob_tensor=buffer, act_func=f"d{act}", generate_dbias=True, d_dtype="float8_e5m2", sf_vec_size=32,
    )  # fmt: skip
    assert list(out.keys()) == KEYS
    assert out["dprob_tensor"] is buffer
    d, error, dprob, room = derivative(case, act, c, beta=act == "situglu")  # dgeglu leaves C as it is, as documented
    check_results(case, out, d, error, "float8_e5m2", "d_row_tensor")
    found = np.asarray(buffer, np.float64)
    assert (np.abs(found - begin - dprob) <= room + 2.0**-22 * np.abs(dprob))[case.inside].all()
    assert np.array_equal(found[~case.inside], begin[~case.inside])  # not written
    dbias = numbers(out["dbias_tensor"])[..., 0]
    assert worst_expert(dbias, sums(d, case.ends)) <= 2.0**-8 + 2.0**-12


@formats
@pytest.mark.parametrize("clamp", [None, 2.5])
def test_dsrelu(framework: str, kind: str, clamp: float | None) -> None:
    if framework == "jax" and clamp is None:
        pytest.skip("one compilation says all")
    case = Case(kind, 70, seed=6)
    c = kept(case, 70)
    v, options = case.wrapped(framework), options_of(case)
    out = grouped.grouped_gemm_srelu_backward(
        **v, c_tensor=wrap(framework, c), generate_dbias=True, tanh_clamp_scale=clamp, **options
    )
    act = "srelu" if clamp is None else f"srelu {clamp}"
    d, error, dprob, room = derivative(case, act, c, beta=False)
    check_results(case, out, d, error, options["d_dtype"], "d_row_tensor")
    assert (np.abs(numbers(out["dprob_tensor"]) - dprob) <= room).all()
    assert worst_expert(numbers(out["dbias_tensor"])[..., 0], sums(d, case.ends)) <= 2.0**-8 + 2.0**-12
    again = (
        activation(act, torch.tensor(np.nan_to_num(c.astype(np.float64)))).numpy()
        * case.prob.astype(np.float64)[:, None]
    )
    again *= case.inside[:, None]
    room = 16 * 2.0**-24 * (np.abs(again) + np.abs(case.prob[:, None]))
    if case.fp4:
        assert (np.abs(numbers(out["d_srelu_tensor"]) - again) <= room + 2.0**-11 * np.abs(again) + 2.0**-25).all()
        assert out["sfd_col_d_srelu_tensor"] is None
    else:
        columns = plain_scales(raw(out["sfd_col_d_srelu_tensor"]), 70, -(-case.m // 32))
        norm = float(case.norm[0])
        check_quantised(numbers(out["d_srelu_tensor"]).T, columns, again.T, room.T, norm, options["d_dtype"])


def test_the_activation_again_has_the_bits_of_the_forward() -> None:
    """From the same float32 pre-activation: C in float32."""
    case = Case("mxfp8_e4m3", 128, "atoms")
    v = case.wrapped("torch")
    options: dict[str, Any] = {"d_dtype": "float8_e4m3fn", "sf_vec_size": 32, "tanh_clamp_scale": 16.0}
    forward = grouped.grouped_gemm_srelu_forward(**v, c_dtype="float32", **options)
    back = grouped.grouped_gemm_srelu_backward(**v, c_tensor=forward["c_tensor"], **options)
    # The forward's columns follow another recipe, which differs in rounding of the scale's argument alone.
    for one, other in (("d_col_tensor", "d_srelu_tensor"), ("sfd_col_tensor", "sfd_col_d_srelu_tensor")):
        assert np.array_equal(raw(forward[one]), raw(back[other]))


def test_saturated_clamp_lets_no_gradient_through() -> None:
    case = Case("mxfp8_e4m3", 64)
    c = np.full((case.m, 64), 512.0, np.float32)
    out = grouped.grouped_gemm_srelu_backward(
        **case.wrapped("numpy"), c_tensor=c, d_dtype="float8_e4m3fn", sf_vec_size=32, tanh_clamp_scale=0.5
    )
    assert not numbers(out["d_row_tensor"]).any()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_buffers_of_dswiglu_are_overwritten(framework: str) -> None:
    case = Case("mxfp4", N)
    v = case.wrapped(framework) | {"c_tensor": wrap(framework, kept(case, 2 * N)), "beta_tensor": None}
    plain = grouped.grouped_gemm_swiglu_backward(**v, sf_vec_size=32)
    dprob, amax = wrap(framework, np.full(case.m, 7, np.float32)), wrap(framework, np.full((3, 2, 1), 1e9, np.float32))
    out = grouped.grouped_gemm_swiglu_backward(**v, sf_vec_size=32, dprob_tensor_buf=dprob, amax_tensor_buf=amax)
    assert out["dprob_tensor"] is dprob
    assert out["amax_tensor"] is amax
    assert np.array_equal(np.asarray(dprob), np.asarray(plain["dprob_tensor"]))
    assert np.array_equal(np.asarray(amax), np.asarray(plain["amax_tensor"]))


def addresses(case: Case) -> tuple[Any, dict[str, Any]]:
    owned = ([x.copy() for x in case.b], [x.copy() for x in case.sfb])
    found = [np.asarray([x.ctypes.data for x in group], np.int64).view(np.uint8) for group in owned]
    return owned, {"b_ptrs": found[0], "sfb_ptrs": found[1], "n": case.n}


@pytest.mark.parametrize("d_dtype", ["float8_e4m3fn", "bfloat16"])
def test_discrete(d_dtype: str) -> None:
    case = Case("mxfp8_e4m3", N)
    v = case.wrapped("numpy") | {"c_tensor": kept(case, 2 * N), "beta_tensor": case.beta}
    owned, call = addresses(case)
    dense = {name: v.pop(name) for name in ("b_tensor", "sfb_tensor")}
    dprob = np.zeros(case.m, np.float32)
    options: dict[str, Any] = {"d_dtype": d_dtype, "sf_vec_size": 32, "act_func": "dgeglu", "generate_dbias": True}
    out = grouped.discrete_grouped_gemm_swiglu_backward(
        **v, **call, dprob_tensor=dprob, b_dtype="float8_e4m3fn", **options
    )
    assert list(out.keys()) == KEYS
    wanted, error, _, _ = derivative(case, "geglu", v["c_tensor"], beta=False)
    check_results(case, out, wanted, error, d_dtype, "d_row_tensor")
    if d_dtype == "float8_e4m3fn":
        whole = grouped.grouped_gemm_glu_backward(**v, **dense, dprob_tensor=np.zeros(case.m, np.float32), **options)
        for key in ("d_row_tensor", "sfd_col_tensor", "dprob_tensor"):
            assert np.array_equal(raw(out[key]), raw(whole[key]))
    del owned


def test_jax_entries() -> None:
    import jax
    import jax.numpy as jnp

    case = Case("mxfp8_e4m3", 64, "one expert", k=32)
    owned, call = addresses(case)
    v = case.wrapped("jax")
    c = jnp.asarray(kept(case, 64))
    shared = {name: v[name] for name in ("sfa_tensor", "padded_offsets", "alpha_tensor", "norm_const_tensor")}
    a, prob = v["a_tensor"][..., None], v["prob_tensor"][:, None, None]
    out = jax.jit(
        lambda a, c: grouped.grouped_gemm_srelu_jax_backward(a, c, prob_tensor=prob, **shared, **call)
    )(a, c[..., None])  # fmt: skip
    assert len(out) == 9
    assert out[0].shape == (case.m, 64, 1)
    assert out[3].shape == (case.m, 1, 1)
    wanted = grouped.grouped_gemm_srelu_backward(
        **case.wrapped("numpy"), c_tensor=np.asarray(c), d_dtype="float8_e4m3fn", sf_vec_size=32
    )
    assert np.array_equal(raw(out[7]), raw(wanted["sfd_col_tensor"]))
    wide = jnp.asarray(kept(case, 128)[..., None])
    found = grouped.discrete_grouped_gemm_swiglu_jax_backward(
        a, c_tensor=wide, beta_tensor=v["alpha_tensor"], prob_tensor=prob, **shared, **call
    )
    assert type(found) is dict
    assert found["dbias_tensor"] is None
    assert not raw(found["sfd_row_tensor"]).any()
    assert found["amax_tensor"].shape == (1, 2, 1)
    del owned
