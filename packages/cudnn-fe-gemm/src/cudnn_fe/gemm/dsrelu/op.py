"""The contract of the derivative of the squared-ReLU GEMM, with its pre-activation computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.block_scale.formats import BFLOAT16_NOTE
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import StrideError
from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.gemm.operands import OPERAND_LAYOUT
from cudnn_fe.gemm.scaled import ELEMENTS, FLOATS, PACKED_LAYOUT, RESULTS, SCALES
from cudnn_fe.gemm.scaled_kernels import scaled_kernels
from cudnn_fe.gemm.srelu.problem import SreluProblem, shared_fields

__all__ = ["DSRELU", "GemmDsrelu"]


@dataclass(frozen=True)
class GemmDsrelu(SreluProblem):
    """One call: with ``S = alpha * A @ B^T`` and the gradient C of the activation, the gradients of S and of prob."""

    operands: ClassVar[tuple[str, ...]] = ("a", "b", "sfa", "sfb", "c", "prob", "norm_const")
    accumulates: ClassVar[Mapping[int, Literal["sum", "maximum"]]] = MappingProxyType({1: "sum", 2: "maximum"})

    c: TensorSpec

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options are those of `cudnn_fe.gemm.gemm_srelu_backward`."""
        *quantised, c, prob, norm_const = operands
        assert c is not None
        problem = cls(**shared_fields(tuple(quantised), prob, norm_const, options, "d_major"), c=c)
        m, n, _, batch = problem.extents
        require_shape(c, (m, n, batch), "(M, N, L)")
        require_dtype(c, *FLOATS)
        require_same_device(problem.a, c)
        if c.size and not c.dense_in(1 if problem.major == "n" else 0):
            raise StrideError(
                c.name,
                got=f"strides {c.strides} for d_major={problem.major!r}",
                wanted="C contiguous along the same dim as D",
                remedy="pass the d_major that C has",
            )
        return problem

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """D (M, N, L), dprob (M, 1, L), amax, and D's scales."""
        shape = self.prob.shape
        dprob = TensorSpec(shape, contiguous_strides(shape), dtype("float32"), self.device, 16, "dprob_tensor")
        return self.matrix("d_tensor", self.result_dtype), dprob, self.amax_output, self.scales_output

    def check_output_layout(self, position: int, given: TensorSpec) -> None:
        """dprob, which is added to, may lie anyhow."""
        if position != 1:
            super().check_output_layout(position, given)


EXAMPLE = """\
import numpy as np
from cudnn_fe.core.block_scale import MXFP8_E4M3, quantize, swizzle_scales
from cudnn_fe.core.codecs import from_codes
from cudnn_fe.gemm import gemm_srelu_backward, gemm_srelu_forward

rng = np.random.default_rng(0)
x, w = rng.standard_normal((5, 64), dtype=np.float32), rng.standard_normal((7, 64), dtype=np.float32)
qx, qw = quantize(x, MXFP8_E4M3), quantize(w, MXFP8_E4M3)
a, b = (from_codes(q.codes, "float8_e4m3fn")[:, :, None] for q in (qx, qw))
sfa, sfb = (from_codes(swizzle_scales(q.scales), "float8_e8m0fnu") for q in (qx, qw))
prob, upstream = np.full((5, 1, 1), 0.5, np.float32), np.ones((5, 7, 1), np.float32)
out = gemm_srelu_backward(a, b, upstream, sfa, sfb, prob, d_dtype="float32", sf_vec_size=32)
s = gemm_srelu_forward(a, b, sfa, sfb, prob, c_dtype="float32", sf_vec_size=32)["c_tensor"]
np.testing.assert_array_equal(out["d_tensor"], np.maximum(s, 0))  # 2 * relu(s) * upstream * prob
"""

DSRELU = Op(
    name="gemm_srelu_backward",
    package="cudnn-fe-gemm",
    problem=GemmDsrelu,
    reference="cudnn_fe.gemm.dsrelu.reference:gemm_dsrelu",
    kernels=scaled_kernels("dsrelu"),
    summary="Gradients of the squared-ReLU GEMM's pre-activation and row factors, recomputing the former.",
    formula=r"S = \alpha \hat A \hat B^T, \quad r = \max(S, 0), \quad D_{mnl} = 2 r_{mnl} C_{mnl} p_{ml}, "
    r"\quad dp_{ml} = \sum_n r_{mnl}^2 C_{mnl}",
    tensors=(
        TensorRule("a_tensor", "(M, K, L)", OPERAND_LAYOUT, ELEMENTS, "operand A; FP4 pairs packed along K"),
        TensorRule("b_tensor", "(N, K, L)", OPERAND_LAYOUT, ELEMENTS, "operand B; dtype of A"),
        TensorRule("c_tensor", "(M, N, L)", "contiguous along d_major", FLOATS, "gradient of the activation"),
        TensorRule("sfa_tensor", "packed, M rows", PACKED_LAYOUT, SCALES, "scale factors of A"),
        TensorRule("sfb_tensor", "packed, N rows", PACKED_LAYOUT, SCALES, "scale factors of B"),
        TensorRule("prob_tensor", "(M, 1, L)", "any strides", ("float32",), "factor of each row"),
        TensorRule("norm_const_tensor", "(1,)", "-", ("float32",), "factor of a quantised D; needed for FP8 D"),
        TensorRule("d_tensor", "(M, N, L)", "compact, d_major", RESULTS, "gradient of S; FP8 with FP8 operands only"),
        TensorRule("dprob_tensor", "(M, 1, L)", "C-contiguous", ("float32",), "gradient of prob"),
        TensorRule("amax_tensor", "(1,)", "-", ("float32",), "max |D| unrounded; with FP4 operands, else None"),
        TensorRule("sfd_tensor", "packed, M rows", PACKED_LAYOUT, SCALES, "scales of an FP8 D along N, else None"),
    ),
    example=EXAMPLE,
    source="Derivative of gemm_srelu_forward; names and layouts of cudnn-frontend 1.32's gemm_dsrelu.",
    notes=(
        "The pre-activation is computed again and not rounded. NaN stays NaN.",
        "Bit-equal from run to run on one device: dprob is a sum in fixed order, without atomics.",
        "The class adds dprob to what its buffer holds and takes the maximum of what its amax buffer holds.",
        "An FP8 D is quantised along N by the recipe `epilogue` of `cudnn_fe.core.block_scale`.",
        BFLOAT16_NOTE,
    ),
    results=("d_tensor", "dprob_tensor", "amax_tensor", "sfd_tensor"),
    scalars=("alpha",),
    legacy=("gemm_dsrelu_wrapper_sm100", "GemmDsreluSm100", "gemm_dsrelu_jax_sm100"),
    jax_name="gemm_srelu_jax_backward",
    memory_cases="cudnn_fe.gemm.torch_bench:dsrelu",
)
