"""The contract of the FP4 grouped GEMM with an activation, quantised to NVFP4, and its Hadamard transforms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.block_scale import scale_shape
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError
from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.glu_hadamard.op import require_fp4
from cudnn_fe.grouped.glu_hadamard_quant.kernel_spec import quant_scratch, quant_spec
from cudnn_fe.grouped.glu_scaled.op import FORMULA, C
from cudnn_fe.grouped.operands import output, require_multiple
from cudnn_fe.grouped.scaled.docs import ADDRESSES, BIAS, NOTES, NVFP4_OPERANDS, PROB, ROWS, WEIGHTS
from cudnn_fe.grouped.scaled.forward import ScaledForward, forward_fields
from cudnn_fe.grouped.scaled.forward_spec import forward_kernels
from cudnn_fe.grouped.scaled.problem import PACKED, is_fp4

__all__ = ["FORWARD", "KEYS", "GluHadamardQuant"]

KEYS = (
    "c_tensor",
    "d_tensor",
    "sfd_tensor",
    "rht_rowwise_tensor",
    "sfrht_rowwise_tensor",
    "rht_colwise_tensor",
    "sfrht_colwise_tensor",
)
_BLOCK = 16
_FP4 = ("float4_e2m1fn", "uint8")


@dataclass(frozen=True)
class GluHadamardQuant(ScaledForward):
    """One call: an activation of scaled products rounded to bfloat16, quantised or not, and transforms of it.

    Attributes:
        rht_rowwise_dtype: Of the transform along columns, or None.
        rht_colwise_dtype: Of the transform along each expert's rows, FP4, or None.
        glu_alpha: Factor of a gated activation, or None for 1.
        glu_limit: Bound of gate and up, or None.
    """

    output_count: ClassVar[int] = 7
    of_rows: ClassVar[tuple[int, ...]] = (0, 1, 3)
    accumulates: ClassVar[Mapping[int, Literal["sum", "maximum"]]] = MappingProxyType({})

    rht_rowwise_dtype: DType | None
    rht_colwise_dtype: DType | None
    glu_alpha: float | None
    glu_limit: float | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options are the fields that are no operands."""
        fields = forward_fields(operands, options, ("bfloat16", *_FP4))
        require_fp4(fields["a_tensor"])
        rows, columns = (
            _copy_dtype(options[name], name, allowed)
            for name, allowed in (("rht_rowwise_dtype", ("bfloat16", *_FP4)), ("rht_colwise_dtype", _FP4))
        )
        problem = cls(
            **fields,
            rht_rowwise_dtype=rows,
            rht_colwise_dtype=columns,
            glu_alpha=_number(options["glu_alpha"], "glu_alpha"),
            glu_limit=_number(options["glu_limit"], "glu_limit"),
        )
        width, weights = problem.width, problem.b_tensor.name
        if rows is not None or is_fp4(problem.d_dtype):
            require_multiple(weights, width, _BLOCK, f"results in blocks of {_BLOCK} columns")
        if columns is not None:
            require_multiple(weights, width, 128, "results of whole atoms by columns")
            m = problem.a_tensor.shape[0]
            if m % _BLOCK:
                raise ShapeError(
                    problem.a_tensor.name, got=f"M = {m}", wanted=f"a multiple of {_BLOCK}", remedy="pad the rows"
                )
        return problem

    @property
    def width(self) -> int:
        """Columns of D."""
        n = self.extents[1]
        return n // 2 if self.gated else n

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """C, D, its scales, the transform along columns, its scales, that along rows, its scales; empty if unwanted."""
        m, width, place = self.a_tensor.shape[0], self.width, self.device
        scales = self.sfa_tensor.dtype if self.sfa_tensor.dtype.name.startswith("float") else "float8_e8m0fnu"
        by_column = self.rht_colwise_dtype
        return (
            super().outputs[0],
            self._matrix("d_tensor", self.d_dtype),
            self._scales("sfd_tensor", self.d_dtype, scales),
            self._matrix("rht_rowwise_tensor", self.rht_rowwise_dtype),
            self._scales("sfrht_rowwise_tensor", self.rht_rowwise_dtype, "float8_e4m3fn"),
            output("rht_colwise_tensor", (m * width // 2 if by_column else 0,), by_column or "uint8", place),
            output("sfrht_colwise_tensor", (m * width // _BLOCK if by_column else 0,), "float8_e4m3fn", place),
        )

    def _matrix(self, name: str, kind: DType | None) -> TensorSpec:
        m, width = self.a_tensor.shape[0], self.width
        if kind is None:
            return output(name, (0, width), "bfloat16", self.device)
        return output(name, (m, width // 2 if is_fp4(kind) else width), kind, self.device)

    def _scales(self, name: str, kind: DType | None, scale: DType | str) -> TensorSpec:
        shape: tuple[int, ...] = (0,)
        if kind is not None and is_fp4(kind):
            shape = scale_shape(self.a_tensor.shape[0], -(-self.width // _BLOCK))
        return output(name, shape, scale, self.device)


def _copy_dtype(given: Any, name: str, allowed: tuple[str, ...]) -> DType | None:
    if given is None:
        return None
    kind = dtype(given, operand=name)
    if kind.name not in allowed:
        raise DTypeError(name, got=str(kind), wanted=f"None or {' or '.join(allowed)}", remedy="choose a listed dtype")
    return kind


def _number(given: Any, name: str) -> float | None:
    if given is None:
        return None
    if not isinstance(given, int | float) or math.isnan(given) or (name == "glu_limit" and given < 0):
        raise OptionError(name, got=repr(given), wanted="None or a number", remedy="leave it out")
    return float(given)


EXAMPLE = (
    NVFP4_OPERANDS
    + """\
from cudnn_fe.grouped import grouped_gemm_glu_hadamard_quant_forward

out = grouped_gemm_glu_hadamard_quant_forward(a, sfa, ends, scale, ones, b, sfb, rht_rowwise_dtype="bfloat16")
d = out["d_tensor"].astype(np.float32)
h = np.array([[(-1) ** (i & j).bit_count() for j in range(16)] for i in range(16)])
wanted = (d.reshape(5, 2, 16) @ h).reshape(5, 32) / 4
np.testing.assert_allclose(out["rht_rowwise_tensor"].astype(np.float32), wanted, rtol=2.0**-8, atol=1e-6)
"""
)
_KINDS = ("bfloat16", "float4_e2m1fn", "uint8")

FORWARD = Op(
    name="grouped_gemm_glu_hadamard_quant_forward",
    package="cudnn-fe-grouped",
    problem=GluHadamardQuant,
    reference="cudnn_fe.grouped.glu_hadamard_quant.reference:glu_hadamard_quant",
    kernels=forward_kernels(2, "cudnn_fe.grouped.glu_hadamard_quant.portable", quant_spec, quant_scratch),
    summary="Grouped GEMM of FP4 operands with an activation that is quantised to NVFP4, and its Hadamard transforms "
    "along columns and along rows.",
    formula=FORMULA + r", \qquad R_{m,\,16i+j} = \sum_k H_{jk} D_{m,\,16i+k}, \quad T_{16i+j,\,n} = \sum_k H_{jk} "
    r"D_{16i+k,\,n}",
    tensors=(
        *ROWS,
        *WEIGHTS,
        *ADDRESSES,
        BIAS,
        PROB,
        C,
        TensorRule("d_tensor", "(M, W), FP4 (M, W/2)", "contiguous", _KINDS, "the activation; W is N/2, or N of srelu"),
        TensorRule("sfd_tensor", "M rows", PACKED, ("float8_e4m3fn", "float8_e8m0fnu"), "its scales along W, or None"),
        TensorRule("rht_rowwise_tensor", "as D", "contiguous", _KINDS, "transformed along columns, or None"),
        TensorRule("sfrht_rowwise_tensor", "M rows", PACKED, ("float8_e4m3fn",), "its scales, or None"),
        TensorRule("rht_colwise_tensor", "(M W/2,)", "(W, rows) of each expert", _KINDS[1:], "transformed along rows"),
        TensorRule("sfrht_colwise_tensor", "(M W/16,)", "see notes", ("float8_e4m3fn",), "its scales, or None"),
    ),
    example=EXAMPLE,
    source="OCP Microscaling (MX) v1.0 and NVFP4; names and layouts of cudnn-frontend 1.32's "
    "grouped_gemm_glu_hadamard_quant.",
    notes=(
        *(note for note in NOTES if "result with scales" not in note and not note.startswith("amax")),
        "The activation is rounded to bfloat16 first; everything else starts from that. swiglu and geglu (U + 1, "
        "sigmoid of 1.702 G) bound gate and up by `glu_limit` if it is given, and have no bounds of their own. A gated "
        "zero is positive.",
        "The transform H of 16 is in natural order, of signs 1 and -1 over 4, its result rounded to bfloat16. Along "
        "rows its blocks start at each expert's first row.",
        "NVFP4 results: scale = E4M3(max |x| / 6 * norm), code = E2M1(x * min(norm / scale, FLT_MAX)); value = code * "
        "scale / norm. The transform along rows lies expert by expert: codes as a (W, rows) matrix, pairs along rows; "
        "scales in C order of (32, 4, W/128, 4, rows/64), which asks for experts of whole 64 rows. "
        "`grouped_gemm_wgrad_forward` reads another order.",
        "Both transforms may be asked for at once, uint8 operands are packed pairs, and blocks of 32 with E8M0 scales "
        "are served, beyond the vendor.",
    ),
    results=KEYS,
    scalars=("norm_const", "rht_norm_const"),
    legacy=("grouped_gemm_glu_hadamard_quant_wrapper_sm100", "GroupedGemmGluHadamardQuantSm100"),
    jax_name="grouped_gemm_glu_hadamard_quant_jax_forward",
    memory_cases="cudnn_fe.grouped.scaled.torch_bench:hadamard_quant",
)
