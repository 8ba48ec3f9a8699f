"""GEMM + SwiGLU on a GPU: every kernel against float64, and everything that only a GPU can show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cudnn_fe.core.torch import torch_op
from cudnn_fe.gemm import gemm_swiglu_backward, gemm_swiglu_forward
from cudnn_fe.gemm.dswiglu import dswiglu
from cudnn_fe.gemm.matmul import matmul
from cudnn_fe.gemm.swiglu.op import FORWARD
from cudnn_fe_testkit.compare import gemm_tolerance
from cudnn_fe_testkit.on_gpu import normal_matrix, poison, rel_rms
from cudnn_fe_testkit.swiglu import DTYPES, c_tolerance, exact

pytestmark = pytest.mark.gpu
CUDA = "cuda"


def served_by(a: Any, b: Any, **options: Any) -> str:
    """The backend of a call."""
    named = {"c_major": "n", "ab12_dtype": "float32", "c_dtype": "float16", "acc_dtype": "float32"} | options
    hints = {"mma_tiler_mn": (128, 128), "cluster_shape_mn": None, "sf_vec_size": 16, "ab12_stages": 4}
    return torch_op(FORWARD).plan((a, b), tuple((named | hints).items()), None).backend


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    poison()
    yield
    torch.cuda.synchronize()


# M around the tile's edges; K below, at and beside the stage's extent, and odd (rows that TMA refuses).
SHAPES = [
    (m, k, batch) for m in (0, 1, 7, 127, 128, 4097) for k, batch in ((64, 1), (333, 3), (520, 3), (1, 1), (0, 1))
]
# Result types, each at least twice; with the defaults (float32, float16) in the other tests, all are met.
OUTPUTS = {"bfloat16": ("bfloat16", "bfloat16"), "float16": ("float16", "float16"), "float32": ("float32", "bfloat16")}


@pytest.mark.parametrize("backend", ["auto", "portable"])
@pytest.mark.parametrize("c_major", ["n", "m"])
@pytest.mark.parametrize("b_major", ["k", "mn"])
@pytest.mark.parametrize("a_major", ["k", "mn"])
@pytest.mark.parametrize("kind", DTYPES)
def test_grid_against_float64(kind: str, a_major: str, b_major: str, c_major: str, backend: str) -> None:
    """Every dtype, every layout, the shapes above; N of one, three and eight column pairs."""
    ab12_dtype, c_dtype = OUTPUTS.get(kind, ("bfloat16", "float16"))
    for index, (m, k, batch) in enumerate(SHAPES):
        n = (64, 192, 512)[index % 3]
        a, b = (
            normal_matrix(m, k, batch, kind, a_major, seed=index),
            normal_matrix(n, k, batch, kind, b_major, seed=index + 99),
        )
        out = gemm_swiglu_forward(a, b, 0.75, c_major, ab12_dtype=ab12_dtype, c_dtype=c_dtype, backend=backend)
        ab12, c = exact(a.double(), b.double(), 0.75)
        where = f"{m=} {n=} {k=} {batch=}"
        error = rel_rms(out["ab12_tensor"], ab12)
        assert error <= gemm_tolerance(k, kind, ab12_dtype), f"AB12 {where}: {error:.2e}"
        error = rel_rms(out["c_tensor"], c)
        assert error <= c_tolerance(k, kind, c_dtype), f"C {where}: {error:.2e}"
        assert m < 2 or out["c_tensor"].stride(1 if c_major == "n" else 0) == 1


def test_the_expected_backend_serves() -> None:
    a, b = normal_matrix(256, 128, 1, "bfloat16"), normal_matrix(128, 128, 1, "bfloat16")
    assert served_by(a, b) == ("sm90" if torch.cuda.get_device_capability() == (9, 0) else "portable")
    odd = normal_matrix(256, 333, 1, "bfloat16"), normal_matrix(128, 333, 1, "bfloat16")
    assert served_by(*odd) == "portable"
    assert served_by(a[:0], b) == "reference"


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_long_sums_keep_their_digits(kind: str) -> None:
    """Operands of one sign, so that every bit lost from the running sum is lost in one direction."""
    a, b = (
        normal_matrix(rows, 32768, 1, kind, seed=rows).float().abs().to(getattr(torch, kind)) for rows in (128, 256)
    )

    def error(k: int, backend: str) -> float:
        out = matmul(a[:, :k], b[:, :k], d_dtype="float32", backend=backend)
        return rel_rms(out, torch.einsum("mkl,nkl->mnl", a[:, :k].double(), b[:, :k].double()))

    for backend in ("auto", "portable"):
        # What one sum of 128 products loses is there at K = 128 already. Beyond it, FP8 adds K / 128 such sums in
        # float32, each rounded to half a unit; other products meet the running sum 16 at a time in the tensor core,
        # which cuts off up to a unit of float32.
        promoted = backend == "auto" and kind.startswith("float8")
        lost = 32768 / 128 * 2.0**-24 if promoted else 32768 / 16 * 2.0**-23
        assert error(32768, backend) <= 1.1 * error(128, backend) + lost, backend
        assert error(32768, backend) <= 2.0**-10, backend


@pytest.mark.parametrize("kind", DTYPES)
def test_padded_and_shifted_operands(kind: str) -> None:
    """Rows padded with NaN, and base addresses off by one element, reach no result."""
    for pad, shift in ((8, 0), (16, 0), (1, 0), (0, 1), (3, 1)):
        a, b = normal_matrix(130, 96, 2, kind, pad=pad), normal_matrix(128, 96, 2, kind, seed=1, pad=pad)
        if shift:
            raw = torch.full((a.numel() + 64,), float("nan"), device=CUDA).to(a.dtype)
            moved = raw[1:].as_strided(a.shape, (96, 1, 130 * 96))
            a = moved.copy_(a)
        out = gemm_swiglu_forward(a, b, ab12_dtype="float32", c_dtype="bfloat16")
        ab12, c = exact(a.double(), b.double())
        assert rel_rms(out[0], ab12) <= gemm_tolerance(96, kind, "float32"), (pad, shift)
        assert rel_rms(out[1], c) <= c_tolerance(96, kind, "bfloat16"), (pad, shift)


@pytest.mark.parametrize("backend", ["auto", "portable"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32", "float8_e5m2"])
def test_nan_and_inf_reach_exactly_what_depends_on_them(kind: str, poison: float, backend: str) -> None:
    a, b = normal_matrix(200, 136, 2, kind), normal_matrix(192, 136, 2, kind, seed=1)
    a[17, 5, 1] = poison
    b[70, 9, 0] = poison
    out = gemm_swiglu_forward(a, b, ab12_dtype="float32", c_dtype="bfloat16", backend=backend)
    finite = torch.isfinite(out["ab12_tensor"])
    expected = torch.ones_like(finite)
    expected[17, :, 1] = False
    expected[:, 70, 0] = False
    assert torch.equal(finite, expected)
    # Column 70 is value 6 of the second pair; row 17 of batch 1 spoils that whole row.
    ok = torch.isfinite(out["c_tensor"])
    assert not ok[:, 32 + 6, 0].any()
    ok[:, 32 + 6, 0] = True
    assert bool(ok[:, :, 0].all())
    assert bool(ok[torch.arange(200, device=CUDA) != 17][:, :, 1].all())


@pytest.mark.parametrize("backend", ["auto", "portable"])
def test_every_nan_of_float32_stays_nan_in_tf32(backend: str) -> None:
    a, b = normal_matrix(64, 64, 1, "float32"), normal_matrix(64, 64, 1, "float32", seed=1)
    for row, bits in enumerate((0x7F800001, 0x7FFFFFFF, 0x7FC00000, 0x7F801000)):
        a.view(torch.int32)[row, 5, 0] = bits
    out = matmul(a, b, d_dtype="float32", backend=backend)
    assert bool(out[:4].isnan().all())
    assert bool(out[4:].isfinite().all())


def test_more_than_2_to_31_elements() -> None:
    """AB12 of 2^31 + elements, and an operand whose rows lie beyond 2^31 elements."""
    m, n, k = 70_000, 32_768, 64
    a, b = normal_matrix(m, k, 1, "bfloat16"), normal_matrix(n, k, 1, "bfloat16", seed=1)
    for backend in ("auto", "portable"):
        out = gemm_swiglu_forward(a, b, ab12_dtype="bfloat16", c_dtype="bfloat16", backend=backend)
        for rows in (slice(0, 64), slice(m - 64, m)):
            ab12, c = exact(a[rows].double(), b.double())
            assert rel_rms(out[0][rows], ab12) <= gemm_tolerance(k, "bfloat16", "bfloat16")
            assert rel_rms(out[1][rows], c) <= c_tolerance(k, "bfloat16", "bfloat16")
        del out
    wide = torch.zeros(40_000, 65_536, 1, device=CUDA, dtype=torch.bfloat16)
    a = wide[:, 65_000:65_064]
    a.copy_(normal_matrix(40_000, 64, 1, "bfloat16"))
    for backend in ("auto", "portable"):
        out = gemm_swiglu_forward(a, b[:128], ab12_dtype="bfloat16", c_dtype="bfloat16", backend=backend)
        ab12, _ = exact(a[-64:].double(), b[:128].double())
        assert rel_rms(out[0][-64:], ab12) <= gemm_tolerance(k, "bfloat16", "bfloat16")


def test_bit_equal_from_run_to_run() -> None:
    a, b = normal_matrix(1000, 4096, 1, "bfloat16"), normal_matrix(512, 4096, 1, "bfloat16", seed=1)
    first = gemm_swiglu_forward(a, b)
    for _ in range(5):
        again = gemm_swiglu_forward(a, b)
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_gradients_against_float64_autograd(kind: str) -> None:
    m, n, k, batch = 300, 256, 192, 2
    a, b = (
        normal_matrix(*shape, kind, seed=seed).requires_grad_()
        for seed, shape in ((0, (m, k, batch)), (1, (n, k, batch)))
    )
    c_dtype = "float16" if kind == "float16" else "bfloat16"
    weight = normal_matrix(m, n // 2, batch, "float32", seed=2) / 8
    upstream = normal_matrix(m, n, batch, "float32", seed=3) / 8
    out = gemm_swiglu_forward(a, b, 0.5 / k**0.5, ab12_dtype="float32", c_dtype=c_dtype)
    ((out["c_tensor"].float() * weight).sum() + (out["ab12_tensor"] * upstream).sum()).backward()
    a64, b64 = (x.detach().double().requires_grad_() for x in (a, b))
    ab12, c = exact(a64, b64, 0.5 / k**0.5)
    ((c * weight.double().to(c.dtype)).sum() + (ab12 * upstream.double()).sum()).backward()
    # d(AB12) is rounded to the operands' type once more than a plain product's result.
    unit = 2.0**-11 if kind == "float32" else torch.finfo(getattr(torch, kind)).eps / 2
    for got, wanted in ((a.grad, a64.grad), (b.grad, b64.grad)):
        error = rel_rms(got, wanted)
        assert error <= gemm_tolerance(max(m, n), kind, kind) + 3 * unit, f"{error:.2e}"


def test_fp8_gradients_come_in_bfloat16() -> None:
    a, b = normal_matrix(128, 64, 1, "float8_e4m3fn"), normal_matrix(128, 64, 1, "float8_e4m3fn", seed=1)
    ab12 = gemm_swiglu_forward(a, b, 0.125)["ab12_tensor"]
    dc = normal_matrix(128, 64, 1, "bfloat16", seed=2)
    out = gemm_swiglu_backward(a, b, ab12, dc, alpha=0.125)
    a64, b64 = (x.double().requires_grad_() for x in (a, b))
    (exact(a64, b64, 0.125)[1] * dc.double()).sum().backward()
    assert out["da_tensor"].dtype == torch.bfloat16
    assert rel_rms(out["da_tensor"], a64.grad) <= gemm_tolerance(128, "bfloat16", "bfloat16") + 3 * 2.0**-8
    assert rel_rms(out["db_tensor"], b64.grad) <= gemm_tolerance(128, "bfloat16", "bfloat16") + 3 * 2.0**-8


@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_activation_gradient_against_float64(kind: str, major: str) -> None:
    ab12 = normal_matrix(333, 192, 2, kind, major) * 4
    ab12[5, 40, 1], ab12[6, 40, 1] = 100.0, -100.0  # gates far out, where 0 times infinity lurks
    dc, upstream = (
        normal_matrix(333, 96, 2, "bfloat16", major, seed=1),
        normal_matrix(333, 192, 2, "float32", major, seed=2),
    )
    for extra in (None, upstream):
        got = dswiglu(ab12, dc, extra, dtype="float32")
        s = ab12.double().requires_grad_()
        columns = torch.arange(96, device=CUDA)
        value, gate = s[:, 64 * (columns // 32) + columns % 32], s[:, 64 * (columns // 32) + 32 + columns % 32]
        (value * gate * torch.sigmoid(gate) * dc.double()).sum().backward()
        wanted = s.grad if extra is None else s.grad + extra.double()
        assert rel_rms(got, wanted) <= 2.0**-19
