"""Two sequences that a block-sparse gated attention block serves: pages, rings, and calls over parts of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_fe import attention
from cudnn_fe_testkit.gated_block import NAMES, block_operands
from cudnn_fe_testkit.inputs import Framework, convert, normal

__all__ = ["BY_TOKEN", "CAPACITY", "LENGTHS", "NORMS", "PAGES", "RINGS", "Server"]

# Arguments are spread from lists and tables here, which the type checker cannot count.
served: Any = attention.gated_attention_block_paged_sparse_forward

LENGTHS = (33, 45)  # of two sequences
PAGES = np.asarray([[3, 1, 7], [0, 5, 6]], np.int32)  # in no order
RINGS, CAPACITY = np.asarray([[2], [0]], np.int32), 11
NORMS = normal((64,), seed=40), normal((64,), seed=41)
BY_TOKEN = ("h", "cos", "sin")


class Server:
    """Two sequences, their pages and rings, full of NaN at first, and calls over parts of them."""

    def __init__(self, g: Any, framework: Framework, kind: str = "float32", pool_kind: Any = None) -> None:
        self.g, self.framework = g, framework
        self.given = block_operands(g, kind, (sum(LENGTHS),))
        self.start = (0, LENGTHS[0])
        held = normal((1,), kind).dtype
        made = np.full((8, g.h_kv, 16, g.d_head), np.nan, np.float32).astype(pool_kind or held)
        self.caches: dict[str, Any] = {n: self.as_given(made) for n in ("k_cache", "v_cache")}
        self.more: dict[str, Any] = {}
        if g.qsa.index_source == "indexer":
            self.caches["index_kv_cache"] = self.as_given(np.full((8, 4, 1, 64), np.nan, np.float32).astype(held))
            self.caches["index_state_cache"] = self.as_given(np.full((3, CAPACITY, 1, 64), np.nan).astype(held))
            self.more = {
                n: self.as_given(x.astype(held)) for n, x in zip(("w_iq_norm", "w_ik_norm"), NORMS, strict=True)
            }

    def as_given(self, x: Any) -> Any:
        """A copy in the server's framework."""
        return convert(np.array(x, order="C"), self.framework)

    def rows(self, spans: list[tuple[int, int, int]]) -> list[int]:
        """Rows of spans ``(sequence, first, end)`` among all tokens."""
        return [self.start[b] + i for b, first, end in spans for i in range(first, end)]

    def operands(self, rows: list[int], batch: int) -> list[Any]:
        """The block's operands, of these tokens."""
        found = {n: x[rows].reshape(batch, -1, x.shape[-1]) if n in BY_TOKEN else x for n, x in self.given.items()}
        return [self.as_given(found[n]) for n in NAMES]

    def slots(self, spans: list[tuple[int, int, int]]) -> Any:
        """Their slots in the pages."""
        places = [int(PAGES[b, i // 16]) * 16 + i % 16 for b, first, end in spans for i in range(first, end)]
        return self.as_given(np.asarray(places, np.int32))

    def position_tables(self) -> dict[str, Any]:
        """Tables by place: those of the tokens, of each sequence's own."""
        tables = {}
        for name in ("cos", "sin"):
            table = np.zeros((2, 48, self.g.rope_dim), self.given[name].dtype)
            for b, length in enumerate(LENGTHS):
                table[b, :length] = self.given[name][self.start[b] : self.start[b] + length]
            tables[f"{name}_pos"] = self.as_given(table)
        return tables

    def run(self, spans: list[tuple[int, int, int]], paged: bool, **options: Any) -> Any:
        """Tokens ``first .. end`` of sequences, each as many."""
        operands = self.operands(self.rows(spans), len(spans))
        more: dict[str, Any] = dict(self.more)
        caches = dict(self.caches)
        if paged:
            order = [b for b, _, _ in spans]
            more["block_table"] = self.as_given(PAGES[order])
            more["kv_lens"] = self.as_given(np.asarray([end for _, _, end in spans], np.int32))
            if self.g.qsa.index_source == "indexer":
                more |= {"index_state_block_table": self.as_given(RINGS[order]), **self.position_tables()}
        else:
            caches = {n: caches[n] for n in ("k_cache", "v_cache")}
        more |= options
        source = "paged" if paged else "self"
        result = served(*operands, self.g, slot_mapping=self.slots(spans), kv_source=source, **caches, **more)
        self.caches |= {n: result[n] for n in caches}
        return result
