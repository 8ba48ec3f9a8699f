"""The grouped GEMMs on a GPU: streams, graphs, routings by the hundred, determinism, and training with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe.core.op import Op
from cudnn_fe.core.torch import torch_op
from cudnn_fe.grouped import (
    grouped_gemm_forward,
    grouped_gemm_glu_backward,
    grouped_gemm_glu_forward,
    grouped_gemm_jax_forward,
    grouped_gemm_wgrad_forward,
)
from cudnn_fe.grouped.dglu.op import BACKWARD
from cudnn_fe.grouped.glu import grouped_gemm_glu_jax_forward
from cudnn_fe.grouped.glu.op import FORWARD as GLU
from cudnn_fe.grouped.unfused.op import FORWARD as UNFUSED
from cudnn_fe.grouped.wgrad.op import WGRAD
from cudnn_fe_testkit.compare import gemm_tolerance
from cudnn_fe_testkit.grouped_gpu import (
    CUDA,
    DERIVATIVE,
    LARGE,
    UNIT,
    Case,
    K,
    N,
    activated,
    glu,
    random,
    serves,
    unfused,
    worst_matrix,
)
from cudnn_fe_testkit.on_gpu import poison
from cudnn_fe_testkit.swiglu import c_tolerance

pytestmark = pytest.mark.gpu
BACKENDS = [kernel.backend for kernel in UNFUSED.kernels]


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    poison()
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_routings(backend: str) -> None:
    """500 routings of 512 rows to 1 to 64 experts through all four, queued without waiting, then compared; no hang."""
    serves(backend)
    rng = np.random.default_rng(0)
    rows, k, n = 512, 64, 64
    a, b = random(rows, k, seed=1), random(64, n, k, seed=2, scale=k**-0.5)
    ones, dy = torch.ones(rows, device=CUDA), random(rows, n, seed=3)
    c = random(rows, 2 * n, seed=4)
    pre = c.double().requires_grad_()
    value = activated(pre, "swiglu")
    (slope,) = torch.autograd.grad(value.sum(), pre)
    value = value.detach()
    slope = slope.view(rows, n // 32, 2, 32)
    worst = torch.zeros((), device=CUDA, dtype=torch.float64)
    every = torch.arange(rows, device=CUDA)
    of_products, of_sums = gemm_tolerance(k, "bfloat16", "float32"), gemm_tolerance(rows, "bfloat16", "float32")
    for _ in range(500):
        experts, end = int(rng.integers(1, 65)), int(rng.integers(0, rows + 1))
        counts = rng.multinomial(end, rng.dirichlet(np.full(experts, 0.3)))
        ends = torch.tensor(np.cumsum(counts), dtype=torch.int32).to(CUDA, non_blocking=True)
        alpha = torch.ones(experts, device=CUDA)
        options: dict[str, Any] = {"d_dtype": "float32", "prob_tensor": ones, "backend": backend}
        d, _ = grouped_gemm_forward(a, ends, alpha, b[:experts], **options)
        weights: dict[str, Any] = {"wgrad_dtype": "float32", "backend": backend}
        (w,) = grouped_gemm_wgrad_forward(dy.T, a, None, None, ends, **weights)
        gated = grouped_gemm_glu_forward(a, None, ends, alpha, b[:experts], **options)["d_tensor"]
        one, dprob = alpha, torch.zeros(rows, device=CUDA)
        back = grouped_gemm_glu_backward(
            a, c, None, ends, alpha, one, ones, dprob, b[:experts], d_dtype="float32", backend=backend
        )["d_row_tensor"]
        owner = torch.searchsorted(ends, every.int(), right=True)
        inside = torch.nn.functional.one_hot(owner, experts + 1)[:, :experts].double()
        exact = torch.einsum("me,mk,enk->mn", inside, a.double(), b[:experts].double())
        exact_w = torch.einsum("me,mn,mk->enk", inside, dy.double(), a.double())
        exact_back = (exact.view(rows, n // 32, 1, 32) * slope).flatten(1)
        terms = exact * value  # of dprob, which may cancel
        for got, wanted, allowed, against in (
            (d, exact, of_products, exact),
            (w, exact_w, of_sums, exact_w),
            (gated, exact_gated := activated(exact, "swiglu"), c_tolerance(k, "bfloat16", "float32"), exact_gated),
            (back, exact_back, of_products + DERIVATIVE, exact_back),
            (dprob[:, None], terms.sum(1, keepdim=True), 2 * (of_products + DERIVATIVE), terms),
        ):
            size = against.flatten(1).norm(dim=1)
            error = (got.double() - wanted).flatten(1).norm(dim=1)
            # Each row, and each expert's matrix: twice what a whole result may have; zeros where no rows are.
            share = torch.where(size == 0, error * 1e9, error / size.clamp(min=1e-300))
            worst = torch.maximum(worst, (share / (2 * allowed)).max())
    done = torch.cuda.Event()
    done.record()
    deadline = time.monotonic() + 60
    while not done.query():
        assert time.monotonic() < deadline, "the routings do not finish"
        time.sleep(0.01)
    assert float(worst) <= 1


def steps(backend: str | None) -> tuple[Case, Callable[[], list[torch.Tensor]]]:
    """A case, and a function that runs all four ops on it."""
    case = Case(*LARGE["uneven tiles"])
    ones, dprob = torch.ones(len(case.counts), device=CUDA), torch.zeros(case.m, device=CUDA)
    back = random(len(case.counts), N // 2, K, seed=11, scale=K**-0.5)

    def run() -> list[torch.Tensor]:
        hidden = glu(case, backend, generate_c=True)
        d, _ = unfused(case, backend)
        dprob.zero_()
        gradient = grouped_gemm_glu_backward(
            case.a, hidden["c_tensor"], None, case.ends, case.alpha, ones, case.prob, dprob, back,
            generate_dbias=True, backend=backend,
        )  # fmt: skip
        rows = gradient["d_row_tensor"]
        (w,) = grouped_gemm_wgrad_forward(rows.T, case.a, None, None, case.ends, backend=backend)
        valid = [d, hidden["d_tensor"], rows, dprob]
        return [*(x.clone() for x in valid), gradient["dbias_tensor"], w]

    return case, run


@pytest.mark.parametrize("backend", BACKENDS)
def test_bit_equal_from_run_to_run(backend: str) -> None:
    serves(backend)
    _, run = steps(backend)
    first = run()
    for _ in range(3):
        assert all(torch.equal(x, y) for x, y in zip(run(), first, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_replays_with_other_offsets(backend: str) -> None:
    serves(backend)
    case, run = steps(backend)
    run()  # compile before capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    kept = case.a.nan_to_num(0.5), case.prob.nan_to_num(0.25)
    for counts in ([300, 0, 0, 5, 500, 1, 2, 3], [0, 0, 0, 0, 0, 0, 0, 1217], case.counts):
        case.a.copy_(kept[0])
        case.prob.copy_(kept[1])
        case.ends.copy_(torch.tensor(np.cumsum(counts), dtype=torch.int32))
        graph.replay()
        replayed = [x.clone() for x in captured]
        assert all(torch.equal(x, y) for x, y in zip(replayed, run(), strict=True)), counts


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_side_stream_orders_the_calls(backend: str) -> None:
    """The call waits for what its stream waits for: offsets are written there, late."""
    serves(backend)
    case = Case(*LARGE["uneven tiles"])
    wanted = unfused(case, backend)[0]
    late = case.ends.clone()
    case.ends.zero_()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        case.ends.copy_(late)
    got = unfused(case, backend, current_stream=stream)[0]
    stream.synchronize()
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_synchronisation(backend: str) -> None:
    serves(backend)
    _, run = steps(backend)
    case = Case(*LARGE["uneven tiles"])
    leaves = [x.requires_grad_() for x in (case.b, case.alpha, case.prob, case.bias)]
    case.a = case.a.nan_to_num(0)

    def train() -> None:
        hidden = glu(case, backend, bias_tensor=case.bias)["d_tensor"]
        plain, _ = unfused(case, backend, bias_tensor=case.bias)
        (hidden.float().sum() + plain.float().sum()).backward()

    run()
    train()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
        train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(leaf.grad is not None for leaf in leaves)


@pytest.mark.parametrize("backend", [None, "portable"])
def test_gradients_of_a_layer_expert_by_expert(backend: str | None) -> None:
    """Both layers of a mixture of experts, against float64 autograd."""
    case = Case([0, 700, 128, 1, 129], 50)
    x = case.a.detach().nan_to_num(0).requires_grad_()
    w1 = case.b.detach().requires_grad_()
    w2 = random(len(case.counts), K, N // 2, seed=11, scale=(N // 2) ** -0.5).requires_grad_()
    prob = case.prob.detach().nan_to_num(0).requires_grad_()
    one, weight = torch.ones(len(case.counts), device=CUDA), random(case.m, K, kind=torch.float32, seed=12)
    options: dict[str, Any] = {"prob_tensor": torch.ones_like(prob), "backend": backend}
    hidden = grouped_gemm_glu_forward(x, None, case.ends, one, w1, **options)["d_tensor"]
    y, _ = grouped_gemm_forward(hidden, case.ends, one, w2, prob_tensor=prob, backend=backend)
    (y[: case.end].float() * weight[: case.end]).sum().backward()

    x64, w1_64, w2_64, prob64 = (t.detach().double().requires_grad_() for t in (x, w1, w2, prob))

    def layer(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        parts = rows.split(case.counts)
        return torch.cat([part @ matrix.T for part, matrix in zip(parts, weights, strict=True)])

    exact = layer(activated(layer(x64[: case.end], w1_64), "swiglu"), w2_64) * prob64[: case.end, None]
    (exact * weight[: case.end].double()).sum().backward()
    # Rounded to bfloat16: the hidden rows, the gradients of both layers' sums, and the result itself.
    tolerance = gemm_tolerance(N, "bfloat16", "bfloat16") + 4 * UNIT
    assert x64.grad is not None
    assert x.grad is not None
    assert case.worst(x.grad, x64.grad[: case.end]) <= tolerance
    assert not bool(x.grad[case.end :].any())
    for got, wanted in ((w1, w1_64), (w2, w2_64)):
        assert got.grad is not None
        assert wanted.grad is not None
        assert worst_matrix(got.grad, wanted.grad) <= tolerance
    assert prob.grad is not None
    assert prob64.grad is not None
    error = (prob.grad.double() - prob64.grad)[: case.end].norm() / prob64.grad[: case.end].norm()
    assert float(error) <= tolerance


def test_jax_jit_and_grad_on_the_gpu() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("JAX sees no GPU")
    case = Case([0, 300, 128, 1], 20)
    w2 = random(4, K, N // 2, seed=11, scale=(N // 2) ** -0.5)
    x, w1, last, prob = (jnp.asarray(t.float().nan_to_num(0).cpu().numpy()) for t in (case.a, case.b, w2, case.prob))
    one = jnp.ones(4, jnp.float32)
    x, w1, last = (t.astype(jnp.bfloat16) for t in (x, w1, last))

    def loss(x: Any, w1: Any, w2: Any, ends: Any) -> Any:
        hidden = grouped_gemm_glu_jax_forward(x, ends, one, prob_tensor=jnp.ones_like(prob), b_tensor=w1)["d_tensor"]
        y, _ = grouped_gemm_jax_forward(hidden, ends, one, prob_tensor=prob, b_tensor=w2)
        return y.astype(jnp.float32).sum(), y

    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))
    for counts in (case.counts, [100, 0, 200, 129]):
        case.counts = counts
        (_, y), grads = step(x, w1, last, jnp.asarray(np.cumsum(counts), jnp.int32))
        rows = case.a.detach().double().nan_to_num(0).requires_grad_()
        leaves = [t.detach().double().requires_grad_() for t in (case.b, w2)]

        def layer(part: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            parts = part.split(case.counts)
            return torch.cat([p @ matrix.T for p, matrix in zip(parts, weights, strict=True)])

        hidden = activated(layer(rows[: case.end], leaves[0]), "swiglu")
        exact = layer(hidden, leaves[1]) * case.prob[: case.end, None].double()
        exact.sum().backward()

        def on_gpu(array: Any) -> torch.Tensor:
            return torch.from_numpy(np.asarray(array.astype(jnp.float32))).to(CUDA)

        tolerance = gemm_tolerance(N, "bfloat16", "bfloat16") + 4 * UNIT
        assert case.worst(on_gpu(y), exact.detach()) <= tolerance
        assert rows.grad is not None
        assert case.worst(on_gpu(grads[0]), rows.grad[: case.end]) <= tolerance
        for got, leaf in zip(grads[1:], leaves, strict=True):
            assert leaf.grad is not None
            assert worst_matrix(on_gpu(got), leaf.grad) <= tolerance


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("experts", [1, 1024])
def test_as_few_and_as_many_experts_as_there_may_be(experts: int, backend: str) -> None:
    """Through all four; in the large case experts of no, one and two rows."""
    serves(backend)
    counts = [i % 3 for i in range(experts)] if experts > 1 else [1000]
    case = Case(counts, 7, k=64, n=64)
    hidden = glu(case, backend, c_dtype="float32", d_dtype="float32", generate_c=True)
    pre, prob = case.product(), case.prob[: case.end, None].double()
    few = 2  # times the tolerance of thousands of elements: a row has 64, and a gated one 32
    assert case.worst(hidden["c_tensor"], pre) <= few * gemm_tolerance(64, case.kind, "float32")
    gated = activated(pre, "swiglu") * prob
    assert case.worst(hidden["d_tensor"], gated) <= few * c_tolerance(64, case.kind, "float32")
    back, ones = random(experts, 32, 64, seed=11, scale=0.125), torch.ones(experts, device=CUDA)
    gradient = grouped_gemm_glu_backward(
        case.a, hidden["c_tensor"], None, case.ends, ones, ones, case.prob, torch.zeros(case.m, device=CUDA), back,
        generate_dbias=True, d_dtype="float32", backend=backend,
    )  # fmt: skip
    held = hidden["c_tensor"][: case.end].double().requires_grad_()
    (wanted,) = torch.autograd.grad((activated(held, "swiglu") * case.times(case.a, back) * prob).sum(), held)
    tolerance = few * (gemm_tolerance(64, case.kind, "float32") + DERIVATIVE)
    assert case.worst(gradient["d_row_tensor"], wanted) <= tolerance
    dbias = case.sums(torch.ones(case.m, 1, device=CUDA), wanted).transpose(1, 2)
    assert worst_matrix(gradient["dbias_tensor"], dbias) <= few * (UNIT + tolerance)
    dy = random(case.m, 64, seed=9)
    (w,) = grouped_gemm_wgrad_forward(dy.T, case.a, None, None, case.ends, wgrad_dtype="float32", backend=backend)
    assert worst_matrix(w, case.sums(dy, case.a)) <= few * gemm_tolerance(max(counts), case.kind, "float32")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_thousand_experts_and_two_to_the_31_elements(backend: str) -> None:
    serves(backend)
    case = Case([i % 3 for i in range(1024)], 7, k=64, n=64)
    d, _ = unfused(case, backend, d_dtype="float32")
    wanted = case.product() * case.prob[: case.end, None].double()
    assert case.worst(d, wanted) <= 2 * gemm_tolerance(64, case.kind, "float32")  # of 64 elements, some experts' all
    case = Case([69_000, 0, 1_000], k=64, n=32_768)
    d, _ = unfused(case, backend)
    for rows, expert in ((slice(0, 64), 0), (slice(68_936, 69_000), 0), (slice(69_936, 70_000), 2)):
        exact = case.a[rows].double() @ case.b[expert].double().T * case.alpha[expert] * case.prob[rows, None]
        error = (d[rows].double() - exact).norm() / exact.norm()
        assert float(error) <= gemm_tolerance(64, case.kind, "bfloat16")


@pytest.mark.parametrize("op", [UNFUSED, GLU, BACKWARD, WGRAD], ids=lambda op: op.name)
def test_the_expected_backend_serves(op: Op) -> None:
    """The best kernel of this GPU, on operands as training has them."""
    _, run = steps(None)
    torch_op(op).forget_plans()
    run()
    hopper = torch.cuda.get_device_capability() == (9, 0)
    best = next(kernel.backend for kernel in op.kernels if hopper or kernel.backend == "portable")
    assert {plan.backend for plan in torch_op(op)._plans.values()} == {best}
