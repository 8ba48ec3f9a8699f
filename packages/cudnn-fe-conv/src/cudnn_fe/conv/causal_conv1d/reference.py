"""The definition of the causal convolution and of its derivative, for any array namespace.

Both are written by lag: tap ``j`` meets the sample ``k = W-1-j`` steps back, which is x's own while the token has at
least ``k`` predecessors in its sequence, and the initial state's (or zero) before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudnn_fe.conv.arrays import activate, activation_slope, arange, astype, bits_of, zeros
from cudnn_fe.core.arrays import is_jax
from cudnn_fe.core.errors import OptionError

if TYPE_CHECKING:
    from cudnn_fe.conv.causal_conv1d.op import CausalConv1d, CausalConv1dBackward, Sequences

__all__ = ["causal_conv1d", "causal_conv1d_backward"]


@dataclass(frozen=True)
class _Places:
    """Where each token stands.

    Attributes:
        sequence: (T,) which sequence a token is of; of a batch all zeros: every row is a sequence of its own.
        position: (T,) its index in the sequence.
        left: (T,) how many tokens follow it there.
        starts: (S,) first token of each sequence.
        lengths: (S,) tokens of each sequence.
    """

    sequence: Any
    position: Any
    left: Any
    starts: Any
    lengths: Any


def causal_conv1d(
    problem: CausalConv1d, xp: Any, x: Any, weight: Any, bias: Any, cu_seqlens: Any, initial_states: Any
) -> tuple[Any, ...]:
    """``(y,)`` or ``(y, final_states)``: sums in float32 (float64 for float64), rounded once; states are copies.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        x: (B, D, T), or (B, T, D) as ``problem.layout`` says.
        weight: (D, W), newest tap last.
        bias: (D,) or None.
        cu_seqlens: (N + 1,) or None.
        initial_states: (S, D, W-1) or None.
    """
    own = _channels_first(xp, problem, x)
    places = _places(problem, xp, own, cu_seqlens)
    z = _filtered(problem, xp, own, weight, bias, initial_states, places)
    y = astype(activate(xp, z, problem.activation), problem.x.dtype.name)
    results: tuple[Any, ...] = (_channels_first(xp, problem, y),)
    if problem.return_final_states:
        before = None if initial_states is None else bits_of(xp, initial_states)
        results += (_final_states(problem, xp, bits_of(xp, own), before, places).view(own.dtype),)
    return results


def causal_conv1d_backward(
    problem: CausalConv1dBackward,
    xp: Any,
    x: Any,
    weight: Any,
    bias: Any,
    cu_seqlens: Any,
    initial_states: Any,
    dy: Any,
    d_final_states: Any,
) -> tuple[Any, ...]:
    """``(dx, dweight[, dbias][, d_initial_states])``, each rounded once.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        x: As in the forward.
        weight: As in the forward.
        bias: As in the forward.
        cu_seqlens: As in the forward.
        initial_states: As in the forward.
        dy: Gradient of y, in x's shape.
        d_final_states: Gradient of the final states (S, D, W-1) or None.
    """
    kind, width = _wide(problem), problem.width
    own = _channels_first(xp, problem, x)
    places = _places(problem, xp, own, cu_seqlens)
    z = _filtered(problem, xp, own, weight, bias, initial_states, places)
    dz = astype(_channels_first(xp, problem, dy), kind) * activation_slope(xp, z, problem.activation)
    taps = astype(weight, kind)
    d_final = None if d_final_states is None else astype(d_final_states, kind)
    dx = xp.zeros_like(dz)
    d_taps = []
    for lag in range(width):
        tap = taps[:, width - 1 - lag]
        # The token `lag` steps on, where it is of the same sequence.
        dx = dx + xp.where(places.left >= lag, _shifted(xp, dz, -lag), 0.0) * tap[:, None]
        d_taps.append(xp.sum(dz * _lagged(problem, xp, own, initial_states, places, lag), axis=(0, 2)))
    if d_final is not None:
        dx = dx + _from_final(problem, xp, d_final, places)
    name = problem.x.dtype.name
    results = [
        _channels_first(xp, problem, astype(dx, name)),
        astype(xp.stack(d_taps[::-1], axis=1), problem.weight.dtype.name),
    ]
    if problem.bias is not None:
        results.append(astype(xp.sum(dz, axis=(0, 2)), problem.bias.dtype.name))
    if problem.initial_states is not None:
        results.append(astype(_d_initial(problem, xp, dz, taps, d_final, places), name))
    return tuple(results)


def _wide(problem: Sequences) -> str:
    return "float64" if problem.x.dtype.name == "float64" else "float32"


def _channels_first(xp: Any, problem: Sequences, x: Any) -> Any:
    """Between x's own order of dims and (B, D, T); its own inverse."""
    return x if problem.layout == "BDT" else xp.permute_dims(x, (0, 2, 1))


def _places(problem: Sequences, xp: Any, x: Any, cu_seqlens: Any) -> _Places:
    batch, _, time = problem.extents
    tokens = arange(xp, time, x)
    if cu_seqlens is None:
        rows = arange(xp, batch, x) * 0
        return _Places(tokens * 0, tokens, time - 1 - tokens, rows, rows + time)
    offsets = astype(cu_seqlens, "int32" if is_jax(xp) else "int64")
    if not is_jax(xp):
        _check_offsets(xp, offsets, time)
    starts, ends = offsets[:-1], offsets[1:]
    # The last sequence that starts at or before a token is not empty, or it would end there too.
    sequence = xp.searchsorted(offsets, tokens, side="right") - 1
    sequence = xp.clip(sequence, 0, problem.sequence_count - 1)
    first, end = xp.take(starts, sequence, axis=0), xp.take(ends, sequence, axis=0)
    return _Places(sequence, tokens - first, end - 1 - tokens, starts, ends - starts)


def _check_offsets(xp: Any, offsets: Any, time: int) -> None:
    if bool(offsets[0] != 0) or bool(offsets[-1] != time) or bool(xp.any(offsets[1:] < offsets[:-1])):
        raise OptionError(
            "cu_seqlens",
            got=f"{[int(offset) for offset in offsets[:8]]}{' ...' if offsets.shape[0] > 8 else ''}",
            wanted=f"offsets from 0 to T = {time} that never decrease",
            remedy="pass the cumulative sum of the lengths, with 0 before it",
        )


def _shifted(xp: Any, x: Any, lag: int) -> Any:
    """x ``lag`` steps back along the last dim; what comes from outside is some element of x."""
    time = x.shape[2]
    return xp.take(x, xp.clip(arange(xp, time, x) - lag, 0, max(time - 1, 0)), axis=2) if time else x


def _lagged(problem: Sequences, xp: Any, x: Any, states: Any, places: _Places, lag: int) -> Any:
    """The sample ``lag`` steps before each token, as wide floats (B, D, T)."""
    own = astype(_shifted(xp, x, lag), _wide(problem))
    if lag == 0:
        return own
    before: Any = 0.0
    if states is not None:
        lane = xp.clip(problem.width - 1 - lag + places.position, 0, problem.width - 2)
        before = astype(_of_states(problem, xp, states, places.sequence, lane), _wide(problem))
    return xp.where(places.position >= lag, own, before)


def _of_states(problem: Sequences, xp: Any, states: Any, sequence: Any, lane: Any) -> Any:
    """``states[sequence, :, lane]`` of each token (B, D, T)."""
    if problem.cu_seqlens is None:
        return xp.take(states, lane, axis=2)
    return xp.permute_dims(_rows(xp, states, sequence, lane), (1, 0))[None]


def _rows(xp: Any, states: Any, sequence: Any, lane: Any) -> Any:
    """``states[sequence, :, lane]`` as rows of channels."""
    count, channels, lanes = states.shape
    rows = xp.reshape(xp.permute_dims(states, (0, 2, 1)), (count * lanes, channels))
    return xp.take(rows, sequence * lanes + lane, axis=0)


def _filtered(problem: Sequences, xp: Any, x: Any, weight: Any, bias: Any, states: Any, places: _Places) -> Any:
    """The sum before the activation: oldest tap first, then the bias."""
    taps = astype(weight, _wide(problem))
    total: Any = None
    for lag in range(problem.width - 1, -1, -1):
        term = _lagged(problem, xp, x, states, places, lag) * taps[:, problem.width - 1 - lag][:, None]
        total = term if total is None else total + term
    return total if bias is None else total + astype(bias, _wide(problem))[:, None]


def _final_states(problem: CausalConv1d, xp: Any, x: Any, states: Any, places: _Places) -> Any:
    """The last W-1 samples of (initial state, sequence), both given as bits."""
    _, channels, time = problem.extents
    lanes, count = problem.width - 1, problem.sequence_count
    before = zeros(xp, (count, channels, lanes), x) if states is None else states
    if problem.cu_seqlens is None:
        return xp.concat((before, x), axis=2)[:, :, time : time + lanes]
    lane = arange(xp, lanes, x)[None, :]
    lengths = places.lengths[:, None]
    position = lengths - lanes + lane
    sequence = arange(xp, count, x)[:, None] + 0 * lane
    token = xp.clip(places.starts[:, None] + position, 0, max(time - 1, 0))
    old = _rows(xp, before, xp.reshape(sequence, (-1,)), xp.reshape(xp.clip(lane + lengths, 0, lanes - 1), (-1,)))
    if not time:
        return xp.permute_dims(xp.reshape(old, (count, lanes, channels)), (0, 2, 1))
    new = xp.permute_dims(xp.take(x[0], xp.reshape(token, (-1,)), axis=1), (1, 0))
    chosen = xp.where(xp.reshape(position >= 0, (-1, 1)), new, old)
    return xp.permute_dims(xp.reshape(chosen, (count, lanes, channels)), (0, 2, 1))


def _from_final(problem: Sequences, xp: Any, d_final: Any, places: _Places) -> Any:
    """What reaches x through the final states: each of a sequence's last W-1 samples is one of their lanes."""
    last = problem.width - 2
    if last < 0:
        return 0.0
    lane = xp.clip(last - places.left, 0, last)
    return xp.where(places.left <= last, _of_states(problem, xp, d_final, places.sequence, lane), 0.0)


def _d_initial(problem: Sequences, xp: Any, dz: Any, taps: Any, d_final: Any, places: _Places) -> Any:
    """The first W-1 tokens' share of each lane, and the final lanes that were copied from initial ones."""
    _, channels, time = problem.extents
    lanes, count = problem.width - 1, problem.sequence_count
    total = zeros(xp, (count, channels, lanes), dz)
    for position in range(lanes if time else 0):
        if problem.cu_seqlens is None:
            of_token = dz[:, :, min(position, time - 1)]
        else:
            token = xp.clip(places.starts + position, 0, time - 1)
            of_token = xp.permute_dims(xp.take(dz[0], token, axis=1), (1, 0))
        of_token = xp.where((places.lengths > position)[:, None], of_token, 0.0)
        share = of_token[:, :, None] * taps[None, :, : lanes - position]
        total = total + xp.concat((zeros(xp, (count, channels, position), dz), share), axis=2)
    if d_final is not None and lanes:
        source = arange(xp, lanes, dz)[None, :] - places.lengths[:, None]
        sequence = arange(xp, count, dz)[:, None] + 0 * source
        flat = (xp.reshape(sequence, (-1,)), xp.reshape(xp.clip(source, 0, lanes - 1), (-1,)))
        copied = xp.where(xp.reshape(source >= 0, (-1, 1)), _rows(xp, d_final, *flat), 0.0)
        total = total + xp.permute_dims(xp.reshape(copied, (count, lanes, channels)), (0, 2, 1))
    return total
