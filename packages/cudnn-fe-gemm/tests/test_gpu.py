"""GEMM + SwiGLU on a GPU: every kernel against float64, and everything that only a GPU can show."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cudnn_fe.core.compile import compile_counts
from cudnn_fe.core.errors import AlignmentError
from cudnn_fe.core.settings import override
from cudnn_fe.core.torch import torch_op
from cudnn_fe.core.tuning import forget_choices
from cudnn_fe.gemm import gemm_swiglu_backward, gemm_swiglu_forward, gemm_swiglu_jax_forward
from cudnn_fe.gemm.dswiglu import dswiglu
from cudnn_fe.gemm.legacy import GemmSwigluSm100
from cudnn_fe.gemm.matmul import matmul
from cudnn_fe.gemm.matmul.op import MATMUL
from cudnn_fe.gemm.swiglu.op import FORWARD
from cudnn_fe.gemm.tune import tune_tile
from cudnn_fe_testkit.compare import gemm_tolerance
from cudnn_fe_testkit.swiglu import DTYPES, c_tolerance, exact

pytestmark = pytest.mark.gpu
CUDA = "cuda"


def random(rows: int, columns: int, batch: int, kind: str, major: str = "k", *, seed: int = 0, pad: int = 0) -> Any:
    """(rows, columns, batch) normal values on the GPU, contiguous along dim 1 ("k") or 0 ("mn"), NaN between rows."""
    generator = torch.Generator(CUDA).manual_seed(seed)
    inner, outer = (columns, rows) if major == "k" else (rows, columns)
    memory = torch.full((batch, outer, inner + pad), float("nan"), device=CUDA).to(getattr(torch, kind))
    memory[..., :inner] = torch.randn((batch, outer, inner), generator=generator, device=CUDA).to(memory.dtype)
    view = memory[..., :inner]
    return view.permute(1, 2, 0) if major == "k" else view.permute(2, 1, 0)


def served_by(a: Any, b: Any, **options: Any) -> str:
    """The backend of a call."""
    named = {"c_major": "n", "ab12_dtype": "float32", "c_dtype": "float16", "acc_dtype": "float32"} | options
    hints = {"mma_tiler_mn": (128, 128), "cluster_shape_mn": None, "sf_vec_size": 16, "ab12_stages": 4}
    return torch_op(FORWARD).plan((a, b), tuple((named | hints).items()), None).backend


def rel_rms(x: Any, reference: Any) -> float:
    """Root mean square of the error over that of the reference, on the GPU; NaN anywhere gives NaN."""
    if reference.numel() == 0:
        assert x.shape == reference.shape
        return 0.0
    error = (x.double() - reference).square().mean().sqrt()
    norm = reference.square().mean().sqrt()
    return float(error) if float(norm) == 0 else float(error / norm)


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Fill the allocator's free blocks with NaN, so that elements that nobody writes are seen."""
    blocks = [torch.full((1 << size,), float("nan"), device=CUDA) for size in (8, 12, 16, 20, 24)]
    del blocks
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
        a, b = random(m, k, batch, kind, a_major, seed=index), random(n, k, batch, kind, b_major, seed=index + 99)
        out = gemm_swiglu_forward(a, b, 0.75, c_major, ab12_dtype=ab12_dtype, c_dtype=c_dtype, backend=backend)
        ab12, c = exact(a.double(), b.double(), 0.75)
        where = f"{m=} {n=} {k=} {batch=}"
        error = rel_rms(out["ab12_tensor"], ab12)
        assert error <= gemm_tolerance(k, kind, ab12_dtype), f"AB12 {where}: {error:.2e}"
        error = rel_rms(out["c_tensor"], c)
        assert error <= c_tolerance(k, kind, c_dtype), f"C {where}: {error:.2e}"
        assert m < 2 or out["c_tensor"].stride(1 if c_major == "n" else 0) == 1


def test_the_expected_backend_serves() -> None:
    a, b = random(256, 128, 1, "bfloat16"), random(128, 128, 1, "bfloat16")
    assert served_by(a, b) == ("sm90" if torch.cuda.get_device_capability() == (9, 0) else "portable")
    odd = random(256, 333, 1, "bfloat16"), random(128, 333, 1, "bfloat16")
    assert served_by(*odd) == "portable"
    assert served_by(a[:0], b) == "reference"


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_long_sums_keep_their_digits(kind: str) -> None:
    """Operands of one sign, so that every bit lost from the running sum is lost in one direction."""
    a, b = (random(rows, 32768, 1, kind, seed=rows).float().abs().to(getattr(torch, kind)) for rows in (128, 256))

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
        a, b = random(130, 96, 2, kind, pad=pad), random(128, 96, 2, kind, seed=1, pad=pad)
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
    a, b = random(200, 136, 2, kind), random(192, 136, 2, kind, seed=1)
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
    a, b = random(64, 64, 1, "float32"), random(64, 64, 1, "float32", seed=1)
    for row, bits in enumerate((0x7F800001, 0x7FFFFFFF, 0x7FC00000, 0x7F801000)):
        a.view(torch.int32)[row, 5, 0] = bits
    out = matmul(a, b, d_dtype="float32", backend=backend)
    assert bool(out[:4].isnan().all())
    assert bool(out[4:].isfinite().all())


def test_more_than_2_to_31_elements() -> None:
    """AB12 of 2^31 + elements, and an operand whose rows lie beyond 2^31 elements."""
    m, n, k = 70_000, 32_768, 64
    a, b = random(m, k, 1, "bfloat16"), random(n, k, 1, "bfloat16", seed=1)
    for backend in ("auto", "portable"):
        out = gemm_swiglu_forward(a, b, ab12_dtype="bfloat16", c_dtype="bfloat16", backend=backend)
        for rows in (slice(0, 64), slice(m - 64, m)):
            ab12, c = exact(a[rows].double(), b.double())
            assert rel_rms(out[0][rows], ab12) <= gemm_tolerance(k, "bfloat16", "bfloat16")
            assert rel_rms(out[1][rows], c) <= c_tolerance(k, "bfloat16", "bfloat16")
        del out
    wide = torch.zeros(40_000, 65_536, 1, device=CUDA, dtype=torch.bfloat16)
    a = wide[:, 65_000:65_064]
    a.copy_(random(40_000, 64, 1, "bfloat16"))
    for backend in ("auto", "portable"):
        out = gemm_swiglu_forward(a, b[:128], ab12_dtype="bfloat16", c_dtype="bfloat16", backend=backend)
        ab12, _ = exact(a[-64:].double(), b[:128].double())
        assert rel_rms(out[0][-64:], ab12) <= gemm_tolerance(k, "bfloat16", "bfloat16")


def test_bit_equal_from_run_to_run() -> None:
    a, b = random(1000, 4096, 1, "bfloat16"), random(512, 4096, 1, "bfloat16", seed=1)
    first = gemm_swiglu_forward(a, b)
    for _ in range(5):
        again = gemm_swiglu_forward(a, b)
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


def test_a_graph_replays_with_new_data() -> None:
    a, b = random(256, 512, 1, "bfloat16"), random(256, 512, 1, "bfloat16", seed=1)
    out = gemm_swiglu_forward(a, b)  # compile before capture
    op = GemmSwigluSm100(a, b, out[0], out[1])
    op.compile()
    graph = torch.cuda.CUDAGraph()
    buffers = [torch.empty_like(out[0]), torch.empty_like(out[1])]
    with torch.cuda.graph(graph):
        captured = gemm_swiglu_forward(a, b)
        op.execute(a, b, *buffers)
    a.copy_(random(256, 512, 1, "bfloat16", seed=7))
    graph.replay()
    torch.cuda.synchronize()
    ab12, _ = exact(a.double(), b.double())
    for result in (captured[0], buffers[0]):
        assert rel_rms(result, ab12) <= gemm_tolerance(512, "bfloat16", "float32")


def test_a_buffer_less_aligned_than_its_sample_is_refused() -> None:
    a, b = random(64, 64, 1, "bfloat16"), random(64, 64, 1, "bfloat16", seed=1)
    ab12, c, _, _ = gemm_swiglu_forward(a, b)
    op = GemmSwigluSm100(a, b, ab12, c)
    op.compile()
    shifted = torch.zeros(64 * 64 + 1, device=CUDA, dtype=torch.bfloat16)[1:].view(64, 64, 1)
    with pytest.raises(AlignmentError, match="a_tensor: got a pointer aligned to 2 bytes, wanted 16 bytes"):
        op.execute(shifted, b, ab12, c)


@pytest.mark.parametrize("form", ["torch", "handle"])
def test_a_side_stream_orders_the_call(form: str) -> None:
    """The call waits for what its stream waits for: inputs are filled there, late."""
    stream = torch.cuda.Stream()
    a, b = torch.zeros(256, 512, 1, device=CUDA, dtype=torch.bfloat16), random(256, 512, 1, "bfloat16", seed=1)
    late = random(256, 512, 1, "bfloat16")
    gemm_swiglu_forward(a, b)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        a.copy_(late)
    out = gemm_swiglu_forward(a, b, stream=stream if form == "torch" else stream.cuda_stream)
    stream.synchronize()
    ab12, _ = exact(late.double(), b.double())
    assert rel_rms(out[0], ab12) <= gemm_tolerance(512, "bfloat16", "float32")


def test_threads_call_at_once() -> None:
    """Threads without a CUDA context, on plans that nobody has made yet."""
    failures: list[str] = []

    def work(index: int) -> None:
        a, b = random(64 + index, 256, 1, "bfloat16", seed=index), random(128, 256, 1, "bfloat16", seed=1)
        out = gemm_swiglu_forward(a, b)
        error = rel_rms(out[0], exact(a.double(), b.double())[0])
        if error > gemm_tolerance(256, "bfloat16", "float32"):
            failures.append(f"thread {index}: {error:.2e}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_new_m_compiles_nothing() -> None:
    b = random(256, 512, 1, "bfloat16", seed=1)
    for m in (1, 17, 64, 128, 300, 1000, 4096, 16384):
        gemm_swiglu_forward(random(m, 512, 1, "bfloat16"), b)
    before = compile_counts.compiled + compile_counts.loaded
    for m in (2, 18, 63, 129, 301, 1001, 4097, 16383):
        gemm_swiglu_forward(random(m, 512, 1, "bfloat16"), b)
    assert compile_counts.compiled + compile_counts.loaded == before


def test_no_synchronisation() -> None:
    a, b = random(256, 512, 1, "bfloat16"), random(256, 512, 1, "bfloat16", seed=1)
    a.requires_grad_()
    gemm_swiglu_forward(a, b, c_dtype="bfloat16")["c_tensor"].sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gemm_swiglu_forward(a, b, c_dtype="bfloat16")["c_tensor"].sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_gradients_against_float64_autograd(kind: str) -> None:
    m, n, k, batch = 300, 256, 192, 2
    a, b = (
        random(*shape, kind, seed=seed).requires_grad_() for seed, shape in ((0, (m, k, batch)), (1, (n, k, batch)))
    )
    c_dtype = "float16" if kind == "float16" else "bfloat16"
    weight = random(m, n // 2, batch, "float32", seed=2) / 8
    upstream = random(m, n, batch, "float32", seed=3) / 8
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
    a, b = random(128, 64, 1, "float8_e4m3fn"), random(128, 64, 1, "float8_e4m3fn", seed=1)
    ab12 = gemm_swiglu_forward(a, b, 0.125)["ab12_tensor"]
    dc = random(128, 64, 1, "bfloat16", seed=2)
    out = gemm_swiglu_backward(a, b, ab12, dc, alpha=0.125)
    a64, b64 = (x.double().requires_grad_() for x in (a, b))
    (exact(a64, b64, 0.125)[1] * dc.double()).sum().backward()
    assert out["da_tensor"].dtype == torch.bfloat16
    assert rel_rms(out["da_tensor"], a64.grad) <= gemm_tolerance(128, "bfloat16", "bfloat16") + 3 * 2.0**-8
    assert rel_rms(out["db_tensor"], b64.grad) <= gemm_tolerance(128, "bfloat16", "bfloat16") + 3 * 2.0**-8


@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_activation_gradient_against_float64(kind: str, major: str) -> None:
    ab12 = random(333, 192, 2, kind, major) * 4
    ab12[5, 40, 1], ab12[6, 40, 1] = 100.0, -100.0  # gates far out, where 0 times infinity lurks
    dc, upstream = random(333, 96, 2, "bfloat16", major, seed=1), random(333, 192, 2, "float32", major, seed=2)
    for extra in (None, upstream):
        got = dswiglu(ab12, dc, extra, dtype="float32")
        s = ab12.double().requires_grad_()
        columns = torch.arange(96, device=CUDA)
        value, gate = s[:, 64 * (columns // 32) + columns % 32], s[:, 64 * (columns // 32) + 32 + columns % 32]
        (value * gate * torch.sigmoid(gate) * dc.double()).sum().backward()
        wanted = s.grad if extra is None else s.grad + extra.double()
        assert rel_rms(got, wanted) <= 2.0**-19


def test_torch_compile_traces_one_graph_and_trains() -> None:
    a, b = random(256, 512, 1, "bfloat16").requires_grad_(), random(256, 512, 1, "bfloat16", seed=1).requires_grad_()

    def step(a: Any, b: Any) -> Any:
        out = gemm_swiglu_forward(a, b, 0.05, c_dtype="bfloat16")
        return (out["c_tensor"].float() * 2).square().mean() + out["ab12_tensor"].mean()

    step(a, b).backward()
    eager = a.grad.clone(), b.grad.clone()
    a.grad = b.grad = None
    torch.compile(step, fullgraph=True)(a, b).backward()
    for got, wanted in zip((a.grad, b.grad), eager, strict=True):
        assert rel_rms(got, wanted.double()) <= 2.0**-7


def test_autocast_casts_as_matmul_does() -> None:
    a, b = random(128, 256, 1, "float32"), random(128, 256, 1, "float32", seed=1)
    with torch.autocast("cuda", torch.bfloat16):
        out = gemm_swiglu_forward(a, b)
    direct = gemm_swiglu_forward(a.bfloat16(), b.bfloat16())
    assert torch.equal(out[0], direct[0])


@pytest.mark.multigpu
def test_a_device_that_is_not_current() -> None:
    a, b = random(128, 256, 1, "bfloat16").to("cuda:1"), random(128, 256, 1, "bfloat16", seed=1).to("cuda:1")
    a, b = (x.permute(2, 0, 1).contiguous().permute(1, 2, 0) for x in (a, b))
    assert torch.cuda.current_device() == 0
    out = gemm_swiglu_forward(a, b)
    assert out[0].device == torch.device("cuda", 1)
    assert rel_rms(out[0], exact(a.double(), b.double())[0]) <= gemm_tolerance(256, "bfloat16", "float32")
    first = gemm_swiglu_forward(a.to("cuda:0").contiguous(), b.to("cuda:0").contiguous())
    assert torch.equal(first[0].cpu(), out[0].cpu())


def test_jax_jit_and_grad_on_the_gpu() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("JAX sees no GPU")
    keys = jax.random.split(jax.random.key(0), 3)
    a = jax.random.normal(keys[0], (200, 256, 1), jnp.bfloat16)
    b = jax.random.normal(keys[1], (256, 256, 1), jnp.bfloat16)
    weight = jax.random.normal(keys[2], (200, 128, 1), jnp.float32)

    def loss(a: Any, b: Any) -> Any:
        ab12, c = gemm_swiglu_jax_forward(a, b, 0.1, c_dtype="bfloat16")
        return (c.astype(jnp.float32) * weight).sum(), (ab12, c)

    (_, (ab12, c)), (da, db) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(a, b)
    a64, b64 = (torch.from_dlpack(x.astype(jnp.float32)).double().cuda().requires_grad_() for x in (a, b))
    s, y = exact(a64, b64, 0.1)
    (y * torch.from_dlpack(weight).double().cuda()).sum().backward()

    def torch_of(x: Any) -> Any:
        return torch.from_dlpack(x.astype(jnp.float32)).cuda()

    assert rel_rms(torch_of(ab12), s.detach()) <= gemm_tolerance(256, "bfloat16", "float32")
    assert rel_rms(torch_of(c), y.detach()) <= c_tolerance(256, "bfloat16", "bfloat16")
    for got, wanted in ((da, a64.grad), (db, b64.grad)):
        assert rel_rms(torch_of(got), wanted) <= gemm_tolerance(256, "bfloat16", "bfloat16") + 3 * 2.0**-8
    batched = jax.vmap(lambda a: gemm_swiglu_jax_forward(a, b, 0.1)[0])(jnp.stack([a, a * 2]))
    assert rel_rms(torch_of(batched[1]), 2 * s.detach()) <= gemm_tolerance(256, "bfloat16", "float32")


def test_the_tuner_finds_a_tile_and_later_calls_use_it(tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the tuner times the Hopper kernel's tiles")
    a, b = random(256, 512, 1, "bfloat16"), random(512, 512, 1, "bfloat16", seed=1)
    options = (("d_dtype", "float32"), ("d_major", "n"))
    with override(cache_dir=str(tmp_path)):
        forget_choices()
        tile = tune_tile(MATMUL, (a, b), options, "identity")
        plan = torch_op(MATMUL).plan((a, b), options, None)
        assert getattr(plan.spec, "tile", None) == tile
        reference = torch.einsum("mkl,nkl->mnl", a.double(), b.double())
        assert rel_rms(matmul(a, b), reference) <= gemm_tolerance(512, "bfloat16", "float32")
    forget_choices()
