"""NSA's wrappers and classes under the names of cudnn-frontend 1.32, from tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.attention.nsa_compression import nsa_compression_attention_forward
from cudnn_fe.attention.nsa_compression.op import FORWARD as COMPRESSION
from cudnn_fe.attention.nsa_selection import nsa_selection_attention_forward
from cudnn_fe.attention.nsa_selection.op import FORWARD as SELECTION
from cudnn_fe.attention.nsa_sliding_window import nsa_sliding_window_attention_forward
from cudnn_fe.attention.nsa_sliding_window.op import FORWARD as SLIDING_WINDOW
from cudnn_fe.attention.nsa_topk import nsa_topk_reduction_forward
from cudnn_fe.attention.nsa_topk.op import FORWARD as TOP_K
from cudnn_fe.attention.operands import check_samples, default_scale
from cudnn_fe.core.legacy import LegacyClass, LegacyFunction, make_class, make_function
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = [
    "CompressionAttention",
    "SelectionAttention",
    "SlidingWindowAttention",
    "TopKReduction",
    "compression_attention_wrapper",
    "selection_attention_wrapper",
    "sliding_window_attention_wrapper",
    "topk_reduction_wrapper",
]

Bound = tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]
Given = Mapping[str, Any]


def _specs(given: Given, names: tuple[str, ...]) -> tuple[TensorSpec | None, ...]:
    """Specs of the samples of the tensors with these names; None where there is none."""
    samples = ((name, given["sample_" + name.removesuffix("_tensor")]) for name in names)
    return tuple(None if sample is None else spec_of(sample, name) for name, sample in samples)


def _bound(op: Op, given: Given, results: tuple[str, ...], scalars: tuple[float, ...], **options: Any) -> Bound:
    problem = op.bind(*_specs(given, op.problem.operands), **options)
    return problem, check_samples(problem, _specs(given, results)), scalars


def _scale(given: Given, value: float | None) -> float:
    return default_scale(given["sample_q"]) if value is None else float(value)


def _flat(given: Given, name: str) -> bool:
    sample = given[name]
    return sample is not None and len(sample.shape) == 2


def _bind_compression(given: Given) -> Bound:
    scales = (*(float(given[name]) for name in ("scale_q", "scale_k", "scale_v", "inv_scale_o")),)
    return _bound(
        COMPRESSION,
        given,
        ("o_tensor", "lse_tensor"),
        (*scales, _scale(given, given["scale_softmax"])),
        o_dtype=given["sample_o"].dtype,
        qk_acc_dtype=given["qk_acc_dtype"],
        pv_acc_dtype=given["pv_acc_dtype"],
        flat=_flat(given, "sample_lse"),
    )


def _bind_selection(given: Given) -> Bound:
    completed = dict(given)
    if given["sample_cum_seqlen_k"] is None:
        completed["sample_cum_seqlen_k"] = given["sample_cum_seqlen_q"]
    return _bound(
        SELECTION,
        completed,
        ("o_tensor", "l_tensor", "m_tensor"),
        (_scale(given, given["scale_softmax"]),),
        o_dtype=given["sample_o"].dtype,
        flat=_flat(given, "sample_l"),
        **{name: given[name] for name in ("max_s_q", "max_s_k", "acc_dtype", "block_size", "is_causal")},
    )


def _bind_sliding_window(given: Given) -> Bound:
    names = ("left_bound", "right_bound", "intermediate_data_type", "compute_data_type")
    return _bound(
        SLIDING_WINDOW,
        given,
        ("o_tensor", "stats_tensor"),
        (_scale(given, given["attn_scale"]),),
        o_dtype=given["sample_o"].dtype,
        **{name: given[name] for name in names},
    )


def _bind_top_k(given: Given) -> Bound:
    names = ("k_value", "selection_block_size", "compress_stride", "is_causal", "acc_dtype")
    return _bound(
        TOP_K,
        given,
        ("topk_scores_tensor", "topk_indices_tensor"),
        (_scale(given, given["scale_softmax"]),),
        **{name: given[name] for name in names},
    )


_RAGGED = tuple(f"{name}_ragged_offset_tensor" for name in ("q", "k", "v", "o", "stats"))
_FUNCTIONS = (
    LegacyFunction(
        "compression_attention_wrapper",
        nsa_compression_attention_forward,
        """q_tensor, k_tensor, v_tensor, cum_seqlen_q_tensor=None, cum_seqlen_k_tensor=None, enable_lse=False,
        o_dtype=None, qk_acc_dtype="float32", pv_acc_dtype="float32", mma_tiler_mn=(128, 128), is_persistent=False,
        scale_q=1.0, scale_k=1.0, scale_v=1.0, inv_scale_o=1.0, scale_softmax=None, stream=None""",
    ),
    LegacyFunction(
        "selection_attention_wrapper",
        nsa_selection_attention_forward,
        """q_tensor, k_tensor, v_tensor, block_indices_tensor, block_counts_tensor, cum_seqlen_q_tensor=None,
        cum_seqlen_k_tensor=None, block_size=64, scale_softmax=None, o_dtype=None, acc_dtype="float32", max_s_q=None,
        max_s_k=None, stream=None, *, is_causal=False""",
    ),
    LegacyFunction(
        "sliding_window_attention_wrapper",
        nsa_sliding_window_attention_forward,
        """q_tensor, k_tensor, v_tensor, seq_len_q_tensor=None, seq_len_kv_tensor=None, q_ragged_offset_tensor=None,
        k_ragged_offset_tensor=None, v_ragged_offset_tensor=None, o_ragged_offset_tensor=None,
        stats_ragged_offset_tensor=None, left_bound=0, right_bound=0, is_infer=False, attn_scale=None, o_dtype=None,
        intermediate_data_type="float32", compute_data_type="float32", cudnn_handle=None, stream=None""",
    ),
    LegacyFunction(
        "topk_reduction_wrapper",
        nsa_topk_reduction_forward,
        """q_tensor, k_tensor, lse_tensor, cum_seqlen_q_tensor=None, cum_seqlen_k_tensor=None, max_s_q=None,
        max_s_k=None, acc_dtype="float32", k_value=16, selection_block_size=64, compress_stride=32, is_causal=True,
        mma_tiler_mn=(128, 128), scale_softmax=None, current_stream=None""",
    ),
)
_SCALES = ("scale_q", "scale_k", "scale_v", "inv_scale_o", "scale_softmax")
_CLASSES = (
    LegacyClass(
        name="CompressionAttention",
        op=COMPRESSION,
        parameters="""sample_q, sample_k, sample_v, sample_o, sample_lse=None, sample_cum_seqlen_q=None,
        sample_cum_seqlen_k=None, qk_acc_dtype="float32", pv_acc_dtype="float32", mma_tiler_mn=(128, 128),
        is_persistent=False, scale_q=1.0, scale_k=1.0, scale_v=1.0, inv_scale_o=1.0, scale_softmax=None""",
        execute="""q_tensor, k_tensor, v_tensor, o_tensor, lse_tensor=None, cum_seqlen_q_tensor=None,
        cum_seqlen_k_tensor=None, current_stream=None, scale_q=None, scale_k=None, scale_v=None, inv_scale_o=None,
        scale_softmax=None""",
        inputs=COMPRESSION.problem.operands,
        outputs=("o_tensor", "lse_tensor"),
        scalars=_SCALES,
        absent=(),
        bind=_bind_compression,
    ),
    LegacyClass(
        name="SelectionAttention",
        op=SELECTION,
        parameters="""sample_q, sample_k, sample_v, sample_o, sample_l, sample_m, sample_block_indices,
        sample_block_counts, sample_cum_seqlen_q=None, sample_cum_seqlen_k=None, max_s_q=1024, max_s_k=1024,
        acc_dtype="float32", block_size=64, scale_softmax=None, *, is_causal=False""",
        execute="""q_tensor, k_tensor, v_tensor, o_tensor, l_tensor, m_tensor, block_indices_tensor,
        block_counts_tensor, cum_seqlen_q_tensor=None, cum_seqlen_k_tensor=None, scale_softmax=None,
        current_stream=None""",
        inputs=SELECTION.problem.operands,
        outputs=("o_tensor", "l_tensor", "m_tensor"),
        scalars=("scale_softmax",),
        absent=(),
        bind=_bind_selection,
    ),
    LegacyClass(
        name="SlidingWindowAttention",
        op=SLIDING_WINDOW,
        parameters="""sample_q, sample_k, sample_v, sample_o, sample_stats=None, left_bound=0, right_bound=0,
        sample_seq_len_q=None, sample_seq_len_kv=None, sample_q_ragged_offset=None, sample_k_ragged_offset=None,
        sample_v_ragged_offset=None, sample_o_ragged_offset=None, sample_stats_ragged_offset=None,
        max_seq_len_q=None, max_seq_len_kv=None, attn_scale=None, intermediate_data_type="float32",
        compute_data_type="float32", cudnn_handle=None""",
        execute=f"""q_tensor, k_tensor, v_tensor, o_tensor, stats_tensor=None, seq_len_q_tensor=None,
        seq_len_kv_tensor=None, {", ".join(f"{name}=None" for name in _RAGGED)}, current_stream=None,
        cudnn_handle=None, skip_compile=False""",
        inputs=SLIDING_WINDOW.problem.operands,
        outputs=("o_tensor", "stats_tensor"),
        scalars=(),
        absent=(),
        bind=_bind_sliding_window,
    ),
    LegacyClass(
        name="TopKReduction",
        op=TOP_K,
        parameters="""sample_q, sample_k, sample_lse, sample_topk_scores, sample_topk_indices,
        sample_cum_seqlen_q=None, sample_cum_seqlen_k=None, max_s_q=None, max_s_k=None, acc_dtype="float32",
        k_value=16, selection_block_size=64, compress_stride=32, is_causal=True, mma_tiler_mn=(128, 128),
        scale_softmax=None""",
        execute="""q_tensor, k_tensor, lse_tensor, topk_scores_tensor, topk_indices_tensor,
        cumulative_s_q_tensor=None, cumulative_s_k_tensor=None, current_stream=None""",
        inputs=("q_tensor", "k_tensor", "lse_tensor", "cumulative_s_q_tensor", "cumulative_s_k_tensor"),
        outputs=("topk_scores_tensor", "topk_indices_tensor"),
        scalars=(),
        absent=(),
        bind=_bind_top_k,
    ),
)

(
    compression_attention_wrapper,
    selection_attention_wrapper,
    sliding_window_attention_wrapper,
    topk_reduction_wrapper,
) = (make_function(row, __name__) for row in _FUNCTIONS)
CompressionAttention, SelectionAttention, SlidingWindowAttention, TopKReduction = (
    make_class(row, __name__) for row in _CLASSES
)
