"""Block-scaled GEMMs: NaN, tracing, classes, empty extents, refusals, names."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn_fe.gemm
from cudnn_fe.core.block_scale import atom_view
from cudnn_fe.core.choose import choose
from cudnn_fe.core.device import Device
from cudnn_fe.core.errors import (
    DTypeError,
    NotCompiledError,
    NotYetSupportedError,
    OptionError,
    ShapeError,
    StrideError,
)
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.gemm import legacy_scaled as legacy
from cudnn_fe.gemm.amax.op import AMAX
from cudnn_fe_testkit.scaled_gemm import KINDS, Case, L, M, N, numbers

gemm: Any = cudnn_fe.gemm  # operands are handed over as lists
formats = pytest.mark.parametrize("kind", KINDS)
Cases = dict[tuple[str, int], Case]


@pytest.fixture(scope="module")
def cases() -> Cases:
    return {(kind, batch): Case(kind, batch=batch) for kind in KINDS for batch in (1, L)}


def test_nan_reaches_what_depends_on_it(cases: Cases) -> None:
    case = Case("mxfp8_e4m3")
    case.a[3, 5, 1] = 0x7F
    case.sfa[0, 0, 0, 7, 0, 0] = 0xFF  # row 7, first block, first batch
    operands = case.operands("numpy")
    out = gemm.gemm_srelu_forward(*operands, case.prob, c_dtype="float32", d_dtype="float32", sf_vec_size=32)
    back = gemm.gemm_srelu_backward(
        *operands[:2], case.upstream, *operands[2:], case.prob, d_dtype="float32", sf_vec_size=32
    )
    bad = np.zeros((M, N, L), bool)
    bad[3, :, 1] = bad[7, :, 0] = True
    for x in (out["c_tensor"], out["d_tensor"], back["d_tensor"]):
        assert np.array_equal(np.isnan(x), bad)
    assert np.array_equal(np.isnan(back["dprob_tensor"]), bad.any(1, keepdims=True))
    assert np.isnan(gemm.gemm_amax_forward(*operands)["amax_tensor"]).all()


def test_jax_entries_under_jit(cases: Cases) -> None:
    case = cases["mxfp8_e4m3", 1]
    operands = case.operands("jax")
    prob, upstream = jnp.asarray(case.prob), jnp.asarray(case.upstream)
    c, amax = jax.jit(gemm.gemm_amax_jax_forward)(*operands)
    assert (np.abs(numbers(c) - case.s) <= case.bound).all()
    assert amax.shape == (1, 1, 1)

    def forward(*xs: Any) -> Any:
        return gemm.gemm_srelu_jax_forward(*xs, c_dtype="float32", sf_vec_size=32)

    s, d = jax.jit(forward)(*operands, prob)
    eager = forward(*operands, prob)
    assert np.array_equal(np.asarray(d).view(np.uint16), np.asarray(eager[1]).view(np.uint16))
    assert (np.abs(numbers(s) - case.s) <= case.bound).all()

    def backward(a: Any, b: Any, *rest: Any) -> Any:
        return gemm.gemm_srelu_jax_backward(a, b, upstream, *rest, d_dtype="float32", sf_vec_size=32)

    got = jax.jit(backward)(*operands, prob)
    assert [x.shape for x in got] == [(M, N, 1), (M, 1, 1)]
    r = np.maximum(case.s, 0)
    assert np.allclose(got[0], 2 * r * case.upstream * case.prob, rtol=1e-4, atol=1e-2)
    with pytest.raises(DTypeError, match="returns scales too"):
        gemm.gemm_srelu_jax_forward(*operands, prob, d_dtype="float8_e4m3fn", sf_vec_size=32)


def test_torch_compile_sees_the_ops(cases: Cases) -> None:
    case = cases["mxfp8_e4m3", L]
    operands, prob = case.operands("torch"), torch.from_numpy(case.prob)

    def run(*xs: Any) -> Any:
        return gemm.gemm_srelu_forward(*xs, sf_vec_size=32)["d_tensor"]

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*operands, prob), run(*operands, prob))


@pytest.mark.parametrize("kind", ["mxfp8_e4m3", "nvfp4"])
def test_gradient_of_the_row_factors(cases: Cases, kind: str) -> None:
    case = cases[kind, L]
    options: dict[str, Any] = {"sf_vec_size": case.format.block, "alpha": 0.5, "d_dtype": "float32"}
    operands, upstream = case.operands("torch"), torch.from_numpy(case.upstream)
    explicit = gemm.gemm_srelu_backward(*operands[:2], upstream, *operands[2:], torch.from_numpy(case.prob), **options)[
        "dprob_tensor"
    ]
    r = np.maximum(0.5 * case.s, 0)
    assert np.allclose(explicit, (r * r * case.upstream).sum(1, keepdims=True), rtol=1e-4, atol=1e-3)
    prob = torch.tensor(case.prob, requires_grad=True)
    out = gemm.gemm_srelu_forward(*operands, prob, **options)
    (through,) = torch.autograd.grad((out["d_tensor"] * upstream).sum(), prob)
    assert torch.equal(through, explicit)
    again = gemm.gemm_srelu_forward(*operands, prob, **options)
    (through,) = torch.autograd.grad(again["c_tensor"].float().sum() + again["d_tensor"].sum(), prob)
    assert torch.allclose(through, torch.from_numpy((r * r).sum(1, keepdims=True)).float(), rtol=1e-4)

    def run(p: Any) -> Any:
        return (gemm.gemm_srelu_forward(*operands, p, **options)["d_tensor"] * upstream).sum()

    assert torch.equal(torch.func.grad(run)(prob.detach()), explicit)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    (through,) = torch.autograd.grad(compiled(prob), prob)
    assert torch.equal(through, explicit)


def test_gradient_under_jax(cases: Cases) -> None:
    case = cases["mxfp8_e4m3", 1]
    operands, upstream = case.operands("jax"), jnp.asarray(case.upstream)

    def loss(prob: Any, *xs: Any) -> Any:
        _, d = gemm.gemm_srelu_jax_forward(*xs, prob, d_dtype="float32", sf_vec_size=32)
        return (d * upstream).sum()

    got = jax.jit(jax.grad(loss))(jnp.asarray(case.prob), *operands)
    r = np.maximum(case.s, 0)
    assert np.allclose(got, (r * r * case.upstream).sum(1, keepdims=True), rtol=1e-4, atol=1e-3)
    with pytest.raises(NotYetSupportedError, match="call gemm_srelu_backward"):
        jax.grad(loss, argnums=1)(jnp.asarray(case.prob), *operands)


@pytest.mark.parametrize("atom", [True, False])
def test_classes(cases: Cases, atom: bool) -> None:
    case = cases["mxfp4", L]
    a, b, sfa, sfb = case.operands("torch", atom=atom)
    prob, upstream = torch.from_numpy(case.prob), torch.from_numpy(case.upstream)

    def matrix(kind: torch.dtype) -> torch.Tensor:
        return torch.empty(L, M, N, dtype=kind).permute(1, 2, 0)

    c, amax = matrix(torch.float32), torch.full((1,), -torch.inf)
    op = legacy.GemmAmaxSm100(a, b, sfa, sfb, c, amax)
    with pytest.raises(NotCompiledError):
        op.execute(a, b, sfa, sfb, c, amax)
    assert op.check_support()
    op.compile()
    op.execute(a, b, sfa, sfb, c, amax)
    wanted = gemm.gemm_amax_forward(a, b, sfa, sfb)
    assert torch.equal(c, wanted[0])
    assert amax.item() == wanted[1].item()
    op.execute(a, b, sfa, sfb, c, amax.fill_(1e9))
    assert amax.item() == 1e9

    c, d = matrix(torch.bfloat16), matrix(torch.float16)
    srelu = legacy.GemmSreluSm100(a, b, c, d, sfa, sfb, prob, sample_amax=amax, alpha=0.25, sf_vec_size=32)
    srelu.compile()
    srelu.execute(a, b, c, d, sfa, sfb, prob, amax_tensor=amax.fill_(-torch.inf))
    wanted = gemm.gemm_srelu_forward(a, b, sfa, sfb, prob, 0.25, d_dtype="float16", sf_vec_size=32)
    assert torch.equal(c, wanted[0])
    assert torch.equal(d, wanted[1])
    assert amax.item() == wanted[2].item()

    d, dprob = matrix(torch.float32), torch.ones(M, 1, L)
    dsrelu = legacy.GemmDsreluSm100(a, b, upstream, d, dprob, sfa, sfb, prob, sf_vec_size=32)
    dsrelu.compile()
    dsrelu.execute(a, b, upstream.clone(), d, dprob, sfa, sfb, prob)
    wanted = gemm.gemm_srelu_backward(a, b, upstream, sfa, sfb, prob, d_dtype="float32", sf_vec_size=32)
    assert torch.equal(d, wanted[0])
    assert torch.equal(dprob, 1 + wanted[1])
    dsrelu.execute(a, b, upstream, d, dprob.zero_(), sfa, sfb, prob, alpha=0.0)
    assert not d.any()


def test_class_with_quantised_d(cases: Cases) -> None:
    case = cases["mxfp8_e4m3", L]
    a, b, sfa, sfb = case.operands("torch")
    prob, norm = torch.from_numpy(case.prob), torch.tensor([0.5])
    c = torch.empty(L, M, N, dtype=torch.bfloat16).permute(1, 2, 0)
    d = torch.empty(L, M, N, dtype=torch.float8_e4m3fn).permute(1, 2, 0)
    sfd = torch.empty(L, 2, 1, 32, 4, 4, dtype=torch.float8_e8m0fnu)
    op = legacy.GemmSreluSm100(a, b, c, d, sfa, sfb, prob, sfd, None, norm, sf_vec_size=32)
    op.compile()
    op.execute(a, b, c, d, sfa, sfb, prob, sfd, None, norm)
    wanted = gemm.gemm_srelu_forward(a, b, sfa, sfb, prob, d_dtype=d.dtype, norm_const_tensor=norm, sf_vec_size=32)
    assert torch.equal(d.view(torch.uint8), wanted[1].view(torch.uint8))
    assert torch.equal(atom_view(sfd).view(torch.uint8), wanted[3].view(torch.uint8))
    with pytest.raises(OptionError, match="buffer for the scales"):
        legacy.GemmSreluSm100(a, b, c, d, sfa, sfb, prob, None, None, norm, sf_vec_size=32).check_support()


@pytest.mark.parametrize("shape", [(0, N, 32), (M, 0, 32), (M, N, 0)])
def test_empty(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = np.zeros((m, k, 1), ml_dtypes.float8_e4m3fn), np.zeros((n, k, 1), ml_dtypes.float8_e4m3fn)
    sf: Any = [np.zeros((1, -(-rows // 128), -(-k // 128), 32, 4, 4), ml_dtypes.float8_e8m0fnu) for rows in (m, n)]
    out = gemm.gemm_amax_forward(a, b, *sf)
    assert out["c_tensor"].shape == (m, n, 1)
    assert not out["c_tensor"].any()
    assert out["amax_tensor"].item() == (0 if m * n else -np.inf)
    prob = np.ones((m, 1, 1), np.float32)
    back = gemm.gemm_srelu_backward(a, b, np.ones((m, n, 1), np.float32), *sf, prob, sf_vec_size=32)
    assert not back["dprob_tensor"].any()


def test_refusals(cases: Cases) -> None:
    case, fp4 = cases["mxfp8_e4m3", L], cases["nvfp4", L]
    a, b, sfa, sfb = case.operands("torch")
    prob, upstream = torch.from_numpy(case.prob), torch.from_numpy(case.upstream)
    with pytest.raises(DTypeError, match="float8_e8m0fnu scale per 16"):
        gemm.gemm_amax_forward(a, b, sfa, sfb, sf_vec_size=16)
    with pytest.raises(OptionError, match="sf_vec_size: got 8"):
        gemm.gemm_amax_forward(a, b, sfa, sfb, sf_vec_size=8)
    with pytest.raises(ShapeError, match=f"sfb_tensor.* for {N} rows|sfb.* for {N} rows"):
        gemm.gemm_amax_forward(a, b, sfa, sfa)
    with pytest.raises(StrideError, match="one compact buffer"):
        gemm.gemm_amax_forward(a, b, sfa.contiguous(), sfb)
    with pytest.raises(DTypeError, match="FP4 operands alone"):
        gemm.gemm_amax_forward(a, b, sfa, sfb, c_dtype="uint8")
    with pytest.raises(DTypeError, match="acc_dtype"):
        gemm.gemm_amax_forward(a, b, sfa, sfb, acc_dtype="float16")
    with pytest.raises(OptionError, match="mma_tiler_mn"):
        gemm.gemm_amax_forward(a, b, sfa, sfb, mma_tiler_mn=(64, 128))
    with pytest.raises(OptionError, match="an even first extent"):
        gemm.gemm_srelu_forward(a, b, sfa, sfb, prob, cluster_shape_mn=(1, 1), sf_vec_size=32)
    with pytest.raises(OptionError, match="norm_const_tensor"):
        gemm.gemm_srelu_forward(a, b, sfa, sfb, prob, d_dtype="float8_e4m3fn", sf_vec_size=32)
    with pytest.raises(ShapeError, match=r"\(M, 1, L\)"):
        gemm.gemm_srelu_forward(a, b, sfa, sfb, prob[:5], sf_vec_size=32)
    with pytest.raises(StrideError, match="d_major"):
        gemm.gemm_srelu_backward(a, b, upstream, sfa, sfb, prob, d_major="m", sf_vec_size=32)
    x, y, sfx, sfy = fp4.operands("torch")
    with pytest.raises(DTypeError, match="no FP8 result of FP4"):
        gemm.gemm_srelu_forward(x, y, sfx, sfy, prob, d_dtype="float8_e4m3fn")
    with pytest.raises(OptionError, match="'n' for FP4"):
        gemm.gemm_amax_forward(x, y, sfx, sfy, c_major="m", c_dtype="uint8", sf_vec_size=16)
    strided = x.view(torch.uint8).permute(2, 1, 0).contiguous().permute(2, 1, 0)
    with pytest.raises(StrideError, match="contiguous along K"):
        gemm.gemm_amax_forward(strided, y.view(torch.uint8), sfx, sfy, sf_vec_size=16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": None}, "b: got None, wanted a tensor"),
        ({"a": 1}, "a: got builtins.int"),
        ({"a": lambda v: v["a"][:, :, 0]}, r"a: got shape \(130, 176\) with 2 dims"),
        ({"b": lambda v: v["b"][:, :32]}, r"b: got \(22, 32, 2\), wanted \(N, K, L\)"),
        ({"b": lambda v: v["b"].view(torch.float8_e5m2)}, "b: got float8_e5m2, wanted float8_e4m3fn"),
        ({"a": lambda v: v["a"].float()}, "a: got float32, wanted one of float8_e4m3fn"),
        ({"b": lambda v: v["b"].to("meta")}, "b: got meta, wanted cpu"),
        ({"sfa": lambda v: v["sfa"].to("meta")}, "sfa: got meta, wanted cpu"),
        ({"sfa": lambda v: v["sfa"].flatten()}, "sfa: got shape .* with 1 dims, wanted 6 dims"),
        ({"sfa": lambda v: v["sfa"][:, :, :, :, :1]}, r"sfa: got \(32, 4, 2, 4, 1, 2\)"),  # K' too small
        ({"sfa": lambda v: v["sfa"].float()}, "sfa: got float32, wanted one of float8_e8m0fnu"),
        ({"sfb": lambda v: v["sfb"].view(torch.float8_e4m3fn)}, "sfb: got float8_e4m3fn, wanted float8_e8m0fnu, as"),
        ({"c_dtype": "int32"}, "c_dtype: got int32"),
        ({"c_major": "k"}, "c_major: got 'k'"),
        ({"sf_vec_size": True}, "sf_vec_size: got True"),
        ({"mma_tiler_mn": (128, 64)}, r"mma_tiler_mn: got \(128, 64\)"),
        ({"mma_tiler_mn": 128}, "mma_tiler_mn: got 128, wanted a pair of ints"),
        ({"cluster_shape_mn": (3, 1)}, "cluster_shape_mn: got .* wanted 1, 2 or 4 each"),
        ({"cluster_shape_mn": (8, 1)}, "cluster_shape_mn: got .* wanted 1, 2 or 4 each"),
    ],
)
def test_amax_refuses(cases: Cases, change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = dict(zip(("a", "b", "sfa", "sfb"), cases["mxfp8_e4m3", L].operands("torch"), strict=True))
    given |= {name: x(given) if callable(x) else x for name, x in change.items()}
    operands = [given.pop(name) for name in ("a", "b", "sfa", "sfb")]
    with pytest.raises(ValueError, match=message):
        gemm.gemm_amax_forward(*operands, **given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prob": None}, "prob: got None"),
        ({"prob": torch.ones(M, 1, L, dtype=torch.float64)}, "prob: got float64"),
        ({"c": None}, "c: got None"),
        ({"c": torch.ones(M, 5, L)}, r"c: got \(130, 5, 2\), wanted \(M, N, L\)"),
        ({"c": torch.ones(M, N, L, dtype=torch.float64)}, "c: got float64"),
        ({"c": torch.ones(M, N, L)}, "c: got strides .* wanted C contiguous along the same dim"),
        ({"d_major": "k"}, "d_major: got 'k'"),
        ({"d_dtype": "uint8"}, "d_dtype: got uint8"),
        ({"alpha": torch.ones(1)}, "alpha: got torch.Tensor, wanted a number"),
        ({"norm_const_tensor": torch.ones(2)}, r"norm_const: got \(2,\), wanted \(1,\)"),
        ({"norm_const_tensor": torch.ones(1).double()}, "norm_const: got float64"),
        ({"mma_tiler_mn": (128, 96)}, "mma_tiler_mn: got"),
        ({"cluster_shape_mn": (3, 1)}, "cluster_shape_mn: got"),
    ],
)
def test_dsrelu_refuses(cases: Cases, change: dict[str, Any], message: str) -> None:
    case = cases["mxfp8_e4m3", L]
    a, b, sfa, sfb = case.operands("torch")
    prob, upstream = torch.from_numpy(case.prob), torch.from_numpy(case.upstream)
    given: dict[str, Any] = {"c": upstream, "prob": prob, "sf_vec_size": 32} | change
    with pytest.raises(ValueError, match=message):
        gemm.gemm_srelu_backward(a, b, given.pop("c"), sfa, sfb, given.pop("prob"), **given)


def test_classes_refuse_samples_of_other_results(cases: Cases) -> None:
    case = cases["mxfp8_e4m3", L]
    a, b, sfa, sfb = case.operands("torch")
    prob, upstream, amax = torch.from_numpy(case.prob), torch.from_numpy(case.upstream), torch.zeros(1, 1, 1)

    def matrix(n: int = N, kind: torch.dtype = torch.float32, *, m_major: bool = False) -> torch.Tensor:
        return torch.empty(L, n, M, dtype=kind).permute(2, 1, 0) if m_major else torch.empty(L, M, n).permute(1, 2, 0)

    def refused(message: str, make: Any, *samples: Any, **options: Any) -> None:
        with pytest.raises(ValueError, match=message):
            make(*samples, **options).check_support()

    amaxes: Any = (legacy.GemmAmaxSm100, a, b, sfa, sfb)
    refused(r"c_tensor: got \(130, 5, 2\), wanted \(130, 22, 2\)", *amaxes, matrix(5), amax)
    refused("c_tensor: got .* compact, batch outermost", *amaxes, torch.empty(M, N, L), amax)
    refused("c_dtype: got int32", *amaxes, torch.empty(L, M, N, dtype=torch.int32).permute(1, 2, 0), amax)
    refused("amax_tensor: got float64", *amaxes, matrix(), amax.double())
    refused(r"amax_tensor: got \(2,\), wanted one element", *amaxes, matrix(), torch.zeros(2))
    srelus, options = (legacy.GemmSreluSm100, a, b), {"sf_vec_size": 32}
    refused("c_tensor: got .* compact", *srelus, matrix(), matrix(m_major=True), sfa, sfb, prob, **options)
    refused(r"d_tensor: got \(130, 5, 2\)", *srelus, matrix(), matrix(5), sfa, sfb, prob, **options)
    refused(r"amax_tensor: got \(3,\)", *srelus, matrix(), matrix(), sfa, sfb, prob, None, torch.zeros(3), **options)
    quantised = torch.empty(L, M, N, dtype=torch.float8_e4m3fn).permute(1, 2, 0)
    sfd = torch.empty(L, 2, 1, 32, 4, 4, dtype=torch.float8_e8m0fnu)
    small, other = sfd[:, :1], sfd.view(torch.float8_e4m3fn)
    more: Any = (None, torch.ones(1))
    refused("sfd_tensor: got", *srelus, matrix(), quantised, sfa, sfb, prob, small, *more, **options)
    refused("sfd_tensor: got float8_e4m3fn", *srelus, matrix(), quantised, sfa, sfb, prob, other, *more, **options)
    refused("norm_const_tensor: got None", *srelus, matrix(), quantised, sfa, sfb, prob, sfd, **options)
    backs = (legacy.GemmDsreluSm100, a, b, upstream)
    refused("dprob_tensor: got", *backs, matrix(), torch.zeros(M, 1, 1), sfa, sfb, prob, **options)
    refused("dprob_tensor: got float64", *backs, matrix(), torch.zeros(M, 1, L).double(), sfa, sfb, prob, **options)
    refused("same dim", *backs, matrix(m_major=True), torch.zeros(M, 1, L), sfa, sfb, prob, **options)


def test_scales_as_bytes_and_row_factors_of_any_strides(cases: Cases) -> None:
    case = cases["mxfp8_e4m3", L]
    a, b, sfa, sfb = case.operands("torch")
    wanted = gemm.gemm_amax_forward(a, b, sfa, sfb)["c_tensor"]
    assert torch.equal(gemm.gemm_amax_forward(a, b, sfa.view(torch.int8), sfb.view(torch.int8))["c_tensor"], wanted)
    prob = torch.from_numpy(case.prob)
    turned = torch.empty(L, 1, M).permute(2, 1, 0).copy_(prob)
    plain, other = (gemm.gemm_srelu_forward(a, b, sfa, sfb, p, sf_vec_size=32)["d_tensor"] for p in (prob, turned))
    assert torch.equal(plain, other)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gemm_amax_wrapper_sm100", "a_tensor b_tensor sfa_tensor sfb_tensor c_major c_dtype acc_dtype mma_tiler_mn "
         "cluster_shape_mn sf_vec_size stream"),
        ("gemm_srelu_wrapper_sm100", "a_tensor b_tensor sfa_tensor sfb_tensor prob_tensor alpha c_major c_dtype "
         "d_dtype acc_dtype mma_tiler_mn cluster_shape_mn norm_const_tensor sf_vec_size vector_f32 stream"),
        ("gemm_dsrelu_wrapper_sm100", "a_tensor b_tensor c_tensor sfa_tensor sfb_tensor prob_tensor alpha d_major "
         "d_dtype acc_dtype mma_tiler_mn cluster_shape_mn norm_const_tensor sf_vec_size vector_f32 stream"),
    ],
)  # fmt: skip
def test_legacy_signatures(name: str, parameters: str) -> None:
    import cudnn

    assert list(inspect.signature(getattr(cudnn, name)).parameters) == parameters.split()


@pytest.mark.parametrize(("capability", "backend"), [((9, 0), "sm90"), ((8, 0), "portable"), ((10, 0), "portable")])
def test_a_gpu_runs_a_kernel(cases: Cases, capability: tuple[int, int], backend: str) -> None:
    case = cases["mxfp8_e4m3", L]
    options = {"c_major": "n", "c_dtype": "float32", "acc_dtype": "float32", "mma_tiler_mn": (128, 128)}
    names = ("a", "b", "sfa", "sfb")
    specs = [spec_of(x, name) for name, x in zip(names, case.operands("torch"), strict=True)]
    problem = AMAX.bind(*specs, **options, cluster_shape_mn=(1, 1), sf_vec_size=32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(AMAX, problem, on=Device("cuda:0", capability, 132, "a GPU")).backend == backend


def test_names_below_ops() -> None:
    import cudnn.ops

    x, one = np.full((1, 128, 64), 6, ml_dtypes.bfloat16), np.ones((1, 1, 1), np.float32)
    back = cudnn.ops.nvfp4_block_scale_dequantize(*cudnn.ops.nvfp4_block_scale_quantize(x, one), one)
    assert np.array_equal(back, x)


@pytest.mark.parametrize("module", ["amax", "srelu", "dsrelu"])
def test_module_paths(module: str) -> None:
    found = importlib.import_module(f"cudnn.gemm.cutedsl.dense.{module}")
    assert len(found.__all__) == 3
    assert all(getattr(found, name) is getattr(legacy, name) for name in found.__all__)
