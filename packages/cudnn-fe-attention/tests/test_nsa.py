"""Native sparse attention's four ops: against spelt-out float64 definitions, in every framework, and at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.namespaces import NSA
from cudnn_fe_testkit.attention import attention_tolerance, dense, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists and tables here, which the type checker cannot count.
nsa_compression_attention_forward: Any = attention.nsa_compression_attention_forward
nsa_selection_attention_forward: Any = attention.nsa_selection_attention_forward
nsa_sliding_window_attention_forward: Any = attention.nsa_sliding_window_attention_forward
nsa_topk_reduction_forward: Any = attention.nsa_topk_reduction_forward

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
EXACT = attention_tolerance("float32", 0, 200)


def packed(rows: int, heads: int, d: int = 8, kind: str = "float32", seed: int = 0) -> Any:
    return normal((rows, heads, d), kind, seed=seed)


def one_batch(x: Any) -> torch.Tensor:
    return double(x).permute(1, 0, 2)[None]


def offsets(*lengths: int) -> np.ndarray[Any, Any]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def rows_like(x: torch.Tensor) -> torch.Tensor:
    """(1, H, T, ...) as (T, H, ...)."""
    return x[0].transpose(0, 1)


# --- compression


def compressed(i: int, j: int, queries: int, keys: int) -> bool:
    return (j + 1) * max(1, queries // keys) - 1 <= i


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_compression_of_padded_sequences(framework: Framework, kind: str) -> None:
    q, k = normal((2, 4, 67, 8), kind, seed=1), normal((2, 2, 8, 8), kind, seed=2)
    v = normal((2, 2, 8, 8), kind, seed=3)
    mask = torch.tensor([[compressed(i, j, 67, 8) for j in range(8)] for i in range(67)])
    out = nsa_compression_attention_forward(*(convert(x, framework) for x in (q, k, v)), enable_lse=True, scale_v=0.5)
    o, lse = dense(double(q), double(k), double(v), mask.expand(2, 4, 67, 8), 8**-0.5)
    assert_close(out["o_tensor"], o / 2, attention_tolerance(kind, 2, 8))
    assert_close(out["lse_tensor"], lse, EXACT)
    assert (to_float64(out["lse_tensor"])[:, :, :7] == -np.inf).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_compression_of_packed_sequences(framework: Framework) -> None:
    """Lengths in and out of proportion, no queries, no keys, fewer queries than keys, and rows of no sequence."""
    lengths = ((16, 4), (0, 3), (5, 0), (2, 3), (9, 2))
    rows, keys = sum(a for a, _ in lengths), sum(b for _, b in lengths)
    q, k, v = packed(rows + 3, 2, seed=1), packed(keys + 2, 1, seed=2), packed(keys + 2, 1, seed=3)
    q[rows:], k[keys:], v[keys:] = np.nan, np.nan, np.nan
    mask = torch.zeros(1, 2, rows, keys, dtype=torch.bool)
    first_row = first_key = 0
    for queries, count in lengths:
        for i in range(queries):
            for j in range(count):
                mask[0, :, first_row + i, first_key + j] = compressed(i, j, queries, count)
        first_row, first_key = first_row + queries, first_key + count
    ends = [convert(offsets(*side), framework) for side in zip(*lengths, strict=True)]
    out = nsa_compression_attention_forward(*(convert(x, framework) for x in (q, k, v)), *ends, enable_lse=True)
    o, lse = dense(one_batch(q[:rows]), one_batch(k[:keys]), one_batch(v[:keys]), mask, 8**-0.5)
    assert_close(out["o_tensor"][:rows], rows_like(o), attention_tolerance("float32", 2, 8))
    assert_close(out["lse_tensor"][:rows, :, 0], rows_like(lse), EXACT)
    assert not to_float64(out["o_tensor"])[rows:].any()
    assert (to_float64(out["lse_tensor"])[rows:] == -np.inf).all()


def test_compression_in_fp8() -> None:
    """The scores' and the outputs' factors; P is rounded to E4M3, and so is the output, which saturates."""
    q, k, v = (normal((1, 1, 32, 32), "float8_e4m3fn", seed=seed) for seed in range(3))
    out = nsa_compression_attention_forward(q, k, v, o_dtype="float16", scale_q=0.5, scale_k=0.5, scale_v=2.0)
    mask = torch.tril(torch.ones(32, 32, dtype=torch.bool))[None, None]
    o, _ = dense(double(q), double(k), double(v), mask, 0.25 * 32**-0.5)
    assert_close(out["o_tensor"], 2 * o, attention_tolerance("float8_e4m3fn", 1) + attention_tolerance("float16", 1))
    narrow = nsa_compression_attention_forward(q, k, v, inv_scale_o=1e4)["o_tensor"]
    assert narrow.dtype == q.dtype
    assert np.abs(to_float64(narrow)).max() == 448
    assert out["lse_tensor"] is None


# --- selection


def selection_case() -> tuple[Any, ...]:
    """Three sequences of which one is empty; lists unordered, of 0 to 3 blocks of 16.

    Some ids come twice, some are -1 or those of blocks that the sequence does not have.
    """
    rng, lengths = np.random.default_rng(5), (37, 0, 20)
    rows = sum(lengths)
    lists, counts = np.full((rows, 2, 4), 10**6, np.int32), rng.integers(0, 4, (rows, 2)).astype(np.int32)
    start = 0
    for length in lengths:
        for i in range(length):
            lists[start + i, :, :3] = rng.integers(-1, 2 - (-length // 16), (2, 3))
        start += length
    return lengths, rows, lists, counts


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_selection(framework: Framework, causal: bool) -> None:
    lengths, rows, lists, counts = selection_case()
    q, k, v = packed(rows + 1, 4, seed=1), packed(rows + 1, 2, seed=2), packed(rows + 1, 2, 12, seed=3)
    lists_in, counts_in = (np.concatenate([x, x[:1]]) for x in (lists, counts))
    q[rows:], k[rows:], v[rows:] = np.nan, np.nan, np.nan
    mask = torch.zeros(1, 4, rows, rows, dtype=torch.bool)
    start = 0
    for length in lengths:
        for h in range(4):
            for i in range(length):
                blocks = set(lists[start + i, h // 2, : counts[start + i, h // 2]].tolist())
                for j in range(length):
                    mask[0, h, start + i, start + j] = j // 16 in blocks and (not causal or j <= i)
        start += length
    ends = convert(offsets(*lengths), framework)
    given = [convert(x, framework) for x in (q, k, v, lists_in, counts_in)]
    out = nsa_selection_attention_forward(*given, ends, block_size=16, is_causal=causal, scale_softmax=-0.4)
    o, lse = dense(one_batch(q[:rows]), one_batch(k[:rows]), one_batch(v[:rows]), mask, -0.4)
    total, top = (to_float64(out[name])[:rows, :, 0] for name in ("l_tensor", "m_tensor"))
    assert_close(out["o_tensor"][:rows], rows_like(o), attention_tolerance("float32", 2, 40))
    with np.errstate(divide="ignore"):
        assert_close(top + np.log(total), rows_like(lse), EXACT)
    seen = mask.any(-1)[0].T.numpy()
    assert (total[~seen] == 0).all()
    assert (top[~seen] == -np.inf).all()
    assert (total[seen] >= 1).all()
    assert not to_float64(out["o_tensor"])[rows:].any()


def test_selection_of_uniform_scores_is_exact() -> None:
    """With a scale of 0 every exponential is 1: L counts tokens and O is their mean."""
    x = normal((32, 1, 8), seed=1)
    lists, counts = np.zeros((32, 1, 1), np.int32), np.ones((32, 1), np.int32)
    out = nsa_selection_attention_forward(x, x, x, lists, counts, offsets(32), block_size=16, scale_softmax=0.0)
    assert (out["l_tensor"] == 16).all()
    assert (out["m_tensor"] == 0).all()
    assert_close(out["o_tensor"][5, 0], double(x)[:16, 0].mean(0), EXACT)


# --- sliding window


def windowed(i: int, j: int, left: int, right: int) -> bool:
    return i - left < j <= i + right


@pytest.mark.parametrize(
    ("left", "right"), [(0, 0), (1, 0), (3, 2), (8, 0), (9, 1), (10, 8), (2, 9), (100, 0), (4, 100), (0, 1)]
)
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (4, 9), (9, 4), (1, 1)])
def test_sliding_window_of_padded_sequences(left: int, right: int, queries: int, keys: int) -> None:
    q, k, v = normal((1, 2, queries, 8), seed=1), normal((1, 1, keys, 8), seed=2), normal((1, 1, keys, 8), seed=3)
    mask = torch.tensor([[windowed(i, j, left, right) for j in range(keys)] for i in range(queries)])
    out = nsa_sliding_window_attention_forward(q, k, v, left_bound=left, right_bound=right)
    o, lse = dense(double(q), double(k), double(v), mask.expand(1, 2, queries, keys), 8**-0.5)
    assert_close(out["o_tensor"], o, attention_tolerance("float32", 2, 9))
    assert_close(out["stats_tensor"][..., 0], lse, EXACT)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("ragged", [False, True])
def test_sliding_window_of_packed_sequences(framework: Framework, ragged: bool) -> None:
    """Sequences one after the other, or with gaps of NaN at other places in every tensor."""
    query_lengths, key_lengths = (5, 0, 8), (7, 2, 3)
    rows, heads, d = 24, 2, 8
    starts: dict[str, Any] = {"q": (1, 8, 11), "k": (0, 9, 15), "v": (3, 11, 20), "o": (2, 7, 16), "stats": (0, 6, 7)}
    if not ragged:
        starts = {n: offsets(*(key_lengths if n in "kv" else query_lengths))[:3] for n in starts}
    q, k, v = (np.full((rows, h, d), np.nan, np.float32) for h in (heads, 1, 1))
    wanted_o, wanted_stats = np.zeros((rows, heads, d)), np.full((rows, heads), -np.inf)
    for b in range(3):
        x, y, z = (
            normal((n, h, d), seed=9 * b + s)
            for s, (n, h) in enumerate(((query_lengths[b], heads), (key_lengths[b], 1), (key_lengths[b], 1)))
        )
        for memory, name, part in ((q, "q", x), (k, "k", y), (v, "v", z)):
            memory[starts[name][b] : starts[name][b] + len(part)] = part
        mask = (
            torch.tensor([[windowed(i, j, 3, 1) for j in range(key_lengths[b])] for i in range(query_lengths[b])])
            .reshape(query_lengths[b], key_lengths[b])
            .bool()
        )
        o, lse = dense(one_batch(x), one_batch(y), one_batch(z), mask.expand(1, heads, *mask.shape), 0.3)
        wanted_o[starts["o"][b] : starts["o"][b] + len(x)] = rows_like(o)
        wanted_stats[starts["stats"][b] : starts["stats"][b] + len(x)] = rows_like(lse)
    lengths = [np.asarray(x, np.int32) for x in (query_lengths, key_lengths)]
    steps = {"q": heads * d, "k": d, "v": d, "o": heads * d, "stats": heads}
    first: list[Any] = [np.asarray([*starts[n], rows], np.int64) * steps[n] for n in steps] if ragged else []
    if framework == "jax":
        first = [x.astype(np.int32) for x in first]
    given = [convert(x, framework) for x in (q, k, v, *lengths, *first)]
    out = nsa_sliding_window_attention_forward(*given, left_bound=3, right_bound=1, attn_scale=0.3)
    assert_close(out["o_tensor"], wanted_o, attention_tolerance("float32", 2, 8))
    assert_close(out["stats_tensor"][..., 0], wanted_stats, EXACT)
    assert nsa_sliding_window_attention_forward(*given, left_bound=3, is_infer=True)["stats_tensor"] is None


# --- top-k


def best_of(scores: dict[int, float], k: int) -> list[int]:
    """Block ids by score, the smaller first among equals, -1 where there are no more."""
    chosen = sorted(scores, key=lambda n: (-scores[n], n))[:k]
    return [*chosen, *[-1] * (k - len(chosen))]


def expected_top_k(q: Any, k: Any, lse: Any, best: int, block: int, stride: int, causal: bool) -> list[Any]:
    """Of one sequence (S, Hq, D), (Sk, Hkv, D), (S, Hq): per query and key head, {block: score}."""
    q, k, lse = double(q), double(k), double(lse)
    heads, group, rows = k.shape[1], q.shape[1] // k.shape[1], []
    for i in range(len(q)):
        for h in range(heads):
            scores = {}
            for n in range(1, min((i + 1) // block - 2, -(-len(k) * stride // block))):
                total = 0.0
                for j in range(n * block // stride, min((n + 1) * block // stride, len(k))):
                    if not causal or (j + 1) * stride - 1 <= i:
                        for g in range(group):
                            dot = float(q[i, h * group + g] @ k[j, h]) / 8**0.5
                            total += float(np.exp(dot)) * 2.0 ** float(lse[i, h * group + g])
                scores[n] = total
            rows.append(scores)
    return rows


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_top_k_of_packed_sequences(framework: Framework, causal: bool) -> None:
    lengths = ((90, 22), (0, 0), (3, 1), (64, 9))
    rows, keys = sum(a for a, _ in lengths), sum(b for _, b in lengths)
    q, k, lse = packed(rows, 4, seed=1), packed(keys, 2, seed=2), normal((rows, 4), seed=3)
    ends = [offsets(*side) for side in zip(*lengths, strict=True)]
    given = [convert(x, framework) for x in (q, k, lse, *ends)]
    out = nsa_topk_reduction_forward(*given, k_value=4, selection_block_size=8, compress_stride=4, is_causal=causal)
    got = to_float64(out["topk_indices_tensor"]).astype(int).reshape(-1, 4)
    values = to_float64(out["topk_scores_tensor"]).reshape(-1, 4)
    wanted: list[dict[int, float]] = []
    for b in range(4):
        a, c = slice(ends[0][b], ends[0][b + 1]), slice(ends[1][b], ends[1][b + 1])
        wanted += expected_top_k(q[a], k[c], lse[a], 4, 8, 4, causal)
    assert got.tolist() == [best_of(scores, 4) for scores in wanted]
    exact = [[scores.get(n, -np.inf) for n in row] for scores, row in zip(wanted, got.tolist(), strict=True)]
    assert_close(values, np.asarray(exact), EXACT)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_top_k_breaks_ties_by_the_smaller_block(framework: Framework) -> None:
    """Equal keys give equal scores; an underflow to 0 still beats an empty slot; padded operands."""
    q, k = np.zeros((1, 2, 64, 8), np.float32), np.zeros((1, 1, 16, 8), np.float32)
    for exponent, score in ((0.0, 4.0), (-np.inf, 0.0)):
        lse = np.full((1, 2, 64), exponent, np.float32)
        out = nsa_topk_reduction_forward(
            *(convert(x, framework) for x in (q, k, lse)), k_value=4, selection_block_size=8, compress_stride=4
        )
        indices, scores = to_float64(out["topk_indices_tensor"]), to_float64(out["topk_scores_tensor"])
        assert indices.shape == (1, 1, 64, 4)
        assert indices[0, 0, 63].tolist() == [1, 2, 3, 4]
        assert scores[0, 0, 63].tolist() == [score] * 4
        assert indices[0, 0, 39].tolist() == [1, 2, -1, -1]
        assert scores[0, 0, 39].tolist() == [score, score, -np.inf, -np.inf]
        assert (indices[0, 0, :31] == -1).all()
        many = nsa_topk_reduction_forward(q, k, lse, k_value=20, selection_block_size=8, compress_stride=4)
        assert many["topk_indices_tensor"][0, 0, 63].tolist() == [1, 2, 3, 4, 5, *[-1] * 15]  # there are 8 blocks


# --- every op


def test_zero_extents() -> None:
    ends = offsets(0)
    x, none = np.zeros((0, 1, 8), np.float32), np.zeros((0, 1), np.int32)
    assert nsa_compression_attention_forward(x, x, x, ends, ends)["o_tensor"].shape == (0, 1, 8)
    assert nsa_selection_attention_forward(x, x, x, none[..., None], none, ends)["l_tensor"].shape == (0, 1, 1)
    length = np.zeros(1, np.int32)
    assert nsa_sliding_window_attention_forward(x, x, x, length, length)["stats_tensor"].shape == (0, 1, 1)
    scores = nsa_topk_reduction_forward(x, x, x[..., 0], ends, ends, k_value=4)
    assert scores["topk_indices_tensor"].shape == (0, 1, 4)
    q, empty = np.ones((1, 1, 3, 8), np.float32), np.ones((1, 1, 0, 8), np.float32)
    out = nsa_compression_attention_forward(q, empty, empty, enable_lse=True)
    assert not out["o_tensor"].any()
    assert (out["lse_tensor"] == -np.inf).all()
    scores = nsa_topk_reduction_forward(q, empty, q[..., 0], k_value=4)
    assert (scores["topk_indices_tensor"] == -1).all()
    assert (scores["topk_scores_tensor"] == -np.inf).all()


def test_autocast_rounds_no_log_sum_exp() -> None:
    """Queries and keys are what a matrix product multiplies; the log-sum-exp beside them keeps its float32."""
    q, k = (torch.from_numpy(normal((1, 1, 64, 16), seed=seed)) for seed in (1, 2))
    lse = torch.linspace(5.0, 5.01, 64).view(1, 1, 64)  # bfloat16 would make these one value
    sizes = {"k_value": 4, "selection_block_size": 8, "compress_stride": 4}
    with torch.autocast("cpu", torch.bfloat16):
        got = nsa_topk_reduction_forward(q, k[:, :, :16], lse, **sizes)
    direct = nsa_topk_reduction_forward(q.bfloat16(), k[:, :, :16].bfloat16(), lse, **sizes)
    rounded = nsa_topk_reduction_forward(q.bfloat16(), k[:, :, :16].bfloat16(), lse.bfloat16().float(), **sizes)
    assert torch.equal(got["topk_scores_tensor"], direct["topk_scores_tensor"])
    assert not torch.equal(got["topk_scores_tensor"], rounded["topk_scores_tensor"])


def test_classes_write_the_callers_buffers() -> None:
    """Every class gives the bits of its wrapper, also without its optional output and with another scale."""
    q, k, v = (torch.from_numpy(x) for x in (normal((1, 2, 32, 8), seed=1), normal((1, 1, 8, 8)), normal((1, 1, 8, 8))))
    o, lse = torch.full_like(q, float("nan")), torch.empty(1, 2, 32)
    made = NSA.CompressionAttention(q, k, v, o, lse)
    assert made.check_support()
    made.compile()
    made.execute(q, k, v, o, lse, scale_softmax=0.1)
    wanted = NSA.compression_attention_wrapper(q, k, v, enable_lse=True, scale_softmax=0.1)
    assert torch.equal(o, wanted["o_tensor"])
    assert torch.equal(lse, wanted["lse_tensor"])
    alone = NSA.CompressionAttention(q, k, v, o.fill_(float("nan")))
    alone(q, k, v, o)
    assert torch.equal(o, NSA.compression_attention_wrapper(q, k, v)["o_tensor"])
    with pytest.raises(ValueError, match="as many as there were samples"):
        alone.execute(q, k, v, o, lse)

    _, rows, lists, counts = selection_case()
    x, y = (torch.from_numpy(packed(rows, h, seed=h)) for h in (2, 2))
    ends, lists, counts = torch.from_numpy(offsets(37, 0, 20)), torch.from_numpy(lists), torch.from_numpy(counts)
    o, total, top = torch.empty_like(x), torch.empty(rows, 2), torch.empty(rows, 2)
    NSA.SelectionAttention(x, y, y, o, total, top, lists, counts, ends, ends, block_size=16)(
        x, y, y, o, total, top, lists, counts, ends, ends
    )
    wanted = NSA.selection_attention_wrapper(x, y, y, lists, counts, ends, ends, 16)
    assert torch.equal(o, wanted["o_tensor"])
    assert torch.equal(total, wanted["l_tensor"][..., 0])
    assert torch.equal(top, wanted["m_tensor"][..., 0])

    q = q[:, :, :8].contiguous()
    o, stats = torch.empty_like(q), torch.empty(1, 2, 8, 1)
    window = NSA.SlidingWindowAttention(q, k, v, o, stats, left_bound=2, attn_scale=0.2)
    window(q, k, v, o, stats)
    wanted = NSA.sliding_window_attention_wrapper(q, k, v, left_bound=2, attn_scale=0.2)
    assert torch.equal(o, wanted["o_tensor"])
    assert torch.equal(stats, wanted["stats_tensor"])

    scores, indices = torch.empty(1, 1, 8, 4), torch.empty(1, 1, 8, 4, dtype=torch.int32)
    best = NSA.TopKReduction(
        q, k, q[..., 0].contiguous(), scores, indices, k_value=4, selection_block_size=2, compress_stride=1
    )
    best(q, k, q[..., 0].contiguous(), scores, indices)
    wanted = NSA.topk_reduction_wrapper(q, k, q[..., 0], k_value=4, selection_block_size=2, compress_stride=1)
    assert torch.equal(indices, wanted["topk_indices_tensor"])
    assert torch.equal(scores, wanted["topk_scores_tensor"])
