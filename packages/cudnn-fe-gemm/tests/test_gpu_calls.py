"""GEMM + SwiGLU on a GPU: streams, graphs, threads, compilers, frameworks, devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cudnn_fe.core.compile import compile_counts
from cudnn_fe.core.errors import AlignmentError
from cudnn_fe.core.gemm_tiles import choose_tiles
from cudnn_fe.core.settings import override
from cudnn_fe.core.torch import torch_op
from cudnn_fe.core.tuning import forget_choices
from cudnn_fe.gemm import gemm_swiglu_forward, gemm_swiglu_jax_forward
from cudnn_fe.gemm.legacy import GemmSwigluSm100
from cudnn_fe.gemm.matmul import matmul
from cudnn_fe.gemm.matmul.op import MATMUL
from cudnn_fe.gemm.tune import tune_tile
from cudnn_fe_testkit.compare import gemm_tolerance
from cudnn_fe_testkit.on_gpu import normal_matrix, poison, rel_rms
from cudnn_fe_testkit.swiglu import c_tolerance, exact

pytestmark = pytest.mark.gpu
CUDA = "cuda"


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    poison()
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize(("n", "k"), [(256, 512), (28672, 2048)], ids=["one launch", "two launches"])
def test_a_graph_replays_with_new_data(n: int, k: int) -> None:
    a, b = normal_matrix(256, k, 1, "bfloat16"), normal_matrix(n, k, 1, "bfloat16", seed=1)
    out = gemm_swiglu_forward(a, b)  # compile before capture
    op = GemmSwigluSm100(a, b, out[0], out[1])
    op.compile()
    graph = torch.cuda.CUDAGraph()
    buffers = [torch.empty_like(out[0]), torch.empty_like(out[1])]
    with torch.cuda.graph(graph):
        captured = gemm_swiglu_forward(a, b)
        op.execute(a, b, *buffers)
    a.copy_(normal_matrix(256, k, 1, "bfloat16", seed=7))
    graph.replay()
    torch.cuda.synchronize()
    ab12, _ = exact(a.double(), b.double())
    for result in (captured[0], buffers[0]):
        assert rel_rms(result, ab12) <= gemm_tolerance(k, "bfloat16", "float32")


def test_a_buffer_less_aligned_than_its_sample_is_refused() -> None:
    a, b = normal_matrix(64, 64, 1, "bfloat16"), normal_matrix(64, 64, 1, "bfloat16", seed=1)
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
    a, b = torch.zeros(256, 512, 1, device=CUDA, dtype=torch.bfloat16), normal_matrix(256, 512, 1, "bfloat16", seed=1)
    late = normal_matrix(256, 512, 1, "bfloat16")
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
        a, b = normal_matrix(64 + index, 256, 1, "bfloat16", seed=index), normal_matrix(128, 256, 1, "bfloat16", seed=1)
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
    b = normal_matrix(256, 512, 1, "bfloat16", seed=1)
    for m in (1, 17, 64, 128, 300, 1000, 4096, 16384):
        gemm_swiglu_forward(normal_matrix(m, 512, 1, "bfloat16"), b)
    before = compile_counts.compiled + compile_counts.loaded
    for m in (2, 18, 63, 129, 301, 1001, 4097, 16383):
        gemm_swiglu_forward(normal_matrix(m, 512, 1, "bfloat16"), b)
    assert compile_counts.compiled + compile_counts.loaded == before


def test_no_synchronisation() -> None:
    a, b = normal_matrix(256, 512, 1, "bfloat16"), normal_matrix(256, 512, 1, "bfloat16", seed=1)
    a.requires_grad_()
    gemm_swiglu_forward(a, b, c_dtype="bfloat16")["c_tensor"].sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gemm_swiglu_forward(a, b, c_dtype="bfloat16")["c_tensor"].sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_torch_compile_traces_one_graph_and_trains() -> None:
    a, b = (
        normal_matrix(256, 512, 1, "bfloat16").requires_grad_(),
        normal_matrix(256, 512, 1, "bfloat16", seed=1).requires_grad_(),
    )

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
    a, b = normal_matrix(128, 256, 1, "float32"), normal_matrix(128, 256, 1, "float32", seed=1)
    with torch.autocast("cuda", torch.bfloat16):
        out = gemm_swiglu_forward(a, b)
    direct = gemm_swiglu_forward(a.bfloat16(), b.bfloat16())
    assert torch.equal(out[0], direct[0])


@pytest.mark.multigpu
def test_a_device_that_is_not_current() -> None:
    a, b = (
        normal_matrix(128, 256, 1, "bfloat16").to("cuda:1"),
        normal_matrix(128, 256, 1, "bfloat16", seed=1).to("cuda:1"),
    )
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


def test_jax_runs_the_two_launches_of_a_wave_hardly_filled() -> None:
    jax = pytest.importorskip("jax")
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("JAX sees no GPU")
    m, n, k = 256, 28672, 2048
    shape = (m, n, k, 1)
    assert choose_tiles(*shape, dtype="bfloat16", epilogue="swiglu", multiprocessors=132)[1] is not None
    a, b = normal_matrix(m, k, 1, "bfloat16"), normal_matrix(n, k, 1, "bfloat16", seed=1)
    run = jax.jit(lambda a, b: gemm_swiglu_jax_forward(gemm_swiglu_jax_forward(a, b)[0][:, :k].astype(a.dtype), b)[0])
    got = torch.from_dlpack(run(jax.dlpack.from_dlpack(a.contiguous()), jax.dlpack.from_dlpack(b.contiguous())))
    between = exact(a.double(), b.double())[0][:, :k].float().bfloat16()
    # Its float32 sums are off by 2^-20 or so, which rounds one element in 2^11 the other way, by 2^-8.
    assert rel_rms(got, exact(between.double(), b.double())[0]) <= gemm_tolerance(k, "bfloat16", "float32") + 2.0**-12


def test_the_tuner_finds_a_tile_and_later_calls_use_it(tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the tuner times the Hopper kernel's tiles")
    a, b = normal_matrix(256, 512, 1, "bfloat16"), normal_matrix(512, 512, 1, "bfloat16", seed=1)
    options = (("d_dtype", "float32"), ("d_major", "n"))
    with override(cache_dir=str(tmp_path)):
        forget_choices()
        tile = tune_tile(MATMUL, (a, b), options, "identity")
        plan = torch_op(MATMUL).plan((a, b), options, None)
        assert getattr(plan.spec, "tile", None) == tile
        reference = torch.einsum("mkl,nkl->mnl", a.double(), b.double())
        assert rel_rms(matmul(a, b), reference) <= gemm_tolerance(512, "bfloat16", "float32")
    forget_choices()
