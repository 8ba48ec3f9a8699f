"""The contract of SwiGLU's derivative over alternating 32-column blocks: dC and AB12 to d(AB12)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, ShapeError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.gemm.dswiglu.kernels import KERNELS
from cudnn_fe.gemm.operands import OPERAND_LAYOUT, matrix_output, require_major, stack_calls

__all__ = ["DSWIGLU", "Dswiglu"]

FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Dswiglu(Problem):
    """One call: the gradient of AB12 from that of C and, where AB12 itself was used, of AB12."""

    operands: ClassVar[tuple[str, ...]] = ("ab12", "dc", "upstream")
    optional: ClassVar[frozenset[str]] = frozenset({"upstream"})

    ab12: TensorSpec
    dc: TensorSpec
    upstream: TensorSpec | None
    dtype: DType

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Option: ``dtype`` of the result."""
        ab12, dc, upstream = operands
        assert ab12 is not None
        assert dc is not None
        ab12.require_rank(3, "(M, N, L)")
        m, n, batch = ab12.shape
        if n % 64:
            raise ShapeError(
                ab12.name, got=f"N = {n}", wanted="a multiple of 64", remedy="pass what gemm_swiglu_forward returned"
            )
        require_shape(dc, (m, n // 2, batch), "(M, N/2, L)")
        for spec in (ab12, dc, upstream):
            if spec is not None:
                require_dtype(spec, *FLOATS)
                require_major(spec, "(M, N, L)")
        if upstream is not None:
            require_shape(upstream, (m, n, batch), "(M, N, L)")
        require_same_device(ab12, dc, upstream)
        result = dtype(options["dtype"], operand="dtype")
        if result.name not in FLOATS:
            raise DTypeError("dtype", got=str(result), wanted=f"one of {', '.join(FLOATS)}", remedy="choose one")
        return cls(ab12, dc, upstream, result)

    @property
    def major(self) -> Literal["m", "n"]:
        """Contiguous dim of the result: AB12's."""
        return "n" if self.ab12.dense_in(1) else "m"

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """d(AB12) (M, N, L), laid out as AB12."""
        m, n, batch = self.ab12.shape
        return (matrix_output("dab12", m, n, batch, major=self.major, dtype=self.dtype, device=self.device),)

    @property
    def degenerate(self) -> bool:
        """Nothing to write."""
        return 0 in self.ab12.shape

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0

    def batched(self, size: int) -> Self | None:
        """``size`` calls with L = 1 are one call with L = ``size``."""
        if self.ab12.shape[2] != 1:
            return None
        upstream = None if self.upstream is None else stack_calls(self.upstream, size)
        return replace(self, ab12=stack_calls(self.ab12, size), dc=stack_calls(self.dc, size), upstream=upstream)


DSWIGLU = Op(
    name="dswiglu",
    package="cudnn-fe-gemm",
    problem=Dswiglu,
    reference="cudnn_fe.gemm.dswiglu.reference:dswiglu",
    kernels=KERNELS,
    summary="Derivative of SwiGLU over alternating 32-column blocks of value and gate.",
    formula=r"dX = dC\, G\, \sigma(G) + dX_0, \qquad dG = dC\, X\, \sigma(G)\,(1 + G\,(1 - \sigma(G))) + dG_0",
    tensors=(
        TensorRule("ab12", "(M, N, L)", OPERAND_LAYOUT, FLOATS, "value and gate, N % 64 == 0"),
        TensorRule("dc", "(M, N/2, L)", OPERAND_LAYOUT, FLOATS, "gradient of C"),
        TensorRule("upstream", "(M, N, L)", OPERAND_LAYOUT, FLOATS, "gradient of AB12 from elsewhere, or None"),
        TensorRule("dab12", "(M, N, L)", "compact, as AB12", FLOATS, "gradient of AB12"),
    ),
    results=("dab12",),
    public=False,
)
