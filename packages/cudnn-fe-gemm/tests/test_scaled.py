"""Block-scaled GEMMs against float64, in every framework, format, layout and result type; classes; refusals."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe.core.block_scale import BLOCK_FORMATS, BlockFormat, atom_view, block_format, quantize, swizzle_scales
from cudnn_fe.core.codecs import from_codes, pack_fp4
from cudnn_fe.core.errors import DTypeError, NotCompiledError, OptionError, ShapeError, StrideError
from cudnn_fe.gemm import (
    gemm_amax_forward,
    gemm_amax_jax_forward,
    gemm_srelu_backward,
    gemm_srelu_forward,
    gemm_srelu_jax_backward,
    gemm_srelu_jax_forward,
)
from cudnn_fe.gemm import legacy_scaled as legacy

# Two row tiles for A, a part of one for B, a last K block that is short for one scale per 32, a last K atom that is not
# full, and a batch.
M, N, K, L = 130, 22, 176, 2
KINDS = {**BLOCK_FORMATS, "fp4_e8m0_16": block_format("uint8", "int8", 16)}
formats = pytest.mark.parametrize("kind", KINDS)


class Case:
    """Quantised operands as NumPy bytes, and their float64 values by a way that shares no code with the ops."""

    def __init__(self, kind: str, k: int = K, batch: int = L, seed: int = 0) -> None:
        self.format: BlockFormat = KINDS[kind]
        self.fp4 = self.format.element.bits == 4
        rng = np.random.default_rng(seed)
        self.batch = batch
        self.a, self.sfa, self.wide_a = self._operand(rng, M, k)
        self.b, self.sfb, self.wide_b = self._operand(rng, N, k)
        self.s = np.einsum("mkl,nkl->mnl", self.wide_a, self.wide_b)
        # A float32 sum of k terms errs by at most k units of the sum of magnitudes.
        self.bound = k * 2.0**-24 * np.einsum("mkl,nkl->mnl", np.abs(self.wide_a), np.abs(self.wide_b))
        self.prob = rng.uniform(-1, 1, (M, 1, batch)).astype(np.float32)
        self.upstream = rng.standard_normal((batch, M, N)).astype(np.float32).transpose(1, 2, 0)

    def _operand(self, rng: Any, rows: int, k: int) -> tuple[Any, Any, Any]:
        x = rng.standard_normal((rows, k, self.batch)).astype(np.float32)
        got = quantize(x, self.format, axis=1)
        element = getattr(ml_dtypes, self.format.element.name)
        scale = getattr(ml_dtypes, self.format.scale.name)
        values = from_codes(got.codes, self.format.element).view(element).astype(np.float64)
        scales = got.scales.view(scale).astype(np.float64).repeat(self.format.block, 1)[:, :k]
        packed = np.array(swizzle_scales(got.scales.transpose(2, 0, 1)))
        used = np.asarray(swizzle_scales(np.ones_like(got.scales.transpose(2, 0, 1))))
        packed[used == 0] = 0xFF if self.format.scale.name == "float8_e8m0fnu" else 0x7F  # NaN where nothing is read
        codes = pack_fp4(got.codes, axis=1) if self.fp4 else got.codes
        # (rows, K, L) with the batch outermost in memory.
        codes = np.ascontiguousarray(codes.transpose(2, 0, 1)).transpose(1, 2, 0)
        return codes, packed, values * scales

    def operands(self, framework: str, *, atom: bool = True) -> list[Any]:
        """A, B, SFA, SFB of a framework."""
        scale = self.format.scale.name
        if framework == "torch":
            element = torch.float4_e2m1fn_x2 if self.fp4 else getattr(torch, self.format.element.name)
            data = [torch.from_numpy(x).view(element) for x in (self.a, self.b)]
            scales = [torch.from_numpy(x).view(getattr(torch, scale)) for x in (self.sfa, self.sfb)]
        else:
            element = np.uint8 if self.fp4 else getattr(ml_dtypes, self.format.element.name)
            data = [x.view(element) for x in (self.a, self.b)]
            scales = [x.view(getattr(ml_dtypes, scale)) for x in (self.sfa, self.sfb)]
        if framework == "jax":
            return [jnp.asarray(x) for x in data + scales]
        return data + [atom_view(x) if atom else x for x in scales]


def wrap(framework: str, x: Any) -> Any:
    return {"numpy": np.asarray, "torch": torch.asarray, "jax": jnp.asarray}[framework](x)


def numbers(x: Any) -> np.ndarray[Any, Any]:
    if isinstance(x, torch.Tensor):
        x = x.float()
    return np.asarray(x, np.float64)


Cases = dict[tuple[str, int], Case]


@pytest.fixture(scope="module")
def cases() -> Cases:
    return {(kind, batch): Case(kind, batch=batch) for kind in KINDS for batch in (1, L)}


def batch_of(framework: str) -> int:
    """JAX arrays are row-major, and so is a batch that is innermost: its operands have none."""
    return 1 if framework == "jax" else L


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@formats
def test_amax(cases: Cases, framework: str, kind: str) -> None:
    case = cases[kind, batch_of(framework)]
    out = gemm_amax_forward(*case.operands(framework), sf_vec_size=case.format.block)
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
    full = gemm_amax_forward(*case.operands("numpy"))["c_tensor"]
    out = gemm_amax_forward(*case.operands("torch", atom=False), c_major=c_major, c_dtype=c_dtype)
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
    given = [wrap(framework, x) for x in (a, b)]
    if framework == "torch":
        sf = torch.from_numpy(scales.view(np.uint8)).view(torch.float8_e8m0fnu)
        out = gemm_amax_forward(*given, sf, sf, c_dtype=torch.float4_e2m1fn_x2)["c_tensor"]
        assert out.dtype == torch.float4_e2m1fn_x2
        out = out.view(torch.uint8)
    else:
        out = gemm_amax_forward(*given, *[wrap(framework, scales)] * 2, c_dtype="uint8")["c_tensor"]
    assert np.asarray(out)[0, :, 0].tolist() == pack_fp4(codes).tolist()


@pytest.mark.parametrize("native", [True, False], ids=["float4", "uint8"])
def test_fp4_operands_of_numpy_may_be_unpacked(cases: Cases, native: bool) -> None:
    case = cases["nvfp4", L]
    a, b, sfa, sfb = case.operands("numpy")
    wanted = gemm_amax_forward(a, b, sfa, sfb, sf_vec_size=16)
    if native:
        from cudnn_fe.core.codecs import unpack_fp4

        a, b = (from_codes(unpack_fp4(x, axis=1), "float4_e2m1fn") for x in (a, b))
    got = gemm_amax_forward(a, b, sfa, sfb, sf_vec_size=16)
    assert np.array_equal(got["c_tensor"], wanted["c_tensor"])


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@formats
def test_srelu(cases: Cases, framework: str, kind: str) -> None:
    case = cases[kind, batch_of(framework)]
    alpha = -0.5
    options = {"alpha": alpha, "sf_vec_size": case.format.block, "d_dtype": "float32"}
    prob, upstream = wrap(framework, case.prob), wrap(framework, case.upstream)
    operands = case.operands(framework)
    out = gemm_srelu_forward(*operands, prob, c_dtype="float32", **options)
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
    back = gemm_srelu_backward(*operands[:2], upstream, *operands[2:], prob, **options)
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
    assert gemm_amax_forward(a, b, sfa, sfb)["c_tensor"].item() == 96
    out = gemm_srelu_forward(a, b, sfa, sfb, prob, 0.25, sf_vec_size=32)
    assert (float(out["c_tensor"].item()), float(out["d_tensor"].item())) == (24, 288)
    back = gemm_srelu_backward(a, b, upstream, sfa, sfb, prob, 0.25, sf_vec_size=32)
    assert (float(back["d_tensor"].item()), back["dprob_tensor"].item()) == (72, 1728)
    negative = gemm_srelu_forward(a, b, sfa, sfb, prob, -0.25, sf_vec_size=32)
    assert (float(negative["c_tensor"].item()), float(negative["d_tensor"].item())) == (-24, 0)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("d_dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_quantised_d(cases: Cases, framework: str, d_dtype: str) -> None:
    case = cases["mxfp8_e4m3", batch_of(framework)]
    norm, prob = np.asarray([0.01], np.float32), wrap(framework, case.prob)
    operands = case.operands(framework)
    options: dict[str, Any] = {"sf_vec_size": 32, "norm_const_tensor": wrap(framework, norm)}
    full = gemm_srelu_forward(*operands, prob, d_dtype="float32", sf_vec_size=32)["d_tensor"]
    out = gemm_srelu_forward(*operands, prob, d_dtype=d_dtype, **options)
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


def test_nan_reaches_what_depends_on_it(cases: Cases) -> None:
    case = Case("mxfp8_e4m3")
    case.a[3, 5, 1] = 0x7F
    case.sfa[0, 0, 0, 7, 0, 0] = 0xFF  # row 7, first block, first batch
    operands = case.operands("numpy")
    out = gemm_srelu_forward(*operands, case.prob, c_dtype="float32", d_dtype="float32", sf_vec_size=32)
    back = gemm_srelu_backward(
        *operands[:2], case.upstream, *operands[2:], case.prob, d_dtype="float32", sf_vec_size=32
    )
    bad = np.zeros((M, N, L), bool)
    bad[3, :, 1] = bad[7, :, 0] = True
    for x in (out["c_tensor"], out["d_tensor"], back["d_tensor"]):
        assert np.array_equal(np.isnan(x), bad)
    assert np.array_equal(np.isnan(back["dprob_tensor"]), bad.any(1, keepdims=True))
    assert np.isnan(gemm_amax_forward(*operands)["amax_tensor"]).all()


def test_jax_entries_under_jit(cases: Cases) -> None:
    case = cases["mxfp8_e4m3", 1]
    operands = case.operands("jax")
    prob, upstream = jnp.asarray(case.prob), jnp.asarray(case.upstream)
    c, amax = jax.jit(gemm_amax_jax_forward)(*operands)
    assert (np.abs(numbers(c) - case.s) <= case.bound).all()
    assert amax.shape == (1, 1, 1)

    def forward(*xs: Any) -> Any:
        return gemm_srelu_jax_forward(*xs, c_dtype="float32", sf_vec_size=32)

    s, d = jax.jit(forward)(*operands, prob)
    eager = forward(*operands, prob)
    assert np.array_equal(np.asarray(d).view(np.uint16), np.asarray(eager[1]).view(np.uint16))
    assert (np.abs(numbers(s) - case.s) <= case.bound).all()

    def backward(a: Any, b: Any, *rest: Any) -> Any:
        return gemm_srelu_jax_backward(a, b, upstream, *rest, d_dtype="float32", sf_vec_size=32)

    got = jax.jit(backward)(*operands, prob)
    assert [x.shape for x in got] == [(M, N, 1), (M, 1, 1)]
    r = np.maximum(case.s, 0)
    assert np.allclose(got[0], 2 * r * case.upstream * case.prob, rtol=1e-4, atol=1e-2)
    with pytest.raises(DTypeError, match="returns scales too"):
        gemm_srelu_jax_forward(*operands, prob, d_dtype="float8_e4m3fn", sf_vec_size=32)


def test_torch_compile_sees_the_ops(cases: Cases) -> None:
    case = cases["mxfp8_e4m3", L]
    operands, prob = case.operands("torch"), torch.from_numpy(case.prob)

    def run(*xs: Any) -> Any:
        return gemm_srelu_forward(*xs, sf_vec_size=32)["d_tensor"]

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*operands, prob), run(*operands, prob))


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
    wanted = gemm_amax_forward(a, b, sfa, sfb)
    assert torch.equal(c, wanted[0])
    assert amax.item() == wanted[1].item()
    op.execute(a, b, sfa, sfb, c, amax.fill_(1e9))
    assert amax.item() == 1e9

    c, d = matrix(torch.bfloat16), matrix(torch.float16)
    srelu = legacy.GemmSreluSm100(a, b, c, d, sfa, sfb, prob, sample_amax=amax, alpha=0.25, sf_vec_size=32)
    srelu.compile()
    srelu.execute(a, b, c, d, sfa, sfb, prob, amax_tensor=amax.fill_(-torch.inf))
    wanted = gemm_srelu_forward(a, b, sfa, sfb, prob, 0.25, d_dtype="float16", sf_vec_size=32)
    assert torch.equal(c, wanted[0])
    assert torch.equal(d, wanted[1])
    assert amax.item() == wanted[2].item()

    d, dprob = matrix(torch.float32), torch.ones(M, 1, L)
    dsrelu = legacy.GemmDsreluSm100(a, b, upstream, d, dprob, sfa, sfb, prob, sf_vec_size=32)
    dsrelu.compile()
    dsrelu.execute(a, b, upstream.clone(), d, dprob, sfa, sfb, prob)
    wanted = gemm_srelu_backward(a, b, upstream, sfa, sfb, prob, d_dtype="float32", sf_vec_size=32)
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
    wanted = gemm_srelu_forward(a, b, sfa, sfb, prob, d_dtype=d.dtype, norm_const_tensor=norm, sf_vec_size=32)
    assert torch.equal(d.view(torch.uint8), wanted[1].view(torch.uint8))
    assert torch.equal(atom_view(sfd).view(torch.uint8), wanted[3].view(torch.uint8))
    with pytest.raises(OptionError, match="buffer for the scales"):
        legacy.GemmSreluSm100(a, b, c, d, sfa, sfb, prob, None, None, norm, sf_vec_size=32).check_support()


def test_k_major_and_m_major_fp8_operands(cases: Cases) -> None:
    case = cases["mxfp8_e4m3", L]
    a, b, sfa, sfb = case.operands("torch")
    turned = [x.permute(2, 1, 0).contiguous().permute(2, 1, 0) for x in (a, b)]
    assert turned[0].stride() == (1, M, M * K)
    assert torch.equal(gemm_amax_forward(*turned, sfa, sfb)[0], gemm_amax_forward(a, b, sfa, sfb)[0])


@pytest.mark.parametrize("shape", [(0, N, 32), (M, 0, 32), (M, N, 0)])
def test_empty(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = np.zeros((m, k, 1), ml_dtypes.float8_e4m3fn), np.zeros((n, k, 1), ml_dtypes.float8_e4m3fn)
    sf = [np.zeros((1, -(-rows // 128), -(-k // 128), 32, 4, 4), ml_dtypes.float8_e8m0fnu) for rows in (m, n)]
    out = gemm_amax_forward(a, b, *sf)
    assert out["c_tensor"].shape == (m, n, 1)
    assert not out["c_tensor"].any()
    assert out["amax_tensor"].item() == (0 if m * n else -np.inf)
    prob = np.ones((m, 1, 1), np.float32)
    back = gemm_srelu_backward(a, b, np.ones((m, n, 1), np.float32), *sf, prob, sf_vec_size=32)
    assert not back["dprob_tensor"].any()


def test_refusals(cases: Cases) -> None:
    case, fp4 = cases["mxfp8_e4m3", L], cases["nvfp4", L]
    a, b, sfa, sfb = case.operands("torch")
    prob, upstream = torch.from_numpy(case.prob), torch.from_numpy(case.upstream)
    with pytest.raises(DTypeError, match="float8_e8m0fnu scale per 16"):
        gemm_amax_forward(a, b, sfa, sfb, sf_vec_size=16)
    with pytest.raises(OptionError, match="sf_vec_size: got 8"):
        gemm_amax_forward(a, b, sfa, sfb, sf_vec_size=8)
    with pytest.raises(ShapeError, match=f"sfb_tensor.* for {N} rows|sfb.* for {N} rows"):
        gemm_amax_forward(a, b, sfa, sfa)
    with pytest.raises(StrideError, match="one compact buffer"):
        gemm_amax_forward(a, b, sfa.contiguous(), sfb)
    with pytest.raises(DTypeError, match="FP4 operands alone"):
        gemm_amax_forward(a, b, sfa, sfb, c_dtype="uint8")
    with pytest.raises(DTypeError, match="acc_dtype"):
        gemm_amax_forward(a, b, sfa, sfb, acc_dtype="float16")
    with pytest.raises(OptionError, match="mma_tiler_mn"):
        gemm_amax_forward(a, b, sfa, sfb, mma_tiler_mn=(64, 128))
    with pytest.raises(OptionError, match="an even first extent"):
        gemm_srelu_forward(a, b, sfa, sfb, prob, cluster_shape_mn=(1, 1), sf_vec_size=32)
    with pytest.raises(OptionError, match="norm_const_tensor"):
        gemm_srelu_forward(a, b, sfa, sfb, prob, d_dtype="float8_e4m3fn", sf_vec_size=32)
    with pytest.raises(ShapeError, match=r"\(M, 1, L\)"):
        gemm_srelu_forward(a, b, sfa, sfb, prob[:5], sf_vec_size=32)
    with pytest.raises(StrideError, match="d_major"):
        gemm_srelu_backward(a, b, upstream, sfa, sfb, prob, d_major="m", sf_vec_size=32)
    x, y, sfx, sfy = fp4.operands("torch")
    with pytest.raises(DTypeError, match="no FP8 result of FP4"):
        gemm_srelu_forward(x, y, sfx, sfy, prob, d_dtype="float8_e4m3fn")
    with pytest.raises(OptionError, match="'n' for FP4"):
        gemm_amax_forward(x, y, sfx, sfy, c_major="m", c_dtype="uint8", sf_vec_size=16)
    strided = x.view(torch.uint8).permute(2, 1, 0).contiguous().permute(2, 1, 0)
    with pytest.raises(StrideError, match="contiguous along K"):
        gemm_amax_forward(strided, y.view(torch.uint8), sfx, sfy, sf_vec_size=16)


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
