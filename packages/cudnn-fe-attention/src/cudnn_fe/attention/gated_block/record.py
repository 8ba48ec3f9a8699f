"""What a training forward of the gated attention block leaves for its backward."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.require import require_contiguous
from cudnn_fe.core.tensor import spec_of

__all__ = ["RecomputePolicy", "SavedForBackward", "index_k_raw_view", "register_pytree", "saved_slab_views"]


class RecomputePolicy(Enum):
    """What the backward makes again instead of reading it; results do not depend on it."""

    SAVE_ALL = "save_all"
    RECOMPUTE_QK_PRE = "recompute_qk_pre"
    RECOMPUTE_GATE = "recompute_gate"  # reserved


@dataclass(frozen=True, eq=False)
class SavedForBackward:
    """What a training forward leaves.

    Attributes:
        h: The forward's hidden states, themselves.
        gate: Gates (B, S, Hq, D): a copy, or a view of ``proj_slab``, or None.
        o: Attention before the gate (B, S, Hq, D).
        lse: Log-sum-exp (B, Hq, S).
        rstd_q: Reciprocal roots of the queries' norm (B, S, Hq), or None.
        rstd_k: Reciprocal roots of the keys' norm (B, S, Hkv), or None.
        q_pre: Queries before their norm, a copy or a view, or None.
        k_pre: Keys before their norm, likewise.
        proj_slab: The projection (B S, n_qkvg), or None where the gate is copied.
        seq_lens: The forward's lengths, themselves.
        seq_lens_form: None, or ``"lengths"`` or ``"prefix"`` of packed sequences.
    """

    h: Any
    gate: Any
    o: Any
    lse: Any
    rstd_q: Any
    rstd_k: Any
    q_pre: Any = None
    k_pre: Any = None
    proj_slab: Any = None
    seq_lens: Any = None
    seq_lens_form: str | None = None


@cache
def register_pytree() -> None:
    """Let records pass through JAX's transformations."""
    import jax  # a record is about to hold its arrays

    names = [name for name in SavedForBackward.__dataclass_fields__ if name != "seq_lens_form"]
    jax.tree_util.register_dataclass(SavedForBackward, data_fields=names, meta_fields=["seq_lens_form"])


def _three_dims(proj_slab: Any, geometry: GatedAttentionBlockGeometry, batch: int, seq_len: int) -> Any:
    spec = spec_of(proj_slab, "proj_slab")
    wanted = (batch * seq_len, geometry.n_qkvg)
    if spec.shape not in (wanted, (batch, seq_len, geometry.n_qkvg)):
        raise ShapeError("proj_slab", got=str(spec.shape), wanted=f"{wanted}", remedy="pass the forward's projection")
    require_contiguous(spec)
    return proj_slab.reshape(batch, seq_len, geometry.n_qkvg)


def saved_slab_views(
    proj_slab: Any, geometry: GatedAttentionBlockGeometry, batch: int, seq_len: int
) -> tuple[Any, Any, Any, Any]:
    """Views ``(q_pre, gate, k_pre, v)`` of the projection, (batch, seq_len, heads, D) each.

    Args:
        proj_slab: The projection (batch seq_len, n_qkvg) or (batch, seq_len, n_qkvg), contiguous.
        geometry: The block's geometry.
        batch: Sequences.
        seq_len: Tokens of each.

    Raises:
        ShapeError, StrideError: It is of another size, or not contiguous.
    """
    slab = _three_dims(proj_slab, geometry, batch, seq_len)
    cuts = list(zip(geometry.qkvg_offsets, geometry.qkvg_block_widths, geometry.qkvg_heads, strict=True))[:4]
    bands = [slab[..., a : a + n].reshape(batch, seq_len, heads, geometry.d_head) for a, n, heads in cuts]
    return bands[0], bands[1], bands[2], bands[3]


def index_k_raw_view(proj_slab: Any, geometry: GatedAttentionBlockGeometry, batch: int, seq_len: int) -> Any:
    """A view of the indexer's raw keys in the projection, (batch, seq_len, 1, index_head_dim).

    Args:
        proj_slab: The projection (batch seq_len, n_qkvg) or (batch, seq_len, n_qkvg), contiguous.
        geometry: The block's geometry, with an indexer's columns.
        batch: Sequences.
        seq_len: Tokens of each.

    Raises:
        OptionError: The geometry has no indexer's columns.
        ShapeError, StrideError: The projection is of another size, or not contiguous.
    """
    if geometry.qsa is None or not geometry.index_band:
        wanted = "an indexer's columns"
        raise OptionError("qsa", got=repr(geometry.qsa), wanted=wanted, remedy="declare QsaSpec(index_band=True)")
    slab = _three_dims(proj_slab, geometry, batch, seq_len)
    width = geometry.qsa.index_head_dim
    return slab[..., geometry.n_qkvg - width :].reshape(batch, seq_len, 1, width)
