"""Nobody is timed before their result is checked."""

from __future__ import annotations

import torch
from torch import Tensor

from cudnn._cli.bench.torch_contenders import Case, Contender
from cudnn_fe.core.dtypes import dtype

__all__ = ["objection"]

_CHECKED_ROWS = 64  # float64 products of every row would take longer than the benchmark


def objection(case: Case, contender: Contender) -> str | None:
    """Why the contender's result does not count, or None: it raised, or differs from a float64 evaluation."""
    rows = torch.linspace(0, case.m - 1, min(case.m, _CHECKED_ROWS), device=case.a[0].device).long()
    try:
        got = contender.run(0)[rows].double()
    except Exception as error:
        return f"it failed: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    want = _exact(case, contender, rows)
    difference = ((got - want).norm() / want.norm()).item()
    allowed = _allowed(case, contender)
    return None if difference <= allowed else f"it is wrong: relative RMS {difference:.1e}, allowed {allowed:.1e}"


def _exact(case: Case, contender: Contender, rows: Tensor) -> Tensor:
    product = case.a[0][rows].double() @ case.b[0].double().T
    if contender.computes == "product":
        return product
    value, gate = product.view(rows.numel(), -1, 2, 32).unbind(2)
    activated: Tensor = value * torch.nn.functional.silu(gate)
    return activated.flatten(1)


def _allowed(case: Case, contender: Contender) -> float:
    """One rounding of the result, and one of each intermediate that a rival may keep: product, gate, activation.

    float32 operands multiply as TF32 on tensor cores, which rounds both to 11 significant bits.
    """
    operand = 2.0**-11 if case.kind == "float32" else dtype(case.kind).unit_roundoff
    if contender.computes == "product":
        return 2.0 * operand
    result = dtype("bfloat16").unit_roundoff if case.kind == "float32" else operand
    return 3.0 * max(result, operand)
