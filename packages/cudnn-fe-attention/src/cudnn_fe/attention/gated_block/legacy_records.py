"""What the forward class does with a training record."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.gated_block import require_record
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.lifecycle import Block
from cudnn_fe.attention.gated_block.record import SavedForBackward, saved_slab_views
from cudnn_fe.attention.operands import deliver
from cudnn_fe.core.errors import OptionError

__all__ = ["RecordForms"]


class RecordForms(Block):
    """A forward class that may fill a record."""

    geometry: GatedAttentionBlockGeometry
    _form: str | None
    _lse: bool
    _training: bool
    _copies: bool

    def _check_record(self, h: Any, saved: Any, seq_lens: Any, lse: Any) -> None:
        if (saved is not None) != self._training:
            wanted = "a record in training" if self._training else "None without save_for_backward"
            raise OptionError("saved", got="the opposite", wanted=wanted, remedy="declare what is passed")
        if saved is None:
            self._require_lse(lse)
            return
        require_record(saved)
        rules = (
            ("saved.h", saved.h is h, "the tensor passed as h"),
            ("saved.seq_lens", saved.seq_lens is seq_lens, "the tensor passed as seq_lens"),
            ("saved.seq_lens_form", saved.seq_lens_form == self._form, repr(self._form)),
            ("lse", lse is None or lse is saved.lse, "None, or saved.lse"),
            ("saved.proj_slab", (saved.proj_slab is None) == self._copies, "None exactly with saved_gate_copy"),
            ("saved.gate", saved.gate is not None or not self._copies, "a buffer with saved_gate_copy"),
            ("saved.rstd_q", (saved.rstd_q is None) != self.geometry.qk_norm, "None exactly without qk_norm"),
            ("saved.rstd_k", (saved.rstd_k is None) != self.geometry.qk_norm, "None exactly without qk_norm"),
        )
        for name, holds, wanted in rules:
            if not holds:
                raise OptionError(name, got="something else", wanted=wanted, remedy="make the record for this call")

    def _fill(self, saved: SavedForBackward, results: tuple[Any, ...], stream: Any) -> None:
        lse, slab, o, *roots = results
        pairs = [("lse", lse, saved.lse), ("o", o, saved.o)]
        pairs += list(zip(("rstd_q", "rstd_k"), roots, (saved.rstd_q, saved.rstd_k), strict=False))
        if saved.proj_slab is not None:
            pairs.append(("proj_slab", slab.reshape(tuple(saved.proj_slab.shape)), saved.proj_slab))
        else:
            q, gate, k, _ = saved_slab_views(slab, self.geometry, *o.shape[:2])
            copies = (("gate", gate, saved.gate), ("q_pre", q, saved.q_pre), ("k_pre", k, saved.k_pre))
            pairs += [row for row in copies if row[2] is not None]
        names, values, buffers = zip(*pairs, strict=True)
        deliver(values, buffers, tuple(f"saved.{name}" for name in names), stream=stream)
