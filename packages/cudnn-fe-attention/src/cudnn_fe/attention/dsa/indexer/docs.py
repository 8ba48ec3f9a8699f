"""What the documentation of the indexer says: operands, notes, examples."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.dsa.operands import SOURCE
from cudnn_fe.attention.operands import FLOATS, STATISTICS
from cudnn_fe.core.op import TensorRule

__all__ = ["CAUSAL_NOTE", "INDEXER_INPUTS", "SCORES_DOCS", "TOP_K_DOCS", "inputs"]

_ANY = "any strides"
_INT = ("int32",)
_ELEMENTS = (*FLOATS, "float8_e4m3fn", "float4_e2m1fn", "uint8")
_SCALES = ("float32", "float8_e8m0fnu", "uint8")
CAUSAL_NOTE = (
    "Query r of its sequence sees key c if `c < (offset + r + 1) // ratio`, with the offset 0 unless "
    "`q_causal_offsets` has one: the token that the sequence's first query stands at."
)


def inputs(key_heads: str, weights: str = "w") -> tuple[TensorRule, ...]:
    """The rows of queries, keys, weights, scales and offsets."""
    return (
        TensorRule("q", "(B, Sq, Hq, D) or (Tq, Hq, D)", "channels contiguous", _ELEMENTS, "queries"),
        TensorRule("k", f"(B, Sk, {key_heads}, D) or (Tk, {key_heads}, D)", "channels contiguous", _ELEMENTS, "keys"),
        TensorRule(weights, "(B, Sq, Hq) or (Tq, Hq)", "heads contiguous", FLOATS, "weights of the heads"),
        TensorRule("q_scale", "that of q without D; packed E8M0", _ANY, _SCALES, "FP8: factors; block-scaled: scales"),
        TensorRule("k_scale", "that of k without D; packed E8M0", _ANY, _SCALES, "likewise"),
        TensorRule("cu_seqlens_q", "(B+1,)", _ANY, _INT, "first query of each packed sequence, or None if padded"),
        TensorRule("cu_seqlens_k", "(B+1,)", _ANY, _INT, "first key of each packed sequence, or None"),
        TensorRule("cu_seqlens_q_scale_padded", "(B+1,)", _ANY, _INT, "first token of each sequence in `q_scale`"),
        TensorRule("cu_seqlens_k_scale_padded", "(B+1,)", _ANY, _INT, "first token of each sequence in `k_scale`"),
        TensorRule("q_causal_offsets", "(B,)", _ANY, _INT, "token of each sequence's first query, or None for 0"),
    )


INDEXER_INPUTS = """\
import numpy as np
from cudnn_fe.attention import dsa_indexer_forward, dsa_indexer_fused_top_k_forward

rng = np.random.default_rng(0)
q, k = rng.standard_normal((1, 16, 4, 32), dtype=np.float32), rng.standard_normal((1, 4, 1, 32), dtype=np.float32)
w = rng.standard_normal((1, 16, 4), dtype=np.float32)
scores, lse = dsa_indexer_forward(q, k, w, ratio=4, return_lse=True)
"""
_PRECISIONS = (
    "`precision`: `bf16` is the operands' own float type. `fp8` multiplies E4M3 values and applies `q_scale` and "
    "`k_scale` to the scores; float32 weights hold `q_scale * sm_scale` already. `mxfp8` and `mxfp4` dequantise with "
    "one E8M0 scale per 32 channels, packed by `pack_q_scale_bshd` and its siblings."
)
_FORMULA = r"S_{rc} = \alpha \sum_h \max(q_{rh} \cdot k_c, 0)\, w_{rh}, \qquad c < \lfloor (o + r + 1) / \rho \rfloor"

SCORES_DOCS: dict[str, Any] = {
    "summary": "The lightning indexer's score of every compressed key that a query may see.",
    "formula": _FORMULA,
    "tensors": (
        *inputs("1"),
        TensorRule("scores", "(B, Sq, Sk) or (Tq, max_seqlen_k)", "compact", STATISTICS, "minus infinity where hidden"),
        TensorRule("lse", "(B, Sq) or (Tq,)", "compact", STATISTICS, "natural log-sum-exp of the visible scores"),
    ),
    "example": INDEXER_INPUTS
    + """\
assert np.isneginf(scores[0, 2]).all() and np.isneginf(lse[0, 2])  # the first key ends with token 3
seen = np.maximum(q[0, 7] @ k[0, :2, 0].T, 0)
np.testing.assert_allclose(scores[0, 7, :2], w[0, 7] @ seen, rtol=1e-4, atol=1e-5)
""",
    "source": SOURCE,
    "notes": (
        CAUSAL_NOTE,
        _PRECISIONS,
        "A NaN in a query or a key reaches the visible scores that it is part of; hidden ones stay minus infinity.",
        "Accepted beyond the vendor: every precision on every device, any number of heads and channels (multiples of "
        "32 with block scales), queries past the last key's end, float32 and float64, CPU, NumPy and JAX.",
    ),
}

TOP_K_DOCS: dict[str, Any] = {
    "summary": "The best compressed keys of every query by the lightning indexer, without a dense matrix of scores.",
    "formula": _FORMULA + r", \qquad I_r = \operatorname{top}_k S_r, \qquad p_{rj} = \mathrm{softmax}_j\, S_{r I_{rj}}",
    "tensors": (
        *inputs("1"),
        TensorRule("indices", "(B, Sq, k) or (Tq, k)", "compact", _INT, "ids of keys, -1 where there are fewer"),
        TensorRule("logits", "(B, Sq, k) or (Tq, k)", "compact", STATISTICS, "their scores, minus infinity there"),
        TensorRule("softmax", "(B, Sq, k) or (Tq, k)", "compact", STATISTICS, "softmax over them, 0 there"),
        TensorRule("lse", "(B, Sq) or (Tq,)", "compact", STATISTICS, "natural log-sum-exp of all visible scores"),
    ),
    "example": INDEXER_INPUTS
    + """\
best = dsa_indexer_fused_top_k_forward(q, k, w, 2, ratio=4)
np.testing.assert_allclose(best["logits"][0, 15], np.sort(scores[0, 15])[:-3:-1])
assert best["indices"][0, 2].tolist() == [-1, -1] and not best["softmax"][0, 2].any()
""",
    "source": SOURCE,
    "notes": (
        CAUSAL_NOTE,
        _PRECISIONS,
        "Best first. Scores are compared as floats, +0 above -0; among equals the smaller id is taken, whether "
        "`deterministic` or not.",
        "Ids count all keys: `b * Sk + c`, or `cu_seqlens_k[b] + c`, and just c without `topk_indices_global`.",
        "`microbatch_rows`, `cand_buffer` and `cand_batch_offsets` are checked as documented and change no result.",
    ),
}
