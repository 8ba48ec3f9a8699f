"""Gradients of the projection and the root mean square of manifold-constrained hyper-connections."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.frost import served_by
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["mhc_projection_backward", "mhc_projection_jax_backward"]


def mhc_projection_backward(
    x: Any,
    weight: Any,
    grad_proj: Any,
    grad_r: Any,
    r: Any,
    *,
    allow_tf32: bool = False,
    backend: str | None = "frost",
    current_stream: Any = None,
) -> TupleDict:
    """Gradients of ``proj = x @ weight^T`` and ``r = sqrt(mean(x**2))`` from those of proj and r.

    Args:
        x: (M, K) bfloat16, rows contiguous.
        weight: (n, K) float32, rows contiguous.
        grad_proj: (M, C) float32, C at least n, rows contiguous; columns from n on are not read.
        grad_r: (M, 1) float32.
        r: (M, 1) float32, the forward's root mean square.
        allow_tf32: Must be True: weight and grad_proj are multiplied as TF32.
        backend: ``"frost"`` or ``None`` (best that serves), or the name of the one to use.
        current_stream: Launch stream for CUDA tensors.

    Returns:
        ``dx`` (M, K) bfloat16 and ``dweight`` (n, K) float32.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        NotYetSupportedError: ``allow_tf32`` is not True.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> x, weight = np.full((1, 2), 2, ml_dtypes.bfloat16), np.ones((3, 2), np.float32)
        >>> one = np.ones((1, 1), np.float32)
        >>> dx, dweight = mhc_projection_backward(x, weight, np.ones((1, 4), np.float32), one, one, allow_tf32=True)
        >>> float(dx[0, 0]), dweight[:, 0].tolist()  # 2 / 2 + 3
        (4.0, [2.0, 2.0, 2.0])
    """
    from cudnn_fe.gemm.mhc_projection.op import BACKWARD  # keeps `import cudnn_fe.gemm` light

    operands, options = (x, weight, grad_proj, grad_r, r), (("allow_tf32", allow_tf32),)
    results = call(BACKWARD, operands, options, backend=served_by(backend), stream=current_stream)
    return TupleDict(zip(BACKWARD.results, results, strict=True))


def mhc_projection_jax_backward(
    x: Any,
    weight: Any,
    grad_proj: Any,
    grad_r: Any,
    r: Any,
    *,
    allow_tf32: bool = False,
    backend: str | None = None,
) -> tuple[Any, Any]:
    """`mhc_projection_backward` for JAX: usable under ``jit`` and ``vmap``; runs on CPU and CUDA.

    Args:
        x: (M, K) bfloat16.
        weight: (n, K) float32.
        grad_proj: (M, C) float32, C at least n.
        grad_r: (M, 1) float32.
        r: (M, 1) float32.
        allow_tf32: Must be True.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``(dx, dweight)``.

    Raises:
        ShapeError, DTypeError, NotYetSupportedError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    given = {"x": x, "weight": weight, "grad_proj": grad_proj, "grad_r": grad_r, "r": r}
    arrays = (as_jax(name, value) for name, value in given.items())
    dx, dweight = mhc_projection_backward(*arrays, allow_tf32=allow_tf32, backend=backend)
    return dx, dweight
