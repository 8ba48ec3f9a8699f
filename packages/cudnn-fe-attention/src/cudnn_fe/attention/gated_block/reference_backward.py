"""The definition of the gated attention block's gradients, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import narrow, product, round_through, sigmoid, wide
from cudnn_fe.attention.gated_block.gradient_products import Products, products_of
from cudnn_fe.attention.gated_block.reference import bands, batched, flat, of_keys, prepared, sequences, tables, turned

if TYPE_CHECKING:
    from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
    from cudnn_fe.attention.gated_block.op_backward import GatedAttentionBlockBackward

__all__ = ["backward"]


def backward(
    problem: GatedAttentionBlockBackward,
    xp: Any,
    dy: Any,
    h: Any,
    w_qkvg: Any,
    w_q_norm: Any,
    w_k_norm: Any,
    cos: Any,
    sin: Any,
    w_o: Any,
    slab: Any,
    o: Any,
    lse: Any,
    rstd_q: Any,
    rstd_k: Any,
    seq_lens: Any,
    *rest: Any,
) -> tuple[Any, ...]:
    """The gradients that are needed of h, both weights and both norms' weights, and a quantised block's numbers.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        dy: Gradient of the output.
        h: As in the forward, and so is all that both have.
        w_qkvg: The first weight.
        w_q_norm: Weight of the queries' norm, or None.
        w_k_norm: Weight of the keys' norm, or None.
        cos: Cosines.
        sin: Sines.
        w_o: The last weight.
        slab: The forward's projection, or None to project again.
        o: The forward's O.
        lse: The forward's log-sum-exp.
        rstd_q: Reciprocal roots of the queries' norm, or None.
        rstd_k: Reciprocal roots of the keys' norm, or None.
        seq_lens: Lengths or offsets, or None.
        rest: What quantised blocks take, each or None: scales of gradients, operands turned to their gradients'
            products with their packed scales; and the factors of the forward.
    """
    g, io = problem.geometry, problem.cos.dtype.name
    need_h, need_qkvg, need_o, need_norms = problem.needs
    cos, sin = tables(cos), tables(sin)
    x, visible, offsets = sequences(problem, xp, wide(batched(h)), seq_lens)
    dy, *_ = sequences(problem, xp, wide(batched(dy)), seq_lens)
    if slab is None:
        slab = narrow(product(xp, x, xp.matrix_transpose(wide(w_qkvg))), io)
    cut = bands(xp, g, wide(xp.reshape(slab, (*x.shape[:2], g.n_qkvg))))
    o, lse = wide(xp.reshape(o, cut.q.shape)), xp.reshape(lse, (x.shape[0], g.h_q, x.shape[1]))
    steps: Products = products_of(problem, xp, (dy, x, w_qkvg, w_o), offsets, rest)

    s = sigmoid(xp, cut.gate)
    gated = round_through(o * s, io)
    d_gated = xp.reshape(steps.by_gated(), cut.q.shape)
    do, dg = round_through(d_gated * s, io), d_gated * o * s * (1 - s)
    delta = turned(xp, xp.sum(o * do, axis=-1, keepdims=True))[..., 0]

    q, _ = prepared(xp, g, cut.q, w_q_norm, cos, sin, io)
    k, _ = prepared(xp, g, cut.k, w_k_norm, cos, sin, io)
    do, q, k, v = (turned(xp, y) for y in (do, q, k, cut.v))
    if problem.quant == "mxfp8":
        k, v = of_keys(problem, xp, k, seq_lens), of_keys(problem, xp, v, seq_lens)
    grads = steps.attention(do, q, k, v, lse, delta, visible)
    dq, dk, dv = (round_through(turned(xp, y), io) for y in grads)
    dq, dw_q_norm = _pulled(xp, g, dq, cut.q, w_q_norm, rstd_q, cos, sin)
    dk, dw_k_norm = _pulled(xp, g, dk, cut.k, w_k_norm, rstd_k, cos, sin)
    steps.projected(round_through(xp.concat([flat(xp, y) for y in (dq, dg, dk, dv)], axis=-1), io))
    results = []
    if need_h:
        results.append(narrow(xp.reshape(steps.by_hidden(), problem.h.shape), io))
    if need_qkvg:
        results.append(narrow(steps.by_first_weight(), io))
    if need_o:
        results.append(narrow(steps.by_last_weight(flat(xp, gated)), io))
    results += [dw_q_norm, dw_k_norm] if need_norms else []
    return (*results, steps.numbers()) if problem.quant is not None else tuple(results)


def _pulled(
    xp: Any, g: GatedAttentionBlockGeometry, dx: Any, x: Any, weight: Any, rstd: Any, cos: Any, sin: Any
) -> tuple[Any, Any]:
    """`_prepared` backwards: the gradients of the heads before it and of the norm's weight."""
    half = g.rope_dim // 2
    first, second, rest = dx[..., :half], dx[..., half : g.rope_dim], dx[..., g.rope_dim :]
    c, s = (cos[..., :half], cos[..., half:]), (sin[..., :half], sin[..., half:])
    dx = xp.concat((first * c[0] + second * s[1], second * c[1] - first * s[0], rest), axis=-1)
    if not g.qk_norm:
        return dx, None
    root = xp.reshape(rstd, (*x.shape[:3], 1))
    unit = x * root
    weighted = dx * wide(weight)
    mean = xp.sum(weighted * unit, axis=-1, keepdims=True) / g.d_head
    gradient = xp.sum(xp.reshape(dx * unit, (-1, g.d_head)), axis=0)
    return root * (weighted - unit * mean), gradient
