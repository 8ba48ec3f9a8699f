"""The contract of GEMM + SwiGLU of quantised operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.block_scale.formats import BFLOAT16_NOTE
from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.gemm.hints import check_tile_hints
from cudnn_fe.gemm.operands import OPERAND_LAYOUT
from cudnn_fe.gemm.scaled import (
    ELEMENTS,
    PACKED_LAYOUT,
    RESULTS,
    SCALES,
    QuantisingProblem,
    quantising_fields,
    require_result,
)
from cudnn_fe.gemm.scaled_kernels import scaled_kernels
from cudnn_fe.gemm.swiglu.op import require_pairs, require_positive

__all__ = ["SCALED", "GemmSwigluScaled"]


@dataclass(frozen=True)
class GemmSwigluScaled(QuantisingProblem):
    """One call: ``AB12 = alpha * A @ B^T`` of quantised operands, SwiGLU of it, which may be quantised, its amax."""

    operands: ClassVar[tuple[str, ...]] = ("a", "b", "sfa", "sfb", "norm_const")
    output_count: ClassVar[int] = 4
    accumulates: ClassVar[Mapping[int, Literal["sum", "maximum"]]] = MappingProxyType({3: "maximum"})
    scales_name: ClassVar[str] = "sfc_tensor"
    columns_per_result: ClassVar[int] = 2

    ab12_dtype: DType

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options are those of `cudnn_fe.gemm.gemm_swiglu_scaled_forward`."""
        *quantised, norm_const = operands
        fields = quantising_fields(tuple(quantised), norm_const, options, ("c_major", "c_dtype"))
        require_pairs(fields["b"])
        check_tile_hints(options["mma_tiler_mn"], options["cluster_shape_mn"], scaled=True)
        require_positive(options, "ab12_stages")
        return cls(**fields, ab12_dtype=require_result(options["ab12_dtype"], "ab12_dtype"))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """AB12 (M, N, L), C (M, N/2, L), C's scales, and its amax."""
        c = self.matrix("c_tensor", self.result_dtype, self.extents[1] // 2)
        return self.matrix("ab12_tensor", self.ab12_dtype), c, self.scales_output, self.amax_output


EXAMPLE = """\
import numpy as np
from cudnn_fe.core.block_scale import MXFP8_E4M3, quantize, swizzle_scales
from cudnn_fe.core.codecs import from_codes
from cudnn_fe.gemm import gemm_swiglu_scaled_forward

rng = np.random.default_rng(0)
x, w = rng.standard_normal((5, 64), dtype=np.float32), rng.standard_normal((128, 64), dtype=np.float32)
qx, qw = quantize(x, MXFP8_E4M3), quantize(w, MXFP8_E4M3)
a, b = (from_codes(q.codes, "float8_e4m3fn")[:, :, None] for q in (qx, qw))
sfa, sfb = (from_codes(swizzle_scales(q.scales), "float8_e8m0fnu") for q in (qx, qw))
out = gemm_swiglu_scaled_forward(a, b, sfa, sfb, sf_vec_size=32)
value, gate = out["ab12_tensor"][:, :32], out["ab12_tensor"][:, 32:64]
np.testing.assert_allclose(out["c_tensor"][:, :32], value * gate / (1 + np.exp(-gate)), rtol=2e-3, atol=1e-3)
"""

SCALED = Op(
    name="gemm_swiglu_scaled_forward",
    package="cudnn-fe-gemm",
    problem=GemmSwigluScaled,
    reference="cudnn_fe.gemm.swiglu_scaled.reference:gemm_swiglu_scaled",
    kernels=scaled_kernels("swiglu"),
    summary="GEMM of MXFP8, MXFP4 or NVFP4 operands followed by SwiGLU: the block-scaled mode of gemm_swiglu_forward.",
    formula=r"S = \alpha \hat A \hat B^T, \qquad "
    r"C_{m,\,32b+j,\,l} = X \cdot G \cdot \sigma(G), \quad X = S_{m,\,64b+j,\,l},\; G = S_{m,\,64b+32+j,\,l}",
    tensors=(
        TensorRule("a_tensor", "(M, K, L)", OPERAND_LAYOUT, ELEMENTS, "operand A; FP4 pairs packed along K"),
        TensorRule("b_tensor", "(N, K, L)", OPERAND_LAYOUT, ELEMENTS, "operand B, N % 64 == 0; dtype of A"),
        TensorRule("sfa_tensor", "packed, M rows", PACKED_LAYOUT, SCALES, "scale factors of A"),
        TensorRule("sfb_tensor", "packed, N rows", PACKED_LAYOUT, SCALES, "scale factors of B"),
        TensorRule("norm_const_tensor", "(1,)", "-", ("float32",), "factor of a quantised C; needed for FP8 C"),
        TensorRule("ab12_tensor", "(M, N, L)", "compact, c_major", RESULTS, "S rounded"),
        TensorRule(
            "c_tensor", "(M, N/2, L)", "compact, c_major", RESULTS, "the activation; FP8 with FP8 operands only"
        ),
        TensorRule("sfc_tensor", "packed, M rows", PACKED_LAYOUT, SCALES, "scales of an FP8 C along N/2, else None"),
        TensorRule("amax_tensor", "(1, 1, 1)", "-", ("float32",), "max |C| unrounded: FP4 operands and bfloat16 C"),
    ),
    example=EXAMPLE,
    source="Shazeer, GLU Variants Improve Transformer (2020); names and layouts of cudnn-frontend 1.32's gemm_swiglu.",
    notes=(
        "The activation reads the unrounded float32 sums. NaN stays NaN; a gate of minus infinity gives it.",
        "An FP8 AB12 is a plain, saturating cast. An FP8 C is quantised along its columns by the recipe `epilogue` of "
        "`cudnn_fe.core.block_scale`; the vendor documents that mode and refuses every way to it.",
        "The class takes the maximum of what its amax buffer holds and the result.",
        "Accepted beyond the vendor: every listed dtype of AB12 and C together, both majors of results, uint8 as "
        "packed FP4, any M, K and L from 0, extents that are no multiples of the tile, NumPy arrays.",
        BFLOAT16_NOTE,
    ),
    results=("ab12_tensor", "c_tensor", "sfc_tensor", "amax_tensor"),
    scalars=("alpha",),
    jax_name="gemm_swiglu_jax_forward",
    memory_cases="cudnn_fe.gemm.torch_bench:swiglu_scaled",
)
