"""The contract of the grouped weight gradient of quantised operands, whose blocks lie along the rows of the buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

from cudnn_fe.core.block_scale import BlockFormat, block_format
from cudnn_fe.core.block_scale.formats import BFLOAT16_NOTE
from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError, StrideError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_same_device
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.operands import FLOATS, output_dtype, require_addresses, require_experts, require_rows
from cudnn_fe.grouped.scaled.problem import (
    ELEMENTS,
    SCALES,
    is_fp4,
    packed_size,
    require_block,
    require_scales,
)
from cudnn_fe.grouped.wgrad.op import nothing_to_sum, require_compact, wgrad_outputs
from cudnn_fe.grouped.wgrad_scaled.kernels import SCALED_WGRAD_KERNELS

__all__ = ["SCALED", "ScaledWgrad"]


@dataclass(frozen=True)
class ScaledWgrad(Problem):
    """One call: for each expert, A's columns times B's rows that are its own, both dequantised.

    FP4 operands are packed along t: A (h, t/2) and B (t/2, i), both with t contiguous.
    """

    operands: ClassVar[tuple[str, ...]] = (
        "a_tensor",
        "b_tensor",
        "sfa_tensor",
        "sfb_tensor",
        "offsets_tensor",
        "global_scale_a",
        "global_scale_b",
        "wgrad_tensor",
        "wgrad_ptrs",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"global_scale_a", "global_scale_b", "wgrad_tensor", "wgrad_ptrs"})
    kept: ClassVar[frozenset[str]] = frozenset({"global_scale_a", "global_scale_b", "wgrad_tensor"})
    in_place: ClassVar[Mapping[int, str]] = MappingProxyType({0: "wgrad_tensor"})

    a_tensor: TensorSpec
    b_tensor: TensorSpec
    sfa_tensor: TensorSpec
    sfb_tensor: TensorSpec
    offsets_tensor: TensorSpec
    global_scale_a: TensorSpec | None
    global_scale_b: TensorSpec | None
    wgrad_tensor: TensorSpec | None
    wgrad_ptrs: TensorSpec | None
    sf_vec_size: int
    wgrad_dtype: DType
    ragged: bool
    accumulate: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``sf_vec_size``, ``wgrad_dtype``, ``ragged``, ``accumulate``."""
        a, b, sfa, sfb, offsets, ga, gb, old, pointers = operands
        assert a is not None
        assert b is not None
        assert sfa is not None
        assert sfb is not None
        assert offsets is not None
        a.require_rank(2, "(h, t)")
        b.require_rank(2, "(t, i)")
        require_dtype(a, *ELEMENTS)
        if a.dtype != b.dtype:
            raise DTypeError(
                b.name, got=str(b.dtype), wanted=f"{a.dtype}, the dtype of {a.name}", remedy="cast one of the operands"
            )
        if b.shape[0] != a.shape[1]:
            wanted = f"(t, i) with t = {a.shape[1]}"
            raise ShapeError(b.name, got=str(b.shape), wanted=wanted, remedy="pass matching operands")
        for spec, dim in ((a, 1), (b, 0)):
            require_compact(spec)
            if is_fp4(a.dtype) and spec.size and not spec.dense_in(dim):
                raise StrideError(
                    spec.name, got=f"strides {spec.strides}", wanted="FP4 pairs along t", remedy="pack along t"
                )
        block, count = options["sf_vec_size"], require_experts(offsets)
        require_block(block)
        require_dtype(sfa, *SCALES)
        format = block_format(a.dtype.name, sfa.dtype.name, block)
        t = a.shape[1] * (2 if is_fp4(a.dtype) else 1)
        for scales, rows in ((sfa, a.shape[0]), (sfb, b.shape[1])):
            require_scales(scales, packed_size(rows, t, block), f"{rows} rows of {t} elements, expert after expert")
        if sfb.dtype != sfa.dtype:
            raise DTypeError(
                sfb.name, got=str(sfb.dtype), wanted=f"{sfa.dtype}, as {sfa.name}", remedy="use one format"
            )
        _require_global(ga, gb, count, needed=format.scale.name == "float8_e4m3fn")
        kind = output_dtype(options["wgrad_dtype"], "wgrad_dtype")
        if old is not None:
            require_rows(old, (count, a.shape[0], b.shape[1]), "(E, h, i)", kind.name)
        if pointers is not None:
            require_addresses(pointers, count, "wgrad_ptrs")
        require_same_device(a, b, sfa, sfb, offsets, ga, gb, old, pointers)
        accumulate = bool(options.get("accumulate")) and pointers is not None
        return cls(a, b, sfa, sfb, offsets, ga, gb, old, pointers, block, kind, bool(options["ragged"]), accumulate)

    @property
    def rows(self) -> int:
        """t, in elements."""
        return self.a_tensor.shape[1] * (2 if is_fp4(self.a_tensor.dtype) else 1)

    @property
    def format(self) -> BlockFormat:
        """How the operands are quantised."""
        return block_format(self.a_tensor.dtype.name, self.sfa_tensor.dtype.name, self.sf_vec_size)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """As without scale factors."""
        return wgrad_outputs(self)

    @property
    def degenerate(self) -> bool:
        """Nothing to sum."""
        return nothing_to_sum(self)

    @property
    def flops(self) -> int:
        """2 h i t, as if the groups filled the buffer."""
        return 2 * self.a_tensor.shape[0] * self.b_tensor.shape[1] * self.rows


def _require_global(ga: TensorSpec | None, gb: TensorSpec | None, count: int, *, needed: bool) -> None:
    if (ga is None) != (gb is None) or (needed and ga is None):
        raise OptionError(
            "global_scale_a, global_scale_b",
            got="none" if ga is gb else "one",
            wanted="both" if needed else "both or none",
            remedy="pass (E,) float32 factors of each operand; NVFP4 has them",
        )
    for scale in (ga, gb):
        if scale is not None:
            require_rows(scale, (count,), "(E,)", "float32")


EXAMPLE = """\
import numpy as np
from cudnn_fe.core.block_scale import MXFP8_E4M3, dequantize, quantize, split_expert_columns, swizzle_scales
from cudnn_fe.core.codecs import from_codes
from cudnn_fe.grouped import grouped_gemm_wgrad_forward

rng = np.random.default_rng(0)
dy, x = rng.standard_normal((384, 32), dtype=np.float32), rng.standard_normal((384, 16), dtype=np.float32)
ends = np.array([128, 384], np.int32)
qy, qx = (quantize(value, MXFP8_E4M3, axis=0) for value in (dy, x))  # blocks of 32 rows
a, b = from_codes(qy.codes, "float8_e4m3fn").T, from_codes(qx.codes, "float8_e4m3fn")
sfa, sfb = (
    from_codes(split_expert_columns(swizzle_scales(q.scales.T), ends), "float8_e8m0fnu") for q in (qy, qx)
)
(w,) = grouped_gemm_wgrad_forward(a, b, sfa, sfb, ends, wgrad_dtype="float32", sf_vec_size=32)
wide_y, wide_x = (dequantize(q.codes, q.scales, MXFP8_E4M3, axis=0) for q in (qy, qx))
np.testing.assert_allclose(w[1], wide_y[128:].T @ wide_x[128:], rtol=1e-4, atol=1e-3)
"""
_SEGMENTS = "packed atoms, expert after expert, in any shape"

SCALED = Op(
    name="grouped_gemm_wgrad_scaled_forward",
    package="cudnn-fe-grouped",
    problem=ScaledWgrad,
    reference="cudnn_fe.grouped.wgrad_scaled.reference:scaled_wgrad",
    kernels=SCALED_WGRAD_KERNELS,
    summary="The block-scaled mode of grouped_gemm_wgrad_forward: MXFP8, MXFP4 or NVFP4 operands, quantised along the "
    "rows.",
    formula=r"W_{ghi} = s^A_g s^B_g \sum_{t \in g} \hat A_{ht} \hat B_{ti}",
    tensors=(
        TensorRule(
            "a_tensor", "(h, t)", "compact, either dim contiguous; FP4 along t", ELEMENTS, "gradient of results"
        ),
        TensorRule("b_tensor", "(t, i)", "compact, either dim contiguous; FP4 along t", ELEMENTS, "inputs"),
        TensorRule("sfa_tensor", "h rows", _SEGMENTS, SCALES, "scale factors of A along t; bytes are E8M0"),
        TensorRule("sfb_tensor", "i rows", _SEGMENTS, SCALES, "scale factors of B along t"),
        TensorRule("offsets_tensor", "(E,)", "contiguous", ("int32",), "ends of the experts' rows"),
        TensorRule(
            "global_scale_a", "(E,)", "contiguous", ("float32",), "factor of A; required with global_scale_b for NVFP4"
        ),
        TensorRule("global_scale_b", "(E,)", "contiguous", ("float32",), "factor of B"),
        TensorRule("wgrad_tensor", "(E, h, i)", "contiguous", FLOATS, "the gradients; zero for an empty expert"),
    ),
    example=EXAMPLE,
    source="OCP Microscaling (MX) v1.0 for the operands; names and layouts of cudnn-frontend 1.32's "
    "grouped_gemm_wgrad.",
    notes=(
        "Ends are multiples of 4 blocks (128 rows, or 64 for blocks of 16): scale factors are packed expert by expert, "
        "in the form that `discrete_col_sfd` of the forward ops gives. Rows past the last end are not read.",
        "Operands are dequantised exactly; sums are float32, times both global scales, rounded once. No atomics.",
        "`wgrad_ptrs`, `accumulate_on_output` and `input_order` are as without scale factors.",
        "FP8 with blocks of 16, or scales of two formats, raise: no format has them. NumPy and uint8 pairs are "
        "accepted.",
        BFLOAT16_NOTE,
    ),
    results=("wgrad_tensor",),
    jax_name="grouped_gemm_wgrad_jax_forward",
    memory_cases="cudnn_fe.grouped.scaled.torch_bench:wgrad",
)
