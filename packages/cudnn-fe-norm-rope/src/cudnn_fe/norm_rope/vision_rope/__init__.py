"""Backward of split-half RoPE for a vision encoder, packed with the gradient of V."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import Permuted, call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["vision_rope_backward", "vision_rope_jax_backward"]


def vision_rope_backward(
    grad_q: Any,
    grad_k: Any,
    grad_v: Any,
    cosine: Any,
    sine: Any,
    *,
    backend: str | None = None,
    current_stream: Any = None,
) -> TupleDict:
    """Turn the gradients of Q and K back by split-half RoPE, copy that of V, and pack all three.

    Args:
        grad_q: (T, 16, 64) bfloat16, stored as [head][token][channel]: strides (64, 64 T, 1).
        grad_k: (T, 16, 64) bfloat16, stored as [head][channel][token]: strides (1, 64 T, T).
        grad_v: (T, 16, 64) bfloat16, strides (64, 64 T, 1). All three 16-byte aligned.
        cosine: (T, 1, 32) float32, contiguous.
        sine: (T, 1, 32) float32, contiguous.
        backend: ``None`` (best that serves), or ``"portable"``, ``"reference"``: that one or an error.
        current_stream: Launch stream for CUDA tensors: None (torch's current one), an int handle, a torch stream or a
            CUstream.

    Returns:
        ``grad_qkv`` (T, 3072) bfloat16: 1024 channels each of Q, K and V, heads outermost.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, AlignmentError: Operands outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np, ml_dtypes
        >>> q = np.ones((16, 2, 64), ml_dtypes.bfloat16).transpose(1, 0, 2)
        >>> k = np.ones((16, 64, 2), ml_dtypes.bfloat16).transpose(2, 0, 1)
        >>> table = np.ones((2, 1, 32), np.float32)
        >>> vision_rope_backward(q, k, q, table, table)["grad_qkv"][0, [0, 32, 2048]].astype(float).tolist()
        [2.0, 0.0, 1.0]
    """
    from cudnn_fe.norm_rope.vision_rope.op import BACKWARD  # keeps `import cudnn_fe.norm_rope` light

    operands = (grad_q, grad_k, grad_v, cosine, sine)
    return TupleDict(grad_qkv=call(BACKWARD, operands, (), backend=backend, stream=current_stream)[0])


def vision_rope_jax_backward(
    grad_q: Any, grad_k: Any, grad_v: Any, cosine: Any, sine: Any, *, backend: str | None = None
) -> Any:
    """`vision_rope_backward` for JAX, whose arrays have no strides: gradients are taken as they are stored.

    Args:
        grad_q: (16, T, 64) bfloat16.
        grad_k: (16, 64, T) bfloat16.
        grad_v: (16, T, 64) bfloat16.
        cosine: (T, 1, 32) float32.
        sine: (T, 1, 32) float32.
        backend: ``None``, or the name of the one to use.

    Returns:
        grad_qkv (T, 3072).

    Raises:
        ShapeError, DTypeError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    dims = {"grad_q": (1, 0, 2), "grad_k": (2, 0, 1), "grad_v": (1, 0, 2)}
    given = {"grad_q": grad_q, "grad_k": grad_k, "grad_v": grad_v}
    q, k, v = (Permuted(as_jax(name, array), dims[name]) for name, array in given.items())
    return vision_rope_backward(q, k, v, as_jax("cosine", cosine), as_jax("sine", sine), backend=backend)[0]
