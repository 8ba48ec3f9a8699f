"""What spans of tokens do to their states, for every rule of linear attention."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.linear.calls import run_summary
from cudnn_fe.attention.linear.summary_op import GDN2_FORWARD, GDN_FORWARD, KDA_FORWARD, PRODUCT_FORWARD
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = [
    "gated_delta_net_summary_forward",
    "gated_delta_net_v2_summary_forward",
    "gated_delta_product_summary_forward",
    "kimi_delta_attention_summary_forward",
]


def gated_delta_net_summary_forward(
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    *,
    initial_state: Any = None,
    output_transition: bool = True,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_domain: str = "log",
    a_log: Any = None,
    dt_bias: Any = None,
    batch_invariant: bool = False,
    plan_name: str | None = None,
    backend: str | None = None,
) -> TupleDict:
    """What a span of tokens does to its state: ``X_final = X_initial transition + final_state``, the latter from zeros.

    Args:
        k: Packed keys, as in `gated_delta_net_forward`, and so are all arguments that both have.
        v: Packed values.
        g: Gates.
        beta: Write strengths.
        cu_seqlens: First token of each span.
        initial_state: States before the spans (N, HO, V, K), float32, or None for zeros.
        output_transition: Whether the transitions come too.
        use_qk_l2norm_in_kernel: Whether keys are normalised, and queries.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        allow_neg_eigval: Whether it is doubled after that.
        safe_gate: Whether the gate is made from its parameters.
        gate_domain: ``"log"`` or ``"linear"``.
        a_log: Log of the safe gate's amplitude, or None.
        dt_bias: Bias of the safe gate, or None.
        batch_invariant: Hint without effect on results.
        plan_name: The backend to use.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``final_state`` (N, HO, V, K) and ``transition`` (N, HO, K, K), empty unless asked for; float32, or
        float64 for float64.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    del batch_invariant
    return run_summary(
        GDN_FORWARD,
        (k, v, g, beta, cu_seqlens, initial_state, a_log, dt_bias),
        backend or plan_name,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_domain=gate_domain,
        output_transition=output_transition,
    )


def kimi_delta_attention_summary_forward(
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    *,
    initial_state: Any = None,
    output_transition: bool = True,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_lower_bound: float | None = None,
    gate_domain: str = "log",
    a_log: Any = None,
    dt_bias: Any = None,
    batch_invariant: bool = False,
    plan_name: str | None = None,
    backend: str | None = None,
) -> TupleDict:
    """What a span of tokens does to its state: ``X_final = X_initial transition + final_state``, the latter from zeros.

    Args:
        k: Packed keys, as in `kimi_delta_attention_forward`, and so are all arguments that both have.
        v: Packed values.
        g: Gates.
        beta: Write strengths.
        cu_seqlens: First token of each span.
        initial_state: States before the spans (N, HO, V, K), float32, or None for zeros.
        output_transition: Whether the transitions come too.
        use_qk_l2norm_in_kernel: Whether keys are normalised, and queries.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        allow_neg_eigval: Whether it is doubled after that.
        safe_gate: Whether the gate is made from its parameters.
        gate_lower_bound: The safe gate's bound; None is -5.
        gate_domain: ``"log"`` or ``"linear"``.
        a_log: Log of the safe gate's amplitude, or None.
        dt_bias: Bias of the safe gate, or None.
        batch_invariant: Hint without effect on results.
        plan_name: The backend to use.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``final_state`` (N, HO, V, K) and ``transition`` (N, HO, K, K), empty unless asked for; float32, or
        float64 for float64.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    del batch_invariant
    return run_summary(
        KDA_FORWARD,
        (k, v, g, beta, cu_seqlens, initial_state, a_log, dt_bias),
        backend or plan_name,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_lower_bound=gate_lower_bound,
        gate_domain=gate_domain,
        output_transition=output_transition,
    )


def gated_delta_net_v2_summary_forward(
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    w: Any,
    cu_seqlens: Any,
    *,
    initial_state: Any = None,
    output_transition: bool = True,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    beta_guard: bool = False,
    safe_gate: bool = False,
    gate_lower_bound: float | None = None,
    a_log: Any = None,
    dt_bias: Any = None,
    batch_invariant: bool = False,
    plan_name: str | None = None,
    backend: str | None = None,
) -> TupleDict:
    """What a span of tokens does to its state: ``X_final = X_initial transition + final_state``, the latter from zeros.

    Args:
        k: Packed keys, as in `gated_delta_net_v2_forward`, and so are all arguments that both have.
        v: Packed values.
        g: Gates.
        beta: What is erased.
        w: What is written.
        cu_seqlens: First token of each span.
        initial_state: States before the spans (N, HO, V, K), float32, or None for zeros.
        output_transition: Whether the transitions come too.
        use_qk_l2norm_in_kernel: Whether keys are normalised, and queries.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        beta_guard: Whether strengths that would let the state grow are moved towards their mean.
        safe_gate: Whether the gate is made from its parameters.
        gate_lower_bound: The safe gate's bound; None is -5.
        a_log: Log of the safe gate's amplitude, or None.
        dt_bias: Bias of the safe gate, or None.
        batch_invariant: Hint without effect on results.
        plan_name: The backend to use.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``final_state`` (N, HO, V, K) and ``transition`` (N, HO, K, K), empty unless asked for; float32, or
        float64 for float64.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    del batch_invariant
    return run_summary(
        GDN2_FORWARD,
        (k, v, g, beta, w, cu_seqlens, initial_state, a_log, dt_bias),
        backend or plan_name,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        beta_guard=beta_guard,
        safe_gate=safe_gate,
        gate_lower_bound=gate_lower_bound,
        allow_neg_eigval=False,
        gate_domain="log",
        output_transition=output_transition,
    )


def gated_delta_product_summary_forward(
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    num_householder: int,
    *,
    initial_state: Any = None,
    output_transition: bool = True,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_domain: str = "log",
    a_log: Any = None,
    dt_bias: Any = None,
    batch_invariant: bool = False,
    plan_name: str | None = None,
    backend: str | None = None,
) -> TupleDict:
    """What a span of tokens does to its state: ``X_final = X_initial transition + final_state``, the latter from zeros.

    Args:
        k: Packed keys, as in `gated_delta_product_forward`, and so are all arguments that both have.
        v: Packed values.
        g: Gates.
        beta: Write strengths.
        cu_seqlens: First token of each span.
        num_householder: Updates of a token.
        initial_state: States before the spans (N, HO, V, K), float32, or None for zeros.
        output_transition: Whether the transitions come too.
        use_qk_l2norm_in_kernel: Whether keys are normalised, and queries.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        allow_neg_eigval: Whether it is doubled after that.
        safe_gate: Whether the gate is made from its parameters.
        gate_domain: ``"log"`` or ``"linear"``.
        a_log: Log of the safe gate's amplitude, or None.
        dt_bias: Bias of the safe gate, or None.
        batch_invariant: Hint without effect on results.
        plan_name: The backend to use.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``final_state`` (N, HO, V, K) and ``transition`` (N, HO, K, K), empty unless asked for; float32, or
        float64 for float64.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    del batch_invariant
    return run_summary(
        PRODUCT_FORWARD,
        (k, v, g, beta, cu_seqlens, initial_state, a_log, dt_bias),
        backend or plan_name,
        num_householder=num_householder,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_domain=gate_domain,
        output_transition=output_transition,
    )
