"""A gated MLP: ``(silu(x Wg^T) * (x Wu^T)) Wd^T``."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.gemm.swiglu_mlp.op import BACKWARD, FORWARD

__all__ = ["swiglu_mlp", "swiglu_mlp_backward", "swiglu_mlp_forward"]


def swiglu_mlp_forward(
    x: Any, w_gate: Any, w_up: Any, w_down: Any, *, stream: Any = None, backend: str | None = None
) -> TupleDict:
    """A gated MLP: two projections, SiLU of one times the other, and the product that leads back.

    Differentiable in all four operands under torch autograd and JAX; ``gate`` and ``up`` are constants then.

    Args:
        x: Activations (..., H): bfloat16, float16, float32 or float64.
        w_gate: Weight of the gates (I, H), of the same dtype.
        w_up: Weight of what is gated (I, H).
        w_down: Weight of the last product (H, I).
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``out`` like x, and ``gate`` and ``up`` (..., I), the projections, which `swiglu_mlp_backward` takes.

    Raises:
        ShapeError, DTypeError, DeviceError: As the message says.

    Example:
        >>> import numpy as np
        >>> one = np.ones((1, 1), np.float32)
        >>> out = swiglu_mlp_forward(2 * one, one, one, one)["out"]
        >>> round(float(out[0, 0]), 4)  # silu(2) * 2
        3.5232
    """
    return TupleDict(
        zip(FORWARD.results, call(FORWARD, (x, w_gate, w_up, w_down), (), stream=stream, backend=backend), strict=True)
    )


def swiglu_mlp_backward(
    dout: Any,
    x: Any,
    w_gate: Any,
    w_up: Any,
    w_down: Any,
    gate: Any,
    up: Any,
    *,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `swiglu_mlp_forward`.

    Args:
        dout: Gradient of the result, like x.
        x: As in the forward, and so are the weights.
        w_gate: Weight of the gates.
        w_up: Weight of what is gated.
        w_down: Weight of the last product.
        gate: The forward's projection.
        up: The forward's projection.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dx``, ``dw_gate``, ``dw_up``, ``dw_down``, like their operands.

    Raises:
        ShapeError, DTypeError, DeviceError: As the message says.

    Example:
        >>> import numpy as np
        >>> one = np.ones((1, 1), np.float32)
        >>> grads = swiglu_mlp_backward(one, one, one, one, one, 0 * one, one)
        >>> float(grads["dw_gate"][0, 0])  # silu'(0) = 1/2
        0.5
    """
    operands = (dout, x, w_gate, w_up, w_down, gate, up)
    grads = call(BACKWARD, operands, (("needs", (True,) * 4),), stream=stream, backend=backend)
    return TupleDict(zip(BACKWARD.results, grads, strict=True))


def swiglu_mlp(x: Any, Wg: Any, Wu: Any, Wd: Any) -> Any:
    """The ``out`` of `swiglu_mlp_forward` alone, under the name of cudnn-frontend 1.32.

    Args:
        x: Activations (..., H).
        Wg: Weight of the gates (I, H).
        Wu: Weight of what is gated (I, H).
        Wd: Weight of the last product (H, I).

    Returns:
        The result, like x.

    Raises:
        ShapeError, DTypeError, DeviceError: As the message says.

    Example:
        >>> import numpy as np
        >>> one = np.ones((1, 1), np.float32)
        >>> float(swiglu_mlp(0 * one, one, one, one)[0, 0])
        0.0
    """
    return swiglu_mlp_forward(x, Wg, Wu, Wd)["out"]
