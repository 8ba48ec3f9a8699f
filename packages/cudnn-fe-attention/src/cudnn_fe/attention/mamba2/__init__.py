"""Mamba-2's state-space layer."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.mamba2.op import BACKWARD, FORWARD
from cudnn_fe.core.call import call
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["mamba2", "mamba2_backward", "mamba2_forward"]


def mamba2_forward(
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    dt_bias: Any = None,
    z: Any = None,
    initial_state: Any = None,
    return_final_state: bool = False,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Mamba-2's state-space layer: a state that decays, to which inputs are added and from which outputs are read.

    Differentiable in all operands under torch autograd and JAX.

    Args:
        x: Inputs (batch, length, heads, P): float16, bfloat16, float32 or float64.
        dt: Time steps before their bias and softplus (batch, length, heads), of the same dtype.
        A: Rates of decay (heads,), float32, below 0.
        B: Where inputs are written (batch, length, groups, N), of the dtype of x.
        C: Where the state is read (batch, length, groups, N).
        D: How much of the input goes past the state (heads,), float32, or None.
        dt_bias: Bias of the time steps (heads,), float32, or None.
        z: Gates of the outputs, through SiLU, like x, or None.
        initial_state: States (batch, heads, P, N), float32, or None for zeros.
        return_final_state: Whether the states after the last tokens come too.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``out`` like x, and ``final_state`` (batch, heads, P, N), empty unless asked for.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionTypeError: As the message says.
    """
    operands = (x, dt, A, B, C, D, dt_bias, z, initial_state)
    results = call(FORWARD, operands, (("return_final_state", return_final_state),), backend=backend)
    return TupleDict(zip(FORWARD.results, results, strict=True))


def mamba2_backward(
    dout: Any,
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    dt_bias: Any = None,
    z: Any = None,
    initial_state: Any = None,
    d_final_state: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `mamba2_forward`.

    Args:
        dout: Gradient of the outputs, like x.
        x: As in the forward, and so are all arguments that both have.
        dt: Time steps.
        A: Rates of decay.
        B: Where inputs are written.
        C: Where the state is read.
        D: What goes past the state.
        dt_bias: Bias of the time steps.
        z: Gates.
        initial_state: States before the first tokens.
        d_final_state: Gradient of the final states, or None for zeros.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dx``, ``ddt``, ``dA``, ``dB``, ``dC``, ``dD``, ``d_dt_bias``, ``dz``, ``d_initial_state``, like their
        operands, None for those that there are not.

    Raises:
        ShapeError, DTypeError, DeviceError: As the message says.
    """
    operands = (x, dt, A, B, C, D, dt_bias, z, initial_state)
    grads = iter(call(BACKWARD, (dout, d_final_state, *operands), (), backend=backend))
    pairs = zip(BACKWARD.results, operands, strict=True)
    return TupleDict({name: None if given is None else next(grads) for name, given in pairs})


def mamba2(
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    dt_bias: Any = None,
    z: Any = None,
    initial_state: Any = None,
    return_final_state: bool = False,
    chunk_size: int = 32,
    intermediate_dtype: str = "float32",
    reuse_forward_states: bool = False,
    plan_name: str | None = None,
) -> Any:
    """`mamba2_forward` with the parameters of cudnn-frontend.

    Args:
        x: Inputs; this and all up to ``return_final_state`` are those of `mamba2_forward`.
        dt: Time steps.
        A: Rates of decay.
        B: Where inputs are written.
        C: Where the state is read.
        D: What goes past the state.
        dt_bias: Bias of the time steps.
        z: Gates.
        initial_state: States before the first tokens.
        return_final_state: Whether the states after the last tokens come too.
        chunk_size: Hint.
        intermediate_dtype: Hint: ``"float32"`` or ``"bfloat16"``.
        reuse_forward_states: Hint.
        plan_name: The backend to use.

    Returns:
        The outputs, or they and the final states.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError, OptionTypeError: As the message says.
    """
    del chunk_size, reuse_forward_states
    require_one_of(intermediate_dtype, "intermediate_dtype", ("float32", "bfloat16"))
    operands = (x, dt, A, B, C, D, dt_bias, z, initial_state)
    out, final = mamba2_forward(*operands, return_final_state, backend=plan_name)
    return (out, final) if return_final_state else out
