"""RMSNorm, a 16-point Hadamard transform of every 16 channels, and the largest magnitude of groups of rows."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["rmsnorm_rht_amax_forward", "rmsnorm_rht_amax_jax_forward"]


def rmsnorm_rht_amax_forward(
    x_tensor: Any,
    w_tensor: Any,
    eps: float = 1e-5,
    num_threads: int | None = None,
    rows_per_cta: int | None = None,
    current_stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """RMSNorm of bfloat16 rows, then ``H16 / 4`` over every 16 channels, and an amax for every few rows.

    Args:
        x_tensor: (M, N) or (M, N, 1) bfloat16, N a multiple of 16; rows contiguous, any distance apart.
        w_tensor: (N,) or (N, 1) bfloat16, the RMSNorm weight.
        eps: Added to the mean square.
        num_threads: Hint without effect on results; a multiple of 32 up to 1024 that leaves each thread a multiple of
            8 channels.
        rows_per_cta: Rows of one amax; divides M. None: the largest of 8, 4, 2 that leaves 148 groups or more, else 2.
        current_stream: Launch stream for CUDA tensors: None (torch's current one), an int handle, a torch stream or a
            CUstream.
        backend: ``None`` (best that serves), or ``"portable"``, ``"reference"``: that one or an error.

    Returns:
        ``o_tensor`` bfloat16, shaped as x, and ``amax_tensor`` (M / rows_per_cta,) float32: the largest magnitude
        before rounding, NaN left out.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np, ml_dtypes
        >>> x = np.ones((2, 32), ml_dtypes.bfloat16)
        >>> rmsnorm_rht_amax_forward(x, x[0], eps=0.0)["amax_tensor"].tolist()
        [4.0]
    """
    from cudnn_fe.norm_rope.rmsnorm_rht_amax.op import FORWARD  # keeps `import cudnn_fe.norm_rope` light

    options = (("num_threads", num_threads), ("rows_per_cta", rows_per_cta))
    o, amax = call(FORWARD, (x_tensor, w_tensor), options, (float(eps),), backend=backend, stream=current_stream)
    return TupleDict(o_tensor=o, amax_tensor=amax)


def rmsnorm_rht_amax_jax_forward(
    x: Any,
    w: Any,
    eps: float = 1e-5,
    num_threads: int | None = None,
    rows_per_cta: int | None = None,
    *,
    backend: str | None = None,
) -> tuple[Any, Any]:
    """`rmsnorm_rht_amax_forward` for JAX: usable under ``jit`` and ``vmap``; runs on CPU and CUDA.

    Args:
        x: (M, N) or (M, N, 1) bfloat16.
        w: (N,) or (N, 1) bfloat16.
        eps: Added to the mean square; static under ``jit``, as all that follows.
        num_threads: Hint without effect on results.
        rows_per_cta: Rows of one amax.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``(o, amax)``.

    Raises:
        ShapeError, DTypeError, OptionError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    arrays = as_jax("x", x), as_jax("w", w)
    o, amax = rmsnorm_rht_amax_forward(*arrays, eps, num_threads, rows_per_cta, backend=backend)
    return o, amax
