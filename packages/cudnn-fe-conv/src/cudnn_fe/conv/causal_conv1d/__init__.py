"""Causal depthwise 1-D convolution over whole sequences."""

from __future__ import annotations

from typing import Any

from cudnn_fe.conv.final_states import require_buffer, require_like, write_final_states
from cudnn_fe.core.call import bind_operands, call
from cudnn_fe.core.errors import DTypeError, NotYetSupportedError, OptionError
from cudnn_fe.core.frameworks import framework_of, torch_is_tracing
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["causal_conv1d", "causal_conv1d_backward"]


def causal_conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    *,
    seq_idx: Any = None,
    cu_seqlens: Any = None,
    initial_states: Any = None,
    return_final_states: bool = False,
    final_states_out: Any = None,
    layout: str = "BDT",
    backend: str | None = None,
    stream: Any = None,
) -> Any:
    """Filter each channel over time with its own taps, seeing no later sample; then add a bias and apply SiLU.

    Differentiable under torch autograd and JAX; traced whole by torch.compile and ``jax.jit``.

    Args:
        x: Samples (B, D, T): float64, float32, float16 or bfloat16, any strides. The result keeps their order in
            memory, so ``(B, T, D)`` data seen through ``transpose(1, 2)`` is read and written in place.
        weight: Taps (D, W), W from 1 to 256, the newest sample's last; x's dtype, or float32 beside a half-precision x.
        bias: (D,), added before the activation; dtypes as for the weight.
        activation: ``None`` or ``"identity"``; ``"silu"`` or ``"swish"``.
        seq_idx: Reserved; only None works.
        cu_seqlens: int32 offsets (N + 1,) from 0 to T of N sequences packed along time, empty ones allowed; B = 1. Read
            on the device alone, where offsets that decrease or do not span x trap.
        initial_states: (S, D, W - 1): the samples before each sequence's first; S is B, or N if packed; x's dtype.
        return_final_states: Whether to return the last W - 1 samples of each sequence, its initial state included.
        final_states_out: Buffer for these, apart from all operands; returned itself. Not for JAX.
        layout: ``"BDT"``, or ``"BTD"`` where x's dims are (B, T, D): what JAX, whose arrays are row-major, needs for
            channels-last data.
        backend: ``None`` (best that serves), or ``"portable"``, ``"reference"``: that one or an error.
        stream: Launch stream for CUDA tensors: None (torch's current one), an int handle, a torch stream or a CUstream.

    Returns:
        The output, x's shape and dtype, or ``(output, final_states)``; final states are (S, D, W - 1) with contiguous
        channels.

    Raises:
        FrameworkError, ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the
            contract.
        AliasError: ``final_states_out`` overlaps an operand.
        NotYetSupportedError: ``seq_idx``, or an activation that is not listed.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np
        >>> x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
        >>> causal_conv1d(x, np.array([[1.0, 10.0]], np.float32))
        array([[[ 0., 10., 21., 32.]]], dtype=float32)
    """
    from cudnn_fe.conv.causal_conv1d.op import FORWARD  # keeps `import cudnn_fe.conv` light

    if not isinstance(return_final_states, bool):
        raise DTypeError(
            "return_final_states", got=repr(return_final_states), wanted="True or False", remedy="pass a bool"
        )
    if seq_idx is not None:
        _refuse_seq_idx(x, seq_idx, cu_seqlens, return_final_states, layout)
    if final_states_out is not None and not return_final_states:
        raise OptionError(
            "final_states_out",
            got="a buffer without return_final_states",
            wanted="return_final_states=True beside it",
            remedy="ask for the final states or leave the buffer out",
        )
    options = (("activation", activation), ("return_final_states", return_final_states), ("layout", layout))
    operands = (x, weight, bias, cu_seqlens, initial_states)
    if final_states_out is None:
        results = call(FORWARD, operands, options, backend=backend, stream=stream)
        return results if return_final_states else results[0]
    tracing = torch_is_tracing()
    if not tracing:
        wanted = bind_operands(FORWARD, operands, dict(options)).outputs[1]
        require_buffer(final_states_out, wanted, dict(zip(FORWARD.problem.operands, operands, strict=True)))
    y, states = call(FORWARD, operands, options, backend=backend, stream=stream)
    if tracing:
        require_like(final_states_out, states)
    write_final_states(final_states_out, states)
    return y, final_states_out


def causal_conv1d_backward(
    dy: Any,
    x: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    *,
    cu_seqlens: Any = None,
    initial_states: Any = None,
    d_final_states: Any = None,
    layout: str = "BDT",
    backend: str | None = None,
    stream: Any = None,
) -> TupleDict:
    """Gradients of `causal_conv1d`, bit-equal from run to run.

    Args:
        dy: Gradient of the output, in x's shape and dtype; any strides.
        x: As in the forward.
        weight: As in the forward.
        bias: As in the forward.
        activation: As in the forward.
        cu_seqlens: As in the forward.
        initial_states: As in the forward.
        d_final_states: Gradient of the final states (S, D, W - 1), or None.
        layout: As in the forward.
        backend: ``None``, or the name of the one to use.
        stream: Launch stream for CUDA tensors.

    Returns:
        ``dx``, ``dweight``, ``dbias`` (None without a bias), ``d_initial_states`` (None without initial states), each
        in its operand's dtype.

    Raises:
        FrameworkError, ShapeError, DTypeError, DeviceError, OptionError, BackendError: As the message says.
    """
    from cudnn_fe.conv.causal_conv1d.op import BACKWARD  # keeps `import cudnn_fe.conv` light

    options = (("activation", activation), ("layout", layout))
    operands = (x, weight, bias, cu_seqlens, initial_states, dy, d_final_states)
    results = iter(call(BACKWARD, operands, options, backend=backend, stream=stream))
    return TupleDict(
        dx=next(results),
        dweight=next(results),
        dbias=None if bias is None else next(results),
        d_initial_states=None if initial_states is None else next(results),
    )


def _refuse_seq_idx(x: Any, seq_idx: Any, cu_seqlens: Any, return_final_states: bool, layout: str) -> None:
    """Raises what the contract says of a call with ``seq_idx``, which is reserved."""
    from cudnn_fe.conv.causal_conv1d.op import layout_of  # keeps `import cudnn_fe.conv` light

    framework_of(seq_idx, operand="seq_idx")
    if cu_seqlens is not None or return_final_states:
        raise OptionError(
            "seq_idx",
            got="seq_idx beside cu_seqlens or return_final_states",
            wanted="cu_seqlens alone",
            remedy="pack the sequences and pass their offsets",
        )
    order, spec_x, spec = layout_of(layout), spec_of(x, "x"), spec_of(seq_idx, "seq_idx")
    spec_x.require_rank(3, f"({', '.join(order)})")
    spec.require_rank(2, "(B, T)")
    wanted = (spec_x.shape[0], spec_x.shape[order.index("T")])
    if spec.shape != wanted:
        raise OptionError("seq_idx", got=str(spec.shape), wanted=f"(B, T) = {wanted}", remedy="leave it out")
    raise NotYetSupportedError("seq_idx", got="an array", wanted="None", remedy="pack the sequences: cu_seqlens")
