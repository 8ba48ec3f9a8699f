"""What the documentation of softmax attention's gradients says: operands, notes, an example."""

from __future__ import annotations

from cudnn_fe.attention.operands import FLOATS
from cudnn_fe.core.op import TensorRule

__all__ = ["EXAMPLE", "NOTES", "SOURCE", "TENSORS"]

_INTS, _STATISTICS = ("int32",), ("float32", "float64")
_ROWS = "channels contiguous, any other strides"
TENSORS = (
    TensorRule("q_tensor", "(B, Hq, Sq, D)", _ROWS, FLOATS, "queries"),
    TensorRule("k_tensor", "(B, Hkv, Skv, D)", _ROWS, FLOATS, "keys; query head h reads head h // (Hq / Hkv)"),
    TensorRule("v_tensor", "(B, Hkv, Skv, Dv)", _ROWS, FLOATS, "values"),
    TensorRule("o_tensor", "(B, Hq, Sq, Dv)", _ROWS, FLOATS, "the forward's output"),
    TensorRule("do_tensor", "(B, Hq, Sq, Dv)", _ROWS, FLOATS, "its gradient"),
    TensorRule("stats_tensor", "(B, Hq, Sq, 1)", "any strides", _STATISTICS, "natural log-sum-exp, the sink included"),
    TensorRule("seq_q_lens", "(B,)", "any strides", _INTS, "queries of each sequence, or None"),
    TensorRule("seq_kv_lens", "(B,)", "any strides", _INTS, "keys of each sequence, or None"),
    TensorRule("sink_token", "(1, Hq, 1, 1)", "any strides", _STATISTICS, "logit that joins each row's sum, or None"),
    TensorRule("bias_tensor", "(1 or B, Hq, Sq, Skv)", "any strides", FLOATS, "added to the scaled scores, or None"),
    TensorRule("cum_seqlen_q_tensor", "(N+1,)", "any strides", _INTS, "first query of each packed sequence, or None"),
    TensorRule("cum_seqlen_k_tensor", "(N+1,)", "any strides", _INTS, "first key of each packed sequence, or None"),
    TensorRule("dq_tensor", "(B, Hq, Sq, D)", "compact, dims in the order of Q's", FLOATS, "gradient of Q"),
    TensorRule("dk_tensor", "(B, Hkv, Skv, D)", "compact, likewise", FLOATS, "gradient of K"),
    TensorRule("dv_tensor", "(B, Hkv, Skv, Dv)", "compact, likewise", FLOATS, "gradient of V"),
    TensorRule("dbias_tensor", "as bias_tensor", "compact", FLOATS, "gradient of the bias, where there is one"),
    TensorRule("dsink_tensor", "(1, Hq, 1, 1)", "compact", _STATISTICS, "gradient of the sink, where there is one"),
)
SOURCE = (
    "Dao et al., FlashAttention (2022), arXiv 2205.14135, with the sinks of Xiao et al., Efficient Streaming Language "
    "Models with Attention Sinks (2023), arXiv 2309.17453; names and masks of cudnn-frontend 1.32's SDPA backward."
)
NOTES = (
    "In `cudnn.sdpa.bwd`: `sdpa_bwd_wrapper_dsl_sm120`, `sdpa_bwd_wrapper_sm80`, `compact_gqa_backward` and the "
    "classes `SdpaBwdDslSm120`, `Sm80`, `Sm107`, `Sm100D256` and `CompactGqaBackward`: one contract. Rotary embeddings "
    "inside the kernel, which one sibling of the vendor has, and FP8 are not served.",
    "Key k is hidden from query q if `k >= Skv_b`; if causal, `k > q + diag + right`; with a left window, "
    "`k < q + diag - left`. `diag` is 0, or `Skv_b - Sq_b` with `causal_bottom_right`.",
    "Rows past their sequence's length, and rows whose log-sum-exp is minus infinity, give zeros, whatever they hold. "
    "Lengths are clamped to the extents. A log-sum-exp of plus infinity is that of an infinite sink, which takes the "
    "whole weight: zeros too, for the sink as well.",
    "Packed sequences are one batch, (1, H, T, D) with offsets; with lengths too, sequences may end before the next "
    "one starts.",
    "P and dS are rounded to the dtype of Q before they multiply, not for the bias. Groups of heads are summed in "
    "float32, where the vendor rounds every head's part.",
    "The reference is bit-equal from run to run, so `deterministic=True` is served, also for a bias that all batches "
    "share.",
    "Accepted beyond the vendor: any head sizes and alignment, float32 and float64, CPU, NumPy and JAX.",
)
EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import sdpa_backward

rng = np.random.default_rng(0)
q, k, v, do = (rng.standard_normal((1, 1, 4, 8), dtype=np.float32) for _ in range(4))
# Every token sees itself alone: P is the identity, O is V, and nothing flows into Q and K.
lse = (q * k).sum(-1, keepdims=True) / np.float32(8**0.5)
grads = sdpa_backward(q, k, v, v, do, lse, is_causal=True, window_size_left=0)
np.testing.assert_allclose(grads["dv_tensor"], do, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(grads["dq_tensor"], 0, atol=1e-5)
"""
