"""No sequences, no queries, no keys, no slots: every op gives what its page says of them, in every framework."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.hstu import legacy
from cudnn_fe.attention.namespaces import CSA, DSA, NSA
from cudnn_fe_testkit.compare import to_float64
from cudnn_fe_testkit.inputs import Framework, convert

GEOMETRY = attention.GatedAttentionBlockGeometry(d_model=16, h_q=2, h_kv=1, d_head=64, rope_dim=8)
INF = float("inf")


def x(*shape: int, kind: Any = np.float32) -> Any:
    """Ones: every product of them would be seen."""
    return np.ones(shape, kind)


def ids(*shape: int) -> Any:
    return np.zeros(shape, np.int32)


def ends(*values: int) -> Any:
    return np.asarray(values, np.int32)


def packed(queries: int, keys: int, heads: int = 1) -> tuple[Any, ...]:
    """Q, K, V and the offsets of one sequence."""
    return x(queries, 2, 8), x(keys, heads, 8), x(keys, heads, 8), ends(0, queries), ends(0, keys)


def blocks(batch: int, queries: int, keys: int) -> tuple[Any, ...]:
    """bfloat16 Q, K, V and a list for every 64 queries."""
    kind = ml_dtypes.bfloat16
    q, k = x(batch, 2, queries, 16, kind=kind), x(batch, 1, keys, 16, kind=kind)
    return q, k, k, ids(batch, 2, -(-queries // 64), 1)


def block(batch: int, tokens: int) -> tuple[Any, ...]:
    tables = x(batch, tokens, 8), x(batch, tokens, 8)
    return x(batch, tokens, 16), x(384, 16), x(64), x(64), *tables, x(16, 128), GEOMETRY


def lists(keys: int, slots: int) -> tuple[Any, ...]:
    return x(1, 3, 2, 8), x(1, keys, 8), x(1, 3, 2), ids(1, 3, slots) - (keys == 0)


THD = {"cu_seqlens_q": ends(0, 0), "cu_seqlens_k": ends(0, 0), "max_seqlen_q": 0, "max_seqlen_k": 0}
ONLY_QUERIES = {"cu_seqlens_q": ends(0, 3), "cu_seqlens_k": ends(0, 0), "max_seqlen_q": 3, "max_seqlen_k": 0}
# The op, its operands and options, and what every element of each result is.
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[float, ...]]] = [
    *(
        ("nsa_compression_attention_forward", given, {"enable_lse": True}, (0, -INF))
        for given in (packed(0, 0), packed(3, 0), packed(0, 3), (x(1, 2, 3, 8), x(1, 1, 0, 8), x(1, 1, 0, 8)))
    ),
    *(
        ("nsa_selection_attention_forward", (*a[:3], ids(m, 1, n), ids(m, 1) + n, *a[3:]), {}, (0, 0, -INF))
        for m, n, a in ((0, 2, packed(0, 0)), (3, 0, packed(3, 3)), (3, 2, packed(3, 0)))
    ),
    *(
        ("nsa_sliding_window_attention_forward", (*packed(m, n)[:3], ends(m), ends(n)), {"left_bound": 3}, (0, -INF))
        for m, n in ((0, 0), (3, 0), (0, 3))
    ),
    *(
        ("nsa_topk_reduction_forward", (*a[:2], x(m, 2), *a[3:]), {"k_value": 4}, (-INF, -1))
        for m, a in ((0, packed(0, 0)), (3, packed(3, 0)))
    ),
    *(("hstu_attention_forward", (*packed(m, n, 2), None, None), {}, (0,)) for m, n in ((0, 0), (3, 0), (0, 3))),
    *(
        ("hstu_attention_backward", (x(m, 2, 8), *packed(m, n, 2), None, None), {"window_size": (-1, 0)}, (0, 0, 0))
        for m, n in ((0, 0), (3, 0), (0, 3))
    ),
    *(
        ("csa_compressor_backward", (x(n, 8), x(n, 8), x(4, 8), ends(0, n), ends(0, 0), x(0, 4)), {}, (0, 0, 0))
        for n in (0, 3)
    ),
    ("csa_compressor_forward", (x(3, 8), x(3, 8), x(4, 8), ends(0, 3), ends(0, 0)), {"total_comp": 0}, (0,)),
    *(
        (
            "sdpa_backward",
            (x(1, 2, m, 8), x(1, 1, n, 8), x(1, 1, n, 8), x(1, 2, m, 8), x(1, 2, m, 8), -INF * x(1, 2, m, 1)),
            {"bias_tensor": x(1, 2, m, n), "sink_token": x(1, 2, 1, 1)},
            (0, 0, 0, 0, 0),
        )
        for m, n in ((0, 3), (3, 0))
    ),
    *(
        (
            "nvfp4_attention_qat_backward",
            (*[x(1, 2, m, 32)] * 2, *[x(1, 2, n, 32)] * 2, x(1, 2, m, 32), -INF * x(1, 2, m)),
            {},
            (0, 0, 0),
        )
        for m, n in ((0, 3), (3, 0))
    ),
    (
        "aligned_hca_backward",
        (x(0, 2, 8), x(132, 8), x(0, 2, 8), x(0, 2, 8), x(0, 2), x(2)),
        {"cp_rank": 1, "cp_size": 4},
        (0, 0, 0),
    ),
    *(
        (
            "mamba2_forward",
            (x(b, t, 4, 6), x(b, t, 4), -x(4), x(b, t, 1, 5), x(b, t, 1, 5)),
            {"return_final_state": True},
            (0, 0),
        )
        for b, t in ((0, 3), (2, 0))
    ),
    *(
        ("block_sparse_attention_fp8_forward", blocks(b, m, n), {}, (0,))
        for b, m, n in ((0, 3, 3), (1, 0, 3), (1, 3, 0))
    ),
    *(("gated_attention_block_forward", block(b, t), {"return_lse": True}, (0, -INF)) for b, t in ((0, 3), (2, 0))),
    *(
        (name, (x(m, 2, 8), x(0, 1, 8), x(m, 2), *more), {**lengths, **options}, wanted)
        for m, lengths in ((0, THD), (3, ONLY_QUERIES))
        for name, more, options, wanted in (
            ("dsa_indexer_forward", (), {"return_lse": True}, (-INF, -INF)),
            ("dsa_indexer_fused_top_k_forward", (3,), {"return_lse": True}, (-1, -INF, 0, -INF)),
            ("dsa_dense_indexer_score_forward", (), {}, (-INF, -INF)),
            ("dsa_dense_attn_score_forward", (0.2,), {}, (-INF, 0)),
        )
    ),
    *(
        (name, (*lists(keys, slots), *more), {}, (0,))
        for keys, slots in ((0, 2), (4, 0))
        for name, more in (("dsa_sparse_indexer_score_forward", ()), ("dsa_sparse_attn_score_forward", (0.2,)))
    ),
    *(
        (
            "dsa_indexer_backward",
            (x(1, 3, 2, 8), x(1, 3, 2), x(1, keys, 8), *[0 * x(1, 3, slots)] * 2, ids(1, 3, slots) - 1, x(1)),
            {},
            (0, 0, 0, 0),
        )
        for keys, slots in ((0, 2), (4, 0))
    ),
    (
        "dsa_dense_indexer_backward",
        (x(1, 3, 2, 8), x(1, 3, 2), x(1, 0, 8), x(1, 3, 0), x(1, 3), x(1, 3, 0), -INF * x(1, 3), x(1)),
        {},
        (0, 0, 0, 0),
    ),
]  # fmt: skip


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i][0]}")
def test_nothing(framework: Framework, case: int) -> None:
    name, operands, options, wanted = CASES[case]

    def given(value: Any) -> Any:
        return convert(value, framework) if isinstance(value, np.ndarray) else value

    results = getattr(attention, name)(*map(given, operands), **{key: given(value) for key, value in options.items()})
    found = [result for result in results if result is not None]
    assert len(found) == len(wanted)
    for result, value in zip(found, wanted, strict=True):
        assert (to_float64(result) == value).all()


Q, NONE, ENDS, EMPTY = torch.ones(3, 2, 8), torch.ones(0, 2, 8), torch.tensor([0, 3]).int(), torch.tensor([0, 0]).int()
LISTS = torch.zeros(3, 2, 2).int(), torch.ones(3, 2).int()
TOKENS = torch.ones(3, 6), torch.ones(3, 6), torch.ones(4, 6), ENDS, EMPTY
# The class, its tensors before the results and after them, and shape and value of each result.
CLASSES: list[tuple[Any, tuple[Any, ...], tuple[Any, ...], dict[str, Any], list[tuple[tuple[int, ...], float]]]] = [
    (NSA.CompressionAttention, (Q, NONE, NONE), (ENDS, EMPTY), {}, [((3, 2, 8), 0), ((3, 2, 1), -INF)]),
    (
        NSA.SelectionAttention,
        (Q, NONE, NONE),
        (*LISTS, ENDS, EMPTY),
        {"block_size": 16},
        [((3, 2, 8), 0), ((3, 2, 1), 0), ((3, 2, 1), -INF)],
    ),
    (
        NSA.SlidingWindowAttention,
        (Q[None], Q[None, :, :0], Q[None, :, :0]),
        (),
        {"left_bound": 3},
        [((1, 3, 2, 8), 0), ((1, 3, 2, 1), -INF)],
    ),
    (legacy.HSTUFwdSm100, (Q, NONE, NONE), (ENDS, EMPTY), {"max_seqlen_q": 3, "max_seqlen_k": 3}, [((3, 2, 8), 0)]),
    (
        legacy.HSTUBwdSm100,
        (Q, Q, NONE, NONE),
        (ENDS, EMPTY),
        {"max_seqlen_q": 3, "max_seqlen_k": 3},
        [((3, 2, 8), 0), ((0, 2, 8), 0), ((0, 2, 8), 0)],
    ),
]


@pytest.mark.parametrize("case", range(len(CLASSES)), ids=lambda i: CLASSES[i][0].__name__)
def test_classes_write_all_of_their_buffers(case: int) -> None:
    """No keys: every element of every result is written."""
    made, before, after, options, wanted = CLASSES[case]
    results = [torch.full(shape, torch.nan) for shape, _ in wanted]
    made(*before, *results, *after, **options)(*before, *results, *after)
    for result, (_, value) in zip(results, wanted, strict=True):
        assert (result == value).all()


def test_classes_with_other_orders_write_all_of_their_buffers() -> None:
    grads = [torch.full_like(x, torch.nan) for x in TOKENS[:3]]
    rows = torch.ones(0, 3)
    CSA.CSACompressorBackward(*TOKENS, rows)(*TOKENS, rows, *grads)
    assert not any(x.any() for x in grads)

    scores, ids, values = torch.ones(2, 0), torch.zeros(2, 3).int(), torch.full((2, 3), torch.nan)
    DSA.IndexerTopK(scores, EMPTY, 3)(scores, EMPTY, out_indices=ids, out_values=values)
    assert (ids == -1).all()
    assert (values == -INF).all()

    kv, lists, sink = torch.ones(0, 8), torch.zeros(3, 2).int(), torch.zeros(2)
    out, lse, dq, d_sink = (torch.full(shape, torch.nan) for shape in ((3, 2, 8), (3, 2), (3, 2, 8), (2,)))
    forward = DSA.SparseAttentionForward(Q, kv, lists)
    forward.compile()
    forward.execute(Q, kv, lists, out=out, lse=lse)
    assert not out.any()
    assert (lse == INF).all()
    samples = (Q, kv, out, Q, lse, sink, lists, dq, kv.clone())
    backward = DSA.SparseAttentionBackward(*samples)
    backward.compile()
    backward.execute(*samples, d_sink=d_sink)
    assert not dq.any()
    assert not d_sink.any()
