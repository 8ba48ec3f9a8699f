"""Quantisation as an op: registered, compiled, traced and launched like all others."""

from __future__ import annotations

from typing import Any, Literal

from cudnn_fe.core.block_scale.formats import BLOCK_FORMATS, BlockFormat
from cudnn_fe.core.block_scale.quantize import Recipe
from cudnn_fe.core.call import call
from cudnn_fe.core.errors import ShapeError
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["Direction", "block_scale_quantize", "format_options", "with_batch"]

Direction = Literal["rows", "columns", "both"]


def block_scale_quantize(
    x: Any,
    format: str | BlockFormat = "mxfp8_e4m3",
    *,
    direction: Direction = "rows",
    recipe: Recipe = "epilogue",
    column_recipe: Recipe | None = None,
    norm: Any = None,
    packed: bool = True,
    amax: bool = False,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """Quantise blocks along rows, along columns, or along both from the same values.

    Args:
        x: (R, C) or (L, R, C) float32, float16 or bfloat16; rows contiguous, any distance apart.
        format: ``"mxfp8_e4m3"``, ``"mxfp8_e5m2"``, ``"mxfp4"``, ``"nvfp4"``, or a `BlockFormat`.
        direction: What blocks lie along.
        recipe: See `cudnn_fe.core.block_scale.quantize`.
        column_recipe: That of the columns; None is ``recipe``.
        norm: float32 array of one element, or None.
        packed: Scales in 512-byte atoms of 128 rows and 4 scales, column-wise ones transposed; else plain.
        amax: Whether to return the largest magnitude too.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``row_codes``, ``row_scales``, ``column_codes``, ``column_scales`` and ``amax``, None where not asked for. Codes
        have the format's dtype; FP4 is packed along the quantised direction, as torch's pairs or uint8.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np
        >>> out = block_scale_quantize(np.full((2, 64), 3, np.float32), "mxfp4", packed=False)
        >>> out["row_codes"][0, :2].tolist(), out["row_scales"].astype(float)[0].tolist()  # 3 = 6 * 2**-1
        ([119, 119], [0.5, 0.5])

    Recipes as in cudnn-frontend 1.32, with exact reciprocals.
    """
    from cudnn_fe.core.block_scale.quantizer.op import QUANTIZE  # keeps `import cudnn_fe.core.block_scale` light

    require_one_of(direction, "direction", ("rows", "columns", "both"))
    options = (
        *format_options(format),
        ("row_recipe", None if direction == "columns" else recipe),
        ("column_recipe", None if direction == "rows" else column_recipe or recipe),
        ("packed", bool(packed)),
        ("amax", bool(amax)),
        ("native", framework_of(x, operand="x") == "torch"),
    )
    flat = x.ndim == 2
    results = iter(call(QUANTIZE, (with_batch(x, "x"), norm), options, backend=backend, stream=stream))
    found: dict[str, Any] = {}
    for name, wanted in (("row", direction != "columns"), ("column", direction != "rows")):
        codes: Any = next(results) if wanted else None
        scales: Any = next(results) if wanted else None
        found[f"{name}_codes"] = codes[0] if flat and wanted else codes
        found[f"{name}_scales"] = scales[0] if flat and wanted and not packed else scales
    found["amax"] = next(results)[0] if amax else None
    return TupleDict(**found)


def format_options(format: str | BlockFormat) -> tuple[tuple[str, str | int], ...]:
    """A format as options of plain values."""
    if isinstance(format, str):
        require_one_of(format, "format", tuple(BLOCK_FORMATS))
        format = BLOCK_FORMATS[format]
    return (("element", format.element.name), ("scale", format.scale.name), ("block", format.block))


def with_batch(x: Any, name: str) -> Any:
    """(R, C) as (1, R, C); raises ShapeError for other ranks than two and three."""
    if x.ndim not in (2, 3):
        raise ShapeError(name, got=f"{x.ndim} dims", wanted="(R, C) or (L, R, C)", remedy="reshape it")
    return x[None] if x.ndim == 2 else x
