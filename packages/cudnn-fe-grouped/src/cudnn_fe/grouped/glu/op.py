"""The contract of the grouped GEMM with a gated activation: operand rules, outputs, work, and documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.core.pairs import PAIR_BLOCK
from cudnn_fe.core.require import require_same_device
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.kernels import rows_kernels
from cudnn_fe.grouped.operands import (
    FLOATS,
    GROUP_NOTES,
    GroupedRows,
    output,
    output_dtype,
    require_bias,
    require_multiple,
    row_fields,
)

__all__ = ["FORWARD", "Activation", "GroupedGemmGlu", "activation"]

Activation = Literal["swiglu", "geglu"]


def activation(given: Any, prefix: str = "") -> Activation:
    """The activation that ``act_func`` names; ``prefix`` is ``"d"`` for derivatives."""
    for kind in ("swiglu", "geglu"):
        if given == prefix + kind:
            return kind
    if given == prefix + "situglu":
        raise OptionError(
            "act_func", got=repr(given), wanted="another without scale factors", remedy="quantise A and the weights"
        )
    raise OptionError(
        "act_func", got=repr(given), wanted=f'"{prefix}swiglu" or "{prefix}geglu"', remedy="choose a listed activation"
    )


@dataclass(frozen=True)
class GroupedGemmGlu(GroupedRows):
    """One call: each row times its expert's weights, then gate and up columns combined."""

    operands: ClassVar[tuple[str, ...]] = (
        "a_tensor",
        "b_tensor",
        "padded_offsets",
        "alpha_tensor",
        "prob_tensor",
        "bias_tensor",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"bias_tensor"})
    output_count: ClassVar[int] = 2
    of_rows: ClassVar[tuple[int, ...]] = (0, 1)

    bias_tensor: TensorSpec | None
    act_func: Activation
    d_dtype: DType
    c_dtype: DType
    generate_c: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call.

        Options: ``act_func``, ``d_dtype``, ``c_dtype``, ``generate_c``, and ``n``, ``n_major`` of addresses.
        """
        *shared, bias = operands
        fields = row_fields(*shared, options=options, dtypes=FLOATS)
        fields |= {key: output_dtype(options[key], key) for key in ("d_dtype", "c_dtype")}
        act = activation(options["act_func"])
        problem = cls(**fields, bias_tensor=bias, act_func=act, generate_c=bool(options["generate_c"]))
        _, n, _, count = problem.extents
        require_multiple(
            problem.b_tensor.name, n, 2 * PAIR_BLOCK, f"blocks of {PAIR_BLOCK} gate and {PAIR_BLOCK} up columns"
        )
        require_bias(bias, n, count)
        require_same_device(problem.a_tensor, bias)
        return problem

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """D (M, N/2), and C (M, N), which has no rows where it is not wanted."""
        m, n, _, _ = self.extents
        return (
            output("d_tensor", (m, n // 2), self.d_dtype, self.device),
            output("c_tensor", (m if self.generate_c else 0, n), self.c_dtype, self.device),
        )


EXAMPLE = """\
import numpy as np
from cudnn_fe.grouped import grouped_gemm_glu_forward

rng = np.random.default_rng(0)
x = rng.standard_normal((5, 16), dtype=np.float32)
w = rng.standard_normal((2, 64, 16), dtype=np.float32)  # per expert 32 gate rows, then 32 up rows
ends, prob = np.array([2, 5], np.int32), rng.random(5, dtype=np.float32)
out = grouped_gemm_glu_forward(x, None, ends, np.ones(2, np.float32), w, prob_tensor=prob, d_dtype="float32")
gate, up = np.split(x[2:] @ w[1].T, 2, axis=1)
np.testing.assert_allclose(out["d_tensor"][2:], gate / (1 + np.exp(-gate)) * up * prob[2:, None], rtol=1e-4, atol=1e-4)
"""

FORWARD = Op(
    name="grouped_gemm_glu_forward",
    package="cudnn-fe-grouped",
    problem=GroupedGemmGlu,
    reference="cudnn_fe.grouped.glu.reference:grouped_gemm_glu",
    kernels=rows_kernels("glu"),
    summary="Each row times its expert's weights, then SwiGLU or GeGLU over alternating 32-column blocks.",
    formula=r"C_{mn} = \alpha_g \sum_k A_{mk} B_{gnk} + b_{ng}, \quad G = C_{m,\,64i+j},\; U = C_{m,\,64i+32+j}, "
    r"\qquad D_{m,\,32i+j} = \sigma(G)\, G\, U\, p_m",
    tensors=(
        TensorRule("a_tensor", "(M, K) or (M, K, 1)", "contiguous", FLOATS, "rows, experts one after another"),
        TensorRule("b_tensor", "(L, N, K) or (N, K, L)", "compact, K contiguous", FLOATS, "weights, N % 64 == 0"),
        TensorRule("padded_offsets", "(L,)", "contiguous", ("int32",), "end of each expert's rows"),
        TensorRule("alpha_tensor", "(L,)", "contiguous", ("float32",), "scale of each expert"),
        TensorRule("prob_tensor", "(M,) or (M, 1, 1)", "contiguous", ("float32",), "gate of each row"),
        TensorRule("bias_tensor", "(N, L)", "any", FLOATS, "bias of each expert, or None"),
        TensorRule("c_tensor", "(M, N)", "contiguous", FLOATS, "before the activation; None without generate_c"),
        TensorRule("d_tensor", "(M, N/2)", "contiguous", FLOATS, "the activation times prob"),
    ),
    example=EXAMPLE,
    source="Shazeer, GLU Variants Improve Transformer (2020); GeGLU with clamps as in gpt-oss; names and layouts of "
    "cudnn-frontend 1.32's grouped_gemm_glu.",
    notes=(
        *GROUP_NOTES,
        "GeGLU: G is bounded by 7 from above, U by -7 and 7, the sigmoid is of 1.702 G, and U gets `linear_offset` "
        "added (None: 1).",
        "The activation reads the unrounded float32 sums. The derivative reads C as it was rounded where `generate_c` "
        "kept it, and computes it again in float32 where not.",
    ),
    results=("c_tensor", "d_tensor", "d_col_tensor", "amax_tensor", "sfd_row_tensor", "sfd_col_tensor"),
    scalars=("linear_offset",),
    legacy=("grouped_gemm_glu_wrapper_sm100", "GroupedGemmGluSm100", "grouped_gemm_glu_jax_sm100"),
    jax_name="grouped_gemm_glu_jax_forward",
    memory_cases="cudnn_fe.grouped.torch_bench:glu",
    gradient="cudnn_fe.grouped.glu.gradient:GRADIENT",
)
