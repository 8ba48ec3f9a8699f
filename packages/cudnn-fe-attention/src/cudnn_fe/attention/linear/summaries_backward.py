"""What spans of tokens do to the gradients of their states, for every rule of linear attention."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.linear.calls import run_summary
from cudnn_fe.attention.linear.summary_op import GDN2_BACKWARD, GDN_BACKWARD, KDA_BACKWARD, PRODUCT_BACKWARD
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = [
    "gated_delta_net_summary_backward",
    "gated_delta_net_v2_summary_backward",
    "gated_delta_product_summary_backward",
    "kimi_delta_attention_summary_backward",
]


def gated_delta_net_summary_backward(
    q: Any,
    k: Any,
    g: Any,
    beta: Any,
    do: Any,
    cu_seqlens: Any,
    *,
    scale: float | None = None,
    d_final_state: Any = None,
    output_transition: bool = False,
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
    """What a span of tokens does to the gradient of its state: ``dX_initial = dX_final transition + d_initial_state``.

    Args:
        q: Packed queries, as in `gated_delta_net_forward`, and so are all arguments that both have.
        k: Packed keys.
        g: Gates.
        beta: Write strengths.
        do: Gradient of the outputs (T, HO, V), of the dtype of k.
        cu_seqlens: First token of each span.
        scale: Factor of the outputs.
        d_final_state: Gradient of the final states (N, HO, V, K), float32, or None for zeros.
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
        ``d_initial_state`` (N, HO, V, K) and ``transition`` (N, HO, K, K), empty unless asked for; float32, or
        float64 for float64.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    del batch_invariant
    return run_summary(
        GDN_BACKWARD,
        (q, k, g, beta, do, cu_seqlens, d_final_state, a_log, dt_bias),
        backend or plan_name,
        scale=scale,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_domain=gate_domain,
        output_transition=output_transition,
    )


def kimi_delta_attention_summary_backward(
    q: Any,
    k: Any,
    g: Any,
    beta: Any,
    do: Any,
    cu_seqlens: Any,
    *,
    scale: float | None = None,
    d_final_state: Any = None,
    output_transition: bool = False,
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
    """What a span of tokens does to the gradient of its state: ``dX_initial = dX_final transition + d_initial_state``.

    Args:
        q: Packed queries, as in `kimi_delta_attention_forward`, and so are all arguments that both have.
        k: Packed keys.
        g: Gates.
        beta: Write strengths.
        do: Gradient of the outputs (T, HO, V), of the dtype of k.
        cu_seqlens: First token of each span.
        scale: Factor of the outputs.
        d_final_state: Gradient of the final states (N, HO, V, K), float32, or None for zeros.
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
        ``d_initial_state`` (N, HO, V, K) and ``transition`` (N, HO, K, K), empty unless asked for; float32, or
        float64 for float64.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    del batch_invariant
    return run_summary(
        KDA_BACKWARD,
        (q, k, g, beta, do, cu_seqlens, d_final_state, a_log, dt_bias),
        backend or plan_name,
        scale=scale,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_lower_bound=gate_lower_bound,
        gate_domain=gate_domain,
        output_transition=output_transition,
    )


def gated_delta_net_v2_summary_backward(
    q: Any,
    k: Any,
    g: Any,
    beta: Any,
    do: Any,
    cu_seqlens: Any,
    *,
    scale: float | None = None,
    d_final_state: Any = None,
    output_transition: bool = False,
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
    """What a span of tokens does to the gradient of its state: ``dX_initial = dX_final transition + d_initial_state``.

    Args:
        q: Packed queries, as in `gated_delta_net_v2_forward`, and so are all arguments that both have.
        k: Packed keys.
        g: Gates.
        beta: What is erased.
        do: Gradient of the outputs (T, HO, V), of the dtype of k.
        cu_seqlens: First token of each span.
        scale: Factor of the outputs.
        d_final_state: Gradient of the final states (N, HO, V, K), float32, or None for zeros.
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
        ``d_initial_state`` (N, HO, V, K) and ``transition`` (N, HO, K, K), empty unless asked for; float32, or
        float64 for float64.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    del batch_invariant
    return run_summary(
        GDN2_BACKWARD,
        (q, k, g, beta, do, cu_seqlens, d_final_state, a_log, dt_bias),
        backend or plan_name,
        scale=scale,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        beta_guard=beta_guard,
        safe_gate=safe_gate,
        gate_lower_bound=gate_lower_bound,
        allow_neg_eigval=False,
        gate_domain="log",
        output_transition=output_transition,
    )


def gated_delta_product_summary_backward(
    q: Any,
    k: Any,
    g: Any,
    beta: Any,
    do: Any,
    cu_seqlens: Any,
    num_householder: int,
    *,
    scale: float | None = None,
    d_final_state: Any = None,
    output_transition: bool = False,
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
    """What a span of tokens does to the gradient of its state: ``dX_initial = dX_final transition + d_initial_state``.

    Args:
        q: Packed queries, as in `gated_delta_product_forward`, and so are all arguments that both have.
        k: Packed keys.
        g: Gates.
        beta: Write strengths.
        do: Gradient of the outputs (T, HO, V), of the dtype of k.
        cu_seqlens: First token of each span.
        num_householder: Updates of a token.
        scale: Factor of the outputs.
        d_final_state: Gradient of the final states (N, HO, V, K), float32, or None for zeros.
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
        ``d_initial_state`` (N, HO, V, K) and ``transition`` (N, HO, K, K), empty unless asked for; float32, or
        float64 for float64.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    del batch_invariant
    return run_summary(
        PRODUCT_BACKWARD,
        (q, k, g, beta, do, cu_seqlens, d_final_state, a_log, dt_bias),
        backend or plan_name,
        scale=scale,
        num_householder=num_householder,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_domain=gate_domain,
        output_transition=output_transition,
    )
