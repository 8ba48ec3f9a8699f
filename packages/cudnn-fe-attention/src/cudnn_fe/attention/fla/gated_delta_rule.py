"""The gated delta rule of flash-linear-attention, served by `gated_delta_net_forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnn_fe.attention.fla.calls import Call, Path, declined, final_states, packed_operands, shim
from cudnn_fe.attention.linear import gated_delta_net_forward
from cudnn_fe.attention.linear.op import GDN_FORWARD

__all__ = ["last_path", "make_chunk_gated_delta_rule"]

_path = Path()


def last_path() -> str | None:
    """How the latest call went: ``"native"`` or ``"fallback:<reason>"``; None before any."""
    return _path.last()


def make_chunk_gated_delta_rule(real_fn: Callable[..., Any]) -> Callable[..., Any]:
    """``chunk_gated_delta_rule`` that serves what it can and hands the rest to ``real_fn``.

    Args:
        real_fn: The function of flash-linear-attention.

    Returns:
        A function with its signature and results.
    """
    return shim(real_fn, _path, GDN_FORWARD, _documented, _native)  # type: ignore[no-any-return]


def _documented(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    scale: Any = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    cu_seqlens_cpu: Any = None,
    cp_context: Any = None,
    **kwargs: Any,
) -> Any:
    """The signature that calls are read by where the original has none."""


def _native(call: Call) -> tuple[Any, Any]:
    packed = packed_operands(call, 3)
    gate: dict[str, Any] = {}
    if call.use_gate_in_kernel:
        if call.A_log is None:
            raise declined("A_log", "None", "the gate's amplitude")
        gate = {"safe_gate": True, "a_log": call.A_log, "dt_bias": call.dt_bias}
        for name, x in (("A_log", call.A_log), ("dt_bias", call.dt_bias)):
            if x is not None and x.numel() != packed.heads:
                raise declined(name, f"{x.numel()} numbers", f"{packed.heads}")
        gate |= {name: x.reshape(-1) for name, x in gate.items() if name != "safe_gate" and x is not None}
    o, state = gated_delta_net_forward(
        **packed.operands,
        scale=call.scale,
        output_final_state=call.output_final_state,
        use_qk_l2norm_in_kernel=call.use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=call.use_beta_sigmoid_in_kernel,
        allow_neg_eigval=call.allow_neg_eigval,
        **gate,
    )
    return o.reshape(*packed.lead, *o.shape[1:]), final_states(call, state)
