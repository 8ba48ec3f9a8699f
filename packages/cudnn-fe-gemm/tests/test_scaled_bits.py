"""Block-scaled GEMMs of exact sums: the same bytes in NumPy, torch and JAX, by hand, and what infinity becomes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn_fe.gemm
from cudnn_fe.core.block_scale import physical_view, swizzle_scales
from cudnn_fe.core.codecs import encode
from cudnn_fe_testkit import block_scale as exact
from cudnn_fe_testkit.scaled_gemm import Case, M, numbers, wrap

gemm: Any = cudnn_fe.gemm  # operands are handed over as lists
N, FRAMEWORKS = 192, ("numpy", "torch", "jax")


class WholeCase(Case):
    """Small integers and scales near 1, without a batch: every sum is exact in float32, in whatever order."""

    def _operand(self, rng: Any, rows: int, k: int) -> tuple[Any, Any, Any]:
        values = rng.integers(-2, 3, (rows, k, 1)).astype(np.float32)
        powers = np.exp2(rng.integers(-1, 2, (rows, -(-k // 32), 1))).astype(np.float32)
        if rows == M:
            values[7] = 0  # blocks of zeros
        packed = np.asarray(swizzle_scales(encode(powers, self.format.scale).transpose(2, 0, 1)))
        wide = values * powers.repeat(32, 1)[:, :k]
        return encode(values, self.format.element), packed, wide.astype(np.float64)


@pytest.fixture(scope="module")
def case() -> WholeCase:
    found = WholeCase("mxfp8_e4m3", batch=1, n=N)
    found.prob = np.random.default_rng(1).choice(np.asarray([0, 0.25, 1, -2], np.float32), (M, 1, 1))
    found.upstream = np.random.default_rng(2).integers(-3, 4, (M, N, 1)).astype(np.float32)
    return found


def raw(x: Any) -> Any:
    x = physical_view(x) if x.ndim == 6 else x  # of the atom view, which torch and NumPy return
    return np.ascontiguousarray(x.contiguous().view(torch.uint8) if isinstance(x, torch.Tensor) else x).view(np.uint8)


def srelu(case: WholeCase, framework: str, d_dtype: str) -> Any:
    norm = wrap(framework, np.asarray([0.5], np.float32))
    return gemm.gemm_srelu_forward(
        *case.operands(framework, atom=False), wrap(framework, case.prob), 0.5, c_dtype="float8_e4m3fn",
        d_dtype=d_dtype, norm_const_tensor=norm, sf_vec_size=32,
    )  # fmt: skip


def dsrelu(case: WholeCase, framework: str, d_dtype: str) -> Any:
    a, b, *scales = case.operands(framework, atom=False)
    norm = wrap(framework, np.asarray([0.5], np.float32))
    return gemm.gemm_srelu_backward(
        a, b, wrap(framework, case.upstream), *scales, wrap(framework, case.prob), 0.5, d_dtype=d_dtype,
        norm_const_tensor=norm, sf_vec_size=32,
    )  # fmt: skip


def swiglu(case: WholeCase, framework: str, d_dtype: str) -> Any:
    a, b, sfa, sfb = case.operands(framework, atom=False)
    norm = wrap(framework, np.asarray([0.5], np.float32))
    return gemm.gemm_swiglu_forward(  # gates are 0 or so large that their sigmoid is 0 or 1
        a, b, 512.0, ab12_dtype="float8_e5m2", c_dtype=d_dtype, sfa_tensor=sfa, sfb_tensor=sfb,
        norm_const_tensor=norm, sf_vec_size=32,
    )  # fmt: skip


def amax(case: WholeCase, framework: str, d_dtype: str) -> Any:
    return gemm.gemm_amax_forward(*case.operands(framework, atom=False), c_dtype=d_dtype)


def derived(case: WholeCase, name: str) -> Any:
    """What is quantised, exact in float64 and float32."""
    s = (512 if name == "swiglu" else 0.5) * case.s[:, :, 0]
    if name == "swiglu":
        value, gate = (s.reshape(M, -1, 2, 32)[:, :, i].reshape(M, -1) for i in range(2))
        return value * np.where(gate < 0, -0.0, gate)
    r, prob = np.maximum(s, 0), case.prob[:, :, 0].astype(np.float64)
    return r * r * prob if name == "srelu" else 2 * r * case.upstream[:, :, 0] * prob


@pytest.mark.parametrize("d_dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("call", [srelu, dsrelu, swiglu, amax], ids=lambda f: f.__name__)
def test_the_same_bytes_in_every_framework(case: WholeCase, call: Any, d_dtype: str) -> None:
    found = [[x for x in call(case, framework, d_dtype) if x is not None] for framework in FRAMEWORKS]
    for first, *others in zip(*found, strict=True):
        assert raw(first).any()
        assert all(np.array_equal(raw(first), raw(other)) for other in others)
    if call is amax:
        limit = {"float8_e4m3fn": 448, "float8_e5m2": 57344}[d_dtype]
        wanted = np.clip(case.s, -limit, limit).astype(np.float32).astype(getattr(ml_dtypes, d_dtype))
        assert np.array_equal(raw(found[0][0]), raw(wanted))
        assert found[0][1].item() == np.abs(case.s).max()
        return
    y = derived(case, call.__name__)
    places = {"srelu": (1, 2), "dsrelu": (0, 2), "swiglu": (1, 2)}[call.__name__]
    codes, scales = (raw(found[0][place]).reshape(-1) for place in places)
    columns, kind = y.shape[1], f"mxfp8_{d_dtype[7:11]}"
    for m in (0, 7, 31, 32, 127, 128, 129):
        for block in range(columns // 32):
            x = y[m, 32 * block : 32 * block + 32].tolist()
            scale, wanted = exact.quantize_block(x, kind, "epilogue", 0.5)
            atom = m // 128 * -(-columns // 128) + block // 4
            assert scales[512 * atom + m % 32 * 16 + m // 32 % 4 * 4 + block % 4] == scale
            assert codes[columns * m + 32 * block : columns * m + 32 * block + 32].tolist() == wanted


def hand(n: int) -> tuple[Any, ...]:
    """A = 1.5, B = 2 on 32 elements, scales 2 and 1/2: S = 96."""
    a, b = np.full((1, 32, 1), 1.5, ml_dtypes.float8_e4m3fn), np.full((n, 32, 1), 2.0, ml_dtypes.float8_e4m3fn)
    return a, b, *(np.full((1, 1, 1, 32, 4, 4), x, ml_dtypes.float8_e8m0fnu) for x in (2.0, 0.5))


def test_quantised_by_hand() -> None:
    a, b, sfa, sfb = hand(64)
    one = np.ones(1, np.float32)
    options: dict[str, Any] = {"norm_const_tensor": one, "sf_vec_size": 32}
    glu = gemm.gemm_swiglu_forward(
        a, b, 0.25, sfa_tensor=sfa, sfb_tensor=sfb, c_dtype="float8_e4m3fn", **options
    )  # fmt: skip
    # 24 * 24 = 576; 576 / 448 rounds up to 2, and 288 is an E4M3 value.
    assert (numbers(glu["c_tensor"]) == 288).all()
    assert raw(glu["sfc_tensor"]).ravel()[0] == 128
    prob, upstream = np.full((1, 1, 1), 0.5, np.float32), np.full((1, 64, 1), 3.0, np.float32)
    back = gemm.gemm_srelu_backward(a, b, upstream, sfa, sfb, prob, 0.25, d_dtype="float8_e5m2", **options)
    # 2 * 24 * 3 / 2 = 72; 72 / 128 rounds up to 1, and 72 lies between 64 and 80, nearer to neither: to even.
    assert (numbers(back["d_tensor"]) == 64).all()
    assert raw(back["sfd_tensor"]).ravel()[0] == 127
    assert back["dprob_tensor"].item() == 24 * 24 * 3 * 64


def test_alpha_of_zero_and_infinity() -> None:
    a, b, sfa, sfb = hand(64)
    prob = np.ones((1, 1, 1), np.float32)
    c, d, *_ = gemm.gemm_srelu_forward(a, b, sfa, sfb, prob, 0.0, sf_vec_size=32)
    assert not numbers(c).any()
    assert not numbers(d).any()
    x, y = (z.astype(ml_dtypes.float8_e5m2) for z in (a, b))
    x[0, 3], y[32] = np.inf, -np.ones(32)[:, None]  # the first gate is minus infinity, the others infinity
    out = gemm.gemm_swiglu_forward(x, y, sfa_tensor=sfa, sfb_tensor=sfb, c_dtype="float32", sf_vec_size=32)
    found = numbers(out["c_tensor"])[0, :, 0]
    assert np.isnan(found[0])  # minus infinity times a sigmoid of 0
    assert (found[1:] == np.inf).all()
    out = gemm.gemm_amax_forward(x, y, sfa, sfb, c_dtype="float8_e4m3fn")
    assert np.unique(numbers(out["c_tensor"])).tolist() == [-448, 448]
    assert out["amax_tensor"].item() == np.inf
    y[5, 3] = 0  # infinity times 0
    assert np.isnan(gemm.gemm_amax_forward(x, y, sfa, sfb)["c_tensor"]).ravel().nonzero()[0].tolist() == [5]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nan_reaches_amax(framework: str) -> None:
    case = Case("mxfp8_e4m3", batch=1, n=64)
    case.a[3, 5] = 0x7F
    out = gemm.gemm_amax_forward(*case.operands(framework))
    assert np.isnan(numbers(out["c_tensor"])).sum() == 64
    assert np.isnan(out["amax_tensor"].item())
    case = Case("nvfp4", batch=1, n=64)
    case.prob[3] = np.nan
    for name, more in (("forward", ()), ("backward", (wrap(framework, case.upstream),))):
        a, b, *scales = case.operands(framework)
        found = getattr(gemm, f"gemm_srelu_{name}")(a, b, *more, *scales, wrap(framework, case.prob))
        assert np.isnan(numbers(found["amax_tensor"])).all()
