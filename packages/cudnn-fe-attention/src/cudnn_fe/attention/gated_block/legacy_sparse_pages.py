"""What the forward class does for block-sparse attention over pages, with the parameters of cudnn-frontend 1.32."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from cudnn_fe.attention.gated_block.declarations import QsaSpec
from cudnn_fe.attention.gated_block.legacy_pages import PAGES, PageForms
from cudnn_fe.attention.gated_block.op import frozen
from cudnn_fe.attention.gated_block.paged_op import KV_SOURCE_PAGED
from cudnn_fe.attention.gated_block.paging import Paging
from cudnn_fe.attention.gated_block.sparse_op import INDEXER
from cudnn_fe.attention.gated_block.sparse_op import LISTS as OF_CALLER
from cudnn_fe.attention.gated_block.sparse_paged import sparse_paged_forward
from cudnn_fe.attention.gated_block.sparse_paged_op import CACHES, SPARSE_PAGED
from cudnn_fe.attention.operands import check_samples, compact, deliver, require_flag
from cudnn_fe.attention.rows import set_rows
from cudnn_fe.core.choose import choose
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["CACHE_FLAGS", "CACHE_SAMPLES", "SparsePageForms"]

CACHE_SAMPLES = tuple(f"sample_{name}" for name in CACHES[:3])
CACHE_FLAGS = ("index_state_slot_mapping_present", "index_commit_present", "rope_position_tables_only")


class SparsePageForms(PageForms):
    """A forward class that may be of a sparse block over pages."""

    _paging: Paging | None
    _cache_samples: dict[str, TensorSpec]
    _ring_slots = _places_only = False

    def _declare_caches(self, samples: tuple[Any, ...], flags: tuple[Any, ...]) -> None:
        """Takes what steps with an indexer declare; raises where a block is of another kind."""
        named, options = dict(zip(CACHE_SAMPLES, samples, strict=True)), dict(zip(CACHE_FLAGS, flags, strict=True))
        for name, value in options.items():
            require_flag(value, name)
        stepping = self._stepping
        for name, value in (*named.items(), *options.items()):
            if (value is not None and value is not False) and not stepping:
                wanted = "its default but for steps with an indexer: index_source 'indexer' and kv_source 'paged'"
                raise OptionError(name, got="a value", wanted=wanted, remedy="leave it out")
            if value is None and stepping:
                raise OptionError(name, got="None", wanted="a tensor like the cache's", remedy="pass the sample")
        if options["index_commit_present"]:
            wanted = "False: every token of a step is committed"
            raise NotYetSupportedError("index_commit_present", got="True", wanted=wanted, remedy="step again")
        self._cache_samples = {
            name.removeprefix("sample_"): spec_of(x, name.removeprefix("sample_"))
            for name, x in named.items()
            if x is not None
        }
        self._ring_slots, self._places_only = options[CACHE_FLAGS[0]], options[CACHE_FLAGS[2]]

    @property
    def _stepping(self) -> bool:
        qsa = getattr(self.geometry, "qsa", None)
        indexed = isinstance(qsa, QsaSpec) and qsa.index_source == "indexer"
        return indexed and self._paging is not None and self._paging.source == KV_SOURCE_PAGED

    def _validate_sparse_pages(self, paging: Paging, h: TensorSpec, lengths: TensorSpec | None) -> None:
        g, tokens, whole = self.geometry, h.size // max(self.geometry.d_model, 1), dtype("int32")
        assert g.qsa is not None
        sequences = (self._packing[0] or 1) if self._form is not None else h.shape[0]
        pages = paging.specs(h, g.h_kv, g.d_head, tokens, sequences)
        shape = frozen(g, sparse=True)
        more: dict[str, TensorSpec] = dict(self._cache_samples)
        if g.qsa.index_source == "caller":
            lead: tuple[int, ...] = (tokens,)
            if paging.source == KV_SOURCE_PAGED and self._form is None and g.qsa.index_list_form != "per_row":
                lead = (sequences,) if g.qsa.index_list_form == "shared" or h.shape[1] <= 4 else lead
            more["block_ids"] = compact("block_ids", (*lead, g.qsa.top_k), whole, h.device)
        else:
            more |= {name: compact(name, (g.qsa.index_head_dim,), h.dtype, h.device) for name in INDEXER}
        specs = list(self._specs)
        if self._stepping:
            table = pages[3]
            reach = (1, table.shape[1] * paging.page_size, g.rope_dim)
            more |= {name: compact(name, reach, h.dtype, h.device) for name in CACHES[4:]}
            if self._ring_slots:
                more[CACHES[3]] = compact(CACHES[3], (tokens,), whole, h.device)
        rest = (more.get(name) for name in (*OF_CALLER, *INDEXER, *CACHES))
        problem = SPARSE_PAGED.bind(*specs, lengths, *pages, *rest, shape=shape, form=self._form, source=paging.source)
        choose(SPARSE_PAGED, problem)
        check_samples(problem, (self._out, *[None] * (len(problem.outputs) - 1)))

    def _execute_sparse_pages(
        self,
        paging: Paging,
        operands: tuple[Any, ...],
        seq_lens: Any,
        pages: dict[str, Any],
        lists: tuple[Any, ...],
        caches: dict[str, Any],
        buffers: tuple[Any, ...],
        stream: Any,
    ) -> None:
        paging.check(pages["k_cache"], pages["v_cache"])
        caches = dict(caches)
        raw_pool = caches.pop("index_k_raw")
        self._check_execution(operands, caches, buffers)
        given = (*operands, seq_lens, *(pages[name] for name in PAGES), *lists, *caches.values())
        if raw_pool is not None or (self.geometry.index_band and not self._stepping):
            self._check_raw(raw_pool, pages["k_cache"])
        results = sparse_paged_forward(given, self.geometry, self._form, paging.source, stream=stream)
        if raw_pool is not None:
            pool = self._with_raw(raw_pool, pages["slot_mapping"], results["index_k_raw"])
            deliver((pool,), (raw_pool,), ("index_k_raw",), stream=stream)
        self._deliver_lists(results, buffers, "None in this form", stream)

    def _check_execution(self, operands: tuple[Any, ...], caches: dict[str, Any], buffers: tuple[Any, ...]) -> None:
        self._require_lse(buffers[1])
        for name, sample in self._cache_samples.items():
            found = None if caches[name] is None else spec_of(caches[name], name)
            if found is None or found.dtype != sample.dtype or found.shape[1:] != sample.shape[1:]:
                raise ShapeError(name, got=str(found), wanted=f"{sample}, as declared", remedy="pass what was declared")
        rules = (
            ("index_state_slot_mapping", caches["index_state_slot_mapping"] is not None, self._ring_slots),
            ("cos", operands[4] is None, self._places_only),
        )
        for name, found_so, declared in rules:
            if found_so != declared:
                raise OptionError(name, got="the opposite", wanted="what was declared", remedy="declare what is passed")

    def _check_raw(self, pool: Any, k_cache: Any) -> None:
        qsa = self.geometry.qsa
        wanted = (*spec_of(k_cache, "k_cache").shape[::2][:2], qsa.index_head_dim if qsa else 0)
        found = None if pool is None else spec_of(pool, "index_k_raw")
        if self._stepping or not self.geometry.index_band:
            wanted_words = "None: only prompts, and steps with lists of the caller, write it, of an indexer's columns"
            raise OptionError("index_k_raw", got="a tensor", wanted=wanted_words, remedy="leave it out")
        if found is None or found.shape != wanted:
            got = "None" if found is None else str(found.shape)
            words = f"{wanted}: (pages, P, index_head_dim)"
            raise ShapeError("index_k_raw", got=got, wanted=words, remedy="allocate a pool of raw keys")

    @staticmethod
    def _with_raw(pool: Any, slots: Any, rows: Any) -> Any:
        pages, size, width = pool.shape
        by_slot = set_rows(array_namespace(pool), pool.reshape(pages * size, width), slots, rows)
        return by_slot.reshape(pages, size, width)
