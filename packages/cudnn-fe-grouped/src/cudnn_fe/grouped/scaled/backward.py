"""The contract of the block-scaled grouped GEMMs that go backward, through the derivative of an activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.pairs import PAIR_BLOCK
from cudnn_fe.core.require import require_one_of, require_same_device
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.operands import output, require_multiple, require_rows
from cudnn_fe.grouped.scaled.forward import GLU, require_clamp
from cudnn_fe.grouped.scaled.problem import RESULTS, ScaledRows, scaled_fields

__all__ = ["ScaledBackward"]


@dataclass(frozen=True)
class ScaledBackward(ScaledRows):
    """One call: each row of dY times its expert's weights, scaled, then through the activation's derivative at C.

    Attributes:
        c_tensor: (M, W), what the forward kept; W is 2 N of a gated activation, else N.
        beta_tensor: (L,) scales of C, or None for 1.
        epilogue: The activation.
        generate_dbias: Whether the gradient of the bias is a result.
        tanh_clamp_scale: Bound of a squared ReLU, or None.
    """

    operands: ClassVar[tuple[str, ...]] = (
        "a_tensor",
        "c_tensor",
        "b_tensor",
        "sfa_tensor",
        "sfb_tensor",
        "padded_offsets",
        "alpha_tensor",
        "beta_tensor",
        "prob_tensor",
        "norm_const_tensor",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"beta_tensor", "prob_tensor", "norm_const_tensor"})
    output_count: ClassVar[int] = 9
    of_rows: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    accumulates: ClassVar[Mapping[int, Literal["sum", "maximum"]]] = MappingProxyType(
        {3: "sum", 4: "sum", 5: "maximum"}
    )

    c_tensor: TensorSpec
    beta_tensor: TensorSpec | None
    epilogue: Literal["swiglu", "geglu", "situglu", "srelu"]
    generate_dbias: bool
    tanh_clamp_scale: float | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options are the fields that are no operands."""
        a, c, b, sfa, sfb, offsets, alpha, beta, prob, norm = operands
        assert c is not None
        fields = scaled_fields(a, b, sfa, sfb, offsets, alpha, prob, norm, options=options)
        require_one_of(options["epilogue"], "act_func", (*GLU, "srelu"))
        problem = cls(
            **fields,
            c_tensor=c,
            beta_tensor=beta,
            epilogue=options["epilogue"],
            generate_dbias=bool(options["generate_dbias"]),
            tanh_clamp_scale=require_clamp(options["tanh_clamp_scale"]),
        )
        m, n, _, count = problem.extents
        if problem.gated:
            require_multiple(problem.b_tensor.name, n, PAIR_BLOCK, f"blocks of {PAIR_BLOCK} columns")
        require_rows(c, (m, problem.width), "(M, 2N)" if problem.gated else "(M, N)", *RESULTS)
        if beta is not None:
            require_rows(beta, (count,), "(L,)", "float32")
        require_same_device(problem.a_tensor, c, beta)
        return problem

    @property
    def gated(self) -> bool:
        """Whether columns of C come in pairs."""
        return self.epilogue in GLU

    @property
    def width(self) -> int:
        """Columns of C and of D."""
        return self.extents[1] * (2 if self.gated else 1)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """D (M, W), D by columns, the activation by columns, dprob (M,), dbias (L, W, 1), amax, and three scales."""
        m, _, _, count = self.extents
        width, place = self.width, self.device
        shared = self.quantised_outputs(width, amaxes=2 if self.gated else 1)
        again = self.scale_output("sfd_col_d_srelu_tensor", width, m)
        return (
            output("d_row_tensor", (m, width), self.d_dtype, place),
            shared["d_col_tensor"],
            output("d_srelu_tensor", (0 if self.gated else m, width), self.d_dtype, place),
            output("dprob_tensor", (m,), "float32", place),
            output("dbias_tensor", (count if self.generate_dbias else 0, width, 1), "bfloat16", place),
            shared["amax_tensor"],
            shared["sfd_row_tensor"],
            shared["sfd_col_tensor"],
            output(again.name, (0,), again.dtype, place) if self.gated else again,
        )
