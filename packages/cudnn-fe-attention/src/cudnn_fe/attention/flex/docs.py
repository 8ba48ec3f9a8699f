"""What the documentation of flex attention says: operands, notes, examples."""

from __future__ import annotations

from cudnn_fe.attention.operands import FLOATS
from cudnn_fe.core.op import TensorRule

__all__ = [
    "BACKWARD_EXAMPLE",
    "BACKWARD_NOTES",
    "BACKWARD_TENSORS",
    "FORWARD_EXAMPLE",
    "FORWARD_NOTES",
    "FORWARD_TENSORS",
    "SOURCE",
]

_INTS, _STATISTICS = ("int32",), ("float32", "float64")
_ROWS = "channels contiguous, any other strides"
_QKV = (
    TensorRule("q", "(B, Sq, Hq, D), or packed (Tq, Hq, D)", _ROWS, FLOATS, "queries"),
    TensorRule("k", "(B, Sk, Hkv, D) or (Tk, Hkv, D)", _ROWS, FLOATS, "keys; query head h reads h // (Hq / Hkv)"),
    TensorRule("v", "(B, Sk, Hkv, Dv) or (Tk, Hkv, Dv)", _ROWS, FLOATS, "values"),
)
_MASK = (
    TensorRule("mask_func", "(1 or Hq, N, total_q), N odd", "any strides", _INTS, "the plan's endpoints"),
    TensorRule("cu_seqlens_q", "(B+1,)", "any strides", _INTS, "the plan's first query of each sequence, or None"),
    TensorRule("cu_seqlens_k", "(B+1,)", "any strides", _INTS, "the plan's first key of each sequence, or None"),
)
_LSE = "(B, Hq, Sq) or (Hq, Tq)"
FORWARD_TENSORS = (
    *_QKV,
    *_MASK,
    TensorRule("o_tensor", "(B, Sq, Hq, Dv) or (Tq, Hq, Dv)", "compact", FLOATS, "the output"),
    TensorRule("lse_tensor", _LSE, "compact", _STATISTICS, "natural log-sum-exp of the scaled scores"),
    TensorRule("max_logit_tensor", "(Hq,)", "compact", _STATISTICS, "largest visible scaled score of each head"),
)
BACKWARD_TENSORS = (
    TensorRule("do_tensor", "as o_tensor", _ROWS, FLOATS, "gradient of the output"),
    *_QKV,
    TensorRule("o_tensor", "(B, Sq, Hq, Dv) or (Tq, Hq, Dv)", _ROWS, FLOATS, "the forward's output"),
    TensorRule("lse_tensor", _LSE, "any strides", _STATISTICS, "the forward's log-sum-exp"),
    *_MASK,
    TensorRule("dlse_tensor", _LSE, "any strides", _STATISTICS, "gradient of the log-sum-exp, or None"),
    TensorRule("dq_tensor", "as q", "compact", FLOATS, "gradient of Q"),
    TensorRule("dk_tensor", "as k", "compact", FLOATS, "gradient of K"),
    TensorRule("dv_tensor", "as v", "compact", FLOATS, "gradient of V"),
)
SOURCE = (
    "Dao et al., FlashAttention (2022), arXiv 2205.14135, under masks of intervals; "
    "names and plans of cudnn-frontend 1.32's flex_attention."
)
FORWARD_NOTES = (
    "The mask is a `MaskPlan` from `create_mask_plan`, made once for any number of calls with operands alike. In "
    "`cudnn`: `flex_attn_func` and `create_mask_plan`, also in `cudnn.flex_attention`, which holds `MaskPlan` and the "
    "classes too.",
    "A query that sees nothing gives O = 0 and a log-sum-exp of minus infinity; a head in which none sees anything has "
    "minus infinity for its largest score.",
    "Scores are scaled before they are masked, so that scales of zero and below are meaningful; the vendor gives NaN.",
    "Probabilities relative to the row's largest score are rounded to the dtype of Q before they multiply V.",
    "`max_logit_tensor` has no derivative.",
    "Blocks are a matter of kernels: `MaskPlan.debug_snapshot()` lists those of 128 queries and keys, its bit masks "
    "and schedules are None.",
    "Accepted beyond the vendor: any head sizes, alignment and strides, no tokens, float32 and float64, CPU, NumPy and "
    "JAX, where a plan is a pytree.",
)
BACKWARD_NOTES = (
    "P and dS are rounded to the dtype of Q before they multiply; the scale of dQ and dK comes after the sums. "
    "Gradients of K and V are summed over the query heads of a group in float32.",
    "The plan must have been made for it: `build_backward=True`, or operands that require gradients.",
    "The reference is bit-equal from run to run, so `deterministic=True` is served.",
)
FORWARD_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import create_mask_plan, flex_attention

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 6, 2, 8), dtype=np.float32) for _ in range(3))
row = np.arange(6)
# Token 0 is a sink that everyone sees, beside a causal window of two tokens: [0, 1) and [low, i + 1).
ends = np.stack([np.ones(6), np.maximum(row - 1, 1), np.maximum(row + 1, 1)])[None].astype(np.int32)
out, lse = flex_attention(q, k, v, mask_plan=create_mask_plan(ends, q, k, v), return_lse=True)
s = k[0, [0, 4, 5], 1] @ q[0, 5, 1] / 8**0.5
np.testing.assert_allclose(out[0, 5, 1], np.exp(s) @ v[0, [0, 4, 5], 1] / np.exp(s).sum(), rtol=1e-4, atol=1e-6)
np.testing.assert_allclose(lse[0, 1, 5], np.log(np.exp(s).sum()), rtol=1e-5)
"""
BACKWARD_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import create_mask_plan, flex_attention, flex_attention_backward

rng = np.random.default_rng(0)
do, q, k, v = (rng.standard_normal((1, 4, 1, 8), dtype=np.float32) for _ in range(4))
ends = np.ones((1, 1, 4), np.int32)  # every query sees the first key alone
plan = create_mask_plan(ends, q, k, v)
out, lse = flex_attention(q, k, v, mask_plan=plan, return_lse=True)
grads = flex_attention_backward(do, q, k, v, out, lse, plan)
np.testing.assert_allclose(grads["dv_tensor"][0, 0], do[0].sum(0), rtol=1e-5)
assert not grads["dv_tensor"][0, 1:].any()
"""
