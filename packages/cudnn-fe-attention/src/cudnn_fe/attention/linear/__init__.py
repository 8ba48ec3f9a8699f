"""Linear attention by gated delta rules: GDN, with a decay per head, and KDA, with one per channel."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.linear.calls import run_backward, run_forward
from cudnn_fe.attention.linear.op import GDN_BACKWARD, GDN_FORWARD, KDA_BACKWARD, KDA_FORWARD
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = [
    "gated_delta_net_backward",
    "gated_delta_net_forward",
    "kimi_delta_attention_backward",
    "kimi_delta_attention_forward",
]


def gated_delta_net_forward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    batch_invariant: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_domain: str = "log",
    a_log: Any = None,
    dt_bias: Any = None,
    checkpoint_every_n_tokens: int = 0,
    checkpoint_dtype: Any = None,
    plan_name: str | None = None,
    overwrite_initial_state: bool = False,
    state_indices: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Linear attention by a delta rule whose state decays by one factor per head.

    Differentiable in q, k, v, g, beta, the initial state and the gate's parameters under torch autograd and JAX.

    Args:
        q: Packed queries (T, H, K): float16, bfloat16, float32 or float64.
        k: Packed keys (T, HK, K), HK of H and HV, of the same dtype.
        v: Packed values (T, HV, V) of the same dtype; HO is the larger of H and HV.
        g: Log decays (T, HO) of any float type.
        beta: Write strengths (T, HO), float32 or the dtype of q.
        cu_seqlens: int32 or int64 (N+1,): first token of each sequence.
        scale: Factor of the outputs; None is ``K ** -0.5``.
        initial_state: States (N, HO, V, K) before the first tokens; None is zeros.
        output_final_state: Whether the states after the last tokens come too.
        use_qk_l2norm_in_kernel: Whether queries and keys are normalised.
        batch_invariant: Whether a sequence's result must not depend on the others; it does not in either case.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        allow_neg_eigval: Whether it is doubled after that.
        safe_gate: Whether the log decay is ``-exp(a_log) softplus(g + dt_bias)``.
        gate_domain: ``"linear"`` if g holds decays themselves.
        a_log: (HO,), or None for 0; only with ``safe_gate``.
        dt_bias: (HO,), or None for 0; only with ``safe_gate``.
        checkpoint_every_n_tokens: n for the states before every n-th token of each sequence; 0 for none.
        checkpoint_dtype: Their dtype: that of q, which None is, or float32.
        plan_name: The backend to use, under cudnn-frontend 1.32's name for the choice.
        overwrite_initial_state: Whether final states go into ``initial_state``, which is then returned.
        state_indices: int32 (N,): places of the sequences' states in ``initial_state``, a pool of any size. With
            final states asked for they are written back there, and the pool is returned.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``o`` (T, HO, V), ``final_state`` (N, HO, V, K), empty unless asked for, and with
        ``checkpoint_every_n_tokens`` ``checkpoints``.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    operands = (q, k, v, g, beta, cu_seqlens, initial_state, a_log, dt_bias, state_indices)
    return run_forward(
        GDN_FORWARD,
        operands,
        scale,
        backend or plan_name,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        batch_invariant=batch_invariant,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_domain=gate_domain,
        checkpoint_every_n_tokens=checkpoint_every_n_tokens,
        checkpoint_dtype=checkpoint_dtype,
        overwrite_initial_state=overwrite_initial_state,
    )


def kimi_delta_attention_forward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    batch_invariant: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_lower_bound: float | None = None,
    gate_domain: str = "log",
    a_log: Any = None,
    dt_bias: Any = None,
    checkpoint_every_n_tokens: int = 0,
    checkpoint_dtype: Any = None,
    plan_name: str | None = None,
    overwrite_initial_state: bool = False,
    state_indices: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Linear attention by a delta rule whose state decays by a factor per channel.

    Differentiable in q, k, v, g, beta, the initial state and the gate's parameters under torch autograd and JAX.

    Args:
        q: Packed queries (T, H, K); all arguments but these are those of `gated_delta_net_forward`.
        k: Packed keys (T, HK, K).
        v: Packed values (T, HV, V).
        g: Log decays (T, HO, K) of any float type.
        beta: Write strengths (T, HO).
        cu_seqlens: First token of each sequence.
        scale: Factor of the outputs.
        initial_state: States before the first tokens.
        output_final_state: Whether the states after the last tokens come too.
        use_qk_l2norm_in_kernel: Whether queries and keys are normalised.
        batch_invariant: Hint without effect on results.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        allow_neg_eigval: Whether it is doubled after that.
        safe_gate: Whether the log decay is ``gate_lower_bound * sigmoid(exp(a_log) (g + dt_bias))``.
        gate_lower_bound: Below 0; None is -5. Only with ``safe_gate``.
        gate_domain: ``"linear"`` if g holds decays themselves.
        a_log: (HO,), or None for 0.
        dt_bias: (HO, K), or None for 0.
        checkpoint_every_n_tokens: n for the states before every n-th token of each sequence.
        checkpoint_dtype: Their dtype.
        plan_name: The backend to use.
        overwrite_initial_state: Whether final states go into ``initial_state``.
        state_indices: Places of the sequences' states in ``initial_state``.
        backend: ``None``, or the name of the one to use.

    Returns:
        As `gated_delta_net_forward`.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    operands = (q, k, v, g, beta, cu_seqlens, initial_state, a_log, dt_bias, state_indices)
    return run_forward(
        KDA_FORWARD,
        operands,
        scale,
        backend or plan_name,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        batch_invariant=batch_invariant,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_lower_bound=gate_lower_bound,
        gate_domain=gate_domain,
        checkpoint_every_n_tokens=checkpoint_every_n_tokens,
        checkpoint_dtype=checkpoint_dtype,
        overwrite_initial_state=overwrite_initial_state,
    )


def gated_delta_net_backward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    do: Any,
    d_final_state: Any = None,
    initial_state: Any = None,
    a_log: Any = None,
    dt_bias: Any = None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_domain: str = "log",
    *,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `gated_delta_net_forward`, from its operands alone.

    Args:
        q: As in the forward, and so are all arguments that both have.
        k: Packed keys.
        v: Packed values.
        g: Log decays.
        beta: Write strengths.
        cu_seqlens: First token of each sequence.
        do: Gradient of the outputs (T, HO, V), of the dtype of q.
        d_final_state: Gradient of the final states (N, HO, V, K), of the states' dtype; None is zeros.
        initial_state: States before the first tokens.
        a_log: Log of the gate's amplitude.
        dt_bias: Bias of the gate.
        scale: Factor of the outputs.
        use_qk_l2norm_in_kernel: Whether queries and keys are normalised.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        allow_neg_eigval: Whether it is doubled after that.
        safe_gate: Whether the gate is made from its parameters.
        gate_domain: ``"log"`` or ``"linear"``.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dq``, ``dk``, ``dv``, ``dg``, ``dbeta``, ``d_initial_state``, ``d_a_log``, ``d_dt_bias``: of their operands'
        shapes and dtypes, None for those that there are not.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    return run_backward(
        GDN_BACKWARD,
        (q, k, v, g, beta, cu_seqlens, do, d_final_state, initial_state, a_log, dt_bias),
        scale,
        backend,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_domain=gate_domain,
    )


def kimi_delta_attention_backward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    do: Any,
    d_final_state: Any = None,
    initial_state: Any = None,
    a_log: Any = None,
    dt_bias: Any = None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_lower_bound: float | None = None,
    gate_domain: str = "log",
    *,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `kimi_delta_attention_forward`, from its operands alone.

    Args:
        q: As in the forward, and so are all arguments that both have.
        k: Packed keys.
        v: Packed values.
        g: Log decays.
        beta: Write strengths.
        cu_seqlens: First token of each sequence.
        do: Gradient of the outputs (T, HO, V), of the dtype of q.
        d_final_state: Gradient of the final states (N, HO, V, K), of the states' dtype; None is zeros.
        initial_state: States before the first tokens.
        a_log: Log of the gate's amplitude.
        dt_bias: Bias of the gate.
        scale: Factor of the outputs.
        use_qk_l2norm_in_kernel: Whether queries and keys are normalised.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        allow_neg_eigval: Whether it is doubled after that.
        safe_gate: Whether the gate is made from its parameters.
        gate_lower_bound: The safe gate's bound.
        gate_domain: ``"log"`` or ``"linear"``.
        backend: ``None``, or the name of the one to use.

    Returns:
        As `gated_delta_net_backward`.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    return run_backward(
        KDA_BACKWARD,
        (q, k, v, g, beta, cu_seqlens, do, d_final_state, initial_state, a_log, dt_bias),
        scale,
        backend,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_lower_bound=gate_lower_bound,
        gate_domain=gate_domain,
    )
