"""The engram gate: a shared value added to four residual streams, with its explicit backward."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.frost import served_by
from cudnn_fe.core.require import require_finite_positive
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = [
    "engram_gate_saved_backward",
    "engram_gate_saved_forward",
    "engram_gate_saved_jax_backward",
    "engram_gate_saved_jax_forward",
]


def engram_gate_saved_forward(
    x: Any,
    kv: Any,
    weight: Any,
    token_mask: Any,
    *,
    eps: float = 1e-20,
    backend: str | None = "frost",
    current_stream: Any = None,
) -> TupleDict:
    """Gate and add a shared value to four residual streams.

    Differentiable in x, kv and weight under torch autograd and JAX.

    Args:
        x: (N, 4, 5120) bfloat16, contiguous and 16-byte aligned, as all operands but the mask.
        kv: (N, 25600) bfloat16: four keys of 5120 channels, then the shared value.
        weight: (4, 5120) float32, the product of the RMSNorm weights of query and key.
        token_mask: (N,) bool; false leaves the token unchanged.
        eps: Added to the mean squares; finite, above 0.
        backend: ``"frost"`` or ``None`` (best that serves), or ``"portable"``, ``"reference"``: that one or an error.
        current_stream: Launch stream for CUDA tensors: None (torch's current one), an int handle, a torch stream or a
            CUstream.

    Returns:
        ``out``, as x, and ``saved`` (N, 4, 4) float32: gate, dot, rstd of x, rstd of the key.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, AlignmentError, OptionError: Operands outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np, ml_dtypes
        >>> x, kv = np.ones((1, 4, 5120), ml_dtypes.bfloat16), np.ones((1, 25600), ml_dtypes.bfloat16)
        >>> weight = np.zeros((4, 5120), np.float32)
        >>> out, saved = engram_gate_saved_forward(x, kv, weight, np.ones(1, bool))
        >>> float(out[0, 0, 0]), [round(float(x), 3) for x in saved[0, 0, :2]]
        (1.5, [0.5, 0.0])
    """
    from cudnn_fe.norm_rope.engram_gate.op import FORWARD  # keeps `import cudnn_fe.norm_rope` light

    scalars = (require_finite_positive(eps, "eps"),)
    operands = (x, kv, weight, token_mask)
    out, saved = call(FORWARD, operands, (), scalars, backend=served_by(backend), stream=current_stream)
    return TupleDict(out=out, saved=saved)


def engram_gate_saved_backward(
    x: Any,
    kv: Any,
    weight: Any,
    saved: Any,
    grad_out: Any,
    *,
    backend: str | None = "frost",
    current_stream: Any = None,
) -> TupleDict:
    """Gradients of `engram_gate_saved_forward`.

    Args:
        x: (N, 4, 5120) bfloat16, as in the forward.
        kv: (N, 25600) bfloat16, as in the forward.
        weight: (4, 5120) float32, as in the forward.
        saved: (N, 4, 4) float32, the forward's second result.
        grad_out: (N, 4, 5120) bfloat16, the gradient of its first.
        backend: ``"frost"`` or ``None`` (best that serves), or the name of the one to use.
        current_stream: Launch stream for CUDA tensors.

    Returns:
        ``grad_x``, ``grad_kv`` (bfloat16) and ``grad_weight`` (float32), shaped as the operands.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, AlignmentError: Operands outside the contract.
        BackendError: No backend serves the call, with every backend's reason.
    """
    from cudnn_fe.norm_rope.engram_gate.op import BACKWARD  # keeps `import cudnn_fe.norm_rope` light

    operands = (x, kv, weight, saved, grad_out)
    results = call(BACKWARD, operands, (), backend=served_by(backend), stream=current_stream)
    return TupleDict(zip(("grad_x", "grad_kv", "grad_weight"), results, strict=True))


def engram_gate_saved_jax_forward(
    x: Any, kv: Any, weight: Any, token_mask: Any, *, eps: float = 1e-20, backend: str | None = None
) -> tuple[Any, Any]:
    """`engram_gate_saved_forward` for JAX: usable under ``jit``, ``grad`` and ``vmap``; runs on CPU and CUDA.

    Args:
        x: (N, 4, 5120) bfloat16.
        kv: (N, 25600) bfloat16.
        weight: (4, 5120) float32.
        token_mask: (N,) bool.
        eps: Added to the mean squares; static under ``jit``.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``(out, saved)``.

    Raises:
        ShapeError, DTypeError, OptionError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    given = {"x": x, "kv": kv, "weight": weight, "token_mask": token_mask}
    out, saved = engram_gate_saved_forward(*(as_jax(*row) for row in given.items()), eps=eps, backend=backend)
    return out, saved


def engram_gate_saved_jax_backward(
    x: Any, kv: Any, weight: Any, saved: Any, grad_out: Any, *, backend: str | None = None
) -> tuple[Any, Any, Any]:
    """`engram_gate_saved_backward` for JAX.

    Args:
        x: (N, 4, 5120) bfloat16.
        kv: (N, 25600) bfloat16.
        weight: (4, 5120) float32.
        saved: (N, 4, 4) float32.
        grad_out: (N, 4, 5120) bfloat16.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``(grad_x, grad_kv, grad_weight)``.

    Raises:
        ShapeError, DTypeError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    given = {"x": x, "kv": kv, "weight": weight, "saved": saved, "grad_out": grad_out}
    grad_x, grad_kv, grad_weight = engram_gate_saved_backward(*(as_jax(*row) for row in given.items()), backend=backend)
    return grad_x, grad_kv, grad_weight
