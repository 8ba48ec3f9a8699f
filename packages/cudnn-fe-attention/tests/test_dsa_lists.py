"""DSA's ops on lists of keys: top-k, ids, and probabilities at listed keys, against loops, in every framework."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.namespaces import DSA
from cudnn_fe_testkit.attention import attention_tolerance, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from tables here, which the type checker cannot count.
top_k_of: Any = attention.dsa_indexer_top_k_forward
local_to_global: Any = attention.dsa_local_to_global_forward
compactify: Any = attention.dsa_compactify_forward
predict_of: Any = attention.dsa_sparse_indexer_score_forward
target_of: Any = attention.dsa_sparse_attn_score_forward

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_top_k(framework: Framework, kind: str) -> None:
    """Few distinct scores, so that ties are everywhere; lengths of 0, below and above k, three rows a sequence."""
    if (framework, kind) == ("jax", "float64"):
        pytest.skip("JAX has no float64 unless asked for")
    lengths, group, count = (0, 2, 5, 40, 17), 3, 5
    scores = np.random.default_rng(2).integers(-3, 4, (15, 40)).astype(np.float32)
    scores[scores == 3] = -0.0
    scores = scores.astype(getattr(ml_dtypes, kind, kind))
    arrays = convert(scores, framework), convert(np.asarray(lengths, np.int32), framework)
    for tie_break in (0, 1, 2):
        indices, values = top_k_of(*arrays, count, group, tie_break=tie_break)
        for row in range(15):
            length = max(0, lengths[row // group] - group + row % group + 1)
            x = to_float64(scores)[row, :length]
            sign = -1 if tie_break == 2 else 1
            order = sorted(range(length), key=lambda c: (-x[c], np.signbit(x[c]), sign * c))
            wanted = sorted(order[:count]) + [-1] * max(0, count - length)
            assert to_float64(indices)[row].tolist() == wanted
            kept = min(length, count)
            assert to_float64(values)[row, :kept].tolist() == x[wanted[:kept]].tolist()
            assert np.isneginf(to_float64(values)[row, kept:]).all()
    assert top_k_of(*arrays, count, group, return_val=False)["values"] is None


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_top_k_of_special_scores(framework: Framework) -> None:
    """A minus infinity that is there is a score like others; a NaN lies beyond the infinity of its sign."""
    row = np.asarray([np.nan, -np.inf, -1, np.inf, -np.inf, -np.nan, 1], np.float32)
    assert np.signbit(row[5])
    order = [0, 3, 6, 2, 1, 4, 5]
    scores = convert(row[None], framework)
    for count in (1, 2, 5, 7, 9):
        for length in (7, 9, 0):  # all, more than there are, none
            indices, values = top_k_of(scores, convert(np.asarray([length], np.int32), framework), count)
            wanted = sorted(order[:count]) if length else []
            assert to_float64(indices)[0].tolist() == wanted + [-1] * (count - len(wanted))
            kept = [*row[wanted], *[-np.inf] * (count - len(wanted))]
            np.testing.assert_array_equal(to_float64(values)[0], kept)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_top_k_of_nothing(framework: Framework, shape: tuple[int, int]) -> None:
    scores, lengths = (convert(x, framework) for x in (np.ones(shape, np.float16), np.ones(shape[0], np.int32)))
    indices, values = top_k_of(scores, lengths, 3)
    assert indices.shape == values.shape == (shape[0], 3)
    assert (to_float64(indices) == -1).all()
    assert np.isneginf(to_float64(values)).all()


def test_top_k_class() -> None:
    scores, lengths = torch.from_numpy(normal((4, 9))), torch.tensor([9, 2, 0, 5], dtype=torch.int32)
    ids, values = torch.full((4, 3), 7, dtype=torch.int32), torch.full((4, 3), 7.0)
    made = DSA.IndexerTopK(scores, lengths, 3)
    assert made.check_support()
    made.compile()
    assert made.scratch_workspace_bytes() == 0
    made.execute(scores, lengths, out_indices=ids, out_values=values)
    wanted = DSA.indexer_top_k_wrapper(scores, lengths, 3, deterministic=True)
    assert torch.equal(ids, wanted["indices"])
    assert torch.equal(values, wanted["values"])
    with pytest.raises(ValueError, match=r"values: got builtins\.NoneType"):
        made.execute(scores, lengths, out_indices=ids)
    with pytest.raises(ValueError, match="bytes that overlap"):
        made.execute(scores, lengths, out_indices=ids, out_values=ids.view(torch.float32))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ids(framework: Framework) -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(-3, 9, (3, 4, 5))
    wanted = np.where(ids < 0, -1, ids + 9 * np.arange(3)[:, None, None])
    for kind in (np.int32, np.int64):
        if framework == "jax" and kind is np.int64:
            continue  # JAX has none unless asked for
        got = local_to_global(convert(ids.astype(kind), framework), 9)["indices"]
        assert np.array_equal(to_float64(got), wanted)
        assert "int32" in str(got.dtype)
    flat = ids.reshape(12, 5).astype(np.int32)
    q_ends, k_ends = np.asarray([0, 5, 5, 11], np.int32), np.asarray([0, 9, 20, 30], np.int32)
    first = np.asarray([0] * 5 + [20] * 6)[:, None]
    wanted = np.where(flat < 0, -1, flat + np.concatenate([first, [[0]]]))
    wanted[11] = -1  # a row past the last sequence
    ends = convert(q_ends, framework), convert(k_ends, framework)
    got = local_to_global(convert(flat, framework), 0, *ends)["indices"]
    assert np.array_equal(to_float64(got), wanted)
    moved, lengths = compactify(convert(ids.astype(np.int32), framework))
    assert moved.shape == (12, 5)
    for row, found, length in zip(flat, to_float64(moved), to_float64(lengths), strict=True):
        kept = [i for i in row.tolist() if i >= 0]
        assert found.tolist() == kept + [-1] * (5 - len(kept))
        assert length == len(kept)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_ids(framework: Framework) -> None:
    none = convert(np.zeros((2, 0, 4), np.int32), framework)
    assert local_to_global(none, 5)["indices"].shape == (2, 0, 4)
    moved, lengths = compactify(convert(np.zeros((3, 0), np.int32), framework))
    assert moved.shape == (3, 0)
    assert not to_float64(lengths).any()
    predict = predict_of(
        *(convert(np.ones(s, np.float32), framework) for s in ((2, 0, 2, 4), (2, 3, 4), (2, 0, 2))), none
    )
    assert predict["predict"].shape == (2, 0, 4)


B, SQ, SK, H, D, K = 2, 5, 7, 3, 16, 4


def make(kind: str) -> dict[str, Any]:
    ids = np.random.default_rng(4).integers(-1, SK + 2, (B, SQ, K)).astype(np.int32)
    ids[0, 1], ids[1, 2, 1:] = -1, -1
    k = normal((B, SK, D), kind, seed=2)
    ids[ids == 3] = 2
    k[:, 3] = np.nan  # nobody lists it
    lse = normal((B, SQ, H), seed=4, scale=0.5) + np.float32(2)
    lengths = np.asarray([[4, 4, 2, 0, 9], [1, 4, 4, -1, 3]], np.int32)
    q, w = normal((B, SQ, H, D), kind, seed=1), normal((B, SQ, H), kind, seed=3)
    return {"q": q, "k": k, "w": w, "lse": lse, "ids": ids, "lengths": lengths}


def slots(given: dict[str, Any], b: int, r: int, *, lengths: bool) -> list[int]:
    end = int(given["lengths"][b, r]) if lengths else K
    return [j for j in range(K) if j < end and 0 <= given["ids"][b, r, j] < SK]


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_probabilities(framework: Framework, kind: str) -> None:
    given = make(kind)
    q, k, w, lse = (double(given[name]) for name in ("q", "k", "w", "lse"))
    arrays = {name: convert(x, framework) for name, x in given.items()}
    named = (given["ids"] >= 0) & (given["ids"] < SK)
    assert (given["ids"] >= SK).any()
    for lengths in (False, True):
        predict, target = torch.zeros(B, SQ, K, dtype=torch.float64), torch.zeros(B, SQ, K, dtype=torch.float64)
        for b, r in np.ndindex(B, SQ):
            counted = slots(given, b, r, lengths=lengths)
            if not counted:
                continue
            keys = k[b, [int(given["ids"][b, r, j]) for j in counted]]
            s = q[b, r] @ keys.T
            predict[b, r, counted] = torch.softmax((s.clamp(min=0) * w[b, r][:, None]).sum(0), 0)
            share = torch.exp(0.25 * s - lse[b, r][:, None]).sum(0)
            target[b, r, counted] = share / share.sum()
        more = {"topk_length": arrays["lengths"]} if lengths else {}
        for ids, whole in (
            (given["ids"], False),
            (np.where(named, given["ids"] + SK * np.arange(B, dtype=np.int32)[:, None, None], B * SK), True),
        ):
            lists = convert(ids.astype(np.int32), framework)
            got = predict_of(arrays["q"], arrays["k"], arrays["w"], lists, topk_indices_global=whole, **more)
            # A softmax turns the absolute error of its scores, of size 20 at most, into a relative one.
            assert_close(got["predict"], predict, attention_tolerance("float32", 20, D * H))
            got = target_of(arrays["q"], arrays["k"], arrays["lse"], lists, 0.25, topk_indices_global=whole, **more)
            assert_close(got["target"], target, attention_tolerance("float32", 8, D * H))


def test_sums_that_vanish() -> None:
    """A query whose probabilities sum to 1e-10 or less has no target."""
    given = make("float32")
    lse = np.full((B, SQ, H), 60, np.float32)
    assert not target_of(given["q"], given["k"], lse, given["ids"], 0.25)["target"].any()
    lse[...] = np.inf  # what sparse attention gives for an empty row
    assert not target_of(given["q"], given["k"], lse, given["ids"], 0.25)["target"].any()


def test_probability_classes() -> None:
    given = {name: convert(x, "torch") for name, x in make("bfloat16").items()}
    q, k, w, lse, ids, lengths = given.values()
    out = torch.full((B, SQ, K), float("nan"))
    made = DSA.SparseIndexerScoreRecompute(q, k, w, ids, out, lengths)
    assert made.check_support()
    made(q, k, w, ids, out, lengths)
    assert torch.equal(out, DSA.sparse_indexer_score_recompute_wrapper(q, k, w, ids, topk_length=lengths)["predict"])
    made = DSA.SparseAttnScoreRecompute(q, k, lse, ids, out, 0.5, lengths)
    made(q, k, lse, ids, out, lengths)
    wanted = DSA.sparse_attn_score_recompute_wrapper(q, k, lse, ids, 0.5, topk_length=lengths)["target"]
    assert torch.equal(out, wanted)
    made.execute(q, k, lse, ids, out, lengths, softmax_scale=0.25)
    given_out = torch.empty(B, SQ, K)
    again = DSA.sparse_attn_score_recompute_wrapper(q, k, lse, ids, 0.25, topk_length=lengths, out=given_out)
    assert again["target"] is given_out
    assert torch.equal(out, given_out)


_X, _L = np.ones((4, 8), np.float32), np.ones(4, np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_values": _X[0]}, "input_values: got shape"),
        ({"input_values": _X.astype(np.int32)}, "input_values: got int32"),
        ({"seq_lens": _L.astype(np.int64)}, "seq_lens: got int64"),
        ({"seq_lens": _L[:3]}, r"input_values: got 4 rows, wanted batch \* next_n = 3 \* 1"),
        ({"next_n": 0}, "next_n: got 0"),
        ({"top_k": 2049}, "top_k: got 2049"),
        ({"tie_break": 3}, "tie_break: got 3"),
        ({"deterministic": 3}, "deterministic: got 3"),
        ({"num_copy_bits": 0}, "num_copy_bits: got 0"),
    ],
)
def test_top_k_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        top_k_of(**{"input_values": _X, "seq_lens": _L, "top_k": 2, **change})


_I, _E = np.zeros((1, 4, 2), np.int32), np.asarray([0, 4], np.int32)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: local_to_global(_I.astype(np.int16), 4), TypeError, "got dtype"),
        (lambda: local_to_global(_I.astype(np.float32), 4), TypeError, "local_indices: got float32"),
        (lambda: local_to_global(_I[0], 4), ValueError, "local_indices: got shape"),
        (lambda: local_to_global(_I, 4, _E, _E), ValueError, "local_indices: got shape"),
        (lambda: local_to_global(_I[0], 4, _E), ValueError, "cu_seqlens_k: got None"),
        (lambda: local_to_global(_I[0], 4, _E, np.zeros(3, np.int32)), ValueError, "cu_seqlens_k: got"),
        (lambda: local_to_global(_I, -1), ValueError, "seqlen_k: got -1"),
        (lambda: compactify(_I.astype(np.int64)), TypeError, "indices: got int64"),
        (lambda: compactify(_I[0, 0]), ValueError, r"indices: got \(2,\), wanted \(M, K\)"),
    ],
)
def test_id_refusals(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


_Q, _K, _W = np.ones((1, 4, 2, 8), np.float32), np.ones((1, 3, 8), np.float32), np.ones((1, 4, 2), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_indexer": _Q[0]}, "q_indexer: got shape"),
        ({"k_indexer": _K[..., :4]}, "k_indexer: got"),
        ({"k_indexer": _K.astype(np.float16)}, "k_indexer: got float16"),
        ({"weights": _W[..., :1]}, "weights: got"),
        ({"weights": _W.astype(np.float16)}, "weights: got float16"),
        ({"topk_indices": _I[:, :2]}, "topk_indices: got"),
        ({"topk_indices": _I.astype(np.float32)}, "topk_indices: got float32"),
        ({"topk_length": _E}, "topk_length: got"),
        ({"qhead_per_kv_head": 1}, "qhead_per_kv_head: got 1"),
        ({"topk_indices_global": None}, "topk_indices_global: got None"),
        ({"out": np.ones((1, 4, 3), np.float32)}, "predict: got"),
        ({"q_indexer": np.asfortranarray(np.ones((1, 4, 2, 8), np.float32))}, "q_indexer: got strides"),
    ],
)
def test_probability_refusals(change: dict[str, Any], message: str) -> None:
    good = {"q_indexer": _Q, "k_indexer": _K, "weights": _W, "topk_indices": _I}
    with pytest.raises(ValueError, match=message):
        predict_of(**{**good, **change})


def test_target_refusals() -> None:
    with pytest.raises(ValueError, match="lse: got float16, wanted float32"):
        target_of(_Q, _K, _W.astype(np.float16), _I, 1.0)
    with pytest.raises(ValueError, match="softmax_scale: got None"):
        target_of(_Q, _K, _W, _I, None)
