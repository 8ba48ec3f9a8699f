"""The contract of the gated activation's gradient: rules, outputs, documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.pairs import PAIR_BLOCK
from cudnn_fe.core.require import require_same_device
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.glu.op import Activation, activation
from cudnn_fe.grouped.glu_gradient.kernels import KERNELS
from cudnn_fe.grouped.operands import FLOATS, output, output_dtype, require_experts, require_multiple, require_rows

__all__ = ["GLU_GRADIENT", "GluGradient"]


@dataclass(frozen=True)
class GluGradient(Problem):
    """One call: from the gradient of the activation to that of its gates and ups."""

    operands: ClassVar[tuple[str, ...]] = ("c", "dd", "offsets", "prob", "alpha", "dc")
    optional: ClassVar[frozenset[str]] = frozenset({"alpha", "dc"})
    output_count: ClassVar[int] = 2

    c: TensorSpec
    dd: TensorSpec
    offsets: TensorSpec
    prob: TensorSpec
    alpha: TensorSpec | None
    dc: TensorSpec | None
    act_func: Activation
    dtype: DType

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``act_func``, ``dtype`` of the first result."""
        c, dd, offsets, prob, alpha, dc = operands
        assert c is not None
        assert dd is not None
        assert offsets is not None
        assert prob is not None
        c.require_rank(2, "(M, N)")
        m, n = c.shape
        require_multiple(c.name, n, 2 * PAIR_BLOCK, f"blocks of {PAIR_BLOCK} gate and {PAIR_BLOCK} up columns")
        require_rows(c, (m, n), "(M, N)", *FLOATS)
        require_rows(dd, (m, n // 2), "(M, N/2)", *FLOATS)
        count = require_experts(offsets)
        require_rows(prob, (m,), "(M,)", "float32")
        if alpha is not None:
            require_rows(alpha, (count,), "(L,)", "float32")
        if dc is not None:
            require_rows(dc, (m, n), "(M, N)", *FLOATS)
        require_same_device(c, dd, offsets, prob, alpha, dc)
        return cls(
            c, dd, offsets, prob, alpha, dc, activation(options["act_func"]), output_dtype(options["dtype"], "dtype")
        )

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """dC (M, N) and dprob (M,); zeros in rows past the end."""
        return (
            output("ds", self.c.shape, self.dtype, self.device),
            output("dprob", self.prob.shape, "float32", self.device),
        )

    @property
    def degenerate(self) -> bool:
        """Nothing to write."""
        return 0 in self.c.shape

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


GLU_GRADIENT = Op(
    name="grouped_glu_gradient",
    package="cudnn-fe-grouped",
    problem=GluGradient,
    reference="cudnn_fe.grouped.glu_gradient.reference:glu_gradient",
    kernels=KERNELS,
    summary="Derivative of a gated activation over alternating 32-column blocks of gate and up, for grouped rows.",
    formula=r"dC_G = \alpha_g (p_m dD\, \partial_G f + dC_{0,G}), \; "
    r"dC_U = \alpha_g (p_m dD\, \partial_U f + dC_{0,U}), \; dp_m = \sum_n dD_{mn} f(G, U)",
    tensors=(
        TensorRule("c", "(M, N)", "contiguous", FLOATS, "gate and up, N % 64 == 0"),
        TensorRule("dd", "(M, N/2)", "contiguous", FLOATS, "gradient of the activation times prob"),
        TensorRule("offsets", "(L,)", "contiguous", ("int32",), "end of each expert's rows"),
        TensorRule("prob", "(M,)", "contiguous", ("float32",), "gate of each row"),
        TensorRule("alpha", "(L,)", "contiguous", ("float32",), "factor of the result, or None"),
        TensorRule("dc", "(M, N)", "contiguous", FLOATS, "gradient of C from elsewhere, or None"),
        TensorRule("ds", "(M, N)", "contiguous", FLOATS, "gradient of C"),
        TensorRule("dprob", "(M,)", "contiguous", ("float32",), "gradient of prob"),
    ),
    results=("ds", "dprob"),
    scalars=("linear_offset",),
    public=False,
)
