"""The definition of the gated attention block, for any array namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cudnn_fe.attention.arrays import narrow, product, round_through, sigmoid, wide
from cudnn_fe.attention.bands import places, within
from cudnn_fe.attention.gated_block.quantised import CODES, LIFT, along_tokens, fp4_values, mx_values, scaled
from cudnn_fe.attention.pieces import attend, log_sum_exp
from cudnn_fe.attention.sequences import offsets_of, rows_of
from cudnn_fe.attention.tiles import Visible

if TYPE_CHECKING:
    from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
    from cudnn_fe.attention.gated_block.op import GatedAttentionBlock

__all__ = [
    "Heads",
    "bands",
    "batched",
    "flat",
    "forward",
    "gated_output",
    "heads_of",
    "normed",
    "of_keys",
    "prepared",
    "rotated",
    "rounded_operands",
    "sequences",
    "tables",
    "turned",
]


class Heads(NamedTuple):
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
    w_o_sf: Any,
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
        w_o_sf: Packed scales of the last weight, or None.
        factors: What codes are multiplied by, and values before they are encoded; see `QuantSpec`.
    """
    g, io, formats = problem.geometry, problem.cos.dtype.name, problem.formats
    cos, sin = tables(cos), tables(sin)
    of_h, of_weight, of_o, *_, scale_o = factors
    x, visible, offsets = sequences(problem, xp, scaled(xp, batched(h), h_sf, fp4=False), seq_lens)
    weight = scaled(xp, w_qkvg, w_qkvg_sf, fp4=formats.w_fp4)
    slab = narrow(product(xp, x, xp.matrix_transpose(weight)) * (of_h * of_weight), io)
    heads, roots = heads_of(xp, g, wide(slab), (w_q_norm, w_k_norm), (cos, sin), io)
    q, k, v = (turned(xp, y) for y in (heads.q, heads.k, heads.v))
    if formats.quant == "mxfp8":  # what no query sees takes no part in the scales of its block
        v = of_keys(problem, xp, v, seq_lens)
    rounded, lift, kind = rounded_operands(xp, problem, (q, k, v), offsets, factors)
    o, top, total = attend(xp, *rounded, visible, g.scale, kind, lift=lift)
    lse = log_sum_exp(xp, top, total)
    o = round_through(turned(xp, o), io)
    gated = round_through(o * sigmoid(xp, heads.gate), io)
    w_o, gated = _last_operands(xp, problem, w_o, w_o_sf, flat(xp, gated), scale_o)
    out = product(xp, gated, xp.matrix_transpose(w_o)) * (of_o / scale_o)
    results = [narrow(xp.reshape(out, problem.h.shape), io), lse]
    if problem.training:
        results += [xp.reshape(slab, (-1, g.n_qkvg)), narrow(o, io)]
        results += roots if g.qk_norm else []
    return tuple(results)


def _last_operands(xp: Any, problem: GatedAttentionBlock, w_o: Any, w_o_sf: Any, gated: Any, scale: float) -> Any:
    """The last weight, and the gated output as its product reads it."""
    formats = problem.formats
    if formats.o_fp4 is not None:
        kind = "float8_e4m3fn" if formats.o_fp4 == "nvfp4" else "float8_e8m0fnu"
        weight = scaled(xp, w_o, w_o_sf, formats.o_block, kind, fp4=True)
        return weight, fp4_values(xp, gated, formats.o_fp4)
    return wide(w_o), gated if formats.quant is None else round_through(gated * scale, CODES)


def rounded_operands(
    xp: Any, problem: Any, qkv: tuple[Any, Any, Any], offsets: Any, factors: tuple[float, ...]
) -> tuple[tuple[Any, Any, Any], float, str]:
    """Queries, keys and values as attention's products read them, and P's factor and type while it is rounded."""
    q, k, v = qkv
    if problem.quant == "fp8":
        q, k, v = (round_through(x * f, CODES) / f for x, f in zip(qkv, factors[3:6], strict=True))
        return (q, k, v), LIFT, CODES
    if problem.quant == "mxfp8":
        return (mx_values(q, -1), mx_values(k, -1), along_tokens(xp, v, offsets)), 1.0, CODES
    return qkv, 1.0, problem.cos.dtype.name


def of_keys(problem: Any, xp: Any, x: Any, seq_lens: Any) -> Any:
    """(B, H, S, D) with 0 where padded sequences have no key."""
    if problem.form is not None:
        return x
    return xp.where(places(xp, x, seq_lens, None).valid[..., None], x, xp.zeros_like(x))


def batched(x: Any) -> Any:
    """(B, S, C), or packed (T, C) as one batch."""
    return x if x.ndim == 3 else x[None]


def tables(x: Any) -> Any:
    """Cosines or sines, (B, S, 1, rope_dim)."""
    return wide(batched(x))[:, :, None]


def turned(xp: Any, x: Any) -> Any:
    """(B, S, H, D) as (B, H, S, D), and back."""
    return xp.permute_dims(x, (0, 2, 1, 3))


def flat(xp: Any, x: Any) -> Any:
    """(B, S, H, D) as (B, S, H D)."""
    return xp.reshape(x, (*x.shape[:2], x.shape[2] * x.shape[3]))


def sequences(problem: Any, xp: Any, x: Any, seq_lens: Any) -> tuple[Any, Visible, Any]:
    """``x`` with 0 in rows of no sequence, the mask, and the packed sequences' offsets."""
    like = x[:, None]  # (B, 1, S, C)
    if problem.form is None:
        seen = within(xp, problem.geometry.band, places(xp, like, None, None), places(xp, like, seq_lens, None))
        return x, seen, None
    offsets = offsets_of(xp, seq_lens) if problem.form == "lengths" else seq_lens
    rows = rows_of(xp, offsets, x.shape[1])
    seen = within(xp, problem.geometry.band, rows, rows)
    return xp.where(rows.valid[:, None], x, xp.zeros_like(x)), seen, offsets


def bands(xp: Any, g: GatedAttentionBlockGeometry, slab: Any) -> Heads:
    """The bands of the projection (B, S, n_qkvg), the indexer's left out."""
    cuts = list(zip(g.qkvg_offsets, g.qkvg_block_widths, g.qkvg_heads, strict=True))[:4]
    shape = (*slab.shape[:2], -1, g.d_head)
    return Heads(*(xp.reshape(slab[..., a : a + n], (*shape[:2], heads, g.d_head)) for a, n, heads in cuts))


def heads_of(
    xp: Any, g: GatedAttentionBlockGeometry, slab: Any, norms: tuple[Any, Any], rope: tuple[Any, Any], io: str
) -> tuple[Heads, tuple[Any, Any]]:
    """The projection's heads, queries and keys after norm and rotation, and the reciprocal roots of both norms."""
    cut = bands(xp, g, slab)
    (q, rstd_q), (k, rstd_k) = (
        prepared(xp, g, x, weight, *rope, io) for x, weight in zip((cut.q, cut.k), norms, strict=True)
    )
    return Heads(q, cut.gate, k, cut.v), (rstd_q, rstd_k)


def gated_output(xp: Any, o: Any, gate: Any, w_o: Any, io: str, shape: tuple[int, ...]) -> Any:
    """The block's output, of that shape, from attention's (B, S, Hq, D), which is rounded first."""
    gated = round_through(round_through(o, io) * sigmoid(xp, gate), io)
    out = product(xp, flat(xp, gated), xp.matrix_transpose(wide(w_o)))
    return narrow(xp.reshape(out, shape), io)


def prepared(
    xp: Any, g: GatedAttentionBlockGeometry, x: Any, weight: Any, cos: Any, sin: Any, io: str
) -> tuple[Any, Any]:
    """Heads after their norm and rotation, rounded once, and the norm's reciprocal root (B, S, heads)."""
    rstd = None
    if g.qk_norm:
        x, rstd = normed(xp, x, weight, g.qk_norm_eps)
    return round_through(rotated(xp, x, cos, sin, g.rope_dim), io), rstd


def normed(xp: Any, x: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    """RMSNorm along the last dim, and its reciprocal root."""
    root = 1 / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True) / x.shape[-1] + eps)
    return x * root * wide(weight), root[..., 0]


def rotated(xp: Any, x: Any, cos: Any, sin: Any, width: int) -> Any:
    """``x`` with its leading ``width`` channels rotated, halves against each other."""
    half = width // 2
    first, second, rest = x[..., :half], x[..., half:width], x[..., width:]
    c, s = (cos[..., :half], cos[..., half:]), (sin[..., :half], sin[..., half:])
    return xp.concat((first * c[0] - second * s[0], second * c[1] + first * s[1], rest), axis=-1)
