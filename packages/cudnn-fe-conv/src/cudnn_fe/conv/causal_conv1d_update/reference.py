"""The definition of a decoding step, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.conv.arrays import activate, arange, astype, bits_of, zeros
from cudnn_fe.core.arrays import is_jax
from cudnn_fe.core.errors import OptionError

if TYPE_CHECKING:
    from cudnn_fe.conv.causal_conv1d_update.op import CausalConv1dUpdate

__all__ = ["causal_conv1d_update"]


def causal_conv1d_update(
    problem: CausalConv1dUpdate,
    xp: Any,
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any,
    cache_seqlens: Any,
    conv_state_indices: Any,
) -> tuple[Any, Any]:
    """``(output, conv_state after the step)``: sums in float32 (float64 for float64), rounded once.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        x: (N, D).
        conv_state: (S, D, L).
        weight: (D, W).
        bias: (D,) or None.
        cache_seqlens: (N,) or None.
        conv_state_indices: (N,) or None.
    """
    rows, _, slots, _ = problem.extents
    slot = arange(xp, rows, x) if conv_state_indices is None else astype(conv_state_indices, "int32")
    if conv_state_indices is not None and not is_jax(xp):
        _check_slots(slot, slots)
    active = (slot >= 0) & (slot < slots)
    safe = xp.clip(slot, 0, max(slots - 1, 0))
    cache, newest = bits_of(xp, conv_state), bits_of(xp, x)
    held = xp.take(cache, safe, axis=0) if slots else zeros(xp, (rows, *cache.shape[1:]), newest)
    if cache_seqlens is None:
        history, after = _shift(xp, held, newest)
    else:
        history, after = _ring(xp, held, newest, cache_seqlens, problem.width)
    y = astype(_filter(problem, xp, history.view(x.dtype), weight, bias), problem.x.dtype.name)
    y = xp.where(active[:, None], y, zeros(xp, y.shape, y))
    if not rows:
        return y, conv_state
    # Which row, if any, writes each slot.
    writes = (slot[None, :] == arange(xp, slots, x)[:, None]) & active[None, :]
    row = xp.argmax(astype(writes, "int32"), axis=1)
    chosen = xp.any(writes, axis=1)[:, None, None]
    return y, xp.where(chosen, xp.take(after, row, axis=0), cache).view(x.dtype)


def _check_slots(slot: Any, slots: int) -> None:
    found = [int(index) for index in slot]
    used = [index for index in found if index != -1]
    if any(not -1 <= index < slots for index in found) or len(set(used)) != len(used):
        raise OptionError(
            "conv_state_indices",
            got=str(found[:16]),
            wanted=f"distinct slots below S = {slots}, or -1 to leave a row out",
            remedy="give each row a slot of its own",
        )


def _shift(xp: Any, held: Any, x: Any) -> tuple[Any, Any]:
    """The samples with the newest last, and the slot after the step."""
    history = xp.concat((held, x[:, :, None]), axis=2)
    return history, history[:, :, 1:]


def _ring(xp: Any, held: Any, x: Any, seen: Any, width: int) -> tuple[Any, Any]:
    lanes = held.shape[2]
    at = astype(seen, "int32")[:, None]  # (N, 1)
    lane = arange(xp, lanes, x)[None, :]
    after = xp.where((lane == at % lanes)[:, None, :], x[:, :, None], held)
    # Lane of the sample k steps back, by comparison: namespaces differ on gathers along a dim.
    samples = []
    for back in range(width - 1, 0, -1):
        found = (lane == (at - back) % lanes)[:, None, :]
        samples.append(_only(xp, xp.where(found, held, zeros(xp, held.shape, held))))
    samples.append(x[:, :, None])
    return xp.concat(tuple(samples), axis=2), after


def _only(xp: Any, masked: Any) -> Any:
    """The one integer along the last dim that is not masked with zero."""
    return astype(xp.sum(masked, axis=2), str(masked.dtype).removeprefix("torch."))[:, :, None]


def _filter(problem: CausalConv1dUpdate, xp: Any, history: Any, weight: Any, bias: Any) -> Any:
    kind = "float64" if problem.x.dtype.name == "float64" else "float32"
    taps, total = astype(weight, kind), None
    first = history.shape[2] - problem.width
    for tap in range(problem.width):
        term = astype(history[:, :, first + tap], kind) * taps[None, :, tap]
        total = term if total is None else total + term
    if bias is not None:
        total = total + astype(bias, kind)[None, :]
    return activate(xp, total, problem.activation)
