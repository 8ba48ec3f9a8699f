"""What the documentation of HSTU attention says: operands, notes, examples."""

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

_INTS = ("int32",)
_SHARED = (
    TensorRule("q_tensor", "(Tq, H, D)", "any strides", FLOATS, "packed queries"),
    TensorRule("k_tensor", "(Tk, H, D)", "any strides", FLOATS, "packed keys"),
    TensorRule("v_tensor", "(Tk, H, D)", "any strides", FLOATS, "packed values"),
    TensorRule("cu_seqlens_q_tensor", "(B+1,)", "any strides", _INTS, "first query of each sequence, from 0"),
    TensorRule("cu_seqlens_k_tensor", "(B+1,)", "any strides", _INTS, "first key of each sequence, from 0"),
    TensorRule("func_tensor", "(1, N, L), N odd, L >= Tq", "any strides", _INTS, "ends of visible ranges, or None"),
)
FORWARD_TENSORS = (
    *_SHARED,
    TensorRule("paged_kv_tensor", "(pages, 2, 128, H, D)", "any strides", FLOATS, "pages: 0 keys, 1 values; or None"),
    TensorRule("page_ids_tensor", "(P,)", "any strides", _INTS, "pages in the order of the sequences, or None"),
    TensorRule(
        "page_indptrs_tensor", "(B+1,)", "any strides", _INTS, "first page of each sequence in the list, or None"
    ),
    TensorRule("o_tensor", "(Tq, H, D)", "compact", FLOATS, "the output"),
)
BACKWARD_TENSORS = (
    TensorRule("do_tensor", "(Tq, H, D)", "any strides", FLOATS, "gradient of the output"),
    *_SHARED,
    TensorRule("dq_tensor", "(Tq, H, D)", "compact", FLOATS, "gradient of Q"),
    TensorRule("dk_tensor", "(Tk, H, D)", "compact", FLOATS, "gradient of K"),
    TensorRule("dv_tensor", "(Tk, H, D)", "compact", FLOATS, "gradient of V"),
)
SOURCE = (
    "Zhai et al., Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers (2024), arXiv 2402.17152; "
    "names and masks of cudnn-frontend 1.32's hstu_attention."
)
FORWARD_NOTES = (
    "Positions are counted per sequence, and the last query stands beside the last key: with `off = Lk - Lq`, causal "
    "is `j <= i + off`, a window is `i + off - left <= j <= i + off + right`. A left bound of -1 or `max_seqlen_k` "
    "with a right bound of 0 is causal; both unlimited is no mask but the sequence's end.",
    "`func_tensor` lists, for every query, an end and then ranges: key j is visible if `j < f[0]` or "
    "`f[2t+1] <= j < f[2t+2]` for some t. Ends may come in any order and exceed the sequence.",
    "SiLU of the scores is rounded to the dtype of Q before it multiplies V. A query that sees nothing gives 0, and so "
    "do rows past the last sequence.",
    "With pages, `k_tensor` and `v_tensor` give shapes alone. Derivatives are of packed keys and values.",
    "Accepted beyond the vendor: any D and strides, pages with any window, float32 and float64, CPU, NumPy and JAX.",
)
BACKWARD_NOTES = (
    "Keys that no query sees get gradients of 0, which are written.",
    "SiLU and dS are rounded to the dtype of Q before they multiply. The factors alpha and 1 / scaling_seqlen come "
    "after the sums.",
    "The reference is bit-equal from run to run, so `deterministic=True` is served.",
)
FORWARD_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import hstu_attention_forward

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((7, 1, 8), dtype=np.float32) for _ in range(3))
ends = np.asarray([0, 4, 7], np.int32)  # two sequences, of 4 and 3 tokens
out = hstu_attention_forward(q, k, v, ends, ends, 4, 4, window_size=(-1, 0))
x = q[5, 0] @ k[4:6, 0].T
np.testing.assert_allclose(out["o_tensor"][5, 0], x / (1 + np.exp(-x)) @ v[4:6, 0] / 4, rtol=1e-4, atol=1e-6)
"""
BACKWARD_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import hstu_attention_backward

rng = np.random.default_rng(0)
do, q, k, v = (rng.standard_normal((3, 1, 8), dtype=np.float32) for _ in range(4))
ends = np.asarray([0, 3], np.int32)
grads = hstu_attention_backward(do, q, k, v, ends, ends, 3, 3, window_size=(0, 0))  # every token sees itself alone
x = (q * k).sum(-1)
np.testing.assert_allclose(grads["dv_tensor"][:, 0], x / (1 + np.exp(-x)) * do[:, 0] / 3, rtol=1e-4, atol=1e-6)
"""
