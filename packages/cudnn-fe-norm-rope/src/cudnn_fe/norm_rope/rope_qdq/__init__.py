"""Tail RoPE followed by rounding to a small format's grid, in place."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.frost import check_frost
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["rope_qdq_inplace_forward", "rope_qdq_jax_forward"]


def rope_qdq_inplace_forward(
    x: Any,
    cache: Any,
    positions: Any,
    *,
    quantization: str,
    backend: str | None = None,
    stream: Any = None,
    group_size: int = 32,
    scale_format: str = "ue8m0",
) -> TupleDict:
    """Rotate the last 64 channels of every row, then round every group of channels to FP4 or FP8; overwrites x.

    Args:
        x: bfloat16, contiguous at any alignment: (N, H, 128) for FP4 in groups of 32, else (..., 512).
        cache: (P, 64) float32, contiguous: 32 cosines, then 32 sines of a position.
        positions: int32 or int64 rows of the cache, in [0, P) unchecked: (N,) for (N, H, 128), else one per row.
        quantization: ``"fp4"`` or ``"fp8"``.
        backend: ``None`` (best that serves), or ``"portable"``, ``"reference"``: that one or an error.
        stream: Launch stream for CUDA tensors: None (torch's current one), an int handle, a torch stream or a CUstream.
        group_size: Channels of one scale: 32, or 16 with E4M3 scales.
        scale_format: ``"ue8m0"``, or ``"e4m3"`` for FP4 in groups of 16.

    Returns:
        ``out``, which is x.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        AliasError: x overlaps the cache or the positions.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np, ml_dtypes
        >>> x, cache = np.full((1, 1, 128), 5, ml_dtypes.bfloat16), np.zeros((1, 64), np.float32)
        >>> out = rope_qdq_inplace_forward(x, cache, np.zeros(1, np.int64), quantization="fp4")["out"]
        >>> out[0, 0, [0, 127]].astype(float).tolist()
        [4.0, 0.0]
    """
    from cudnn_fe.norm_rope.rope_qdq.op import FORWARD  # keeps `import cudnn_fe.norm_rope` light

    check_frost("frost", x=x, cache=cache)
    options = _options(quantization, group_size, scale_format)
    operands = (x, cache, positions)
    return TupleDict(out=call(FORWARD, operands, options, backend=backend, stream=stream, outs=(x,))[0])


def rope_qdq_jax_forward(
    x: Any,
    cache: Any,
    positions: Any,
    *,
    quantization: str,
    group_size: int = 32,
    scale_format: str = "ue8m0",
    backend: str | None = None,
) -> Any:
    """`rope_qdq_inplace_forward` for JAX, whose arrays do not change: returns a new one; usable under ``jit``.

    Args:
        x: bfloat16 (N, H, 128), or (..., 512).
        cache: (P, 64) float32.
        positions: int32 rows of the cache.
        quantization: ``"fp4"`` or ``"fp8"``; static under ``jit``, as all that follows.
        group_size: Channels of one scale.
        scale_format: ``"ue8m0"`` or ``"e4m3"``.
        backend: ``None``, or the name of the one to use.

    Returns:
        The rounded array.

    Raises:
        ShapeError, DTypeError, OptionError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX
    from cudnn_fe.norm_rope.rope_qdq.op import FORWARD  # keeps `import cudnn_fe.norm_rope` light

    operands = as_jax("x", x), as_jax("cache", cache), as_jax("positions", positions)
    return call(FORWARD, operands, _options(quantization, group_size, scale_format), backend=backend)[0]


def _options(quantization: str, group_size: int, scale_format: str) -> tuple[tuple[str, Any], ...]:
    return (("quantization", quantization), ("group_size", group_size), ("scale_format", scale_format))
