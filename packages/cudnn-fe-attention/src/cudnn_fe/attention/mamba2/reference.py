"""The definition of Mamba-2's layer and of its gradients, for any array namespace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import index_range, narrow, sigmoid, wide
from cudnn_fe.attention.linear.gates import softplus
from cudnn_fe.attention.linear.recurrence import Steps, first_states, run, run_back
from cudnn_fe.attention.sequences import rows_of

if TYPE_CHECKING:
    from cudnn_fe.attention.mamba2.op import Mamba2, Mamba2Backward

__all__ = ["backward", "forward"]


@dataclass(frozen=True)
class _Layer:
    """Operands with batch and length as one, in the type that sums are taken in.

    Attributes:
        x: (T, H, P).
        raw: Time steps with their bias (T, H, 1).
        step: Time steps (T, H, 1).
        rate: (H, 1).
        z: (T, H, P), or None.
        skip: (H, 1), or None.
        steps: What the recurrence reads.
    """

    x: Any
    raw: Any
    step: Any
    rate: Any
    z: Any
    skip: Any
    steps: Steps


def _layer(problem: Any, xp: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, dt_bias: Any, z: Any) -> _Layer:
    batch, length, heads, _ = problem.x.shape

    def rows(y: Any) -> Any:
        return wide(xp.reshape(y, (batch * length, *y.shape[2:])))

    def by_head(y: Any) -> Any:
        return xp.repeat(rows(y), heads // y.shape[2], axis=1) if y.shape[2] != heads else rows(y)

    raw, rate = rows(dt)[..., None], wide(a)[:, None]
    raw = raw if dt_bias is None else raw + wide(dt_bias)[:, None]
    step, flat = softplus(xp, raw), rows(x)
    offsets = index_range(xp, batch + 1, x) * length
    steps = Steps(by_head(c), by_head(b), None, step * flat, xp.exp(rate * step), rows_of(xp, offsets, batch * length))
    gate = None if z is None else rows(z)
    return _Layer(flat, raw, step, rate, gate, None if d is None else wide(d)[:, None], steps)


def forward(problem: Mamba2, xp: Any, *operands: Any) -> tuple[Any, Any]:
    """The outputs and the final states, none of them unless asked for.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        operands: In the problem's order.
    """
    *tokens, initial_state = operands
    layer = _layer(problem, xp, *tokens)
    state = None if initial_state is None else wide(initial_state)
    states = first_states(xp, problem.state_shape, layer.x, state)
    out = xp.zeros_like(layer.x)
    if not problem.degenerate:
        states, _, out = run(xp, layer.steps, states)
    out = out if layer.skip is None else out + layer.skip * layer.x
    if layer.z is not None:
        out = out * layer.z * sigmoid(xp, layer.z)
    spec, final = problem.outputs
    found = states if problem.return_final_state else xp.reshape(states, (-1,))[:0]
    return narrow(xp.reshape(out, spec.shape), spec.dtype.name), narrow(found, final.dtype.name)


def backward(problem: Mamba2Backward, xp: Any, dout: Any, d_final_state: Any, *operands: Any) -> tuple[Any, ...]:
    """Gradients of all operands that there are, in their order.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        dout: Gradient of the outputs.
        d_final_state: Gradient of the final states, or None.
        operands: Those of the forward, in its order.
    """
    *tokens, initial_state = operands
    layer = _layer(problem, xp, *tokens)
    first, by_state = (
        first_states(xp, problem.state_shape, layer.x, None if s is None else wide(s))
        for s in (initial_state, d_final_state)
    )
    grad, found = xp.reshape(wide(dout), layer.x.shape), dict[str, Any]()
    if layer.z is not None:
        share = sigmoid(xp, layer.z)
        out = xp.zeros_like(layer.x) if problem.degenerate else run(xp, layer.steps, first + 0.0)[2]
        out = out if layer.skip is None else out + layer.skip * layer.x
        found["dz"] = grad * out * share * (1.0 + layer.z * (1.0 - share))
        grad = grad * layer.z * share
    steps = layer.steps
    if problem.degenerate:
        grads = tuple(xp.zeros_like(y) for y in (steps.query, steps.key, steps.key, steps.write, steps.decay))
    else:
        by_state, grads = run_back(xp, steps, first, by_state, grad)
    d_query, d_key, _, d_write, d_decay = grads
    by_log = d_decay * steps.decay
    d_step = xp.sum(d_write * layer.x, axis=-1, keepdims=True) + by_log * layer.rate
    d_raw = (d_step * sigmoid(xp, layer.raw))[..., 0]
    found |= {"dx": d_write * layer.step, "ddt": d_raw, "dA": xp.sum(by_log * layer.step, axis=(0, 2))}
    found |= {"dB": d_key, "dC": d_query, "d_dt_bias": xp.sum(d_raw, axis=0), "d_initial_state": by_state}
    if layer.skip is not None:
        found["dx"] = found["dx"] + layer.skip * grad
        found["dD"] = xp.sum(grad * layer.x, axis=(0, 2))
    results = []
    for spec in problem.outputs:
        value = found[spec.name]
        if spec.name in ("dB", "dC"):  # heads of a group read the same
            groups = spec.shape[2]
            shape = (value.shape[0], groups, value.shape[1] // max(groups, 1), value.shape[2])
            value = xp.sum(xp.reshape(value, shape), axis=2)
        results.append(narrow(xp.reshape(value, spec.shape), spec.dtype.name))
    return tuple(results)
