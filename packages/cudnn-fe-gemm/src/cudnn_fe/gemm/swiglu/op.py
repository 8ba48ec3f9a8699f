"""The contract of GEMM + SwiGLU, standard mode: operand rules, outputs, work, and documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.core.pairs import PAIR_BLOCK
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.gemm.hints import check_tile_hints
from cudnn_fe.gemm.kernels import gemm_kernels
from cudnn_fe.gemm.operands import OPERAND_LAYOUT, major_of, matrix_output, require_matrices
from cudnn_fe.gemm.problem import GemmProblem

__all__ = ["FORWARD", "GemmSwiglu", "require_pairs", "require_positive"]


OPERANDS = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")
HALVES = ("float16", "bfloat16")
# accumulator -> (operands, AB12, C)
DTYPES = {
    "float32": (OPERANDS, ("float32", *HALVES), HALVES),
    "float16": (("float16", "float8_e4m3fn", "float8_e5m2"), HALVES, HALVES),
}


@dataclass(frozen=True)
class GemmSwiglu(GemmProblem):
    """One call: ``AB12 = alpha * A @ B^T`` and ``C = value * silu(gate)`` over alternating 32-column blocks of it."""

    output_count: ClassVar[int] = 2

    c_major: Literal["m", "n"]
    ab12_dtype: DType
    c_dtype: DType

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options are those of `cudnn_fe.gemm.gemm_swiglu_forward`."""
        a, b = operands
        assert a is not None
        assert b is not None
        accumulator = dtype(options["acc_dtype"], operand="acc_dtype").name
        if accumulator not in DTYPES:
            raise DTypeError("acc_dtype", got=accumulator, wanted="float32 or float16", remedy="use float32")
        inputs, ab12s, cs = DTYPES[accumulator]
        require_matrices(a, b, inputs)
        require_pairs(b)
        ab12, c = (dtype(options[key], operand=key) for key in ("ab12_dtype", "c_dtype"))
        if ab12.is_fp8 and accumulator == "float32":
            raise NotYetSupportedError(
                "ab12_dtype", got=str(ab12), wanted=f"one of {', '.join(ab12s)}", remedy="quantise AB12 afterwards"
            )
        for key, given, allowed in (("ab12_dtype", ab12, ab12s), ("c_dtype", c, cs)):
            if given.name not in allowed:
                raise DTypeError(
                    key, got=str(given), wanted=f"one of {', '.join(allowed)}", remedy="choose a listed output dtype"
                )
        check_tile_hints(options["mma_tiler_mn"], options["cluster_shape_mn"])
        require_positive(options, "sf_vec_size", "ab12_stages")
        return cls(a, b, major_of(options["c_major"], "c_major"), ab12, c)

    @property
    def out_major(self) -> Literal["m", "n"]:
        """Contiguous dim of the results."""
        return self.c_major

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """AB12 (M, N, L) and C (M, N/2, L)."""
        m, n, _, batch = self.extents
        return (
            matrix_output("ab12_tensor", m, n, batch, major=self.c_major, dtype=self.ab12_dtype, device=self.device),
            matrix_output("c_tensor", m, n // 2, batch, major=self.c_major, dtype=self.c_dtype, device=self.device),
        )


def require_pairs(b: TensorSpec) -> None:
    """Raises ShapeError unless B's rows are whole pairs of blocks."""
    if b.shape[0] % (2 * PAIR_BLOCK):
        raise ShapeError(
            b.name,
            got=f"N = {b.shape[0]}",
            wanted=f"a multiple of {2 * PAIR_BLOCK}: blocks of {PAIR_BLOCK} value and {PAIR_BLOCK} gate columns",
            remedy="pad the weight to whole pairs of blocks",
        )


def require_positive(options: Mapping[str, Any], *names: str) -> None:
    """Raises OptionError unless the options of these names are positive ints."""
    for name in names:
        if not isinstance(options[name], int) or options[name] < 1:
            raise OptionError(name, got=repr(options[name]), wanted="a positive int", remedy="leave it at its default")


EXAMPLE = """\
import numpy as np
from cudnn_fe.gemm import gemm_swiglu_forward

rng = np.random.default_rng(0)
x = rng.standard_normal((5, 16, 1), dtype=np.float32)  # (M, K, L)
w = rng.standard_normal((128, 16, 1), dtype=np.float32)  # (N, K, L): 32 value rows, 32 gate rows, and again
out = gemm_swiglu_forward(x, w, c_dtype="float16")
value, gate = out["ab12_tensor"][:, :32], out["ab12_tensor"][:, 32:64]
np.testing.assert_allclose(out["c_tensor"][:, :32], value * gate / (1 + np.exp(-gate)), rtol=2e-3, atol=1e-3)
"""

FORWARD = Op(
    name="gemm_swiglu_forward",
    package="cudnn-fe-gemm",
    problem=GemmSwiglu,
    reference="cudnn_fe.gemm.swiglu.reference:gemm_swiglu",
    kernels=gemm_kernels("swiglu", "swiglu"),
    summary="Batched GEMM followed by SwiGLU over alternating 32-column blocks of value and gate.",
    formula=r"S_{mnl} = \alpha \sum_k A_{mkl} B_{nkl}, \qquad "
    r"C_{m,\,32b+j,\,l} = X \cdot G \cdot \sigma(G), \quad X = S_{m,\,64b+j,\,l},\; G = S_{m,\,64b+32+j,\,l}",
    tensors=(
        TensorRule("a_tensor", "(M, K, L)", OPERAND_LAYOUT, OPERANDS, "operand A"),
        TensorRule("b_tensor", "(N, K, L)", OPERAND_LAYOUT, OPERANDS, "operand B, N % 64 == 0; dtype of A"),
        TensorRule("ab12_tensor", "(M, N, L)", "compact, c_major", ("float32", *HALVES), "S, kept for the backward"),
        TensorRule("c_tensor", "(M, N/2, L)", "compact, c_major", HALVES, "the activation"),
        TensorRule("sfc_tensor", "-", "-", (), "None without scale factors"),
        TensorRule("amax_tensor", "-", "-", (), "None without scale factors"),
    ),
    example=EXAMPLE,
    source="Shazeer, GLU Variants Improve Transformer (2020), with silu as the gate; "
    "names and layouts of cudnn-frontend 1.32's gemm_swiglu.",
    notes=(
        "Sums are float32 whatever `acc_dtype` says: float16 accumulation is served by the more exact one. "
        "FP8 products are promoted to float32 every 128 of K. float32 operands multiply as TF32 on tensor cores "
        "(relative rounding 2^-11 each) and exactly on the reference.",
        "The activation reads the unrounded float32 sums. A gate of minus infinity gives NaN: 0 times infinity.",
        "Bit-equal from run to run; no atomics.",
        "Accepted beyond the vendor: any M, K and L from 0; N need not be a multiple of the tile; operands whose "
        "rows are not multiples of 16 bytes; padded leading dims; NumPy arrays.",
        "The class's `execute(alpha=None)` means the constructor's alpha. The vendor's 1.0 ignores it.",
        "With scale factors (`sfa_tensor`, `sfb_tensor`, and for an FP8 C `norm_const_tensor`) the call is one of "
        "`gemm_swiglu_scaled_forward`, whose page holds that mode's rules.",
    ),
    results=("ab12_tensor", "c_tensor", "sfc_tensor", "amax_tensor"),
    scalars=("alpha",),
    legacy=("gemm_swiglu_wrapper_sm100", "GemmSwigluSm100", "gemm_swiglu_jax_sm100"),
    jax_name="gemm_swiglu_jax_forward",
    gradient="cudnn_fe.gemm.swiglu.gradient:GRADIENT",
)
