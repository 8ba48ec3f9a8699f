"""Block-scaled grouped GEMMs at the edges: short blocks, single rows, alpha 0, constants, NaN and infinity."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe_testkit.moe import halves, joined, sigmoid
from cudnn_fe_testkit.scaled_gemm import KINDS, numbers, wrap
from cudnn_fe_testkit.scaled_moe import Case, ExactCase, check_results, plain_scales, raw
from cudnn_fe_testkit.scaled_moe_backward import kept

grouped: Any = cudnn_fe.grouped  # operands are handed over by name
FP8: dict[str, Any] = {"d_dtype": "float8_e4m3fn", "sf_vec_size": 32}
frameworks = pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])


@pytest.mark.parametrize(("kind", "k"), [(kind, k) for kind, form in KINDS.items() for k in (form.block, 72)])
def test_one_block_and_a_short_one(kind: str, k: int) -> None:
    case = Case(kind, 70, "one row", k=k)
    d_dtype = "bfloat16" if case.fp4 else "float8_e4m3fn"
    out = grouped.grouped_gemm_quant_forward(**case.wrapped("torch"), d_dtype=d_dtype, sf_vec_size=case.format.block)
    factor = case.rows(case.alpha) * case.prob[:, None]
    bound = case.bound * np.abs(factor) + 2.0**-21 * np.abs(case.s * factor)
    check_results(case, out, case.s * factor, bound, d_dtype)


@frameworks
def test_alpha_of_zero(framework: str) -> None:
    case = Case("mxfp8_e4m3", 64)
    v = case.wrapped(framework) | {"alpha_tensor": wrap(framework, np.zeros(3, np.float32))}
    out = grouped.grouped_gemm_swiglu_forward(**v, **FP8)
    back = grouped.grouped_gemm_srelu_backward(**v, c_tensor=wrap(framework, kept(case, 64)), **FP8)
    for results, names in ((out, ("c", "d", "d_col")), (back, ("d_row", "d_col", "dprob"))):
        assert not any(numbers(results[f"{name}_tensor"]).any() for name in names)
        assert not any(raw(results[f"sfd_{name}_tensor"]).any() for name in ("row", "col"))  # byte 0
    assert numbers(back["d_srelu_tensor"]).any()  # the forward's result, which alpha is not in
    half = grouped.grouped_gemm_quant_forward(**v, sf_vec_size=32)
    assert numbers(half["amax_tensor"]).tolist() == [[0.0], [-np.inf], [0.0]]


CONSTANTS: dict[str, Any] = {"geglu_alpha": 1.25, "glu_clamp_max": 2.0, "glu_clamp_min": -1.5, "linear_offset": 0.5}


@frameworks
def test_constants_of_geglu(framework: str) -> None:
    case = Case("nvfp4", 128)
    v = case.wrapped(framework)
    out = grouped.grouped_gemm_glu_forward(**v, act_func="geglu", c_dtype="float32", d_dtype="float32", **CONSTANTS)
    c = numbers(out["c_tensor"])
    gate, up = halves(c)
    assert gate.max() > 2
    assert up.min() < -1.5
    assert up.max() > 2
    open_, shifted = sigmoid(1.25 * np.minimum(gate, 2)), np.clip(up, -1.5, 2) + 0.5
    value = open_ * np.minimum(gate, 2) * shifted
    prob = np.where(case.inside, case.prob, 0).astype(np.float64)[:, None]
    assert np.abs(numbers(out["d_tensor"]) - value * prob).max() <= 32 * 2.0**-24 * np.abs(value).max()

    dprob = None if framework == "jax" else wrap(framework, np.zeros(case.m, np.float32))
    case = Case("nvfp4", 64)
    back = grouped.grouped_gemm_glu_backward(
        **case.wrapped(framework), c_tensor=wrap(framework, c.astype(np.float32)), dprob_tensor=dprob,
        beta_tensor=wrap(framework, case.beta), act_func="dgeglu", d_dtype="float32", **CONSTANTS,
    )  # fmt: skip
    r, prob = case.s * case.rows(case.alpha) ** 2, case.prob.astype(np.float64)[:, None]
    capped = np.minimum(gate, 2)
    d_gate = open_ * shifted * (1 + 1.25 * capped * (1 - open_)) * (gate <= 2)
    d_up = open_ * capped * ((up >= -1.5) & (up <= 2))
    wanted = joined(r * prob * d_gate, r * prob * d_up)
    assert np.abs(numbers(back["d_row_tensor"]) - wanted).max() <= 2.0**-18 * np.abs(wanted).max()
    found = numbers(back["dprob_tensor"])
    assert np.abs(found - (r * value).sum(1)).max() <= 2.0**-18 * np.abs(r * value).sum(1).max()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_constants_of_situglu(framework: str) -> None:
    case = Case("nvfp4", 128)
    v, betas = case.wrapped(framework), {"situ_beta1": 1.5, "situ_beta2": 2.5}
    out = grouped.grouped_gemm_glu_forward(**v, act_func="situglu", c_dtype="float32", d_dtype="float32", **betas)
    c = torch.tensor(numbers(out["c_tensor"]) * case.rows(np.ones(3, np.float32)), requires_grad=True)
    gate, up = (half.reshape(case.m, -1) for half in c.reshape(case.m, -1, 2, 32).unbind(2))
    value = 1.5 * 2.5 * torch.tanh(gate / 1.5) * torch.sigmoid(gate) * torch.tanh(up / 2.5)
    prob = np.where(case.inside, case.prob, 0).astype(np.float64)[:, None]
    assert np.abs(numbers(out["d_tensor"]) - value.detach().numpy() * prob).max() <= 32 * 2.0**-24 * 4
    case = Case("nvfp4", 64)
    back = grouped.grouped_gemm_glu_backward(
        **case.wrapped(framework), c_tensor=wrap(framework, c.detach().numpy().astype(np.float32)), dprob_tensor=None,
        beta_tensor=wrap(framework, np.ones(3, np.float32)), act_func="dsituglu", d_dtype="float32", **betas,
    )  # fmt: skip
    r = case.s * case.rows(case.alpha) ** 2 * case.prob.astype(np.float64)[:, None]
    (wanted,) = torch.autograd.grad(value, c, torch.tensor(r))
    assert np.abs(numbers(back["d_row_tensor"]) - wanted.numpy()).max() <= 2.0**-18 * np.abs(wanted.numpy()).max()
    assert back["dprob_tensor"] is None


@pytest.mark.parametrize("bound", [7.0, -7.0])
def test_a_gradient_flows_at_exactly_the_clamps(bound: float) -> None:
    case = ExactCase("nvfp4", 32, k=32)
    beyond = float(np.nextafter(np.float32(bound), np.float32(2 * bound)))
    c = np.full((case.m, 64), 1.0, np.float32)
    c[:, [0, 32]], c[:, [1, 33]] = bound, beyond  # gate and up of two columns
    back = grouped.grouped_gemm_glu_backward(
        **case.wrapped("numpy"), c_tensor=c, beta_tensor=case.beta, dprob_tensor=None, act_func="dgeglu",
        d_dtype="float32",
    )  # fmt: skip
    d, r = back["d_row_tensor"], (case.s != 0) & case.inside[:, None]
    assert (d[:, 0] != 0)[r[:, 0]].all()
    assert ((d[:, 1] != 0) == (bound < 0))[r[:, 1]].all()  # the gate has no lower clamp
    assert (d[:, 32] != 0)[r[:, 0]].all()
    assert not d[:, 33].any()


@frameworks
def test_prob_may_be_bfloat16_or_absent(framework: str) -> None:
    case = ExactCase("mxfp8_e4m3", 64)
    case.prob = case.prob.astype(ml_dtypes.bfloat16).astype(np.float32)
    v = case.wrapped(framework)
    narrow = case.prob.astype(ml_dtypes.bfloat16)
    given = torch.from_numpy(case.prob).bfloat16() if framework == "torch" else wrap(framework, narrow)
    more = {"c_tensor": kept(case, 128), "beta_tensor": case.beta}
    backward = {name: wrap(framework, x) for name, x in more.items()} | {"dprob_tensor": None, "act_func": "dgeglu"}
    for prob, same in ((given, v["prob_tensor"]), (None, wrap(framework, np.ones(case.m, np.float32)))):
        for name, rest in (("forward", {}), ("backward", backward)):
            call = getattr(grouped, f"grouped_gemm_glu_{name}")
            got, wanted = (call(**v | {"prob_tensor": p}, **rest, **FP8) for p in (prob, same))
            for key in got.keys():  # noqa: SIM118
                assert (got[key] is None) == (wanted[key] is None)
                if got[key] is not None:
                    assert got[key].shape == wanted[key].shape
                    assert np.array_equal(raw(got[key]), raw(wanted[key])), key


@pytest.mark.parametrize("c_dtype", ["float8_e4m3fn", "float8_e5m2"])
@frameworks
def test_an_fp8_c_is_a_plain_saturating_cast_and_is_read_as_such(framework: str, c_dtype: str) -> None:
    case = ExactCase("mxfp8_e4m3", 64)
    case.alpha = np.asarray([2.0**12, 1, -0.5], np.float32)
    v = case.wrapped(framework)
    out = grouped.grouped_gemm_srelu_forward(**v, c_dtype=c_dtype, **FP8)
    limit = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}[c_dtype]
    exact = case.s * case.rows(case.alpha)
    assert np.abs(exact).max() > limit
    wanted = np.clip(exact, -limit, limit).astype(np.float32).astype(getattr(ml_dtypes, c_dtype))
    assert np.array_equal(numbers(out["c_tensor"]), wanted.astype(np.float64))
    wide = grouped.grouped_gemm_srelu_forward(**v, c_dtype="float32", **FP8)
    assert np.array_equal(raw(out["d_tensor"]), raw(wide["d_tensor"]))  # from the unrounded product
    narrow, same = (
        grouped.grouped_gemm_srelu_backward(**v, c_tensor=c, **FP8)
        for c in (out["c_tensor"], wrap(framework, wanted.astype(np.float32)))
    )
    assert np.array_equal(raw(narrow["d_row_tensor"]), raw(same["d_row_tensor"]))


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_one_group_whatever_the_offsets_say(framework: str) -> None:
    case = Case("mxfp8_e4m3", 64, "one expert")
    case.a[~case.inside], case.sfa[:] = 0x38, 127
    c, beta = kept(case, 128), wrap(framework, case.beta)
    c[~case.inside] = 2

    def results(end: int, *, single: bool) -> list[Any]:
        v = case.wrapped(framework) | {"padded_offsets": wrap(framework, np.asarray([end], np.int32))}
        options = FP8 | {"use_single_group_runtime_offsets": single}
        dprob = wrap(framework, np.zeros(case.m, np.float32))
        more = {"c_tensor": wrap(framework, c), "beta_tensor": beta, "dprob_tensor": dprob, "generate_dbias": True}
        found = (
            grouped.grouped_gemm_glu_forward(**v, **options),
            grouped.grouped_gemm_glu_backward(**v, **more, **options),
        )
        return [raw(x) for out in found for x in out if x is not None]

    wanted = results(case.m, single=False)
    for end in (0, 5):
        assert all(np.array_equal(a, b) for a, b in zip(results(end, single=True), wanted, strict=True))


def test_by_hand_backward() -> None:
    """A = 1.5, B = 2 on 32 elements, scales 2 and 1/2: S = 96."""
    a, b = np.full((2, 32), 1.5, ml_dtypes.float8_e4m3fn), np.full((1, 32, 32), 2.0, ml_dtypes.float8_e4m3fn)
    sfa, sfb = (np.full((1, 1, 1, 32, 4, 4), x, ml_dtypes.float8_e8m0fnu) for x in (2.0, 0.5))
    one = np.ones(1, np.float32)
    v: dict[str, Any] = {
        "a_tensor": a, "b_tensor": b, "sfa_tensor": sfa, "sfb_tensor": sfb, "alpha_tensor": one / 2,
        "padded_offsets": np.asarray([2], np.int32), "prob_tensor": np.asarray([0.5, 0], np.float32),
        "norm_const_tensor": one,
    }  # fmt: skip
    # alpha squared: R = 24, and 12 with prob; beta 2: a gate of 128 is open, up is 3.
    c = joined(np.full((2, 32), 64.0), np.full((2, 32), 1.5)).astype(np.float32)
    out = grouped.grouped_gemm_swiglu_backward(**v, c_tensor=c, beta_tensor=2 * one, **FP8)
    # 36 / 448 rounds up to 1/8, 36 * 8 = 288; 1536 / 448 to 4, 1536 / 4 = 384. Row 1's prob is 0.
    assert out["d_row_tensor"].astype(np.float64).tolist() == [[288.0] * 32 + [384.0] * 32, [0.0] * 64]
    assert plain_scales(out["sfd_row_tensor"], 2, 2).tolist() == [[0.125, 4], [2.0**-127] * 2]
    assert np.array_equal(raw(out["d_col_tensor"]), raw(out["d_row_tensor"]))  # the largest of each column is in row 0
    assert plain_scales(out["sfd_col_tensor"], 64, 1)[:, 0].tolist() == [0.125] * 32 + [4.0] * 32
    assert out["dprob_tensor"].tolist() == [24.0 * 3 * 128 * 32] * 2  # without prob
    # Squared ReLU: alpha once, g = 48; C = 3 and -3, prob 1/2.
    c = np.where(np.arange(32) < 16, 3.0, -3.0).astype(np.float32)[None].repeat(2, 0)
    out = grouped.grouped_gemm_srelu_backward(**v, c_tensor=c, generate_dbias=True, **FP8)
    assert out["d_row_tensor"].astype(np.float64).tolist() == [[288.0] * 16 + [0.0] * 16, [0.0] * 32]  # 144, scale 1/2
    assert out["dbias_tensor"][0, :, 0].tolist() == [144.0] * 16 + [0.0] * 16
    assert out["d_srelu_tensor"].astype(np.float64).tolist() == [[288.0] * 16 + [0.0] * 16, [0.0] * 32]  # 4.5 * 64
    assert plain_scales(out["sfd_col_d_srelu_tensor"], 32, 1)[0, 0] == 2.0**-6
    assert out["dprob_tensor"].tolist() == [9.0 * 48 * 16] * 2


def nan_codes(x: Any) -> Any:
    return np.isnan(numbers(x))


@frameworks
@pytest.mark.parametrize("name", ["glu", "dglu", "srelu", "dsrelu", "quant"])
def test_nan_reaches_what_depends_on_it(framework: str, name: str) -> None:
    case = Case("mxfp8_e4m3", 128)
    case.a[50, 5] = 0x7F  # a row of the last expert, in the second block of rows
    v, c = case.wrapped(framework), kept(case, 256 if name == "dglu" else 128)
    c = np.nan_to_num(c)
    more: dict[str, Any] = {"c_tensor": wrap(framework, c)} if name.startswith("d") else {}
    if name == "dglu":
        more["beta_tensor"] = None
        out = grouped.grouped_gemm_swiglu_backward(**v, **more, **FP8)
    elif name == "dsrelu":
        c[50] = np.abs(c[50]) + 1  # squared ReLU is 0 below 0, and NaN times 0 is NaN all the same
        out = grouped.grouped_gemm_srelu_backward(**v, c_tensor=wrap(framework, c), **FP8)
    else:
        out = getattr(grouped, f"grouped_gemm_{name}_forward")(**v, **FP8)
    d = out["d_row_tensor" if name.startswith("d") else "d_tensor"]
    row = np.arange(case.m) == 50
    assert np.array_equal(nan_codes(d), row[:, None] & np.ones(d.shape, bool))
    block = (np.arange(case.m) // 32 == 50 // 32)[:, None]
    assert np.array_equal(nan_codes(out["d_col_tensor"]), block & np.ones(d.shape, bool))
    width = d.shape[1]
    rows = plain_scales(raw(out["sfd_row_tensor"]), case.m, width // 32)
    assert np.array_equal(rows == 2.0**128, row[:, None] & np.ones(rows.shape, bool))  # byte 255
    if name.startswith("d"):
        assert np.array_equal(np.isnan(numbers(out["dprob_tensor"])), row)


@frameworks
def test_infinity_saturates_and_flushes_its_block(framework: str) -> None:
    case = ExactCase("mxfp8_e4m3", 64)
    case.alpha[:] = 1
    case.prob[:] = 1
    case.prob[3] = np.inf
    s = case.s.copy()
    out = grouped.grouped_gemm_quant_forward(**case.wrapped(framework), **FP8)
    d = numbers(out["d_tensor"])
    zero = s[3] == 0
    assert np.isnan(d[3])[zero.reshape(2, 32).any(1).repeat(32)].all()  # infinity times 0 is NaN, and so is its scale
    assert not np.isnan(np.delete(d, 3, 0)).any()
    half = grouped.grouped_gemm_quant_forward(**case.wrapped(framework), sf_vec_size=32)
    y = numbers(half["d_tensor"])[3]
    assert np.isnan(y[zero]).all()
    assert np.array_equal(y[~zero], np.sign(s[3][~zero]) * np.inf)


@frameworks
def test_nan_reaches_its_expert_s_amax(framework: str) -> None:
    case = Case("nvfp4", 64)
    case.prob[50] = np.nan  # a row of the last expert
    v = case.wrapped(framework)
    for name in ("glu", "srelu", "quant"):
        found = numbers(getattr(grouped, f"grouped_gemm_{name}_forward")(**v)["amax_tensor"])
        assert np.isnan(found)[:, 0].tolist() == [False, False, True], name
    back = grouped.grouped_gemm_swiglu_backward(**v, c_tensor=wrap(framework, kept(case, 128)), beta_tensor=None)
    assert np.isnan(numbers(back["amax_tensor"]))[..., 0].tolist() == [[False] * 2, [False] * 2, [True] * 2]
    back = grouped.grouped_gemm_srelu_backward(**v, c_tensor=wrap(framework, kept(case, 64)))
    assert np.isnan(numbers(back["amax_tensor"]))[:, 0].tolist() == [False, False, True]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["grouped_gemm_srelu_backward", "discrete_grouped_gemm_swiglu_backward"])
def test_dprob_is_added_to_the_buffer(framework: str, name: str) -> None:
    case = Case("mxfp8_e4m3", 64)
    v, owned = case.wrapped(framework), [[x.copy() for x in group] for group in (case.b, case.sfb)]
    v["c_tensor"] = wrap(framework, kept(case, 64 if "srelu" in name else 128))
    if "discrete" in name:
        pointers = [wrap(framework, np.asarray([x.ctypes.data for x in group])) for group in owned]
        v |= {"b_ptrs": pointers[0], "sfb_ptrs": pointers[1], "n": 64, "b_dtype": "float8_e4m3fn"}
        v["beta_tensor"] = wrap(framework, case.beta)
        del v["b_tensor"], v["sfb_tensor"]

    def from_(start: float) -> Any:
        buffer = wrap(framework, np.full(case.m, start, np.float32))
        assert getattr(grouped, name)(**v, dprob_tensor=buffer, **FP8)["dprob_tensor"] is buffer
        return np.asarray(buffer)

    begun = from_(64.0)
    assert np.array_equal(begun[case.inside], (64 + from_(0.0))[case.inside])
    assert (begun[~case.inside] == 64).all()  # not written
    del owned
