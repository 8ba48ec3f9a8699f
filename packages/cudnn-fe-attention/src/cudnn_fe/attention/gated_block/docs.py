"""What the documentation of the gated attention block says: operands, notes, examples."""

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
    "INPUT_TENSORS",
    "PAGED_EXAMPLE",
    "PAGED_NOTES",
    "PAGED_TENSORS",
    "SOURCE",
    "SPARSE_EXAMPLE",
    "SPARSE_NOTES",
    "SPARSE_TENSORS",
]

_ANY, _STATISTICS = "any strides", ("float32", "float64")
INPUT_TENSORS = (
    TensorRule("h", "(B, S, d_model), or packed (T, d_model) or (1, T, d_model)", _ANY, FLOATS, "hidden states"),
    TensorRule("w_qkvg", "(n_qkvg, d_model)", _ANY, FLOATS, "rows of queries, gates, keys and values, head by head"),
    TensorRule("w_q_norm", "(D,)", _ANY, FLOATS, "weight of the queries' RMSNorm; None without qk_norm"),
    TensorRule("w_k_norm", "(D,)", _ANY, FLOATS, "likewise of the keys'"),
    TensorRule("cos", "(B, S, rope_dim) or packed", _ANY, FLOATS, "cosines of each token; halves may differ"),
    TensorRule("sin", "(B, S, rope_dim) or packed", _ANY, FLOATS, "sines"),
    TensorRule("w_o", "(d_model, Hq D)", _ANY, FLOATS, "output projection"),
)
_LENGTHS = TensorRule(
    "seq_lens", "(B,) or (B+1,)", _ANY, ("int32",), "keys of each sequence; of packed ones lengths or offsets; or None"
)
_E8M0, _FP4_SCALES = ("uint8", "float8_e8m0fnu"), ("uint8", "float8_e8m0fnu", "float8_e4m3fn")
_SCALES = (
    TensorRule("h_sf", "(ceil128(B S) d_model / 32,)", "packed", _E8M0, "MXFP8 scales, or None"),
    TensorRule("w_qkvg_sf", "(ceil128(n_qkvg) d_model / 32,)", "packed", _E8M0, "likewise"),
    TensorRule("w_o_sf", "(ceil128(d_model) Hq D / block,)", "packed", _FP4_SCALES, "scales of an FP4 w_o, or None"),
)
_CODES = ("float8_e4m3fn", "float4_e2m1fn")
_NUMBER = ("float32",)
_TURNED = (
    TensorRule("scale_dp", "(1,)", "any", _NUMBER, "factor of dS before it is encoded, of FP8, or None"),
    TensorRule("scale_dy", "(1,)", "any", _NUMBER, "factor of dY under delayed scaling, or None"),
    TensorRule("scale_do", "(1,)", "any", _NUMBER, "likewise of dO, of FP8"),
    TensorRule("scale_dqkvg", "(1,)", "any", _NUMBER, "likewise of the projection's gradient, of FP8"),
    TensorRule("h_t", "(d_model, B S)", "any strides", _CODES[:1], "h quantised along tokens, of MXFP8, or None"),
    TensorRule("h_t_sf", "(ceil128(d_model) ceil4(B S / 32),)", "packed", _E8M0, "its scales"),
    TensorRule("w_qkvg_t", "(d_model, n_qkvg)", "any strides", _CODES, "w_qkvg quantised along its rows, of MXFP8"),
    TensorRule("w_qkvg_t_sf", "(ceil128(d_model) n_qkvg / 32,)", "packed", _E8M0, "its scales"),
    TensorRule("w_o_t", "(Hq D, d_model)", "any strides", _CODES[1:], "an FP4 w_o quantised along d_model, or None"),
    TensorRule("w_o_t_sf", "(ceil128(Hq D) d_model / block,)", "packed", _FP4_SCALES, "its scales"),
)
_RECORD = (
    TensorRule("proj_slab", "(B S, n_qkvg)", "compact", FLOATS, "the first projection, before norms; in training"),
    TensorRule("o", "(B, S, Hq, D)", "compact", FLOATS, "attention before the gate; in training"),
    TensorRule("rstd_q", "(B, S, Hq)", "compact", _STATISTICS, "reciprocal roots of the queries' norm; in training"),
    TensorRule("rstd_k", "(B, S, Hkv)", "compact", _STATISTICS, "likewise of the keys'"),
)
FORWARD_TENSORS = (
    *INPUT_TENSORS,
    _LENGTHS,
    *_SCALES,
    TensorRule("out", "as h", "compact", FLOATS, "the output"),
    TensorRule("lse", "(B, Hq, S), packed (1, Hq, T)", "compact", _STATISTICS, "natural log-sum-exp of the scores"),
    *_RECORD,
)
BACKWARD_TENSORS = (
    TensorRule("dy", "as h", _ANY, FLOATS, "gradient of the output"),
    *INPUT_TENSORS,
    *_RECORD,
    TensorRule("lse", "(B, Hq, S), packed (1, Hq, T)", _ANY, _STATISTICS, "the forward's log-sum-exp"),
    _LENGTHS,
    *_TURNED,
    TensorRule("dh", "as h", "compact", FLOATS, "gradient of h"),
    TensorRule("dw_qkvg", "(n_qkvg, d_model)", "compact", FLOATS, "gradient of the first weight"),
    TensorRule("dw_o", "(d_model, Hq D)", "compact", FLOATS, "gradient of the last weight"),
    TensorRule("dw_q_norm", "(D,)", "compact", _STATISTICS, "gradient of the queries' norm weight"),
    TensorRule("dw_k_norm", "(D,)", "compact", _STATISTICS, "likewise of the keys'"),
    TensorRule("quant_scalars", "(29,)", "compact", _NUMBER, "a quantised block's numbers; the class names them"),
)
_PAGE_SHAPE, _POOL = "(pages, Hkv, P, D)", (*FLOATS[:4], "float8_e4m3fn")
PAGED_TENSORS = (
    _LENGTHS,
    TensorRule("k_cache", _PAGE_SHAPE, "channels contiguous", _POOL, "pages of keys; written to"),
    TensorRule("v_cache", _PAGE_SHAPE, "channels contiguous", _POOL, "pages of values; written to"),
    TensorRule("slot_mapping", "(T,)", _ANY, ("int32", "int64"), "each token's slot; outside the pool writes nothing"),
    TensorRule("block_table", "(B, N)", _ANY, ("int32",), "pages of each sequence, or None"),
    TensorRule("kv_lens", "(B,)", _ANY, ("int32",), "keys of each sequence in its pages, or None"),
    TensorRule("k_scale", "(1,)", "any", _NUMBER, "what E4M3 keys are multiplied by when they are read, or None"),
    TensorRule("v_scale", "(1,)", "any", _NUMBER, "likewise of values"),
    TensorRule("out", "as h", "compact", FLOATS, "the output"),
    TensorRule("lse", "(B, Hq, S), packed (1, Hq, T)", "compact", _STATISTICS, "natural log-sum-exp of the scores"),
)
PAGED_NOTES = (
    "Stored are keys after norm and rotation and values as they are, in the dtype of h or as E4M3 of `x (1 / scale)`.",
    "`kv_source='self'`: the output is that of `gated_attention_block_forward`, bit for bit. `'paged'`: a sequence's "
    "tokens are the last of its `kv_lens` keys, and each sees those up to its own, through the table of pages, new "
    "ones included; a sequence of no keys gives 0. Windows count from the same diagonal.",
    "What the pools hold past a sequence's keys is never read into a result.",
    "Accepted beyond the vendor: every GPU, any head size, windows and the log-sum-exp over pages, float32 and "
    "float64, any page size that 16 divides, CPU, NumPy and JAX. Not served: E4M3 pools that are read, gradients, "
    "quantised blocks.",
)
PAGED_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import GatedAttentionBlockGeometry, gated_attention_block_paged_forward

rng = np.random.default_rng(0)
geometry = GatedAttentionBlockGeometry(d_model=32, h_q=2, h_kv=1, d_head=64, rope_dim=16, causal_bottom_right=True)
h = rng.standard_normal((1, 3, 32), dtype=np.float32)
w_qkvg = rng.standard_normal((geometry.n_qkvg, 32), dtype=np.float32) / 8
w_o = rng.standard_normal((32, 2 * 64), dtype=np.float32) / 8
norm, cos, sin = np.ones(64, np.float32), np.ones((1, 3, 16), np.float32), np.zeros((1, 3, 16), np.float32)
weights = (w_qkvg, norm, norm, cos, sin, w_o)
pools = [np.zeros((2, 1, 16, 64), np.float32) for _ in range(2)]
whole = gated_attention_block_paged_forward(h, *weights, geometry, *pools, np.arange(3, dtype=np.int32))["out"]
# The last token again, by itself, over the page that the first call wrote.
step = gated_attention_block_paged_forward(
    h[:, 2:],
    *(x[:, 2:] if x is cos or x is sin else x for x in weights),
    geometry,
    *pools,
    np.asarray([2], np.int32),
    kv_source="paged",
    block_table=np.asarray([[0]], np.int32),
    kv_lens=np.asarray([3], np.int32),
)["out"]
np.testing.assert_allclose(step[0, 0], whole[0, 2], rtol=1e-4, atol=1e-5)
"""
SOURCE = (
    "Qiu et al., Gated Attention for Large Language Models (2025), arXiv 2505.06708; RMSNorm (arXiv 1910.07467), RoPE "
    "(arXiv 2104.09864); names of cudnn-frontend 1.32's gated_attention_block."
)
FORWARD_NOTES = (
    "In `cudnn`: the functions and the classes `GatedAttentionBlockFwd` and `GatedAttentionBlockBwd`; "
    "`cudnn.gated_attention_block` holds the geometry, the record and the weights' helpers too.",
    "Rounded to the dtype of h: the projection, queries and keys after norm and rotation, probabilities relative to "
    "the row's largest score, O, and the gated output; sums and everything between are float32.",
    "A query at place q sees keys k with `k <= q + max(window_right, 0)` if causal, `k >= q - window_left` with a left "
    "window, and `k < seq_lens[b]`. One that sees nothing has O = 0 and an output of 0.",
    "Packed sequences restart their places; their tables of cosines are the caller's. Rows past the last sequence "
    "count as zeros, whatever they hold.",
    "Gradients flow into h, both weights and the norms' weights under torch autograd and JAX; cosines, sines and the "
    "log-sum-exp have none.",
    "Quantised blocks are made by the class, with `quant`. FP8 with a factor per tensor: the first product is scaled "
    "by `descale_h descale_w_qkvg`; queries, keys, values and the gated output are encoded as E4M3 of `x scale`, "
    "rounded to nearest even and saturating; probabilities as E4M3 of 256 times their ratio to the row's largest, a "
    "factor that the vendor leaves open. MXFP8: h and the first weight come with packed E8M0 scales of 32 channels, "
    "queries and keys are encoded by 32 channels, values by 32 keys, probabilities as they are; the last product is "
    "that of FP8. The fused pipelines of the vendor, which round once less, are not told apart.",
    "FP4: the first weight may be E2M1 pairs with the same scales as E4M3; the gated output and `w_o` are NVFP4, "
    "whose scale is E4M3 of `max(amax / 6, 2**-9)` per 16 channels, or MXFP4, with the power of two at or above `amax "
    "/ 6` per 32; the division by 6 is a product with the float32 next to 1/6. Blocks along tokens start with each "
    "sequence, padded or packed, and keys past a length count as zeros.",
    "Serving over pages is `gated_attention_block_paged_forward`, block-sparse attention "
    "`gated_attention_block_sparse_forward`, the two together `gated_attention_block_paged_sparse_forward`.",
    "Accepted beyond the vendor: every GPU, any head size, float32 and float64, CPU, NumPy and JAX.",
)
BACKWARD_NOTES = (
    "Rounded to the dtype of h: dO, P and dS, the gradients of heads before and after norm and rotation, and each "
    "gradient once.",
    "Queries and keys are rebuilt from the projection as the forward made them; without `proj_slab` the projection is "
    "made again from h, bit for bit.",
    "Gradients of quantised blocks take the forward's `quant`. FP8: dY, dO and the projection's gradient are encoded "
    "as E4M3 of `x s` with one s each, `2**(floor(log2(448 / amax)) - grad_scale_margin_log2)` or the caller's; P as "
    "E4M3 of 256 P and dS of `scale_dp dS`. MXFP8: dY as before; dO, the projection's gradient, queries and keys in "
    "blocks along the axis that each product sums over, values along channels; the two products of the projection "
    "read `h_t` and `w_qkvg_t`, which the caller quantises along that axis. P as with FP8 and dS as bfloat16: the "
    "vendor leaves both open. FP4 `w_o`: `dY w_o` reads `w_o_t` and dY in MXFP8 (MXFP4), or in NVFP4 of `scale_dy "
    "dY`. The record must hold the projection.",
    "The class's `quant_scalars` are views of the workspace: largest magnitudes, scales and factors of the latest "
    "call; those that a format has not read 0. `amax_dp` is the largest |dS|.",
    "RoPE's adjoint is exact for any tables. Sums over a group's query heads are float32.",
    "The reference is bit-equal from run to run.",
)
FORWARD_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import GatedAttentionBlockGeometry, gated_attention_block_forward

rng = np.random.default_rng(0)
geometry = GatedAttentionBlockGeometry(d_model=32, h_q=2, h_kv=1, d_head=64, rope_dim=16)
h = rng.standard_normal((1, 5, 32), dtype=np.float32)
w_qkvg = rng.standard_normal((geometry.n_qkvg, 32), dtype=np.float32) / 8
w_o = rng.standard_normal((32, 2 * 64), dtype=np.float32) / 8
norm = np.ones(64, np.float32)
angle = np.arange(5)[:, None] / 100.0 ** (np.arange(8) / 8)
cos, sin = (np.tile(f(angle), 2).astype(np.float32)[None] for f in (np.cos, np.sin))
out = gated_attention_block_forward(h, w_qkvg, norm, norm, cos, sin, w_o, geometry)["out"]
# The first token sees itself alone: O is its value.
gate, value = (h[0, 0] @ w_qkvg[a : a + n].T for a, n in ((128, 128), (320, 64)))
np.testing.assert_allclose(out[0, 0], (np.tile(value, 2) / (1 + np.exp(-gate))) @ w_o.T, rtol=1e-3, atol=1e-4)
"""
BACKWARD_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import (
    GatedAttentionBlockGeometry,
    gated_attention_block_backward,
    gated_attention_block_forward,
)

rng = np.random.default_rng(0)
geometry = GatedAttentionBlockGeometry(d_model=32, h_q=1, h_kv=1, d_head=64, rope_dim=16)
h, dy = (rng.standard_normal((1, 5, 32), dtype=np.float32) for _ in range(2))
w_qkvg = rng.standard_normal((geometry.n_qkvg, 32), dtype=np.float32) / 8
w_o = rng.standard_normal((32, 64), dtype=np.float32) / 8
norm, cos, sin = np.ones(64, np.float32), np.ones((1, 5, 16), np.float32), np.zeros((1, 5, 16), np.float32)
weights = (w_qkvg, norm, norm, cos, sin, w_o)
saved = gated_attention_block_forward(h, *weights, geometry, save_for_backward=True)["saved"]
grads = gated_attention_block_backward(dy, saved, *weights, geometry)
gate = saved.proj_slab[:, 64:128]
gated = saved.o[0, :, 0] / (1 + np.exp(-gate))
np.testing.assert_allclose(grads["dw_o"], dy[0].T @ gated, rtol=1e-3, atol=1e-4)
"""
_INT32 = ("int32",)
SPARSE_TENSORS = (
    _LENGTHS,
    TensorRule("block_ids", "(T, top_k) or (B, S, top_k)", _ANY, _INT32, "blocks of each token, or None"),
    TensorRule("block_lens", "(T,) or (B, S)", _ANY, _INT32, "how many of them count, or None for all"),
    TensorRule("w_iq_norm", "(index_head_dim,)", _ANY, FLOATS, "weight of the indexer's queries' norm, or None"),
    TensorRule("w_ik_norm", "(index_head_dim,)", _ANY, FLOATS, "likewise of its keys"),
    TensorRule("out", "as h", "compact", FLOATS, "the output"),
    TensorRule("lse", "(B, Hq, S), packed (1, Hq, T)", "compact", _STATISTICS, "natural log-sum-exp of the scores"),
    TensorRule("index_k_raw", "(T, index_head_dim)", "compact", FLOATS, "the indexer's keys as they are projected"),
    TensorRule("index_k_compressed", "(B, S // 4, index_head_dim)", "compact", FLOATS, "a key per block"),
    TensorRule("block_ids_out", "(T, top_k)", "compact", _INT32, "the indexer's lists, ascending and then -1"),
    TensorRule("block_lens_out", "(T,)", "compact", _INT32, "their lengths"),
)
SPARSE_NOTES = (
    "A token at place p sees itself and what came before it in the blocks [4 b, 4 b + 4) that it lists, and in the "
    "open one, from 4 floor((p + 1) / 4) on. Blocks count from the token's own sequence. A token of no sequence gives "
    "0.",
    "The indexer, from its own columns of the projection: each query head after RMSNorm and rotation, and for every "
    "block the mean of its four keys after RMSNorm and rotation at the block's first place, both rounded once; the "
    "score of a block that ends before the next token is the sum over heads of the positive part of their product, "
    "divided by the root of index_head_dim. The best top_k are listed, of equal ones the first. Sequences of at most "
    "4 top_k + 3 tokens list every block without scores.",
    "Memory grows with the tokens times the length of a list.",
    "Not served: gradients, quantised blocks.",
    "Accepted beyond the vendor: every GPU, any head size, float32 and float64, CPU, NumPy and JAX.",
)
SPARSE_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import GatedAttentionBlockGeometry, gated_attention_block_sparse_forward
from cudnn_fe.attention.gated_block.declarations import QsaSpec

rng = np.random.default_rng(0)
geometry = GatedAttentionBlockGeometry(32, h_q=2, h_kv=1, d_head=64, rope_dim=16, qsa=QsaSpec(top_k=4))
h = rng.standard_normal((1, 12, 32), dtype=np.float32)
w_qkvg = rng.standard_normal((geometry.n_qkvg, 32), dtype=np.float32) / 8
w_o = rng.standard_normal((32, 2 * 64), dtype=np.float32) / 8
norm, cos, sin = np.ones(64, np.float32), np.ones((1, 12, 16), np.float32), np.zeros((1, 12, 16), np.float32)
lists = np.full((12, 4), -1, np.int32)  # nothing but the open block
out = gated_attention_block_sparse_forward(h, w_qkvg, norm, norm, cos, sin, w_o, geometry, block_ids=lists)["out"]
# The fifth token begins a block and sees itself alone: O is its value.
gate, value = (h[0, 4] @ w_qkvg[a : a + n].T for a, n in ((128, 128), (320, 64)))
np.testing.assert_allclose(out[0, 4], (np.tile(value, 2) / (1 + np.exp(-gate))) @ w_o.T, rtol=1e-3, atol=1e-4)
"""
