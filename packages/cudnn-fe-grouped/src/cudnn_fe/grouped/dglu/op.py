"""The contract of the grouped GEMM with a gated activation's derivative: rules, outputs, work, documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.core.pairs import PAIR_BLOCK
from cudnn_fe.core.require import require_same_device
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.glu.op import Activation, activation
from cudnn_fe.grouped.kernels import DGLU_KERNELS
from cudnn_fe.grouped.operands import (
    FLOATS,
    GROUP_NOTES,
    GroupedRows,
    output,
    output_dtype,
    require_multiple,
    require_rows,
    row_fields,
)

__all__ = ["BACKWARD", "GroupedGemmDglu"]


@dataclass(frozen=True)
class GroupedGemmDglu(GroupedRows):
    """One call: each row of dY times its expert's weights, then through the activation's derivative at C."""

    operands: ClassVar[tuple[str, ...]] = (
        "a_tensor",
        "c_tensor",
        "b_tensor",
        "padded_offsets",
        "alpha_tensor",
        "beta_tensor",
        "prob_tensor",
    )
    optional: ClassVar[frozenset[str]] = frozenset()
    output_count: ClassVar[int] = 4
    of_rows: ClassVar[tuple[int, ...]] = (0, 1, 3)
    accumulates: ClassVar[Mapping[int, Literal["sum", "maximum"]]] = MappingProxyType({1: "sum", 2: "sum"})

    c_tensor: TensorSpec
    beta_tensor: TensorSpec
    act_func: Activation
    d_dtype: DType
    generate_dbias: bool
    generate_activation: bool
    round_dgrad: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call.

        Options: ``act_func``, ``d_dtype``, ``generate_dbias``, ``generate_activation``, ``round_dgrad``, and ``n``,
        ``n_major`` of addresses.
        """
        a, c, b, offsets, alpha, beta, prob = operands
        assert c is not None
        assert beta is not None
        assert prob is not None
        fields = row_fields(a, b, offsets, alpha, prob, options=options, dtypes=FLOATS)
        fields |= {key: bool(options[key]) for key in ("generate_dbias", "generate_activation", "round_dgrad")}
        act, kind = activation(str(options["act_func"]).removeprefix("d")), output_dtype(options["d_dtype"], "d_dtype")
        problem = cls(**fields, c_tensor=c, beta_tensor=beta, act_func=act, d_dtype=kind)
        m, n, _, count = problem.extents
        require_multiple(problem.b_tensor.name, n, PAIR_BLOCK, f"blocks of {PAIR_BLOCK} columns")
        require_rows(c, (m, 2 * n), "(M, 2N)", *FLOATS)
        require_rows(beta, (count,), "(L,)", "float32")
        require_same_device(problem.a_tensor, c, beta)
        return problem

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """D (M, 2N), dprob (M,), dbias (L, 2N, 1) and the activation (M, N); empty where they are not wanted."""
        m, n, _, count = self.extents
        return (
            output("d_row_tensor", (m, 2 * n), self.d_dtype, self.device),
            output("dprob_tensor", (m,), "float32", self.device),
            output("dbias_tensor", (count if self.generate_dbias else 0, 2 * n, 1), "bfloat16", self.device),
            output("activation_tensor", (m if self.generate_activation else 0, n), "bfloat16", self.device),
        )

    def written(self, xp: Any, operands: tuple[Any, ...]) -> Mapping[int, Any]:
        """Rows up to the last end. Where a fresh dprob holds zeros behind it, they are added instead of left out."""
        masks = super().written(xp, operands)
        return {place: mask for place, mask in masks.items() if place != 1 or not self.zero_tail}


EXAMPLE = """\
import numpy as np
from cudnn_fe.grouped import grouped_gemm_glu_backward

rng = np.random.default_rng(0)
dy = rng.standard_normal((5, 16), dtype=np.float32)  # gradient of the layer's result
c = rng.standard_normal((5, 64), dtype=np.float32)  # what the forward kept: 32 gate columns, 32 up columns
w = rng.standard_normal((2, 32, 16), dtype=np.float32)  # the second layer's weights, seen as (L, N, K)
ends, ones = np.array([2, 5], np.int32), np.ones(5, np.float32)
scale, dprob = np.ones(2, np.float32), np.zeros(5, np.float32)
out = grouped_gemm_glu_backward(dy, c, None, ends, scale, scale, ones, dprob, w, d_dtype="float32")
gate = c[2:, :32]
silu = gate / (1 + np.exp(-gate))
np.testing.assert_allclose(out["d_row_tensor"][2:, 32:], (dy[2:] @ w[1].T) * silu, rtol=1e-4, atol=1e-4)
assert out["dprob_tensor"] is dprob  # it is added to
"""

BACKWARD = Op(
    name="grouped_gemm_glu_backward",
    package="cudnn-fe-grouped",
    problem=GroupedGemmDglu,
    reference="cudnn_fe.grouped.dglu.reference:grouped_gemm_dglu",
    kernels=DGLU_KERNELS,
    summary="Each row of a gradient times its expert's weights, then through the derivative of SwiGLU or GeGLU.",
    formula=r"R = \alpha_g^2 \sum_k A_{mk} B_{gnk}, \quad G = \beta_g C_{m,\,64i+j},\; U = \beta_g C_{m,\,64i+32+j}; "
    r"\qquad D_G = p_m R\, \partial_G f, \; D_U = p_m R\, \partial_U f, \; dp_m = \sum_n R f(G, U)",
    tensors=(
        TensorRule("a_tensor", "(M, K) or (M, K, 1)", "contiguous", FLOATS, "gradient of the next layer's results"),
        TensorRule("c_tensor", "(M, 2N) or (M, 2N, 1)", "contiguous", FLOATS, "what the forward kept"),
        TensorRule("b_tensor", "(L, N, K), (N, K, L); (L, K, N) with b_major='n'", "compact", FLOATS, "weights"),
        TensorRule("padded_offsets", "(L,)", "contiguous", ("int32",), "end of each expert's rows"),
        TensorRule("alpha_tensor", "(L,)", "contiguous", ("float32",), "scale of each expert; its square is applied"),
        TensorRule("beta_tensor", "(L,)", "contiguous", ("float32",), "scale of C"),
        TensorRule("prob_tensor", "(M,) or (M, 1, 1)", "contiguous", ("float32",), "gate of each row"),
        TensorRule("d_row_tensor", "(M, 2N)", "contiguous", FLOATS, "gradient of C"),
        TensorRule("dprob_tensor", "as prob", "contiguous", ("float32",), "gradient of prob, added to the caller's"),
        TensorRule("dbias_tensor", "(L, 2N, 1)", "contiguous", ("bfloat16",), "gradient of the bias, or None"),
        TensorRule("activation_tensor", "(M, N)", "contiguous", ("bfloat16",), "the activation again, if asked for"),
    ),
    example=EXAMPLE,
    source="Names and layouts of cudnn-frontend 1.32's grouped_gemm_dglu.",
    notes=(
        *GROUP_NOTES,
        "alpha is squared, as by the vendor's kernels: it is meant to have scaled the next layer's result.",
        "dbias is summed in float32 and rounded once; no result depends on an order.",
    ),
    results=(
        "d_row_tensor",
        "d_col_tensor",
        "dprob_tensor",
        "dbias_tensor",
        "amax_tensor",
        "sfd_row_tensor",
        "sfd_col_tensor",
    ),
    scalars=("linear_offset", "geglu_alpha", "glu_clamp_max", "glu_clamp_min"),
    legacy=(
        "grouped_gemm_dglu_wrapper_sm100",
        "GroupedGemmDgluSm100",
        "grouped_gemm_dglu_jax_sm100",
        "grouped_gemm_dglu_backward",
    ),
    jax_name="grouped_gemm_glu_jax_backward",
    memory_cases="cudnn_fe.grouped.torch_bench:dglu",
)
