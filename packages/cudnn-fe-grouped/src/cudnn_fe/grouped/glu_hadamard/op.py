"""The contract of the FP4 grouped GEMM with an activation that measures its Hadamard transform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.errors import DTypeError
from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.core.require import require_dtype, require_shape
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.glu_scaled.op import FORMULA, NUMBERS, C
from cudnn_fe.grouped.operands import FLOATS, output
from cudnn_fe.grouped.scaled.docs import ADDRESSES, BIAS, NOTES, NVFP4_OPERANDS, PROB, ROWS, WEIGHTS
from cudnn_fe.grouped.scaled.forward import ScaledForward, forward_fields
from cudnn_fe.grouped.scaled.forward_spec import forward_kernels
from cudnn_fe.grouped.scaled.problem import is_fp4

__all__ = ["FORWARD", "HADAMARD_NOTES", "KEYS", "GluHadamard", "require_fp4"]

KEYS = ("c_tensor", "d_tensor", "amax_tensor", "post_rht_amax_tensor")


def require_fp4(a: TensorSpec) -> None:
    """Raises DTypeError unless the rows are FP4."""
    if not is_fp4(a.dtype):
        raise DTypeError(a.name, got=str(a.dtype), wanted="FP4 pairs", remedy="quantise to NVFP4 or MXFP4")


@dataclass(frozen=True)
class GluHadamard(ScaledForward):
    """One call: an activation of scaled products, and per expert the largest value before and after a transform.

    Attributes:
        hadamard_tensor: (16, 16) matrix of the transform, or None for the natural-order Hadamard matrix.
    """

    operands: ClassVar[tuple[str, ...]] = (*ScaledForward.operands, "hadamard_tensor")
    optional: ClassVar[frozenset[str]] = ScaledForward.optional | {"hadamard_tensor"}
    output_count: ClassVar[int] = 4
    of_rows: ClassVar[tuple[int, ...]] = (0, 1)
    accumulates: ClassVar[Mapping[int, Literal["sum", "maximum"]]] = MappingProxyType({2: "maximum", 3: "maximum"})
    amax_start: ClassVar[float] = 0.0

    hadamard_tensor: TensorSpec | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options are the fields that are no operands."""
        *shared, matrix = operands
        fields = forward_fields(tuple(shared), options, ("float16", "bfloat16"))
        require_fp4(fields["a_tensor"])
        if matrix is not None:
            require_shape(matrix, (16, 16), "(16, 16)")
            require_dtype(matrix, *FLOATS)
        return cls(**fields, hadamard_tensor=matrix)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """C (M, N), D (M, W), amax (L, 1) before and after the transform."""
        c, d, *_ = super().outputs
        count = self.padded_offsets.shape[0]
        amaxes = (output(name, (count, 1), "float32", self.device) for name in KEYS[2:])
        return c, d, *amaxes


HADAMARD_NOTES = (
    "The transform H of 16 is in natural order, of signs 1 and -1 over 4. Along rows of the buffer its blocks start at "
    "each expert's first row; a last block that is short is filled up with zeros.",
    "swiglu, geglu (bounded by 7, sigmoid of 1.702 G, U + 1) and situglu as in grouped_gemm_glu_forward; srelu is "
    "squared ReLU of all N columns. D is not transformed, whatever the vendor's documentation says.",
)
EXAMPLE = (
    NVFP4_OPERANDS
    + """\
from cudnn_fe.grouped import grouped_gemm_glu_hadamard_forward

out = grouped_gemm_glu_hadamard_forward(a, sfa, ends, scale, ones, b, sfb, act_func="srelu")
d = out["d_tensor"][2:].astype(np.float32)
h = np.array([[(-1) ** (i & j).bit_count() for j in range(16)] for i in range(16)])
wanted = np.abs(h @ np.pad(d, ((0, 13), (0, 0)))).max() / 4
np.testing.assert_allclose(out["post_rht_amax_tensor"][1, 0], wanted, rtol=1e-5)
"""
)

FORWARD = Op(
    name="grouped_gemm_glu_hadamard_forward",
    package="cudnn-fe-grouped",
    problem=GluHadamard,
    reference="cudnn_fe.grouped.glu_hadamard.reference:glu_hadamard",
    kernels=forward_kernels(len(NUMBERS), "cudnn_fe.grouped.glu_hadamard.portable"),
    summary="Grouped GEMM of FP4 operands with an activation, and each expert's largest value before and after a "
    "Hadamard transform along its rows.",
    formula=FORMULA + r", \qquad \mathrm{amax}_g = \max_{m \in g} |D|, \; "
    r"\mathrm{post}_g = \tfrac14 \max_{\text{16 rows} \subset g} |H D|",
    tensors=(
        *ROWS,
        *WEIGHTS,
        *ADDRESSES,
        BIAS,
        PROB,
        C,
        TensorRule("d_tensor", "(M, N/2); (M, N) of srelu", "contiguous", ("float16", "bfloat16"), "the activation"),
        TensorRule(
            "amax_tensor", "(L, 1)", "contiguous", ("float32",), "max |D| unrounded; 0 for an expert without rows"
        ),
        TensorRule("post_rht_amax_tensor", "(L, 1)", "contiguous", ("float32",), "the same of H times D in bfloat16"),
    ),
    example=EXAMPLE,
    source="OCP Microscaling (MX) v1.0 and NVFP4 for the operands; names and layouts of cudnn-frontend 1.32's "
    "grouped_gemm_glu_hadamard.",
    notes=(
        *(note for note in NOTES if "result with scales" not in note and not note.startswith("amax")),
        *HADAMARD_NOTES,
        "Both maxima start at 0; NaN if a value is. A matrix given to the class is used, in every mode.",
    ),
    results=KEYS,
    scalars=NUMBERS,
    legacy=("grouped_gemm_glu_hadamard_wrapper_sm100", "GroupedGemmGluHadamardSm100"),
    jax_name="grouped_gemm_glu_hadamard_jax_forward",
    memory_cases="cudnn_fe.grouped.scaled.torch_bench:hadamard",
)
