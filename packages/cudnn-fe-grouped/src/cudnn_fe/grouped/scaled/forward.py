"""The contract of the block-scaled grouped GEMMs that go forward, with an activation or none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.pairs import PAIR_BLOCK
from cudnn_fe.core.require import require_one_of, require_same_device
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.operands import output, output_dtype, require_bias, require_multiple, require_rows
from cudnn_fe.grouped.scaled.problem import RESULTS, ScaledRows, scaled_fields

__all__ = ["GLU", "Epilogue", "ScaledForward", "forward_fields", "require_clamp"]

Epilogue = Literal["swiglu", "geglu", "situglu", "srelu", "none"]
GLU = ("swiglu", "geglu", "situglu")


@dataclass(frozen=True)
class ScaledForward(ScaledRows):
    """One call: each row times its expert's weights, scaled, through an activation, by the row's prob.

    Attributes:
        bias_tensor: (N, L), or None.
        row_scale_tensor: (M,) further factors of the product, or None.
        epilogue: The activation.
        c_dtype: Of C, the values before the activation; None where it is not wanted.
        tanh_clamp_scale: Bound of a squared ReLU, or None.
    """

    operands: ClassVar[tuple[str, ...]] = (
        "a_tensor",
        "b_tensor",
        "sfa_tensor",
        "sfb_tensor",
        "padded_offsets",
        "alpha_tensor",
        "prob_tensor",
        "norm_const_tensor",
        "bias_tensor",
        "row_scale_tensor",
    )
    optional: ClassVar[frozenset[str]] = frozenset(
        {"prob_tensor", "norm_const_tensor", "bias_tensor", "row_scale_tensor"}
    )
    output_count: ClassVar[int] = 6
    of_rows: ClassVar[tuple[int, ...]] = (0, 1, 2)
    accumulates: ClassVar[Mapping[int, Literal["sum", "maximum"]]] = MappingProxyType({3: "maximum"})

    bias_tensor: TensorSpec | None
    row_scale_tensor: TensorSpec | None
    epilogue: Epilogue
    c_dtype: DType | None
    tanh_clamp_scale: float | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options are the fields that are no operands."""
        return cls(**forward_fields(operands, options))

    @property
    def gated(self) -> bool:
        """Whether pairs of columns give one."""
        return self.epilogue in GLU

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """C (M, N), D (M, N) or (M, N/2), D by columns, amax (L, 1), and the scales of D by rows and by columns."""
        m, n, _, _ = self.extents
        width = n // 2 if self.gated else n
        c = output("c_tensor", (0 if self.c_dtype is None else m, n), self.c_dtype or "bfloat16", self.device)
        d = output("d_tensor", (m, width), self.d_dtype, self.device)
        return c, d, *self.quantised_outputs(width).values()


def forward_fields(
    operands: tuple[TensorSpec | None, ...], options: Mapping[str, Any], results: tuple[str, ...] = RESULTS
) -> dict[str, Any]:
    """Validate a call and return the fields of `ScaledForward`; ``results`` are the types that D may have."""
    *shared, bias, row_scale = operands
    fields = scaled_fields(*shared, options=options, results=results)
    require_one_of(options["epilogue"], "act_func", (*GLU, "srelu", "none"))
    c = options["c_dtype"]
    fields |= {
        "bias_tensor": bias,
        "row_scale_tensor": row_scale,
        "epilogue": options["epilogue"],
        "c_dtype": None if c is None else output_dtype(c, "c_dtype", RESULTS),
        "tanh_clamp_scale": require_clamp(options["tanh_clamp_scale"]),
    }
    a, b = fields["a_tensor"], fields["b_tensor"]
    n = fields["n"] or b.shape[1]
    if options["epilogue"] in GLU:
        require_multiple(b.name, n, 2 * PAIR_BLOCK, f"blocks of {PAIR_BLOCK} gate and {PAIR_BLOCK} up columns")
    require_bias(bias, n, fields["padded_offsets"].shape[0])
    if row_scale is not None:
        require_rows(row_scale, a.shape[:1], "(M,)", "float32")
    require_same_device(a, bias, row_scale)
    return fields


def require_clamp(scale: Any) -> float | None:
    """``tanh_clamp_scale`` as a float or None; raises OptionError unless it is finite and above 0."""
    if scale is None:
        return None
    if not isinstance(scale, int | float) or not math.isfinite(scale) or scale <= 0:
        raise OptionError("tanh_clamp_scale", got=repr(scale), wanted="None, or finite and above 0", remedy="e.g. 16.0")
    return float(scale)
