"""The grouped GEMMs on a GPU: every kernel against float64, expert by expert, and what only a GPU can show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cudnn_fe.grouped import (
    grouped_gemm_forward,
    grouped_gemm_glu_backward,
    grouped_gemm_wgrad_forward,
)
from cudnn_fe.grouped.dglu.op import BACKWARD
from cudnn_fe.grouped.glu_gradient import glu_gradient
from cudnn_fe.grouped.row_sums import row_sums
from cudnn_fe.grouped.row_sums.op import PART_ROWS
from cudnn_fe.grouped.unfused.op import FORWARD as UNFUSED
from cudnn_fe.grouped.wgrad.op import WGRAD
from cudnn_fe_testkit.compare import gemm_tolerance
from cudnn_fe_testkit.grouped_gpu import (
    BF16,
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
from cudnn_fe_testkit.moe import ROUTINGS
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


def test_long_sums_expert_by_expert() -> None:
    """Tiles for many rows and a long K: groups of none, one row and several tiles, columns that fill none evenly."""
    serves("sm90")
    k = 4096
    case = Case([0, 900, 1, 700, 0, 257], 50, k=k, n=1088)
    pre = case.product()
    prob = case.prob[: case.end, None].double()
    d, _ = unfused(case, "sm90")
    assert case.worst(d, pre * prob) <= gemm_tolerance(k, case.kind, "bfloat16")
    out = glu(case, "sm90", generate_c=True)
    assert case.worst(out["c_tensor"], pre) <= gemm_tolerance(k, case.kind, "bfloat16")
    assert case.worst(out["d_tensor"], activated(pre, "swiglu") * prob) <= c_tolerance(k, case.kind, "bfloat16")
    for result in (d, out["c_tensor"], out["d_tensor"]):
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


@pytest.mark.parametrize("columns", [1, 300])
@pytest.mark.parametrize("routing", ["none at all", "uneven tiles", "many experts"])
def test_sums_of_rows_expert_by_expert(routing: str, columns: int) -> None:
    """The kernel that the gradients of biases and scales use."""
    case = Case(*(ROUTINGS | LARGE)[routing])
    x = random(case.m, columns, kind=torch.float32, seed=7)
    x[case.end :] = float("nan")
    got = row_sums(x, case.ends, backend="portable")
    one = torch.ones(case.m, 1, device=CUDA)
    wanted, size = (case.sums(one, y)[:, 0] for y in (x, x.abs()))
    additions = PART_ROWS + max(case.counts) // PART_ROWS + 2
    assert bool(((got.double() - wanted).abs() <= additions * 2.0**-24 * size).all())
    assert torch.equal(row_sums(x, case.ends, backend="portable"), got)


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
