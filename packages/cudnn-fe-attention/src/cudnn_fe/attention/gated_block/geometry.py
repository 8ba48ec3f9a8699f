"""The extents and the mask of a gated attention block, and how the columns of its first projection are cut."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from cudnn_fe.attention.bands import Band
from cudnn_fe.attention.gated_block.declarations import QsaSpec
from cudnn_fe.core.errors import OptionError, OptionTypeError

__all__ = ["QKVG_TILE_ALIGN", "GatedAttentionBlockGeometry", "ProjBlock"]

QKVG_TILE_ALIGN = 64


class ProjBlock(IntEnum):
    """A band of the projection's columns, in their order."""

    Q = 0
    GATE = 1
    K = 2
    V = 3
    INDEX = 4


@dataclass(frozen=True)
class GatedAttentionBlockGeometry:
    """The extents and the mask of a gated attention block.

    Attributes:
        d_model: Channels of the hidden state.
        h_q: Query heads.
        h_kv: Key heads; query head h reads key head ``h // (h_q / h_kv)``.
        d_head: Channels of a head.
        rope_dim: Leading channels that are rotated.
        qk_norm_eps: Added to the mean square under the root.
        attn_scale: Factor of the scores; None is ``d_head ** -0.5``.
        is_causal: Whether tokens see themselves and what came before only.
        causal_bottom_right: Whether the diagonal ends in the last key; the same here, where keys are the queries'.
        window_left: Tokens before a token's own that it sees; -1 is all.
        window_right: Tokens after it, with ``is_causal``; -1 is none.
        qk_norm: Whether queries and keys are normalised.
        qsa: Block-sparse attention, which is not served; None.
    """

    d_model: int
    h_q: int
    h_kv: int
    d_head: int
    rope_dim: int
    qk_norm_eps: float = 1e-6
    attn_scale: float | None = None
    is_causal: bool = True
    causal_bottom_right: bool = False
    window_left: int = -1
    window_right: int = -1
    qk_norm: bool = True
    qsa: QsaSpec | None = None

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.d_head) ** -0.5 if self.attn_scale is None else self.attn_scale

    @property
    def gqa_ratio(self) -> int:
        """Query heads per key head."""
        return self.h_q // self.h_kv

    @property
    def n_qkv(self) -> int:
        """Columns of queries, keys and values."""
        return (self.h_q + 2 * self.h_kv) * self.d_head

    @property
    def n_qkvg(self) -> int:
        """Columns of the projection."""
        return sum(self.qkvg_block_widths)

    @property
    def index_band(self) -> bool:
        """Whether the projection has the indexer's columns."""
        return self.qsa is not None and self.qsa.index_band

    @property
    def qkvg_blocks(self) -> tuple[ProjBlock, ...]:
        """The projection's bands, in order."""
        return tuple(ProjBlock)[: 5 if self.index_band else 4]

    @property
    def qkvg_heads(self) -> tuple[int, ...]:
        """Heads of each band."""
        index = (self.qsa.index_heads + self.qsa.index_kv_heads,) if self.index_band and self.qsa else ()
        return (self.h_q, self.h_q, self.h_kv, self.h_kv, *index)

    @property
    def qkvg_head_dims(self) -> tuple[int, ...]:
        """Channels of a head of each band."""
        index = (self.qsa.index_head_dim,) if self.index_band and self.qsa else ()
        return (self.d_head,) * 4 + index

    @property
    def qkvg_block_widths(self) -> tuple[int, ...]:
        """Columns of each band."""
        return tuple(heads * width for heads, width in zip(self.qkvg_heads, self.qkvg_head_dims, strict=True))

    @property
    def qkvg_offsets(self) -> tuple[int, ...]:
        """First column of each band."""
        widths = self.qkvg_block_widths
        return tuple(sum(widths[:i]) for i in range(len(widths)))

    @property
    def band(self) -> Band:
        """Which keys a query sees by their places."""
        return Band(
            self.window_left if self.window_left >= 0 else None, max(self.window_right, 0) if self.is_causal else None
        )

    def block_for_column(self, c: int) -> tuple[ProjBlock, int, int]:
        """The band, the head and the channel that column ``c`` belongs to."""
        if not 0 <= c < self.n_qkvg:
            raise OptionError("c", got=str(c), wanted=f"0..{self.n_qkvg - 1}", remedy="pass a column of the projection")
        block = max(b for b in self.qkvg_blocks if self.qkvg_offsets[b] <= c)
        return block, *divmod(c - self.qkvg_offsets[block], self.qkvg_head_dims[block])

    def qkvg_tile_plan(self, tile_n: int) -> tuple[ProjBlock, ...]:
        """The band of every tile of ``tile_n`` columns; raises OptionError where a tile lies in two."""
        if tile_n < 1 or self.n_qkvg % tile_n:
            wanted = f"a divisor of {self.n_qkvg} columns"
            raise OptionError("tile_n", got=str(tile_n), wanted=wanted, remedy=f"use {QKVG_TILE_ALIGN}")
        plan = []
        for first in range(0, self.n_qkvg, tile_n):
            bands = {self.block_for_column(c)[0] for c in (first, first + tile_n - 1)}
            if len(bands) > 1:
                names = " and ".join(sorted(b.name for b in bands))
                wanted = "tiles inside one band"
                raise OptionError(
                    "tile_n", got=f"{tile_n}: a tile of {names}", wanted=wanted, remedy="use smaller tiles"
                )
            plan.append(bands.pop())
        return tuple(plan)

    def validate(self) -> None:
        """Raises OptionError or OptionTypeError unless a block can have this geometry."""
        given: object = self.qsa
        if given is not None and not isinstance(given, QsaSpec):
            got = type(given).__qualname__
            raise OptionTypeError("qsa", got=got, wanted="a QsaSpec, or None", remedy="leave it out")
        rules = [
            *((f"{name}", getattr(self, name), getattr(self, name) > 0, "above 0") for name in _EXTENTS),
            ("h_q", self.h_q, self.h_kv > 0 and self.h_q % self.h_kv == 0, f"a multiple of h_kv = {self.h_kv}"),
            ("rope_dim", self.rope_dim, 0 <= self.rope_dim <= self.d_head, f"0..{self.d_head}"),
            ("rope_dim", self.rope_dim, self.rope_dim % 2 == 0, "an even number"),
            ("qk_norm_eps", self.qk_norm_eps, self.qk_norm_eps > 0, "above 0"),
            ("attn_scale", self.attn_scale, self.attn_scale is None or self.attn_scale > 0, "above 0, or None"),
            ("qk_norm", self.qk_norm, self.qk_norm or self.rope_dim > 0, "True where nothing is rotated"),
            ("window_left", self.window_left, self.window_left >= -1, "at least -1"),
            ("window_right", self.window_right, self.window_right >= -1, "at least -1"),
            ("window_right", self.window_right, self.is_causal or self.window_right < 0, "-1 without is_causal"),
            ("causal_bottom_right", True, self.is_causal or not self.causal_bottom_right, "False without is_causal"),
        ]
        for name, value, holds, wanted in rules:
            if not holds:
                raise OptionError(name, got=repr(value), wanted=wanted, remedy="correct the geometry")
        for block, width in zip(self.qkvg_blocks, self.qkvg_block_widths, strict=True):
            if width % QKVG_TILE_ALIGN:
                raise OptionError(
                    "d_head",
                    got=f"{width} columns of {block.name}",
                    wanted=f"a multiple of {QKVG_TILE_ALIGN} in each band",
                    remedy="use more heads or wider ones",
                )
        if self.qsa is not None:
            self.qsa.validate(self)


_EXTENTS = ("d_model", "h_q", "h_kv", "d_head")
