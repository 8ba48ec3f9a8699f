"""DSA's indexer: scores and top-k against a float64 loop over rows, in every precision and framework, at the edges."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.dsa import scales
from cudnn_fe.attention.namespaces import DSA
from cudnn_fe.core.codecs import decode, encode, from_codes, to_codes
from cudnn_fe_testkit.attention import attention_tolerance, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists here, which the type checker cannot count.
scores_of: Any = attention.dsa_indexer_forward
top_k_of: Any = attention.dsa_indexer_fused_top_k_forward
dense_scores_of: Any = attention.dsa_dense_indexer_score_forward
dense_attention_of: Any = attention.dsa_dense_attn_score_forward

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
H, D, SM = 4, 32, 0.5
LENGTHS = ((1, 1), (7, 3), (0, 2), (11, 0), (9, 6))  # (queries, keys) of packed sequences, with none of either
TQ, TK = (sum(side) for side in zip(*LENGTHS, strict=True))
OFFSETS = (3, 0, 5, 2, 13)  # tokens before each sequence's first query
RATIO = 4


def ends(side: int) -> np.ndarray[Any, Any]:
    return np.concatenate([[0], np.cumsum([pair[side] for pair in LENGTHS])]).astype(np.int32)


def visible(row: int, offset: int, keys: int) -> int:
    return max(0, min((offset + row + 1) // RATIO, keys))


def segments(*, packed: bool) -> list[tuple[int, int, int, int, int]]:
    """(first query, queries, first key, keys, offset) of each sequence, or of each of two batches of 9 and 3."""
    if not packed:
        return [(9 * b, 9, 3 * b, 3, OFFSETS[b]) for b in range(2)]
    q, k = ends(0), ends(1)
    return [(int(q[i]), LENGTHS[i][0], int(k[i]), LENGTHS[i][1], OFFSETS[i]) for i in range(len(LENGTHS))]


def exact_scores(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, *, packed: bool, width: int) -> torch.Tensor:
    """Flat queries (T, H, D), keys (N, Hkv, D), weights (T, H): one query and key at a time."""
    out = torch.full((len(q), width), -torch.inf, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for first, queries, key, keys, offset in segments(packed=packed):
        for r in range(queries):
            for c in range(visible(r, offset, keys)):
                s = torch.stack([q[first + r, h] @ k[key + c, h // group] for h in range(q.shape[1])])
                out[first + r, c] = SM * (s.clamp(min=0) * w[first + r]).sum()
    return out


def make(kind: str = "float32", *, packed: bool, key_heads: int = 1, heads: int = H) -> list[Any]:
    """Q, K and weights, in the shapes of the call; packed ones with rows of NaN that no sequence holds."""
    rows, keys = (TQ + 2, TK + 1) if packed else (18, 6)
    q, k = normal((rows, heads, D), kind, seed=1), normal((keys, key_heads, D), kind, seed=2)
    w = normal((rows, heads), kind, seed=3)
    if packed:
        q[TQ:], k[TK:], w[TQ:] = np.nan, np.nan, np.nan
        return [q, k, w]
    return [q.reshape(2, 9, heads, D), k.reshape(2, 3, key_heads, D), w.reshape(2, 9, heads)]


def flat(given: list[Any]) -> list[torch.Tensor]:
    q, k, w = given
    heads, key_heads = q.shape[-2], k.shape[-2]
    return [double(q).reshape(-1, heads, D), double(k).reshape(-1, key_heads, D), double(w).reshape(-1, heads)]


def positions(framework: Framework, *, packed: bool) -> dict[str, Any]:
    offsets = np.asarray(OFFSETS if packed else OFFSETS[:2], np.int32)
    more: dict[str, Any] = {"q_causal_offsets": convert(offsets, framework), "ratio": RATIO}
    if packed:
        more |= {f"cu_seqlens_{s}": convert(ends(i), framework) for i, s in enumerate("qk")}
        more |= {"max_seqlen_q": 11, "max_seqlen_k": 7}
    return more


def tolerance(kind: str) -> float:
    """The operands are exact and the result is float32: sums over channels, then heads."""
    return attention_tolerance("float32", 1, D * H)


@pytest.mark.parametrize(
    ("framework", "packed", "kind"),
    [
        *(
            (name, packed, kind)
            for name in ("numpy", "torch")
            for packed in (False, True)
            for kind in ("bfloat16", "float32")
        ),
        ("jax", False, "bfloat16"),  # a compilation takes seconds: each value once
        ("jax", True, "float32"),
    ],
)
def test_scores_and_top_k(framework: Framework, packed: bool, kind: str) -> None:
    given, more = make(kind, packed=packed), positions(framework, packed=packed)
    width = 7 if packed else 3
    wanted = exact_scores(*flat(given), packed=packed, width=width)
    arrays = [convert(x, framework) for x in given]
    got, lse = (to_float64(x) for x in scores_of(*arrays, sm_scale=SM, return_lse=True, **more))
    assert got.shape == ((TQ + 2, width) if packed else (2, 9, width))
    assert_close(got.reshape(-1, width), wanted, tolerance(kind))
    assert_close(lse.reshape(-1), torch.logsumexp(wanted, -1), tolerance(kind), "lse")
    for global_ids in (True, False):
        best = top_k_of(*arrays, 2, sm_scale=SM, return_lse=True, topk_indices_global=global_ids, **more)
        assert list(best.keys()) == ["indices", "logits", "softmax", "lse"]
        ids, logits, softmax, total = (to_float64(x) for x in best)
        assert np.array_equal(total, lse)
        ids, logits, softmax = (x.reshape(-1, 2) for x in (ids, logits, softmax))
        assert_close(logits, wanted.topk(2, -1).values, tolerance(kind))
        share = torch.softmax(wanted.topk(2, -1).values, -1).nan_to_num(0)
        assert_close(softmax, share, attention_tolerance("float32", 2, D * H))
        for first, queries, key, keys, offset in segments(packed=packed):
            for row in range(first, first + queries):
                count = min(2, visible(row - first, offset, keys))
                assert (ids[row, count:] == -1).all()
                local = ids[row, :count].astype(int) - (key if global_ids else 0)
                assert len(set(local)) == count
                assert np.array_equal(got.reshape(-1, width)[row, local], logits[row, :count])


def test_fp8_and_its_factors() -> None:
    """Values times the factors of rows and keys, and weights that hold the query's factor already."""
    given = make(packed=False)
    q8, k8 = (from_codes(encode(x, "float8_e4m3fn"), "float8_e4m3fn") for x in given[:2])
    q_scale, k_scale = np.abs(normal((2, 9, H), seed=7)) + 0.5, np.abs(normal((2, 3, 1), seed=8)) + 0.5
    w = given[2].astype(ml_dtypes.bfloat16)
    values = [
        decode(to_codes(q8), "float8_e4m3fn") * q_scale[..., None],
        decode(to_codes(k8), "float8_e4m3fn") * k_scale[..., None],
    ]
    wanted = exact_scores(*flat([*values, w]), packed=False, width=3)
    more = positions("numpy", packed=False) | {"precision": "FP8", "q_scale": q_scale, "k_scale": k_scale}
    got = scores_of(q8, k8, w, sm_scale=SM, **more)["scores"]
    assert_close(got.reshape(-1, 3), wanted, attention_tolerance("float32", 3, D * H))
    folded = w.astype(np.float32) * q_scale * np.float32(SM)
    again = scores_of(q8, k8, folded, sm_scale=123.0, **more)["scores"]
    assert_close(again.reshape(-1, 3), wanted, attention_tolerance("float32", 3, D * H))
    best = top_k_of(q8, k8, w, 3, sm_scale=SM, **more)
    assert np.array_equal(np.sort(best["logits"], -1)[..., ::-1], np.sort(got, -1)[..., ::-1])


def block_scaled(x: Any, precision: str) -> tuple[Any, Any, Any]:
    """Elements, E8M0 codes (..., D / 32) and the values that they stand for."""
    kind = "float8_e4m3fn" if precision == "mxfp8" else "float4_e2m1fn"
    codes = np.random.default_rng(3).integers(124, 130, (*x.shape[:-1], D // 32)).astype(np.uint8)
    elements = encode(np.nan_to_num(x), kind)
    values = decode(elements, kind) * np.repeat(2.0 ** (codes.astype(np.float64) - 127), 32, -1)
    return from_codes(elements, kind), codes.view(ml_dtypes.float8_e8m0fnu), values


@pytest.mark.parametrize(
    ("framework", "packed", "precision"),
    [
        *(
            (name, packed, kind)
            for name in ("numpy", "torch")
            for packed in (False, True)
            for kind in ("mxfp8", "mxfp4")
        ),
        ("jax", False, "mxfp8"),
        ("jax", True, "mxfp4"),
    ],
)
def test_block_scales(framework: Framework, packed: bool, precision: str) -> None:
    heads = 64  # two tokens fill the 128 rows that a packed atom has
    q, k, w = make("bfloat16", packed=packed, heads=heads)
    (q, q_scale, q_values), (k, k_scale, k_values) = (block_scaled(x.astype(np.float32), precision) for x in (q, k))
    more = positions(framework, packed=packed) | {"precision": precision}
    if framework == "torch" and precision == "mxfp4":
        q, k = (torch.from_numpy(to_codes(x)[..., ::2] | to_codes(x)[..., 1::2] << 4) for x in (q, k))
        q, k = q.view(torch.float4_e2m1fn_x2), k.view(torch.float4_e2m1fn_x2)
    else:
        q, k = convert(q, framework), convert(k, framework)
    q_scale, k_scale = convert(q_scale, framework), convert(k_scale, framework)
    if packed:
        offsets = more["cu_seqlens_q"], more["cu_seqlens_k"]
        padded = (
            scales.make_scale_cu_seqlens_padded(offsets[0], 2),
            scales.make_scale_cu_seqlens_padded(offsets[1], 128),
        )
        more |= {f"cu_seqlens_{s}_scale_padded": x for s, x in zip("qk", padded, strict=True)}
        q_scale = scales.pack_q_scale_thd(q_scale, offsets[0], padded[0], heads)
        k_scale = scales.pack_k_scale_thd(k_scale, offsets[1], padded[1])
    else:
        q_scale, k_scale = scales.pack_qk_scale_bshd(q_scale, k_scale, heads)
    wanted = exact_scores(*flat([q_values, k_values, w]), packed=packed, width=7 if packed else 3)
    more |= {"q_scale": q_scale, "k_scale": k_scale}
    w = convert(w, framework)
    got = to_float64(scores_of(q, k, w, sm_scale=SM, **more)["scores"])
    rows = TQ if packed else len(wanted)
    close = attention_tolerance("float32", 1, D * heads)
    assert_close(got.reshape(len(wanted), -1)[:rows], wanted[:rows], close)
    assert np.isneginf(got.reshape(len(wanted), -1)[rows:]).all()
    best = to_float64(top_k_of(q, k, w, 2, sm_scale=SM, **more)["logits"])
    assert_close(best.reshape(-1, 2)[:rows], wanted[:rows].topk(2, -1).values, close)
    dense, _ = dense_scores_of(q, k, w, sm_scale=SM, **more)
    assert np.array_equal(to_float64(dense), got)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_dense_scores(framework: Framework, packed: bool) -> None:
    """Grouped heads; longest sequences that are read on the host; attention's probabilities."""
    given, more = make(packed=packed, key_heads=2), positions(framework, packed=packed)
    width = 6 if packed else 3
    for name in ("max_seqlen_q", "max_seqlen_k"):
        more.pop(name, None)
    arrays = [convert(x, framework) for x in given]
    wanted = exact_scores(*flat(given), packed=packed, width=width)
    out, denom = (to_float64(x) for x in dense_scores_of(*arrays, qhead_per_kv_head=2, sm_scale=SM, **more))
    assert_close(out.reshape(-1, width), wanted, tolerance("float32"))
    assert_close(denom.reshape(-1), torch.logsumexp(wanted, -1), tolerance("float32"))
    q, k, lse = flat(given)
    probabilities = torch.full((len(q), width), -torch.inf, dtype=torch.float64)
    for first, queries, key, keys, offset in segments(packed=packed):
        for r in range(queries):
            for c in range(visible(r, offset, keys)):
                s = torch.stack([q[first + r, h] @ k[key + c, h // 2] for h in range(H)])
                probabilities[first + r, c] = torch.exp(0.25 * s - lse[first + r]).sum()
    out, denom = (to_float64(x) for x in dense_attention_of(*arrays, 0.25, **more))
    # An exponential turns the absolute error of its argument, of size 10 at most, into a relative one.
    close = attention_tolerance("float32", 10, D * H)
    assert_close(out.reshape(-1, width), probabilities, close)
    assert_close(denom.reshape(-1), probabilities.clamp(min=0).sum(-1), close)


def test_special_values() -> None:
    """NaN reaches the scores that it is part of; what is hidden stays minus infinity, whatever it holds."""
    q, k, w = (x.copy() for x in make(packed=False))
    k[0, 2] = np.nan  # visible to no query before token 11
    q[1, 8, 2, 5] = np.nan
    scores, lse = scores_of(q, k, w, ratio=RATIO, return_lse=True)
    assert not np.isnan(scores[0]).any()
    assert np.isneginf(scores[0, :, 2]).all()
    assert np.isnan(scores[1, 8]).tolist() == [True, True, False]
    assert np.isnan(lse[1, 8])
    assert not np.isnan(lse[1, :8]).any()


def test_ties_go_to_the_smaller_id() -> None:
    q, k = np.ones((1, 8, 1, 2), np.float32), np.ones((1, 8, 1, 2), np.float32)
    k[0, ::2] = -1  # scores of 0, the others of 2 times the weight
    w = np.full((1, 8, 1), -1, np.float32)
    assert top_k_of(q, k, w, 5, ratio=1)["indices"][0, 7].tolist() == [0, 2, 4, 6, 1]
    assert top_k_of(q, k, -w, 5, ratio=1, deterministic=True)["indices"][0, 7].tolist() == [1, 3, 5, 7, 0]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("packed", [False, True])
def test_more_keys_are_wanted_than_there_are(framework: Framework, packed: bool) -> None:
    """Every visible key comes, best first; the other slots are empty."""
    given, more = make(packed=packed), positions(framework, packed=packed)
    arrays = [convert(x, framework) for x in given]
    ids, logits, softmax = top_k_of(*arrays, 9, sm_scale=SM, topk_indices_global=False, **more)
    ids, logits, softmax = (to_float64(x).reshape(-1, 9) for x in (ids, logits, softmax))
    wanted = exact_scores(*flat(given), packed=packed, width=9)
    for first, queries, _, keys, offset in segments(packed=packed):
        for row in range(first, first + queries):
            count = visible(row - first, offset, keys)
            assert sorted(ids[row, :count]) == list(range(count))
            assert (ids[row, count:] == -1).all()
            assert_close(logits[row, :count], wanted[row].sort(descending=True).values[:count], tolerance("float32"))
            assert np.isneginf(logits[row, count:]).all()
            assert not softmax[row, count:].any()
            assert abs(softmax[row].sum() - (count > 0)) < 1e-6


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_keys_and_no_queries(framework: Framework) -> None:
    q, k, w = (
        convert(x, framework)
        for x in (np.ones((1, 3, 2, 8), np.float32), np.ones((1, 0, 1, 8), np.float32), np.ones((1, 3, 2), np.float32))
    )
    scores, lse = scores_of(q, k, w, return_lse=True)
    assert scores.shape == (1, 3, 0)
    assert np.isneginf(to_float64(lse)).all()
    ids, logits, softmax, total = top_k_of(q, k, w, 2, return_lse=True)
    assert (to_float64(ids) == -1).all()
    assert np.isneginf(to_float64(logits)).all()
    assert not to_float64(softmax).any()
    assert np.isneginf(to_float64(total)).all()
    out, denom = dense_attention_of(q, k, w, 1.0)
    assert out.shape == (1, 3, 0)
    assert not to_float64(denom).any()
    assert scores_of(q[:, :0], q[:, :, :1], w[:, :0])["scores"].shape == (1, 0, 3)


def test_jax_under_jit() -> None:
    import jax

    given = make(packed=True)
    more = positions("jax", packed=True)
    arrays = [convert(x, "jax") for x in given]
    got = jax.jit(lambda *x: scores_of(*x, sm_scale=SM, **more)["scores"])(*arrays)
    assert_close(got, exact_scores(*flat(given), packed=True, width=7), tolerance("float32"))
    offsets = more.pop("cu_seqlens_k"), more.pop("max_seqlen_k")
    with pytest.raises(ValueError, match="max_seqlen_k: got None while tracing"):
        jax.jit(lambda e: dense_scores_of(*arrays, cu_seqlens_k=e, **more)["out"])(offsets[0])


def test_buffers_and_classes() -> None:
    given = make(packed=False)
    q, k, w = (convert(x, "torch") for x in given)
    wanted = scores_of(q, k, w, return_lse=True)
    padded = torch.full((2, 9, 4), 7.0)
    made = DSA.IndexerForward(q, k, w, padded)
    assert made.check_support()
    made(q, k, w, padded)
    assert torch.equal(padded[..., :3], wanted["scores"])
    assert (padded[..., 3] == 7).all()
    out, lse = torch.empty(2, 9, 3), torch.empty(2, 9)
    result = DSA.indexer_forward_wrapper(q, k, w, out=out, lse_out=lse)
    assert list(result.keys()) == ["scores"]
    assert result["scores"] is out
    assert torch.equal(lse, wanted["lse"])
    ids = torch.empty(2, 9, 2, dtype=torch.int32)
    best = DSA.indexer_forward_top_k_wrapper(q, k, w, 2, out_indices=ids, return_softmax=False)
    assert list(best.keys()) == ["indices", "logits"]
    assert best["indices"] is ids
    more = positions("torch", packed=True)
    packed = [convert(x, "torch") for x in make(packed=True)]
    out, denom = torch.empty(TQ + 2, 7), torch.empty(TQ + 2)
    dense = DSA.DenseIndexerScoreRecompute(
        *packed, out, denom, sm_scale=SM, ratio=RATIO, is_thd=True, max_seqlen_q=11, max_seqlen_k=7
    )
    offsets = {name: value for name, value in more.items() if name != "ratio"}
    dense(*packed, out, denom, **offsets)
    expected = DSA.dense_indexer_score_recompute_wrapper(*packed, sm_scale=SM, **more)
    assert torch.equal(out, expected["out"])
    assert torch.equal(denom, expected["denom"])
    with pytest.raises(ValueError, match="max_seqlen_q: got 9, wanted 11, as the object was made"):
        dense.execute(*packed, out, denom, **{**offsets, "max_seqlen_q": 9})
    target = DSA.DenseAttnScoreRecompute(*packed, out, denom, 0.25, ratio=RATIO, is_thd=True, max_seqlen_q=11)
    target(*packed, out, denom, **offsets)
    assert torch.equal(out, DSA.dense_attn_score_recompute_wrapper(*packed, 0.25, **more)["out"])
