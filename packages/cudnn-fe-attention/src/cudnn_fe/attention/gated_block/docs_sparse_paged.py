"""What the documentation of the block-sparse gated attention block over pages says beside what both parts say."""

from __future__ import annotations

from cudnn_fe.attention.gated_block.docs import PAGED_TENSORS, SPARSE_TENSORS
from cudnn_fe.attention.operands import FLOATS
from cudnn_fe.core.op import TensorRule

__all__ = ["EXAMPLE", "NOTES", "TENSORS"]

_ANY, _INT32 = "any strides", ("int32",)
_POOLED = (*FLOATS[:4], "float8_e4m3fn")
_LISTED = {
    "block_ids": "(T, top_k) or (B, S, top_k), or shared (B, top_k)",
    "block_lens": "(T,) or (B, S), or shared (B,)",
}
TENSORS = (
    *PAGED_TENSORS[:-2],
    *(
        TensorRule(rule.name, _LISTED.get(rule.name, rule.shape), rule.layout, rule.dtypes, rule.meaning)
        for rule in SPARSE_TENSORS[1:5]
    ),
    TensorRule("index_kv_cache", "(pages, P / 4, 1, index_head_dim)", _ANY, _POOLED, "a key per block; written to"),
    TensorRule(
        "index_state_cache", "(blocks, capacity, 1, index_head_dim)", _ANY, FLOATS, "rings of raw keys; written to"
    ),
    TensorRule("index_state_block_table", "(B, 1)", _ANY, _INT32, "the ring of each sequence"),
    TensorRule("index_state_slot_mapping", "(T,)", _ANY, ("int32", "int64"), "the rings' row of each token, or None"),
    TensorRule("cos_pos", "(1 or B, places, rope_dim)", _ANY, FLOATS, "cosines of every place, or None"),
    TensorRule("sin_pos", "(1 or B, places, rope_dim)", _ANY, FLOATS, "sines of every place, or None"),
    *SPARSE_TENSORS[5:],
)
NOTES = (
    "`kv_source='self'`: a prompt. All is as `gated_attention_block_sparse_forward` says, bit for bit, and keys and "
    "values are written to pages as `gated_attention_block_paged_forward` does.",
    "`kv_source='paged'`: the S tokens of a sequence are the last of its `kv_lens` keys, which pages hold, new ones "
    "included; a token whose place would be below 0 gives 0. S has no bound: a chunk after a cached prefix is one.",
    "Lists of the caller: one per token, or, with at most four tokens a step, one per sequence, chosen at its first "
    "token's place: the others see it and all from that token's open block on. `index_list_form` says which; None is "
    "one per sequence where a step has at most four.",
    "The indexer, a step: each token's raw key goes to row `place % capacity` of its sequence's ring, or to the row "
    "that `index_state_slot_mapping` names, outside of which nothing is written. A token that completes a block of "
    "four writes the mean of its raw keys, after norm and rotation at the block's first place by `cos_pos`, to the "
    "block's row of `index_kv_cache`, whose pages are those of `block_table`; then tokens choose among all complete "
    "blocks. E4M3 keys are the saturated cast of the ones that would be stored in the dtype of h, without a scale. "
    "Lists come back descending, then -1.",
    "Without `cos` and `sin` the tokens' rotations are read from `cos_pos` and `sin_pos` at their places.",
    "E4M3 pools are read as `code scale`, rounded to bfloat16, by at most four tokens a step and lists of the caller.",
    "What pools and caches hold beyond what is seen is never read into a result.",
    "Accepted beyond the vendor: every GPU, any head size, any number of the indexer's heads and any page size that 16 "
    "divides, float16 with an indexer, float32 and float64, CPU, NumPy and JAX. Not served: packed tokens over pages, "
    "gradients, quantised blocks, committing a part of a step.",
)
EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import GatedAttentionBlockGeometry, gated_attention_block_paged_sparse_forward
from cudnn_fe.attention.gated_block.declarations import QsaSpec

rng = np.random.default_rng(0)
geometry = GatedAttentionBlockGeometry(
    32, h_q=2, h_kv=1, d_head=64, rope_dim=16, causal_bottom_right=True, qsa=QsaSpec(top_k=4)
)
h = rng.standard_normal((1, 6, 32), dtype=np.float32)
w_qkvg = rng.standard_normal((geometry.n_qkvg, 32), dtype=np.float32) / 8
w_o = rng.standard_normal((32, 2 * 64), dtype=np.float32) / 8
norm, cos, sin = np.ones(64, np.float32), np.ones((1, 6, 16), np.float32), np.zeros((1, 6, 16), np.float32)
pools = [np.zeros((2, 1, 16, 64), np.float32) for _ in range(2)]
everything = np.full((6, 4), -1, np.int32)
everything[:, 0] = 0
prompt = gated_attention_block_paged_sparse_forward(
    h, w_qkvg, norm, norm, cos, sin, w_o, geometry, *pools, np.arange(6, dtype=np.int32), block_ids=everything
)["out"]
# The last token again, by itself, over the page that the prompt wrote.
step = gated_attention_block_paged_sparse_forward(
    *(h[:, 5:], w_qkvg, norm, norm, cos[:, 5:], sin[:, 5:], w_o, geometry, *pools),
    np.asarray([5], np.int32),
    kv_source="paged",
    block_table=np.asarray([[0]], np.int32),
    kv_lens=np.asarray([6], np.int32),
    block_ids=everything[5:],
)["out"]
np.testing.assert_allclose(step[0, 0], prompt[0, 5], rtol=1e-4, atol=1e-5)
"""
