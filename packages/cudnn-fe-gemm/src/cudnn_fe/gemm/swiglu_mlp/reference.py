"""The definition of the gated MLP and of its gradients, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.core.arrays import astype, sigmoid
from cudnn_fe.core.dtypes import dtype

if TYPE_CHECKING:
    from cudnn_fe.gemm.swiglu_mlp.op import SwigluMlp, SwigluMlpBackward

__all__ = ["backward", "forward"]


def _wide(x: Any) -> Any:
    return x if dtype(x.dtype).name == "float64" else astype(x, "float32")


def _product(xp: Any, a: Any, b: Any) -> Any:
    options = {"precision": "highest"} if xp.__name__ == "jax.numpy" else {}
    return xp.matmul(a, b, **options)


def _rows(xp: Any, x: Any) -> Any:
    count = 1
    for extent in x.shape[:-1]:
        count *= extent
    return _wide(xp.reshape(x, (count, x.shape[-1])))


def _gated(xp: Any, gate: Any, up: Any, io: str) -> Any:
    return _wide(astype(gate * sigmoid(xp, gate) * up, io))


def forward(problem: SwigluMlp, xp: Any, x: Any, w_gate: Any, w_up: Any, w_down: Any) -> tuple[Any, ...]:
    """The result and both projections."""
    io, rows = problem.x.dtype.name, _rows(xp, x)
    gate, up = (astype(_product(xp, rows, xp.matrix_transpose(_wide(w))), io) for w in (w_gate, w_up))
    out = _product(xp, _gated(xp, _wide(gate), _wide(up), io), xp.matrix_transpose(_wide(w_down)))
    results = (astype(out, io), gate, up)
    shapes = (spec.shape for spec in problem.outputs)
    return tuple(xp.reshape(x, shape) for x, shape in zip(results, shapes, strict=True))


def backward(
    problem: SwigluMlpBackward,
    xp: Any,
    dout: Any,
    x: Any,
    w_gate: Any,
    w_up: Any,
    w_down: Any,
    gate: Any,
    up: Any,
) -> tuple[Any, ...]:
    """The gradients that are needed of x and the weights."""
    io = problem.x.dtype.name
    dout, rows, gate, up = (_rows(xp, y) for y in (dout, x, gate, up))
    inner = _product(xp, dout, _wide(w_down))
    share = sigmoid(xp, gate)
    d_up = _wide(astype(inner * gate * share, io))
    d_gate = _wide(astype(inner * up * share * (1 + gate * (1 - share)), io))
    need_x, need_gate, need_up, need_down = problem.needs
    grads = []
    if need_x:
        grads.append(_product(xp, d_gate, _wide(w_gate)) + _product(xp, d_up, _wide(w_up)))
    if need_gate:
        grads.append(_product(xp, xp.matrix_transpose(d_gate), rows))
    if need_up:
        grads.append(_product(xp, xp.matrix_transpose(d_up), rows))
    if need_down:
        grads.append(_product(xp, xp.matrix_transpose(dout), _gated(xp, gate, up, io)))
    return tuple(xp.reshape(astype(grad, io), spec.shape) for grad, spec in zip(grads, problem.outputs, strict=True))
