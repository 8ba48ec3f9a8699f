"""The definition of the CSA compressor and of its gradients, for any array namespace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import index_range, narrow, take, wide
from cudnn_fe.attention.sequences import rows_of

if TYPE_CHECKING:
    from cudnn_fe.attention.csa_compressor.op import CsaCompressor, CsaCompressorBackward

__all__ = ["backward", "forward"]


@dataclass(frozen=True)
class _Windows:
    """What each output row sees: arrays (rows, slots, channels), slots in order.

    Attributes:
        values: The tokens.
        weights: Their softmax.
        there: Whether the row exists and has such a slot, (rows, slots, 1).
    """

    values: Any
    weights: Any
    there: Any


def forward(problem: CsaCompressor, xp: Any, kv: Any, score: Any, ape: Any, tokens: Any, rows: Any) -> tuple[Any]:
    """The compressed rows: a softmax per channel over a block's tokens, and with ``coff=2`` the block's before it.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        kv: Packed tokens (T, coff d).
        score: Their scores.
        ape: Bias of the scores (ratio, coff d).
        tokens: First token of each segment.
        rows: First output row of each segment.
    """
    name = problem.kv.dtype.name
    if problem.degenerate:
        nothing = xp.sum(xp.zeros_like(wide(kv)))
        return (narrow(xp.zeros_like(xp.broadcast_to(nothing, (problem.total_comp, problem.channels))), name),)
    windows = _windows(problem, xp, wide(kv), wide(score), ape, tokens, rows)
    out = _in_order(xp, windows.values * windows.weights)
    return (narrow(xp.where(windows.there[:, -1], out, xp.zeros_like(out)), name),)


def backward(
    problem: CsaCompressorBackward, xp: Any, kv: Any, score: Any, ape: Any, tokens: Any, rows: Any, grad_out: Any
) -> tuple[Any, Any, Any]:
    """Gradients of kv, score and ape.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        kv: As in `forward`, and so is all but the last.
        score: Their scores.
        ape: Bias of the scores.
        tokens: First token of each segment.
        rows: First output row of each segment.
        grad_out: Gradient of the rows.
    """
    name = problem.kv.dtype.name
    if problem.degenerate:
        return xp.zeros_like(kv), xp.zeros_like(score), xp.zeros_like(ape)
    windows = _windows(problem, xp, wide(kv), wide(score), ape, tokens, rows)
    grad = wide(grad_out)[:, None]
    by_value = grad * windows.weights
    weighted = grad * windows.values * windows.weights
    by_score = weighted - windows.weights * _in_order(xp, weighted)[:, None]
    nothing = xp.zeros_like(by_value)
    by_value, by_score = (xp.where(windows.there, x, nothing) for x in (by_value, by_score))
    total = xp.sum(by_score, axis=0)
    halves = [total[half * problem.ratio : (half + 1) * problem.ratio] for half in range(problem.coff)]
    back = (narrow(_to_tokens(problem, xp, x, tokens, rows), name) for x in (by_value, by_score))
    grad_kv, grad_score = back
    return grad_kv, grad_score, xp.concat(halves, axis=1)


def _windows(problem: Any, xp: Any, kv: Any, score: Any, ape: Any, tokens: Any, rows: Any) -> _Windows:
    ratio, d = problem.ratio, problem.channels
    at = rows_of(xp, rows, problem.total_comp)
    start = take(xp, tokens, at.sequence, 0) + at.position * ratio
    place = index_range(xp, ratio, kv)
    values, scores, there = [], [], []
    for half in range(problem.coff):
        before = problem.coff - 1 - half  # blocks between the one that is read and the row's own
        token = xp.reshape(start[:, None] - before * ratio + place, (-1,))
        columns = slice(half * d, (half + 1) * d)
        shape = (problem.total_comp, ratio, d)
        exists = xp.broadcast_to((at.valid & (at.position >= before))[:, None, None], (shape[0], ratio, 1))
        read = xp.reshape(take(xp, kv[:, columns], token, 0), shape)
        biased = xp.reshape(take(xp, score[:, columns], token, 0), shape) + ape[:, columns]
        values.append(xp.where(exists, read, xp.zeros_like(read)))
        scores.append(xp.where(exists, biased, xp.full_like(biased, float("-inf"))))
        there.append(exists)
    exists, s = xp.concat(there, axis=1), xp.concat(scores, axis=1)
    e = xp.exp(s - xp.max(s, axis=1, keepdims=True))
    return _Windows(xp.concat(values, axis=1), e / _in_order(xp, e)[:, None], exists)


def _in_order(xp: Any, x: Any) -> Any:
    """Sum over the slots, one after the other where there are few: what kernels do bit by bit."""
    if x.shape[1] > 8:
        return xp.sum(x, axis=1)
    total = x[:, 0]
    for slot in range(1, x.shape[1]):
        total = total + x[:, slot]
    return total


def _to_tokens(problem: Any, xp: Any, slots: Any, tokens: Any, rows: Any) -> Any:
    """Values per row and slot (rows, slots, d) at the tokens that they belong to (T, coff d); 0 where none is read."""
    ratio, count = problem.ratio, problem.coff * problem.ratio
    flat = xp.reshape(slots, (problem.total_comp * count, problem.channels))
    at = rows_of(xp, tokens, problem.kv.shape[0])
    first, blocks = take(xp, rows, at.sequence, 0), take(xp, rows[1:] - rows[:-1], at.sequence, 0)
    parts = []
    for half in range(problem.coff):
        row = at.position // ratio + (problem.coff - 1 - half)
        found = take(xp, flat, (first + row) * count + half * ratio + at.position % ratio, 0)
        parts.append(xp.where((at.valid & (row < blocks))[:, None], found, xp.zeros_like(found)))
    return xp.concat(parts, axis=1)
