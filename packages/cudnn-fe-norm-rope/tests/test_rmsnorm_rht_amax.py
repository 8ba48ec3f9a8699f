"""RMSNorm + Hadamard + amax against float64, and what it refuses."""

# Operands are spread from made cases, whose number a type checker cannot know.
# mypy: disable-error-code="arg-type, func-returns-value, import-untyped"

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from scipy.linalg import hadamard

import cudnn
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError, StrideError
from cudnn_fe.norm_rope import rmsnorm_rht_amax_forward
from cudnn_fe.norm_rope.rmsnorm_rht_amax.op import best_num_threads, pick_rows_per_cta

BF16 = ml_dtypes.bfloat16


def definition(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    x, w = x.astype(np.float64), w.astype(np.float64)
    y = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps) * w
    return (y.reshape(-1, 16) @ hadamard(16) / 4).reshape(x.shape)


# One transform, several, a width that is no power of two, a wide row.
@pytest.mark.parametrize("n", [16, 64, 7168 // 16, 8192])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_against_float64(n: int, rows: int) -> None:
    rng = np.random.default_rng(n)
    x, w = rng.normal(size=(8, n)).astype(BF16), rng.normal(size=n).astype(BF16)
    o, amax = rmsnorm_rht_amax_forward(x, w, eps=1e-5, rows_per_cta=rows)
    wanted = definition(x, w, 1e-5)
    error = o.astype(np.float64) - wanted
    assert np.sqrt(np.mean(error**2) / np.mean(wanted**2)) <= 2.0**-8 / np.sqrt(
        3
    )  # one rounding to bfloat16, uniform in half a unit
    largest = np.abs(wanted).reshape(8 // rows, -1).max(axis=1)
    # Before the rounding: the row sum's and a dozen operations' float32 roundings.
    np.testing.assert_allclose(amax, largest, rtol=2.0**-23 * (np.sqrt(n) + 16))


def test_nan_stays_in_its_row_and_out_of_amax() -> None:
    x = np.ones((4, 32), BF16)
    x[1, 3] = np.nan
    o, amax = rmsnorm_rht_amax_forward(x, np.ones(32, BF16), eps=0.0, rows_per_cta=2)
    assert np.isnan(o[1].astype(np.float32)).all()
    assert np.isfinite(o[[0, 2, 3]].astype(np.float32)).all()
    assert amax.tolist() == [4.0, 4.0]


def test_rows_of_a_wider_tensor() -> None:
    wide = torch.randn(4, 96).to(torch.bfloat16)
    w = torch.ones(64, dtype=torch.bfloat16)
    o, _ = rmsnorm_rht_amax_forward(wide[:, :64], w, rows_per_cta=2)
    assert o.is_contiguous()
    assert torch.equal(o, rmsnorm_rht_amax_forward(wide[:, :64].contiguous(), w, rows_per_cta=2)[0])


def test_a_last_dim_of_one_element_is_kept() -> None:
    x, w = torch.randn(2, 16, 1).to(torch.bfloat16), torch.ones(16, 1, dtype=torch.bfloat16)
    o, _ = rmsnorm_rht_amax_forward(x, w)
    assert o.shape == x.shape
    assert torch.equal(o[..., 0], rmsnorm_rht_amax_forward(x[..., 0], w[:, 0])[0])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x_tensor": np.ones((3, 16), BF16)}, ShapeError, "rows_per_cta = 2"),
        ({"x_tensor": np.ones((2, 24), BF16)}, ShapeError, "multiple of 16"),
        ({"x_tensor": np.ones((2, 16), np.float32)}, DTypeError, "bfloat16"),
        ({"x_tensor": np.ones((16, 2), BF16).T}, StrideError, "last dim"),
        ({"w_tensor": np.ones(32, BF16)}, ShapeError, "(16,)"),
        ({"num_threads": 48}, OptionError, "multiple of 32"),
        ({"rows_per_cta": 0}, OptionError, "positive"),
    ],
)
def test_refusals_name_operand_and_remedy(change: dict[str, object], error: type[Exception], words: str) -> None:
    given = {"x_tensor": np.ones((2, 16), BF16), "w_tensor": np.ones(16, BF16)}
    with pytest.raises(error, match=words.replace("(", r"\(").replace(")", r"\)")):
        rmsnorm_rht_amax_forward(**{**given, **change})


def test_defaults_of_the_peer() -> None:
    assert [best_num_threads(n) for n in (2048, 7168, 32768, 512, 1024 * 24, 16)] == [128, 128, 512, 64, 1024, None]
    assert [pick_rows_per_cta(m) for m in (8 * 148, 4 * 148, 2 * 148, 147 * 8, 7)] == [8, 4, 2, 4, 2]


def test_class_writes_into_the_callers_buffers_for_any_number_of_rows() -> None:
    def tensors(m: int) -> list[torch.Tensor]:
        nan = float("nan")
        return [
            torch.randn(m, 64).to(torch.bfloat16),
            torch.ones(64, dtype=torch.bfloat16),
            torch.full((m, 64), nan, dtype=torch.bfloat16),
            torch.full((m // 4,), nan),
        ]

    op = cudnn.RmsNormRhtAmaxSm100(*tensors(8), rows_per_cta=4)
    with pytest.raises(RuntimeError, match="compile"):
        op.execute(*tensors(8))
    assert op.check_support()
    op.compile()
    for m in (8, 12):
        x, w, o, amax = tensors(m)
        assert op.execute(x, w, o, amax) is None
        wanted = rmsnorm_rht_amax_forward(x, w, rows_per_cta=4)
        assert torch.equal(o, wanted["o_tensor"])
        assert torch.equal(amax, wanted["amax_tensor"])
    with pytest.raises(ValueError, match="amax"):
        cudnn.RmsNormRhtAmaxSm100(*tensors(8), rows_per_cta=2).check_support()
