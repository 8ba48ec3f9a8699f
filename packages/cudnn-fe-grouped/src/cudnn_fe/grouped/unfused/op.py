"""The contract of the unfused grouped GEMM: operand rules, outputs, work, and documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.kernels import rows_kernels
from cudnn_fe.grouped.operands import FLOATS, output, output_dtype, require_rows, require_weights

__all__ = ["FORWARD", "GROUP_NOTES", "GroupedGemm", "require_bias", "require_row_inputs"]

GROUP_NOTES = (
    "Groups may have any size: ends need not be multiples of 256, empty groups may stand anywhere, and rows past the "
    "last end are neither read nor written (fresh results hold zeros there). Offsets stay on the device.",
    "Sums are float32; every result is rounded once. Bit-equal from run to run; no atomics.",
    "Accepted beyond the vendor: any M, float16 and float32 operands, dense weights in JAX, NumPy arrays.",
    "Discrete weights (`b_ptrs`) and scale factors raise `NotYetSupportedError`.",
)


def require_bias(bias: TensorSpec | None, n: int, count: int) -> None:
    """Raises unless a bias is (N, L) of an unscaled type."""
    if bias is not None:
        require_shape(bias, (n, count), "(N, L)")
        require_dtype(bias, *FLOATS)


def require_row_inputs(m: int, count: int, alpha: TensorSpec, prob: TensorSpec | None) -> None:
    """Raises unless alpha is (L,) and prob (M,), both float32."""
    require_rows(alpha, (count,), "(L,)", "float32")
    if prob is not None:
        require_rows(prob, (m,), "(M,)", "float32")


@dataclass(frozen=True)
class GroupedGemm(Problem):
    """One call: each row times its expert's weights."""

    operands: ClassVar[tuple[str, ...]] = (
        "a_tensor",
        "b_tensor",
        "padded_offsets",
        "alpha_tensor",
        "prob_tensor",
        "bias_tensor",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"prob_tensor", "bias_tensor"})
    kept: ClassVar[frozenset[str]] = frozenset({"alpha_tensor", "prob_tensor"})
    output_count: ClassVar[int] = 2

    a_tensor: TensorSpec
    b_tensor: TensorSpec
    padded_offsets: TensorSpec
    alpha_tensor: TensorSpec
    prob_tensor: TensorSpec | None
    bias_tensor: TensorSpec | None
    d_dtype: DType
    c_dtype: DType
    generate_c: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``d_dtype``, ``c_dtype``, ``generate_c``."""
        a, b, offsets, alpha, prob, bias = operands
        assert a is not None
        assert b is not None
        assert offsets is not None
        assert alpha is not None
        m, n, _, count = require_weights(a, b, offsets)
        require_row_inputs(m, count, alpha, prob)
        require_bias(bias, n, count)
        require_same_device(a, alpha, prob, bias)
        d_kind, c_kind = (output_dtype(options[key], key) for key in ("d_dtype", "c_dtype"))
        return cls(a, b, offsets, alpha, prob, bias, d_kind, c_kind, bool(options["generate_c"]))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """D (M, N), and C (M, N), which has no rows where it is not wanted."""
        m, n = self.a_tensor.shape[0], self.b_tensor.shape[1]
        return (
            output("d_tensor", (m, n), self.d_dtype, self.device),
            output("c_tensor", (m if self.generate_c else 0, n), self.c_dtype, self.device),
        )

    @property
    def degenerate(self) -> bool:
        """Nothing to multiply."""
        return 0 in (*self.a_tensor.shape, self.b_tensor.shape[1])

    @property
    def flops(self) -> int:
        """2 M N K, as if the groups filled the buffer."""
        m, k = self.a_tensor.shape
        return 2 * m * self.b_tensor.shape[1] * k


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
    gradient="cudnn_fe.grouped.unfused.gradient:GRADIENT",
    reference_on_gpu=True,
)
