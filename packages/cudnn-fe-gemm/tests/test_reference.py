"""The reference of GEMM + SwiGLU and its derivative: against float64, in every framework, at every edge."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch

from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.gemm import gemm_swiglu_backward, gemm_swiglu_forward
from cudnn_fe.gemm.matmul import matmul
from cudnn_fe_testkit.compare import assert_close, gemm_tolerance, rel_rms, to_float64
from cudnn_fe_testkit.inputs import Framework, arrange, convert, normal
from cudnn_fe_testkit.swiglu import DTYPES, c_tolerance, exact, order

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")


def expected(a: Any, b: Any, alpha: float = 1.0) -> tuple[Any, Any]:
    """The float64 definition, as NumPy arrays."""
    ab12, c = exact(torch.from_numpy(to_float64(a)), torch.from_numpy(to_float64(b)), alpha)
    return ab12.numpy(), c.numpy()


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_matches_float64(framework: Framework, kind: str) -> None:
    """K of one, of an odd number, and long; M of one and beside a multiple of the tile."""
    for m, n, k in ((1, 64, 1), (7, 128, 333), (129, 192, 4096)):
        a, b = normal((m, k, 1), kind, seed=m), normal((n, k, 1), kind, seed=n)
        out = gemm_swiglu_forward(
            convert(a, framework), convert(b, framework), 0.5, ab12_dtype="float32", c_dtype="bfloat16"
        )
        ab12, c = expected(a, b, 0.5)
        assert_close(
            out["ab12_tensor"], ab12, gemm_tolerance(k, kind, "float32", tensor_cores=False), f"AB12 {m=} {k=}"
        )
        assert_close(out["c_tensor"], c, c_tolerance(k, kind, "bfloat16", tensor_cores=False), f"C {m=} {k=}")


@pytest.mark.parametrize("c_major", ["n", "m"])
@pytest.mark.parametrize("b_major", ["k", "mn"])
@pytest.mark.parametrize("a_major", ["k", "mn"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_every_layout_of_operands_and_results(
    framework: Framework, a_major: Literal["k", "mn"], b_major: Literal["k", "mn"], c_major: str
) -> None:
    a = arrange(normal((5, 24, 3), seed=1), order(a_major), pad=3)
    b = arrange(normal((128, 24, 3), seed=2), order(b_major), pad=5)
    out = gemm_swiglu_forward(convert(a, framework), convert(b, framework), c_major=c_major)
    ab12, c = expected(a, b)
    assert_close(out["ab12_tensor"], ab12, gemm_tolerance(24, "float32", "float32", tensor_cores=False))
    assert_close(out["c_tensor"], c, c_tolerance(24, "float32", "float16", tensor_cores=False))
    for x, columns in ((out["ab12_tensor"], 128), (out["c_tensor"], 64)):
        strides = x.stride() if framework == "torch" else tuple(step // x.itemsize for step in x.strides)
        assert strides == ((columns, 1, 5 * columns) if c_major == "n" else (1, 5, 5 * columns))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"), [(0, 64, 8, 1), (4, 0, 8, 1), (4, 64, 0, 1), (4, 64, 0, 3), (4, 64, 8, 0)]
)
def test_zero_extents(framework: Framework, m: int, n: int, k: int, batch: int) -> None:
    if framework == "jax" and batch != 1:
        pytest.skip("JAX arrays are row-major: L must be 1")
    a, b = np.zeros((batch, m, k), np.float32), np.zeros((batch, n, k), np.float32)
    given = [convert(np.moveaxis(x, 0, 2), framework) for x in (a, b)]
    out = gemm_swiglu_forward(*given)
    assert out["ab12_tensor"].shape == (m, n, batch)
    assert out["c_tensor"].shape == (m, n // 2, batch)
    assert not to_float64(out["ab12_tensor"]).any()
    assert not to_float64(out["c_tensor"]).any()
    grads = gemm_swiglu_backward(given[0], given[1], out["ab12_tensor"], out["c_tensor"])
    assert grads["da_tensor"].shape == (m, k, batch)
    assert grads["db_tensor"].shape == (n, k, batch)
    assert not to_float64(grads["da_tensor"]).any()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_ends_of_the_activation(framework: Framework) -> None:
    """Gates far out, infinite and NaN; a zero value beside each."""
    gates = np.array([0.0, 88.0, 200.0, -88.0, -200.0, np.inf, -np.inf, np.nan], np.float32)
    a, b = np.ones((1, 1, 1), np.float32), np.zeros((64, 1, 1), np.float32)
    b[:8, 0, 0], b[32:40, 0, 0] = 1.0, gates
    out = gemm_swiglu_forward(convert(a, framework), convert(b, framework), c_dtype="bfloat16")
    got = to_float64(out["c_tensor"])[0, :8, 0]
    np.testing.assert_allclose(
        got[:6], [0.0, 88.0, 200.0, -88.0 * np.exp(-88.0), 0.0, np.inf], rtol=2.0**-8, atol=1e-36
    )
    assert np.isnan(got[6:]).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nan_reaches_exactly_what_depends_on_it(framework: Framework) -> None:
    a, b = normal((6, 16, 1)), normal((128, 16, 1), seed=1)
    a[2, 3], b[70, 5] = np.nan, np.inf
    out = gemm_swiglu_forward(convert(a, framework), convert(b, framework))
    bad = ~np.isfinite(to_float64(out["ab12_tensor"]))[:, :, 0]
    wanted = np.zeros_like(bad)
    wanted[2], wanted[:, 70] = True, True
    np.testing.assert_array_equal(bad, wanted)
    bad_c = ~np.isfinite(to_float64(out["c_tensor"]))[:, :, 0]
    wanted_c = np.zeros_like(bad_c)
    wanted_c[2], wanted_c[:, 32 + 6] = True, True
    np.testing.assert_array_equal(bad_c, wanted_c)


def test_results_unpack_in_the_documented_order() -> None:
    out = gemm_swiglu_forward(np.ones((2, 8, 1), np.float32), np.ones((64, 8, 1), np.float32))
    assert type(out) is TupleDict
    assert list(out.keys()) == ["ab12_tensor", "c_tensor", "sfc_tensor", "amax_tensor"]
    ab12, c, sfc, amax = out
    assert ab12 is out["ab12_tensor"]
    assert c is out[1]
    assert sfc is None
    assert amax is None


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_match_finite_differences(framework: Framework) -> None:
    """Of a scalar function of both results, by central differences of the float64 definition."""
    rng = np.random.default_rng(0)
    a, b = normal((3, 5, 1), seed=1, scale=0.7), normal((64, 5, 1), seed=2, scale=0.7)
    dc, d_ab12 = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 32, 1), (3, 64, 1)))
    saved = expected(a, b, 1.5)[0].astype(np.float32)
    given = [convert(x, framework) for x in (a, b, saved, dc, d_ab12)]
    out = gemm_swiglu_backward(given[0], given[1], given[2], given[3], given[4], 1.5)

    def loss(a: Any, b: Any) -> float:
        ab12, c = expected(a, b, 1.5)
        return float((c * dc).sum() + (ab12 * d_ab12).sum())

    for which, got in ((0, out["da_tensor"]), (1, out["db_tensor"])):
        operands = [a.astype(np.float64), b.astype(np.float64)]
        wanted = np.zeros(operands[which].shape)
        step = 1e-5
        for index in np.ndindex(wanted.shape):
            kept = operands[which][index]
            operands[which][index] = kept + step
            high = loss(*operands)
            operands[which][index] = kept - step
            wanted[index] = (high - loss(*operands)) / (2 * step)
            operands[which][index] = kept
        # Differences lose half of float64's digits; the gradient itself is float32.
        assert_close(got, wanted, 2e-6)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_gradients_match_float64_autograd(kind: str) -> None:
    m, n, k, batch = 40, 128, 48, 2
    a, b = (
        convert(arrange(normal(shape, kind, seed=seed, scale=k**-0.25), order("k")), "torch").requires_grad_()
        for seed, shape in enumerate(((m, k, batch), (n, k, batch)))
    )
    out = gemm_swiglu_forward(a, b, c_dtype="float16" if kind == "float16" else "bfloat16")
    (out["c_tensor"].float().square().sum() + out["ab12_tensor"].sum()).backward()
    a64, b64 = (x.detach().double().requires_grad_() for x in (a, b))
    ab12, c = exact(a64, b64)
    (c * 2 * out["c_tensor"].detach().double() + 0).sum().backward(retain_graph=True)
    ab12.sum().backward()
    # The gradient of C, then d(AB12), then the result are rounded to 16 bits each; float32 keeps all but C's.
    unit = {"float32": 2.0**-8, "bfloat16": 3 * 2.0**-8, "float16": 3 * 2.0**-11}[kind]
    for got, wanted in ((a.grad, a64.grad), (b.grad, b64.grad)):
        assert rel_rms(got, wanted) <= unit + gemm_tolerance(n, kind, kind, tensor_cores=False)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_gradients_come_in_bfloat16(framework: Framework, kind: str) -> None:
    a, b = normal((8, 16, 1), kind), normal((64, 16, 1), kind, seed=1)
    ab12 = expected(a, b)[0].astype(np.float32)
    dc = normal((8, 32, 1), "bfloat16", seed=2)
    out = gemm_swiglu_backward(*(convert(x, framework) for x in (a, b, ab12, dc)))
    wide = gemm_swiglu_backward(a.astype(np.float32), b.astype(np.float32), ab12, dc)
    assert "bfloat16" in str(out["da_tensor"].dtype)
    for key in ("da_tensor", "db_tensor"):
        assert_close(out[key], wide[key], 3 * 2.0**-8)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_plain_product(framework: Framework) -> None:
    a, b = normal((9, 33, 1)), normal((5, 33, 1), seed=1)
    d = matmul(convert(a, framework), convert(b, framework), 0.25, d_dtype="float32")
    wanted = 0.25 * np.einsum("mkl,nkl->mnl", a.astype(np.float64), b.astype(np.float64))
    assert_close(d, wanted, gemm_tolerance(33, "float32", "float32", tensor_cores=False))


def test_frameworks_agree_with_one_another() -> None:
    a, b = normal((16, 64, 1), "bfloat16"), normal((128, 64, 1), "bfloat16", seed=1)
    results = [gemm_swiglu_forward(convert(a, f), convert(b, f), c_dtype="bfloat16") for f in FRAMEWORKS]
    for other in results[1:]:
        assert_close(other[0], to_float64(results[0][0]), 2.0**-22)


def test_autocast_casts_the_operands_and_nothing_inside() -> None:
    """The definition's own products stay in float32 under autocast."""
    a, b = (torch.from_numpy(normal((rows, 64, 1), seed=rows)) for rows in (16, 128))
    with torch.autocast("cpu", torch.bfloat16):
        out = gemm_swiglu_forward(a, b)
    direct = gemm_swiglu_forward(a.bfloat16(), b.bfloat16())
    assert torch.equal(out["ab12_tensor"], direct["ab12_tensor"])
    assert torch.equal(out["c_tensor"], direct["c_tensor"])
