"""Rows and paragraphs that the documentation of the block-scaled ops shares."""

from __future__ import annotations

from cudnn_fe.core.block_scale.formats import BFLOAT16_NOTE
from cudnn_fe.core.op import TensorRule
from cudnn_fe.grouped.operands import FLOATS
from cudnn_fe.grouped.scaled.problem import ELEMENTS, PACKED, RESULTS, SCALES

__all__ = [
    "ADDRESSES",
    "AMAX",
    "BIAS",
    "EXAMPLE_OPERANDS",
    "NORM",
    "NOTES",
    "NVFP4_OPERANDS",
    "PROB",
    "ROWS",
    "WEIGHTS",
    "results",
]

_SCALE = ("float8_e8m0fnu",)
ROWS = (
    TensorRule("a_tensor", "(M, K) or (M, K, 1)", "contiguous", ELEMENTS, "rows by expert; FP4 pairs along K"),
    TensorRule("sfa_tensor", "M rows", PACKED, SCALES, "scale factors of A; bytes are E8M0"),
    TensorRule("padded_offsets", "(L,)", "contiguous", ("int32",), "end of each expert's rows"),
    TensorRule("alpha_tensor", "(L,)", "contiguous", ("float32",), "scale of each expert"),
)
WEIGHTS = (
    TensorRule("b_tensor", "(L, N, K), (N, K, L); (L, K, N) with b_major='n'", "compact", ELEMENTS, "weights"),
    TensorRule("sfb_tensor", "N rows, L matrices", PACKED, SCALES, "their scale factors"),
)
ADDRESSES = (
    TensorRule("b_ptrs", "(L,)", "contiguous", ("int64",), "addresses of (N, K) weights instead of b_tensor"),
    TensorRule("sfb_ptrs", "(L,)", "contiguous", ("int64",), "addresses of their packed scale factors"),
)
PROB = TensorRule(
    "prob_tensor", "(M,) or (M, 1, 1)", "contiguous", ("float32", "bfloat16"), "gate of each row, or None"
)
NORM = TensorRule("norm_const_tensor", "(1,)", "-", ("float32",), "factor of a result with scales")
AMAX = TensorRule("amax_tensor", "(L, 1)", "contiguous", ("float32",), "max |D| of each expert, unrounded; or None")


def results(name: str, width: str, dtypes: tuple[str, ...] = RESULTS) -> tuple[TensorRule, ...]:
    """D, D by columns, and the scales of both."""
    return (
        TensorRule(name, f"(M, {width})", "contiguous", dtypes, "the result, by rows where it has scales"),
        TensorRule("d_col_tensor", f"(M, {width})", "contiguous", dtypes, "the same values by columns, or None"),
        TensorRule("sfd_row_tensor", "M rows", PACKED, _SCALE, f"scales of D along {width}, or None"),
        TensorRule("sfd_col_tensor", f"{width} rows", PACKED, _SCALE, "scales of D along M, or None"),
    )


BIAS = TensorRule("bias_tensor", "(N, L)", "any", FLOATS, "bias of each expert, or None")
NOTES = (
    "Groups may have any size: ends need not be multiples of 256, empty groups may stand anywhere, and rows past the "
    "last end are neither read nor written (fresh results hold zeros there). Offsets stay on the device. Blocks of "
    "column scales are 32 rows of the buffer from its start; packed expert by expert (`discrete_col_sfd`), ends must "
    "be multiples of 128, which the packing needs.",
    "Operands are dequantised exactly, sums are float32, and every result is rounded once. A result with scales is "
    "quantised by the recipe `epilogue` of `cudnn_fe.core.block_scale`, along rows and, from the same float32 values, "
    "along columns; then value = D * scale / norm_const. FP8 results without scales saturate.",
    "amax is taken before rounding, NaN if a value is, minus infinity for an expert without rows. Bit-equal from run "
    "to run. Scale bytes of padding never reach a result.",
    "Derivatives in alpha, prob, bias and row scale are recorded for results without scales; quantised operands carry "
    "none: the explicit backward functions take their gradients quantised.",
    "Weights behind addresses are read where they lie: device memory for CUDA tensors, host memory for others. The "
    "caller keeps that memory alive. No address may be 0. A reference reads the addresses on the host.",
    "Accepted beyond the vendor: any M, extents that are no multiples of 16 bytes, every listed dtype of C with every "
    "format, uint8 as packed FP4 pairs, NumPy arrays, FP8 weights with N contiguous in every form. Results that the "
    "vendor allocates and does not write are None.",
    BFLOAT16_NOTE,
)
EXAMPLE_OPERANDS = """\
import ml_dtypes
import numpy as np
from cudnn_fe.core.block_scale import MXFP8_E4M3, dequantize, quantize, swizzle_scales
from cudnn_fe.core.codecs import from_codes

rng = np.random.default_rng(0)
x, w = rng.standard_normal((5, 64), dtype=np.float32), rng.standard_normal((2, 64, 64), dtype=np.float32)
qx, qw = quantize(x, MXFP8_E4M3), quantize(w, MXFP8_E4M3)
a, b = from_codes(qx.codes, "float8_e4m3fn"), from_codes(qw.codes, "float8_e4m3fn")
sfa, sfb = (from_codes(swizzle_scales(q.scales), "float8_e8m0fnu") for q in (qx, qw))
wide_x, wide_w = (dequantize(q.codes, q.scales, MXFP8_E4M3) for q in (qx, qw))  # what is multiplied
ends, ones = np.array([2, 5], np.int32), np.ones(5, np.float32)
scale, norm = np.ones(2, np.float32), np.ones(1, np.float32)
"""
NVFP4_OPERANDS = (
    EXAMPLE_OPERANDS.replace("MXFP8_E4M3", "NVFP4")
    .replace(
        'from_codes(qx.codes, "float8_e4m3fn"), from_codes(qw.codes, "float8_e4m3fn")',
        "pack_fp4(qx.codes), pack_fp4(qw.codes)",
    )
    .replace("float8_e8m0fnu", "float8_e4m3fn")
    .replace("import from_codes", "import from_codes, pack_fp4")
)
