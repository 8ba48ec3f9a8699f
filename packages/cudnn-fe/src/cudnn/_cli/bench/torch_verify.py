"""Nobody is timed before their result is checked."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from cudnn._cli.bench.torch_contenders import Computes, Contender
from cudnn_fe.core.dtypes import dtype

__all__ = ["Checkable", "objection"]


class Checkable(Protocol):
    """What a case offers for the check."""

    kind: str

    def checked(self, result: Tensor, computes: Computes) -> Tensor:
        """The part of a result that is compared."""
        ...

    def exact(self, computes: Computes) -> Tensor:
        """The same part in float64."""
        ...


def objection(case: Checkable, contender: Contender) -> str | None:
    """Why the contender's result does not count, or None: it raised, or differs from a float64 evaluation."""
    try:
        got = case.checked(contender.run(0), contender.computes).double()
    except Exception as error:
        return f"it failed: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    want = case.exact(contender.computes)
    difference = ((got - want).norm() / want.norm()).item()
    allowed = _allowed(case.kind, contender)
    return None if difference <= allowed else f"it is wrong: relative RMS {difference:.1e}, allowed {allowed:.1e}"


def _allowed(kind: str, contender: Contender) -> float:
    """One rounding of the result, and one of each intermediate that a rival may keep: product, gate, activation.

    float32 operands multiply as TF32 on tensor cores, which rounds both to 11 significant bits.
    """
    operand = 2.0**-11 if kind == "float32" else dtype(kind).unit_roundoff
    if contender.computes != "activation":
        return 2.0 * operand
    result = dtype("bfloat16").unit_roundoff if kind == "float32" else operand
    return 3.0 * max(result, operand)
