"""Tail RoPE + quantise-dequantise, bit for bit against a search of the formats' value tables, and its rules."""

# Operands are spread from made cases, whose number a type checker cannot know.
# mypy: disable-error-code="arg-type, func-returns-value, index"

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn
from cudnn_fe.core.codecs import decode_table
from cudnn_fe.core.errors import AliasError, OptionError, ShapeError, StrideError
from cudnn_fe.norm_rope import rope_qdq_inplace_forward, tail_rope_forward

BF16 = ml_dtypes.bfloat16
GRIDS = {
    "fp4": np.array(decode_table("float4_e2m1fn")[:8]),
    "fp8": np.array(decode_table("float8_e4m3fn")[:127]),
}
COMBINATIONS = [("fp4", 32, "ue8m0", (6, 4, 128)), ("fp8", 32, "ue8m0", (6, 512)), ("fp4", 16, "e4m3", (2, 3, 512))]


def nearest(grid: np.ndarray, magnitude: float) -> float:
    """The nearest grid value, ties to the even code; beyond the last, the last."""
    above = int(np.searchsorted(grid, magnitude))
    if above == len(grid):
        return float(grid[-1])
    if above == 0 or grid[above] == magnitude:
        return float(grid[above])
    low, high = magnitude - grid[above - 1], grid[above] - magnitude
    return float(grid[above - 1 if low < high or (low == high and above % 2) else above])


def definition(values: np.ndarray, kind: str, group: int, scale_format: str) -> np.ndarray:
    """Every group in float64, where each step of the contract is exact or rounds as float32 does."""
    grid, flat = GRIDS[kind], values.astype(np.float32).reshape(-1, group)
    result = np.empty_like(flat)
    for row, out in zip(flat, result, strict=True):
        largest = float(np.abs(row).max())
        if scale_format == "e4m3":
            ratio = float(np.float32(max(largest, 6 * 2.0**-9)) / np.float32(6))
            scale = nearest(GRIDS["fp8"], ratio)
        else:
            limit, floor = (6.0, 6 * 2.0**-126) if kind == "fp4" else (448.0, 1e-4)
            ratio = float(np.float32(max(largest, np.float32(floor))) * np.float32(1 / limit))
            mantissa, exponent = np.frexp(ratio)
            scale = 2.0 ** (exponent - (mantissa == 0.5))
        for index, value in enumerate(row):
            out[index] = np.copysign(nearest(grid, abs(float(value)) / scale) * scale, value)
    return result.reshape(values.shape).astype(BF16)


def sample(shape: tuple[int, ...], magnitudes: tuple[int, int] = (-30, 20), seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    # Few mantissa bits and many magnitudes: ties and floors turn up often. Signed zeros as well.
    x = np.round(rng.normal(size=shape) * 8) / 8 * np.exp2(rng.integers(*magnitudes, size=(*shape[:-1], 1)))
    x.reshape(-1)[::101] = -0.0
    angle = rng.uniform(-7, 7, size=(20, 32))
    cache = np.concatenate((np.cos(angle), np.sin(angle)), axis=1).astype(np.float32)
    rows = shape[0] if shape[-1] == 128 else int(np.prod(shape[:-1]))
    return x.astype(BF16), cache, rng.integers(0, 20, size=rows)


@pytest.mark.parametrize(("kind", "group", "scale", "shape"), COMBINATIONS)
@pytest.mark.parametrize(
    ("position", "magnitudes"),
    [(np.int32, (-30, 20)), (np.int64, (-30, 20)), (np.int32, (-138, -118)), (np.int64, (-130, 120))],
)
def test_bit_exact(
    kind: str, group: int, scale: str, shape: tuple[int, ...], position: Any, magnitudes: tuple[int, int]
) -> None:
    """Subnormal values, and scales at either end, too."""
    x, cache, rows = sample(shape, magnitudes)
    rows = rows.astype(position)
    angles = cache[rows]
    tokens = x if x.ndim == 3 and x.shape[-1] == 128 else x.reshape(len(rows), -1)
    turned = tail_rope_forward(tokens, angles[:, :32].copy(), angles[:, 32:].copy())["out"].reshape(x.shape)
    wanted = definition(turned, kind, group, scale)
    options: Any = {"quantization": kind, "group_size": group, "scale_format": scale}
    in_torch = torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    rope_qdq_inplace_forward(in_torch, torch.from_numpy(cache), torch.from_numpy(rows), **options)
    assert (in_torch.view(torch.int16).numpy() == wanted.view(np.int16)).all()
    out = rope_qdq_inplace_forward(x, cache, rows, **options)["out"]
    assert out is x
    assert (out.view(np.uint16) == wanted.view(np.uint16)).all()


def test_midpoints_of_fp4() -> None:
    x = np.zeros((1, 512), BF16)
    x[0, :8] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, -5]
    rope_qdq_inplace_forward(
        x, np.ones((1, 64), np.float32), np.zeros(1, np.int32), quantization="fp4", group_size=16, scale_format="e4m3"
    )
    assert x[0, :8].astype(float).tolist() == [6, 0, 1, 1, 2, 2, 4, -4]


def test_torch_in_place_at_any_alignment() -> None:
    x, cache, rows = (torch.from_numpy(a.astype(np.float32)) for a in sample((4, 512)))
    storage = torch.zeros(4 * 512 + 1, dtype=torch.bfloat16)
    view = storage[1:].view(4, 512)
    view.copy_(x)
    wanted = rope_qdq_inplace_forward(view.clone(), cache, rows.to(torch.int64), quantization="fp8")["out"]
    out = rope_qdq_inplace_forward(view, cache, rows.to(torch.int32), quantization="fp8")["out"]
    assert out is view
    assert torch.equal(view, wanted)


def test_refusals() -> None:
    x, cache, rows = sample((4, 512))
    with pytest.raises(OptionError, match="combination"):
        rope_qdq_inplace_forward(x, cache, rows, quantization="fp8", group_size=16)
    with pytest.raises(OptionError, match="quantization"):
        rope_qdq_inplace_forward(x, cache, rows, quantization="fp6")
    with pytest.raises(ShapeError, match=r"\(N, H, 128\)"):
        rope_qdq_inplace_forward(x, cache, rows, quantization="fp4")
    with pytest.raises(ShapeError, match="positions"):
        rope_qdq_inplace_forward(x, cache, rows[:3], quantization="fp8")
    with pytest.raises(StrideError, match="contiguous"):
        rope_qdq_inplace_forward(np.asfortranarray(x), cache, rows, quantization="fp8")
    leaf = torch.zeros(2, 512, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(ValueError, match="gradient"):
        rope_qdq_inplace_forward(leaf, torch.ones(1, 64), torch.zeros(2, dtype=torch.int32), quantization="fp8")
    shared = torch.zeros(64 * 64)
    with pytest.raises(AliasError, match="cache"):
        rope_qdq_inplace_forward(
            shared.view(torch.bfloat16)[: 4 * 512].view(4, 512),
            shared.view(64, 64),
            torch.zeros(4, dtype=torch.int32),
            quantization="fp8",
        )


def test_class() -> None:
    x, cache, rows = (torch.from_numpy(a.astype(np.float32)) for a in sample((4, 512)))
    x, rows = x.to(torch.bfloat16), rows.to(torch.int32)
    op = cudnn.RopeQDQInplace(x, cache, rows, quantization="fp8")
    op.compile()
    assert op.scratch_workspace_bytes() == 0
    for count in (4, 2):
        given, wanted = x[:count].clone(), x[:count].clone()
        assert op.execute(given, cache, rows[:count])["out"] is given
        cudnn.rope_qdq_inplace(wanted, cache, rows[:count], quantization="fp8")
        assert torch.equal(given, wanted)
