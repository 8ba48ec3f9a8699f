"""What the documentation of gated delta rules says: operands, notes, examples."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.operands import FLOATS
from cudnn_fe.core.op import TensorRule

__all__ = ["BACKWARD_DOCS", "FORWARD_DOCS"]

_ROWS, _ANY = "channels contiguous", "any strides"


def _tokens(gate: str, bias: str) -> tuple[tuple[TensorRule, ...], tuple[TensorRule, ...]]:
    return (
        TensorRule("q", "(T, H, K)", _ROWS, FLOATS, "packed queries; output head h reads head h // (HO / H)"),
        TensorRule("k", "(T, HK, K)", _ROWS, FLOATS, "packed keys, HK of H and HV"),
        TensorRule("v", "(T, HV, V)", _ROWS, FLOATS, "packed values; HO is the larger of H and HV"),
        TensorRule("g", gate, _ANY, FLOATS, "gates: logarithms of the decay, unless an option says otherwise"),
        TensorRule("beta", "(T, HO)", _ANY, FLOATS, "how much of the error is written"),
        TensorRule("cu_seqlens", "(N+1,)", _ANY, ("int32", "int64"), "first token of each sequence"),
    ), (
        TensorRule("initial_state", "(N, HO, V, K)", _ANY, FLOATS, "states before the first tokens, or None for zeros"),
        TensorRule("a_log", "(HO,)", _ANY, FLOATS, "log of the safe gate's amplitude, or None for 0"),
        TensorRule("dt_bias", bias, _ANY, FLOATS, "bias of the safe gate, or None for 0"),
    )


def _formula(decay: str) -> str:
    return (
        rf"\tilde S_t = S_{{t-1}} {decay}, \qquad u_t = v_t - \tilde S_t k_t, \qquad "
        r"S_t = \tilde S_t + \beta_t\, u_t k_t^\top, \qquad o_t = \alpha\, S_t q_t"
    )


_GRADIENT = (
    r"D \leftarrow D + \alpha\, do_t q_t^\top, \quad dv_t = \beta_t D k_t, \quad "
    r"dk_t = \beta_t D^\top u_t - \tilde S_t^\top dv_t, \quad d\beta_t = u_t^\top D k_t, \quad "
    r"dq_t = \alpha\, S_t^\top do_t, \quad D \leftarrow (D - dv_t k_t^\top) \,\mathrm{decay}_t"
)
_NOTES = (
    "The decay comes before the correction. States, gates and sums are float32, float64 for float64 operands; a state "
    "has the value's channels before the key's.",
    "Before the recurrence: `use_qk_l2norm_in_kernel` makes `x / sqrt(sum x^2 + 1e-6)` of queries and keys, rounded to "
    "their dtype; `use_beta_sigmoid_in_kernel` a sigmoid of beta, doubled with `allow_neg_eigval`; "
    "`gate_domain='linear'` takes decays `g + 1e-10`.",
    "An empty sequence hands its initial state through. Tokens of no sequence give 0 and are not read.",
    "Sequences do not influence one another: `batch_invariant` holds always. Bit-equal from run to run.",
    "Accepted beyond the vendor: any K and V, float32 and float64, any strides with contiguous channels, checkpoints "
    "every n tokens for any n, CPU, NumPy and JAX.",
)
_GATE = {
    "gated_delta_net": "`safe_gate` makes the log decay `-exp(a_log) softplus(g + dt_bias)`.",
    "kimi_delta_attention": "`safe_gate` makes the log decay `b sigmoid(exp(a_log) (g + dt_bias))` with the bound b, "
    "`gate_lower_bound`, of -5 unless given.",
}
_SOURCES = {
    "gated_delta_net": "Yang et al., Gated Delta Networks, arXiv 2412.06464; conventions of cudnn-frontend 1.32.",
    "kimi_delta_attention": "Kimi Team, Kimi Linear, arXiv 2510.26692; conventions of cudnn-frontend 1.32.",
}
_SUMMARIES = {
    "gated_delta_net": "Linear attention by a delta rule whose state decays by one factor per head.",
    "kimi_delta_attention": "Linear attention by a delta rule whose state decays by a factor per channel.",
}
_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import {names}

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((5, 1, 4), dtype=np.float32) for _ in range(3))
g, beta = np.zeros({shape}, np.float32), np.ones((5, 1), np.float32)  # nothing decays, errors are corrected in full
ends = np.asarray([0, 3, 5], np.int32)
"""


def _shared(name: str, *, backward: bool) -> dict[str, Any]:
    channelwise = name == "kimi_delta_attention"
    gate, bias = ("(T, HO, K)", "(HO, K)") if channelwise else ("(T, HO)", "(HO,)")
    tokens, optional = _tokens(gate, bias)
    example = _EXAMPLE.format(names=f"{name}_{{}}", shape="(5, 1, 4)" if channelwise else "(5, 1)")
    docs: dict[str, Any] = {"source": _SOURCES[name], "notes": (_GATE[name], *_NOTES)}
    if backward:
        results = tuple(
            TensorRule(f"d{'_' if row in optional else ''}{row.name}", row.shape, "compact", FLOATS, "its gradient")
            for row in (*tokens[:5], *optional)
        )
        more = (
            TensorRule("do", "(T, HO, V)", _ROWS, FLOATS, "gradient of the outputs"),
            TensorRule("d_final_state", "(N, HO, V, K)", _ANY, FLOATS, "gradient of the final states, or None"),
        )
        return docs | {
            "summary": f"Gradients of `{name}_forward`.",
            "formula": _GRADIENT,
            "tensors": (*tokens, *more, *optional, *results),
            "example": example.format("backward")
            + f"grads = {name}_backward(q, k, v, g, beta, ends, np.ones((5, 1, 4), np.float32))\n"
            "assert grads['dg'].shape == g.shape and grads['d_initial_state'] is None\n",
        }
    return docs | {
        "summary": _SUMMARIES[name],
        "formula": _formula(r"\mathrm{Diag}(e^{g_t})" if channelwise else "e^{g_t}"),
        "tensors": (
            *tokens,
            *optional,
            TensorRule("state_indices", "(N,)", _ANY, ("int32",), "places of the sequences' states in a pool, or None"),
            TensorRule("o", "(T, HO, V)", "compact", FLOATS, "the outputs"),
            TensorRule("final_state", "(N, HO, V, K), or empty", "compact", FLOATS, "states after the last tokens"),
            TensorRule("checkpoints", "(T // n + N, HO, V, K)", "compact", FLOATS, "states before every n-th token"),
        ),
        "example": example.format("forward")
        + f"o, state = {name}_forward(q, k, v, g, beta, ends, output_final_state=True)\n"
        "u = v[3] - 0  # the second sequence starts from an empty state\n"
        "np.testing.assert_allclose(o[3], u * (k[3] * q[3]).sum() / 2, rtol=1e-4, atol=1e-5)\n",
    }


FORWARD_DOCS: dict[str, dict[str, Any]] = {f"{name}_forward": _shared(name, backward=False) for name in _SUMMARIES}
BACKWARD_DOCS: dict[str, dict[str, Any]] = {f"{name}_backward": _shared(name, backward=True) for name in _SUMMARIES}
