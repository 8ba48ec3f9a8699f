"""The forward class of the gated attention block, with the parameters of cudnn-frontend 1.32."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.gated_block import lengths_form
from cudnn_fe.attention.gated_block.declarations import MxQuantSpec, QuantSpec, factors_of, formats_of, fp4_pairs
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.legacy_lists import LISTS
from cudnn_fe.attention.gated_block.legacy_pages import PAGES
from cudnn_fe.attention.gated_block.legacy_records import RecordForms
from cudnn_fe.attention.gated_block.legacy_sparse_pages import SparsePageForms
from cudnn_fe.attention.gated_block.lifecycle import check_packing, lengths_spec
from cudnn_fe.attention.gated_block.op import FORWARD, frozen
from cudnn_fe.attention.gated_block.paged_op import KV_SOURCE_SELF
from cudnn_fe.attention.gated_block.paging import LiveTokens, Paging
from cudnn_fe.attention.gated_block.record import SavedForBackward
from cudnn_fe.attention.gated_block.serving import DECODE_ROUTE_POLICIES, ServingEnvelope, serving_envelope
from cudnn_fe.attention.gated_block.sparse_paged_op import CACHES
from cudnn_fe.attention.operands import check_samples, deliver, require_flag
from cudnn_fe.core.call import call
from cudnn_fe.core.choose import choose
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tensor import spec_of

__all__ = ["GatedAttentionBlockFwd"]

_BY_TOKEN = (0, 4, 5)
_ROPE = ("cos", "sin")
_TOKENS = ("h", *_ROPE)
_SAMPLES = ("h", "w_qkvg", "w_q_norm", "w_k_norm", "cos", "sin", "w_o")


def _rows(x: Any, count: int) -> Any:
    """The first packed tokens of (T, C) or (1, T, C)."""
    return x[..., :count, :]


class GatedAttentionBlockFwd(RecordForms, SparsePageForms):
    """Class API of `gated_attention_block_forward`: samples, ``check_support``, ``compile``, ``execute``.

    Args:
        sample_h: A tensor like h, and so on.
        sample_w_qkvg: The first weight.
        sample_w_q_norm: Weight of the queries' norm, or None.
        sample_w_k_norm: Weight of the keys' norm, or None.
        sample_cos: Cosines.
        sample_sin: Sines.
        sample_w_o: Output projection.
        sample_out: The output.
        geometry: Extents and mask.
        return_lse: Whether ``execute`` writes the log-sum-exp.
        save_for_backward: Whether it fills a record.
        seq_lens_present: Whether it gets lengths of padded sequences.
        inplace_qkv: Hint; not True in training.
        fuse_norm_rope: Hint; not in training.
        fuse_gate: Hint; not in training.
        saved_gate_copy: Whether the record has a copy of the gates in place of the projection.
        thd: Whether h packs sequences.
        num_sequences: Packed sequences.
        max_seq_len: Tokens of the longest.
        cu_seqlens: Whether their lengths come as offsets.
        use_pdl: Hint.
        decode_split_kv: Hint.
        quant: Factors of E4M3 operands: one per tensor, or MXFP8 with packed scales, and FP4 weights.
        sample_h_sf: Packed scales of h, of MXFP8 blocks.
        sample_w_qkvg_sf: Packed scales of the first weight, likewise.
        sample_w_o_sf: Packed scales of an FP4 last weight.
        paged_kv_page_size: Tokens of a page, a multiple of 16: keys and values are written to pages; 0 for none.
        kv_source: ``"self"``, or ``"paged"``: tokens see what the pages hold.
        token_capacity: Packed tokens that there are at most, where calls may use fewer.
        sample_k_cache: A pool like that of the keys, or None.
        sample_v_cache: Likewise of the values.
        sample_block_table: A table like that of the pages, or None.
        max_kv_len: Hint.
        fuse_cache_write: Hint.
        fuse_prepare: Hint.
        kv_cache_dtype: Type of the pools: None for that of h, or E4M3.
        decode_route_policy: Hint.
        decode_q_tile_max: Hint.
        fuse_norm_rope_small_m: Hint.
        fuse_cache_write_small_m: Hint.
        sample_index_kv_cache: Pages like those of an indexer's keys, of steps with one.
        sample_index_state_cache: Rings like those of its raw keys, likewise.
        sample_index_state_block_table: A table like that of the rings, likewise.
        index_state_slot_mapping_present: Whether ``execute`` gets the rings' rows.
        index_commit_present: Not served.
        rope_position_tables_only: Whether it gets no ``cos`` and ``sin``: rotations are read by place.
    """

    def __init__(
        self,
        sample_h: Any,
        sample_w_qkvg: Any,
        sample_w_q_norm: Any,
        sample_w_k_norm: Any,
        sample_cos: Any,
        sample_sin: Any,
        sample_w_o: Any,
        sample_out: Any,
        geometry: GatedAttentionBlockGeometry,
        *,
        return_lse: bool = False,
        save_for_backward: bool = False,
        seq_lens_present: bool = False,
        inplace_qkv: bool | None = None,
        fuse_norm_rope: bool = False,
        fuse_gate: bool = False,
        saved_gate_copy: bool = False,
        thd: bool = False,
        num_sequences: int | None = None,
        max_seq_len: int | None = None,
        cu_seqlens: bool = False,
        use_pdl: bool | None = None,
        decode_split_kv: int | None = None,
        quant: QuantSpec | MxQuantSpec | None = None,
        sample_h_sf: Any = None,
        sample_w_qkvg_sf: Any = None,
        sample_w_o_sf: Any = None,
        paged_kv_page_size: int = 0,
        kv_source: str = KV_SOURCE_SELF,
        token_capacity: int | None = None,
        sample_k_cache: Any = None,
        sample_v_cache: Any = None,
        sample_block_table: Any = None,
        max_kv_len: int | None = None,
        fuse_cache_write: bool | None = None,
        fuse_prepare: bool | None = None,
        kv_cache_dtype: Any = None,
        decode_route_policy: str | None = None,
        decode_q_tile_max: int | None = None,
        fuse_norm_rope_small_m: bool | None = None,
        fuse_cache_write_small_m: bool | None = None,
        sample_index_kv_cache: Any = None,
        sample_index_state_cache: Any = None,
        sample_index_state_block_table: Any = None,
        index_state_slot_mapping_present: bool = False,
        index_commit_present: bool = False,
        rope_position_tables_only: bool = False,
    ) -> None:
        super().__init__()
        del use_pdl, decode_split_kv, max_kv_len, fuse_cache_write, fuse_prepare
        del decode_q_tile_max, fuse_norm_rope_small_m, fuse_cache_write_small_m
        require_one_of(decode_route_policy, "decode_route_policy", DECODE_ROUTE_POLICIES)
        flags = {"return_lse": return_lse, "save_for_backward": save_for_backward, "thd": thd, "cu_seqlens": cu_seqlens}
        for name, value in flags.items():
            require_flag(value, name)
        training = save_for_backward
        rules = (
            ("inplace_qkv", inplace_qkv is True and training, "None or False in training"),
            ("fuse_norm_rope", fuse_norm_rope and training, "False in training"),
            ("fuse_gate", fuse_gate and training, "False in training"),
            ("fuse_norm_rope", fuse_norm_rope and inplace_qkv is False, "False where inplace_qkv is False"),
            ("saved_gate_copy", saved_gate_copy and not training, "False without save_for_backward"),
            ("seq_lens_present", seq_lens_present and thd, "False with thd, whose lengths are always there"),
        )
        for name, broken, wanted in rules:
            if broken:
                raise OptionError(name, got="True", wanted=wanted, remedy="leave it out")
        if quant is not None:
            sample_w_qkvg, sample_w_o = fp4_pairs(sample_w_qkvg, "w_qkvg"), fp4_pairs(sample_w_o, "w_o")
        samples = sample_h, sample_w_qkvg, sample_w_q_norm, sample_w_k_norm, sample_cos, sample_sin, sample_w_o
        self._specs = [None if x is None else spec_of(x, n) for x, n in zip(samples, _SAMPLES, strict=True)]
        self._out = spec_of(sample_out, "out")
        self.geometry, self._form = geometry, lengths_form(thd, cu_seqlens)
        self._lse, self._training, self._lengths, self._copies = return_lse, training, seq_lens_present, saved_gate_copy
        self._packing = num_sequences, max_seq_len
        factors_of(quant)  # or there is none of that kind
        self._quant = quant
        fused = [name for name, on in (("fuse_norm_rope", fuse_norm_rope), ("fuse_gate", fuse_gate)) if on]
        if quant is not None and fused and (len(fused) == 1 or thd):
            wanted = "neither with packed sequences" if len(fused) == 2 else "both of fuse_norm_rope and fuse_gate"
            raise NotYetSupportedError(fused[0], got="True with quant", wanted=wanted, remedy="leave both out")
        if isinstance(quant, MxQuantSpec) and fused and quant.scale_o != 1.0:
            got = f"{quant.scale_o} with a fused gate"
            raise NotYetSupportedError("scale_o", got=got, wanted="1.0", remedy="leave fuse_gate out")
        pools = (sample_k_cache, sample_v_cache, sample_block_table)
        self._paging = Paging.of(
            paged_kv_page_size, kv_source, kv_cache_dtype, pools, training=training, quantised=quant is not None
        )
        caches = (sample_index_kv_cache, sample_index_state_cache, sample_index_state_block_table)
        modes = (index_state_slot_mapping_present, index_commit_present, rope_position_tables_only)
        self._declare_caches(caches, modes)
        h = self._specs[0]
        assert h is not None
        self._live = LiveTokens.of(token_capacity, thd=thd, training=training, tokens=h.shape[-2])
        scales = ((sample_h_sf, "h_sf"), (sample_w_qkvg_sf, "w_qkvg_sf"), (sample_w_o_sf, "w_o_sf"))
        self._scales = [None if x is None else spec_of(x, name) for x, name in scales]

    def _validate(self) -> None:
        h = self._specs[0]
        assert h is not None
        lengths = None
        if self._form is not None:
            check_packing(h.shape[-2], *self._packing)
            lengths = lengths_spec(self._form, self._packing[0] or 1, h.device)
        elif self._lengths:
            lengths = lengths_spec(None, h.shape[0], h.device)
        sparse = getattr(self.geometry, "qsa", None) is not None
        frozen(self.geometry, sparse=sparse)  # or it is no geometry
        if self._paging is not None:
            (self._validate_sparse_pages if sparse else self._validate_pages)(self._paging, h, lengths)
            return
        if sparse:
            self._validate_sparse(h, lengths)
            return
        options = {"shape": frozen(self.geometry), "form": self._form, "training": self._training}
        options |= dict(formats_of(self._quant))
        problem = FORWARD.bind(*self._specs, lengths, *self._scales, **options)
        choose(FORWARD, problem)
        outputs = problem.outputs
        check_samples(problem, (self._out, *[None] * (len(outputs) - 1)))
        self._options = tuple(options.items())

    @classmethod
    def serving_envelope(
        cls,
        geometry: GatedAttentionBlockGeometry,
        dtype: Any,
        device: Any,
        *,
        device_cc: tuple[int, int] | None = None,
        decode_route_policy: str | None = None,
        decode_q_tile_max: int | None = None,
    ) -> ServingEnvelope:
        """What serving blocks of a geometry are served; see `cudnn_fe.attention.gated_block.serving`."""
        return serving_envelope(
            geometry,
            dtype,
            device,
            device_cc=device_cc,
            decode_route_policy=decode_route_policy,
            decode_q_tile_max=decode_q_tile_max,
        )

    def execute(
        self,
        h: Any,
        w_qkvg: Any,
        w_q_norm: Any,
        w_k_norm: Any,
        cos: Any,
        sin: Any,
        w_o: Any,
        out: Any,
        workspace: Any,
        seq_lens: Any = None,
        lse: Any = None,
        saved: SavedForBackward | None = None,
        current_stream: Any = None,
        h_sf: Any = None,
        w_qkvg_sf: Any = None,
        w_o_sf: Any = None,
        *,
        k_cache: Any = None,
        v_cache: Any = None,
        block_table: Any = None,
        kv_lens: Any = None,
        slot_mapping: Any = None,
        num_tokens_live: int | None = None,
        k_scale: Any = None,
        v_scale: Any = None,
        block_ids: Any = None,
        block_lens: Any = None,
        w_iq_norm: Any = None,
        w_ik_norm: Any = None,
        index_k_compressed: Any = None,
        block_ids_out: Any = None,
        block_lens_out: Any = None,
        index_k_raw: Any = None,
        index_kv_cache: Any = None,
        index_state_cache: Any = None,
        index_state_block_table: Any = None,
        index_state_slot_mapping: Any = None,
        cos_pos: Any = None,
        sin_pos: Any = None,
        n_commit: Any = None,
    ) -> None:
        """Write the output, and what was declared beside it.

        Args:
            h: Hidden states.
            w_qkvg: The first weight.
            w_q_norm: Weight of the queries' norm, or None.
            w_k_norm: Weight of the keys' norm, or None.
            cos: Cosines.
            sin: Sines.
            w_o: Output projection.
            out: The output's buffer.
            workspace: uint8 buffer of `get_workspace_size` bytes of a block with an indexer's columns; else not used.
            seq_lens: Lengths, where they were declared.
            lse: The log-sum-exp's buffer, where it was declared.
            saved: The record whose arrays are filled, where it was declared.
            current_stream: Launch stream for CUDA tensors.
            h_sf: Packed scales of h, of MXFP8 blocks.
            w_qkvg_sf: Packed scales of the first weight, likewise.
            w_o_sf: Packed scales of an FP4 last weight.
            k_cache: Pool of keys, written to, where pages were declared; so are the others up to ``v_scale``.
            v_cache: Pool of values.
            block_table: Pages of each sequence, with ``kv_source="paged"``.
            kv_lens: Keys of each sequence in its pages, likewise.
            slot_mapping: The slot of every token.
            num_tokens_live: Packed tokens that this call uses, with ``token_capacity``; tensors may have these rows
                alone, and the rest of ``out`` is left as it is.
            k_scale: Factor of E4M3 keys.
            v_scale: Factor of E4M3 values.
            block_ids: Blocks of each token, of a sparse block whose lists are the caller's.
            block_lens: How many of them count, or None.
            w_iq_norm: Weight of the norm of the indexer's queries, of a sparse block with an indexer.
            w_ik_norm: Likewise of its keys.
            index_k_compressed: Buffer for the indexer's keys of padded sequences, or None; rows past S // 4 are left.
            block_ids_out: Buffer for the indexer's lists, or None.
            block_lens_out: Buffer for their lengths, or None.
            index_k_raw: Pool of raw keys (pages, P, index_head_dim), written to, of blocks over pages with an indexer's
                columns; not of steps with an indexer.
            index_kv_cache: Pages of the indexer's keys, written to, of steps with an indexer; so are the next.
            index_state_cache: Rings of its raw keys, written to.
            index_state_block_table: The ring of each sequence.
            index_state_slot_mapping: The rings' row of every token, where it was declared.
            cos_pos: Cosines of every place.
            sin_pos: Sines.
            n_commit: None.
        """
        self._require_compiled()
        if n_commit is not None:
            raise OptionError("n_commit", got="a value", wanted="None: all is committed", remedy="leave it out")
        if self._quant is not None:
            w_qkvg, w_o = fp4_pairs(w_qkvg, "w_qkvg"), fp4_pairs(w_o, "w_o")
        operands = (h, w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o)
        self._live.check(num_tokens_live, quantised=self._quant is not None)
        if num_tokens_live is not None:
            out = _rows(out, num_tokens_live)
            operands = tuple(_rows(x, num_tokens_live) if i in _BY_TOKEN else x for i, x in enumerate(operands))
        self._check_like(operands, seq_lens, num_tokens_live)
        given_pages = (k_cache, v_cache, slot_mapping, block_table, kv_lens, k_scale, v_scale)
        pages = dict(zip(PAGES, given_pages, strict=True))
        lists = (block_ids, block_lens, w_iq_norm, w_ik_norm)
        found = (index_k_compressed, block_ids_out, block_lens_out)
        given_caches = (index_kv_cache, index_state_cache, index_state_block_table, index_state_slot_mapping)
        caches = dict(zip(CACHES, (*given_caches, cos_pos, sin_pos), strict=True))
        caches["index_k_raw"] = index_k_raw
        buffers = (out, lse, *found)
        if self._paging is not None and self.geometry.qsa is not None:
            if num_tokens_live is not None:
                pages["slot_mapping"] = slot_mapping[:num_tokens_live]
            given_lists = (pages, lists, caches, buffers)
            self._execute_sparse_pages(self._paging, operands, seq_lens, *given_lists, current_stream)
            return
        for name, given_cache in caches.items():
            if given_cache is not None:
                raise OptionError(name, got="a tensor", wanted="None in this form", remedy="leave it out")
        if self.geometry.qsa is not None:
            self._execute_lists(operands, seq_lens, lists, buffers, workspace, current_stream)
            return
        for name, given_list in zip(LISTS, (*lists, *found), strict=True):
            if given_list is not None:
                raise OptionError(name, got="a tensor", wanted="None without qsa", remedy="declare a QsaSpec")
        if self._paging is not None:
            if num_tokens_live is not None:
                pages["slot_mapping"] = slot_mapping[:num_tokens_live]
            self._execute_pages(self._paging, operands, seq_lens, pages, (out, lse), current_stream)
            return
        for name, given_page in pages.items():
            if given_page is not None:
                wanted = "None without paged_kv_page_size"
                raise OptionError(name, got="a tensor", wanted=wanted, remedy="declare the pages' size")
        self._check_record(h, saved, seq_lens, lse)
        given = (*operands, seq_lens, h_sf, w_qkvg_sf, w_o_sf)
        results = call(FORWARD, given, self._options, factors_of(self._quant), stream=current_stream)
        deliver(results[:1], (out,), ("out",), stream=current_stream)
        if lse is not None:
            deliver(results[1:2], (lse,), ("lse",), stream=current_stream)
        if saved is not None:
            self._fill(saved, results[1:], current_stream)

    def _check_like(self, operands: tuple[Any, ...], seq_lens: Any, live: int | None) -> None:
        for x, spec, name in zip(operands, self._specs, _SAMPLES, strict=True):
            if self._places_only and name in _ROPE and x is None:
                continue
            found = None if x is None else spec_of(x, name)
            if found is None or spec is None:
                same = found is spec
            else:
                shape = spec.shape
                if live is not None and name in _TOKENS:
                    shape = (*shape[:-2], live, shape[-1])
                same = (found.shape, found.dtype, found.device) == (shape, spec.dtype, spec.device)
            if not same:
                raise ShapeError(name, got=str(found), wanted=f"{spec}, as the sample", remedy="make another block")
        if (seq_lens is not None) != (self._lengths or self._form is not None):
            wanted = "None, as declared" if seq_lens is not None else "lengths, as declared"
            raise OptionError("seq_lens", got="the opposite", wanted=wanted, remedy="declare what is passed")
