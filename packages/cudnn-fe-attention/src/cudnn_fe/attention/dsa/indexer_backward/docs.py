"""What the documentation of the indexer's gradients says: operands, notes, examples."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.dsa.indexer.docs import CAUSAL_NOTE
from cudnn_fe.attention.dsa.operands import SOURCE, WIDE_INDICES
from cudnn_fe.attention.operands import FLOATS, STATISTICS
from cudnn_fe.core.op import TensorRule

__all__ = ["DENSE_DOCS", "SPARSE_DOCS"]

_ROWS, _ANY, _INT = "channels contiguous", "any strides", ("int32",)


def _operands(*shapes: str) -> tuple[TensorRule, ...]:
    q, w, k = shapes
    return (
        TensorRule("index_q", q, _ROWS, FLOATS, "queries"),
        TensorRule("weights", w, "heads contiguous", FLOATS, "weights of the heads"),
        TensorRule("index_k", k, _ROWS, FLOATS, "keys, which all heads share"),
    )


def _results(*shapes: str) -> tuple[TensorRule, ...]:
    q, w, k, score = shapes
    return (
        TensorRule("d_index_q", q, "compact", FLOATS, "gradient of the queries"),
        TensorRule("d_weights", w, "compact", FLOATS, "gradient of the weights"),
        TensorRule("d_index_k", k, "compact", FLOATS, "gradient of the keys, in their dtype or float32"),
        TensorRule("d_score", score, "compact", STATISTICS, "gradient of the scores"),
    )


_LOSS = TensorRule("grad_loss", "one element", _ANY, STATISTICS, "gradient of the loss")
_SPARSE = ("(B, Sq, H, D)", "(B, Sq, H)", "(B, Sk, D)")
_DENSE = ("(B, Sq, H, D) or (Tq, H, D)", "(B, Sq, H) or (Tq, H)", "(B, Sk, D) or (Tk, D)")
_SCORES, _ROW = "(B, Sq, Sk) or (Tq, max_seqlen_k)", "(B, Sq) or (Tq,)"
_FORMULA = (
    r"g = -\max(t, \epsilon)\,[p \ge \epsilon]\, \gamma / N, \quad dS = g - p \sum g, \qquad "
    r"dq_h = \alpha \sum_i [s_{hi} > 0]\, dS_i w_h\, k_i, \; dk_i = \alpha \sum_h [s_{hi} > 0]\, dS_i w_h\, q_h, \; "
    r"dw_h = \sum_i [s_{hi} > 0]\, dS_i s_{hi}, \quad s_{hi} = \alpha\, q_h \cdot k_i, \; \epsilon = e^{-100}"
)
_ROUNDING = (
    "`[s > 0] dS w` is rounded to the dtype of Q before it multiplies; sums are float32 and rounded once. The factor "
    "is `loss_coeff / N` times the loss's gradient, which is read on the device."
)
_IN_PLACE = (
    "The new name returns the scores' gradient as `d_score` and leaves its operands alone. cudnn-frontend 1.32's "
    "wrapper and class write it over {buffer}, as documented there."
)
_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import {name}

rng = np.random.default_rng(0)
q, k = rng.standard_normal((1, 3, 2, 8), dtype=np.float32), rng.standard_normal((1, 4, 8), dtype=np.float32)
w, loss = np.ones((1, 3, 2), np.float32), np.ones(1, np.float32)
"""

SPARSE_DOCS: dict[str, Any] = {
    "summary": "Gradients of the indexer's KL loss between target and predicted probabilities at listed keys.",
    "formula": _FORMULA,
    "tensors": (
        *_operands(*_SPARSE),
        TensorRule("attn_score", "(B, Sq, K)", _ANY, STATISTICS, "target probabilities t"),
        TensorRule("index_score", "(B, Sq, K)", _ANY, STATISTICS, "predicted probabilities p"),
        TensorRule("topk_indices", "(B, Sq, K)", _ANY, WIDE_INDICES, "keys of each query; negative: no slot"),
        _LOSS,
        *_results(*_SPARSE, "(B, Sq, K)"),
    ),
    "example": _EXAMPLE.format(name="dsa_indexer_backward")
    + """\
ids = np.asarray([[[0, 1], [2, -1], [3, 1]]], np.int32)
same = np.asarray([[[0.5, 0.5], [1, 0], [0.25, 0.75]]], np.float32)
grads = dsa_indexer_backward(q, w, k, same, same, ids, loss)
np.testing.assert_allclose(grads["d_score"], 0, atol=1e-7)  # at the minimum there is no gradient
""",
    "source": SOURCE,
    "notes": (
        _ROUNDING,
        "Ids that name no key of the batch (of any batch with `topk_indices_global`) contribute to no gradient but the "
        "scores'. Predictions there must be 0, or they take part in the sum of g.",
        _IN_PLACE.format(buffer="`attn_score`"),
        "Bit-equal from run to run, whether `deterministic` or not; under JAX on a GPU with "
        "`--xla_gpu_deterministic_ops=true`.",
        "Accepted beyond the vendor: any number of heads and slots, float32 weights, float16, float32 and float64 "
        "operands, any strides, CPU, NumPy and JAX.",
    ),
}

DENSE_DOCS: dict[str, Any] = {
    "summary": "Gradients of the indexer's KL loss over all visible keys.",
    "formula": _FORMULA + r", \quad p = e^{S - \mathrm{LSE}}, \; t = T / (\lVert T \rVert_1 + 10^{-10})",
    "tensors": (
        *_operands(*_DENSE),
        TensorRule("attn_score", _SCORES, _ANY, STATISTICS, "attention's probabilities T, summed over heads"),
        TensorRule("attn_l1norm", _ROW, _ANY, STATISTICS, "their sum"),
        TensorRule("index_score", _SCORES, _ANY, STATISTICS, "the indexer's scores S"),
        TensorRule("index_lse", _ROW, _ANY, STATISTICS, "their log-sum-exp"),
        _LOSS,
        TensorRule("cu_seqlens_q", "(B+1,)", _ANY, _INT, "first query of each packed sequence, or None if padded"),
        TensorRule("cu_seqlens_k", "(B+1,)", _ANY, _INT, "first key of each packed sequence, or None"),
        TensorRule("q_causal_offsets", "(B,)", _ANY, _INT, "token of each sequence's first query, or None for 0"),
        *_results(*_DENSE, _SCORES),
    ),
    "example": _EXAMPLE.format(name="dsa_dense_indexer_backward")
    + """\
scores, lse = np.zeros((1, 3, 4), np.float32), np.log(np.asarray([[1, 2, 3]], np.float32))
grads = dsa_dense_indexer_backward(q, w, k, np.ones((1, 3, 4), np.float32), np.exp(lse), scores, lse, loss)
np.testing.assert_allclose(grads["d_score"], 0, atol=1e-6)  # uniform target, uniform prediction
""",
    "source": SOURCE,
    "notes": (
        CAUSAL_NOTE,
        _ROUNDING,
        "N is the number of queries. Hidden keys take no part, whatever the scores hold there.",
        _IN_PLACE.format(buffer="`index_score`"),
        "Bit-equal from run to run.",
    ),
}
