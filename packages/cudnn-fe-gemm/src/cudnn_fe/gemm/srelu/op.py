"""The contract of the block-scaled GEMM with squared ReLU and a factor for every row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.block_scale.formats import BFLOAT16_NOTE
from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.gemm.operands import OPERAND_LAYOUT
from cudnn_fe.gemm.scaled import ELEMENTS, PACKED_LAYOUT, RESULTS, SCALES, require_result
from cudnn_fe.gemm.scaled_kernels import scaled_kernels
from cudnn_fe.gemm.srelu.problem import SreluProblem, shared_fields

__all__ = ["SRELU", "GemmSrelu"]


@dataclass(frozen=True)
class GemmSrelu(SreluProblem):
    """One call: ``C = alpha * A @ B^T`` and ``D = prob * relu(C)**2``, from the unrounded C."""

    operands: ClassVar[tuple[str, ...]] = ("a", "b", "sfa", "sfb", "prob", "norm_const")
    accumulates: ClassVar[Mapping[int, Literal["sum", "maximum"]]] = MappingProxyType({2: "maximum"})

    c_dtype: DType

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options are those of `cudnn_fe.gemm.gemm_srelu_forward`."""
        *quantised, prob, norm_const = operands
        fields = shared_fields(tuple(quantised), prob, norm_const, options, "c_major")
        return cls(**fields, c_dtype=require_result(options["c_dtype"], "c_dtype"))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """C and D (M, N, L), amax, and D's scales."""
        c, d = self.matrix("c_tensor", self.c_dtype), self.matrix("d_tensor", self.result_dtype)
        return c, d, self.amax_output, self.scales_output


EXAMPLE = """\
import ml_dtypes
import numpy as np
from cudnn_fe.core.block_scale import MXFP8_E4M3, quantize, swizzle_scales
from cudnn_fe.core.codecs import from_codes
from cudnn_fe.gemm import gemm_srelu_forward

rng = np.random.default_rng(0)
x, w = rng.standard_normal((5, 64), dtype=np.float32), rng.standard_normal((7, 64), dtype=np.float32)
qx, qw = quantize(x, MXFP8_E4M3), quantize(w, MXFP8_E4M3)
a, b = (from_codes(q.codes, "float8_e4m3fn")[:, :, None] for q in (qx, qw))
sfa, sfb = (from_codes(swizzle_scales(q.scales), "float8_e8m0fnu") for q in (qx, qw))
prob = np.full((5, 1, 1), 0.5, np.float32)
out = gemm_srelu_forward(a, b, sfa, sfb, prob, c_dtype="float32", d_dtype="float32", sf_vec_size=32)
np.testing.assert_array_equal(out["d_tensor"], 0.5 * np.maximum(out["c_tensor"], 0) ** 2)
"""

SRELU = Op(
    name="gemm_srelu_forward",
    package="cudnn-fe-gemm",
    problem=GemmSrelu,
    reference="cudnn_fe.gemm.srelu.reference:gemm_srelu",
    kernels=scaled_kernels("srelu"),
    summary="Batched GEMM of quantised operands, squared ReLU and a factor for every row.",
    formula=r"S = \alpha \hat A \hat B^T, \quad C = \mathrm{cvt}(S), \quad D_{mnl} = p_{ml} \max(S_{mnl}, 0)^2",
    tensors=(
        TensorRule("a_tensor", "(M, K, L)", OPERAND_LAYOUT, ELEMENTS, "operand A; FP4 pairs packed along K"),
        TensorRule("b_tensor", "(N, K, L)", OPERAND_LAYOUT, ELEMENTS, "operand B; dtype of A"),
        TensorRule("sfa_tensor", "packed, M rows", PACKED_LAYOUT, SCALES, "scale factors of A"),
        TensorRule("sfb_tensor", "packed, N rows", PACKED_LAYOUT, SCALES, "scale factors of B"),
        TensorRule("prob_tensor", "(M, 1, L)", "any strides", ("float32",), "factor of each row of D"),
        TensorRule("norm_const_tensor", "(1,)", "-", ("float32",), "factor of a quantised D; needed for FP8 D"),
        TensorRule("c_tensor", "(M, N, L)", "compact, c_major", RESULTS, "S rounded, kept for the backward"),
        TensorRule("d_tensor", "(M, N, L)", "compact, c_major", RESULTS, "the activation; FP8 with FP8 operands only"),
        TensorRule("amax_tensor", "(1,)", "-", ("float32",), "max |D| unrounded; with FP4 operands, else None"),
        TensorRule("sfd_tensor", "packed, M rows", PACKED_LAYOUT, SCALES, "scales of an FP8 D along N, else None"),
    ),
    example=EXAMPLE,
    source="So et al., Primer (2021) for squared ReLU; names and layouts of cudnn-frontend 1.32's gemm_srelu.",
    notes=(
        "The activation reads the unrounded sums, in every mode. NaN stays NaN; the vendor makes it 0.",
        "An FP8 D is quantised along N by the recipe `epilogue` of `cudnn_fe.core.block_scale`, and C is a plain cast. "
        "The vendor accepts that mode and leaves D undefined.",
        "The class takes the maximum of what its amax buffer holds and the result.",
        "Differentiable in prob_tensor; quantised operands carry no gradients: gemm_srelu_backward gives that of S.",
        "Accepted beyond the vendor: uint8 as packed FP4, any M, N, K and L from 0, NumPy arrays.",
        BFLOAT16_NOTE,
    ),
    results=("c_tensor", "d_tensor", "amax_tensor", "sfd_tensor"),
    gradient="cudnn_fe.gemm.srelu.gradient:GRADIENT",
    scalars=("alpha",),
    legacy=("gemm_srelu_wrapper_sm100", "GemmSreluSm100", "gemm_srelu_jax_sm100"),
    jax_name="gemm_srelu_jax_forward",
    memory_cases="cudnn_fe.gemm.torch_bench:srelu",
)
