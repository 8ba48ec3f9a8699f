"""The gated attention block in serving: its keys and values go to pages of a cache."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.gated_block import lengths_form
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.op import frozen
from cudnn_fe.attention.gated_block.paged_op import KV_SOURCE_SELF, PAGED
from cudnn_fe.attention.operands import deliver
from cudnn_fe.core.call import call
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["gated_attention_block_paged_forward", "paged_forward"]


def gated_attention_block_paged_forward(
    h: Any,
    w_qkvg: Any,
    w_q_norm: Any,
    w_k_norm: Any,
    cos: Any,
    sin: Any,
    w_o: Any,
    geometry: GatedAttentionBlockGeometry,
    k_cache: Any,
    v_cache: Any,
    slot_mapping: Any,
    *,
    kv_source: str = KV_SOURCE_SELF,
    block_table: Any = None,
    kv_lens: Any = None,
    seq_lens: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    thd: bool = False,
    cu_seqlens: bool = False,
    current_stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """The gated attention block in serving: keys and values go to pages of a cache, and may be read from there.

    Args:
        h: Hidden states (B, S, d_model), or packed (T, d_model): float16, bfloat16, float32 or float64.
        w_qkvg: First weight, as in `gated_attention_block_forward`, and so are all arguments that both have.
        w_q_norm: Weight of the queries' norm, or None.
        w_k_norm: Weight of the keys' norm, or None.
        cos: Cosines of each token at its place in its whole sequence.
        sin: Sines.
        w_o: Output projection.
        geometry: Extents and mask; ``causal_bottom_right`` with ``kv_source="paged"``.
        k_cache: Pages of keys (pages, Hkv, P, D), P a multiple of 16: the dtype of h, or E4M3; channels contiguous.
        v_cache: Pages of values, likewise.
        slot_mapping: int32 or int64 (T,): the slot of every token, page by page; outside the pool writes nothing.
        kv_source: ``"self"``: tokens see those of the call; ``"paged"``: those in the pages, these included.
        block_table: int32 (B, N): pages of each sequence, with ``"paged"``.
        kv_lens: int32 (B,): keys of each sequence in its pages, these included, with ``"paged"``.
        seq_lens: Lengths; None for padded tokens with ``"paged"``, which are at most 32 of each sequence.
        k_scale: One float32 number: what E4M3 keys are multiplied by when they are read.
        v_scale: Likewise of values.
        thd: Whether h packs sequences.
        cu_seqlens: Whether ``seq_lens`` are offsets.
        current_stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``out`` like h, ``lse`` (B, Hq, S), and ``k_cache`` and ``v_cache``: the caller's, written to, of torch and
        NumPy; new arrays of JAX.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    operands = (h, w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o, seq_lens)
    pages = (k_cache, v_cache, slot_mapping, block_table, kv_lens, k_scale, v_scale)
    form = lengths_form(thd, cu_seqlens)
    return paged_forward(operands, pages, geometry, form, kv_source, stream=current_stream, backend=backend)


def paged_forward(
    operands: tuple[Any, ...],
    pages: tuple[Any, ...],
    geometry: GatedAttentionBlockGeometry,
    form: str | None,
    source: str,
    *,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """`gated_attention_block_paged_forward`, from its operands in the op's order."""
    options = (("shape", frozen(geometry)), ("form", form), ("source", source))
    out, lse, *pools = call(PAGED, (*operands, *pages), options, (), backend=backend, stream=stream)
    if framework_of(pages[0], operand="k_cache") in ("torch", "numpy"):
        pools = list(deliver(tuple(pools), pages[:2], ("k_cache", "v_cache"), stream=stream))
    return TupleDict(out=out, lse=lse, k_cache=pools[0], v_cache=pools[1])
