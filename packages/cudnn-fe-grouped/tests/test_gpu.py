"""The grouped GEMMs on a GPU: every kernel against float64, expert by expert, and what only a GPU can show."""

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
from cudnn_fe.grouped.glu_gradient import glu_gradient
from cudnn_fe.grouped.unfused.op import FORWARD as UNFUSED
from cudnn_fe.grouped.wgrad.op import WGRAD
from cudnn_fe_testkit.compare import gemm_tolerance
from cudnn_fe_testkit.moe import ROUTINGS
from cudnn_fe_testkit.swiglu import c_tolerance

pytestmark = pytest.mark.gpu
CUDA = "cuda"
K, N = 192, 256
BF16 = torch.bfloat16
UNIT = 2.0**-8  # unit roundoff of bfloat16
# Of an activation's derivative: four products of rounded factors, and the approximate exponential and reciprocal.
DERIVATIVE = 8 * 2.0**-20
# Beside the small ones: groups of several tiles, of exactly one, ending within one; more experts than a warp's lanes.
LARGE = {
    "uneven tiles": ([0, 700, 128, 1, 0, 256, 129, 3], 50),
    "many experts": ([(7 * i) % 13 for i in range(150)], 1),
}
BACKENDS = [kernel.backend for kernel in UNFUSED.kernels]


def serves(backend: str) -> None:
    """Skip where this GPU is not the backend's."""
    if backend == "sm90" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel is written for compute capability 9.0")


def random(*shape: int, kind: Any = BF16, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator(CUDA).manual_seed(seed)
    return (torch.randn(shape, generator=generator, device=CUDA) * scale).to(kind)


class Case:
    """Operands of a routing, poisoned past the last end.

    Args:
        counts: Rows of each expert.
        tail: Rows past the end.
        kind: Element type of A and B.
        k: Width of the rows.
        n: Rows of each expert's weights.
    """

    def __init__(self, counts: list[int], tail: int = 0, kind: Any = BF16, k: int = K, n: int = N) -> None:
        self.counts, self.end, self.m = counts, sum(counts), sum(counts) + tail
        self.kind = str(kind).removeprefix("torch.")
        self.k, experts = k, len(counts)
        self.ends = torch.tensor(np.cumsum(counts), dtype=torch.int32, device=CUDA)
        self.a = random(self.m, k, kind=kind, seed=1)
        self.b = random(experts, n, k, kind=kind, seed=2, scale=k**-0.5)
        self.alpha = random(experts, kind=torch.float32, seed=3) + 2
        self.prob = random(self.m, kind=torch.float32, seed=4)
        self.bias = random(n, experts, seed=5)
        self.a[self.end :] = float("nan")
        self.prob[self.end :] = float("nan")
        self.owner = torch.repeat_interleave(
            torch.arange(experts, device=CUDA), torch.tensor(counts, device=CUDA), output_size=self.end
        )

    def product(self) -> torch.Tensor:
        """alpha * A * B of the experts' rows, in float64."""
        return self.times(self.a, self.b) * self.alpha.double()[self.owner, None]

    def times(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Each row times its expert's weights, in float64."""
        parts = rows[: self.end].split(self.counts)
        return torch.cat([part.double() @ weight.double().T for part, weight in zip(parts, weights, strict=True)])

    def sums(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """For each expert the product of its rows of ``left``, transposed, and of ``right``, in float64."""
        parts = zip(left[: self.end].split(self.counts), right[: self.end].split(self.counts), strict=True)
        return torch.stack([x.double().T @ y.double() for x, y in parts])

    def worst(self, got: torch.Tensor, wanted: torch.Tensor) -> float:
        """The largest relative RMS error of one expert's rows: an average would hide a wrong expert."""
        error = (got[: self.end].double() - wanted).square()
        pairs = zip(error.split(self.counts), wanted.square().split(self.counts), strict=True)
        parts = [(e.mean() / w.mean()).sqrt() for e, w in pairs if e.numel()]
        return float(torch.stack(parts).max()) if parts else 0.0


def worst_matrix(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest relative RMS error of one expert's matrix; those of experts without rows must be zero."""
    axes = tuple(range(1, wanted.ndim))
    error, size = ((x.square().mean(axes)).sqrt() for x in (got.double() - wanted, wanted))
    assert not bool(got[size == 0].any()), "an expert without rows has a gradient"
    return float((error / torch.where(size == 0, 1.0, size)).max())


def halves(c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up of alternating 32-column blocks."""
    blocks = c.view(len(c), c.shape[1] // 64, 2, 32)
    return blocks[:, :, 0].flatten(1), blocks[:, :, 1].flatten(1)


def activated(c: torch.Tensor, act: str) -> torch.Tensor:
    """SwiGLU, or GeGLU with its clamps, of float64 values."""
    gate, up = halves(c)
    if act == "swiglu":
        return torch.sigmoid(gate) * gate * up
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return torch.sigmoid(1.702 * gate) * gate * (up + 1)


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Fill the allocator's free blocks with NaN, so that elements that nobody writes are seen."""
    blocks = [torch.full((1 << size,), float("nan"), device=CUDA) for size in (8, 12, 16, 20, 24)]
    del blocks
    yield
    torch.cuda.synchronize()


def unfused(case: Case, backend: str | None = None, **options: Any) -> Any:
    named = {"prob_tensor": case.prob, "backend": backend, **options}
    return grouped_gemm_forward(case.a, case.ends, case.alpha, case.b, **named)


def glu(case: Case, backend: str | None = None, **options: Any) -> Any:
    named = {"b_tensor": case.b, "prob_tensor": case.prob, "backend": backend, **options}
    return grouped_gemm_glu_forward(case.a, None, case.ends, case.alpha, **named)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("routing", [*ROUTINGS, *LARGE])
def test_forward_expert_by_expert(routing: str, backend: str) -> None:
    serves(backend)
    case = Case(*(ROUTINGS | LARGE)[routing])
    pre = case.product()
    prob = case.prob[: case.end, None].double()
    d, c = unfused(case, backend, d_dtype="float32", generate_c=True)
    assert case.worst(d, pre * prob) <= gemm_tolerance(K, case.kind, "float32")
    assert case.worst(c, pre) <= gemm_tolerance(K, case.kind, "bfloat16")
    out = glu(case, backend, generate_c=True, c_dtype="float32")
    assert case.worst(out["c_tensor"], pre) <= gemm_tolerance(K, case.kind, "float32")
    assert case.worst(out["d_tensor"], activated(pre, "swiglu") * prob) <= c_tolerance(K, case.kind, "bfloat16")
    for result in (d, c, out["c_tensor"], out["d_tensor"]):
        assert not bool(result[case.end :].any()), "rows past the end are not zeros"


@pytest.mark.parametrize("backend", BACKENDS)
def test_biases_and_geglu(backend: str) -> None:
    """With a bias, prob scales it alone in the unfused op, and the activation in the fused one."""
    serves(backend)
    case = Case(*LARGE["uneven tiles"])
    pre, prob = case.product(), case.prob[: case.end, None].double()
    bias = case.bias.double().T[case.owner]
    d, _ = unfused(case, backend, bias_tensor=case.bias, d_dtype="float32")
    assert case.worst(d, pre + prob * bias) <= gemm_tolerance(K, case.kind, "float32") + 2.0**-22
    options: dict[str, Any] = {"act_func": "geglu", "generate_c": True, "bias_tensor": case.bias}
    out = glu(case, backend, **options)
    assert case.worst(out["c_tensor"], pre + bias) <= gemm_tolerance(K, case.kind, "bfloat16") + 2.0**-22
    wanted = activated(pre + bias, "geglu") * prob
    assert case.worst(out["d_tensor"], wanted) <= c_tolerance(K, case.kind, "bfloat16")


@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_other_types_and_any_alignment(kind: Any) -> None:
    """Rows of odd length, addresses off by one element, weights contiguous along N: whatever serves."""
    case = Case([5, 0, 130, 77], 3, kind=kind, k=35, n=64)
    raw = torch.full((case.a.numel() + 1,), float("nan"), device=CUDA, dtype=kind)
    raw[1:] = case.a.flatten()
    case.a = raw[1:].view(case.m, 35)
    d, _ = unfused(case, d_dtype="float32")
    wanted = case.product() * case.prob[: case.end, None].double()
    assert case.worst(d, wanted) <= gemm_tolerance(35, case.kind, "float32")
    columns = case.b.transpose(1, 2).contiguous()
    named: dict[str, Any] = {"b_major": "n", "prob_tensor": case.prob, "d_dtype": "float32"}
    d, _ = grouped_gemm_forward(case.a, case.ends, case.alpha, columns, **named)
    assert case.worst(d, wanted) <= gemm_tolerance(35, case.kind, "float32")
    d = glu(case, d_dtype="float16")["d_tensor"]
    gated = activated(case.product(), "swiglu") * case.prob[: case.end, None].double()
    assert case.worst(d, gated) <= c_tolerance(35, case.kind, "float16")


@pytest.mark.parametrize("backend", [kernel.backend for kernel in BACKWARD.kernels])
@pytest.mark.parametrize("act", ["swiglu", "geglu"])
@pytest.mark.parametrize("routing", ["uneven", "none at all", "uneven tiles", "many experts"])
def test_backward_expert_by_expert(routing: str, act: str, backend: str) -> None:
    serves(backend)
    case = Case(*(ROUTINGS | LARGE)[routing])
    c, beta = random(case.m, 2 * N, seed=7, scale=3), random(len(case.counts), kind=torch.float32, seed=8) + 2
    c[case.end :] = float("nan")
    dprob = torch.ones(case.m, device=CUDA)
    out = grouped_gemm_glu_backward(
        case.a, c, None, case.ends, case.alpha, beta, case.prob, dprob, case.b,
        generate_dbias=True, act_func="d" + act, d_dtype="float32", backend=backend,
    )  # fmt: skip
    r = case.product() * case.alpha.double()[case.owner, None]
    pre = (c[: case.end].double() * beta.double()[case.owner, None]).requires_grad_()
    value = activated(pre, act)
    weighted = r * case.prob[: case.end, None].double()
    (wanted,) = torch.autograd.grad((value * weighted).sum(), pre)
    tolerance = gemm_tolerance(K, case.kind, "float32") + DERIVATIVE
    assert case.worst(out["d_row_tensor"], wanted) <= tolerance
    assert not bool(out["d_row_tensor"][case.end :].any())
    # Each row's sum of N terms with independent errors, added to what was there; a row's may be four times the usual.
    terms = r * value.detach()
    error = (dprob[: case.end].double() - 1 - terms.sum(1)).abs()
    assert bool((error <= 4 * tolerance * terms.norm(dim=1) + 2.0**-22 * (1 + terms.sum(1).abs())).all())
    assert bool((dprob[case.end :] == 1).all())
    of_experts = case.sums(torch.ones(case.m, 1, device=CUDA), wanted).transpose(1, 2)
    assert worst_matrix(out["dbias_tensor"], of_experts) <= UNIT + tolerance


@pytest.mark.parametrize("backend", [kernel.backend for kernel in BACKWARD.kernels])
def test_the_activation_again(backend: str) -> None:
    serves(backend)
    case = Case(*LARGE["uneven tiles"])
    c, ones = random(case.m, 2 * N, seed=7, scale=3), torch.ones(len(case.counts), device=CUDA)
    again = torch.full((case.m, N), 7.0, device=CUDA, dtype=BF16)
    out = grouped_gemm_glu_backward(
        case.a, c, None, case.ends, case.alpha, ones, case.prob, torch.zeros(case.m, device=CUDA), case.b,
        act_func="dgeglu", activation_tensor=again, round_dgrad_to_input_dtype=True, backend=backend,
    )  # fmt: skip
    assert out["activation_tensor"] is again
    wanted = activated(c[: case.end].double(), "geglu") * case.prob[: case.end, None].double()
    assert case.worst(again, wanted) <= UNIT + DERIVATIVE
    assert bool((again[case.end :] == 7).all())


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("act", ["swiglu", "geglu"])
def test_the_activations_gradient_row_by_row(act: str, shift: int) -> None:
    """The kernel that the fused forward's derivative uses, with wide and with single accesses."""
    case = Case(*LARGE["many experts"])
    raw = random(case.m * N + shift, kind=torch.float32, seed=7, scale=3)
    c, dd, dc = raw[shift:].view(case.m, N), random(case.m, N // 2, seed=8), random(case.m, N, seed=9)
    for x in (c, dd, dc):
        x[case.end :] = float("nan")
    offset = 1.0 if act == "geglu" else 0.0
    ds, dprob = glu_gradient(
        c, dd, case.ends, case.prob, case.alpha, dc, act_func=act, linear_offset=offset, kind="float32"
    )
    pre = c[: case.end].double().requires_grad_()
    value, outer = activated(pre, act), dd[: case.end].double()
    (wanted,) = torch.autograd.grad((value * outer * case.prob[: case.end, None].double()).sum(), pre)
    wanted = (wanted + dc[: case.end].double()) * case.alpha.double()[case.owner, None]
    assert case.worst(ds, wanted) <= DERIVATIVE
    terms = value.detach() * outer
    error = (dprob[: case.end].double() - terms.sum(1)).abs()
    assert bool((error <= DERIVATIVE * terms.norm(dim=1) + 2.0**-22 * terms.abs().sum(1)).all())
    assert not bool(ds[case.end :].any())
    assert not bool(dprob[case.end :].any())


@pytest.mark.parametrize("backend", [kernel.backend for kernel in WGRAD.kernels])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("routing", ["uneven", "none at all", "uneven tiles", "many experts"])
def test_weight_gradients_expert_by_expert(routing: str, adds: bool, backend: str) -> None:
    serves(backend)
    case = Case(*(ROUTINGS | LARGE)[routing])
    dy = random(case.m, N, seed=9)
    dy[case.end :] = float("nan")
    shape = (len(case.counts), N, K)
    before = random(*shape, kind=torch.float32, seed=10) if adds else torch.zeros(shape, device=CUDA)
    options: dict[str, Any] = {"wgrad_dtype": "float32", "accumulate_on_output": adds, "backend": backend}
    w = before.clone() if adds else None
    (got,) = grouped_gemm_wgrad_forward(dy.T, case.a, None, None, case.ends, wgrad_tensor=w, **options)
    wanted = case.sums(dy, case.a) + before.double()
    assert worst_matrix(got, wanted) <= gemm_tolerance(max(case.counts), case.kind, "float32")
    assert w is None or got is w


def test_weight_gradients_of_other_layouts() -> None:
    case = Case([5, 0, 130, 77], 3, k=72)
    dy = random(case.m, 40, seed=9)
    (got,) = grouped_gemm_wgrad_forward(dy.T.contiguous(), case.a.T.contiguous().T, None, None, case.ends)
    assert worst_matrix(got, case.sums(dy, case.a)) <= gemm_tolerance(130, case.kind, "bfloat16")


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_and_results_behind_addresses(backend: str) -> None:
    serves(backend)
    case = Case(*LARGE["uneven tiles"])
    own = [weight.clone() for weight in case.b]
    pointers = torch.tensor([weight.data_ptr() for weight in own], device=CUDA)
    named: dict[str, Any] = {"b_ptrs": pointers, "n": N, "b_dtype": BF16, "prob_tensor": case.prob, "backend": backend}
    d, _ = grouped_gemm_forward(case.a, case.ends, case.alpha, **named)
    assert torch.equal(d[: case.end], unfused(case, backend)[0][: case.end])
    places = [torch.full((N, K), float("nan"), device=CUDA) for _ in own]
    pointers = torch.tensor([place.data_ptr() for place in places], device=CUDA)
    dy = random(case.m, N, seed=9)
    options: dict[str, Any] = {
        "output_mode": "discrete",
        "wgrad_ptrs": pointers,
        "wgrad_dtype": "float32",
        "backend": backend,
    }
    grouped_gemm_wgrad_forward(dy.T, case.a, None, None, case.ends, **options)
    assert worst_matrix(torch.stack(places), case.sums(dy, case.a)) <= gemm_tolerance(700, case.kind, "float32")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_callers_rows_past_the_end_stay(backend: str) -> None:
    serves(backend)
    case = Case([130, 0, 3], 200)
    d, c = (torch.full((case.m, N), 7.0, device=CUDA, dtype=kind) for kind in (torch.float32, BF16))
    out = unfused(case, backend, d_dtype="float32", generate_c=True, d_tensor=d, c_tensor=c)
    assert out[0] is d
    for buffer in (d, c):
        assert bool((buffer[case.end :] == 7).all())
    wanted = case.product() * case.prob[: case.end, None].double()
    assert case.worst(d, wanted) <= gemm_tolerance(K, case.kind, "float32")


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_spreads_within_its_row_alone(backend: str) -> None:
    serves(backend)
    case = Case([130, 0, 3, 60], 5)
    case.a[17, 3], case.a[131, 0] = float("nan"), float("inf")
    case.b[3, 70, 9] = float("nan")
    d, _ = unfused(case, backend)
    finite = torch.isfinite(d[: case.end].float())
    expected = torch.ones_like(finite)
    expected[17], expected[131] = False, False
    expected[133:, 70] = False
    assert torch.equal(finite, expected)
    gated = torch.isfinite(glu(case, backend)["d_tensor"][: case.end].float())
    expected = torch.ones_like(gated)
    expected[17], expected[131] = False, False
    expected[133:, 38] = False  # column 70 is the gate of result 32 + 6
    assert torch.equal(gated, expected)
    (w,) = grouped_gemm_wgrad_forward(random(case.m, N, seed=9).T, case.a, None, None, case.ends, backend=backend)
    finite = torch.isfinite(w.float())
    expected = torch.ones_like(finite)
    expected[0, :, 3], expected[2, :, 0] = False, False
    assert torch.equal(finite, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_routings(backend: str) -> None:
    """500 routings of 512 rows to 1 to 64 experts, everything queued without waiting, then compared; no hang."""
    serves(backend)
    rng = np.random.default_rng(0)
    rows, k, n = 512, 64, 64
    a, b = random(rows, k, seed=1), random(64, n, k, seed=2, scale=k**-0.5)
    ones, dy = torch.ones(rows, device=CUDA), random(rows, n, seed=3)
    worst = torch.zeros((), device=CUDA, dtype=torch.float64)
    every = torch.arange(rows, device=CUDA)
    tolerances = gemm_tolerance(k, "bfloat16", "float32"), gemm_tolerance(rows, "bfloat16", "float32")
    for _ in range(500):
        experts, end = int(rng.integers(1, 65)), int(rng.integers(0, rows + 1))
        counts = rng.multinomial(end, rng.dirichlet(np.full(experts, 0.3)))
        ends = torch.tensor(np.cumsum(counts), dtype=torch.int32).to(CUDA, non_blocking=True)
        alpha = torch.ones(experts, device=CUDA)
        options: dict[str, Any] = {"d_dtype": "float32", "prob_tensor": ones, "backend": backend}
        d, _ = grouped_gemm_forward(a, ends, alpha, b[:experts], **options)
        weights: dict[str, Any] = {"wgrad_dtype": "float32", "backend": backend}
        (w,) = grouped_gemm_wgrad_forward(dy.T, a, None, None, ends, **weights)
        owner = torch.searchsorted(ends, every.int(), right=True)
        inside = torch.nn.functional.one_hot(owner, experts + 1)[:, :experts].double()
        exact = torch.einsum("me,mk,enk->mn", inside, a.double(), b[:experts].double())
        exact_w = torch.einsum("me,mn,mk->enk", inside, dy.double(), a.double())
        for got, wanted, allowed in ((d, exact, tolerances[0]), (w, exact_w, tolerances[1])):
            size = wanted.flatten(1).norm(dim=1)
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
        hidden.float().sum().backward()

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
