"""Element formats of the indexer's queries and keys: plain floats, FP8 with a factor per row, and block-scaled."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.arrays import take, wide
from cudnn_fe.attention.operands import FLOATS, require_offsets, require_same_dtype, statistics_dtype
from cudnn_fe.attention.sequences import rows_of
from cudnn_fe.core.block_scale import MXFP4, MXFP8_E4M3, dequantize, unswizzle_scales
from cudnn_fe.core.codecs import unpack_fp4
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.require import require_contiguous, require_dtype, require_one_of, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["PRECISIONS", "channels_of", "check_precision", "dequantized", "normal_precision"]

PRECISIONS = ("bf16", "fp8", "mxfp8", "mxfp4")
_BLOCK = 32
_ELEMENTS = {"bf16": FLOATS, "fp8": ("float8_e4m3fn",), "mxfp8": ("float8_e4m3fn",)}
_PAIRS = ("float4_e2m1fn", "uint8")
_BYTES = ("float8_e8m0fnu", "uint8")
_WEIGHTS = ("bfloat16", "float16", "float32")


def normal_precision(given: Any, allowed: tuple[str, ...] = PRECISIONS) -> str:
    """``given`` in lower case; raises OptionError unless it is allowed."""
    lower = given.lower() if isinstance(given, str) else given
    require_one_of(lower, "precision", allowed)
    return str(lower)


def channels_of(spec: TensorSpec, precision: str) -> int:
    """Channels of an operand, whose last dim may hold pairs."""
    return spec.shape[-1] * (2 if precision == "mxfp4" else 1)


def check_precision(
    precision: str,
    q: TensorSpec,
    k: TensorSpec,
    weights: TensorSpec | None,
    scales: tuple[TensorSpec | None, TensorSpec | None],
    padded: tuple[TensorSpec | None, TensorSpec | None],
    sf_vec_size: Any,
) -> None:
    """Validates element types, and the scales that go with them."""
    for spec in (q, k):
        require_dtype(spec, *(_PAIRS if precision == "mxfp4" else _ELEMENTS[precision]))
    if weights is not None:
        plain = precision == "bf16"
        require_dtype(weights, *((q.dtype.name, statistics_dtype(q).name) if plain else _WEIGHTS))
    require_one_of(sf_vec_size, "sf_vec_size", (_BLOCK,))
    require_same_dtype(q, k)
    packed = q.ndim == 3
    names = ("q_scale", "k_scale")
    for name, scale in zip(names, scales, strict=True):
        if (scale is None) != (precision == "bf16"):
            raise OptionError(
                name,
                got="None" if scale is None else "a tensor",
                wanted=f"{'None' if precision == 'bf16' else 'scales'} with precision {precision!r}",
                remedy="name the precision of the operands, and pass scales for all but bf16",
            )
    wanted = packed and precision in ("mxfp8", "mxfp4")
    for name, offsets in zip(("cu_seqlens_q_scale_padded", "cu_seqlens_k_scale_padded"), padded, strict=True):
        if (offsets is not None) != wanted:
            raise OptionError(
                name,
                got="None" if offsets is None else "a tensor",
                wanted="offsets" if wanted else "None: they belong to packed sequences with block scales",
                remedy="pass both for packed block-scaled operands, and neither otherwise",
            )
        if offsets is not None:
            require_dtype(offsets, "int32")
            require_offsets(offsets)
            require_same_device(q, offsets)
    for spec, of, scale in zip((q, k), ("q", "k"), scales, strict=True):
        if scale is not None:
            _check_scale(precision, spec, of, scale)


def _check_scale(precision: str, spec: TensorSpec, of: str, scale: TensorSpec) -> None:
    require_same_device(spec, scale)
    if precision == "fp8":
        require_dtype(scale, "float32")
        require_shape(scale, spec.shape[:-1], "one per row and head")
        return
    require_dtype(scale, *_BYTES)
    channels = channels_of(spec, precision)
    if channels % _BLOCK:
        raise ShapeError(of, got=f"{channels} channels", wanted=f"a multiple of {_BLOCK}", remedy="pad the channels")
    columns = -(-channels // _BLOCK // 4) * 4
    scale.require_rank(3, "(slabs, ceil128(rows), ceil4(D / 32))")
    if spec.ndim == 4:
        batch, tokens, heads = spec.shape[:3]
        require_shape(scale, (batch, -(-tokens * heads // 128) * 128, columns), "packed by pack_q_scale_bshd or its k")
    elif scale.shape[0] != 1 or scale.shape[1] % 128 or scale.shape[2] != columns:
        raise ShapeError(
            scale.name, got=str(scale.shape), wanted=f"(1, a multiple of 128, {columns})", remedy="pack the scales"
        )
    require_contiguous(scale)


def dequantized(precision: str, xp: Any, x: Any, scale: Any, offsets: Any, padded: Any) -> Any:
    """The values of queries or keys, (B, S, H, D) or (T, H, D), in the type that sums are taken in.

    FP8 stays without its factors, which go on the scores.

    Args:
        precision: One of `PRECISIONS`.
        xp: Array namespace.
        x: The operand.
        scale: Its packed block scales, or whatever the precision has.
        offsets: First row of each packed sequence, or None.
        padded: First row of each packed sequence among the scales, or None.
    """
    if precision in ("bf16", "fp8"):
        return wide(x)
    codes = unpack_fp4(x.view(xp.uint8)) if precision == "mxfp4" else x
    heads, columns = codes.shape[-2], codes.shape[-1] // _BLOCK
    slabs, rows, _ = scale.shape
    if 0 in codes.shape:
        return xp.astype(xp.zeros_like(codes), xp.float32)
    plain = unswizzle_scales(xp.reshape(scale.view(xp.uint8), (-1,)), rows, columns)
    if x.ndim == 4:
        plain = xp.reshape(plain[:, : x.shape[1] * heads], (slabs, x.shape[1], heads, columns))
    else:
        at = rows_of(xp, offsets, x.shape[0])
        token = take(xp, padded, at.sequence, 0) + at.position
        plain = take(xp, xp.reshape(plain, (rows // heads, heads, columns)), token, 0)
    return dequantize(codes, plain, MXFP4 if precision == "mxfp4" else MXFP8_E4M3)
