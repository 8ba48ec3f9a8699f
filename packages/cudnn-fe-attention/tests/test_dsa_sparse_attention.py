"""DSA's sparse attention: against dense float64 attention, by finite differences, in every framework, at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.namespaces import DSA
from cudnn_fe.attention.rows import over_rows
from cudnn_fe_testkit.attention import attention_tolerance, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists here, which the type checker cannot count.
forward: Any = attention.dsa_sparse_attention_forward
backward: Any = attention.dsa_sparse_attention_backward

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
T, H, N, K, SCALE = 9, 3, 14, 6, 0.3
UNLISTED = 4  # a row that no query lists, which holds NaN


def make(kind: str = "float32", channels: int = 20) -> dict[str, Any]:
    """Operands: lists with ids out of range, one twice, an empty list, and lengths beyond both ends."""
    rng = np.random.default_rng(5)
    ids = rng.integers(-2, N + 2, (T, K)).astype(np.int32)
    ids[ids == UNLISTED] = 7
    ids[2], ids[3, :2] = -1, 11
    lengths = np.asarray([6, 4, 6, 6, 0, -3, 99, 1, 6], np.int32)
    kv = normal((N, channels), kind, seed=2)
    kv[UNLISTED] = np.nan
    sink = normal((H,), seed=3)
    return {"q": normal((T, H, channels), kind, seed=1), "kv": kv, "ids": ids, "sink": sink, "lengths": lengths}


def counts(given: dict[str, Any], *, lengths: bool) -> torch.Tensor:
    """How often each query lists each row (T, N), one loop per slot."""
    listed = torch.zeros(T, N, dtype=torch.float64)
    for t in range(T):
        for j in range(K):
            row = int(given["ids"][t, j])
            if 0 <= row < N and (not lengths or j < given["lengths"][t]):
                listed[t, row] += 1
    return listed


def exact(
    leaves: list[torch.Tensor], listed: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(O, max, LSE)`` of dense attention whose logits carry ``log(count)``, the sink as one more column."""
    q, kv, sink = leaves
    kv = kv.nan_to_num(0)
    z = SCALE * torch.einsum("thd,nd->thn", q, kv) + listed.log()[:, None]
    alive = listed.sum(1) > 0
    column = sink[None, :, None].expand(T, H, 1)
    full = torch.cat([z, column], -1)
    full = torch.where(alive[:, None, None], full, torch.zeros_like(full))
    p = torch.softmax(full, -1)[..., :-1] * alive[:, None, None]
    top = (z - listed.log()[:, None]).masked_fill(listed[:, None] == 0, -torch.inf).amax(-1)
    lse = torch.logsumexp(z, -1).masked_fill(~alive[:, None], torch.inf)
    return torch.einsum("thn,nd->thd", p, kv[:, :width]), top, lse


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_forward_and_backward(framework: Framework, kind: str) -> None:
    given = make(kind)
    q, kv, ids, sink, lengths = (convert(x, framework) for x in given.values())
    leaves = [double(given[name]).requires_grad_() for name in ("q", "kv", "sink")]
    o, top, lse = exact(leaves, counts(given, lengths=True), 20)
    result = forward(q, kv, ids, attn_sink=sink, topk_length=lengths, softmax_scale=SCALE, indexer_topk=2)
    assert_close(result["out"], o.detach(), attention_tolerance(kind, 2, 20))
    for name, wanted in (("max_logits", top), ("lse", lse)):
        assert_close(result[name], wanted.detach(), attention_tolerance("float32", 1, 20), name)
    for row in (2, 4, 5):
        assert not to_float64(result["out"])[row].any()
        assert np.isposinf(to_float64(result["lse"])[row]).all()
        assert np.isneginf(to_float64(result["max_logits"])[row]).all()
    first = dict(given, lengths=np.minimum(given["lengths"], 2))
    _, _, wanted = exact(leaves, counts(first, lengths=True), 20)
    assert_close(result["lse_indexer"], wanted.detach(), attention_tolerance("float32", 1, 20))
    dout = normal((T, H, 20), kind, seed=8)
    o.backward(double(dout))
    grads = backward(
        q, kv, result["out"], convert(dout, framework), result["lse"], sink, ids, SCALE, lengths, deterministic=True
    )
    for name, got, leaf in zip(grads.keys(), grads, leaves, strict=True):
        assert leaf.grad is not None
        # The sink's gradient is a sum of the rounded O: one rounding more than the tensors of the sum itself.
        assert_close(got, leaf.grad.nan_to_num(0), attention_tolerance(kind, 4, 20), name)
    assert not to_float64(grads["dkv"])[UNLISTED].any()


def test_values_are_the_first_channels() -> None:
    given = make(channels=576)
    leaves = [double(given[name]).requires_grad_() for name in ("q", "kv", "sink")]
    o, _, _ = exact(leaves, counts(given, lengths=False), 512)
    out = forward(given["q"], given["kv"], given["ids"], attn_sink=given["sink"], softmax_scale=SCALE)
    assert out["lse_indexer"] is None
    assert_close(out["out"], o.detach(), attention_tolerance("float32", 1, 576))
    dout = normal((T, H, 512), seed=4)
    o.backward(double(dout))
    grads = backward(given["q"], given["kv"], out["out"], dout, out["lse"], given["sink"], given["ids"], SCALE)
    for got, leaf in zip(grads, leaves, strict=True):
        assert leaf.grad is not None
        assert_close(got, leaf.grad.nan_to_num(0), attention_tolerance("float32", 3, 576))


def test_sinks_at_the_ends() -> None:
    given = make()
    sink = np.asarray([-np.inf, np.inf, 0.0], np.float32)
    q, kv, ids = given["q"], given["kv"], given["ids"]
    out, _, lse, _ = forward(q, kv, ids, attn_sink=sink)
    none = forward(q, kv, ids)
    assert np.array_equal(out[:, 0], none["out"][:, 0])
    assert not out[:, 1].any()
    assert np.array_equal(lse, none["lse"])
    dout = normal(out.shape, seed=4)
    dq, _, d_sink = backward(q, kv, out, dout, lse, sink, ids)
    assert not dq[:, 1].any()
    assert d_sink[0] == 0
    # A sink of plus infinity takes the whole weight but from empty rows; O is 0, so its gradient is too.
    assert d_sink[1] == 0
    delta = (dout * 0.5).sum(-1)
    _, _, d_sink = backward(q, kv, np.full_like(out, 0.5), dout, lse, sink, ids)
    alive = np.isfinite(lse[:, 0])
    np.testing.assert_allclose(d_sink[1], -delta[alive, 1].sum(), rtol=1e-5)
    tied = np.where(alive, lse[:, 2], 0).astype(np.float32)
    _, _, half = backward(
        q[:1], kv, np.full_like(out, 0.5)[:1], dout[:1], tied[:1, None].repeat(H, 1), tied[:1].repeat(H), ids[:1]
    )
    np.testing.assert_allclose(half, -0.5 * delta[0], rtol=1e-5)


def test_an_empty_row_leaves_the_sink_no_gradient() -> None:
    q, kv, ids = np.ones((1, 1, 8), np.float32), np.ones((2, 8), np.float32), np.full((1, 2), -1, np.int32)
    nan, lse = np.full_like(q, np.nan), np.full((1, 1), np.inf, np.float32)
    for sink in (0.0, np.inf, -np.inf):
        grads = backward(q, kv, nan, nan, lse, np.full(1, sink, np.float32), ids)
        assert not any(to_float64(x).any() for x in grads)


@pytest.mark.parametrize("with_sink", [True, False])
def test_finite_differences(with_sink: bool) -> None:
    given = make(channels=5)
    leaves = [double(given[name]).nan_to_num(0).requires_grad_() for name in ("q", "kv", "sink")]
    ids, lengths = (torch.from_numpy(given[name]) for name in ("ids", "lengths"))

    def out(q: Any, kv: Any, sink: Any) -> Any:
        sink = sink if with_sink else None
        return forward(q, kv, ids, attn_sink=sink, topk_length=lengths, softmax_scale=SCALE)["out"]

    if not with_sink:
        leaves[2] = leaves[2].detach()
    assert torch.autograd.gradcheck(out, leaves, fast_mode=True)


def test_jax_under_jit_and_grad() -> None:
    import jax

    given = make()
    leaves = [double(given[name]).requires_grad_() for name in ("q", "kv", "sink")]
    exact(leaves, counts(given, lengths=True), 20)[0].square().sum().backward()
    ids, lengths = (convert(given[name], "jax") for name in ("ids", "lengths"))

    def loss(q: Any, kv: Any, sink: Any) -> Any:
        out = forward(q, kv, ids, attn_sink=sink, topk_length=lengths, softmax_scale=SCALE)["out"]
        return (out**2).sum()

    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*(convert(given[n], "jax") for n in ("q", "kv", "sink")))
    for got, leaf in zip(grads, leaves, strict=True):
        assert leaf.grad is not None
        assert_close(got, leaf.grad.nan_to_num(0), attention_tolerance("float32", 4, 20))


def test_torch_compile_takes_it_whole() -> None:
    given = {name: convert(x, "torch") for name, x in make().items()}
    kv = given["kv"].nan_to_num(0)

    def layer(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return forward(q, kv, given["ids"], attn_sink=given["sink"], topk_length=given["lengths"])["out"].sin()

    grads = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        leaves = [x.clone().requires_grad_() for x in (given["q"], kv)]
        function(*leaves).sum().backward()
        grads.append([x.grad for x in leaves])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_statistics_have_no_derivative() -> None:
    given = {name: convert(x, "torch") for name, x in make().items()}
    given["kv"] = given["kv"].nan_to_num(0)
    q = given["q"].requires_grad_()
    with pytest.raises(NotImplementedError, match="max_logits, lse, lse_indexer: got a gradient"):
        forward(q, given["kv"], given["ids"])["lse"].nan_to_num(posinf=0).sum().backward()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("shape", [(0, 2, 4, 3), (2, 2, 0, 3), (2, 2, 4, 0), (2, 0, 4, 3)])
def test_zero_extents(framework: Framework, shape: tuple[int, int, int, int]) -> None:
    rows, heads, keys, slots = shape
    q, kv, ids = normal((rows, heads, 8)), normal((keys, 8)), np.zeros((rows, slots), np.int32)
    sink = normal((heads,))
    arrays = [convert(x, framework) for x in (q, kv, ids)]
    result = forward(*arrays, attn_sink=convert(sink, framework))
    assert to_float64(result["out"]).shape == (rows, heads, 8)
    assert not to_float64(result["out"]).any()
    assert np.isposinf(to_float64(result["lse"])).all()
    assert np.isneginf(to_float64(result["max_logits"])).all()
    out = result["out"]
    grads = backward(arrays[0], arrays[1], out, out, result["lse"], convert(sink, framework), arrays[2])
    assert [x.shape for x in grads] == [(rows, heads, 8), (keys, 8), (heads,)]
    assert not any(to_float64(x).any() for x in grads)
    if framework == "torch":
        leaf = arrays[0].clone().requires_grad_()
        forward(leaf, *arrays[1:])["out"].sum().backward()
        assert leaf.grad is not None
        assert not leaf.grad.any()


def test_memory_is_bounded_by_steps() -> None:
    """However many rows there are, a step takes few of them, and all come back in order."""
    sizes = []

    def body(carry: Any, at: Any, fresh: Any) -> Any:
        sizes.append(len(at))
        return carry + fresh.sum(), (at,)

    import array_api_compat.numpy as xp

    rows = 1000
    carry, (order,) = over_rows(xp, np.zeros(1), rows, 1 << 18, body, 0)
    assert max(sizes) == 4
    assert carry == rows
    assert np.array_equal(order, np.arange(rows))


def test_training_helpers() -> None:
    given = {name: convert(x, "torch") for name, x in make().items()}
    kv = given["kv"].nan_to_num(0).requires_grad_()
    out, top, lse = DSA.sparse_attention(
        given["q"], kv, given["ids"], given["sink"], topk_length=given["lengths"], trusted_compact_metadata=False
    )
    assert out.requires_grad
    assert not top.requires_grad
    assert not lse.requires_grad
    target, ids = DSA.sparse_attention_score_recompute(given["q"], kv, lse, given["ids"], None, given["lengths"])
    listed = counts(make(), lengths=True)
    assert torch.equal((ids >= 0).sum(1).double(), listed.sum(1))
    assert not target[ids < 0].any()
    assert not target.requires_grad
    sums = target.sum(1)
    assert torch.allclose(sums, (listed.sum(1) > 0).float(), atol=1e-6)
    z = torch.einsum("thd,tkd->thk", given["q"], kv.detach()[ids.clamp(0)]) / 20**0.5
    share = torch.exp(z - lse[..., None]).sum(1).masked_fill(ids < 0, 0)
    wanted = share / share.sum(1, keepdim=True)
    assert_close(target[0], wanted[0], attention_tolerance("float32", 1, 20))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"q": [1.0]}, TypeError, "q: got builtins.list"),
        ({"kv": torch.ones(4, 8).half()}, TypeError, "kv: got float16, wanted float32"),
        ({"indices": torch.zeros(2, 3, dtype=torch.int64)}, TypeError, "indices: got int64"),
        ({"softmax_scale": True}, TypeError, "softmax_scale: got True, wanted a real number"),
        ({"softmax_scale": "1"}, TypeError, "softmax_scale: got '1'"),
        ({"softmax_scale": 0.0}, ValueError, "softmax_scale: got 0.0, wanted a finite number above 0"),
        ({"trusted_compact_metadata": 1}, TypeError, "trusted_compact_metadata: got 1"),
        ({"kv": torch.ones(4, 9)}, ValueError, "kv: got"),
        ({"attn_sink": torch.ones(3)}, ValueError, "attn_sink: got"),
        ({"topk_length": torch.ones(3, dtype=torch.int32)}, ValueError, "topk_length: got"),
    ],
)
def test_training_refusals(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    good = {"q": torch.ones(2, 2, 8), "kv": torch.ones(4, 8), "indices": torch.zeros(2, 3, dtype=torch.int32)}
    with pytest.raises(kind, match=message):
        DSA.sparse_attention(**{**good, **change})


_Q, _KV, _I = np.ones((2, 2, 8), np.float32), np.ones((4, 8), np.float32), np.zeros((2, 3), np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": _Q[0]}, "q: got shape"),
        ({"kv": _KV[:, :4]}, "kv: got"),
        ({"kv": _KV.astype(np.float64)}, "kv: got float64, wanted float32, the dtype of q"),
        ({"topk_idxs": _I.astype(np.int64)}, "topk_idxs: got int64, wanted int32"),
        ({"topk_idxs": _I[:1]}, "topk_idxs: got"),
        ({"attn_sink": np.ones(2, np.float16)}, "attn_sink: got float16, wanted float32"),
        ({"topk_length": np.ones(2, np.int64)}, "topk_length: got int64"),
        ({"indexer_topk": 4}, r"indexer_topk: got 4, wanted an int in 0..3"),
        ({"softmax_scale": float("nan")}, "softmax_scale: got nan"),
        ({"q": _Q[..., ::2], "kv": _KV[:, :4]}, "q: got strides"),
    ],
)
def test_forward_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forward(**{"q": _Q, "kv": _KV, "topk_idxs": _I, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": _Q[:1]}, "out: got"),
        ({"dout": _Q.astype(np.float64)}, "dout: got float64"),
        ({"lse": np.ones((2, 3), np.float32)}, "lse: got"),
        ({"attn_sink": np.ones(2, np.float64)}, "attn_sink: got float64"),
        ({"q_cluster_mode": "on"}, "q_cluster_mode: got 'on'"),
        ({"block_tile": 0}, "block_tile: got 0"),
        ({"deterministic": 1.5}, "deterministic: got 1.5"),
        ({"dkv": np.ones((4, 7), np.float32)}, "dkv: got"),
    ],
)
def test_backward_refusals(change: dict[str, Any], message: str) -> None:
    good = {"q": _Q, "kv": _KV, "out": _Q, "dout": _Q, "lse": _Q[..., 0], "attn_sink": _Q[0, :, 0], "topk_idxs": _I}
    with pytest.raises(ValueError, match=message):
        backward(**{**good, **change})


def test_classes_and_buffers() -> None:
    given = {name: convert(x, "torch") for name, x in make().items()}
    q, kv, ids, sink, lengths = given.values()
    made = DSA.SparseAttentionForward(q, kv, ids, sink, lengths, SCALE)
    with pytest.raises(RuntimeError, match="execute before compile"):
        made.execute(q, kv, ids, attn_sink=sink, topk_length=lengths)
    assert made.check_support()
    made.compile()
    out, lse = torch.full_like(q, float("nan")), torch.full((T, H), float("nan"))
    result = made.execute(q, kv, ids, attn_sink=sink, topk_length=lengths, out=out, lse=lse)
    wanted = DSA.sparse_attention_forward_wrapper(q, kv, ids, attn_sink=sink, topk_length=lengths, softmax_scale=SCALE)
    assert result["out"] is out
    assert result["lse"] is lse
    assert torch.equal(out, wanted["out"])
    assert torch.equal(lse, wanted["lse"])
    with pytest.raises(ValueError, match="lse_indexer: got a buffer"):
        made.execute(q, kv, ids, attn_sink=sink, topk_length=lengths, lse_indexer=lse)
    grads = [torch.full_like(x, float("nan")) for x in (q, kv, sink)]
    back = DSA.SparseAttentionBackward(q, kv, out, q, lse, sink, ids, grads[0], grads[1], lengths, SCALE)
    assert back.check_support()
    back.compile()
    assert back.scratch_workspace_bytes() == 0
    back.execute(q, kv, out, q, lse, sink, ids, grads[0], grads[1], lengths, d_sink=grads[2])
    expected = DSA.sparse_attention_backward_wrapper(q, kv, out, q, lse, sink, ids, SCALE, lengths, dq=q.clone())
    assert all(torch.equal(a, b) for a, b in zip(grads, expected, strict=True))
