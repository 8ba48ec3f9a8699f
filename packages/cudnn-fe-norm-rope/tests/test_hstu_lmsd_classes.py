"""The class API of LMSD: the functions' results, other numbers of rows, padded rows, refusals before a launch."""

# Operands are spread from made ones, whose number a type checker cannot know.
# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudnn import HSTULMSDBwd, HSTULMSDFwd, hstu_lmsd_backward, hstu_lmsd_forward
from cudnn_fe.core.errors import NotCompiledError, OptionError, ShapeError

COLUMNS = 24


def operands(rows: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    shapes = ((rows, COLUMNS), (rows, COLUMNS), (COLUMNS,), (COLUMNS,))
    return tuple(torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in shapes)


def buffers(rows: int, *, segments: int, mask: bool) -> list[torch.Tensor | None]:
    y = torch.full((rows, segments * COLUMNS), float("nan"), dtype=torch.bfloat16)
    statistics = [torch.full((rows,), float("nan")) for _ in range(2)]
    return [y, *statistics, torch.full((rows, COLUMNS), -1, dtype=torch.int8) if mask else None]


@pytest.mark.parametrize("ratio", [0.25, 0.0])
def test_both_classes_are_the_functions_for_any_number_of_rows(ratio: float) -> None:
    flags: dict[str, Any] = {"apply_u_silu": True, "concat_u": ratio > 0, "concat_x": True}
    segments = 2 + (ratio > 0)
    forward = HSTULMSDFwd(*operands(5), *buffers(5, segments=segments, mask=ratio > 0), 1e-5, ratio, **flags)
    with pytest.raises(NotCompiledError):
        forward.execute(*operands(5), *buffers(5, segments=segments, mask=ratio > 0))
    assert forward.check_support()
    forward.compile()
    backward = None
    for rows in (5, 7):
        given, results = operands(rows), buffers(rows, segments=segments, mask=ratio > 0)
        assert forward.execute(*given, *results, seed=2**40 + rows) is None
        wanted = hstu_lmsd_forward(*given, 1e-5, ratio, 2**40 + rows, **flags)
        for got, want in zip(results, wanted, strict=True):
            assert got is want is None or torch.equal(got, want)
        dy = torch.randn(rows, segments * COLUMNS).to(torch.bfloat16)
        saved = (dy, *given, *results[1:])
        padded = torch.full((rows, COLUMNS + 8), float("nan"), dtype=torch.bfloat16)
        grads = (padded[:, :COLUMNS], torch.empty_like(given[1]), *(torch.empty_like(x) for x in given[2:]))
        backward = backward or HSTULMSDBwd(*saved, *grads, dropout_ratio=ratio, **flags)
        backward(*saved, *grads)
        for got, want in zip(grads, hstu_lmsd_backward(*saved, ratio, **flags), strict=True):
            assert torch.equal(got, want)
        assert torch.isnan(padded[:, COLUMNS:]).all()


def test_without_the_gradient_of_the_weight() -> None:
    given, results = operands(5), buffers(5, segments=3, mask=True)
    HSTULMSDFwd(*given, *results)(*given, *results, 3)
    saved = (torch.randn(5, 3 * COLUMNS).to(torch.bfloat16), *given, *results[1:])
    dx, du, dbias = torch.empty_like(given[0]), torch.empty_like(given[1]), torch.empty_like(given[3])
    backward = HSTULMSDBwd(*saved, dx, du, None, dbias, compute_dweight=False)
    backward(*saved, dx, du, None, dbias)
    flags: dict[str, Any] = {"apply_u_silu": True, "concat_u": True, "concat_x": True, "compute_dweight": False}
    wanted = hstu_lmsd_backward(*saved, 0.1, **flags)
    assert torch.equal(dbias, wanted["dbias_tensor"])


def test_refusals() -> None:
    given, results = operands(5), buffers(5, segments=3, mask=True)
    with pytest.raises(OptionError, match=r"mask_tensor: got None with dropout_ratio = 0\.10\d+, wanted a mask"):
        HSTULMSDFwd(*given, *results[:3], None).check_support()
    with pytest.raises(OptionError, match=r"eps: got 0"):
        HSTULMSDFwd(*given, *results, eps=0.0).check_support()
    with pytest.raises(ShapeError, match=r"y_tensor: got shape \(5, 72\), wanted \(5, 48\)"):
        HSTULMSDFwd(*given, *results, concat_u=False).check_support()
    saved = (results[0], *given, *results[1:])
    grads = [torch.empty_like(x) for x in given]
    with pytest.raises(OptionError, match=r"sample_dweight: got a sample, wanted None with compute_dweight=False"):
        HSTULMSDBwd(*saved, *grads, compute_dweight=False).check_support()
    forward = HSTULMSDFwd(*given, *results)
    forward.compile()
    with pytest.raises(OptionError, match=r"seed: got 9223372036854775808"):
        forward.execute(*given, *results, 2**63)
    with pytest.raises(ShapeError, match="x_tensor"):
        forward.execute(given[0][:, :16], *given[1:], *results)
