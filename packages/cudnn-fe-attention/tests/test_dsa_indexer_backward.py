"""Gradients of DSA's indexer: against autograd of the KL divergence in float64, in every framework, at the edges."""

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
sparse: Any = attention.dsa_indexer_backward
dense: Any = attention.dsa_dense_indexer_backward

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
B, SQ, SK, H, D, K = 2, 6, 8, 3, 16, 4
SM, COEFF, LOSS, RATIO = 0.4, 3.0, 0.7, 2
OFFSETS = (3, 0)


def loss_of(s: torch.Tensor, target: torch.Tensor, rows: int) -> torch.Tensor:
    """Cross entropy of the target and the softmax over the finite scores: its gradient is the KL divergence's."""
    log_p = torch.log_softmax(s, -1)
    terms = torch.where(target > 0, target * log_p, torch.zeros_like(log_p))
    return -LOSS * COEFF / rows * terms.sum()


def scores(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """(M, N) of (M, H, D), (N, D), (M, H)."""
    return ((SM * torch.einsum("mhd,nd->mhn", q, k)).clamp(min=0) * w[..., None]).sum(1)


def make(kind: str) -> dict[str, Any]:
    """Distinct ids per query, some slots empty, a key that nobody lists and holds NaN."""
    rng = np.random.default_rng(3)
    ids = np.stack([rng.permutation(SK - 1)[:K] for _ in range(B * SQ)]).reshape(B, SQ, K).astype(np.int32)
    ids[0, 2, 2:], ids[1, 0], ids[0, 4, 1] = -1, -1, SK  # the last is no key, and not the next sequence's first one
    q, w, k = normal((B, SQ, H, D), kind, seed=1), normal((B, SQ, H), kind, seed=2), normal((B, SK, D), kind, seed=3)
    k[:, SK - 1] = np.nan
    target = np.where((ids < 0) | (ids >= SK), 0, rng.random((B, SQ, K)) + 0.1)
    target = target / np.maximum(target.sum(-1, keepdims=True), 1e-30)
    return {"q": q, "w": w, "k": k, "target": target.astype(np.float32), "ids": ids}


def sparse_truth(given: dict[str, Any]) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Leaves with gradients, the predictions, and the gradient of the scores."""
    leaves = [double(given[name]).nan_to_num(0).requires_grad_() for name in ("q", "w", "k")]
    q, w, k = leaves
    total, predict, by_score = torch.zeros((), dtype=torch.float64), torch.zeros(B, SQ, K, dtype=torch.float64), []
    for b, r in np.ndindex(B, SQ):
        slots = np.flatnonzero((given["ids"][b, r] >= 0) & (given["ids"][b, r] < SK))
        if not len(slots):
            continue
        s = scores(q[b, r][None], k[b, given["ids"][b, r, slots].astype(int)], w[b, r][None])[0]
        s.retain_grad()
        by_score.append((b, r, slots, s))
        predict[b, r, slots] = torch.softmax(s.detach(), -1)
        total = total + loss_of(s, double(given["target"])[b, r, slots], B * SQ)
    total.backward()
    signal = torch.zeros(B, SQ, K, dtype=torch.float64)
    for b, r, slots, s in by_score:
        assert s.grad is not None
        signal[b, r, slots] = s.grad
    return leaves, predict, signal


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_sparse(framework: Framework, kind: str) -> None:
    given = make(kind)
    given["q"][1, 0], given["w"][1, 0] = np.nan, np.nan  # a query without keys
    leaves, predict, signal = sparse_truth(given)
    loss = np.asarray([LOSS], np.float32)
    for whole in (False, True):
        ids = given["ids"]
        if whole:
            first = SK * np.arange(B, dtype=np.int32)[:, None, None]
            ids = np.where(ids < 0, -1, np.where(ids < SK, ids + first, B * SK)).astype(np.int32)
        operands = (given["q"], given["w"], given["k"], given["target"], predict.float().numpy(), ids, loss)
        grads = sparse(*(convert(x, framework) for x in operands), SM, COEFF, whole)
        assert list(grads.keys()) == ["d_index_q", "d_weights", "d_index_k", "d_score"]
        for got, leaf, name in zip(grads, leaves, grads.keys(), strict=False):
            assert leaf.grad is not None
            assert_close(got, leaf.grad, attention_tolerance(kind, 2, K * H * SQ), name)
        # Differences of probabilities that were rounded to float32: an error of the size of what is subtracted.
        assert_close(grads["d_score"], signal, attention_tolerance("float32", 8, K))
        assert not to_float64(grads["d_index_k"])[:, SK - 1].any()


def test_finite_differences_of_lists() -> None:
    given = {name: x if name == "ids" else x.astype(np.float64) for name, x in make("float32").items()}
    at = {name: double(given[name]).nan_to_num(0) for name in ("q", "w", "k")}
    target = double(given["target"])

    def predictions(x: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and the probabilities of all slots."""
        total, predict = torch.zeros((), dtype=torch.float64), torch.zeros(B, SQ, K, dtype=torch.float64)
        for b, r in np.ndindex(B, SQ):
            slots = np.flatnonzero((given["ids"][b, r] >= 0) & (given["ids"][b, r] < SK))
            s = scores(x["q"][b, r][None], x["k"][b, given["ids"][b, r, slots]], x["w"][b, r][None])[0]
            predict[b, r, slots] = torch.softmax(s, -1)
            total = total + loss_of(s, target[b, r, slots], B * SQ)
        return total, predict

    operands = (given["q"], given["w"], given["k"], given["target"], predictions(at)[1].numpy(), given["ids"])
    grads = sparse(*operands, np.asarray([LOSS]), SM, COEFF)
    slopes = {name: grads[f"d_{full}"] for name, full in (("q", "index_q"), ("w", "weights"), ("k", "index_k"))}
    assert_slopes(lambda x: predictions(x)[0], at, slopes)


def test_finite_differences_of_all_keys() -> None:
    at = {
        "q": double(normal((1, SQ, H, D), "float64", seed=1)),
        "w": double(normal((1, SQ, H), "float64", seed=2)),
        "k": double(normal((1, SK, D), "float64", seed=3)),
    }
    attn = double(np.random.default_rng(6).random((1, SQ, SK)) + 0.1)
    seen = torch.tensor([[j < visible(r, 3, SK) for j in range(SK)] for r in range(SQ)])
    norm = (attn * seen).sum(-1)

    def logits(x: dict[str, torch.Tensor]) -> torch.Tensor:
        return scores(x["q"][0], x["k"][0], x["w"][0]).masked_fill(~seen, -torch.inf)

    def loss(x: dict[str, torch.Tensor]) -> torch.Tensor:
        log_p = torch.log_softmax(logits(x), -1)
        return -LOSS * COEFF / SQ * (attn[0] / norm[0, :, None] * log_p)[seen].sum()

    s = logits(at)
    operands = (*at.values(), attn, norm, s[None], torch.logsumexp(s, -1)[None], torch.tensor([LOSS]).double())
    offsets = torch.tensor([3], dtype=torch.int32)
    grads = dense(*operands, SM, COEFF, RATIO, q_causal_offsets=offsets)
    assert_slopes(loss, at, dict(zip(at, (grads["d_index_q"], grads["d_weights"], grads["d_index_k"]), strict=True)))


def test_the_wrapper_overwrites_the_target() -> None:
    given = make("bfloat16")
    _, predict, _ = sparse_truth(given)
    operands = [convert(given[name], "torch") for name in ("q", "w", "k", "target")]
    ids, loss = torch.from_numpy(given["ids"]), torch.tensor([LOSS])
    wanted = sparse(*operands, predict.float(), ids, loss, SM, COEFF)
    score = operands[3].clone()
    keys = torch.full((B, SK, D), float("nan"))
    grads = DSA.indexer_backward_wrapper(
        *operands[:3], score, predict.float(), ids, loss, SM, COEFF, d_index_k=keys, backend="sm100_v2"
    )
    assert list(grads.keys()) == ["d_index_q", "d_weights", "d_index_k"]
    assert torch.equal(score, wanted["d_score"])
    assert grads["d_index_k"] is keys
    assert torch.equal(keys.bfloat16(), wanted["d_index_k"])
    score = operands[3].clone()
    results = [torch.full_like(x, float("nan")) for x in operands[:3]]
    made = DSA.IndexerBackward(*operands[:3], *results, score, predict.float(), ids, SM)
    assert made.check_support()
    made.compile()
    assert made.scratch_workspace_bytes() == 0
    made.execute(*operands[:3], *results, score, predict.float(), ids, loss, COEFF)
    assert torch.equal(score, wanted["d_score"])
    assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=False))


def visible(row: int, offset: int, keys: int) -> int:
    return max(0, min((offset + row + 1) // RATIO, keys))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_dense(framework: Framework, kind: str, packed: bool) -> None:
    """Scores of NaN where hidden; packed sequences of 7 and 5 queries, 6 and 10 keys."""
    given = make(kind)
    queries, keys = ((7, 5), (6, 10)) if packed else ((SQ, SQ), (SK, SK))
    width = max(keys)
    rng = np.random.default_rng(6)
    q, w, k = (double(given[name]).nan_to_num(0) for name in ("q", "w", "k"))
    leaves = [q.reshape(-1, H, D), w.reshape(-1, H), k.reshape(-1, D)]
    leaves = [x.clone().requires_grad_() for x in leaves]
    attn, index = np.full((12, width), np.nan, np.float32), np.full((12, width), np.nan, np.float32)
    norm, lse = np.zeros(12, np.float32), np.full(12, -np.inf, np.float32)
    total, signal, row, key = torch.zeros((), dtype=torch.float64), torch.zeros(12, width, dtype=torch.float64), 0, 0
    kept = []
    for count, many, offset in zip(queries, keys, OFFSETS, strict=True):
        for r in range(count):
            seen = visible(r, offset, many)
            if seen:
                s = scores(leaves[0][row + r][None], leaves[2][key : key + seen], leaves[1][row + r][None])[0]
                s.retain_grad()
                kept.append((row + r, s))
                attn[row + r, :seen] = rng.random(seen) + 0.1
                norm[row + r] = attn[row + r, :seen].sum()
                index[row + r, :seen] = s.detach().numpy()
                lse[row + r] = torch.logsumexp(s.detach(), 0)
                target = double(attn[row + r, :seen]) / float(norm[row + r])
                total = total + loss_of(s, target, 12)
        row, key = row + count, key + many
    total.backward()
    for at, s in kept:
        assert s.grad is not None
        signal[at, : len(s)] = s.grad
    lead, kl = ((12,), (B * SK,)) if packed else ((B, SQ), (B, SK))
    operands = [
        given["q"].reshape(*lead, H, D),
        given["w"].reshape(*lead, H),
        given["k"].reshape(*kl, D),
        attn.reshape(*lead, width),
        norm.reshape(lead),
        index.reshape(*lead, width),
        lse.reshape(lead),
        np.asarray([LOSS], np.float32),
    ]
    operands[2] = np.nan_to_num(operands[2].astype(np.float32)).astype(operands[2].dtype)
    more = {"q_causal_offsets": convert(np.asarray(OFFSETS, np.int32), framework)}
    if packed:
        for name, sizes in (("q", queries), ("k", keys)):
            more[f"cu_seqlens_{name}"] = convert(np.asarray([0, *np.cumsum(sizes)], np.int32), framework)
    arrays = [convert(x, framework) for x in operands]
    grads = dense(*arrays, SM, COEFF, RATIO, **more)
    for got, leaf, name in zip(grads, leaves, grads.keys(), strict=False):
        assert leaf.grad is not None
        got = to_float64(got).reshape(leaf.shape)
        # The probabilities carry the rounding of the float32 scores, of size 10 at most, that they are made from.
        assert_close(got, leaf.grad, attention_tolerance(kind, 2, 1) + attention_tolerance("float32", 20, 12 * H), name)
        assert not got[leaf.grad.numpy() == 0].any()
    assert_close(to_float64(grads["d_score"]).reshape(12, width), signal, attention_tolerance("float32", 20, 12))
    if framework == "torch":
        check_dense_class(arrays, grads, more, packed=packed)


def check_dense_class(arrays: list[Any], wanted: Any, more: dict[str, Any], *, packed: bool) -> None:
    results = [torch.full_like(x, float("nan")) for x in arrays[:3]]
    index = arrays[5].clone()
    given = [*arrays[:3], *results, *arrays[3:5], index, arrays[6]]
    made = DSA.DenseIndexerBackward(*given, SM, ratio=RATIO, is_thd=packed, batch=2, has_q_causal_offsets=True)
    assert made.check_support()
    made(*given, arrays[7], COEFF, **more)
    assert all(torch.equal(a, b) for a, b in zip((*results, index), wanted, strict=True))
    index = arrays[5].clone()
    again = DSA.dense_indexer_backward_wrapper(*arrays[:5], index, *arrays[6:], SM, COEFF, ratio=RATIO, **more)
    assert list(again.keys()) == ["d_index_q", "d_weights", "d_index_k"]
    assert torch.equal(index, wanted["d_score"])


def test_hidden_nan_is_not_read() -> None:
    """A key that no query sees and a query that sees no key hold NaN."""
    q, w, k = np.ones((1, 3, 1, 4), np.float32), np.ones((1, 3, 1), np.float32), np.ones((1, 3, 4), np.float32)
    q[0, 0], k[0, 1:] = np.nan, np.nan  # ratio 2: token 0 sees nothing, tokens 1 and 2 the first key
    nan, one = np.full((1, 3, 3), np.nan, np.float32), np.ones((1, 3), np.float32)
    grads = dense(q, w, k, nan, one, nan, one, one[:, :1], ratio=2)
    assert np.isnan(grads["d_index_q"][0, 1:]).all()  # the scores of what is seen are NaN
    assert not grads["d_index_q"][0, 0].any()
    assert not grads["d_weights"][0, 0].any()
    assert not grads["d_index_k"][0, 1:].any()
    score = np.ones((1, 3, 3), np.float32)
    grads = dense(q, w, k, score, one, score, one, one[:, :1], ratio=2)
    assert np.isfinite(grads["d_index_q"]).all()
    assert np.isfinite(grads["d_index_k"]).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_to_sum(framework: Framework) -> None:
    q, w, k = (convert(np.ones(s, np.float32), framework) for s in ((1, 0, 2, 4), (1, 0, 2), (1, 3, 4)))
    none, loss = convert(np.zeros((1, 0, 3), np.float32), framework), convert(np.ones(1, np.float32), framework)
    ids = convert(np.zeros((1, 0, 3), np.int32), framework)
    grads = sparse(q, w, k, none, none, ids, loss)
    assert [tuple(x.shape) for x in grads] == [(1, 0, 2, 4), (1, 0, 2), (1, 3, 4), (1, 0, 3)]
    assert not to_float64(grads["d_index_k"]).any()
    row = convert(np.zeros((1, 0), np.float32), framework)
    grads = dense(q, w, k, none, row, none, row, loss)
    assert not to_float64(grads["d_index_k"]).any()


def test_jax_under_jit() -> None:
    import jax

    given = make("float32")
    leaves, predict, _ = sparse_truth(given)
    loss = np.asarray([LOSS], np.float32)
    operands = (given["q"], given["w"], given["k"], given["target"], predict.float().numpy(), given["ids"], loss)
    grads = jax.jit(lambda *x: sparse(*x, SM, COEFF))(*(convert(x, "jax") for x in operands))
    assert leaves[2].grad is not None
    assert_close(grads["d_index_k"], leaves[2].grad, attention_tolerance("float32", 2, K * H * SQ))


_Q, _W, _K = np.ones((1, 4, 2, 8), np.float32), np.ones((1, 4, 2), np.float32), np.ones((1, 3, 8), np.float32)
_S, _I, _G = np.ones((1, 4, 3), np.float32), np.zeros((1, 4, 3), np.int32), np.ones(1, np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index_q": _Q[0]}, "index_q: got shape"),
        ({"weights": _W[..., :1]}, "weights: got"),
        ({"index_k": _K.astype(np.float16)}, "index_k: got float16"),
        ({"attn_score": _S.astype(np.float16)}, "attn_score: got float16, wanted float32"),
        ({"index_score": _S[..., :2]}, "index_score: got"),
        ({"topk_indices": _S}, "topk_indices: got float32"),
        ({"grad_loss": np.ones(2, np.float32)}, "grad_loss: got"),
        ({"sm_scale": "1"}, "sm_scale: got '1'"),
        ({"d_index_k": np.ones((1, 3, 8), np.float16)}, "d_index_k: got float16, wanted float32"),
        ({"topk_indices_global": 3}, "topk_indices_global: got 3"),
    ],
)
def test_sparse_refusals(change: dict[str, Any], message: str) -> None:
    good = {"index_q": _Q, "weights": _W, "index_k": _K, "attn_score": _S, "index_score": _S, "topk_indices": _I}
    with pytest.raises(ValueError, match=message):
        sparse(**{**good, "grad_loss": _G, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index_k": _K[0]}, "index_k: got shape"),
        ({"attn_l1norm": _S}, "attn_l1norm: got"),
        ({"index_lse": _S[..., 0].astype(np.float64)}, "index_lse: got float64"),
        ({"ratio": 0}, "ratio: got 0"),
        ({"attn_score": _S[..., :2]}, "attn_score: got"),
        ({"cu_seqlens_q": np.asarray([0, 4], np.int32)}, "index_q: got shape"),
        ({"grad_loss": _G.astype(np.float64)}, "grad_loss: got float64"),
    ],
)
def test_dense_refusals(change: dict[str, Any], message: str) -> None:
    row = _S[..., 0].copy()
    good = {"index_q": _Q, "weights": _W, "index_k": _K, "attn_score": _S, "attn_l1norm": row, "index_score": _S}
    with pytest.raises(ValueError, match=message):
        dense(**{**good, "index_lse": row, "grad_loss": _G, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "sm90"}, "backend: got 'sm90'"),
        ({"block_I": 0}, "block_I: got 0"),
        ({"deterministic_dk_planes": 100}, "deterministic_dk_planes: got 100"),
        ({"deterministic_dk_planes": 128}, "deterministic_dk_planes: got 128, wanted 96 unless deterministic"),
    ],
)
def test_hint_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DSA.indexer_backward_wrapper(_Q, _W, _K, _S.copy(), _S, _I, _G, **change)
