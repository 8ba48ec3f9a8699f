"""Block-scaled grouped GEMMs that go forward, against float64, in every format and framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe_testkit.moe import halves, sigmoid
from cudnn_fe_testkit.scaled_gemm import KINDS, numbers
from cudnn_fe_testkit.scaled_moe import Case, check_results, raw

grouped: Any = cudnn_fe.grouped  # operands are handed over by name
N = 192
KEYS = ["c_tensor", "d_tensor", "d_col_tensor", "amax_tensor", "sfd_row_tensor", "sfd_col_tensor"]
FORMATS = [("numpy", kind) for kind in KINDS] + [("torch", "mxfp8_e4m3"), ("torch", "nvfp4"), ("jax", "mxfp8_e5m2")]
formats = pytest.mark.parametrize(("framework", "kind"), FORMATS)


def options_of(case: Case) -> dict[str, Any]:
    d_dtype = "bfloat16" if case.fp4 else "float8_e4m3fn"
    return {"c_dtype": "float32", "d_dtype": d_dtype, "sf_vec_size": case.format.block}


def activated(act: str, x: Any) -> Any:
    """The definition, in float64."""
    gate, up = halves(x)
    if act == "swiglu":
        return sigmoid(gate) * gate * up
    if act == "situglu":
        return 4 * 25 * np.tanh(gate / 4) * sigmoid(gate) * np.tanh(up / 25)
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return sigmoid(1.702 * gate) * gate * (up + 1)


@formats
def test_swiglu(framework: str, kind: str) -> None:
    case = Case(kind, N)
    options = options_of(case)
    out = grouped.grouped_gemm_swiglu_forward(**case.wrapped(framework), **options)
    assert list(out.keys()) == KEYS
    x, bound = case.s * case.rows(case.alpha), case.bound * np.abs(case.rows(case.alpha)) + 2.0**-22 * np.abs(case.s)
    assert (np.abs(numbers(out["c_tensor"]) - x) <= bound).all()
    prob = case.prob.astype(np.float64)[:, None]
    wanted = activated("swiglu", x) * prob
    # |d swiglu| <= 1.1 |up| |d gate| + |gate| |d up|, and a few float32 operations.
    gate, up = halves(np.abs(x))
    e_gate, e_up = halves(bound)
    error = (1.1 * up * e_gate + gate * e_up + e_gate * e_up + 8 * 2.0**-24 * gate * up) * np.abs(prob)
    check_results(case, out, wanted, error, options["d_dtype"])


@pytest.mark.parametrize("act", ["geglu", "situglu"])
@pytest.mark.parametrize(
    ("framework", "d_dtype"), [("numpy", "float8_e5m2"), ("torch", "bfloat16"), ("torch", "float16")]
)
def test_glu(framework: str, d_dtype: str, act: str) -> None:
    case = Case("mxfp8_e4m3", N, seed=1)
    v = case.wrapped(framework)
    bias = torch.from_numpy(case.bias) if framework == "torch" else case.bias
    options = options_of(case) | {"d_dtype": d_dtype}
    out = grouped.grouped_gemm_glu_forward(**v, bias_tensor=bias, act_func=act, **options)
    assert list(out.keys()) == KEYS
    x = case.s * case.rows(case.alpha) + case.rows(case.bias.T)
    bound = case.bound * np.abs(case.rows(case.alpha)) + 2.0**-22 * (np.abs(case.s) + np.abs(case.rows(case.bias.T)))
    bound *= case.inside[:, None]
    assert (np.abs(numbers(out["c_tensor"]) - x * case.inside[:, None]) <= bound).all()
    prob = case.prob.astype(np.float64)[:, None]
    gate, up = halves(np.abs(x))
    e_gate, e_up = halves(bound)
    error = (2 * (up + 1) * e_gate + 2 * (gate + 1) * e_up + 16 * 2.0**-24 * (gate + 1) * (up + 1)) * np.abs(prob)
    check_results(case, out, activated(act, x) * prob, error, d_dtype)
    assert (out["amax_tensor"] is None) == (d_dtype == "float8_e5m2")


@formats
@pytest.mark.parametrize("clamp", [None, 2.5])
def test_srelu(framework: str, kind: str, clamp: float | None) -> None:
    if framework == "jax" and clamp is None:
        pytest.skip("one compilation says all")
    case = Case(kind, 70, seed=2)
    options = options_of(case)
    out = grouped.grouped_gemm_srelu_forward(**case.wrapped(framework), tanh_clamp_scale=clamp, **options)
    assert list(out.keys()) == KEYS
    x, bound = case.s * case.rows(case.alpha), case.bound * np.abs(case.rows(case.alpha)) + 2.0**-22 * np.abs(case.s)
    assert (np.abs(numbers(out["c_tensor"]) - x) <= bound).all()
    r, prob = np.maximum(x, 0), case.prob.astype(np.float64)[:, None]
    wanted = (r if clamp is None else clamp * np.tanh(r / clamp)) ** 2 * prob
    # tanh's slope is at most 1; a clamped value errs by some units of the clamp too.
    slope = 2 * (r + bound) * bound + 16 * 2.0**-24 * (r * r if clamp is None else clamp * (r + 1))
    check_results(case, out, wanted, slope * np.abs(prob), options["d_dtype"])


@formats
@pytest.mark.parametrize("with_bias", [False, True])
def test_quant(framework: str, kind: str, with_bias: bool) -> None:
    if framework == "jax" and with_bias:
        pytest.skip("one compilation says all")
    case = Case(kind, 70, seed=3)
    v = case.wrapped(framework)
    options = options_of(case)
    del options["c_dtype"]
    row_scale = np.linspace(-2, 2, case.m).astype(np.float32)
    v["row_scale_tensor"] = torch.from_numpy(row_scale) if framework == "torch" else row_scale
    if with_bias:
        v["bias_tensor"] = torch.from_numpy(case.bias) if framework == "torch" else case.bias
    out = grouped.grouped_gemm_quant_forward(**v, **options)
    assert list(out.keys()) == KEYS[1:]
    prob = case.prob.astype(np.float64)[:, None]
    factor = case.rows(case.alpha) * row_scale.astype(np.float64)[:, None] * (1 if with_bias else prob)
    wanted = case.s * factor
    bound = case.bound * np.abs(factor) + 2.0**-21 * np.abs(wanted)
    if with_bias:
        shift = case.rows(case.bias.T) * prob
        wanted, bound = wanted + shift, bound + 2.0**-22 * np.abs(shift)
    check_results(case, out, wanted, bound, options["d_dtype"])


def test_quant_without_prob_amax_and_offsets() -> None:
    case = Case("mxfp8_e4m3", 70, "one expert")
    case.a[~case.inside] = 0x38  # all rows belong to the expert here
    case.sfa[:] = 127
    v = {name: x for name, x in case.wrapped("numpy").items() if name != "prob_tensor"}
    d = np.zeros((case.m, 70), np.float16)
    out = grouped.grouped_gemm_quant_forward(
        **v, d_dtype="float16", sf_vec_size=32, use_single_group_runtime_offsets=True, generate_amax=False, d_tensor=d
    )
    assert out["d_tensor"] is d
    assert out["amax_tensor"] is None
    wanted = case.a.view("float8_e4m3fn").astype(np.float64) @ case.wide_b[0].T * case.alpha[0]
    assert (np.abs(d - wanted) <= 2.0**-10 * np.abs(wanted) + 1e-3).all()


def exact_case(framework: str) -> dict[str, Any]:
    """Small integers: all products, sums and scalings are exact, so that every framework gives the same bits."""
    case = Case("mxfp8_e4m3", 160, "atoms")
    rng = np.random.default_rng(5)
    small = np.asarray([0x00, 0x38, 0xB8, 0x40, 0xC0, 0x44], np.uint8)  # 0, 1, -1, 2, -2, 3
    case.a, case.b = (rng.choice(small, x.shape) for x in (case.a, case.b))
    case.a[:32] = 0  # blocks of zeros along rows and columns
    case.sfa[:], case.sfb[:] = 127, 128
    case.alpha = np.asarray([1, 1, -0.5], np.float32)
    case.prob = rng.choice(np.asarray([0.25, 1, -2], np.float32), case.m)
    case.norm = np.asarray([0.5], np.float32)
    return case.wrapped(framework)


@pytest.mark.parametrize("by_expert", [False, True])
@pytest.mark.parametrize("d_dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_formats_are_bit_equal_in_every_framework(d_dtype: str, by_expert: bool) -> None:
    options = {"d_dtype": d_dtype, "sf_vec_size": 32, "discrete_col_sfd": by_expert}
    names = ("numpy", "torch", "jax") if by_expert and d_dtype == "float8_e4m3fn" else ("numpy", "torch")
    found = [grouped.grouped_gemm_quant_forward(**exact_case(name), **options) for name in names]
    for key in ("d_tensor", "d_col_tensor", "sfd_row_tensor", "sfd_col_tensor"):
        first, *others = (raw(out[key]) for out in found)
        assert all(np.array_equal(first, other) for other in others), key
    rows, columns = (raw(found[0][f"sfd_{name}_tensor"]) for name in ("row", "col"))
    assert (rows.reshape(3, 2, 32, 4, 4)[0, :, :, 0] == 0).all()  # the zero blocks of the first 32 rows
    # By hand, with exact arithmetic: the documented offset of every column scale, expert by expert or not.
    y = np.asarray(found[0]["d_col_tensor"]).astype(np.float64)
    limit = {"float8_e4m3fn": 448, "float8_e5m2": 128}[d_dtype]
    v = exact_case("numpy")
    wide = grouped.grouped_gemm_quant_forward(**v, d_dtype="float16", sf_vec_size=32)["d_tensor"].astype(np.float64)
    begins = [0, 128, 128]
    for n in (0, 31, 127, 128, 159):
        for block in range(12):
            amax = np.abs(wide[32 * block : 32 * block + 32, n]).max()
            byte = 0 if amax == 0 else int(np.ceil(np.log2(amax * 0.5 / limit))) + 127
            begin = begins[0] if block < 4 else begins[2]
            count = (128 if block < 4 else 256) if by_expert else 384
            local = block - (begin // 32 if by_expert else 0)
            base = 512 * (begin // 128) * 2 if by_expert else 0
            offset = base + 512 * (n // 128 * (count // 128) + local // 4) + 16 * (n % 32) + 4 * (n % 128 // 32)
            assert columns.reshape(-1)[offset + local % 4] == byte
            factor = 2.0 ** (127 - byte) * 0.5 if byte else 0
            scaled = wide[32 * block : 32 * block + 32, n] * factor
            assert (np.abs(scaled - y[32 * block : 32 * block + 32, n]) <= 2.0**-3 * np.abs(scaled)).all()


def test_by_hand() -> None:
    """A = 1.5, B = 2 on 32 elements, scales 2 and 1/2: S = 96; alpha 1/4: 24."""
    import ml_dtypes

    a, b = np.full((2, 32), 1.5, ml_dtypes.float8_e4m3fn), np.full((1, 64, 32), 2.0, ml_dtypes.float8_e4m3fn)
    sfa, sfb = (np.full((1, 1, 1, 32, 4, 4), x, ml_dtypes.float8_e8m0fnu) for x in (2.0, 0.5))
    ends, alpha, prob = np.asarray([2], np.int32), np.asarray([0.25], np.float32), np.asarray([0.5, 0], np.float32)
    one = np.ones(1, np.float32)
    out = grouped.grouped_gemm_srelu_forward(a, b, sfa, sfb, ends, alpha, prob_tensor=prob, sf_vec_size=32)
    assert out["c_tensor"].astype(np.float32).tolist() == [[24.0] * 64] * 2
    assert out["d_tensor"].astype(np.float32).tolist() == [[288.0] * 64, [0.0] * 64]  # 24 * 24 / 2, and prob 0
    assert out["amax_tensor"].tolist() == [[288.0]]
    out = grouped.grouped_gemm_quant_forward(
        a, sfa, ends, alpha, b, sfb, norm_const_tensor=one, d_dtype="float8_e4m3fn", sf_vec_size=32
    )
    # 24 / 448 rounds up to 2**-4, and 24 * 16 = 384 is an E4M3 value.
    assert out["d_tensor"].astype(np.float32).tolist() == [[384.0] * 64] * 2
    assert raw(out["sfd_row_tensor"]).reshape(-1)[:2].tolist() == [123, 123]
    glu = grouped.grouped_gemm_swiglu_forward(a, b, sfa, sfb, ends, alpha, one, prob, d_dtype="float16", sf_vec_size=32)
    assert glu["amax_tensor"].tolist() == [[288.0]]  # sigmoid(24) is 1 in float32
    # A 16-bit D of FP8 operands is scaled to at most 1: 288 -> scale 512.
    assert glu["d_tensor"][0].tolist() == [288 / 512] * 32
    assert not glu["d_tensor"][1].any()  # prob 0, of a C that is not
    assert raw(glu["sfd_row_tensor"]).reshape(-1)[0] == 127 + 9


def test_nan_reaches_what_depends_on_it() -> None:
    case = Case("mxfp8_e4m3", 64)
    case.a[3, 5] = 0x7F
    out = grouped.grouped_gemm_srelu_forward(**case.wrapped("numpy"), d_dtype="bfloat16", sf_vec_size=32)
    d = numbers(out["d_tensor"])
    assert np.isnan(d[3]).all()
    assert not np.isnan(np.delete(d, 3, 0)).any()
    assert np.isnan(out["amax_tensor"]).tolist() == [[True], [False], [False]]
    assert out["amax_tensor"][1] == -np.inf  # no rows


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_forms(framework: str, rank: int) -> None:
    """Kernel and canonical forms of every operand give the same bits, in the form of A."""
    case = Case("mxfp8_e5m2", 128)
    v = case.wrapped(framework)
    options: dict[str, Any] = {"d_dtype": "float8_e4m3fn", "sf_vec_size": 32}
    plain = grouped.grouped_gemm_srelu_forward(**v, **options)
    turned = dict(v)
    if rank == 3:
        turned |= {"a_tensor": v["a_tensor"][:, :, None], "prob_tensor": v["prob_tensor"][:, None, None]}
        transpose = (lambda x, dims: x.permute(dims)) if framework == "torch" else (lambda x, dims: x.transpose(dims))
        turned["b_tensor"] = transpose(v["b_tensor"], (1, 2, 0))
        turned |= {name: transpose(v[name], (3, 4, 1, 5, 2, 0)) for name in ("sfa_tensor", "sfb_tensor")}
    else:
        turned |= {name: v[name].reshape(-1, 16) for name in ("sfa_tensor", "sfb_tensor")}
    out = grouped.grouped_gemm_srelu_forward(**turned, **options)
    for key in ("c_tensor", "d_tensor", "d_col_tensor"):
        assert out[key].ndim == rank
        assert np.array_equal(raw(out[key]).reshape(-1), raw(plain[key]).reshape(-1))
    shape = (32, 4, 2, 4, 1, 1) if rank == 3 else (1, 2, 1, 32, 4, 4)
    assert tuple(out["sfd_row_tensor"].shape) == shape
    sfd = raw(out["sfd_row_tensor"])
    sfd = sfd.transpose(5, 2, 4, 0, 1, 3) if rank == 3 else sfd
    assert np.array_equal(sfd, raw(plain["sfd_row_tensor"]))


@pytest.mark.parametrize("n_major", [False, True])
def test_discrete(n_major: bool) -> None:
    case = Case("mxfp8_e4m3", 128)
    v = case.wrapped("torch")
    options: dict[str, Any] = {"d_dtype": "float8_e4m3fn", "sf_vec_size": 32, "c_dtype": "float32"}
    wanted = grouped.grouped_gemm_swiglu_forward(**v, **options)
    shared = [matrix.T.contiguous() if n_major else matrix.clone() for matrix in v.pop("b_tensor").view(torch.uint8)]
    scales = [one.clone() for one in v.pop("sfb_tensor").view(torch.uint8)]
    b_ptrs, sfb_ptrs = (torch.tensor([x.data_ptr() for x in group]) for group in (shared, scales))
    call = {"n": 128, "b_dtype": torch.float8_e4m3fn, "b_major": "n" if n_major else "k"}
    out = grouped.discrete_grouped_gemm_swiglu_forward(**v, b_ptrs=b_ptrs, sfb_ptrs=sfb_ptrs, **call, **options)
    for key in ("c_tensor", "d_tensor", "sfd_col_tensor"):
        assert np.array_equal(raw(out[key]), raw(wanted[key]))
    unified = grouped.grouped_gemm_glu_forward(**v, b_ptrs=b_ptrs, sfb_ptrs=sfb_ptrs, **call, **options)
    assert np.array_equal(raw(unified["d_tensor"]), raw(wanted["d_tensor"]))


def test_no_rows_and_no_products() -> None:
    import ml_dtypes

    fp8, e8m0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
    one = np.ones(1, np.float32)
    for m, k in ((0, 32), (3, 0)):
        scales = (np.ones(512 * -(-m // 128) * -(-k // 128), e8m0), np.ones(512 * -(-k // 128), e8m0))
        out = grouped.grouped_gemm_srelu_forward(
            np.ones((m, k), fp8), np.ones((1, 64, k), fp8), *scales, np.asarray([m], np.int32), one,
            prob_tensor=np.ones(m, np.float32), sf_vec_size=32,
        )  # fmt: skip
        assert out["d_tensor"].shape == (m, 64)
        assert not out["d_tensor"].any()
        assert out["amax_tensor"].tolist() == [[-np.inf if m == 0 else 0.0]]
