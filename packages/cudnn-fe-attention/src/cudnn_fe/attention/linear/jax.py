"""Kimi delta attention for JAX under the names of cudnn-frontend 1.32."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from cudnn_fe.attention.linear import kimi_delta_attention_backward, kimi_delta_attention_forward
from cudnn_fe.core.errors import OptionError

__all__ = [
    "KdaGradients",
    "KdaResidual",
    "kimi_delta_attention",
    "kimi_delta_attention_backward_jax",
    "kimi_delta_attention_forward_jax",
]


class KdaGradients(NamedTuple):
    """Gradients of the operands; None for those that there are not."""

    dq: Any
    dk: Any
    dv: Any
    dg: Any
    dbeta: Any
    d_initial_state: Any
    d_a_log: Any
    d_dt_bias: Any


@dataclass(frozen=True)
class KdaResidual:
    """What the backward needs: a pytree whose options are static.

    Attributes:
        operands: q, k, v, g, beta, cu_seqlens, initial_state, a_log, dt_bias.
        options: The forward's options, as pairs.
        has_final_state: Whether the forward gave final states.
    """

    operands: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]
    has_final_state: bool

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """The arrays, and the rest."""
        return self.operands, (self.options, self.has_final_state)

    @classmethod
    def tree_unflatten(cls, rest: Any, operands: Any) -> KdaResidual:
        """The inverse of `tree_flatten`."""
        return cls(tuple(operands), *rest)


@cache
def _register_residual() -> None:
    """Make JAX know the residual; not at import, so that the names resolve where JAX is not installed."""
    import jax

    jax.tree_util.register_pytree_node_class(KdaResidual)


def _arrays(**given: Any) -> dict[str, Any]:
    from cudnn_fe.core.jax import as_jax

    return {name: None if x is None else as_jax(name, x) for name, x in given.items()}


def kimi_delta_attention(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    *,
    initial_state: Any = None,
    a_log: Any = None,
    dt_bias: Any = None,
    output_final_state: bool = False,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_lower_bound: float | None = None,
    batch_invariant: bool = False,
    checkpoint_every_n_tokens: int = 0,
    gate_domain: str = "log",
) -> tuple[Any, ...]:
    """`kimi_delta_attention_forward` for JAX: usable under ``jit`` and ``grad``.

    Args:
        q: Packed queries; all arguments are those of `kimi_delta_attention_forward`.
        k: Packed keys.
        v: Packed values.
        g: Log decays.
        beta: Write strengths.
        cu_seqlens: First token of each sequence.
        initial_state: States before the first tokens.
        a_log: Log of the safe gate's amplitude.
        dt_bias: Bias of the safe gate.
        output_final_state: Whether the states after the last tokens come too; static, as all that is not an array.
        scale: Factor of the outputs.
        use_qk_l2norm_in_kernel: Whether queries and keys are normalised.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        allow_neg_eigval: Whether it is doubled after that.
        safe_gate: Whether the gate is made from its parameters.
        gate_lower_bound: The safe gate's bound.
        batch_invariant: Hint without effect on results.
        checkpoint_every_n_tokens: n for the states before every n-th token.
        gate_domain: ``"log"`` or ``"linear"``.

    Returns:
        The outputs, and the final states or None; with ``checkpoint_every_n_tokens`` the states on the way.
    """
    arrays = _arrays(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        cu_seqlens=cu_seqlens,
        initial_state=initial_state,
        a_log=a_log,
        dt_bias=dt_bias,
    )
    o, final, *kept = kimi_delta_attention_forward(
        **arrays,
        scale=scale,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        batch_invariant=batch_invariant,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        gate_lower_bound=gate_lower_bound,
        gate_domain=gate_domain,
        checkpoint_every_n_tokens=checkpoint_every_n_tokens,
    )
    return (o, final if output_final_state else None, *kept)


def kimi_delta_attention_forward_jax(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    *,
    initial_state: Any = None,
    a_log: Any = None,
    dt_bias: Any = None,
    output_final_state: bool = False,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_lower_bound: float | None = None,
    batch_invariant: bool = False,
    gate_domain: str = "log",
) -> tuple[Any, Any, KdaResidual]:
    """`kimi_delta_attention` with what `kimi_delta_attention_backward_jax` takes.

    Args:
        q: Packed queries; all arguments are those of `kimi_delta_attention`.
        k: Packed keys.
        v: Packed values.
        g: Log decays.
        beta: Write strengths.
        cu_seqlens: First token of each sequence.
        initial_state: States before the first tokens.
        a_log: Log of the safe gate's amplitude.
        dt_bias: Bias of the safe gate.
        output_final_state: Whether the states after the last tokens come too.
        scale: Factor of the outputs.
        use_qk_l2norm_in_kernel: Whether queries and keys are normalised.
        use_beta_sigmoid_in_kernel: Whether beta passes through a sigmoid.
        allow_neg_eigval: Whether it is doubled after that.
        safe_gate: Whether the gate is made from its parameters.
        gate_lower_bound: The safe gate's bound.
        batch_invariant: Hint without effect on results.
        gate_domain: ``"log"`` or ``"linear"``.

    Returns:
        The outputs, the final states or None, and the residual.
    """
    options: dict[str, Any] = {
        "scale": scale,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
        "safe_gate": safe_gate,
        "gate_lower_bound": gate_lower_bound,
        "gate_domain": gate_domain,
    }
    states = {"initial_state": initial_state, "a_log": a_log, "dt_bias": dt_bias}
    o, final, *_ = kimi_delta_attention(
        q,
        k,
        v,
        g,
        beta,
        cu_seqlens,
        **states,
        output_final_state=output_final_state,
        batch_invariant=batch_invariant,
        **options,
    )
    arrays = _arrays(q=q, k=k, v=v, g=g, beta=beta, cu_seqlens=cu_seqlens, **states)
    _register_residual()
    return o, final, KdaResidual(tuple(arrays.values()), tuple(options.items()), output_final_state)


def kimi_delta_attention_backward_jax(
    residual: KdaResidual, doutput: Any, *, d_final_state: Any = None
) -> KdaGradients:
    """Gradients of `kimi_delta_attention_forward_jax`.

    Args:
        residual: What the forward returned last.
        doutput: Gradient of the outputs.
        d_final_state: Gradient of the final states, if the forward gave some; None is zeros.

    Returns:
        The gradients of the operands.

    Raises:
        OptionError: A gradient of final states that the forward did not give.
    """
    if d_final_state is not None and not residual.has_final_state:
        raise OptionError(
            "d_final_state",
            got="an array",
            wanted="None: the forward gave no final states",
            remedy="pass output_final_state=True to the forward",
        )
    names = ("q", "k", "v", "g", "beta", "cu_seqlens", "initial_state", "a_log", "dt_bias")
    given = _arrays(doutput=doutput, d_final_state=d_final_state)
    grads = kimi_delta_attention_backward(
        **dict(zip(names, residual.operands, strict=True)),
        do=given["doutput"],
        d_final_state=given["d_final_state"],
        **dict(residual.options),
    )
    return KdaGradients(*grads)
