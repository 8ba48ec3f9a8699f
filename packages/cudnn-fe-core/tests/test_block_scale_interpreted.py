"""The quantiser's and the dequantiser's kernels, interpreted on a CPU: the definition's bytes and numbers."""

# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudnn_fe.core.block_scale import BLOCK_FORMATS, block_scale_dequantize, block_scale_quantize
from cudnn_fe_testkit.interpreted import interpreted, missing_interpreter

pytestmark = pytest.mark.skipif(missing_interpreter() is not None, reason=f"not interpreted: {missing_interpreter()}")
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 3e38, -1e-45, 2.0**-127, 448 * 2.0**-127)


def source(rows: int, columns: int, kind: torch.dtype) -> torch.Tensor:
    """Numbers of all sizes, ties of FP4, and special ones."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=made) * torch.exp2(torch.randint(-30, 30, (rows, 1), generator=made))
    x[1] = torch.round(torch.randn(columns, generator=made) * 8) / 4
    for index, value in enumerate(SPECIAL):
        x.view(-1)[(index * 97 + 13) % x.numel()] = value
    return x.to(kind)


def same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    raw = [x.contiguous().view(-1).view(torch.uint8) for x in (got, wanted)]
    return torch.equal(*raw)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("shape", [(70, 90), (64, 256)])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_bytes(name: str, shape: tuple[int, int], kind: torch.dtype) -> None:
    x = source(*shape, kind)
    options: dict[str, Any] = {"direction": "both", "packed": True, "amax": True, "column_recipe": "epilogue_columns"}
    wanted = block_scale_quantize(x, name, **options)
    with interpreted():
        got = block_scale_quantize(x, name, **options)
    for key in ("row_codes", "row_scales", "column_codes", "column_scales"):
        assert same(got[key], wanted[key]), key
    assert torch.equal(got["amax"].nan_to_num(), wanted["amax"].nan_to_num())
    for prefix in ("row", "column"):
        operands = wanted[f"{prefix}_codes"], wanted[f"{prefix}_scales"], name
        how: dict[str, Any] = {"direction": f"{prefix}s", "packed": True, "dtype": "bfloat16"}
        numbers = block_scale_dequantize(*operands, **how)
        with interpreted():
            back = block_scale_dequantize(*operands, **how)
        assert torch.equal(back.isnan(), numbers.isnan())
        assert same(back.nan_to_num(), numbers.nan_to_num())
