"""Kimi delta attention of flash-linear-attention, served by `kimi_delta_attention_forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnn_fe.attention.fla.calls import Call, Packed, Path, declined, final_states, packed_operands, shim
from cudnn_fe.attention.linear import kimi_delta_attention_forward
from cudnn_fe.attention.linear.op import KDA_FORWARD

__all__ = ["last_path", "make_chunk_kda"]

_path = Path()
_CADENCE = 64  # tokens between the states that flash-linear-attention returns


def last_path() -> str | None:
    """How the latest call went: ``"native"`` or ``"fallback:<reason>"``; None before any."""
    return _path.last()


def make_chunk_kda(real_fn: Callable[..., Any]) -> Callable[..., Any]:
    """``chunk_kda`` that serves what it can and hands the rest to ``real_fn``.

    Args:
        real_fn: The function of flash-linear-attention.

    Returns:
        A function with its signature and results.
    """
    return shim(real_fn, _path, KDA_FORWARD, _documented, _native)  # type: ignore[no-any-return]


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
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: Any = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    cu_seqlens_cpu: Any = None,
    cp_context: Any = None,
    **kwargs: Any,
) -> Any:
    """The signature that calls are read by where the original has none."""


def _native(call: Call) -> tuple[Any, ...]:
    import torch  # the operands are its tensors

    if call.return_intermediate_states and not torch.is_inference_mode_enabled():
        raise declined("return_intermediate_states", "True outside torch.inference_mode", "inference")
    packed = packed_operands(call, 4)
    gate = _gate(call, packed)
    o, state, *kept = kimi_delta_attention_forward(
        **packed.operands,
        scale=call.scale,
        output_final_state=call.output_final_state,
        use_qk_l2norm_in_kernel=call.use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=call.use_beta_sigmoid_in_kernel,
        allow_neg_eigval=call.allow_neg_eigval,
        checkpoint_every_n_tokens=_CADENCE if call.return_intermediate_states else 0,
        checkpoint_dtype=call.q.dtype if call.return_intermediate_states else None,
        **gate,
    )
    results = (o.reshape(*packed.lead, *o.shape[1:]), final_states(call, state))
    return (*results, _intermediate(call, packed, kept[0])) if kept else results


def _gate(call: Call, packed: Packed) -> dict[str, Any]:
    """The gate's options; one that the op does not have is applied to the packed gates."""
    import torch  # the operands are its tensors

    if not call.use_gate_in_kernel:
        return {}
    if call.safe_gate and call.lower_bound is None:
        raise declined("safe_gate", "True without lower_bound", "a bound")
    channels = call.q.shape[-1]
    for name, x, count in (("A_log", call.A_log, packed.heads), ("dt_bias", call.dt_bias, packed.heads * channels)):
        if x is not None and x.numel() != count:
            raise declined(name, f"{x.numel()} numbers", f"{count}")
    bias = None if call.dt_bias is None else call.dt_bias.reshape(packed.heads, channels)
    if call.lower_bound is not None:
        if not -5 <= call.lower_bound < 0:
            raise declined("lower_bound", str(call.lower_bound), "-5 to 0")
        amplitude = None if call.A_log is None else call.A_log.reshape(-1)
        bound = float(call.lower_bound)
        return {"safe_gate": True, "gate_lower_bound": bound, "a_log": amplitude, "dt_bias": bias}
    if call.A_log is None:
        raise declined("A_log", "None", "the gate's amplitude")
    g = packed.operands["g"].float()
    g = g if bias is None else g + bias.float()
    packed.operands["g"] = -call.A_log.reshape(-1, 1).float().exp() * torch.nn.functional.softplus(g)
    return {}


def _intermediate(call: Call, packed: Packed, kept: Any) -> Any:
    """The states before every 64th token, in flash-linear-attention's shape and layout."""
    batch, tokens = packed.lead
    if call.cu_seqlens is None:
        count = -(-tokens // _CADENCE)
        kept = kept[: batch * count].reshape(batch, count, *kept.shape[1:])
    else:
        ends = call.cu_seqlens if call.cu_seqlens_cpu is None else call.cu_seqlens_cpu
        lengths = (ends[1:] - ends[:-1]).tolist()  # waits for the device unless the caller has them on the host
        kept = kept[: sum(-(-length // _CADENCE) for length in lengths)][None]
    return kept if call.state_v_first else kept.transpose(-1, -2).contiguous()
