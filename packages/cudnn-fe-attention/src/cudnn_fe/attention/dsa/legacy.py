"""DSA's wrappers, and the classes whose plan is the whole call, under the names of cudnn-frontend 1.32: from tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.attention.dsa.dense_scores import dsa_dense_attn_score_forward, dsa_dense_indexer_score_forward
from cudnn_fe.attention.dsa.indexer import dsa_indexer_forward, dsa_indexer_fused_top_k_forward
from cudnn_fe.attention.dsa.indices import dsa_compactify_forward, dsa_local_to_global_forward
from cudnn_fe.attention.dsa.sparse_attention import (
    check_hints,
    dsa_sparse_attention_backward,
    dsa_sparse_attention_forward,
)
from cudnn_fe.attention.dsa.sparse_attention.op import BACKWARD
from cudnn_fe.attention.dsa.sparse_scores import dsa_sparse_attn_score_forward, dsa_sparse_indexer_score_forward
from cudnn_fe.attention.dsa.sparse_scores.op import ATTENTION, INDEXER
from cudnn_fe.attention.dsa.top_k import dsa_indexer_top_k_forward
from cudnn_fe.attention.dsa.top_k.op import FORWARD as TOP_K
from cudnn_fe.attention.operands import check_samples, softmax_factor
from cudnn_fe.core.legacy import LegacyClass, LegacyFunction, make_class, make_function
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = [
    "IndexerTopK",
    "SparseAttentionBackward",
    "SparseAttnScoreRecompute",
    "SparseIndexerScoreRecompute",
    "compactify_wrapper",
    "dense_attn_score_recompute_wrapper",
    "dense_indexer_score_recompute_wrapper",
    "indexer_forward_top_k_wrapper",
    "indexer_forward_wrapper",
    "indexer_top_k_wrapper",
    "local_to_global_wrapper",
    "sparse_attention_backward_wrapper",
    "sparse_attention_forward_wrapper",
    "sparse_attn_score_recompute_wrapper",
    "sparse_indexer_score_recompute_wrapper",
]

Bound = tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]
Given = Mapping[str, Any]

_PACKED = "cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, q_causal_offsets=None"
_SCALES = """precision="bf16", q_scale=None, k_scale=None, cu_seqlens_q_scale_padded=None,
cu_seqlens_k_scale_padded=None, sf_vec_size=32"""
_TILES = "m_block_size=128, n_block_size=128, q_stage=2, kv_stage=4"

(
    indexer_forward_wrapper,
    indexer_forward_top_k_wrapper,
    indexer_top_k_wrapper,
    local_to_global_wrapper,
    compactify_wrapper,
    sparse_indexer_score_recompute_wrapper,
    sparse_attn_score_recompute_wrapper,
    dense_indexer_score_recompute_wrapper,
    dense_attn_score_recompute_wrapper,
    sparse_attention_forward_wrapper,
    sparse_attention_backward_wrapper,
) = (
    make_function(LegacyFunction(name, target, parameters), __name__)
    for name, target, parameters in (
        (
            "indexer_forward_wrapper",
            dsa_indexer_forward,
            f"""q, k, w, ratio=4, qhead_per_kv_head=None, {_TILES}, sm_scale=1.0, out=None, stream=None, {_PACKED},
            {_SCALES}, return_lse=False, lse_out=None""",
        ),
        (
            "indexer_forward_top_k_wrapper",
            dsa_indexer_fused_top_k_forward,
            f"""q, k, w, top_k, ratio=4, qhead_per_kv_head=None, {_TILES}, sm_scale=1.0, stream=None, {_PACKED},
            {_SCALES}, return_lse=False, lse_out=None, return_softmax=None, softmax_out=None, microbatch_rows=-1,
            topk_indices_global=True, cand_buffer=None, out_indices=None, out_logits=None, cand_batch_offsets=None,
            deterministic=False""",
        ),
        (
            "indexer_top_k_wrapper",
            dsa_indexer_top_k_forward,
            """input_values, seq_lens, top_k, next_n=1, return_val=True, num_copy_bits=256, stream=None, tie_break=0,
            deterministic=False""",
        ),
        (
            "local_to_global_wrapper",
            dsa_local_to_global_forward,
            "local_indices, seqlen_k, cu_seqlens_q=None, cu_seqlens_k=None, stream=None",
        ),
        ("compactify_wrapper", dsa_compactify_forward, "indices, stream=None"),
        (
            "sparse_indexer_score_recompute_wrapper",
            dsa_sparse_indexer_score_forward,
            """q_indexer, k_indexer, weights, topk_indices, qhead_per_kv_head=None, topk_length=None,
            topk_indices_global=False, out=None, stream=None""",
        ),
        (
            "sparse_attn_score_recompute_wrapper",
            dsa_sparse_attn_score_forward,
            """q_attn, k_attn, lse, topk_indices, softmax_scale, qhead_per_kv_head=None, topk_length=None,
            topk_indices_global=False, out=None, stream=None""",
        ),
        (
            "dense_indexer_score_recompute_wrapper",
            dsa_dense_indexer_score_forward,
            f"""q, k, weights, qhead_per_kv_head=None, out=None, denom_out=None, sm_scale=1.0, ratio=1, {_PACKED},
            {_SCALES}, stream=None""",
        ),
        (
            "dense_attn_score_recompute_wrapper",
            dsa_dense_attn_score_forward,
            f"""q, k, lse, softmax_scale, qhead_per_kv_head=None, out=None, denom_out=None, ratio=1, {_PACKED},
            {_SCALES}, stream=None""",
        ),
        (
            "sparse_attention_forward_wrapper",
            dsa_sparse_attention_forward,
            """q, kv, topk_idxs, *, attn_sink=None, topk_length=None, softmax_scale=None, indexer_topk=0,
            stream=None""",
        ),
        (
            "sparse_attention_backward_wrapper",
            dsa_sparse_attention_backward,
            """q, kv, out, dout, lse, attn_sink, topk_idxs, softmax_scale=None, topk_length=None, dq=None, dkv=None,
            block_tile=64, deterministic=False, stream=None, workspace=None, q_cluster_mode="off\"""",
        ),
    )
)


def _specs(given: Given, names: tuple[str, ...]) -> tuple[TensorSpec | None, ...]:
    samples = ((name, given[f"sample_{name}"]) for name in names)
    return tuple(None if sample is None else spec_of(sample, name) for name, sample in samples)


def _bind_scores(op: Op, given: Given) -> Bound:
    options = {name: given[name] for name in ("qhead_per_kv_head", "topk_indices_global")}
    problem = op.bind(*_specs(given, op.problem.operands), **options)
    scalars = (float(given["softmax_scale"]),) if op.scalars else ()
    return problem, check_samples(problem, _specs(given, ("out",))), scalars


def _bind_top_k(given: Given) -> Bound:
    options = {name: value for name, value in given.items() if not name.startswith("sample_")}
    problem = TOP_K.bind(*_specs(given, TOP_K.problem.operands), **options)
    return problem, problem.outputs, ()


def _bind_backward(given: Given) -> Bound:
    check_hints(given["block_tile"], given["deterministic"], given["q_cluster_mode"])
    problem = BACKWARD.bind(*_specs(given, BACKWARD.problem.operands))
    samples = check_samples(problem, (*_specs(given, ("dq", "dkv")), None))
    outputs = tuple(
        wanted if sample is None else sample for sample, wanted in zip(samples, problem.outputs, strict=True)
    )
    return problem, outputs, (softmax_factor(given["sample_q"], given["softmax_scale"]),)


SparseIndexerScoreRecompute, SparseAttnScoreRecompute, IndexerTopK, SparseAttentionBackward = (
    make_class(row, __name__)
    for row in (
        LegacyClass(
            name="SparseIndexerScoreRecompute",
            op=INDEXER,
            parameters="""sample_q_indexer, sample_k_indexer, sample_weights, sample_topk_indices, sample_out,
            sample_topk_length=None, qhead_per_kv_head=None, topk_indices_global=False""",
            execute="""q_indexer, k_indexer, weights, topk_indices, out, topk_length=None, current_stream=None""",
            inputs=INDEXER.problem.operands,
            outputs=("out",),
            scalars=(),
            absent=(),
            bind=lambda given: _bind_scores(INDEXER, given),
        ),
        LegacyClass(
            name="SparseAttnScoreRecompute",
            op=ATTENTION,
            parameters="""sample_q_attn, sample_k_attn, sample_lse, sample_topk_indices, sample_out, softmax_scale,
            sample_topk_length=None, qhead_per_kv_head=None, topk_indices_global=False""",
            execute="""q_attn, k_attn, lse, topk_indices, out, topk_length=None, softmax_scale=None,
            current_stream=None""",
            inputs=ATTENTION.problem.operands,
            outputs=("out",),
            scalars=("softmax_scale",),
            absent=(),
            bind=lambda given: _bind_scores(ATTENTION, given),
        ),
        LegacyClass(
            name="IndexerTopK",
            op=TOP_K,
            parameters="""sample_input_values, sample_seq_lens, top_k, next_n=1, return_val=True, num_copy_bits=256,
            tie_break=0, deterministic=False""",
            execute="""input_values, seq_lens, current_stream=None, *, out_indices, out_values=None,
            workspace=None""",
            inputs=TOP_K.problem.operands,
            outputs=("out_indices", "out_values"),
            scalars=(),
            absent=(),
            bind=_bind_top_k,
        ),
        LegacyClass(
            name="SparseAttentionBackward",
            op=BACKWARD,
            parameters="""sample_q, sample_kv, sample_out, sample_dout, sample_lse, sample_attn_sink,
            sample_topk_idxs, sample_dq=None, sample_dkv=None, sample_topk_length=None, softmax_scale=None,
            block_tile=64, deterministic=False, q_cluster_mode="off\"""",
            execute="""q, kv, out, dout, lse, attn_sink, topk_idxs, dq, dkv, topk_length=None, softmax_scale=None,
            current_stream=None, workspace=None, *, d_sink""",
            inputs=BACKWARD.problem.operands,
            outputs=("dq", "dkv", "d_sink"),
            scalars=("softmax_scale",),
            absent=(),
            bind=_bind_backward,
        ),
    )
)
