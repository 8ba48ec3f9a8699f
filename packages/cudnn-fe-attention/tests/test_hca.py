"""Aligned HCA's gradients: against dense float64 attention, in every framework, at the edges of ranks and chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.namespaces import DSA
from cudnn_fe_testkit.attention import assert_slopes, attention_tolerance, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists here, which the type checker cannot count.
backward: Any = attention.aligned_hca_backward

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
L, H, D, CP, SCALE = 256, 2, 8, 4, 0.3
GROUPS = L // 128
ROWS = L + 128 + CP * (GROUPS + 1)


def mask(rank: int) -> torch.Tensor:
    """Which rows each query sees, one loop per query and compressed key."""
    seen = torch.zeros(L, ROWS, dtype=torch.bool)
    for t in range(L):
        p = rank * L + t
        for token in range(max(0, p - 127), p + 1):
            seen[t, 128 + token - rank * L] = True
        for c in range((p + 1) // 128):
            owner = c // GROUPS
            seen[t, L + 128 + owner * (GROUPS + 1) + c % GROUPS + (1 if owner else 0)] = True
    return seen


def make(kind: str, rank: int) -> list[Any]:
    """Q, KV with NaN in rows that nobody sees, and the sinks."""
    kv = normal((ROWS, D), kind, seed=2)
    kv[~mask(rank).any(0).numpy()] = np.nan
    return [normal((L, H, D), kind, seed=1), kv, normal((H,), seed=3)]


def truth(given: list[Any], rank: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    leaves = [double(x).nan_to_num(0).requires_grad_() for x in given]
    q, kv, sink = leaves
    z = (SCALE * torch.einsum("thd,nd->thn", q, kv)).masked_fill(~mask(rank)[:, None], -torch.inf)
    p = torch.softmax(torch.cat([z, sink[None, :, None].expand(L, H, 1)], -1), -1)[..., :-1]
    return leaves, torch.einsum("thn,nd->thd", p, kv), torch.logsumexp(z.detach(), -1)


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients(framework: Framework, rank: int, kind: str) -> None:
    given = make(kind, rank)
    leaves, o, lse = truth(given, rank)
    dout = normal((L, H, D), kind, seed=5)
    o.backward(double(dout))
    out = o.detach().to(getattr(torch, kind))
    operands = [given[0], given[1], to_float64(out).astype(given[0].dtype), dout, lse.float().numpy(), given[2]]
    arrays = [convert(x, framework) for x in operands]
    grads = backward(*arrays, cp_rank=rank, cp_size=CP, softmax_scale=SCALE)
    for got, leaf, name in zip(grads, leaves, grads.keys(), strict=True):
        assert leaf.grad is not None
        assert_close(got, leaf.grad, attention_tolerance(kind, 4, 512), name)
    hidden = ~mask(rank).any(0).numpy()
    assert hidden.sum() >= CP
    assert not to_float64(grads["dkv"])[hidden].any()


def test_finite_differences() -> None:
    given = [x.astype(np.float64) for x in make("float32", 1)]
    at = dict(zip(("q", "kv", "sink"), (double(x).nan_to_num(0) for x in given), strict=True))
    _, o, lse = truth(given, 1)
    dout = normal((L, H, D), "float64", seed=5)
    grads = backward(given[0], given[1], o.detach().numpy(), dout, lse.numpy(), given[2], cp_rank=1, cp_size=CP,
                     softmax_scale=SCALE)  # fmt: skip
    slopes = dict(zip(at, (grads["dq"], grads["dkv"], grads["d_sink"]), strict=True))
    assert_slopes(lambda x: (truth(list(x.values()), 1)[1].detach() * double(dout)).sum(), at, slopes)


def test_infinite_sinks() -> None:
    given = make("float32", 1)
    q, kv, _ = given
    lse, dout = np.zeros((L, H), np.float32), normal((L, H, D), seed=5)
    sink = np.asarray([np.inf, -np.inf], np.float32)
    grads = backward(q, kv, q, dout, lse, sink, cp_rank=1, cp_size=CP, softmax_scale=SCALE)
    assert not grads["dq"][:, 0].any()
    np.testing.assert_allclose(grads["d_sink"], [-(q * dout)[:, 0].sum(), 0], rtol=1e-4)


def test_no_tokens() -> None:
    none, kv = np.zeros((0, H, D), np.float32), normal((128 + CP, D))
    grads = backward(none, kv, none, none, none[..., 0], np.zeros(H, np.float32), cp_rank=1, cp_size=CP)
    assert [x.shape for x in grads] == [(0, H, D), (128 + CP, D), (H,)]
    assert not any(x.any() for x in grads)


def test_classes_and_buffers() -> None:
    given = [convert(x, "torch") for x in make("bfloat16", 3)]
    q, kv, sink = given
    lse = torch.zeros(L, H)
    wanted = DSA.aligned_hca_backward_wrapper(q, kv, q, q, lse, sink, cp_rank=3, cp_size=CP)
    results = [torch.full_like(x, float("nan")) for x in given]
    made = DSA.AlignedHCABackward(q, kv, q, q, lse, sink, *results, cp_rank=3, cp_size=CP)
    assert made.check_support()
    made.compile()
    assert made.scratch_workspace_bytes() == 0
    made.execute(q, kv, q, q, lse, sink, *results, None)
    assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
    placed = DSA.aligned_hca_backward_wrapper(q, kv, q, q, lse, sink, cp_rank=3, cp_size=CP, dkv=results[1])
    assert placed["dkv"] is results[1]
    with pytest.raises(ValueError, match="bytes that overlap"):
        made.execute(q, kv, q, q, lse, sink, q, results[1], results[2], None)
    assert DSA.AlignedHCABackward.supports_configuration(512, 16, "cuda")
    assert not DSA.AlignedHCABackward.supports_configuration(100, 16, "cuda")
    assert not DSA.AlignedHCABackward.supports_configuration(512, 5, "cuda")


_Q, _KV, _L, _S = (
    np.ones((128, 1, 4), np.float32),
    np.ones((264, 4), np.float32),
    np.ones((128, 1), np.float32),
    np.ones(1, np.float32),
)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"q": _Q[:100]}, NotImplementedError, r"q: got \(100, 1, 4\), wanted \(L, H, D\), L a multiple of 128"),
        ({"kv": _KV[:200]}, NotImplementedError, r"kv: got \(200, 4\)"),
        ({"out": _Q[..., :2]}, NotImplementedError, "out: got"),
        ({"lse": _L[:, 0]}, NotImplementedError, "lse: got"),
        ({"attn_sink": _L}, NotImplementedError, "attn_sink: got"),
        ({"attn_sink": _S.astype(np.float64)}, ValueError, "attn_sink: got float64"),
        ({"dout": _Q.astype(np.float16)}, ValueError, "dout: got float16"),
        ({"cp_rank": 4}, ValueError, r"cp_rank: got 4, wanted an int in 0..3"),
        ({"cp_size": 5}, ValueError, "cp_size: got 5"),
        ({"softmax_scale": 0.0}, ValueError, "softmax_scale: got 0.0"),
        ({"dq": _Q[:1]}, ValueError, "dq: got"),
    ],
)
def test_refusals(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    good = {"q": _Q, "kv": _KV, "out": _Q, "dout": _Q, "lse": _L, "attn_sink": _S, "cp_rank": 0, "cp_size": 4}
    with pytest.raises(kind, match=message):
        backward(**{**good, **change})
