"""Operands of the block-scaled weight gradient, placed by the documented offsets, and the gradients in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from cudnn_fe.core.block_scale import quantize
from cudnn_fe.core.codecs import encode, from_codes, pack_fp4
from cudnn_fe_testkit.moe import ends_of, weight_gradients, worst_expert
from cudnn_fe_testkit.scaled_gemm import KINDS, numbers, wrap

__all__ = ["COUNTS", "TAIL", "WIDE", "H", "WgradCase"]

H, WIDE = 140, 24
COUNTS, TAIL = [128, 0, 256], 128


class WgradCase:
    """Operands quantised along t as NumPy bytes, scales placed by the documented offset of each, and their values.

    Args:
        kind: The format.
        counts: Rows of the experts, whole atoms of scales.
        extents: h and i.
        whole: Whether values are such that every sum is exact in float32.
    """

    def __init__(
        self, kind: str, counts: list[int] | None = None, extents: tuple[int, int] = (H, WIDE), *, whole: bool = False
    ) -> None:
        counts = COUNTS if counts is None else counts
        self.extents, self.whole = extents, whole
        self.format = KINDS[kind]
        self.fp4, self.block = self.format.element.bits == 4, self.format.block
        self.ends, self.t = ends_of(counts), sum(counts) + TAIL
        rng = np.random.default_rng(0)
        self.a, self.sfa, self.wide_a = self._operand(rng, extents[0])
        self.b, self.sfb, self.wide_b = self._operand(rng, extents[1])
        self.ga, self.gb = (rng.standard_normal(len(counts)).astype(np.float32) for _ in range(2))
        self.needs_global = self.format.scale.name == "float8_e4m3fn"
        self.exact = weight_gradients(self.wide_a, self.wide_b, self.ends)
        if self.needs_global:
            self.exact = self.exact * (self.ga.astype(np.float64) * self.gb)[:, None, None]

    def _operand(self, rng: Any, width: int) -> tuple[Any, Any, Any]:
        """(width, t) codes with t contiguous, packed scales, and (t, width) values."""
        codes, scales = self._quantised(rng, width)
        element, scale = (getattr(ml_dtypes, kind.name) for kind in (self.format.element, self.format.scale))
        values = from_codes(codes, self.format.element).view(element).astype(np.float64)
        wide = values * scales.view(scale).astype(np.float64).repeat(self.block, 1)
        high = -(-width // 128)
        packed: Any = np.full(
            512 * high * self.t // (4 * self.block), 0x7F, np.uint8
        )  # large or NaN where nothing is read
        begin = 0
        for end in (*self.ends, self.t):
            row, local = np.arange(width)[:, None], np.arange((end - begin) // self.block)[None]
            base = 128 * high * begin // self.block
            inner = ((row // 128) * ((end - begin) // (4 * self.block)) + local // 4) * 512
            offset = base + inner + row % 32 * 16 + row % 128 // 32 * 4 + local % 4
            if end > begin:
                packed[offset] = scales[:, begin // self.block : end // self.block]
            begin = end
        return np.ascontiguousarray(pack_fp4(codes) if self.fp4 else codes), packed, wide.T

    def _quantised(self, rng: Any, width: int) -> tuple[Any, Any]:
        """Codes (width, t), one a byte, and scales (width, t / block)."""
        if not self.whole:
            got = quantize(rng.standard_normal((width, self.t)).astype(np.float32), self.format)
            return got.codes, got.scales
        codes = encode(rng.integers(-2, 3, (width, self.t)).astype(np.float32), self.format.element)
        powers = 2.0 ** rng.integers(-1, 2, (width, self.t // self.block))
        return codes, encode(powers.astype(np.float32), self.format.scale)

    def ragged(self) -> list[Any]:
        """A and B as (width, t) bytes, each expert's part compact by itself."""
        per, found = (2 if self.fp4 else 1), []
        for codes in (self.a, self.b):
            parts, begin = [], 0
            for end in (*self.ends, self.t):
                parts.append(codes[:, begin // per : end // per].ravel())
                begin = end
            found.append(np.concatenate(parts).reshape(codes.shape))
        return found

    def operands(self, framework: str, majors: str = "row column") -> list[Any]:
        """A (h, t), B (t, i), their scales and the ends; ``majors`` says how A and B lie."""
        first, second = majors.split()
        a = self.a if first == "row" else np.ascontiguousarray(self.a.T).T
        b = self.b.T if second == "column" else np.ascontiguousarray(self.b.T)
        names = ("uint8" if self.fp4 else self.format.element.name, self.format.scale.name)
        if framework == "torch":
            element: Any = torch.float4_e2m1fn_x2 if self.fp4 else getattr(torch, names[0])
            data = [torch.from_numpy(x).view(element) for x in (a, b)] if not self.fp4 else [
                torch.from_numpy(self.a).view(element), torch.from_numpy(self.b).view(element).T]  # fmt: skip
            scales = [torch.from_numpy(x).view(getattr(torch, names[1])) for x in (self.sfa, self.sfb)]
            return [*data, *scales, torch.from_numpy(self.ends)]
        kinds = [getattr(ml_dtypes, name, np.uint8) for name in names]
        values = [a.view(kinds[0]), b.view(kinds[0]), *(x.view(kinds[1]) for x in (self.sfa, self.sfb)), self.ends]
        return [wrap(framework, x) for x in values]

    def options(self, framework: str) -> dict[str, Any]:
        """The call's options, for a float32 result."""
        scales = {"global_scale_a": wrap(framework, self.ga), "global_scale_b": wrap(framework, self.gb)}
        return {"wgrad_dtype": "float32", "sf_vec_size": self.block} | (scales if self.needs_global else {})

    def check(self, w: Any) -> None:
        """Asserts that a float32 result is right."""
        assert w.shape == (len(self.ends), *self.extents)
        assert worst_expert(numbers(w), self.exact) <= 4 * 2.0**-24 * 256**0.5
