"""Quantised operands of grouped GEMMs, with their float64 values by a way that shares no code with the ops."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from cudnn_fe.core.block_scale import BlockFormat, quantize, swizzle_scales
from cudnn_fe.core.codecs import encode, from_codes, pack_fp4
from cudnn_fe_testkit.moe import ends_of, of_rows, products
from cudnn_fe_testkit.scaled_gemm import KINDS, numbers, wrap

__all__ = ["Case", "ExactCase", "check_quantised", "check_results", "plain_scales", "raw"]

K = 96  # three blocks of 32, six of 16: neither fills an atom of four
ROUTES = {
    "uneven": ([40, 0, 97], 3),
    "one expert": ([45], 2),
    "atoms": ([128, 0, 256], 0),
    "one row": ([1, 0, 300, 1, 128, 0, 257, 1], 41),
}


class Case:
    """Operands as NumPy bytes, and their values; rows past the end and padding scales hold NaN."""

    def __init__(self, kind: str, n: int, route: str = "uneven", k: int = K, seed: int = 0) -> None:
        self.format: BlockFormat = KINDS[kind]
        self.fp4 = self.format.element.bits == 4
        counts, tail = ROUTES[route]
        self.ends, self.m, self.count = ends_of(counts), sum(counts) + tail, len(counts)
        self.inside = np.arange(self.m) < self.ends[-1]
        self.n, self.k = n, k
        rng = np.random.default_rng(seed)
        self.a, self.sfa, self.wide_a = self._operand(rng, 1, self.m, k)
        self.b, self.sfb, self.wide_b = self._operand(rng, self.count, n, k)
        self.a, self.wide_a = self.a[0], self.wide_a[0]
        if not self.fp4:
            self.a[~self.inside] = 0x7F
        self.alpha = rng.standard_normal(self.count).astype(np.float32)
        self.beta = rng.standard_normal(self.count).astype(np.float32)
        self.prob = rng.uniform(-1, 1, self.m).astype(np.float32)
        self.bias = rng.standard_normal((n, self.count)).astype(np.float32)
        self.norm = np.asarray([0.01], np.float32)
        self.s = products(self.wide_a, self.wide_b, self.ends)
        # A float32 sum of k terms errs by at most k units of the sum of magnitudes.
        self.bound = k * 2.0**-24 * products(np.abs(self.wide_a), np.abs(self.wide_b), self.ends)

    def _operand(self, rng: Any, count: int, rows: int, k: int) -> tuple[Any, Any, Any]:
        got = quantize(rng.standard_normal((count, rows, k)).astype(np.float32), self.format)
        element = getattr(ml_dtypes, self.format.element.name)
        values = from_codes(got.codes, self.format.element).view(element).astype(np.float64)
        scale = getattr(ml_dtypes, self.format.scale.name)
        scales = got.scales.view(scale).astype(np.float64).repeat(self.format.block, -1)[..., :k]
        packed = np.array(swizzle_scales(got.scales))
        packed[np.asarray(swizzle_scales(np.ones_like(got.scales))) == 0] = self.nan_scale
        return np.array(pack_fp4(got.codes) if self.fp4 else got.codes), packed, values * scales

    @property
    def nan_scale(self) -> int:
        """A scale byte that is NaN."""
        return 0xFF if self.format.scale.name == "float8_e8m0fnu" else 0x7F

    def rows(self, table: Any) -> Any:
        """Each row's entry of a table by expert, in float64, with a column dim."""
        found = of_rows(table.astype(np.float64), self.ends, self.m)
        return found[:, None] if found.ndim == 1 else found

    def wrapped(self, framework: str) -> dict[str, Any]:
        """The operands as arrays of a framework, by their parameters' names."""
        scale = self.format.scale.name
        data = {"a_tensor": self.a, "b_tensor": self.b}
        scales = {"sfa_tensor": self.sfa, "sfb_tensor": self.sfb}
        others = {
            "padded_offsets": self.ends,
            "alpha_tensor": self.alpha,
            "prob_tensor": self.prob,
            "norm_const_tensor": self.norm,
        }
        plain = {name: wrap(framework, x.copy()) for name, x in others.items()}
        if framework == "torch":
            import torch

            element: Any = torch.float4_e2m1fn_x2 if self.fp4 else getattr(torch, self.format.element.name)
            found = {name: torch.from_numpy(x).view(element) for name, x in data.items()}
            return plain | found | {name: torch.from_numpy(x).view(getattr(torch, scale)) for name, x in scales.items()}
        kind = np.uint8 if self.fp4 else getattr(ml_dtypes, self.format.element.name)
        arrays = {name: x.view(kind) for name, x in data.items()}
        arrays |= {name: x.view(getattr(ml_dtypes, scale)) for name, x in scales.items()}
        return plain | {name: wrap(framework, x) for name, x in arrays.items()}


class ExactCase(Case):
    """The same of small integers and scales near 1: every sum is exact in float32, in whatever order."""

    def _operand(self, rng: Any, count: int, rows: int, k: int) -> tuple[Any, Any, Any]:
        values = rng.integers(-2, 3, (count, rows, k)).astype(np.float32)
        codes = encode(values, self.format.element)
        powers = np.exp2(rng.integers(-1, 2, (count, rows, -(-k // self.format.block)))).astype(np.float32)
        packed = np.array(swizzle_scales(encode(powers, self.format.scale)))
        packed[np.asarray(swizzle_scales(np.ones(powers.shape, np.uint8))) == 0] = self.nan_scale
        wide = values * powers.repeat(self.format.block, -1)[..., :k]
        return np.array(pack_fp4(codes) if self.fp4 else codes), packed, wide.astype(np.float64)


def plain_scales(packed: Any, rows: int, columns: int) -> Any:
    """E8M0 scales in float64, (rows, columns), of packed bytes in any shape, by the documented offset of each."""
    flat = np.asarray(packed).reshape(-1).view(np.uint8)
    atoms = -(-columns // 4)
    row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
    offset = 512 * (row // 128 * atoms + column // 4) + 16 * (row % 32) + 4 * (row % 128 // 32) + column % 4
    return 2.0 ** (flat[offset].astype(np.float64) - 127)


def check_quantised(values: Any, scales: Any, wanted: Any, bound: Any, norm: float, kind: str) -> None:
    """Asserts that blocks of 32 along the last dim hold ``wanted`` (float64, each wrong by ``bound`` at most).

    Args:
        values: The stored values, float64, (R, X).
        scales: Scales, float64, (R, ceil(X / 32)).
        wanted: What they stand for.
        bound: Error of what was quantised.
        norm: Factor of the recipe.
        kind: Element type.
    """
    limit = {"float8_e4m3fn": 448.0, "float8_e5m2": 128.0}.get(kind, 1.0)
    columns = wanted.shape[1]
    pad = ((0, 0), (0, -columns % 32))
    size, slack = (np.pad(x, pad).reshape(len(wanted), -1, 32).max(-1) for x in (np.abs(wanted), bound))
    for shift, compare in ((slack, np.greater_equal), (-slack, np.less_equal)):
        # The smallest power of two at or above amax * norm / limit, within the error of amax and three roundings.
        ideal = np.maximum(size + shift, 0) * norm / limit * (1 + np.sign(shift + 1e-300) * 4 * 2.0**-24)
        edge = 2.0 ** np.maximum(np.ceil(np.log2(np.maximum(ideal, 2.0**-127))), -127)
        assert compare(edge, scales).all(), "scales are not the amax of their block, rounded up"
    wide = scales.repeat(32, -1)[:, :columns] / norm
    finest = {
        "float8_e4m3fn": (2.0**-4, 2.0**-10),
        "float8_e5m2": (2.0**-3, 2.0**-17),
        "float16": (2.0**-11, 2.0**-25),
    }.get(kind, (2.0**-8, 0.0))
    step = finest[0] * (np.abs(wanted) + bound) + finest[1] * wide
    assert (np.abs(values * wide - wanted) <= step * (1 + 2.0**-20) + bound + 1e-30).all()


def raw(x: Any) -> Any:
    """The bytes of an array of any framework, as NumPy's."""
    if hasattr(x, "untyped_storage"):
        import torch

        x = x.view(torch.uint8)
    return np.asarray(x).view(np.uint8)


def check_results(case: Case, out: Any, wanted: Any, bound: Any, d_dtype: str, name: str = "d_tensor") -> None:
    """Asserts D by rows and by columns, its scales, and amax, against values that err by ``bound``."""
    keep = case.inside[:, None]
    wanted, bound = np.where(keep, wanted, 0.0), np.where(keep, bound, 0.0)
    width, norm = wanted.shape[1], float(case.norm[0])
    if out["sfd_row_tensor"] is None:
        step, least = {"bfloat16": (2.0**-8, 1e-30), "float16": (2.0**-11, 2.0**-25)}.get(d_dtype, (2.0**-24, 1e-30))
        assert (np.abs(numbers(out[name]) - wanted) <= bound + step * (np.abs(wanted) + bound) + least).all()
        assert out["d_col_tensor"] is None
        assert out["sfd_col_tensor"] is None
    else:
        rows = plain_scales(raw(out["sfd_row_tensor"]), case.m, -(-width // 32))
        columns = plain_scales(raw(out["sfd_col_tensor"]), width, -(-case.m // 32))
        check_quantised(numbers(out[name]), rows, wanted, bound, norm, d_dtype)
        check_quantised(numbers(out["d_col_tensor"]).T, columns, wanted.T, bound.T, norm, d_dtype)
    assert (out["amax_tensor"] is None) == (d_dtype not in ("bfloat16", "float16"))
    if out["amax_tensor"] is not None and out["amax_tensor"].ndim == 2:
        begins = np.concatenate(([0], case.ends[:-1]))
        for found, begin, end in zip(numbers(out["amax_tensor"])[:, 0], begins, case.ends, strict=True):
            slack = bound[begin:end].max(initial=0.0)
            largest = np.abs(wanted[begin:end]).max(initial=-np.inf)
            assert found == largest or abs(found - largest) <= slack * (1 + 2.0**-20)
