"""The contract of the plain batched GEMM, which the backwards use and every fusion is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError
from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.gemm.kernels import gemm_kernels
from cudnn_fe.gemm.operands import OPERAND_LAYOUT, major_of, matrix_output, require_matrices
from cudnn_fe.gemm.problem import GemmProblem

__all__ = ["MATMUL", "Matmul"]

OPERANDS = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")
RESULTS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Matmul(GemmProblem):
    """One call: ``D = alpha * A @ B^T``."""

    d_major: Literal["m", "n"]
    d_dtype: DType

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``d_dtype`` and ``d_major``."""
        a, b = operands
        assert a is not None
        assert b is not None
        require_matrices(a, b, OPERANDS)
        result = dtype(options["d_dtype"], operand="d_dtype")
        if result.name not in RESULTS:
            raise DTypeError("d_dtype", got=str(result), wanted=f"one of {', '.join(RESULTS)}", remedy="choose one")
        return cls(a, b, major_of(options["d_major"], "d_major"), result)

    @property
    def out_major(self) -> Literal["m", "n"]:
        """Contiguous dim of the results."""
        return self.d_major

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """D (M, N, L)."""
        m, n, _, batch = self.extents
        return (matrix_output("d_tensor", m, n, batch, major=self.d_major, dtype=self.d_dtype, device=self.device),)


MATMUL = Op(
    name="matmul",
    package="cudnn-fe-gemm",
    problem=Matmul,
    reference="cudnn_fe.gemm.matmul.reference:matmul",
    kernels=gemm_kernels("matmul", "identity"),
    summary="Batched GEMM of the same main loop as the fusions.",
    formula=r"D_{mnl} = \alpha \sum_k A_{mkl} B_{nkl}",
    tensors=(
        TensorRule("a_tensor", "(M, K, L)", OPERAND_LAYOUT, OPERANDS, "operand A"),
        TensorRule("b_tensor", "(N, K, L)", OPERAND_LAYOUT, OPERANDS, "operand B; dtype of A"),
        TensorRule("d_tensor", "(M, N, L)", "compact, d_major", RESULTS, "the product"),
    ),
    results=("d_tensor",),
    scalars=("alpha",),
    public=False,
)
