"""What a caller's buffers hold after a call: a result, or its sum with or maximum over what was there."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.op import Problem

__all__ = ["settled"]


def settled(
    problem: Problem, xp: Any, operands: tuple[Any, ...], results: tuple[Any, ...], outs: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The results, and for each one with a buffer what the buffer must hold.

    Args:
        problem: Says which results are folded into their buffers, and where results lie.
        xp: Array namespace of the operands.
        operands: Those of the reference.
        results: One for each output.
        outs: The caller's buffers, None where there is none.
    """
    masks = problem.written(xp, operands)
    values = []
    for position, (result, out) in enumerate(zip(results, outs, strict=True)):
        if out is not None:
            kind, mask = problem.accumulates.get(position), masks.get(position)
            if kind is not None:
                result = out + result if kind == "sum" else xp.maximum(out, result)
            if mask is not None:
                result = _where(xp, mask, result, out)
        values.append(result)
    return tuple(values)


def _where(xp: Any, mask: Any, chosen: Any, other: Any) -> Any:
    if chosen.dtype.itemsize > 1:
        return xp.where(mask, chosen, other)
    # Frameworks select few of the one-byte formats, and all bytes.
    return xp.where(mask, chosen.view(xp.uint8), other.view(xp.uint8)).view(chosen.dtype)
