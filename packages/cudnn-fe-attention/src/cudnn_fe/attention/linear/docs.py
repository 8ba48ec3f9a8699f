"""What the documentation of gated delta rules says: operands, notes, examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cudnn_fe.attention.operands import FLOATS
from cudnn_fe.core.op import TensorRule

__all__ = ["BACKWARD_DOCS", "FORWARD_DOCS", "summary_docs"]

_V2, _PRODUCT = "gated_delta_net_v2", "gated_delta_product"
_CHANNELWISE = ("kimi_delta_attention", _V2)
_BETA = ("how much of the error is written", "how much of each key's channel is erased")
_ROWS, _ANY = "channels contiguous", "any strides"


def _tokens(rule: str) -> tuple[tuple[TensorRule, ...], tuple[TensorRule, ...]]:
    gate, bias = ("(T, HO, K)", "(HO, K)") if rule in _CHANNELWISE else ("(T, HO)", "(HO,)")
    lead = "n T" if rule == _PRODUCT else "T"
    by_channel = rule == _V2
    return (
        TensorRule("q", "(T, H, K)", _ROWS, FLOATS, "packed queries; output head h reads head h // (HO / H)"),
        TensorRule("k", f"({lead}, HK, K)", _ROWS, FLOATS, "packed keys, HK of H and HV"),
        TensorRule("v", f"({lead}, HV, V)", _ROWS, FLOATS, "packed values; HO is the larger of H and HV"),
        TensorRule("g", gate, _ANY, FLOATS, "gates: logarithms of the decay, unless an option says otherwise"),
        TensorRule("beta", "(T, HO, K)" if by_channel else f"({lead}, HO)", _ANY, FLOATS, _BETA[by_channel]),
        *([TensorRule("w", "(T, HO, V)", _ANY, FLOATS, "how much of each value's channel is written")] * by_channel),
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
_FORMULAS = {
    _V2: r"\tilde S_t = S_{t-1}\, \mathrm{Diag}(e^{g_t}), \qquad "
    r"S_t = \tilde S_t + (w_t \odot v_t - \tilde S_t (\beta_t \odot k_t)) k_t^\top, \qquad o_t = \alpha\, S_t q_t",
    _PRODUCT: r"S_{t,0} = e^{g_t} S_{t-1,n}, \qquad S_{t,i} = S_{t,i-1} + \beta_{t,i} (v_{t,i} - S_{t,i-1} k_{t,i}) "
    r"k_{t,i}^\top, \qquad o_t = \alpha\, S_{t,n} q_t",
}
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
    _V2: "`safe_gate` as in `kimi_delta_attention_forward`. `use_beta_sigmoid_in_kernel` makes a sigmoid of beta. "
    "`beta_guard`, for normalised keys, keeps a step from expanding the state: with weights w = k^2 of a row, "
    "n = sum w, a = sum w beta, s = n sum w beta^2 - a^2 and c = max exp(g), where "
    "`s > (c^-2 - 1) (1 - c^2 (1 - a)^2)`, beta moves towards a / n by the factor that reaches 31/32 of that bound, "
    "and is a / n itself where rounding it to the dtype of q undoes that; its gradient passes the guard as if it were "
    "not there. There are neither pools of states nor states that are overwritten.",
    _PRODUCT: "Each token has n = `num_householder` rows of k, v and beta: the state decays once, before the first of "
    "its updates, and is read after the last. `safe_gate` as in `gated_delta_net_forward`. Checkpoints count updates, "
    "n a token, and are float32, float64 for float64.",
    "gated_delta_net": "`safe_gate` makes the log decay `-exp(a_log) softplus(g + dt_bias)`.",
    "kimi_delta_attention": "`safe_gate` makes the log decay `b sigmoid(exp(a_log) (g + dt_bias))` with the bound b, "
    "`gate_lower_bound`, of -5 unless given.",
}
_SOURCES = {
    _V2: "Gated delta networks with erase and write gates by channel, as named in cudnn-frontend 1.32.",
    _PRODUCT: "Siems et al., DeltaProduct, arXiv 2502.10297; conventions of cudnn-frontend 1.32.",
    "gated_delta_net": "Yang et al., Gated Delta Networks, arXiv 2412.06464; conventions of cudnn-frontend 1.32.",
    "kimi_delta_attention": "Kimi Team, Kimi Linear, arXiv 2510.26692; conventions of cudnn-frontend 1.32.",
}
_SUMMARIES = {
    _V2: "Linear attention by a delta rule that decays, erases and writes by gates of each channel.",
    _PRODUCT: "Linear attention by several delta-rule updates of the state per token.",
    "gated_delta_net": "Linear attention by a delta rule whose state decays by one factor per head.",
    "kimi_delta_attention": "Linear attention by a delta rule whose state decays by a factor per channel.",
}
_PLACES = TensorRule("state_indices", "(N,)", _ANY, ("int32",), "places of the sequences' states in a pool, or None")
_EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import {names}

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((5, 1, 4), dtype=np.float32) for _ in range(3))
g, {gates}  # nothing decays, errors are corrected in full
ends = np.asarray([0, 3, 5], np.int32)
"""
_GATES = {
    _V2: "beta, w = np.zeros((5, 1, 4), np.float32), *np.ones((2, 5, 1, 4), np.float32)",
    "kimi_delta_attention": "beta = np.zeros((5, 1, 4), np.float32), np.ones((5, 1), np.float32)",
}


def _shared(name: str, *, backward: bool) -> dict[str, Any]:
    channelwise = name in _CHANNELWISE
    tokens, optional = _tokens(name)
    gates = _GATES.get(name, "beta = np.zeros((5, 1), np.float32), np.ones((5, 1), np.float32)")
    example = _EXAMPLE.format(names=f"{name}_{{}}", gates=gates)
    arguments = "q, k, v, g, beta, w, ends" if name == _V2 else "q, k, v, g, beta, ends"
    arguments += ", 1" if name == _PRODUCT else ""
    docs: dict[str, Any] = {"source": _SOURCES[name], "notes": (_GATE[name], *_NOTES)}
    if backward:
        results = tuple(
            TensorRule(f"d{'_' if row in optional else ''}{row.name}", row.shape, "compact", FLOATS, "its gradient")
            for row in (*(row for row in tokens if row.name != "cu_seqlens"), *optional)
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
            + f"grads = {name}_backward({arguments}, np.ones((5, 1, 4), np.float32))\n"
            "assert grads['dg'].shape == g.shape and grads['d_initial_state'] is None\n",
        }
    return docs | {
        "summary": _SUMMARIES[name],
        "formula": _FORMULAS.get(name) or _formula(r"\mathrm{Diag}(e^{g_t})" if channelwise else "e^{g_t}"),
        "tensors": (
            *tokens,
            *optional,
            *([] if name == _V2 else [_PLACES]),
            TensorRule("o", "(T, HO, V)", "compact", FLOATS, "the outputs"),
            TensorRule("final_state", "(N, HO, V, K), or empty", "compact", FLOATS, "states after the last tokens"),
            TensorRule("checkpoints", "(T // n + N, HO, V, K)", "compact", FLOATS, "states before every n-th token"),
        ),
        "example": example.format("forward") + f"o, state = {name}_forward({arguments}, output_final_state=True)\n"
        "u = v[3] - 0  # the second sequence starts from an empty state\n"
        "np.testing.assert_allclose(o[3], u * (k[3] * q[3]).sum() / 2, rtol=1e-4, atol=1e-5)\n",
    }


FORWARD_DOCS: dict[str, dict[str, Any]] = {f"{name}_forward": _shared(name, backward=False) for name in _SUMMARIES}
BACKWARD_DOCS: dict[str, dict[str, Any]] = {f"{name}_backward": _shared(name, backward=True) for name in _SUMMARIES}


def summary_docs(name: str, *, backward: bool) -> dict[str, Any]:
    """What the documentation of a rule's summaries says."""
    tokens, optional = _tokens(name)
    left_out = ("v", "w") if backward else ("q",)
    rows = {row.name: row for row in tokens if row.name not in left_out}
    wide = ("float32", "float64")
    state = TensorRule("initial_state", "(N, HO, V, K)", _ANY, wide, "states before the spans, or None for zeros")
    matrix = TensorRule(
        "transition", "(N, HO, K, K), or empty", "compact", wide, "what the span multiplies a state by from the right"
    )
    first = TensorRule("final_state", "(N, HO, V, K)", "compact", wide, "states after the spans")
    if backward:
        do = TensorRule("do", "(T, HO, V)", _ROWS, FLOATS, "gradient of the outputs")
        state = TensorRule("d_final_state", "(N, HO, V, K)", _ANY, wide, "gradient of the final states, or None")
        matrix = replace(matrix, meaning="the same, transposed, which multiplies a gradient")
        first = TensorRule("d_initial_state", "(N, HO, V, K)", "compact", wide, "gradient of the first states")
        rows = {**{n: x for n, x in rows.items() if n != "cu_seqlens"}, "do": do, "cu_seqlens": rows["cu_seqlens"]}
    direction = "backward" if backward else "forward"
    gates = _GATES.get(name, "beta = np.zeros((5, 1), np.float32), np.ones((5, 1), np.float32)")
    example = _EXAMPLE.format(names=f"{name}_summary_{direction}", gates=gates)
    given = [n for n in rows if n != "cu_seqlens"]
    arguments = ", ".join("np.ones_like(v)" if n == "do" else n for n in given) + ", ends"
    arguments += ", 1" if name == _PRODUCT else ""
    call = f"{name}_summary_{direction}({arguments}, output_transition=True)"
    return {
        "summary": f"What a span of tokens of `{name}_forward` does to "
        + ("the gradient of its state." if backward else "its state: for sequences that are split over ranks."),
        "formula": r"dX_{\mathrm{initial}} = dX_{\mathrm{final}}\, M^\top + G"
        if backward
        else r"X_{\mathrm{final}} = X_{\mathrm{initial}}\, M + H",
        "tensors": (*rows.values(), state, *optional[1:], first, matrix),
        "example": example + f"first, transition = {call}\n"
        "assert first.shape == (2, 1, 4, 4) and transition.shape == (2, 1, 4, 4)\n",
        "source": _SOURCES[name],
        "notes": (
            f"Operands and options as in `{name}_forward`. States, their gradients and transitions are float32, or "
            "float64 for float64 operands, and are not differentiable.",
            "An empty span hands its state through; its transition is the identity.",
        ),
    }
