"""RMSNorm + SiLU: rows normalised, activated, and stored in their final format."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs
from cudnn_fe.core.cute.exact import fused_multiply_add, magnitude
from cudnn_fe.core.cute.rms_rows import RmsRows
from cudnn_fe.core.cute.row_vectors import VECTOR, store_global, store_words
from cudnn_fe.core.cute.small_floats import E2M1_UNIT, e2m1_word, fp8_words, has_fp8
from cudnn_fe.norm_rope.rmsnorm_silu.op import BLOCK, SiluSpec

__all__ = ["fake_arguments", "launcher"]

_LEAST_SCALE = 1.17549435e-38
_LOG2_E = math.log2(math.e)


class _RmsNormSilu:
    def __init__(self, spec: SiluSpec) -> None:
        self.spec = spec
        self.rows = RmsRows(spec.columns, spec.width, spec.plan)
        self.native_fp8 = has_fp8(spec.arch)

    @cute.jit
    def launch(self, stream: cuda.CUstream, x: Any, weight: Any, out: Any, scales: Any, eps: Float32) -> None:
        self.rows.launch(self.kernel(x, weight, out, scales, eps), x.shape[0], stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, scales: Any, eps: Float32) -> None:
        shared = SmemAllocator().allocate(self.rows.shared_bytes, 16).toint()
        self.rows.each_row(x, weight, eps, shared, partial(self.activate, out, scales), lambda *_: None)

    def activate(
        self,
        out: Any,
        scales: Any,
        row: Int64,
        vector: Int32,
        values: list[Any],
        factors: list[Any],
        scale: Float32,
        valid: Int32,
    ) -> None:
        """A run of vectors' results, in their format, stored."""
        activated = _silu_of_products(values, factors, scale)
        per_row = self.spec.columns // VECTOR
        base = out.iterator.toint()
        if self.spec.out_dtype == "bfloat16":
            store_words(base + row * (per_row * 16) + Int64(vector) * 16, narrow_pairs(activated), 16, valid)
        elif self.spec.out_dtype == "float8_e4m3fn":
            words = fp8_words("float8_e4m3fn", activated, self.native_fp8)
            store_global(base + row * (per_row * 8) + Int64(vector) * 8, words, 8, valid)
        else:
            divisor, words = _block(activated)
            store_global(base + row * (per_row * 4) + Int64(vector) * 4, words, 8, valid)
            code = fp8_words("float8_e4m3fn", [divisor] * 4, self.native_fp8)[0]
            at = scales.iterator.toint() + row * (per_row * VECTOR // BLOCK) + Int64(vector // (BLOCK // VECTOR))
            store_global(at, [code], 1, valid)


def _silu_of_products(values: list[Any], factors: list[Any], scale: Float32) -> list[Float32]:
    """``y / (1 + exp(-y))`` of ``y = value * factor * scale``.

    The exponential's factor log2(e) goes into the scale, and out again with the one: no product of its own.
    """
    scaled = scale * Float32(_LOG2_E)
    results = []
    for value, factor in zip(values, factors, strict=True):
        u = factor * (scaled * value)
        power = cute.math.exp2(-u, fastmath=True)
        results.append(u * cute.arch.rcp_approx(fused_multiply_add(power, _LOG2_E, _LOG2_E)))
    return results


def _block(values: list[Any]) -> tuple[Float32, list[Int32]]:
    """A sixth of a block's largest magnitude, not below a normal number, and the codes of the values divided by it."""
    top = Float32(0.0)
    for value in values:
        top = cute.arch.fmax(top, magnitude(value))
    divisor = cute.arch.fmax(top * Float32(1.0 / 6.0), Float32(_LEAST_SCALE))
    inverse = cute.arch.rcp_approx(divisor) * Float32(E2M1_UNIT)
    shares = [value * inverse for value in values]
    return divisor, [
        e2m1_word(shares[start : start + VECTOR], scaled=True, away=True) for start in range(0, BLOCK, VECTOR)
    ]


class _OneResult(_RmsNormSilu):
    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, x: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, eps: Float32
    ) -> None:
        self.launch(stream, x, weight, out, None, eps)


class _WithScales(_RmsNormSilu):
    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        x: cute.Tensor,
        weight: cute.Tensor,
        out: cute.Tensor,
        scales: cute.Tensor,
        eps: Float32,
    ) -> None:
        self.launch(stream, x, weight, out, scales, eps)


def launcher(spec: SiluSpec) -> Any:
    """The host function ``launch(stream, x, weight, out[, block_scale], eps)`` of a spec, to be compiled."""
    return _WithScales(spec) if spec.out_dtype == "float4_e2m1fn" else _OneResult(spec)


def fake_arguments(spec: SiluSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (x, weight, out[, block_scale], eps)."""
    given = (
        fake_tensor("bfloat16", -1, rank=spec.x_rank, alignment=min(spec.width, 16)),
        fake_tensor("bfloat16", -1, rank=spec.w_rank, alignment=min(spec.width, 16)),
    )
    results: tuple[Any, ...]
    if spec.out_dtype == "float4_e2m1fn":
        results = (fake_tensor("uint8", 1, rank=2), fake_tensor("float8_e4m3fn", 1, rank=2))
    else:
        results = (fake_tensor(spec.out_dtype, -1, rank=spec.x_rank),)
    return (*given, *results, Float32(1e-6))
