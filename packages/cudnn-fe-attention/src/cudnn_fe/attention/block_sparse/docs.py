"""What the documentation of block-sparse attention says: operands, notes, examples."""

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

_ROWS = "channels contiguous, any other strides; bshd: heads and tokens exchanged"
_INTS = ("int32",)
_STATISTICS = ("float32", "float64")

_QKV = (
    TensorRule("q_tensor", "(B, Hq, Sq, D)", _ROWS, FLOATS, "queries"),
    TensorRule("k_tensor", "(B, Hkv, Sk, D)", _ROWS, FLOATS, "keys; query head h reads key head h // (Hq / Hkv)"),
    TensorRule("v_tensor", "(B, Hkv, Sk, Dv)", _ROWS, FLOATS, "values"),
)
_LISTS = (
    TensorRule(
        "q2k_block_index",
        "(B, Hq, ceil(Sq / block), C)",
        "any strides",
        _INTS,
        "key blocks that each query block sees, in any order; entries past the count may hold anything",
    ),
    TensorRule("q2k_block_nums", "(B, Hq, ceil(Sq / block))", "any strides", _INTS, "entries of each list, or None"),
    TensorRule(
        "block_sizes",
        "(Nkv,), (B, Nkv) or (B, Hq, Nkv)",
        "any strides",
        _INTS,
        "valid tokens at the start of each key block, or None for all",
    ),
)
FORWARD_TENSORS = (
    *_QKV,
    *_LISTS,
    TensorRule("o_tensor", "(B, Hq, Sq, Dv)", "compact, in the layout of Q", FLOATS, "the output"),
    TensorRule("lse_tensor", "(B, Hq, Sq)", "compact", _STATISTICS, "natural log-sum-exp of the scaled scores"),
)
BACKWARD_TENSORS = (
    TensorRule("do_tensor", "(B, Hq, Sq, Dv)", _ROWS, FLOATS, "gradient of the output"),
    *_QKV,
    TensorRule("o_tensor", "(B, Hq, Sq, Dv)", _ROWS, FLOATS, "the forward's output"),
    TensorRule("lse_tensor", "(B, Hq, Sq)", "any strides", _STATISTICS, "the forward's log-sum-exp"),
    *_LISTS,
    TensorRule("dlse_tensor", "(B, Hq, Sq)", "any strides", _STATISTICS, "gradient of the log-sum-exp, or None"),
    TensorRule("dq_tensor", "(B, Hq, Sq, D)", "compact, in the layout of Q", FLOATS, "gradient of Q"),
    TensorRule("dk_tensor", "(B, Hkv, Sk, D)", "compact, in the layout of K", FLOATS, "gradient of K"),
    TensorRule("dv_tensor", "(B, Hkv, Sk, Dv)", "compact, in the layout of V", FLOATS, "gradient of V"),
)
SOURCE = (
    "Softmax attention of Vaswani et al., Attention Is All You Need (2017), over lists of blocks; names and layouts of "
    "cudnn-frontend 1.32's block sparse attention."
)
FORWARD_NOTES = (
    "A query that sees no token (an empty list, or blocks without valid tokens) gives O = 0 and a log-sum-exp of minus "
    "infinity, whatever `allow_empty_block_nums` says. A block that is listed twice counts once.",
    "A key block's length is the smaller of `block_sizes` and what the sequence holds of it, on every device.",
    "Scores are scaled before they are masked, so scales of zero and below are meaningful. Probabilities are rounded "
    "to the dtype of Q before they multiply V; their sum is taken before that rounding.",
    "With grouped heads and blocks of 128, lists may be packed, one per 128 rows of a key head's group with the query "
    "heads innermost: (B, Hkv, ceil(Sq Hq / Hkv / 128), C). That shape, or `pack_gqa=True`, says so.",
    "`kv_splits` and `use_clc` are hints without effect on results. `sparse_block_size=None` is 128 on compute "
    "capability 10 and 11, and 64 elsewhere, the JAX entries excepted, where it is 128.",
    "Accepted beyond the vendor: any head size, float32 and float64, grouped heads and unequal V channels in the "
    "backward, any sequence length from 0, NumPy arrays and CPU tensors.",
)
BACKWARD_NOTES = (
    "Keys that no query sees get zero gradients, and so do queries that see no key.",
    "P and dS are rounded to the dtype of Q before they multiply; the gradients' sums are float32.",
    "The reference is bit-equal from run to run. `bucket_size_blocks` is a hint without effect on results.",
)
_INPUTS = """\
import numpy as np
from cudnn_fe.attention import block_sparse_attention_backward, block_sparse_attention_forward

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 1, 128, 16), dtype=np.float32) for _ in range(3))
lists = np.asarray([[[[0, 1], [1, 0]]]], np.int32)  # the first 64 queries see block 0 alone, the others both
counts = np.asarray([[[1, 2]]], np.int32)
out = block_sparse_attention_forward(q, k, v, lists, q2k_block_nums=counts, sparse_block_size=64)
"""
FORWARD_EXAMPLE = (
    _INPUTS
    + """\
p = np.exp(q[0, 0, :64] @ k[0, 0, :64].T / 4)
np.testing.assert_allclose(out["o_tensor"][0, 0, :64], p @ v[0, 0, :64] / p.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(out["lse_tensor"][0, 0, :64], np.log(p.sum(1)), rtol=1e-4, atol=1e-5)
"""
)
BACKWARD_EXAMPLE = (
    _INPUTS
    + """\
grads = block_sparse_attention_backward(
    np.ones_like(q), q, k, v, *out, lists, q2k_block_nums=counts, sparse_block_size=64
)
# Every query's probabilities sum to 1, so with a gradient of ones those of V sum to the number of queries.
np.testing.assert_allclose(grads["dv_tensor"].sum(2), np.full((1, 1, 16), 128.0), rtol=1e-4)
"""
)
