"""Block-scaled GEMMs against float64, in every framework, format, layout and result type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn_fe.gemm
from cudnn_fe.core.block_scale import atom_view, block_format, quantize, swizzle_scales
from cudnn_fe.core.codecs import from_codes, pack_fp4, unpack_fp4
from cudnn_fe_testkit.scaled_gemm import KINDS, Case, K, L, M, N, batch_of, numbers, wrap

gemm: Any = cudnn_fe.gemm  # operands are handed over as lists
formats = pytest.mark.parametrize("kind", KINDS)
Cases = dict[tuple[str, int], Case]


@pytest.fixture(scope="module")
def cases() -> Cases:
    return {(kind, batch): Case(kind, batch=batch) for kind in KINDS for batch in (1, L)}


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@formats
def test_amax(cases: Cases, framework: str, kind: str) -> None:
    case = cases[kind, batch_of(framework)]
    out = gemm.gemm_amax_forward(*case.operands(framework), sf_vec_size=case.format.block)
    assert list(out.keys()) == ["c_tensor", "amax_tensor"]
    c = numbers(out["c_tensor"])
    assert c.shape == (M, N, case.batch)
    assert (np.abs(c - case.s) <= case.bound).all()
    assert out["amax_tensor"].shape == (1, 1, 1)
    assert out["amax_tensor"].item() == np.abs(c).max()


@pytest.mark.parametrize("c_major", ["m", "n"])
@pytest.mark.parametrize("c_dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_amax_result_types(cases: Cases, c_dtype: str, c_major: str) -> None:
    case = cases["mxfp8_e5m2", L]
    full = gemm.gemm_amax_forward(*case.operands("numpy"))["c_tensor"]
    out = gemm.gemm_amax_forward(*case.operands("torch", atom=False), c_major=c_major, c_dtype=c_dtype)
    limit = float(torch.finfo(getattr(torch, c_dtype)).max)
    wanted = np.clip(full, -limit, limit).astype(getattr(ml_dtypes, c_dtype, c_dtype)).astype(np.float64)
    # Both round once; their float32 sums may differ in the order of terms, so codes may be neighbours.
    step = float(torch.finfo(getattr(torch, c_dtype)).eps)
    assert (np.abs(numbers(out["c_tensor"]) - wanted) <= step * np.abs(wanted) + 2 * case.bound).all()
    assert out["c_tensor"].stride() == ((1, M, M * N) if c_major == "m" else (N, 1, M * N))
    assert out["amax_tensor"].item() == pytest.approx(np.abs(case.s).max(), abs=case.bound.max())


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_fp4_results_are_packed_along_n(framework: str) -> None:
    codes = np.asarray([0x0, 0x1, 0x2, 0x3, 0x4, 0x5, 0x6, 0x7, 0x9, 0xF], np.uint8)
    a = np.full((1, 16, 1), 0, np.uint8)
    a[0, 0, 0] = 0x02  # the first of 32 elements is 1
    b = np.zeros((10, 16, 1), np.uint8)
    b[:, 0, 0] = codes  # so that C is B's first column
    scales = np.full((1, 1, 1, 32, 4, 4), 127, np.uint8).view(ml_dtypes.float8_e8m0fnu)
    given: Any = [wrap(framework, x) for x in (a, b)]
    if framework == "torch":
        sf = torch.from_numpy(scales.view(np.uint8)).view(torch.float8_e8m0fnu)
        out = gemm.gemm_amax_forward(*given, sf, sf, c_dtype=torch.float4_e2m1fn_x2)["c_tensor"]
        assert out.dtype == torch.float4_e2m1fn_x2
        out = out.view(torch.uint8)
    else:
        out = gemm.gemm_amax_forward(*given, *[wrap(framework, scales)] * 2, c_dtype="uint8")["c_tensor"]
    assert np.asarray(out)[0, :, 0].tolist() == pack_fp4(codes).tolist()


@pytest.mark.parametrize("native", [True, False], ids=["float4", "uint8"])
def test_fp4_operands_of_numpy_may_be_unpacked(cases: Cases, native: bool) -> None:
    case = cases["nvfp4", L]
    a, b, sfa, sfb = case.operands("numpy")
    wanted = gemm.gemm_amax_forward(a, b, sfa, sfb, sf_vec_size=16)
    if native:
        a, b = (from_codes(unpack_fp4(x, axis=1), "float4_e2m1fn") for x in (a, b))
    got = gemm.gemm_amax_forward(a, b, sfa, sfb, sf_vec_size=16)
    assert np.array_equal(got["c_tensor"], wanted["c_tensor"])


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@formats
def test_srelu(cases: Cases, framework: str, kind: str) -> None:
    case = cases[kind, batch_of(framework)]
    alpha = -0.5
    options: dict[str, Any] = {"alpha": alpha, "sf_vec_size": case.format.block, "d_dtype": "float32"}
    prob, upstream = wrap(framework, case.prob), wrap(framework, case.upstream)
    operands = case.operands(framework)
    out = gemm.gemm_srelu_forward(*operands, prob, c_dtype="float32", **options)
    assert list(out.keys()) == ["c_tensor", "d_tensor", "amax_tensor", "sfd_tensor"]
    s, bound = alpha * case.s, abs(alpha) * case.bound
    assert (np.abs(numbers(out["c_tensor"]) - s) <= bound).all()
    r = np.maximum(s, 0)
    # (r + e)**2 - r**2, and the two roundings of the products.
    d_bound = ((2 * r + bound) * bound + 3 * 2.0**-24 * r * r) * np.abs(case.prob) + 1e-30
    assert (np.abs(numbers(out["d_tensor"]) - r * r * case.prob) <= d_bound).all()
    assert (out["amax_tensor"] is None) == (not case.fp4)
    if case.fp4:
        assert float(out["amax_tensor"][0]) == np.abs(numbers(out["d_tensor"])).max()
    assert out["sfd_tensor"] is None

    # The derivative, by torch's autograd in float64.
    wide_s = torch.tensor(s, requires_grad=True)
    wide_prob = torch.tensor(case.prob, dtype=torch.float64, requires_grad=True)
    (torch.relu(wide_s) ** 2 * wide_prob).backward(torch.tensor(case.upstream, dtype=torch.float64))
    back = gemm.gemm_srelu_backward(*operands[:2], upstream, *operands[2:], prob, **options)
    assert list(back.keys()) == ["d_tensor", "dprob_tensor", "amax_tensor", "sfd_tensor"]
    gradient = np.asarray(wide_s.grad)
    d_bound = 2 * (bound + 4 * 2.0**-24 * r) * np.abs(case.upstream * case.prob) + 1e-30
    assert (np.abs(numbers(back["d_tensor"]) - gradient) <= d_bound).all()
    terms = ((2 * r + bound) * bound + (N + 3) * 2.0**-24 * r * r) * np.abs(case.upstream)
    assert back["dprob_tensor"].shape == (M, 1, case.batch)
    assert (np.abs(numbers(back["dprob_tensor"]) - np.asarray(wide_prob.grad)) <= terms.sum(1, keepdims=True)).all()


def test_by_hand() -> None:
    # A = 1.5, B = 2 on 32 elements, scales 2 and 1/2: S = 96; alpha 1/4: 24; relu**2 * prob: 288.
    a = np.full((1, 32, 1), 1.5, ml_dtypes.float8_e4m3fn)
    b = np.full((1, 32, 1), 2.0, ml_dtypes.float8_e4m3fn)
    sfa, sfb = (np.full((1, 1, 1, 32, 4, 4), x, ml_dtypes.float8_e8m0fnu) for x in (2.0, 0.5))
    prob, upstream = np.full((1, 1, 1), 0.5, np.float32), np.full((1, 1, 1), 3.0, np.float32)
    assert gemm.gemm_amax_forward(a, b, sfa, sfb)["c_tensor"].item() == 96
    out = gemm.gemm_srelu_forward(a, b, sfa, sfb, prob, 0.25, sf_vec_size=32)
    assert (float(out["c_tensor"].item()), float(out["d_tensor"].item())) == (24, 288)
    back = gemm.gemm_srelu_backward(a, b, upstream, sfa, sfb, prob, 0.25, sf_vec_size=32)
    assert (float(back["d_tensor"].item()), back["dprob_tensor"].item()) == (72, 1728)
    negative = gemm.gemm_srelu_forward(a, b, sfa, sfb, prob, -0.25, sf_vec_size=32)
    assert (float(negative["c_tensor"].item()), float(negative["d_tensor"].item())) == (-24, 0)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("d_dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_quantised_d(cases: Cases, framework: str, d_dtype: str) -> None:
    case = cases["mxfp8_e4m3", batch_of(framework)]
    norm, prob = np.asarray([0.01], np.float32), wrap(framework, case.prob)
    operands = case.operands(framework)
    options: dict[str, Any] = {"sf_vec_size": 32, "norm_const_tensor": wrap(framework, norm)}
    full = gemm.gemm_srelu_forward(*operands, prob, d_dtype="float32", sf_vec_size=32)["d_tensor"]
    out = gemm.gemm_srelu_forward(*operands, prob, d_dtype=d_dtype, **options)
    wanted = quantize(np.asarray(full), block_format(d_dtype, "float8_e8m0fnu", 32), axis=1, norm=norm)
    d, sfd = out["d_tensor"], out["sfd_tensor"]
    got = d.view(torch.uint8).numpy() if framework == "torch" else np.asarray(d).view(np.uint8)
    assert np.array_equal(got, wanted.codes)
    packed = np.asarray(swizzle_scales(wanted.scales.transpose(2, 0, 1)))
    if framework == "jax":
        assert np.array_equal(np.asarray(sfd).view(np.uint8), packed)
        return
    assert tuple(sfd.shape) == (32, 4, 2, 4, 1, case.batch)
    scales = sfd.view(torch.uint8).numpy() if framework == "torch" else sfd.view(np.uint8)
    assert np.array_equal(scales, atom_view(packed))


def test_k_major_and_m_major_fp8_operands(cases: Cases) -> None:
    case = cases["mxfp8_e4m3", L]
    a, b, sfa, sfb = case.operands("torch")
    turned = [x.permute(2, 1, 0).contiguous().permute(2, 1, 0) for x in (a, b)]
    assert turned[0].stride() == (1, M, M * K)
    assert torch.equal(gemm.gemm_amax_forward(*turned, sfa, sfb)[0], gemm.gemm_amax_forward(a, b, sfa, sfb)[0])
