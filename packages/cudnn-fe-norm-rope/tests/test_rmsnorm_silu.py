"""RMSNorm + SiLU against float64 in its three formats, and what it refuses."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe.core.codecs import decode, encode, unpack_fp4
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import DTypeError, ShapeError, StrideError
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.norm_rope import rmsnorm_silu_forward
from cudnn_fe.norm_rope.limits import MOST_ROWS
from cudnn_fe.norm_rope.rmsnorm_silu.op import FORWARD

BF16 = ml_dtypes.bfloat16
ROUNDINGS = 2.0**-23 * 40  # a row sum's and a dozen operations' in float32


def sample(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values off centre, as activations are; weights around one; and the exact result."""
    rng = np.random.default_rng(columns)
    x = (rng.normal(size=(rows, columns)) * 5 + 5).astype(BF16)
    w = rng.uniform(0.5, 2, size=columns).astype(BF16)
    exact = x.astype(np.float64)
    y = exact / np.sqrt(np.mean(exact**2, axis=1, keepdims=True) + 1e-6) * w.astype(np.float64)
    return x, w, y / (1 + np.exp(-y))


@pytest.mark.parametrize("columns", [8, 160, 1024, 4096])
def test_bfloat16_is_rounded_once(columns: int) -> None:
    x, w, exact = sample(5, columns)
    out, scale = rmsnorm_silu_forward(x, w, 1e-6)
    assert scale is None
    error = np.abs(out.astype(np.float64) - exact)
    assert (error <= np.abs(exact) * (2.0**-8 + ROUNDINGS) + 1e-30).all()


def test_fp8_is_the_nearest_code() -> None:
    x, w, exact = sample(5, 256)
    out, _ = rmsnorm_silu_forward(x, w, 1e-6, "float8_e4m3fn")
    nearest = encode(exact.astype(np.float32), "float8_e4m3fn")
    differ = out.view(np.uint8) != nearest
    assert differ.mean() < 0.001  # ties that float32's roundings move
    assert (np.abs(out.view(np.uint8).astype(int) - nearest) <= 1).all()


def test_fp4_divides_by_the_unrounded_scale() -> None:
    x, w, exact = sample(5, 256)
    out, scale = rmsnorm_silu_forward(x, w, 1e-6, "float4_e2m1fn")
    assert (out.dtype, out.shape, scale.shape) == (np.uint8, (5, 128), (5, 16))
    blocks = exact.reshape(5, 16, 16)
    wanted = np.abs(blocks).max(axis=2) / 6
    assert (scale.view(np.uint8) == encode(wanted.astype(np.float32), "float8_e4m3fn")).mean() > 0.98
    values = decode(unpack_fp4(out), "float4_e2m1fn").reshape(5, 16, 16)
    steps = np.maximum(np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 1)))) / 2, 0.5)
    error = np.abs(values - blocks / wanted[:, :, None])
    assert (error <= steps / 2 + 6 * ROUNDINGS).all()


def test_a_row_of_zeros_gives_zeros_in_every_format() -> None:
    x, w = np.zeros((2, 32), BF16), np.ones(32, BF16)
    for kind in ("bfloat16", "float8_e4m3fn", "float4_e2m1fn"):
        out, scale = rmsnorm_silu_forward(x, w, 1e-6, kind)
        assert not out.view(np.uint8).any()
        assert scale is None or not scale.view(np.uint8).any()


def test_large_values_saturate() -> None:
    """One element of 1024 is about 30 root mean squares: times 100, past 448, and past 448 times 6."""
    x, w = np.zeros((1, 1024), BF16), np.full(1024, 100, BF16)
    x[0, 17], x[0, 18] = 1.0, 0.40625
    eight, _ = rmsnorm_silu_forward(x, w, 0.0, "float8_e4m3fn")
    assert eight.astype(np.float32)[0, 17] == 448
    codes, scale = rmsnorm_silu_forward(x, w, 0.0, "float4_e2m1fn")
    assert np.flatnonzero(scale.astype(np.float32)).tolist() == [1]
    assert scale.astype(np.float32)[0, 1] == 448  # of some 494, by which the values are divided
    assert np.flatnonzero(codes).tolist() == [8, 9]
    assert codes[0, 8] == 7 << 4  # column 17, odd: the high half
    assert codes[0, 9] == 4  # 2.4375, nearest to 2; over 448 it would be nearer to 3


def test_nan_stays_in_its_row() -> None:
    x, w, _ = sample(3, 32)
    x[1, 5] = np.nan
    out = rmsnorm_silu_forward(x, w, 1e-6)["out"].astype(np.float32)
    assert np.isnan(out).any(axis=1).tolist() == [False, True, False]
    eight = rmsnorm_silu_forward(x, w, 1e-6, "float8_e4m3fn")["out"]
    assert (eight.view(np.uint8)[1] == 0x7F).all()


def test_l2_normalisation_is_a_choice_of_eps() -> None:
    x, w, _ = sample(3, 64)
    eps = 0.5
    wide = x.astype(np.float64)
    y = wide / np.sqrt(np.sum(wide**2, axis=1, keepdims=True) + eps) * 8 * w.astype(np.float64)
    out = rmsnorm_silu_forward(x, w, eps / 64)["out"].astype(np.float64)
    np.testing.assert_allclose(out, y / (1 + np.exp(-y)), rtol=2.0**-8, atol=1e-30)


def test_layouts() -> None:
    x, w = torch.randn(4, 96).to(torch.bfloat16), torch.randn(64).to(torch.bfloat16)
    rows = x[:, :64]
    wanted = rmsnorm_silu_forward(rows.contiguous(), w, 1e-6)["out"]
    assert torch.equal(rmsnorm_silu_forward(rows, w, 1e-6)["out"], wanted)
    image = rmsnorm_silu_forward(rows.contiguous()[:, :, None, None], w[None, :, None, None], 1e-6)["out"]
    assert torch.equal(image[:, :, 0, 0], wanted)


@pytest.mark.parametrize("rows", [MOST_ROWS, MOST_ROWS + 1])
def test_rows_that_32_bits_cannot_count_are_refused(rows: int) -> None:
    specs = [
        TensorSpec(shape, contiguous_strides(shape), dtype("bfloat16"), "cuda:0", 16) for shape in ((rows, 8), (8,))
    ]
    reason = FORWARD.kernels[0].refuse(
        FORWARD.bind(*specs, out_dtype="bfloat16"), Device("cuda:0", (9, 0), 132, "sm_90a")
    )
    assert (reason is None) == (rows == MOST_ROWS), reason


@pytest.mark.parametrize(
    ("x", "kind", "error", "words"),
    [
        (np.ones((2, 12), BF16), "bfloat16", ShapeError, "multiple of 8"),
        (np.ones((2, 24), BF16), "float4_e2m1fn", ShapeError, "multiple of 16"),
        (np.ones((2, 16), np.float32), "bfloat16", DTypeError, "bfloat16"),
        (np.ones((2, 16), BF16), "float8_e5m2", DTypeError, "out_dtype"),
        (np.ones((16, 2), BF16).T, "bfloat16", StrideError, "innermost"),
    ],
)
def test_refusals(x: np.ndarray, kind: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rmsnorm_silu_forward(x, np.ones(x.shape[1], BF16), 1e-6, kind)
