"""FP4 grouped GEMMs with a Hadamard transform: by hand, tiny and zero blocks, signs, bias, short groups."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe.core.codecs import E2M1, decode, unpack_fp4
from cudnn_fe_testkit.moe import halves, sigmoid
from cudnn_fe_testkit.scaled_gemm import numbers, wrap
from cudnn_fe_testkit.scaled_moe import Case, raw

grouped: Any = cudnn_fe.grouped  # operands are handed over by name
frameworks = pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
FP4: dict[str, Any] = {"d_dtype": "float4_e2m1fn", "rht_rowwise_dtype": "float4_e2m1fn"}
FP4 |= {"rht_colwise_dtype": "float4_e2m1fn"}


def hand(rows: int, n: int, prob: float) -> dict[str, Any]:
    """A = 1, B = 1 on 16 elements, scales 2 and 1/2: S = 16; alpha 1/2: 8, of gates and ups."""
    sfa, sfb = (np.full(512 * -(-r // 128), x, ml_dtypes.float8_e4m3fn) for r, x in ((rows, 2.0), (n, 0.5)))
    return {
        "a_tensor": np.full((rows, 8), 0x22, np.uint8), "b_tensor": np.full((1, n, 8), 0x22, np.uint8),
        "sfa_tensor": sfa, "sfb_tensor": sfb, "padded_offsets": np.asarray([rows], np.int32),
        "alpha_tensor": np.asarray([0.5], np.float32), "prob_tensor": np.full(rows, prob, np.float32),
    }  # fmt: skip


def codes(x: Any) -> Any:
    return np.asarray(decode(unpack_fp4(raw(x)), E2M1))


def test_maxima_by_hand() -> None:
    v = hand(20, 64, 0.5)
    out = grouped.grouped_gemm_glu_hadamard_forward(**v, act_func="srelu")
    assert (numbers(out["c_tensor"]) == 8).all()
    assert (numbers(out["d_tensor"]) == 32).all()
    assert out["amax_tensor"].tolist() == [[32.0]]
    assert out["post_rht_amax_tensor"].tolist() == [[32 * 16 / 4]]  # of the first block; the second has 4 rows
    v["padded_offsets"] = np.asarray([4], np.int32)
    short = grouped.grouped_gemm_glu_hadamard_forward(**v, act_func="srelu")
    assert short["post_rht_amax_tensor"].tolist() == [[32 * 4 / 4]]
    v["alpha_tensor"][:] = -0.5
    none = grouped.grouped_gemm_glu_hadamard_forward(**v, act_func="srelu")
    assert none["amax_tensor"].tolist() == none["post_rht_amax_tensor"].tolist() == [[0.0]]


def test_quantised_by_hand() -> None:
    v = hand(64, 512, 0.25)
    out = grouped.grouped_gemm_glu_hadamard_quant_forward(**v, **FP4, glu_limit=4.0, norm_const=3.0, rht_norm_const=0.5)
    # Both halves are clamped to 4: 4 * 4 sigmoid(4) / 4 is 3.928, which bfloat16 rounds to 3.9219.
    d = 3.921875
    # 3.9219 / 6 * 3 is 1.961, whose nearest E4M3 value is 2: 3.9219 * 3 / 2 is 5.88, and 6 the nearest code.
    assert (codes(out["d_tensor"]) == 6).all()
    assert set(numbers(out["sfd_tensor"].astype(np.float32)).ravel()) == {2.0, 0.0}  # 0 pads 64 rows to 128
    # A block of equal values has its sum / 4 first and zeros else: 15.6875, / 6 / 2 is 1.307, nearest 1.25, code 6.
    assert 4 * d == 15.6875
    rows = codes(out["rht_rowwise_tensor"]).reshape(64, 16, 16)
    assert (rows[:, :, 0] == 6).all()
    assert not rows[:, :, 1:].any()
    columns = codes(out["rht_colwise_tensor"]).reshape(256, 4, 16)
    assert (columns[:, :, 0] == 6).all()
    assert not columns[:, :, 1:].any()
    assert (numbers(out["sfrht_colwise_tensor"].astype(np.float32)) == 1.25).all()


@frameworks
def test_blocks_without_a_scale_of_their_own(framework: str) -> None:
    """Zeros stay zeros; what is too small for the smallest scale saturates, of a scale of 0."""
    v = hand(128, 256, 0.0)
    prob = np.full(128, 2.0**-30, np.float32)
    prob[:16] = 0
    v["prob_tensor"], options = prob, dict(FP4)
    if framework == "torch":
        types: dict[str, Any] = {"a": torch.float4_e2m1fn_x2, "s": torch.float8_e4m3fn, "b": torch.float4_e2m1fn_x2}
        v = {key: torch.from_numpy(x.view(np.uint8) if x.itemsize == 1 else x) for key, x in v.items()}
        v = {key: x.view(types[key[0]]) if x.dtype == torch.uint8 else x for key, x in v.items()}
        options = dict.fromkeys(FP4, torch.float4_e2m1fn_x2)
    elif framework == "jax":
        v = {key: wrap("jax", x) for key, x in v.items()}
    out = grouped.grouped_gemm_glu_hadamard_quant_forward(**v, **options)
    d, rows = codes(out["d_tensor"]), codes(out["rht_rowwise_tensor"]).reshape(128, 8, 16)
    columns = codes(out["rht_colwise_tensor"]).reshape(128, 8, 16)
    assert not d[:16].any()
    assert not rows[:16].any()
    assert not columns[:, 0].any()
    assert (d[16:] == 6).all()
    assert (rows[16:, :, 0] == 6).all()
    assert (columns[:, 1:, 0] == 6).all()
    for name in ("sfd", "sfrht_rowwise", "sfrht_colwise"):
        assert not raw(out[f"{name}_tensor"]).any()


def test_a_negative_zero_becomes_positive() -> None:
    v = hand(16, 64, -0.0)
    out = grouped.grouped_gemm_glu_hadamard_quant_forward(**v)
    assert not raw(out["d_tensor"]).any()
    plain = grouped.grouped_gemm_glu_hadamard_quant_forward(**v, act_func="srelu")
    assert (raw(plain["d_tensor"]).view(np.uint16) == 0x8000).all()  # of gated activations alone


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["", "_quant"])
def test_bias_and_short_groups(framework: str, name: str) -> None:
    case = Case("nvfp4", 128, "one row")
    v = {key: x for key, x in case.wrapped(framework).items() if key != "norm_const_tensor"}
    more: dict[str, Any] = {"situ_beta1": 2.0, "situ_beta2": 8.0, "act_func": "situglu"} if not name else {}
    out = getattr(grouped, f"grouped_gemm_glu_hadamard{name}_forward")(
        **v, bias_tensor=wrap(framework, case.bias), c_dtype="float32", **more
    )
    x = (case.s * case.rows(case.alpha) + case.rows(case.bias.T)) * case.inside[:, None]
    bound = case.bound * np.abs(case.rows(case.alpha)) + 2.0**-22 * (np.abs(case.s) + np.abs(x) + 4)
    assert (np.abs(numbers(out["c_tensor"]) - x) <= bound).all()
    gate, up = halves(x)
    y = sigmoid(gate) * gate * up if name else 2 * 8 * np.tanh(gate / 2) * sigmoid(gate) * np.tanh(up / 8)
    y = y * case.prob.astype(np.float64)[:, None]
    assert np.abs(numbers(out["d_tensor"]) - y).max() <= 2.0**-8 * np.abs(y).max()


@frameworks
def test_nan_reaches_what_depends_on_it(framework: str) -> None:
    case = Case("nvfp4", 128, "atoms", k=32)
    case.prob[200] = np.nan
    v = {key: x for key, x in case.wrapped(framework).items() if key != "norm_const_tensor"}
    out = grouped.grouped_gemm_glu_hadamard_forward(**v)
    row = np.arange(case.m) == 200
    assert np.array_equal(np.isnan(numbers(out["d_tensor"])).any(1), row)
    assert not np.isnan(numbers(out["c_tensor"])).any()  # before prob
    for key in ("amax_tensor", "post_rht_amax_tensor"):
        assert np.isnan(numbers(out[key]))[:, 0].tolist() == [False, False, True]
    out = grouped.grouped_gemm_glu_hadamard_quant_forward(**v, rht_rowwise_dtype="bfloat16")
    for key in ("d_tensor", "rht_rowwise_tensor"):
        assert np.array_equal(np.isnan(numbers(out[key])).any(1), row)
