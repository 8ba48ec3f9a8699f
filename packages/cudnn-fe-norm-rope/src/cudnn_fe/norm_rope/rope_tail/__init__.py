"""Rotary embedding of the last 64 channels."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["tail_rope_forward", "tail_rope_jax_forward"]


def tail_rope_forward(x: Any, cosine: Any, sine: Any, *, backend: str | None = None, stream: Any = None) -> TupleDict:
    """Rotate adjacent pairs of the last 64 channels by per-token angles; copy the other channels.

    Args:
        x: (T, D) or (T, H, D) bfloat16, D a multiple of 8 from 64 to 8192; channels contiguous, any other strides.
        cosine: (T, 32) float32, contiguous; shared by the heads.
        sine: (T, 32) float32, contiguous. Negated, it undoes the rotation.
        backend: ``None`` (best that serves), or ``"portable"``, ``"reference"``: that one or an error.
        stream: Launch stream for CUDA tensors: None (torch's current one), an int handle, a torch stream or a CUstream.

    Returns:
        ``out``, shaped as x, compact.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError: Operands outside the contract.
        NotYetSupportedError: A rank or number of channels that is not served.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np, ml_dtypes
        >>> x = np.ones((1, 64), ml_dtypes.bfloat16)
        >>> half = np.full((1, 32), -1, np.float32), np.zeros((1, 32), np.float32)
        >>> tail_rope_forward(x, *half)["out"][0, :2].astype(float).tolist()
        [-1.0, -1.0]
    """
    from cudnn_fe.norm_rope.rope_tail.op import FORWARD  # keeps `import cudnn_fe.norm_rope` light

    return TupleDict(out=call(FORWARD, (x, cosine, sine), (), backend=backend, stream=stream)[0])


def tail_rope_jax_forward(x: Any, cosine: Any, sine: Any, *, backend: str | None = None) -> Any:
    """`tail_rope_forward` for JAX: usable under ``jit`` and ``vmap``; runs on CPU and CUDA.

    Args:
        x: (T, D) or (T, H, D) bfloat16.
        cosine: (T, 32) float32.
        sine: (T, 32) float32.
        backend: ``None``, or the name of the one to use.

    Returns:
        The rotated array.

    Raises:
        ShapeError, DTypeError, NotYetSupportedError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    arrays = as_jax("x", x), as_jax("cosine", cosine), as_jax("sine", sine)
    return tail_rope_forward(*arrays, backend=backend)[0]
