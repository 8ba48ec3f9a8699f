"""The contract of the block-scaled GEMM that also returns the largest absolute value of its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.block_scale.formats import BFLOAT16_NOTE
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError
from cudnn_fe.core.op import Op, TensorRule
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.gemm.hints import check_scaled_hints
from cudnn_fe.gemm.operands import OPERAND_LAYOUT, major_of, matrix_output
from cudnn_fe.gemm.scaled import (
    ELEMENTS,
    PACKED_LAYOUT,
    SCALES,
    ScaledGemmProblem,
    is_fp4,
    require_float32,
    require_scaled,
)
from cudnn_fe.gemm.scaled_kernels import scaled_kernels

__all__ = ["AMAX", "GemmAmax"]

_FLOATS = ("float32", "float16", "bfloat16")
_RESULTS = (*_FLOATS, "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "uint8")
_SCALES = (*SCALES, "int8")


@dataclass(frozen=True)
class GemmAmax(ScaledGemmProblem):
    """One call: ``C = A @ B^T`` of quantised operands, and ``max |C|`` before C is rounded."""

    output_count: ClassVar[int] = 2
    accumulates: ClassVar[Mapping[int, Literal["sum", "maximum"]]] = MappingProxyType({1: "maximum"})

    c_major: Literal["m", "n"]
    c_dtype: DType
    amax_shape: tuple[int, ...]

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options are those of `cudnn_fe.gemm.gemm_amax_forward`."""
        a, b, sfa, sfb = operands
        assert a is not None
        assert b is not None
        assert sfa is not None
        assert sfb is not None
        require_float32(options["acc_dtype"])
        _, n, _, _ = require_scaled(a, b, sfa, sfb, options["sf_vec_size"], _SCALES)
        check_scaled_hints(options["mma_tiler_mn"], options["cluster_shape_mn"], (128, 256), paired=False)
        major, kind = major_of(options["c_major"], "c_major"), dtype(options["c_dtype"], operand="c_dtype")
        if kind.name not in _RESULTS:
            wanted = f"one of {', '.join(_RESULTS)}"
            raise DTypeError("c_dtype", got=str(kind), wanted=wanted, remedy="choose a listed output dtype")
        if is_fp4(kind):
            if not is_fp4(a.dtype):
                raise DTypeError(
                    "c_dtype", got=str(kind), wanted="an FP4 result of FP4 operands alone", remedy="ask for bfloat16"
                )
            if major != "n":
                raise OptionError("c_major", got="'m'", wanted="'n' for FP4", remedy="FP4 pairs lie along N")
            if n % 2:
                raise ShapeError(b.name, got=f"N = {n}", wanted="an even N for FP4 pairs", remedy="pad B")
        return cls(a, b, sfa, sfb, options["sf_vec_size"], major, kind, tuple(options.get("amax_shape", (1, 1, 1))))

    @property
    def out_major(self) -> Literal["m", "n"]:
        """Contiguous dim of C."""
        return self.c_major

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """C (M, N, L), FP4 packed as (M, N/2, L), and amax."""
        m, n, _, batch = self.extents
        columns = n // 2 if is_fp4(self.c_dtype) else n
        c = matrix_output("c_tensor", m, columns, batch, major=self.c_major, dtype=self.c_dtype, device=self.device)
        strides = contiguous_strides(self.amax_shape)
        amax = TensorSpec(self.amax_shape, strides, dtype("float32"), self.device, 16, "amax_tensor")
        return c, amax


EXAMPLE = """\
import numpy as np
from cudnn_fe.core.block_scale import MXFP8_E4M3, quantize, swizzle_scales
from cudnn_fe.core.codecs import from_codes
from cudnn_fe.gemm import gemm_amax_forward

rng = np.random.default_rng(0)
x, w = rng.standard_normal((5, 64), dtype=np.float32), rng.standard_normal((7, 64), dtype=np.float32)
qx, qw = quantize(x, MXFP8_E4M3), quantize(w, MXFP8_E4M3)
a, b = (from_codes(q.codes, "float8_e4m3fn")[:, :, None] for q in (qx, qw))
sfa, sfb = (from_codes(swizzle_scales(q.scales), "float8_e8m0fnu") for q in (qx, qw))
out = gemm_amax_forward(a, b, sfa, sfb, sf_vec_size=32)
assert np.abs(out["c_tensor"][:, :, 0] - x @ w.T).max() < 2
assert out["amax_tensor"].item() == np.abs(out["c_tensor"]).max()
"""

AMAX = Op(
    name="gemm_amax_forward",
    package="cudnn-fe-gemm",
    problem=GemmAmax,
    reference="cudnn_fe.gemm.amax.reference:gemm_amax",
    kernels=scaled_kernels("amax"),
    summary="Batched GEMM of MXFP8, MXFP4 or NVFP4 operands with the largest absolute value of the result.",
    formula=r"C_{mnl} = \sum_k A_{mkl} S^A_{m,\lfloor k/v \rfloor,l}\, B_{nkl} S^B_{n,\lfloor k/v \rfloor,l}, "
    r"\qquad \mathrm{amax} = \max |C|",
    tensors=(
        TensorRule("a_tensor", "(M, K, L)", OPERAND_LAYOUT, ELEMENTS, "operand A; FP4 pairs packed along K"),
        TensorRule("b_tensor", "(N, K, L)", OPERAND_LAYOUT, ELEMENTS, "operand B; dtype of A"),
        TensorRule("sfa_tensor", "packed, M rows", PACKED_LAYOUT, _SCALES, "scale factors of A"),
        TensorRule("sfb_tensor", "packed, N rows", PACKED_LAYOUT, _SCALES, "scale factors of B"),
        TensorRule("c_tensor", "(M, N, L)", "compact, c_major", _RESULTS, "C; FP4 (M, N/2, L), with FP4 operands only"),
        TensorRule("amax_tensor", "(1, 1, 1)", "-", ("float32",), "largest absolute value of the unrounded C"),
    ),
    example=EXAMPLE,
    source="OCP Microscaling (MX) v1.0 for the operands; names and layouts of cudnn-frontend 1.32's gemm_amax.",
    notes=(
        "Scale bytes of padding rows and columns never reach a result. NaN anywhere in C makes amax NaN.",
        "The class takes the maximum of what its amax buffer holds and the result; start it at minus infinity or 0.",
        "Accepted beyond the vendor: FP8 results of FP8 operands, uint8 as packed FP4, any M, N, K and L from 0, rows "
        "that are not multiples of 16 bytes, every documented tile and cluster as hints, NumPy arrays.",
        BFLOAT16_NOTE,
    ),
    results=("c_tensor", "amax_tensor"),
    legacy=("gemm_amax_wrapper_sm100", "GemmAmaxSm100", "gemm_amax_jax_sm100"),
    jax_name="gemm_amax_jax_forward",
    memory_cases="cudnn_fe.gemm.torch_bench:amax",
)
