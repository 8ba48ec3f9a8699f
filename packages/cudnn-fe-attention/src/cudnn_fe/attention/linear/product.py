"""The gated delta product: several updates of the state per token."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.linear.calls import run_backward, run_forward
from cudnn_fe.attention.linear.op import PRODUCT_BACKWARD, PRODUCT_FORWARD
from cudnn_fe.attention.operands import statistics_dtype
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["gated_delta_product_backward", "gated_delta_product_forward"]


def gated_delta_product_forward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    num_householder: int,
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
    plan_name: str | None = None,
    overwrite_initial_state: bool = False,
    state_indices: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Linear attention by several delta-rule updates of the state per token.

    Differentiable in q, k, v, g, beta, the initial state and the gate's parameters under torch autograd and JAX.
    With one update it is `gated_delta_net_forward`.

    Args:
        q: Packed queries (T, H, K); all arguments but these are those of `gated_delta_net_forward`.
        k: Keys of all updates (n T, HK, K), a token's one after the other.
        v: Values of all updates (n T, HV, V).
        g: Log decays (T, HO): a token's state decays before the first of its updates.
        beta: Write strengths of all updates (n T, HO).
        cu_seqlens: First token of each sequence.
        num_householder: n, the updates of a token.
        scale: Factor of the outputs.
        initial_state: States before the first tokens.
        output_final_state: Whether the states after the last tokens come too.
        use_qk_l2norm_in_kernel: Whether queries and keys are normalised.
        batch_invariant: Hint without effect on results.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        allow_neg_eigval: Whether it is doubled after that.
        safe_gate: Whether the log decay is ``-exp(a_log) softplus(g + dt_bias)``.
        gate_domain: ``"linear"`` if g holds decays themselves.
        a_log: (HO,), or None for 0.
        dt_bias: (HO,), or None for 0.
        checkpoint_every_n_tokens: m for the states before every m-th update of each sequence.
        plan_name: The backend to use.
        overwrite_initial_state: Whether final states go into ``initial_state``.
        state_indices: Places of the sequences' states in ``initial_state``.
        backend: ``None``, or the name of the one to use.

    Returns:
        As `gated_delta_net_forward`; checkpoints are float32, float64 for float64.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    return run_forward(
        PRODUCT_FORWARD,
        (q, k, v, g, beta, cu_seqlens, initial_state, a_log, dt_bias, state_indices),
        scale,
        backend or plan_name,
        num_householder=num_householder,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        batch_invariant=batch_invariant,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_domain=gate_domain,
        checkpoint_every_n_tokens=checkpoint_every_n_tokens,
        checkpoint_dtype=statistics_dtype(spec_of(q, "q")).name,
        overwrite_initial_state=overwrite_initial_state,
    )


def gated_delta_product_backward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    num_householder: int,
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
    """Gradients of `gated_delta_product_forward`, from its operands alone.

    Args:
        q: As in the forward, and so are all arguments that both have.
        k: Keys of all updates.
        v: Values of all updates.
        g: Log decays.
        beta: Write strengths of all updates.
        cu_seqlens: First token of each sequence.
        num_householder: Updates of a token.
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
        As `gated_delta_net_backward`.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    return run_backward(
        PRODUCT_BACKWARD,
        (q, k, v, g, beta, cu_seqlens, do, d_final_state, initial_state, a_log, dt_bias),
        scale,
        backend,
        num_householder=num_householder,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_domain=gate_domain,
    )
