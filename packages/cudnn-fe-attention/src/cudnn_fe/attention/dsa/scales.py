"""E8M0 scales of the indexer's block-scaled queries and keys, packed as block-scaled MMAs read them."""

from __future__ import annotations

from typing import Any

import array_api_compat

from cudnn_fe.attention.arrays import take
from cudnn_fe.attention.operands import deliver, require_offsets, require_positive
from cudnn_fe.attention.sequences import rows_of
from cudnn_fe.core.block_scale import swizzle_scales
from cudnn_fe.core.errors import ShapeError
from cudnn_fe.core.require import require_dtype
from cudnn_fe.core.tensor import spec_of

__all__ = [
    "make_scale_cu_seqlens_padded",
    "minimal_padded_token_capacity",
    "pack_blockscaled_scale_mkl",
    "pack_k_scale_bshd",
    "pack_k_scale_thd",
    "pack_q_scale_bshd",
    "pack_q_scale_thd",
    "pack_qk_scale_bshd",
]

_BYTES = ("float8_e8m0fnu", "uint8")


def make_scale_cu_seqlens_padded(cu_seqlens: Any, token_alignment: int) -> Any:
    """Offsets of sequences whose lengths are rounded up, computed where the offsets are.

    Args:
        cu_seqlens: int32 (B+1,).
        token_alignment: Multiple that every sequence starts at.

    Returns:
        int32 (B+1,).

    Example:
        >>> import numpy as np
        >>> make_scale_cu_seqlens_padded(np.asarray([0, 3, 3, 8], np.int32), 4).tolist()
        [0, 4, 4, 12]
    """
    require_positive(token_alignment, "token_alignment")
    spec = spec_of(cu_seqlens, "cu_seqlens")
    require_dtype(spec, "int32")
    require_offsets(spec)
    xp = array_api_compat.array_namespace(cu_seqlens)
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1] + (token_alignment - 1)) // token_alignment * token_alignment
    ends = xp.astype(xp.cumulative_sum(lengths, axis=0), xp.int32)
    return xp.concat((xp.zeros_like(ends[:1]), ends))


def minimal_padded_token_capacity(total_tokens: int, num_sequences: int, token_alignment: int) -> int:
    """Tokens that padded sequences need at most, whatever their lengths.

    Args:
        total_tokens: Tokens of all sequences.
        num_sequences: Sequences.
        token_alignment: Multiple that every sequence starts at.

    Returns:
        The most that `make_scale_cu_seqlens_padded` may end with, a multiple of ``token_alignment``.

    Example:
        >>> minimal_padded_token_capacity(8, 3, 4)
        16
    """
    require_positive(token_alignment, "token_alignment")
    # Of the sequences that have tokens, each adds at most one token less than the multiple.
    padding = min(num_sequences, total_tokens) * (token_alignment - 1)
    return (total_tokens + padding) // token_alignment * token_alignment


def pack_blockscaled_scale_mkl(scale_mkl: Any, *, out: Any = None, stream: Any = None) -> Any:
    """Packs scales (MN, G, L) of L matrices into (L, ceil128(MN), ceil4(G)); what is added is 0.

    Args:
        scale_mkl: E8M0 scales, float8_e8m0fnu or uint8.
        out: Buffer for the result, which is then returned.
        stream: Launch stream for CUDA tensors, for the copy into ``out``.

    Returns:
        The packed scales: byte (m, k) of a matrix lies at
        ``((m // 128) * ceil(G / 4) + k // 4) * 512 + (m % 32) * 16 + (m % 128 // 32) * 4 + k % 4``.
    """
    spec = spec_of(scale_mkl, "scale_mkl")
    spec.require_rank(3, "(MN, G, L)")
    xp = array_api_compat.array_namespace(scale_mkl)
    return _packed(xp, xp.permute_dims(scale_mkl, (2, 0, 1)), "scale_mkl", out, stream)


def pack_q_scale_bshd(q_scale: Any, qhead_per_kv_head: int = 64, *, out: Any = None, stream: Any = None) -> Any:
    """Packs scales (B, S, H, G) of queries: a slab per batch and key head, in it token by token the group's heads.

    Args:
        q_scale: E8M0 scales.
        qhead_per_kv_head: Heads of a group.
        out: Buffer for the result.
        stream: Launch stream for CUDA tensors.

    Returns:
        (B Hkv, ceil128(S * group), ceil4(G)).
    """
    xp, slabs = _grouped(q_scale, "q_scale", qhead_per_kv_head)
    batch, heads, tokens, group, columns = slabs.shape
    return _packed(xp, xp.reshape(slabs, (batch * heads, tokens * group, columns)), "q_scale", out, stream)


def pack_k_scale_bshd(k_scale: Any, *, out: Any = None, stream: Any = None) -> Any:
    """Packs scales (B, S, Hkv, G) of keys: a slab per batch and head.

    Args:
        k_scale: E8M0 scales.
        out: Buffer for the result.
        stream: Launch stream for CUDA tensors.

    Returns:
        (B Hkv, ceil128(S), ceil4(G)).
    """
    xp, slabs = _grouped(k_scale, "k_scale", 1)
    batch, heads, tokens, _, columns = slabs.shape
    return _packed(xp, xp.reshape(slabs, (batch * heads, tokens, columns)), "k_scale", out, stream)


def pack_qk_scale_bshd(
    q_scale: Any, k_scale: Any, qhead_per_kv_head: int = 64, *, q_out: Any = None, k_out: Any = None, stream: Any = None
) -> tuple[Any, Any]:
    """Both of `pack_q_scale_bshd` and `pack_k_scale_bshd`.

    Args:
        q_scale: E8M0 scales of queries.
        k_scale: E8M0 scales of keys.
        qhead_per_kv_head: Heads of a group.
        q_out: Buffer for the first result.
        k_out: Buffer for the second.
        stream: Launch stream for CUDA tensors.

    Returns:
        The two results.
    """
    packed = pack_q_scale_bshd(q_scale, qhead_per_kv_head, out=q_out, stream=stream)
    return packed, pack_k_scale_bshd(k_scale, out=k_out, stream=stream)


def pack_q_scale_thd(
    q_scale: Any,
    cu_seqlens_q: Any,
    cu_seqlens_q_scale_padded: Any,
    qhead_per_kv_head: int = 64,
    *,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Packs scales (T, H, G) of queries of packed sequences, each from its padded offset on.

    Args:
        q_scale: E8M0 scales.
        cu_seqlens_q: int32 (B+1,): first query of each sequence.
        cu_seqlens_q_scale_padded: int32 (B+1,): where it starts in the result.
        qhead_per_kv_head: Heads of a group.
        out: Buffer for the result, which says how many rows there are; None takes the most that are needed.
        stream: Launch stream for CUDA tensors.

    Returns:
        (Hkv, rows, ceil4(G)), rows a multiple of 128.
    """
    return _pack_thd(q_scale, "q_scale", cu_seqlens_q, cu_seqlens_q_scale_padded, qhead_per_kv_head, out, stream)


def pack_k_scale_thd(
    k_scale: Any, cu_seqlens_k: Any, cu_seqlens_k_scale_padded: Any, *, out: Any = None, stream: Any = None
) -> Any:
    """Packs scales (T, Hkv, G) of keys of packed sequences, each from its padded offset on.

    Args:
        k_scale: E8M0 scales.
        cu_seqlens_k: int32 (B+1,): first key of each sequence.
        cu_seqlens_k_scale_padded: int32 (B+1,): where it starts in the result.
        out: Buffer for the result, which says how many rows there are; None takes the most that are needed.
        stream: Launch stream for CUDA tensors.

    Returns:
        (Hkv, rows, ceil4(G)), rows a multiple of 128.
    """
    return _pack_thd(k_scale, "k_scale", cu_seqlens_k, cu_seqlens_k_scale_padded, 1, out, stream)


def _grouped(scale: Any, name: str, group: int) -> tuple[Any, Any]:
    """Scales (B, S, H, G) as (B, Hkv, S, group, G)."""
    require_positive(group, "qhead_per_kv_head")
    spec = spec_of(scale, name)
    spec.require_rank(4, "(B, S, H, D / 32)")
    require_dtype(spec, *_BYTES)
    batch, tokens, heads, columns = spec.shape
    if heads % group:
        raise ShapeError(name, got=f"{heads} heads", wanted=f"a multiple of {group}", remedy="pass qhead_per_kv_head")
    xp = array_api_compat.array_namespace(scale)
    split = xp.reshape(scale, (batch, tokens, heads // group, group, columns))
    return xp, xp.permute_dims(split, (0, 2, 1, 3, 4))


def _packed(xp: Any, slabs: Any, name: str, out: Any, stream: Any) -> Any:
    """Slabs (L, MN, G) of scales, padded and swizzled, in the caller's buffer if there is one."""
    require_dtype(spec_of(slabs, name), *_BYTES)
    batch, rows, columns = slabs.shape
    shape = (batch, -(-rows // 128) * 128, -(-columns // 4) * 4)
    packed = xp.reshape(swizzle_scales(slabs.view(xp.uint8)), shape).view(slabs.dtype)
    return deliver((packed,), (out,), ("out",), stream=stream)[0]


def _pack_thd(scale: Any, name: str, offsets: Any, padded: Any, group: int, out: Any, stream: Any) -> Any:
    spec = spec_of(scale, name)
    spec.require_rank(3, "(T, H, D / 32)")
    count = require_offsets(spec_of(offsets, "cu_seqlens"))
    require_offsets(spec_of(padded, "cu_seqlens_padded"), spec_of(offsets, "cu_seqlens"))
    xp, slabs = _grouped(scale[None], name, group)
    _, heads, tokens, _, columns = slabs.shape
    if out is None:
        alignment = 128 // group if 128 % group == 0 else 128
        rows = minimal_padded_token_capacity(tokens, count, alignment) * group
    else:
        rows = out.shape[1]
    rows = -(-rows // 128) * 128
    at = rows_of(xp, padded, -(-rows // group), lengths=offsets[1:] - offsets[:-1])
    source = take(xp, offsets, at.sequence, 0) + at.position
    if tokens == 0 or rows == 0:
        spread = xp.zeros((heads, rows, columns), dtype=xp.uint8)
    else:
        spread = take(xp, slabs[0].view(xp.uint8), source, 1)
        spread = xp.where(at.valid[:, None, None], spread, xp.zeros_like(spread))
        spread = xp.reshape(spread, (heads, spread.shape[1] * group, columns))[:, :rows]
    return _packed(xp, spread.view(scale.dtype), name, out, stream)
