"""On a GPU: no rows, rows any distance apart, NaN, operands past 2^31 elements, and the classes."""

# Operands are spread from made cases, whose number a type checker cannot know.
# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    rope_qdq_inplace_forward,
    tail_rope_forward,
    vision_rope_backward,
)
from cudnn_fe_testkit.on_gpu import poison

pytestmark = pytest.mark.gpu

FLAGS: dict[str, Any] = {"dropout_ratio": 0.0, "apply_u_silu": True, "concat_u": True, "concat_x": True}
NAN = float("nan")


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    """The kernels, whatever an ordinary call would choose; memory shows what nobody wrote."""
    poison()
    with override(backend="portable"):
        yield


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(torch.bfloat16)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def close(a: torch.Tensor, b: torch.Tensor, bound: float) -> bool:
    return float((a.double() - b.double()).norm() / b.double().norm()) <= bound


def in_reference(function: Any, *given: Any, **options: Any) -> Any:
    with override(backend="reference"):
        return function(*given, **options)


def padded(rows: torch.Tensor, more: int = 8) -> torch.Tensor:
    """The rows further apart, NaN between them."""
    storage = torch.full((rows.shape[0], rows.shape[1] + more), NAN, dtype=rows.dtype, device="cuda")
    return storage[:, : rows.shape[1]].copy_(rows)


def vision(tokens: int) -> list[torch.Tensor]:
    q, v = (bf16(16, tokens, 64).permute(1, 0, 2) for _ in range(2))
    angle = torch.randn(tokens, 1, 32, device="cuda")
    return [q, bf16(16, 64, tokens).permute(2, 0, 1), v, angle.cos(), angle.sin()]


def gate(tokens: int) -> tuple[Any, ...]:
    mask = torch.arange(tokens, device="cuda") % 3 > 0
    return bf16(tokens, 4, 5120), bf16(tokens, 25600), torch.randn(4, 5120, device="cuda"), mask


def test_no_rows_give_no_rows_and_no_gradients(case: Any) -> None:
    given = {}
    for name, x in case.make(0).items():
        kind = {"bfloat16": torch.bfloat16, "bool": torch.bool}.get(x.dtype.name) or getattr(torch, x.dtype.name)
        given[name] = torch.zeros(x.shape, dtype=kind, device="cuda")
    if "grad_k" in given:  # its own layout has a channel's tokens side by side
        given["grad_k"] = given["grad_k"].as_strided((0, 16, 64), (1, 0, 0))
    results = getattr(cudnn, case.function)(**given, **case.options)
    assert not any(x.float().any() for x in results if x is not None)


def test_strided_tokens_and_heads() -> None:
    wide = torch.full((50, 7, 192), NAN, dtype=torch.bfloat16, device="cuda")
    x = wide[::2, 1:4, :128].copy_(bf16(25, 3, 128))
    tables = torch.randn(2, 25, 32, device="cuda")
    out = tail_rope_forward(x, *tables)["out"]
    assert same(out, tail_rope_forward(x.contiguous(), *tables)["out"])
    assert torch.isfinite(out).all()


def test_lmsd_rows_any_distance_apart_and_buffers_between_which_nothing_is_written() -> None:
    x, u, w, b, dy = bf16(100, 264), bf16(100, 264), bf16(264), bf16(264), bf16(100, 792)
    how = {**FLAGS, "dropout_ratio": 0.25}
    wanted = list(hstu_lmsd_forward(x, u, w, b, seed=5, **how))
    got = hstu_lmsd_forward(padded(x), padded(u, 16), w, b, seed=5, **how)
    assert all(same(a, e) for a, e in zip(got, wanted, strict=True))
    saved = (w, b, *wanted[1:])
    plain = hstu_lmsd_backward(dy, x, u, *saved, **how)
    storage = torch.full((2, 100, 280), NAN, dtype=torch.bfloat16, device="cuda")
    dx, du = storage[0, :, 8:272], storage[1, :, 8:272]
    grads = hstu_lmsd_backward(padded(dy), padded(x), padded(u), *saved, dx_tensor=dx, du_tensor=du, **how)
    assert all(same(a, e) for a, e in zip(grads, plain, strict=True))
    assert storage[:, :, :8].isnan().all()
    assert storage[:, :, 272:].isnan().all()


def test_nan_and_infinity_reach_what_depends_on_them() -> None:
    x, tables = bf16(6, 3, 128), torch.randn(2, 6, 32, device="cuda")
    x[1, 2, 70], x[3, 0, 80], x[4, 1, 3], tables[0, 5, 9] = NAN, float("inf"), NAN, NAN
    calls: list[tuple[Any, tuple[Any, ...]]] = [(tail_rope_forward, (x, *tables))]
    given = vision(40)
    given[0][3, 2, 5], given[1][7, 1, 40], given[2][9, 0, 0], given[3][11, 0, 30] = NAN, float("inf"), NAN, NAN
    calls.append((vision_rope_backward, tuple(given)))
    streams, kv, weight, mask = gate(12)
    streams[0, 1, 4], kv[4, 5121], kv[5, 25599] = NAN, NAN, float("inf")
    calls.append((engram_gate_saved_forward, (streams, kv, weight, mask)))
    saved, upstream = engram_gate_saved_forward(*gate(12))["saved"], bf16(12, 4, 5120)
    upstream[7, 3, 9] = NAN
    calls.append((engram_gate_saved_backward, (*gate(12)[:3], saved, upstream)))
    for function, operands in calls:
        for a, e in zip(function(*operands), in_reference(function, *operands), strict=True):
            assert torch.equal(a.isnan(), e.isnan())
            assert torch.equal(a.isinf(), e.isinf())


# Past 2^31 elements. What comes out of the last rows is what comes out of them alone.


def test_vision_rope_past_two_to_the_31_elements() -> None:
    tokens, last = 700_160, 64
    few = vision(last)
    many = [torch.zeros(16, tokens, 64, dtype=torch.bfloat16, device="cuda").permute(1, 0, 2) for _ in range(2)]
    many.insert(1, torch.zeros(16, 64, tokens, dtype=torch.bfloat16, device="cuda").permute(2, 0, 1))
    many += [torch.zeros(tokens, 1, 32, device="cuda") for _ in range(2)]
    for x, part in zip(many, few, strict=True):
        x[-last:] = part
    out = vision_rope_backward(*many)["grad_qkv"]
    assert out.numel() > 2**31
    assert same(out[-last:], vision_rope_backward(*few)["grad_qkv"])
    assert not out[:-last].any()


@pytest.mark.parametrize(("kind", "group", "scale"), [("fp4", 32, "ue8m0"), ("fp8", 32, "ue8m0"), ("fp4", 16, "e4m3")])
def test_quantised_rope_past_two_to_the_31_elements(kind: str, group: int, scale: str) -> None:
    shape = (32, 128) if (kind, group) == ("fp4", 32) else (512,)
    rows, last = 2**31 // (shape[0] * (128 if len(shape) > 1 else 1)) + 64, 64
    few, cache = bf16(last, *shape), torch.randn(50, 64, device="cuda")
    x = torch.zeros(rows, *shape, dtype=torch.bfloat16, device="cuda")
    positions = torch.randint(0, 50, (rows,), device="cuda")
    x[-last:] = few
    options: Any = {"quantization": kind, "group_size": group, "scale_format": scale}
    rope_qdq_inplace_forward(x, cache, positions, **options)
    rope_qdq_inplace_forward(few, cache, positions[-last:].clone(), **options)
    assert x.numel() > 2**31
    assert same(x[-last:], few)
    assert not x[:-last].any()


def test_engram_gate_past_two_to_the_31_elements() -> None:
    tokens, last = 84_096, 64
    few = gate(last)
    x = torch.zeros(tokens, 4, 5120, dtype=torch.bfloat16, device="cuda")
    kv = torch.zeros(tokens, 25600, dtype=torch.bfloat16, device="cuda")
    mask = torch.ones(tokens, dtype=torch.bool, device="cuda")
    x[-last:], kv[-last:], mask[-last:] = few[0], few[1], few[3]
    out, saved = engram_gate_saved_forward(x, kv, few[2], mask)
    wanted = engram_gate_saved_forward(*few)
    assert kv.numel() > 2**31
    assert same(out[-last:], wanted["out"])
    assert same(saved[-last:], wanted["saved"])
    upstream = torch.zeros_like(x)
    upstream[-last:] = bf16(last, 4, 5120)
    got = engram_gate_saved_backward(x, kv, few[2], saved, upstream)
    grads = engram_gate_saved_backward(*few[:3], wanted["saved"], upstream[-last:].clone())
    assert same(got["grad_x"][-last:], grads["grad_x"])
    assert same(got["grad_kv"][-last:], grads["grad_kv"])
    assert close(got["grad_weight"], grads["grad_weight"], 64 * 2.0**-24)  # sums of 64 terms, in other parts


def test_lmsd_past_two_to_the_31_elements() -> None:
    rows, columns, last = 720_064, 1016, 64
    few, w, b = (bf16(last, columns), bf16(last, columns)), bf16(columns), bf16(columns)
    x, u = (torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    x[-last:], u[-last:] = few
    y, mean, rstd, _ = hstu_lmsd_forward(x, u, w, b, **FLAGS)
    wanted = list(hstu_lmsd_forward(*few, w, b, **FLAGS))
    assert y.numel() > 2**31
    assert same(y[-last:], wanted[0])
    assert same(mean[-last:], wanted[1])
    dy = y.zero_()
    dy[-last:] = bf16(last, 3 * columns)
    got = hstu_lmsd_backward(dy, x, u, w, b, mean, rstd, None, **FLAGS)
    grads = hstu_lmsd_backward(dy[-last:].clone(), *few, w, b, *wanted[1:], **FLAGS)
    assert same(got[0][-last:], grads[0])
    assert same(got[1][-last:], grads[1])
    assert close(got[2], grads[2], 2.0**-8)  # both rounded once to bfloat16
    assert close(got[3], grads[3], 2.0**-8)


def test_classes_write_what_the_functions_return() -> None:
    x, w = bf16(24, 128), bf16(128)
    o, amax = torch.full_like(x, NAN), torch.full((6,), NAN, device="cuda")
    cudnn.RmsNormRhtAmaxSm100(x, w, o, amax, rows_per_cta=4)(x, w, o, amax)
    wanted = rmsnorm_rht_amax_forward(x, w, rows_per_cta=4)
    assert same(o, wanted["o_tensor"])
    assert same(amax, wanted["amax_tensor"])
    tables = torch.randn(2, 24, 32, device="cuda")
    out = torch.full_like(x, NAN)
    cudnn.TailRoPEForward(x, *tables, out)(x, *tables, out)
    assert same(out, tail_rope_forward(x, *tables)["out"])
    rows, cache, places = bf16(9, 512), torch.randn(4, 64, device="cuda"), torch.arange(9, device="cuda") % 4
    copy = rows.clone()
    cudnn.RopeQDQInplace(rows, cache, places, quantization="fp8")(rows, cache, places)
    assert same(rows, rope_qdq_inplace_forward(copy, cache, places, quantization="fp8")["out"])
    given = vision(33)
    packed = torch.full((33, 3072), NAN, dtype=torch.bfloat16, device="cuda")
    cudnn.VisionRoPEBackward(*given)(*given, packed)
    assert same(packed, vision_rope_backward(*given)["grad_qkv"])


def test_class_of_the_gates_gradient_uses_the_callers_workspace() -> None:
    x, kv, weight, mask = gate(64)
    out, saved = torch.full_like(x, NAN), torch.full((64, 4, 4), NAN, device="cuda")
    cudnn.EngramGateSavedForward(x, kv, weight, mask)(x, kv, weight, mask, out, saved)
    wanted = engram_gate_saved_forward(x, kv, weight, mask)
    assert same(out, wanted["out"])
    assert same(saved, wanted["saved"])
    upstream = bf16(64, 4, 5120)
    backward = cudnn.EngramGateSavedBackward(x, kv, weight, saved, upstream)
    grads = [torch.full_like(t, NAN) for t in (x, kv, weight)]
    backward.compile()
    workspace = backward.allocate_workspace()
    graph = torch.cuda.CUDAGraph()
    backward.execute(x, kv, weight, saved, upstream, *grads, workspace)
    with torch.cuda.graph(graph):
        backward.execute(x, kv, weight, saved, upstream, *grads, workspace)
    for t in (*grads, workspace):
        t.view(torch.uint8).fill_(0xFF)
    graph.replay()
    torch.cuda.synchronize()
    explicit = engram_gate_saved_backward(x, kv, weight, saved, upstream)
    assert all(same(a, e) for a, e in zip(grads, explicit, strict=True))
