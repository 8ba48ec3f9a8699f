"""The contract around DSA's indexer: scratch, packed scales, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.dsa import scales
from cudnn_fe.attention.namespaces import DSA

# Arguments are spread from tables here, which the type checker cannot count.
scores_of: Any = attention.dsa_indexer_forward
top_k_of: Any = attention.dsa_indexer_fused_top_k_forward
dense_scores_of: Any = attention.dsa_dense_indexer_score_forward
dense_attention_of: Any = attention.dsa_dense_attn_score_forward

QUERIES, KEYS = (1, 7, 0, 11, 9), (1, 3, 2, 0, 6)  # of packed sequences, with none of either


def ends(lengths: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def test_candidate_buffers() -> None:
    """Counts of visible pairs, by loops."""
    size = DSA.compress_topk_cand_buffer_size

    def pairs(first: int, last: int, ratio: int) -> int:
        return sum((token + 1) // ratio for token in range(first, last))

    assert size(2, 37, 9, 4) == 2 * pairs(0, 37, 4)
    assert size(2, 36, 9, 4, 8) == 2 * pairs(24, 32, 4)  # the last launch has only 4 queries
    assert size(2, 36, 9, 4, q_causal_offsets=[3, 10]) == pairs(3, 39, 4) + pairs(10, 46, 4)
    assert size(1, 32768, 8192, 4) == pairs(32768 - 8192, 32768, 4)
    assert size(1, 32768, 8192, 4, return_lse=True) == pairs(0, 32768, 4)
    assert size(8, 32768, 8192, 4) == 8 * pairs(32768 - 2048, 32768, 4)
    offsets, total = DSA.compress_topk_cand_buffer_size_thd(
        torch.from_numpy(ends(QUERIES)), torch.from_numpy(ends(KEYS)), 4
    )
    counts = [pairs(0, queries, 4) for queries in QUERIES]
    assert offsets.dtype == torch.int64
    assert offsets.tolist() == [0, *np.cumsum(counts)]
    assert total == sum(counts)
    with pytest.raises(NotImplementedError, match="microbatch_rows: got 8 with packed"):
        size(1, 36, 9, 4, 8, return_lse=True)


def test_packed_scales_lie_where_they_should() -> None:
    """The documented byte of every scale, and zeros elsewhere."""
    rng = np.random.default_rng(0)
    scale = rng.integers(1, 255, (2, 5, 64, 6)).astype(np.uint8)
    packed = scales.pack_q_scale_bshd(scale, 32)
    assert packed.shape == (4, 256, 8)
    wanted = np.zeros((4, 256 * 8), np.uint8)
    for b, t, h, g in np.ndindex(*scale.shape):
        m = t * 32 + h % 32
        wanted[b * 2 + h // 32, ((m // 128) * 2 + g // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + g % 4] = scale[
            b, t, h, g
        ]
    assert np.array_equal(packed.reshape(4, -1), wanted)
    offsets = np.asarray([0, 2, 2, 5], np.int32)
    padded = scales.make_scale_cu_seqlens_padded(offsets, 4)
    out = np.full((2, 256, 8), 9, np.uint8)
    assert scales.pack_q_scale_thd(scale[0], offsets, padded, 32, out=out) is out
    wanted = np.zeros((2, 256 * 8), np.uint8)
    for t, h, g in np.ndindex(*scale.shape[1:]):
        m = (t if t < 2 else 4 + t - 2) * 32 + h % 32
        wanted[h // 32, ((m // 128) * 2 + g // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + g % 4] = scale[0, t, h, g]
    assert np.array_equal(out.reshape(2, -1), wanted)
    assert np.array_equal(
        scales.pack_blockscaled_scale_mkl(scale[0].transpose(0, 2, 1)),
        scales.pack_blockscaled_scale_mkl(scale[0].transpose(0, 2, 1).copy()),
    )
    assert scales.minimal_padded_token_capacity(8, 3, 4) == max(
        sum(-(-n // 4) * 4 for n in (a, b, 8 - a - b)) for a in range(9) for b in range(9 - a)
    )
    with pytest.raises(ValueError, match="q_scale: got 64 heads, wanted a multiple of 48"):
        scales.pack_q_scale_bshd(scale, 48)


_Q, _K, _W = np.ones((1, 4, 2, 32), np.float32), np.ones((1, 2, 1, 32), np.float32), np.ones((1, 4, 2), np.float32)
_E = np.asarray([0, 4], np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": _Q[0]}, "q: got shape"),
        ({"k": np.ones((1, 2, 2, 32), np.float32)}, "k: got 2 key heads"),
        ({"k": _K.astype(np.float16)}, "k: got float16, wanted float32, the dtype of q"),
        ({"w": _W.astype(np.float64)}, "w: got float64"),
        ({"w": _W[:, :2]}, "w: got"),
        ({"ratio": 0}, "ratio: got 0"),
        ({"qhead_per_kv_head": 3}, "qhead_per_kv_head: got 3"),
        ({"q_stage": 1}, "q_stage: got 1"),
        ({"m_block_size": 0}, "m_block_size: got 0"),
        ({"sm_scale": float("inf")}, "sm_scale: got inf"),
        ({"precision": "fp4"}, "precision: got 'fp4'"),
        ({"q_scale": _W}, "q_scale: got a tensor, wanted None with precision 'bf16'"),
        ({"precision": "fp8"}, "q: got float32, wanted float8_e4m3fn"),
        ({"cu_seqlens_q": _E}, "q: got shape|cu_seqlens_k: got None"),
        ({"q_causal_offsets": np.zeros(2, np.int32)}, "q_causal_offsets: got"),
        ({"sf_vec_size": 16}, "sf_vec_size: got 16"),
        ({"return_lse": 2}, "return_lse: got 2"),
        ({"out": np.ones((1, 4, 3), np.float32)}, "scores: got"),
        ({"cu_seqlens_q_scale_padded": _E}, "cu_seqlens_q_scale_padded: got a tensor"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scores_of(**{"q": _Q, "k": _K, "w": _W, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seqlens_k": None}, "cu_seqlens_k: got None, wanted both"),
        ({"max_seqlen_q": None}, "max_seqlen_q: got None"),
        ({"max_seqlen_k": 2.0}, "max_seqlen_k: got 2.0"),
        ({"cu_seqlens_k": np.zeros(3, np.int32)}, "cu_seqlens_k: got"),
        ({"cu_seqlens_q": np.zeros(2, np.int64)}, "cu_seqlens_q: got int64"),
    ],
)
def test_packed_refusals(change: dict[str, Any], message: str) -> None:
    good = {"cu_seqlens_q": _E, "cu_seqlens_k": _E // 2, "max_seqlen_q": 4, "max_seqlen_k": 2}
    with pytest.raises(ValueError, match=message):
        scores_of(_Q[0], _K[0], _W[0], **{**good, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": 0}, "top_k: got 0, wanted an int in 1..2048"),
        ({"top_k": 2049}, "top_k: got 2049"),
        ({"microbatch_rows": 3}, "microbatch_rows: got 3 of 4 queries, wanted multiples of ratio = 2"),
        ({"microbatch_rows": -2}, "microbatch_rows: got -2"),
        ({"cand_batch_offsets": np.zeros(2, np.int64)}, "cand_batch_offsets: got a tensor"),
        ({"cand_buffer": np.zeros(3, np.float32)}, "cand_buffer: got 3 elements, wanted 4"),
        ({"topk_indices_global": 2}, "topk_indices_global: got 2"),
        ({"deterministic": None}, "deterministic: got None"),
        ({"return_softmax": "yes"}, "return_softmax: got 'yes'"),
        ({"lse_out": np.zeros((1, 3), np.float32)}, r"lse: got \(1, 3\), wanted \(1, 4\)"),
        ({"lse_out": np.zeros((1, 4), np.float64)}, "lse: got float64, wanted float32"),
        ({"out_indices": np.zeros((1, 4, 1), np.int64)}, "indices: got int64, wanted int32"),
        ({"out_logits": np.zeros((1, 4, 2), np.float32)}, "logits: got"),
        ({"softmax_out": np.zeros((1, 4, 2), np.float32)}, "softmax: got"),
    ],
)
def test_top_k_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        top_k_of(**{"q": _Q, "k": _K, "w": _W, "top_k": 1, "ratio": 2, **change})


@pytest.mark.parametrize("more", [{"return_lse": True}, {"q_causal_offsets": np.zeros(1, np.int32)}])
def test_windows_with_more_than_plain_scores_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match=r"microbatch_rows: got 2 with .* a log-sum-exp, offsets or scales"):
        top_k_of(_Q, _K, _W, 1, 2, microbatch_rows=2, **more)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seqlen_q": 4}, "max_seqlen_q, max_seqlen_k: got a length, wanted None without is_thd"),
        ({"is_thd": True}, "max_seqlen_q: got None, wanted the longest sequence"),
        ({"is_thd": True, "max_seqlen_q": 4, "max_seqlen_k": 3}, "max_seqlen_k: got 3, wanted 2, the columns of out"),
        ({"ratio": 0}, "ratio: got 0"),
    ],
)
def test_dense_class_refusals(options: dict[str, Any], message: str) -> None:
    samples = [torch.from_numpy(x) for x in (_Q, _K, _W)] + [torch.zeros(1, 4, 2), torch.zeros(1, 4)]
    if options.get("is_thd"):
        samples = [x[0] for x in samples]
    with pytest.raises(ValueError, match=message):
        DSA.DenseIndexerScoreRecompute(*samples, **options).check_support()


def test_block_scale_refusals() -> None:
    q8, k8 = _Q.astype(ml_dtypes.float8_e4m3fn), _K.astype(ml_dtypes.float8_e4m3fn)
    packed = np.zeros((1, 128, 4), np.uint8)
    with pytest.raises(ValueError, match="k_scale: got None, wanted scales with precision 'mxfp8'"):
        scores_of(q8, k8, _W, precision="mxfp8", q_scale=packed)
    with pytest.raises(ValueError, match=r"q_scale: got \(1, 64, 4\)"):
        scores_of(q8, k8, _W, precision="mxfp8", q_scale=packed[:, :64].copy(), k_scale=packed)
    with pytest.raises(ValueError, match="q_scale: got float32"):
        scores_of(q8, k8, _W, precision="mxfp8", q_scale=packed.astype(np.float32), k_scale=packed)
    with pytest.raises(ValueError, match="precision: got 'fp8'"):
        dense_scores_of(q8, k8, _W, precision="fp8")
    with pytest.raises(ValueError, match="precision: got 'mxfp4'"):
        dense_attention_of(q8, k8, _W, 1.0, precision="mxfp4")
