"""Dequantisation as an op: registered, compiled, traced and launched like all others."""

from __future__ import annotations

from typing import Any, Literal

from cudnn_fe.core.block_scale.formats import BlockFormat
from cudnn_fe.core.block_scale.quantizer import format_options, with_batch
from cudnn_fe.core.call import call
from cudnn_fe.core.codecs import packed_pairs
from cudnn_fe.core.require import require_one_of

__all__ = ["block_scale_dequantize"]


def block_scale_dequantize(
    codes: Any,
    scales: Any,
    format: str | BlockFormat = "mxfp8_e4m3",
    *,
    direction: Literal["rows", "columns"] = "rows",
    factor: Any = None,
    packed: bool = True,
    dtype: Any = "float32",
    stream: Any = None,
    backend: str | None = None,
) -> Any:
    """The values ``code * (scale * factor)``, each product rounded to float32, then to ``dtype``.

    Args:
        codes: (R, C) or (L, R, C) of the format's dtype, rows contiguous; FP4 in pairs along ``direction``, as torch's
            dtype, uint8, or unpacked as NumPy's and JAX's.
        scales: As `block_scale_quantize` returns them: packed, in either form, or plain (.., R, C/v) or (.., R/v, C).
        format: As there.
        direction: What blocks lie along.
        factor: float32 array of one element, 1 / norm of the quantiser, or None.
        packed: Whether scales stand in atoms.
        dtype: float32, bfloat16 or float16.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        An array of that dtype, (R, C) or (L, R, C).

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> codes, scales = np.full((1, 16), 0x77, np.uint8), np.full((1, 1), 0.5, ml_dtypes.float8_e8m0fnu)
        >>> float(block_scale_dequantize(codes, scales, "mxfp4", packed=False)[0, 0])
        3.0

    Values as in OCP MX v1.0, section 5.
    """
    from cudnn_fe.core.block_scale.dequantizer.op import DEQUANTIZE  # keeps `import cudnn_fe.core.block_scale` light

    require_one_of(direction, "direction", ("rows", "columns"))
    options = (
        *format_options(format),
        ("columns", direction == "columns"),
        ("packed", bool(packed)),
        ("dtype", dtype),
    )
    codes = packed_pairs(codes, axis=-1 if direction == "rows" else -2)
    flat = codes.ndim == 2
    placed = with_batch(scales, "scales") if flat and not packed else scales
    (out,) = call(DEQUANTIZE, (with_batch(codes, "codes"), placed, factor), options, backend=backend, stream=stream)
    return out[0] if flat else out
