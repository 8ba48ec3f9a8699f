"""What the documentation of sparse attention says: operands, notes, examples."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.dsa.operands import INDICES, SOURCE
from cudnn_fe.attention.operands import FLOATS, STATISTICS
from cudnn_fe.core.op import TensorRule

__all__ = ["BACKWARD_DOCS", "FORWARD_DOCS"]

_ROWS = "channels contiguous"
_ANY = "any strides"
_Q = TensorRule("q", "(T, H, D)", _ROWS, FLOATS, "queries")
_KV = TensorRule("kv", "(Tkv, D)", _ROWS, FLOATS, "rows: keys, and in their first 512 channels values")
_IDS = TensorRule("topk_idxs", "(T, K)", _ANY, INDICES, "rows that each query sees; ids outside 0..Tkv-1 are no slots")
_SINK = TensorRule("attn_sink", "(H,)", _ANY, STATISTICS, "a score that takes weight and gives no value")
_LENGTHS = TensorRule("topk_length", "(T,)", _ANY, INDICES, "slots of each list that count, or None for all")
_LSE = TensorRule("lse", "(T, H)", "compact", STATISTICS, "natural log-sum-exp of the listed scores, without the sink")
_INPUTS = """\
import numpy as np
from cudnn_fe.attention import dsa_sparse_attention_backward, dsa_sparse_attention_forward

rng = np.random.default_rng(0)
q, kv = rng.standard_normal((2, 4, 16), dtype=np.float32), rng.standard_normal((6, 16), dtype=np.float32)
ids, sink = np.asarray([[0, 3, -1], [-1, -1, -1]], np.int32), np.zeros(4, np.float32)
result = dsa_sparse_attention_forward(q, kv, ids, attn_sink=sink)
"""

FORWARD_DOCS: dict[str, Any] = {
    "summary": "Softmax attention of every query over its own list of rows, which are keys and values at once.",
    "formula": r"O_{th} = \frac{\sum_j e^{z_{thj} - m} v_{i(t,j)}}{\sum_j e^{z_{thj} - m} + e^{\sigma_h - m}}, \qquad "
    r"\mathrm{LSE}_{th} = m + \ln \sum_j e^{z_{thj} - m}, \qquad z_{thj} = \alpha\, q_{th} \cdot k_{i(t,j)}",
    "tensors": (
        _Q,
        _KV,
        _IDS,
        _SINK,
        _LENGTHS,
        TensorRule("out", "(T, H, min(D, 512))", "compact", FLOATS, "the output"),
        TensorRule("max_logits", "(T, H)", "compact", STATISTICS, "the largest scaled score; minus infinity if none"),
        _LSE,
        TensorRule("lse_indexer", "(T, H)", "compact", STATISTICS, "the same over the first `indexer_topk` slots"),
    ),
    "example": _INPUTS
    + """\
assert not result["out"][1].any() and np.isposinf(result["lse"][1]).all()  # an empty list
z = q[0] @ kv[[0, 3]].T / 4
p = np.exp(z) / (np.exp(z).sum(1, keepdims=True) + 1)
np.testing.assert_allclose(result["out"][0], p @ kv[[0, 3]], rtol=1e-5, atol=1e-6)
""",
    "source": SOURCE,
    "notes": (
        "A slot counts if its id names a row and it lies within the list's length. A row that is listed twice counts "
        "twice. What no query lists is not read.",
        "A query without slots gives 0, a maximum of minus infinity and, unlike the other ops here, a log-sum-exp of "
        "plus infinity. A sink of minus infinity is none; one of plus infinity gives 0.",
        "Probabilities are rounded to the dtype of Q before they multiply values; their sum is taken before that.",
        "Only `out` is differentiable, with respect to q, kv and the sink.",
        "Accepted beyond the vendor: any number of heads, head sizes other than 512 and 576, any list length, float32 "
        "and float64, CPU, NumPy and JAX.",
    ),
}

BACKWARD_DOCS: dict[str, Any] = {
    "summary": "Gradients of sparse attention over listed rows, from its output and log-sum-exp.",
    "formula": r"P = e^{z - L}, \; L = \ln(e^{\mathrm{LSE}} + e^{\sigma}), \qquad "
    r"dS = \alpha P (dO \cdot v - \delta), \; \delta = O \cdot dO, \qquad "
    r"dQ = dS\, K, \; dKV_i \mathrel{+}= dS^\top Q + [P^\top dO], \; d\sigma_h = -\sum_t \delta\, e^{\sigma_h - L}",
    "tensors": (
        _Q,
        _KV,
        TensorRule("out", "(T, H, min(D, 512))", _ROWS, FLOATS, "the forward's output"),
        TensorRule("dout", "(T, H, min(D, 512))", _ROWS, FLOATS, "its gradient"),
        _LSE,
        _SINK,
        _IDS,
        _LENGTHS,
        TensorRule("dq", "(T, H, D)", "compact", FLOATS, "gradient of the queries"),
        TensorRule("dkv", "(Tkv, D)", "compact", FLOATS, "gradient of the rows; 0 where none is listed"),
        TensorRule("d_sink", "(H,)", "compact", STATISTICS, "gradient of the sinks"),
    ),
    "example": _INPUTS
    + """\
grads = dsa_sparse_attention_backward(q, kv, result["out"], np.ones_like(result["out"]), result["lse"], sink, ids)
assert not grads["dq"][1].any() and not grads["dkv"][[1, 2, 4, 5]].any()
""",
    "source": SOURCE,
    "notes": (
        "A log-sum-exp of plus infinity is an empty row: no gradients, and none for the sink. Where log-sum-exp and "
        "sink are the same infinity each takes half. A sink of plus infinity takes all.",
        "P and dS are rounded to the dtype of Q before they multiply; sums are float32 and cast once.",
        "Bit-equal from run to run, whether `deterministic` or not: rows are added in the order of the queries. Under "
        "JAX on a GPU that takes `--xla_gpu_deterministic_ops=true`.",
    ),
}
