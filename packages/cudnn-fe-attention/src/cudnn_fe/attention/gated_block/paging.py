"""What the forward class takes beside a dense block: pages of a cache, and bounds of packed tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_fe.attention.gated_block.paged_op import KV_SOURCE_PAGED, KV_SOURCE_SELF
from cudnn_fe.attention.operands import compact
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["LiveTokens", "Paging"]

_PAGE = 16


@dataclass(frozen=True)
class Paging:
    """Pages that a block writes to.

    Attributes:
        page_size: Tokens of a page.
        source: ``"self"`` or ``"paged"``.
        cache_dtype: Type of the cache, None for that of h.
        samples: Pools of keys and values and the table, as the samples said, each or None.
    """

    page_size: int
    source: str
    cache_dtype: str | None
    samples: tuple[TensorSpec | None, TensorSpec | None, TensorSpec | None]

    @classmethod
    def of(
        cls,
        page_size: Any,
        source: Any,
        cache_dtype: Any,
        samples: tuple[Any, Any, Any],
        *,
        training: bool,
        quantised: bool,
    ) -> Paging | None:
        """The declaration, or None where the block has no pages."""
        require_one_of(source, "kv_source", (KV_SOURCE_SELF, KV_SOURCE_PAGED))
        if isinstance(page_size, bool) or not isinstance(page_size, int) or page_size < 0 or page_size % _PAGE:
            wanted = f"a multiple of {_PAGE}, or 0"
            raise OptionError("paged_kv_page_size", got=repr(page_size), wanted=wanted, remedy="use 16, 32, 64 or 128")
        if not page_size:
            if source == KV_SOURCE_PAGED:
                wanted = "pages to write to with kv_source 'paged'"
                raise OptionError("paged_kv_page_size", got="0", wanted=wanted, remedy="declare their size")
            for name, sample in zip(("sample_k_cache", "sample_v_cache", "sample_block_table"), samples, strict=True):
                if sample is not None:
                    wanted = "None without paged_kv_page_size"
                    raise OptionError(name, got="a tensor", wanted=wanted, remedy="declare the pages' size")
            return None
        for name, given in (("save_for_backward", training), ("quant", quantised)):
            if given:
                wanted = "a bfloat16 or float16 forward with pages"
                raise NotYetSupportedError(name, got="a value", wanted=wanted, remedy="leave it out")
        kind = None if cache_dtype is None else dtype(cache_dtype, operand="kv_cache_dtype").name
        specs = (
            None if x is None else spec_of(x, n)
            for x, n in zip(samples, ("k_cache", "v_cache", "block_table"), strict=True)
        )
        k_cache, v_cache, table = specs
        return cls(page_size, source, kind, (k_cache, v_cache, table))

    @property
    def scaled(self) -> bool:
        """Whether the cache is E4M3."""
        return self.cache_dtype == "float8_e4m3fn"

    def specs(self, h: TensorSpec, heads: int, channels: int, tokens: int, sequences: int) -> tuple[Any, ...]:
        """Specs of what ``execute`` takes: those of the samples, and right ones where there are none."""
        kind = h.dtype if self.cache_dtype is None else dtype(self.cache_dtype)
        whole = dtype("int32")
        pools = [
            compact(name, (1, heads, self.page_size, channels), kind, h.device) if given is None else given
            for name, given in zip(("k_cache", "v_cache"), self.samples, strict=False)
        ]
        slots = compact("slot_mapping", (tokens,), whole, h.device)
        keys: tuple[Any, ...] = (None, None)
        if self.source == KV_SOURCE_PAGED:
            table = self.samples[2] or compact("block_table", (sequences, 1), whole, h.device)
            keys = (table, compact("kv_lens", (sequences,), whole, h.device))
        scales = (
            compact(name, (1,), dtype("float32"), h.device) if self.scaled else None for name in ("k_scale", "v_scale")
        )
        return (*pools, slots, *keys, *scales)

    def check(self, k_cache: Any, v_cache: Any) -> None:
        """Raises unless pools are of the declared pages."""
        for name, pool in (("k_cache", k_cache), ("v_cache", v_cache)):
            found = None if pool is None else spec_of(pool, name)
            if found is None or found.ndim != 4 or found.shape[2] != self.page_size:
                got = "None" if found is None else str(found.shape)
                wanted = f"(pages, Hkv, {self.page_size}, D), as declared"
                raise ShapeError(name, got=got, wanted=wanted, remedy="pass the pool that was declared")
            if self.cache_dtype is not None and found.dtype.name != self.cache_dtype:
                wanted = f"{self.cache_dtype}, as declared"
                raise OptionError("kv_cache_dtype", got=str(found.dtype), wanted=wanted, remedy="declare the pool's")


@dataclass(frozen=True)
class LiveTokens:
    """Packed tokens of which a call may use fewer than there are.

    Attributes:
        capacity: Tokens that there are at most, or None where all are used.
    """

    capacity: int | None

    @classmethod
    def of(cls, capacity: Any, *, thd: bool, training: bool, tokens: int) -> LiveTokens:
        """The declaration; raises where a block cannot be bounded."""
        if capacity is None:
            return cls(None)
        if not thd:
            wanted = "None but of packed sequences"
            raise OptionError("token_capacity", got=repr(capacity), wanted=wanted, remedy="declare thd")
        if training:
            wanted = "None in training"
            raise NotYetSupportedError("token_capacity", got=repr(capacity), wanted=wanted, remedy="leave it out")
        if capacity != tokens:
            wanted = f"{tokens}, the rows of h"
            raise OptionError("token_capacity", got=repr(capacity), wanted=wanted, remedy="fit the sample of h")
        return cls(capacity)

    def check(self, live: Any, *, quantised: bool) -> None:
        """Raises unless a call may use that many."""
        if live is None:
            return
        if quantised:
            wanted = "None with quant"
            raise NotYetSupportedError("num_tokens_live", got=repr(live), wanted=wanted, remedy="leave it out")
        if self.capacity is None:
            wanted = "None without token_capacity"
            raise OptionError("num_tokens_live", got=repr(live), wanted=wanted, remedy="declare token_capacity")
        if isinstance(live, bool) or not isinstance(live, int) or not 1 <= live <= self.capacity:
            wanted = f"an int of 1..{self.capacity}"
            raise OptionError("num_tokens_live", got=repr(live), wanted=wanted, remedy="count the tokens")
