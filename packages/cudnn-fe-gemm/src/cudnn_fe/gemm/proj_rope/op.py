"""The contract of the query projection with rotary embedding and two MXFP8 results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.block_scale.formats import BFLOAT16_NOTE
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_contiguous, require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.gemm.scaled_kernels import scaled_kernels

__all__ = ["BLOCK", "FORWARD", "HEAD", "PLAIN", "ROTATED", "GemmProjRope"]

HEAD = 192  # features of a head
PLAIN = 128  # of them, not rotated
ROTATED = HEAD - PLAIN
BLOCK = 32  # features, or tokens, that share a scale

_INPUTS = ("bfloat16", "float8_e4m3fn")
_SCALES = ("uint8", "float8_e8m0fnu")


@dataclass(frozen=True)
class GemmProjRope(Problem):
    """One call: tokens times weight, head by head, the last 64 features rotated, quantised along features and tokens.

    With ``w_out_in`` the weight is (N, K) and its scales (N, K / 32), else both are transposed.
    """

    operands: ClassVar[tuple[str, ...]] = ("x", "w", "cos", "sin", "x_scale", "w_scale")
    optional: ClassVar[frozenset[str]] = frozenset({"x_scale", "w_scale"})
    kept: ClassVar[frozenset[str]] = frozenset({"cos", "sin"})
    output_count: ClassVar[int] = 4

    x: TensorSpec
    w: TensorSpec
    cos: TensorSpec
    sin: TensorSpec
    x_scale: TensorSpec | None
    w_scale: TensorSpec | None
    w_out_in: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Option: ``w_out_in``."""
        x, w, cos, sin, x_scale, w_scale = operands
        assert x is not None
        assert w is not None
        assert cos is not None
        assert sin is not None
        out_in = options["w_out_in"]
        if not isinstance(out_in, bool):
            raise OptionError("w_out_in", got=repr(out_in), wanted="True or False", remedy="say how w is stored")
        x.require_rank(2, "(T, K)")
        w.require_rank(2, "(N, K)" if out_in else "(K, N)")
        tokens, k = x.shape
        n = w.shape[0 if out_in else 1]
        if w.shape[1 if out_in else 0] != k:
            wanted = f"K = {k}, as {x.name} {x.shape}, in {'(N, K)' if out_in else '(K, N)'}"
            raise ShapeError(w.name, got=str(w.shape), wanted=wanted, remedy="pass matching operands, or set w_out_in")
        if n % HEAD:
            wanted = f"a multiple of {HEAD}: {PLAIN} plain and {ROTATED} rotated features a head"
            raise ShapeError(w.name, got=f"N = {n}", wanted=wanted, remedy="pass whole heads")
        require_dtype(x, *_INPUTS)
        if w.dtype != x.dtype:
            raise DTypeError(w.name, got=str(w.dtype), wanted=f"{x.dtype}, as {x.name}", remedy="use one dtype")
        for table in (cos, sin):
            require_shape(table, (tokens, ROTATED), "(T, 64)")
            require_dtype(table, "bfloat16")
        blocks = -(-k // BLOCK)
        shapes = ((tokens, blocks), (n, blocks) if out_in else (blocks, n))
        for name, scale, shape in zip(("x_scale", "w_scale"), (x_scale, w_scale), shapes, strict=True):
            if (scale is not None) != x.dtype.is_fp8:
                raise OptionError(
                    name,
                    got="None" if scale is None else "scales",
                    wanted=f"{'E8M0 scales' if x.dtype.is_fp8 else 'None'} with {x.dtype} operands",
                    remedy="pass both scales with E4M3 operands, and none with bfloat16",
                )
            if scale is not None:
                require_shape(scale, shape, f"one per {BLOCK} along K, plain row-major")
                require_dtype(scale, *_SCALES)
        require_contiguous(*(spec for spec in operands if spec is not None))
        require_same_device(x, w, cos, sin, x_scale, w_scale)
        return cls(x, w, cos, sin, x_scale, w_scale, out_in)

    @property
    def extents(self) -> tuple[int, int, int]:
        """Tokens, heads, K."""
        tokens, k = self.x.shape
        return tokens, self.w.shape[0 if self.w_out_in else 1] // HEAD, k

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Codes and scales along features, then along tokens."""
        tokens, heads, _ = self.extents

        def spec(name: str, kind: str, *shape: int) -> TensorSpec:
            return TensorSpec(shape, contiguous_strides(shape), dtype(kind), self.device, 16, name)

        return (
            spec("out_fp8_row", "float8_e4m3fn", tokens, heads, HEAD),
            spec("out_scales_row", "uint8", tokens, heads, HEAD // BLOCK),
            spec("out_fp8_col", "float8_e4m3fn", tokens, heads, HEAD),
            spec("out_scales_col", "uint8", -(-tokens // BLOCK), heads, HEAD),
        )

    @property
    def degenerate(self) -> bool:
        """No products to sum, or nothing to write."""
        return 0 in self.extents

    @property
    def flops(self) -> int:
        """2 T N K."""
        tokens, heads, k = self.extents
        return 2 * tokens * heads * HEAD * k


EXAMPLE = """\
import ml_dtypes
import numpy as np
from cudnn_fe.core.block_scale import MXFP8_E4M3, dequantize
from cudnn_fe.gemm import gemm_proj_rope_mxfp8_forward

rng = np.random.default_rng(0)
tokens, heads, k = 64, 2, 96
x = rng.standard_normal((tokens, k)).astype(ml_dtypes.bfloat16)
w = rng.standard_normal((heads * 192, k)).astype(ml_dtypes.bfloat16)
angle = rng.uniform(0, 6, (tokens, 64))
cos, sin = np.cos(angle).astype(ml_dtypes.bfloat16), np.sin(angle).astype(ml_dtypes.bfloat16)
out = gemm_proj_rope_mxfp8_forward(x, w, cos, sin)
q = dequantize(out["out_fp8_row"], out["out_scales_row"], MXFP8_E4M3)  # (tokens, heads, 192)
plain = (x.astype(np.float32) @ w.astype(np.float32).T).reshape(q.shape)[:, :, :128]
assert np.abs(q[:, :, :128] - plain).max() < 4
"""

FORWARD = Op(
    name="gemm_proj_rope_mxfp8_forward",
    package="cudnn-fe-gemm",
    problem=GemmProjRope,
    reference="cudnn_fe.gemm.proj_rope.reference:gemm_proj_rope",
    kernels=scaled_kernels("proj_rope"),
    summary="Latent attention's query projection: GEMM, rotary embedding of each head's tail, MXFP8 in two directions.",
    formula=r"y = \mathrm{bf16}(X W^T), \quad v_{128+j} = y_{128+2j} c_j - y_{129+2j} s_j, \quad "
    r"v_{160+j} = y_{128+2j} s_{32+j} + y_{129+2j} c_{32+j}",
    tensors=(
        TensorRule("x", "(T, K)", "contiguous", _INPUTS, "tokens"),
        TensorRule("w", "(N, K), or (K, N) with w_out_in=False", "contiguous", _INPUTS, "weight, N = 192 heads"),
        TensorRule(
            "cos", "(T, 64)", "contiguous", ("bfloat16",), "cosines: 32 of the sum's first half, 32 of the other"
        ),
        TensorRule("sin", "(T, 64)", "contiguous", ("bfloat16",), "sines, likewise"),
        TensorRule("x_scale", "(T, K/32)", "contiguous", _SCALES, "E8M0 scales of E4M3 tokens, else None"),
        TensorRule("w_scale", "(N, K/32), or (K/32, N)", "contiguous", _SCALES, "E8M0 scales of an E4M3 weight"),
        TensorRule("out_fp8_row", "(T, H, 192)", "contiguous", ("float8_e4m3fn",), "codes, blocks along features"),
        TensorRule("out_scales_row", "(T, H, 6)", "contiguous", ("uint8",), "E8M0: features 32b to 32b + 31"),
        TensorRule("out_fp8_col", "(T, H, 192)", "contiguous", ("float8_e4m3fn",), "codes, blocks along tokens"),
        TensorRule("out_scales_col", "(T/32, H, 192)", "contiguous", ("uint8",), "E8M0: tokens 32c to 32c + 31"),
    ),
    example=EXAMPLE,
    source="RoFormer (Su et al., arXiv:2104.09864) and OCP MX v1.0; names and layouts of cudnn-frontend 1.32's "
    "gemm_proj_rope_mxfp8.",
    notes=(
        "The projection is rounded to bfloat16 before the rotation, the rotation not before it is quantised. Pairs are "
        "neighbours on input and 32 apart on output.",
        "Both quantisations follow the recipe `power_of_two` of `cudnn_fe.core.block_scale`, of the same values. A NaN "
        "has a NaN code and leaves its block's scale to the others; a block of NaN alone has the NaN scale. Infinities "
        "take the largest scale and code and leave finite values what that scale gives; the vendor makes them NaN and "
        "the others 0.",
        "Accepted beyond the vendor: any number of tokens (a last block of tokens may be shorter), any K, odd heads, "
        "JAX arrays with w_out_in=False, NumPy arrays. Wrong dtypes and missing scales raise ValueErrors, "
        "the vendor's wrapper AssertionErrors.",
        "Bit-equal from run to run on one device.",
        BFLOAT16_NOTE,
    ),
    results=("out_fp8_row", "out_scales_row", "out_fp8_col", "out_scales_col"),
    legacy=(
        "gemm_proj_rope_mxfp8_wrapper_sm100",
        "GemmProjRopeMxfp8Bf16InSm100",
        "GemmProjRopeMxfp8Mxfp8InSm100",
        "gemm_proj_rope_mxfp8_jax_sm100",
    ),
    jax_name="gemm_proj_rope_mxfp8_jax_forward",
    memory_cases="cudnn_fe.gemm.torch_bench:proj_rope",
)
