"""GEMM + SwiGLU in block-scaled mode: values, result types, quantised C, tracing, the class, refusals."""

# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn
import cudnn_fe.gemm
from cudnn_fe.core.block_scale import atom_view, block_format, quantize, swizzle_scales
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError
from cudnn_fe_testkit.scaled_gemm import KINDS, Case, K, L, M, batch_of, numbers, wrap

gemm: Any = cudnn_fe.gemm  # operands are handed over as lists
N = 128
ALPHA = 0.25
Cases = dict[tuple[str, int], Case]


@pytest.fixture(scope="module")
def cases() -> Cases:
    return {(kind, batch): Case(kind, batch=batch, n=N) for kind in KINDS for batch in (1, L)}


def pairs(s: Any) -> tuple[Any, Any]:
    """Columns of values and of gates, by their documented indices."""
    value = [64 * (c // 32) + c % 32 for c in range(N // 2)]
    return s[:, value], s[:, [c + 32 for c in value]]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("kind", KINDS)
def test_values(cases: Cases, framework: str, kind: str) -> None:
    case = cases[kind, batch_of(framework)]
    a, b, sfa, sfb = case.operands(framework)
    options: dict[str, Any] = {"sfa_tensor": sfa, "sfb_tensor": sfb, "sf_vec_size": case.format.block}
    out = gemm.gemm_swiglu_forward(a, b, ALPHA, ab12_dtype="float32", c_dtype="float32", **options)
    assert list(out.keys()) == ["ab12_tensor", "c_tensor", "sfc_tensor", "amax_tensor"]
    s, bound = ALPHA * case.s, ALPHA * case.bound
    assert (np.abs(numbers(out["ab12_tensor"]) - s) <= bound).all()
    (value, gate), (value_bound, gate_bound) = pairs(s), pairs(bound)
    silu = gate / (1 + np.exp(-gate))
    # The slope of silu is at most 1.1; four roundings of float32 follow, those of the exponential included.
    c_bound = value_bound * np.abs(silu) + 1.1 * gate_bound * (np.abs(value) + value_bound)
    c_bound = c_bound + 8 * 2.0**-24 * np.abs(value * silu) + 1e-30
    assert (np.abs(numbers(out["c_tensor"]) - value * silu) <= c_bound).all()
    assert out["sfc_tensor"] is None
    assert out["amax_tensor"] is None
    half = gemm.gemm_swiglu_forward(a, b, ALPHA, ab12_dtype="bfloat16", c_dtype="bfloat16", **options)
    assert (half["amax_tensor"] is None) == (not case.fp4)
    if case.fp4:
        assert half["amax_tensor"].shape == (1, 1, 1)
        assert half["amax_tensor"].item() == np.abs(numbers(out["c_tensor"])).max()  # before it is rounded


@pytest.mark.parametrize("c_major", ["m", "n"])
@pytest.mark.parametrize("ab12_dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_result_types_round_once(cases: Cases, ab12_dtype: str, c_major: str) -> None:
    case = cases["nvfp4", L]
    a, b, sfa, sfb = case.operands("torch", atom=False)
    options: dict[str, Any] = {"sfa_tensor": sfa, "sfb_tensor": sfb, "c_major": c_major}
    full = gemm.gemm_swiglu_forward(a, b, c_dtype="float32", **options)
    out = gemm.gemm_swiglu_forward(a, b, ab12_dtype=ab12_dtype, c_dtype="float16", **options)
    limit = float(torch.finfo(getattr(torch, ab12_dtype)).max)
    wanted = np.clip(full["ab12_tensor"].numpy(), -limit, limit).astype(getattr(ml_dtypes, ab12_dtype, ab12_dtype))
    assert np.array_equal(numbers(out["ab12_tensor"]), wanted.astype(np.float64))
    assert torch.equal(out["c_tensor"], full["c_tensor"].half())
    strides = {"m": (1, M, M * N), "n": (N, 1, M * N)}
    assert out["ab12_tensor"].stride() == strides[c_major]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("c_dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_quantised_c(cases: Cases, framework: str, c_dtype: str) -> None:
    case = cases["mxfp8_e4m3", batch_of(framework)]
    norm = np.asarray([0.01], np.float32)
    a, b, sfa, sfb = case.operands(framework)
    options: dict[str, Any] = {"sfa_tensor": sfa, "sfb_tensor": sfb, "sf_vec_size": 32}
    full = gemm.gemm_swiglu_forward(a, b, c_dtype="float32", **options)["c_tensor"]
    out = gemm.gemm_swiglu_forward(a, b, c_dtype=c_dtype, norm_const_tensor=wrap(framework, norm), **options)
    wanted = quantize(np.asarray(full), block_format(c_dtype, "float8_e8m0fnu", 32), axis=1, norm=norm)
    results = (out["c_tensor"], out["sfc_tensor"])
    c, sfc = (x.view(torch.uint8).numpy() if framework == "torch" else np.asarray(x).view(np.uint8) for x in results)
    assert np.array_equal(c, wanted.codes)
    packed = np.asarray(swizzle_scales(wanted.scales.transpose(2, 0, 1)))
    assert np.array_equal(sfc, packed if framework == "jax" else atom_view(packed))


def test_by_hand() -> None:
    # A = 1.5, B = 2 on 32 elements, scales 2 and 1/2: S = 96; a gate of 96 is open.
    a = np.full((1, 32, 1), 1.5, ml_dtypes.float8_e4m3fn)
    b = np.full((64, 32, 1), 2.0, ml_dtypes.float8_e4m3fn)
    sfa, sfb = (np.full((1, 1, 1, 32, 4, 4), x, ml_dtypes.float8_e8m0fnu) for x in (2.0, 0.5))
    out = gemm.gemm_swiglu_forward(a, b, sfa_tensor=sfa, sfb_tensor=sfb, sf_vec_size=32, c_dtype="float32")
    assert (out["ab12_tensor"] == 96).all()
    assert (out["c_tensor"] == 9216).all()


def test_jax_entry_under_jit_and_compile(cases: Cases) -> None:
    case = cases["mxfp8_e4m3", 1]
    a, b, sfa, sfb = case.operands("jax")

    def forward(*xs: Any) -> Any:
        return gemm.gemm_swiglu_jax_forward(*xs[:2], sfa_tensor=xs[2], sfb_tensor=xs[3], sf_vec_size=32)

    ab12, c = jax.jit(forward)(a, b, sfa, sfb)
    assert (np.abs(numbers(ab12) - case.s) <= case.bound).all()
    assert (ab12.shape, c.shape) == ((M, N, 1), (M, N // 2, 1))
    flat = forward(a[:, :, 0], b[:, :, 0], sfa, sfb)
    assert jnp.array_equal(flat[1], c[:, :, 0])
    x, y, sfx, sfy = cases["nvfp4", 1].operands("jax")
    both = gemm.gemm_swiglu_jax_forward(x, y, sfa_tensor=sfx, sfb_tensor=sfy, c_dtype="bfloat16")
    assert len(both) == 2
    with pytest.raises(DTypeError, match="returns scales too"):
        gemm.gemm_swiglu_jax_forward(a, b, sfa_tensor=sfa, sfb_tensor=sfb, c_dtype="float8_e4m3fn", sf_vec_size=32)

    def run(*xs: Any) -> Any:
        return gemm.gemm_swiglu_forward(*xs[:2], sfa_tensor=xs[2], sfb_tensor=xs[3], sf_vec_size=32)["c_tensor"]

    tensors = case.operands("torch")
    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*tensors), run(*tensors))


@pytest.mark.parametrize("kind", ["mxfp4", "mxfp8_e4m3"])
def test_class_in_both_modes(cases: Cases, kind: str) -> None:
    case = cases[kind, L]
    a, b, sfa, sfb = case.operands("torch")

    def matrix(columns: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(L, M, columns, dtype=dtype).permute(1, 2, 0)

    options: dict[str, Any] = {"alpha": ALPHA, "sf_vec_size": 32}
    scales: dict[str, Any] = {"sfa_tensor": sfa, "sfb_tensor": sfb}
    if kind == "mxfp4":
        ab12, c, amax = matrix(N, torch.float32), matrix(N // 2, torch.bfloat16), torch.full((1,), 1e9)
        extra: dict[str, Any] = {"amax_tensor": amax}
    else:
        ab12, c = matrix(N, torch.bfloat16), matrix(N // 2, torch.float8_e4m3fn)
        sfc = torch.zeros(L, 2, 1, 32, 4, 4, dtype=torch.float8_e8m0fnu)
        extra = {"sfc_tensor": sfc, "norm_const_tensor": torch.tensor([0.5])}
    samples = {f"sample_{name.removesuffix('_tensor')}": x for name, x in {**scales, **extra}.items()}
    op = cudnn.GemmSwigluSm100(a, b, ab12, c, **samples, **options)
    op.compile()
    op.execute(a, b, ab12, c, **scales, **extra)
    norm = extra.get("norm_const_tensor")
    wanted = gemm.gemm_swiglu_forward(
        a, b, ab12_dtype=ab12.dtype, c_dtype=c.dtype, norm_const_tensor=norm, **scales, **options
    )
    assert torch.equal(ab12.float(), wanted[0].float())
    assert torch.equal(c.view(torch.uint8) if norm is not None else c, wanted[1].view(torch.uint8) if norm is not None
                       else wanted[1])  # fmt: skip
    if norm is None:
        assert amax.item() == 1e9  # the larger stays
        op.execute(a, b, ab12, c, **scales, amax_tensor=amax.fill_(-torch.inf))
        assert amax.item() == wanted[3].item()
        with pytest.raises(ShapeError, match="got 5 tensors"):
            op.execute(a, b, ab12, c, **extra)
    else:
        assert torch.equal(atom_view(sfc).view(torch.uint8), wanted[2].view(torch.uint8))
        with pytest.raises(OptionError, match="buffer for the scales"):
            cudnn.GemmSwigluSm100(a, b, ab12, c, sample_sfa=sfa, sample_sfb=sfb, sf_vec_size=32).check_support()
    with pytest.raises(OptionError, match="sfb_tensor: got None"):
        cudnn.GemmSwigluSm100(a, b, ab12, c, sample_sfa=sfa, **options).check_support()


def test_empty_and_nan(cases: Cases) -> None:
    case = Case("mxfp8_e4m3", n=N)
    case.a[3, 5, 1] = 0x7F
    a, b, sfa, sfb = case.operands("numpy")
    scales: dict[str, Any] = {"sfa_tensor": sfa, "sfb_tensor": sfb, "sf_vec_size": 32}
    out = gemm.gemm_swiglu_forward(a, b, **scales)
    bad = np.zeros((M, N // 2, L), bool)
    bad[3, :, 1] = True
    assert np.array_equal(np.isnan(out["c_tensor"]), bad)
    scales["sfa_tensor"] = sfa[:, :, :0]
    none = gemm.gemm_swiglu_forward(a[:0], b, **scales)
    assert none["c_tensor"].shape == (0, N // 2, L)


def test_refusals(cases: Cases) -> None:
    a, b, sfa, sfb = cases["mxfp8_e4m3", L].operands("numpy")
    scales: dict[str, Any] = {"sfa_tensor": sfa, "sfb_tensor": sfb, "sf_vec_size": 32}
    odd = np.asarray(swizzle_scales(np.ones((L, 96, -(-K // 32)), np.uint8))).view(ml_dtypes.float8_e8m0fnu)
    with pytest.raises(ShapeError, match="a multiple of 64"):
        gemm.gemm_swiglu_forward(a, b[:96], **{**scales, "sfb_tensor": odd})
    with pytest.raises(OptionError, match="norm_const_tensor: got None"):
        gemm.gemm_swiglu_forward(a, b, c_dtype="float8_e4m3fn", **scales)
    with pytest.raises(OptionError, match="sfa_tensor: got None"):
        gemm.gemm_swiglu_forward(a, b, norm_const_tensor=np.ones(1, np.float32))
    with pytest.raises(DTypeError, match="acc_dtype: got float16"):
        gemm.gemm_swiglu_forward(a, b, acc_dtype="float16", **scales)
    for option, value in (
        ("mma_tiler_mn", (64, 64)),
        ("mma_tiler_mn", (128, 48)),
        ("cluster_shape_mn", (3, 1)),
        ("sf_vec_size", 8),
        ("c_major", "k"),
        ("ab12_stages", 0),
    ):
        with pytest.raises(OptionError, match=f"{option}: got"):
            gemm.gemm_swiglu_forward(a, b, **scales | {option: value})
    with pytest.raises(OptionError, match="an even first extent"):
        gemm.gemm_swiglu_forward(a, b, mma_tiler_mn=(256, 128), cluster_shape_mn=(1, 1), **scales)
    with pytest.raises(DTypeError, match="ab12_dtype: got int8"):
        gemm.gemm_swiglu_forward(a, b, ab12_dtype="int8", **scales)
    with pytest.raises(OptionError, match="sfb_tensor: got None"):
        gemm.gemm_swiglu_forward(a, b, sfa_tensor=sfa)
    x, y, sfx, sfy = cases["nvfp4", L].operands("torch")
    with pytest.raises(DTypeError, match="no FP8 result of FP4"):
        gemm.gemm_swiglu_forward(x, y, c_dtype="float8_e4m3fn", sfa_tensor=sfx, sfb_tensor=sfy)
