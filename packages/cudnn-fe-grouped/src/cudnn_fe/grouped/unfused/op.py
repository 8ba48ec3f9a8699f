"""The contract of the unfused grouped GEMM: operand rules, outputs, work, and documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.core.require import require_same_device
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.kernels import rows_kernels
from cudnn_fe.grouped.operands import FLOATS, GROUP_NOTES, GroupedRows, output, output_dtype, require_bias, row_fields

__all__ = ["FORWARD", "GroupedGemm"]


@dataclass(frozen=True)
class GroupedGemm(GroupedRows):
    """One call: each row times its expert's weights."""

    operands: ClassVar[tuple[str, ...]] = (
        "a_tensor",
        "b_tensor",
        "padded_offsets",
        "alpha_tensor",
        "prob_tensor",
        "bias_tensor",
    )
    output_count: ClassVar[int] = 2
    of_rows: ClassVar[tuple[int, ...]] = (0, 1)

    bias_tensor: TensorSpec | None
    d_dtype: DType
    c_dtype: DType
    generate_c: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``d_dtype``, ``c_dtype``, ``generate_c``, and ``n``, ``n_major`` of addresses."""
        *shared, bias = operands
        fields = row_fields(*shared, options=options, dtypes=FLOATS)
        fields |= {key: output_dtype(options[key], key) for key in ("d_dtype", "c_dtype")}
        problem = cls(**fields, bias_tensor=bias, generate_c=bool(options["generate_c"]))
        _, n, _, count = problem.extents
        require_bias(bias, n, count)
        require_same_device(problem.a_tensor, bias)
        return problem

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """D (M, N), and C (M, N), which has no rows where it is not wanted."""
        m, n, _, _ = self.extents
        return (
            output("d_tensor", (m, n), self.d_dtype, self.device),
            output("c_tensor", (m if self.generate_c else 0, n), self.c_dtype, self.device),
        )


EXAMPLE = """\
import numpy as np
from cudnn_fe.grouped import grouped_gemm_forward

rng = np.random.default_rng(0)
x = rng.standard_normal((7, 16), dtype=np.float32)  # rows 0-2 are expert 0's, 3-5 expert 2's, 6 nobody's
w = rng.standard_normal((3, 32, 16), dtype=np.float32)  # (L, N, K)
ends = np.array([3, 3, 6], np.int32)
ones = np.ones(7, np.float32)
d, _ = grouped_gemm_forward(x, ends, np.ones(3, np.float32), w, prob_tensor=ones, d_dtype="float32")
np.testing.assert_allclose(d[:3], x[:3] @ w[0].T, rtol=1e-5, atol=1e-5)
np.testing.assert_allclose(d[3:6], x[3:6] @ w[2].T, rtol=1e-5, atol=1e-5)
"""

FORWARD = Op(
    name="grouped_gemm_forward",
    package="cudnn-fe-grouped",
    problem=GroupedGemm,
    reference="cudnn_fe.grouped.unfused.reference:grouped_gemm",
    kernels=rows_kernels("unfused"),
    summary="Each row of a buffer times its expert's weights, scaled by expert and by row.",
    formula=r"C_{mn} = \alpha_g \sum_k A_{mk} B_{gnk}, \quad D_{mn} = p_m C_{mn}; \qquad "
    r"\text{with bias } D_{mn} = C_{mn} = \alpha_g \sum_k A_{mk} B_{gnk} + p_m b_{ng}",
    tensors=(
        TensorRule("a_tensor", "(M, K) or (M, K, 1)", "contiguous", FLOATS, "rows, experts one after another"),
        TensorRule("b_tensor", "(L, N, K), (N, K, L); (L, K, N) with b_major='n'", "compact", FLOATS, "weights"),
        TensorRule("padded_offsets", "(L,)", "contiguous", ("int32",), "end of each expert's rows"),
        TensorRule("alpha_tensor", "(L,)", "contiguous", ("float32",), "scale of each expert"),
        TensorRule("prob_tensor", "(M,) or (M, 1, 1)", "contiguous", ("float32",), "gate of each row"),
        TensorRule("bias_tensor", "(N, L)", "any", FLOATS, "bias of each expert, or None"),
        TensorRule("d_tensor", "(M, N)", "contiguous", FLOATS, "the result, with A's unit dim"),
        TensorRule("c_tensor", "(M, N)", "contiguous", FLOATS, "before prob; None without generate_c"),
    ),
    example=EXAMPLE,
    source="Shazeer et al., Outrageously Large Neural Networks (2017); names and layouts of cudnn-frontend 1.32.",
    notes=(*GROUP_NOTES, "With a bias, prob multiplies the bias alone, as the vendor's kernel does."),
    results=("d_tensor", "c_tensor"),
    legacy=("grouped_gemm_wrapper_sm100", "GroupedGemmSm100", "grouped_gemm_jax_sm100"),
    jax_name="grouped_gemm_jax_forward",
    memory_cases="cudnn_fe.grouped.torch_bench:unfused",
    gradient="cudnn_fe.grouped.unfused.gradient:GRADIENT",
)
