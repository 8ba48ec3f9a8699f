"""Quantised GEMM operands, with their float64 values by a way that shares no code with the ops."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from cudnn_fe.core.block_scale import BLOCK_FORMATS, BlockFormat, atom_view, block_format, quantize, swizzle_scales
from cudnn_fe.core.codecs import from_codes, pack_fp4

__all__ = ["KINDS", "Case", "K", "L", "M", "N", "batch_of", "numbers", "wrap"]

# Two row tiles for A, a part of one for B, a last K block that is short for one scale per 32, a last K atom that is not
# full, and a batch.
M, N, K, L = 130, 22, 176, 2
KINDS = {**BLOCK_FORMATS, "fp4_e8m0_16": block_format("uint8", "int8", 16)}


class Case:
    """Operands as NumPy bytes, and their values."""

    def __init__(self, kind: str, k: int = K, batch: int = L, seed: int = 0, n: int = N) -> None:
        self.format: BlockFormat = KINDS[kind]
        self.fp4 = self.format.element.bits == 4
        rng = np.random.default_rng(seed)
        self.batch = batch
        self.a: Any
        self.b: Any
        self.prob: Any
        self.upstream: Any
        self.a, self.sfa, self.wide_a = self._operand(rng, M, k)
        self.b, self.sfb, self.wide_b = self._operand(rng, n, k)
        self.s = np.einsum("mkl,nkl->mnl", self.wide_a, self.wide_b)
        # A float32 sum of k terms errs by at most k units of the sum of magnitudes.
        self.bound = k * 2.0**-24 * np.einsum("mkl,nkl->mnl", np.abs(self.wide_a), np.abs(self.wide_b))
        self.prob = rng.uniform(-1, 1, (M, 1, batch)).astype(np.float32)
        self.upstream = rng.standard_normal((batch, M, n)).astype(np.float32).transpose(1, 2, 0)

    def _operand(self, rng: Any, rows: int, k: int) -> tuple[Any, Any, Any]:
        x = rng.standard_normal((rows, k, self.batch)).astype(np.float32)
        got = quantize(x, self.format, axis=1)
        element = getattr(ml_dtypes, self.format.element.name)
        scale = getattr(ml_dtypes, self.format.scale.name)
        values = from_codes(got.codes, self.format.element).view(element).astype(np.float64)
        scales = got.scales.view(scale).astype(np.float64).repeat(self.format.block, 1)[:, :k]
        packed = np.array(swizzle_scales(got.scales.transpose(2, 0, 1)))
        used = np.asarray(swizzle_scales(np.ones_like(got.scales.transpose(2, 0, 1))))
        packed[used == 0] = 0xFF if self.format.scale.name == "float8_e8m0fnu" else 0x7F  # NaN where nothing is read
        codes = pack_fp4(got.codes, axis=1) if self.fp4 else got.codes
        # (rows, K, L) with the batch outermost in memory.
        codes = np.ascontiguousarray(codes.transpose(2, 0, 1)).transpose(1, 2, 0)
        return codes, packed, values * scales

    def operands(self, framework: str, *, atom: bool = True) -> Any:
        """A, B, SFA, SFB of a framework."""
        scale = self.format.scale.name
        if framework == "torch":
            import torch

            element: Any = torch.float4_e2m1fn_x2 if self.fp4 else getattr(torch, self.format.element.name)
            data = [torch.from_numpy(x).view(element) for x in (self.a, self.b)]
            scales = [torch.from_numpy(x).view(getattr(torch, scale)) for x in (self.sfa, self.sfb)]
        else:
            element = np.uint8 if self.fp4 else getattr(ml_dtypes, self.format.element.name)
            data = [x.view(element) for x in (self.a, self.b)]
            scales = [x.view(getattr(ml_dtypes, scale)) for x in (self.sfa, self.sfb)]
        if framework == "jax":
            import jax.numpy as jnp

            return [jnp.asarray(x) for x in data + scales]
        return data + [atom_view(x) if atom else x for x in scales]


def wrap(framework: str, x: Any) -> Any:
    """A NumPy array in a framework."""
    if framework == "torch":
        import torch

        return torch.asarray(x)
    if framework == "jax":
        import jax.numpy as jnp

        return jnp.asarray(x)
    return x


def numbers(x: Any) -> Any:
    """An array of any framework as NumPy's float64."""
    return np.asarray(x.float() if hasattr(x, "float") else x, np.float64)


def batch_of(framework: str) -> int:
    """JAX arrays are row-major, and so is a batch that is innermost: its operands have none."""
    return 1 if framework == "jax" else L
