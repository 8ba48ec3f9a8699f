"""What the forward class does for blocks over pages, with the parameters of cudnn-frontend 1.32."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.gated_block.legacy_lists import ListForms
from cudnn_fe.attention.gated_block.op import frozen
from cudnn_fe.attention.gated_block.paged import paged_forward
from cudnn_fe.attention.gated_block.paged_op import PAGED
from cudnn_fe.attention.gated_block.paging import Paging
from cudnn_fe.attention.operands import check_samples, deliver
from cudnn_fe.core.choose import choose
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["PAGES", "PageForms"]

PAGES = ("k_cache", "v_cache", "slot_mapping", "block_table", "kv_lens", "k_scale", "v_scale")


class PageForms(ListForms):
    """A forward class that may be of a block over pages."""

    _packing: tuple[int | None, int | None]

    def _validate_pages(self, paging: Paging, h: TensorSpec, lengths: TensorSpec | None) -> None:
        g, tokens = self.geometry, h.size // max(self.geometry.d_model, 1)
        sequences = (self._packing[0] or 1) if self._form is not None else h.shape[0]
        pages = paging.specs(h, g.h_kv, g.d_head, tokens, sequences)
        options = {"shape": frozen(g), "form": self._form, "source": paging.source}
        problem = PAGED.bind(*self._specs, lengths, *pages, **options)
        choose(PAGED, problem)
        check_samples(problem, (self._out, None, None, None))

    def _execute_pages(
        self,
        paging: Paging,
        operands: tuple[Any, ...],
        seq_lens: Any,
        pages: dict[str, Any],
        buffers: tuple[Any, Any],
        stream: Any,
    ) -> None:
        paging.check(pages["k_cache"], pages["v_cache"])
        self._require_lse(buffers[1])
        given = tuple(pages[name] for name in PAGES)
        results = paged_forward((*operands, seq_lens), given, self.geometry, self._form, paging.source, stream=stream)
        deliver((results["out"], results["lse"]), buffers, ("out", "lse"), stream=stream)
