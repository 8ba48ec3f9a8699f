"""The definition of the gated attention block and of its gradients, for any array namespace."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnn_fe.attention.arrays import narrow, product, round_through, sigmoid, wide
from cudnn_fe.attention.bands import places, within
from cudnn_fe.attention.pieces import attend, attend_gradients, log_sum_exp
from cudnn_fe.attention.sequences import offsets_of, rows_of
from cudnn_fe.attention.tiles import Visible
from cudnn_fe.core.block_scale import MXFP8_E4M3, dequantize, quantize, unswizzle_scales
from cudnn_fe.core.codecs import decode, to_codes

if TYPE_CHECKING:
    from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
    from cudnn_fe.attention.gated_block.op import GatedAttentionBlock, GatedAttentionBlockBackward

__all__ = ["backward", "forward"]


_CODES, _BLOCK = "float8_e4m3fn", 32
_LIFT = 256.0  # of probabilities with a factor per tensor: E4M3 then keeps what is 2**-17 of the largest


class _Heads(NamedTuple):
    """Bands of the projection, (B, S, heads, D) each."""

    q: Any
    gate: Any
    k: Any
    v: Any


def forward(
    problem: GatedAttentionBlock,
    xp: Any,
    h: Any,
    w_qkvg: Any,
    w_q_norm: Any,
    w_k_norm: Any,
    cos: Any,
    sin: Any,
    w_o: Any,
    seq_lens: Any,
    h_sf: Any,
    w_qkvg_sf: Any,
    *factors: float,
) -> tuple[Any, ...]:
    """``(out, lse)``, and in training the projection, O, and the reciprocal roots of both norms.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        h: Hidden states (B, S, d_model), or packed.
        w_qkvg: The first weight (n_qkvg, d_model).
        w_q_norm: Weight of the queries' norm (D,), or None.
        w_k_norm: Weight of the keys' norm, or None.
        cos: Cosines (B, S, rope_dim).
        sin: Sines.
        w_o: The last weight (d_model, Hq D).
        seq_lens: Keys of each sequence, or the packed sequences' lengths or offsets, or None.
        h_sf: Packed scales of h, or None.
        w_qkvg_sf: Packed scales of the first weight, or None.
        factors: What codes are multiplied by, and values before they are encoded; see `QuantSpec`.
    """
    g, io = problem.geometry, problem.cos.dtype.name
    cos, sin = _tables(cos), _tables(sin)
    of_h, of_weight, of_o, *_, scale_o = factors
    x, visible = _sequences(problem, xp, _scaled(xp, _batched(h), h_sf), seq_lens)
    weight = _scaled(xp, w_qkvg, w_qkvg_sf)
    slab = narrow(product(xp, x, xp.matrix_transpose(weight)) * (of_h * of_weight), io)
    bands = _bands(xp, g, wide(slab))
    q, rstd_q = _prepared(xp, g, bands.q, w_q_norm, cos, sin, io)
    k, rstd_k = _prepared(xp, g, bands.k, w_k_norm, cos, sin, io)
    q, k, v = (_turned(xp, y) for y in (q, k, bands.v))
    if problem.quant == "mxfp8":  # what no query sees takes no part in the scales of its block
        v = xp.where(places(xp, v, seq_lens, None).valid[..., None], v, xp.zeros_like(v))
    o, lse = _attended(problem, xp, q, k, v, visible, factors)
    o = round_through(_turned(xp, o), io)
    gated = round_through(o * sigmoid(xp, bands.gate), io)
    if problem.quant is not None:
        gated = round_through(gated * scale_o, _CODES)
    out = product(xp, _flat(xp, gated), xp.matrix_transpose(wide(w_o))) * (of_o / scale_o)
    results = [narrow(xp.reshape(out, problem.h.shape), io), lse]
    if problem.training:
        results += [xp.reshape(slab, (-1, g.n_qkvg)), narrow(o, io)]
        results += [rstd_q, rstd_k] if g.qk_norm else []
    return tuple(results)


def _scaled(xp: Any, x: Any, scales: Any) -> Any:
    """The values of ``x``, with a factor per 32 channels where there are packed scales."""
    if scales is None:
        return wide(x)
    plain = unswizzle_scales(to_codes(scales), prod(x.shape[:-1]), x.shape[-1] // _BLOCK)
    factors = xp.repeat(decode(plain[0], "float8_e8m0fnu"), _BLOCK, axis=1)
    return wide(x) * xp.reshape(factors, x.shape)


def _blocks(x: Any, axis: int) -> Any:
    """``x`` in MXFP8 along an axis."""
    codes, scales, _ = quantize(x, MXFP8_E4M3, axis=axis, recipe="power_of_two")
    return dequantize(codes, scales, MXFP8_E4M3, axis=axis)


def _attended(
    problem: GatedAttentionBlock, xp: Any, q: Any, k: Any, v: Any, visible: Visible, factors: tuple[float, ...]
) -> tuple[Any, Any]:
    """O and the log-sum-exp, of E4M3 operands and probabilities where the block is quantised."""
    scale, by_value, lift, io = problem.geometry.scale, 1.0, 1.0, problem.cos.dtype.name
    if problem.quant == "fp8":
        of_q, of_k, by_value = factors[3:6]
        q, k, v = (round_through(x * factor, _CODES) for x, factor in ((q, of_q), (k, of_k), (v, by_value)))
        scale, lift, io = scale / (of_q * of_k), _LIFT, _CODES
    elif problem.quant == "mxfp8":
        q, k, v, io = _blocks(q, -1), _blocks(k, -1), _blocks(v, -2), _CODES
    o, top, total = attend(xp, q, k, v, visible, scale, io, lift=lift)
    return o / by_value, log_sum_exp(xp, top, total)


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
) -> tuple[Any, ...]:
    """The gradients that are needed of h, both weights and both norms' weights.

    Args:
        problem: The bound problem.
        xp: Array namespace of the operands.
        dy: Gradient of the output.
        h: As in `forward`, and so is all that both have.
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
    """
    g, io = problem.geometry, problem.h.dtype.name
    need_h, need_qkvg, need_o, need_norms = problem.needs
    cos, sin = _tables(cos), _tables(sin)
    x, visible = _sequences(problem, xp, wide(_batched(h)), seq_lens)
    dy, _ = _sequences(problem, xp, wide(_batched(dy)), seq_lens)
    weight = wide(w_qkvg)
    if slab is None:
        slab = narrow(product(xp, x, xp.matrix_transpose(weight)), io)
    bands = _bands(xp, g, wide(xp.reshape(slab, (*x.shape[:2], g.n_qkvg))))
    o, lse = wide(xp.reshape(o, bands.q.shape)), xp.reshape(lse, (x.shape[0], g.h_q, x.shape[1]))

    s = sigmoid(xp, bands.gate)
    gated = round_through(o * s, io)
    dw_o = _outer(xp, dy, _flat(xp, gated))
    d_gated = xp.reshape(product(xp, dy, wide(w_o)), bands.q.shape)
    do, dg = round_through(d_gated * s, io), d_gated * o * s * (1 - s)
    delta = _turned(xp, xp.sum(o * do, axis=-1, keepdims=True))[..., 0]

    q, _ = _prepared(xp, g, bands.q, w_q_norm, cos, sin, io)
    k, _ = _prepared(xp, g, bands.k, w_k_norm, cos, sin, io)
    do, q, k, v = (_turned(xp, y) for y in (do, q, k, bands.v))
    grads = attend_gradients(xp, do, q, k, v, lse, delta, visible, g.scale, io)
    dq, dk, dv = (round_through(_turned(xp, y), io) for y in grads)
    dq, dw_q_norm = _pulled(xp, g, dq, bands.q, w_q_norm, rstd_q, cos, sin)
    dk, dw_k_norm = _pulled(xp, g, dk, bands.k, w_k_norm, rstd_k, cos, sin)
    projected = round_through(xp.concat([_flat(xp, y) for y in (dq, dg, dk, dv)], axis=-1), io)
    results = []
    if need_h:
        results.append(narrow(xp.reshape(product(xp, projected, weight), problem.h.shape), io))
    if need_qkvg:
        results.append(narrow(_outer(xp, projected, x), io))
    if need_o:
        results.append(narrow(dw_o, io))
    return (*results, dw_q_norm, dw_k_norm) if need_norms else tuple(results)


def _batched(x: Any) -> Any:
    """(B, S, C), or packed (T, C) as one batch."""
    return x if x.ndim == 3 else x[None]


def _tables(x: Any) -> Any:
    """Cosines or sines, (B, S, 1, rope_dim)."""
    return wide(_batched(x))[:, :, None]


def _turned(xp: Any, x: Any) -> Any:
    """(B, S, H, D) as (B, H, S, D), and back."""
    return xp.permute_dims(x, (0, 2, 1, 3))


def _flat(xp: Any, x: Any) -> Any:
    """(B, S, H, D) as (B, S, H D)."""
    return xp.reshape(x, (*x.shape[:2], x.shape[2] * x.shape[3]))


def _outer(xp: Any, a: Any, b: Any) -> Any:
    """``sum_t a_t b_t^T`` over all tokens of (B, S, M) and (B, S, N)."""
    a, b = (xp.reshape(x, (x.shape[0] * x.shape[1], x.shape[2])) for x in (a, b))
    return product(xp, xp.matrix_transpose(a), b)


def _sequences(problem: Any, xp: Any, x: Any, seq_lens: Any) -> tuple[Any, Visible]:
    """``x`` with 0 in rows of no sequence, and the mask."""
    like = x[:, None]  # (B, 1, S, C)
    if problem.form is None:
        return x, within(xp, problem.geometry.band, places(xp, like, None, None), places(xp, like, seq_lens, None))
    offsets = offsets_of(xp, seq_lens) if problem.form == "lengths" else seq_lens
    rows = rows_of(xp, offsets, x.shape[1])
    return xp.where(rows.valid[:, None], x, xp.zeros_like(x)), within(xp, problem.geometry.band, rows, rows)


def _bands(xp: Any, g: GatedAttentionBlockGeometry, slab: Any) -> _Heads:
    cuts = zip(g.qkvg_offsets, g.qkvg_block_widths, g.qkvg_heads, strict=True)
    shape = (*slab.shape[:2], -1, g.d_head)
    return _Heads(*(xp.reshape(slab[..., a : a + n], (*shape[:2], heads, g.d_head)) for a, n, heads in cuts))


def _prepared(
    xp: Any, g: GatedAttentionBlockGeometry, x: Any, weight: Any, cos: Any, sin: Any, io: str
) -> tuple[Any, Any]:
    """Heads after their norm and rotation, rounded once, and the norm's reciprocal root (B, S, heads)."""
    rstd = None
    if g.qk_norm:
        root = 1 / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True) / g.d_head + g.qk_norm_eps)
        x, rstd = x * root * wide(weight), root[..., 0]
    half = g.rope_dim // 2
    first, second, rest = x[..., :half], x[..., half : g.rope_dim], x[..., g.rope_dim :]
    c, s = (cos[..., :half], cos[..., half:]), (sin[..., :half], sin[..., half:])
    turned = (first * c[0] - second * s[0], second * c[1] + first * s[1], rest)
    return round_through(xp.concat(turned, axis=-1), io), rstd


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
