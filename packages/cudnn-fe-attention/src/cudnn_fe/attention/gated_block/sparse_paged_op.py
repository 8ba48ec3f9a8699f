"""The contract of the block-sparse gated attention block over pages: prompts write there, steps read there too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.gated_block.declarations import QSA_INDEX_LIST_FORM_SHARED, QsaSpec
from cudnn_fe.attention.gated_block.docs import INPUT_TENSORS, SOURCE
from cudnn_fe.attention.gated_block.docs_sparse_paged import EXAMPLE, NOTES, TENSORS
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.op import thawed
from cudnn_fe.attention.gated_block.operands import INPUTS, NORMS, Formats, require_block
from cudnn_fe.attention.gated_block.paged_op import (
    KEYS,
    KV_SOURCE_PAGED,
    KV_SOURCE_SELF,
    PAGES,
    SCALES,
    require_keys,
    require_pools,
)
from cudnn_fe.attention.gated_block.sparse_op import (
    INDEXER,
    LISTS,
    GatedAttentionBlockSparse,
    SparseProblem,
    require_indexer,
    require_lists,
)
from cudnn_fe.attention.operands import compact, require_same_dtype, statistics_dtype
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.op import Op
from cudnn_fe.core.require import require_dtype, require_one_of, require_rows, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["CACHES", "SPARSE_PAGED", "GatedAttentionBlockPagedSparse", "present"]

CACHES = (
    *("index_kv_cache", "index_state_cache", "index_state_block_table", "index_state_slot_mapping"),
    *("cos_pos", "sin_pos"),
)
_ROPE = ("cos", "sin")
_MOST_SHARED = 4  # tokens of a step that may share a list


def _require_rope(g: GatedAttentionBlockGeometry, named: dict[str, TensorSpec | None], needed: bool) -> None:
    """Validates cosines and sines: of the tokens, of all places, or of both."""
    h, table, pool = (named[name] for name in ("h", "block_table", "k_cache"))
    assert h is not None
    assert table is not None
    assert pool is not None
    if (named["cos"] is None) != (named["sin"] is None):
        raise OptionError("sin", got="one of cos and sin", wanted="both or neither", remedy="pass both")
    needed = needed or named["cos"] is None
    reach = table.shape[1] * pool.shape[2]
    for name in ("cos_pos", "sin_pos"):
        spec = named[name]
        if spec is None:
            if needed:
                wanted = "a row per place, with an indexer or without cos"
                raise OptionError(name, got="None", wanted=wanted, remedy="pass the model's table")
            continue
        spec.require_rank(3, "(1 or B, places, rope_dim)")
        if spec.shape[0] not in (1, h.shape[0]) or spec.shape[1] < reach or spec.shape[2] != g.rope_dim:
            wanted = f"(1 or {h.shape[0]}, {reach} or more, {g.rope_dim}): every place that the table reaches"
            raise ShapeError(name, got=str(spec.shape), wanted=wanted, remedy="pass the model's table")
        require_same_dtype(h, spec)
        require_same_device(h, spec)


def _require_caches(qsa: QsaSpec, named: dict[str, TensorSpec | None]) -> None:
    """Validates the indexer's own pages, its ring and where its rows go."""
    h, pool = named["h"], named["k_cache"]
    assert h is not None
    assert pool is not None
    for name in CACHES[:3]:
        if named[name] is None:
            wanted = "a tensor with index_source 'indexer' over pages"
            raise OptionError(name, got="None", wanted=wanted, remedy="pass it")
    compressed, ring, table, slots = (named[name] for name in CACHES[:4])
    assert compressed is not None
    assert ring is not None
    assert table is not None
    batch, steps = h.shape[:2]
    rows = pool.shape[2] // qsa.block_size
    shape = (pool.shape[0], rows, 1, qsa.index_head_dim)
    require_shape(compressed, shape, f"(pages, P / {qsa.block_size}, 1, index_head_dim)")
    kind = qsa.index_cache_dtype
    require_dtype(compressed, h.dtype.name if kind is None else dtype(kind).name)
    ring.require_rank(4, "(blocks, capacity, 1, index_head_dim)")
    least = steps + qsa.block_size - 1
    if ring.shape[1] < least or ring.shape[2:] != (1, qsa.index_head_dim):
        wanted = f"(blocks, {least} or more, 1, {qsa.index_head_dim}): the step and the open block before it"
        raise ShapeError(ring.name, got=str(ring.shape), wanted=wanted, remedy="allocate longer rings")
    require_same_dtype(h, ring)
    require_dtype(table, "int32")
    require_shape(table, (batch, 1), "(B, 1)")
    for spec in (compressed, ring):
        require_rows(spec)
    require_same_device(h, compressed, ring, table)
    if slots is not None:
        mapping = named["slot_mapping"]
        assert mapping is not None
        require_dtype(slots, mapping.dtype.name)
        require_shape(slots, (batch * steps,), "(T,)")
        require_same_device(h, slots)


def _require_step(g: GatedAttentionBlockGeometry, named: dict[str, TensorSpec | None], form: str | None) -> None:
    """Validates a step or a chunk that reads pages."""
    h, pool, qsa = named["h"], named["k_cache"], g.qsa
    assert h is not None
    assert pool is not None
    assert qsa is not None
    if form is not None:
        wanted = "tokens by sequence, (B, S, d_model), with qsa and kv_source 'paged'"
        raise NotYetSupportedError("h", got="packed tokens", wanted=wanted, remedy="pad the sequences of a step")
    require_keys(g, named, form)
    steps, indexed = h.shape[1], qsa.index_source == "indexer"
    shared = qsa.index_list_form == QSA_INDEX_LIST_FORM_SHARED
    if shared and (indexed or steps > _MOST_SHARED):
        got = "'shared' with an indexer" if indexed else f"'shared' of {steps} tokens"
        wanted = f"lists of the caller, of at most {_MOST_SHARED} tokens"
        raise NotYetSupportedError("index_list_form", got=got, wanted=wanted, remedy="declare 'per_row'")
    if pool.dtype.is_fp8 and (indexed or steps > _MOST_SHARED or h.dtype.name != "bfloat16"):
        wanted = f"pools of {h.dtype}, or at most {_MOST_SHARED} bfloat16 tokens and lists of the caller"
        raise NotYetSupportedError("kv_cache_dtype", got=str(pool.dtype), wanted=wanted, remedy="keep keys as h")
    _require_rope(g, named, needed=indexed)
    if indexed:
        require_indexer(named, qsa)
        _require_caches(qsa, named)
    else:
        batch = h.shape[0]
        one_each = qsa.index_list_form is None and steps <= _MOST_SHARED
        rows = ((batch,),) if shared or one_each else ((batch * steps,), (batch, steps))
        require_lists(named, rows, qsa.top_k)


def present(g: GatedAttentionBlockGeometry, source: str) -> tuple[str, ...]:
    """Names of the results that there are."""
    assert g.qsa is not None
    indexed, paged = g.qsa.index_source == "indexer", source == KV_SOURCE_PAGED
    names = ["out", "lse", "k_cache", "v_cache"]
    if g.index_band and not (indexed and paged):
        names.append("index_k_raw")
    if indexed:
        names += CACHES[:2] if paged else ("index_k_compressed",)
        names += ("block_ids_out", "block_lens_out")
    return tuple(names)


@dataclass(frozen=True)
class GatedAttentionBlockPagedSparse(SparseProblem):
    """One block-sparse forward call over pages."""

    operands: ClassVar[tuple[str, ...]] = (*INPUTS, "seq_lens", *PAGES, *KEYS, *SCALES, *LISTS, *INDEXER, *CACHES)
    optional: ClassVar[frozenset[str]] = frozenset(
        {*NORMS, *_ROPE, "seq_lens", *KEYS, *SCALES, *LISTS, *INDEXER, *CACHES}
    )
    kept: ClassVar[frozenset[str]] = frozenset(SCALES)
    output_count: ClassVar[int] = 0

    h: TensorSpec
    w_qkvg: TensorSpec
    w_q_norm: TensorSpec | None
    w_k_norm: TensorSpec | None
    cos: TensorSpec | None
    sin: TensorSpec | None
    w_o: TensorSpec
    seq_lens: TensorSpec | None
    k_cache: TensorSpec
    v_cache: TensorSpec
    slot_mapping: TensorSpec
    block_table: TensorSpec | None
    kv_lens: TensorSpec | None
    k_scale: TensorSpec | None
    v_scale: TensorSpec | None
    block_ids: TensorSpec | None
    block_lens: TensorSpec | None
    w_iq_norm: TensorSpec | None
    w_ik_norm: TensorSpec | None
    index_kv_cache: TensorSpec | None
    index_state_cache: TensorSpec | None
    index_state_block_table: TensorSpec | None
    index_state_slot_mapping: TensorSpec | None
    cos_pos: TensorSpec | None
    sin_pos: TensorSpec | None
    shape: tuple[Any, ...]
    form: str | None
    source: str

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``shape``, ``form`` of the lengths, and ``source`` of the keys."""
        g, form, source = thawed(tuple(options["shape"])), options["form"], options["source"]
        require_one_of(source, "kv_source", (KV_SOURCE_SELF, KV_SOURCE_PAGED))
        assert g.qsa is not None
        named = dict(zip(cls.operands, operands, strict=True))
        batch, tokens = require_block(g, form, named["seq_lens"], named, Formats(None, False, None))
        require_pools(g, named, batch * tokens)
        of_pages = source == KV_SOURCE_PAGED
        caller = g.qsa.index_source == "caller"
        refused: tuple[str, ...] = (*KEYS, *CACHES)
        if of_pages:
            refused = (*INDEXER, *CACHES[:4]) if caller else LISTS
        for name in refused:
            if named[name] is not None:
                wanted = f"None with kv_source {source!r} and index_source {g.qsa.index_source!r}"
                raise OptionError(name, got="a tensor", wanted=wanted, remedy="leave it out")
        if of_pages:
            _require_step(g, named, form)
        else:
            for name in _ROPE:
                if named[name] is None:
                    raise OptionError(name, got="None", wanted="a row per token", remedy="pass it")
            GatedAttentionBlockSparse.bind(*_own(named), shape=options["shape"], form=form)
        bound: dict[str, Any] = dict(named)
        return cls(**bound, shape=tuple(options["shape"]), form=form, source=source)

    @property
    def own(self) -> GatedAttentionBlockSparse:
        """The call without pages: what tokens see of their own keys."""
        named = {name: getattr(self, name) for name in self.operands}
        return GatedAttentionBlockSparse.bind(*_own(named), shape=self.shape, form=self.form)

    @property
    def shared(self) -> bool:
        """Whether the tokens of a step share their sequence's list."""
        return self.block_ids is not None and self.block_ids.shape[:-1] == self.h.shape[:1] and self.source == "paged"

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The results that there are, the pools and caches with the new rows."""
        (batch, tokens), qsa = self.extents, self.qsa
        if self.source == KV_SOURCE_SELF:
            out, lse, *rest = self.own.outputs
        else:
            lse_shape, rows = (batch, self.geometry.h_q, tokens), batch * tokens
            out = compact("out", self.h.shape, self.h.dtype, self.device)
            lse = compact("lse", lse_shape, statistics_dtype(self.h), self.device)
            kinds: dict[str, tuple[tuple[int, ...], Any]] = {
                "index_k_raw": ((rows, qsa.index_head_dim), self.h.dtype),
                "block_ids_out": ((rows, qsa.top_k), dtype("int32")),
                "block_lens_out": ((rows,), dtype("int32")),
            }
            for name in CACHES[:2]:
                cache = getattr(self, name)
                if cache is not None:
                    kinds[name] = (cache.shape, cache.dtype)
            rest = [compact(name, *kinds[name], self.device) for name in present(self.geometry, self.source)[4:]]
        pools = (compact(x.name, x.shape, x.dtype, self.device) for x in (self.k_cache, self.v_cache))
        return (out, lse, *pools, *rest)

    @property
    def flops(self) -> int:
        """Both projections, and attention to full lists."""
        g, (batch, tokens) = self.geometry, self.extents
        projections = 2 * g.d_model * (g.n_qkvg + g.h_q * g.d_head)
        return batch * tokens * (projections + 4 * self.qsa.identity_bound * g.h_q * g.d_head)


def _own(named: dict[str, TensorSpec | None]) -> tuple[TensorSpec | None, ...]:
    return tuple(named[name] for name in GatedAttentionBlockSparse.operands)


SPARSE_PAGED = Op(
    name="gated_attention_block_paged_sparse_forward",
    package="cudnn-fe-attention",
    problem=GatedAttentionBlockPagedSparse,
    reference="cudnn_fe.attention.gated_block.sparse_paged_reference:forward",
    kernels=(),
    summary="The block-sparse gated attention block in serving: pages of keys, of values and of the indexer's keys.",
    formula=r"O_t = \mathrm{softmax}(\alpha\, Q_t K_{\mathrm{cache}}[L_t]^\top)\, V_{\mathrm{cache}}[L_t], \qquad "
    r"L_t = \{j \le p_t : \lfloor j/4 \rfloor \in \mathrm{list}_t \text{ or } j \ge 4 \lfloor (p_t+1)/4 \rfloor\}",
    tensors=(*INPUT_TENSORS, *TENSORS),
    example=EXAMPLE,
    source=SOURCE,
    notes=NOTES,
    results=(
        *("out", "lse", "k_cache", "v_cache", "index_k_raw", "index_k_compressed", *CACHES[:2]),
        *("block_ids_out", "block_lens_out"),
    ),
    reference_on_gpu=True,
)
