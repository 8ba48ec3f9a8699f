"""One decoding step of the causal convolution."""

from __future__ import annotations

import sys
from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.frameworks import framework_of

__all__ = ["causal_conv1d_update"]


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    *,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
    backend: str | None = None,
    stream: Any = None,
) -> Any:
    """Take one new sample of each row into its state and filter: what `causal_conv1d` gives for that time step.

    Args:
        x: One sample of each row (N, D): float64, float32, float16 or bfloat16, any strides.
        conv_state: Cache (S, D, L) with L at least W - 1, x's dtype, any strides; changed in place.
        weight: Taps (D, W), the newest sample's last; x's dtype, or float32 beside a half-precision x.
        bias: (D,), added before the activation; dtypes as for the weight.
        activation: ``None`` or ``"identity"``; ``"silu"`` or ``"swish"``.
        cache_seqlens: int32 (N,): samples that each row has seen. With them a slot is a ring whose lane
            ``cache_seqlens % L`` takes the new sample; without, its lanes shift by one.
        conv_state_indices: int32 (N,): slot of each row, all different, -1 for a row to leave out; None is row n in
            slot n.
        backend: ``None`` (best that serves), or ``"portable"``, ``"reference"``: that one or an error.
        stream: Launch stream for CUDA tensors: None (torch's current one), an int handle, a torch stream or a CUstream.

    Returns:
        The filtered samples (N, D), contiguous; zeros for rows left out. For JAX arrays, which do not change,
        ``(output, conv_state)``.

    Raises:
        FrameworkError, ShapeError, StrideError, DTypeError, DeviceError, OptionError, AliasError: Operands or options
            outside the contract.
        NotYetSupportedError: An operand requires a gradient while gradients are on.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np
        >>> state = np.array([[[1.0, 2.0]]], np.float32)
        >>> causal_conv1d_update(np.array([[3.0]], np.float32), state, np.array([[100.0, 10.0, 1.0]], np.float32))
        array([[123.]], dtype=float32)
        >>> state
        array([[[2., 3.]]], dtype=float32)
    """
    from cudnn_fe.conv.causal_conv1d_update.op import UPDATE  # keeps `import cudnn_fe.conv` light

    options = (("activation", activation),)
    operands = (x, conv_state, weight, bias, cache_seqlens, conv_state_indices)
    framework = framework_of(x, operand="x")
    if framework == "jax":
        return call(UPDATE, operands, options, backend=backend, stream=stream)
    if framework == "torch" and sys.modules["torch"].is_grad_enabled():
        _refuse_gradients(operands)
    return call(UPDATE, operands, options, backend=backend, stream=stream, outs=(None, conv_state))[0]


def _refuse_gradients(operands: tuple[Any, ...]) -> None:
    for operand in operands:
        if operand is not None and getattr(operand, "requires_grad", False):
            raise NotYetSupportedError(
                "causal_conv1d_update",
                got="an operand that requires a gradient",
                wanted="torch.no_grad(): the step changes its state in place and has no derivative",
                remedy="train through causal_conv1d",
            )
