"""On a GPU: kernels against the definition on the CPU; repeatable; on side streams; in graphs; past 2^31 elements."""

# Operands are spread from made cases, whose number a type checker cannot know.
# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import cudnn
from cudnn_fe.core.settings import override
from cudnn_fe.norm_rope import (
    engram_gate_saved_backward,
    engram_gate_saved_forward,
    hstu_lmsd_backward,
    hstu_lmsd_forward,
    rmsnorm_rht_amax_forward,
    rmsnorm_silu_forward,
    rope_qdq_inplace_forward,
    tail_rope_forward,
    vision_rope_backward,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    """The kernels, whatever an ordinary call would choose."""
    with override(backend="portable"):
        yield


def tensor(x: Any) -> torch.Tensor:
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16).copy(order="K")).view(torch.bfloat16)
    return torch.from_numpy(x.copy(order="K"))


def run(case: Any, place: Callable[[torch.Tensor], torch.Tensor], **more: Any) -> list[torch.Tensor]:
    given = {name: place(tensor(x)) for name, x in case.make().items()}
    results = getattr(cudnn, case.function)(**given, **case.options, **more)
    return [x for x in results if x is not None]


def cuda(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda").copy_(x)


def defined(function: Any, *given: Any, **options: Any) -> Any:
    """What the reference says, whatever kernels an ordinary call would choose."""
    with override(backend="reference"):
        return function(*given, **options)


def distance(got: torch.Tensor, wanted: torch.Tensor) -> float:
    got, wanted = got.cpu().double(), wanted.cpu().double()
    return float((got - wanted).norm() / wanted.norm().clamp_min(1e-30))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.cpu().contiguous().view(torch.uint8), b.cpu().contiguous().view(torch.uint8))


def test_kernel_is_the_definition_and_repeats_itself(case: Any) -> None:
    wanted = defined(run, case, lambda x: x)
    # Memory that the outputs are likely to get holds NaN in every format.
    torch.empty(1 << 24, dtype=torch.uint8, device="cuda").fill_(0xFF)
    got, again = run(case, cuda, backend="portable"), run(case, cuda, backend="portable")
    assert all(same(a, b) for a, b in zip(got, again, strict=True))
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        if case.unit == 0.0:
            assert same(a, b)
        else:
            assert distance(a, b) <= case.unit


def test_on_a_side_stream_and_in_a_graph(case: Any) -> None:
    wanted = run(case, cuda)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        got = run(case, cuda)
    stream.synchronize()
    assert all(same(a, b) for a, b in zip(got, wanted, strict=True))
    given = {name: cuda(tensor(x)) for name, x in case.make().items()}
    function = getattr(cudnn, case.function)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = function(**given, **case.options)
    for name, x in case.make().items():
        given[name].copy_(tensor(x))  # an op in place has its operand fresh
    graph.replay()
    torch.cuda.synchronize()
    assert all(same(a, b) for a, b in zip([x for x in captured if x is not None], wanted, strict=True))


@pytest.mark.parametrize("columns", [16, 1008, 7168, 16384, 65536, 262144])
@pytest.mark.parametrize("offset", [0, 1])
def test_rows_of_every_width_at_any_alignment(columns: int, offset: int) -> None:
    wide = torch.full((10, columns + 9), float("nan"), dtype=torch.bfloat16, device="cuda")
    x = wide[:, offset : offset + columns]
    x.copy_(torch.randn(10, columns))
    w = torch.rand(columns).to(torch.bfloat16) + 0.5
    calls: Any = ((rmsnorm_rht_amax_forward, {"rows_per_cta": 5}), (rmsnorm_silu_forward, {"eps": 1e-6}))
    for function, options in calls:
        got, wanted = function(x, w.cuda(), **options), defined(function, x.cpu(), w, **options)
        assert distance(got[0], wanted[0]) <= 2.0**-8
        if got[1] is not None:
            # Before rounding: float32 sums in another order.
            assert distance(got[1], wanted[1]) <= 2.0**-23 * (columns**0.5 + 64)


# A block's registers, one CTA with and without room left, clusters of two, four and eight; more rows than run at once.
@pytest.mark.parametrize(
    ("columns", "rows"),
    [(4096, 50), (8208, 1100), (16384, 1000), (20000, 500), (32768, 500), (65536, 300), (100000, 130), (262144, 65)],
)
def test_wide_rows_one_after_another(columns: int, rows: int) -> None:
    torch.manual_seed(columns)
    x = torch.randn(rows, columns, device="cuda").to(torch.bfloat16)
    w = (torch.rand(columns, device="cuda") + 0.5).to(torch.bfloat16)
    x[rows // 2, -1] = float("nan")
    kinds = ("bfloat16", "float8_e4m3fn", "float4_e2m1fn")
    calls: Any = [(rmsnorm_rht_amax_forward, {"rows_per_cta": 5})]
    calls += [(rmsnorm_silu_forward, {"eps": 1e-6, "out_dtype": kind}) for kind in kinds]
    for function, options in calls:
        got, again = function(x, w, **options), function(x, w, **options)
        wanted = defined(function, x, w, **options)
        allowed = 2.0**-4 if "float" in str(options.get("out_dtype", "")) else 2.0**-8
        for a, b, exact in zip(got.values(), again.values(), wanted.values(), strict=True):
            if exact is not None:
                assert same(a, b)
                a, exact = a.float(), exact.float()
                assert torch.equal(torch.isnan(a), torch.isnan(exact))
                assert distance(torch.nan_to_num(a), torch.nan_to_num(exact)) <= allowed


def test_fp4_codes_are_the_nearest() -> None:
    x = torch.randn(500, 4096, device="cuda").to(torch.bfloat16)
    w = (torch.rand(4096, device="cuda") + 0.5).to(torch.bfloat16)
    codes, scale = rmsnorm_silu_forward(x, w, 1e-6, "float4_e2m1fn")
    wide = x.double()
    y = wide * (wide.square().mean(1, keepdim=True) + 1e-6).rsqrt() * w.double()
    blocks = (y / (1 + torch.exp(-y))).view(500, 256, 16)
    sixth = blocks.abs().amax(2) / 6
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], device="cuda").double()
    found = values[torch.stack((codes & 15, codes >> 4), 2).long()].view(500, 256, 16)
    steps = torch.where(found.abs() >= 4, 2.0, torch.where(found.abs() >= 2, 1.0, 0.5))
    # Some dozen roundings of float32 lie between the definition and the code.
    assert ((found - blocks / sixth[:, :, None]).abs() <= steps / 2 + 1e-4).all()
    assert ((scale.double() - sixth).abs() <= 2.0**-4 * sixth + 2.0**-10).all()


@pytest.mark.parametrize("rows_per_cta", [1, 3, 33, 4752])
def test_maxima_of_groups_of_any_size(rows_per_cta: int) -> None:
    x, w = torch.randn(4752, 128).to(torch.bfloat16), torch.rand(128).to(torch.bfloat16)
    x[7, 5] = float("nan")
    got = rmsnorm_rht_amax_forward(x.cuda(), w.cuda(), rows_per_cta=rows_per_cta)["amax_tensor"]
    wanted = defined(rmsnorm_rht_amax_forward, x, w, rows_per_cta=rows_per_cta)["amax_tensor"]
    assert distance(got, wanted) <= 2.0**-20


def test_nan_and_infinity_reach_what_depends_on_them() -> None:
    x, u = (torch.randn(6, 256).to(torch.bfloat16) for _ in range(2))
    w, b = (torch.rand(256).to(torch.bfloat16) + 0.5 for _ in range(2))
    x[1, 3], x[3, 200], u[4, 9] = float("nan"), float("inf"), float("nan")
    flags: dict[str, Any] = {"apply_u_silu": True, "concat_u": True, "concat_x": True}
    dy, mean, rstd = torch.randn(6, 768).to(torch.bfloat16), torch.randn(6), torch.rand(6)
    calls: Any = (
        (rmsnorm_rht_amax_forward, (x, w), {"rows_per_cta": 2}),
        (rmsnorm_silu_forward, (x, w), {"eps": 1e-6}),
        (hstu_lmsd_forward, (x, u, w, b), {"dropout_ratio": 0.2, **flags}),
        (hstu_lmsd_backward, (dy, x, u, w, b, mean, rstd, None), {"dropout_ratio": 0.0, **flags}),
    )
    for function, given, options in calls:
        wanted = defined(function, *given, **options)
        got = function(*(t if t is None else t.cuda() for t in given), **options)
        for a, e in zip(got.values(), wanted.values(), strict=True):
            if e is not None:
                assert torch.equal(torch.isnan(a).cpu(), torch.isnan(e))


@pytest.mark.parametrize("tokens", [1, 200, 700])
def test_engram_gate(tokens: int) -> None:
    torch.manual_seed(tokens)
    x, grad_out = (torch.randn(tokens, 4, 5120).to(torch.bfloat16) for _ in range(2))
    kv, weight = torch.randn(tokens, 25600).to(torch.bfloat16), torch.randn(4, 5120)
    mask = torch.arange(tokens) % 3 != 1
    kv[~mask] = float("nan")
    given: Any = (x, kv, weight)
    on_gpu: Any = tuple(t.cuda() for t in given)
    out, saved = defined(engram_gate_saved_forward, *given, mask)
    got = engram_gate_saved_forward(*on_gpu, mask.cuda())
    assert distance(got[0], out) <= 2.0**-8
    assert same(got[0][~mask.cuda()], x[~mask])
    wanted = defined(engram_gate_saved_backward, *given, saved, grad_out)
    grads = engram_gate_saved_backward(*on_gpu, saved.cuda(), grad_out.cuda())
    for a, b in zip(grads, wanted, strict=True):
        assert distance(torch.nan_to_num(a), torch.nan_to_num(b)) <= 2.0**-8


@pytest.mark.parametrize("columns", [8, 24, 128, 264, 512, 1016])
@pytest.mark.parametrize("ratio", [0.0, 0.1])
def test_lmsd(columns: int, ratio: float) -> None:
    torch.manual_seed(columns)
    x, u = (torch.randn(513, columns).to(torch.bfloat16) for _ in range(2))
    w, b = (torch.randn(columns).to(torch.bfloat16) for _ in range(2))
    how: dict[str, Any] = {"dropout_ratio": ratio, "apply_u_silu": True, "concat_u": True, "concat_x": True}
    given: Any = (x, u, w, b)
    seed = 2**32 + 17
    y, mean, rstd, mask = defined(hstu_lmsd_forward, *given, seed=seed, **how)
    got = hstu_lmsd_forward(*(t.cuda() for t in given), seed=seed, **how)
    assert distance(got[0], y) <= 2.0**-8
    if mask is not None:
        assert same(got[3], mask)  # random bits, whatever computes them
    saved: Any = (torch.randn_like(y), x, u, w, b, mean, rstd, mask)
    wanted = defined(hstu_lmsd_backward, *saved, **how)
    grads = hstu_lmsd_backward(*(t if t is None else t.cuda() for t in saved), **how)
    assert all(distance(a, b) <= 2.0**-7 for a, b in zip(grads, wanted, strict=True))


def test_tail_rope_past_two_to_the_31_elements() -> None:
    x = torch.randn(1, 64, 512, device="cuda").to(torch.bfloat16).expand(65537, 64, 512).contiguous()
    angle = torch.randn(65537, 32, device="cuda")
    out = tail_rope_forward(x, angle.cos(), angle.sin())["out"]
    last = defined(tail_rope_forward, x[-1:].cpu(), angle[-1:].cos().cpu(), angle[-1:].sin().cpu())["out"]
    first = x[:, :, :448].view(torch.int16)
    assert torch.equal(out[:, :, :448].view(torch.int16), first)
    assert distance(out[-1:], last) <= 2.0**-8  # cosines of two libraries


def test_rms_norms_past_two_to_the_31_elements() -> None:
    w = torch.rand(8192, device="cuda").to(torch.bfloat16) + 0.5
    x = torch.randn(64, 8192, device="cuda").to(torch.bfloat16).repeat(4352, 1)
    x[-1] = torch.randn(8192, device="cuda").to(torch.bfloat16)
    calls: Any = ((rmsnorm_rht_amax_forward, {"rows_per_cta": 8}), (rmsnorm_silu_forward, {"eps": 1e-6}))
    for function, options in calls:
        got = function(x, w, **options)
        last = function(x[-64:].clone(), w, **options)
        for every, part in zip(got.values(), last.values(), strict=True):
            if every is not None:
                count = part.shape[0]
                assert same(every[-count:], part)
                assert same(every[-2 * count : -count], every[:count])
        del got
    assert x.numel() > 2**31


@pytest.mark.parametrize("tokens", [1, 31, 33, 1521, 8649])
def test_vision_rope_of_odd_lengths(tokens: int) -> None:
    rows = [torch.randn(16, tokens, 64).to(torch.bfloat16) for _ in range(2)]
    columns, table = torch.randn(16, 64, tokens).to(torch.bfloat16), torch.randn(2, tokens, 1, 32)

    def call(move: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        q, v, k = (move(t) for t in (*rows, columns))
        seen = q.permute(1, 0, 2), k.permute(2, 0, 1), v.permute(1, 0, 2)
        result: torch.Tensor = vision_rope_backward(*seen, move(table[0]), move(table[1]))["grad_qkv"]
        return result

    assert same(call(torch.Tensor.cuda), defined(call, lambda t: t))


@pytest.mark.parametrize("how", [("fp4", 32, "ue8m0"), ("fp8", 32, "ue8m0"), ("fp4", 16, "e4m3")])
def test_quantised_rope_at_ties_zeros_and_extremes(how: tuple[str, int, str]) -> None:
    kind, group, scale = how
    x = torch.randn(64, 512)
    # Between two values of the small format where the group's largest makes its scale a power of two, or one.
    ties = torch.arange(1, 64) / 8.0 if kind == "fp4" else torch.arange(1, 64) + 0.5
    x[0, :63], x[0, 0:512:group] = ties, 6.0 if kind == "fp4" else 448.0
    x[1], x[2], x[3], x[4] = 0.0, -0.0, 1e-38, 3e38
    x[5:] *= torch.exp(8 * torch.randn(59, 1))
    x = x.to(torch.bfloat16)
    x = x.view(64, 4, 128) if (group, kind) == (32, "fp4") else x
    cache, rows = torch.zeros(50, 64), torch.randint(0, 50, (64,))
    cache[:, :32] = 1.0  # no angle: the last channels have their ties too
    options: Any = {"quantization": kind, "group_size": group, "scale_format": scale}
    got = rope_qdq_inplace_forward(x.cuda(), cache.cuda(), rows.cuda(), **options)["out"]
    assert same(got, defined(rope_qdq_inplace_forward, x.clone(), cache, rows, **options)["out"])


def test_quantised_rope_at_an_odd_address() -> None:
    x = torch.randn(1000, 512).to(torch.bfloat16)
    cache, rows = torch.randn(50, 64), torch.randint(0, 50, (1000,))
    storage = torch.zeros(1000 * 512 + 1, dtype=torch.bfloat16, device="cuda")
    view = storage[1:].view(1000, 512)
    view.copy_(x)
    out = rope_qdq_inplace_forward(view, cache.cuda(), rows.cuda(), quantization="fp8")["out"]
    assert out is view
    assert same(view, defined(rope_qdq_inplace_forward, x, cache, rows, quantization="fp8")["out"])
