"""What the shims of both delta rules share: reading a call, its packed operands, and the way it went."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.op import Op
from cudnn_fe.core.settings import settings

__all__ = ["Call", "Packed", "Path", "declined", "final_states", "packed_operands", "read_call", "served", "shim"]


class Path:
    """How the latest call of a shim went."""

    def __init__(self) -> None:
        self.latest: str | None = None

    def last(self) -> str | None:
        """``"native"``, ``"fallback:<reason>"``, ``"error:<type>"``, or None before any call."""
        return self.latest


@dataclass(frozen=True)
class Call:
    """The arguments of a call, by their names in flash-linear-attention."""

    q: Any
    k: Any
    v: Any
    g: Any
    beta: Any
    scale: Any = None
    initial_state: Any = None
    output_final_state: bool = False
    use_qk_l2norm_in_kernel: bool = False
    use_gate_in_kernel: bool = False
    use_beta_sigmoid_in_kernel: bool = False
    allow_neg_eigval: bool = False
    safe_gate: bool = False
    lower_bound: Any = None
    return_intermediate_states: bool = False
    state_v_first: bool = False
    cu_seqlens: Any = None
    cu_seqlens_cpu: Any = None
    cp_context: Any = None
    A_log: Any = None
    dt_bias: Any = None


_FIELDS = frozenset(row.name for row in fields(Call))


def read_call(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """The call, read by the signature of the function that is replaced: releases differ in the order of arguments."""
    bound = signature.bind(*args, **kwargs)
    given: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        given.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return Call(**{name: value for name, value in given.items() if name in _FIELDS})


def declined(what: str, got: str, wanted: str) -> NotYetSupportedError:
    """The error that sends a call on to the original function."""
    return NotYetSupportedError(what, got=got, wanted=wanted, remedy="the original function takes the call")


def served(op: Op, tensor: Any) -> str | None:
    """Why the op should not take calls on the tensor's device, or None."""
    if tensor.device.type == "cpu" or settings().backend == "reference":
        return None
    if tensor.device.type != "cuda":
        return "device"
    return "no-kernel" if op.runs_reference_on_gpu else None


def shim(real: Callable[..., Any], path: Path, op: Op, documented: Callable[..., Any], native: Any) -> Any:
    """``real`` with ``native(call)`` before it.

    Args:
        real: The function of flash-linear-attention.
        path: What is told how each call went.
        op: The op that serves calls.
        documented: A function with the documented signature, for originals that have none of their own.
        native: From a `Call` to what the original returns; raises NotImplementedError to decline.
    """
    signature = inspect.signature(real)
    if not {"q", "k", "v", "g", "beta"} <= set(signature.parameters):
        signature = inspect.signature(documented)

    @wraps(real)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        try:
            call = read_call(signature, args, kwargs)
            reason = "cp_context" if call.cp_context is not None else served(op, call.q)
            if reason is None:
                result = native(call)
                path.latest = "native"
                return result
        except NotImplementedError as error:
            reason = type(error).__name__
        path.latest = f"fallback:{reason}"
        return real(*args, **kwargs)

    return replacement


@dataclass(frozen=True)
class Packed:
    """Operands of the op, and how its results become those of the original.

    Attributes:
        operands: q, k, v, g, beta, cu_seqlens, initial_state by name.
        lead: Batches and tokens of each.
        heads: Output heads.
    """

    operands: dict[str, Any]
    lead: tuple[int, int]
    heads: int


def packed_operands(call: Call, gate_dims: int) -> Packed:
    """Tokens of all batches in one row, in the op's types and layouts."""
    import torch  # the operands are its tensors

    if call.q.ndim != 4:
        raise declined("q", f"{call.q.ndim} dims", "(B, T, H, K)")
    if call.allow_neg_eigval and not call.use_beta_sigmoid_in_kernel:
        raise declined("allow_neg_eigval", "True without a sigmoid", "both")
    batch, tokens, query_heads, _ = call.q.shape
    if call.cu_seqlens is not None and batch != 1:
        raise declined("cu_seqlens", f"{batch} batches", "one")
    heads = max(query_heads, call.v.shape[2])
    for name, x, dims in (("g", call.g, gate_dims), ("beta", call.beta, 3)):
        if x is None or x.ndim != dims or x.shape[2] != heads:
            raise declined(name, "None" if x is None else str(tuple(x.shape)), f"{heads} heads")
    io = call.q.dtype
    wide = torch.float64 if io == torch.float64 else torch.float32
    beta = call.beta if call.beta.dtype in (io, wide) else call.beta.to(wide)
    gates = (wide, torch.float32, torch.bfloat16, torch.float16)
    g = call.g if call.g.dtype in gates else call.g.to(wide)
    cu = call.cu_seqlens
    if cu is None:
        cu = torch.arange(batch + 1, dtype=torch.int32, device=call.q.device) * tokens
    state = call.initial_state
    if state is not None:
        state = state.to(wide)
        state = (state if call.state_v_first else state.transpose(-1, -2)).contiguous()
    rows = {"q": call.q, "k": call.k, "v": call.v, "g": g, "beta": beta}
    operands = {name: x.reshape(batch * tokens, *x.shape[2:]).contiguous() for name, x in rows.items()}
    return Packed({**operands, "cu_seqlens": cu, "initial_state": state}, (batch, tokens), heads)


def final_states(call: Call, state: Any) -> Any:
    """The op's states in the layout that the call asks for; None unless it asks."""
    if not call.output_final_state:
        return None
    return state if call.state_v_first else state.transpose(-1, -2).contiguous()
