"""GDN-2: a delta rule with gates of each channel for what decays, what is erased and what is written."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.linear.calls import run_backward, run_forward
from cudnn_fe.attention.linear.op import GDN2_BACKWARD, GDN2_FORWARD
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["gated_delta_net_v2_backward", "gated_delta_net_v2_forward"]


def gated_delta_net_v2_forward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    w: Any,
    cu_seqlens: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    batch_invariant: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    beta_guard: bool = False,
    safe_gate: bool = False,
    gate_lower_bound: float | None = None,
    a_log: Any = None,
    dt_bias: Any = None,
    checkpoint_every_n_tokens: int = 0,
    plan_name: str | None = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Linear attention by a delta rule that decays, erases and writes by gates of each channel.

    Differentiable in q, k, v, g, beta, w, the initial state and the gate's parameters under torch autograd and JAX.

    Args:
        q: Packed queries (T, H, K); all arguments but these are those of `gated_delta_net_forward`.
        k: Packed keys (T, HK, K).
        v: Packed values (T, HV, V).
        g: Log decays (T, HO, K) of any float type.
        beta: How much of each key's channel is erased (T, HO, K): float32 or the dtype of q.
        w: How much of each value's channel is written (T, HO, V), likewise.
        cu_seqlens: First token of each sequence.
        scale: Factor of the outputs.
        initial_state: States before the first tokens.
        output_final_state: Whether the states after the last tokens come too.
        use_qk_l2norm_in_kernel: Whether queries and keys are normalised.
        batch_invariant: Hint without effect on results.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        beta_guard: Whether strengths that would let the state grow are moved towards their mean; with normalised keys.
        safe_gate: Whether the log decay is ``gate_lower_bound * sigmoid(exp(a_log) (g + dt_bias))``.
        gate_lower_bound: Below 0; None is -5. Only with ``safe_gate``.
        a_log: (HO,), or None for 0.
        dt_bias: (HO, K), or None for 0.
        checkpoint_every_n_tokens: n for the states before every n-th token of each sequence.
        plan_name: The backend to use.
        backend: ``None``, or the name of the one to use.

    Returns:
        As `gated_delta_net_forward`.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    return run_forward(
        GDN2_FORWARD,
        (q, k, v, g, beta, w, cu_seqlens, initial_state, a_log, dt_bias),
        scale,
        backend or plan_name,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        batch_invariant=batch_invariant,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=False,
        beta_guard=beta_guard,
        safe_gate=safe_gate,
        gate_lower_bound=gate_lower_bound,
        gate_domain="log",
        checkpoint_every_n_tokens=checkpoint_every_n_tokens,
        checkpoint_dtype=None,
        overwrite_initial_state=False,
    )


def gated_delta_net_v2_backward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    w: Any,
    cu_seqlens: Any,
    do: Any,
    d_final_state: Any = None,
    initial_state: Any = None,
    a_log: Any = None,
    dt_bias: Any = None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    beta_guard: bool = False,
    safe_gate: bool = False,
    gate_lower_bound: float | None = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `gated_delta_net_v2_forward`, from its operands alone; they pass the guard as if it were not there.

    Args:
        q: As in the forward, and so are all arguments that both have.
        k: Packed keys.
        v: Packed values.
        g: Log decays.
        beta: What is erased.
        w: What is written.
        cu_seqlens: First token of each sequence.
        do: Gradient of the outputs (T, HO, V), of the dtype of q.
        d_final_state: Gradient of the final states (N, HO, V, K), of the states' dtype; None is zeros.
        initial_state: States before the first tokens.
        a_log: Log of the gate's amplitude.
        dt_bias: Bias of the gate.
        scale: Factor of the outputs.
        use_qk_l2norm_in_kernel: Whether queries and keys are normalised.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        beta_guard: Whether strengths that would let the state grow are moved towards their mean.
        safe_gate: Whether the gate is made from its parameters.
        gate_lower_bound: The safe gate's bound.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dq``, ``dk``, ``dv``, ``dg``, ``dbeta``, ``dw``, ``d_initial_state``, ``d_a_log``, ``d_dt_bias``: of their
        operands' shapes and dtypes, None for those that there are not.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    return run_backward(
        GDN2_BACKWARD,
        (q, k, v, g, beta, w, cu_seqlens, do, d_final_state, initial_state, a_log, dt_bias),
        scale,
        backend,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=False,
        beta_guard=beta_guard,
        safe_gate=safe_gate,
        gate_lower_bound=gate_lower_bound,
        gate_domain="log",
    )
