"""The backward class of the gated attention block, with the parameters of cudnn-frontend 1.32."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.gated_block import (
    check_lengths,
    check_recompute,
    gradients,
    lengths_form,
    refuse_quantised,
    require_record,
)
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.lifecycle import Block, check_packing, check_sample, refuse_modes
from cudnn_fe.attention.gated_block.op import BACKWARD, frozen
from cudnn_fe.attention.gated_block.record import RecomputePolicy, SavedForBackward
from cudnn_fe.attention.operands import deliver, statistics_dtype
from cudnn_fe.core.choose import choose
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.tensor import spec_of

__all__ = ["GatedAttentionBlockBwd"]


class GatedAttentionBlockBwd(Block):
    """Class API of `gated_attention_block_backward`: samples, ``check_support``, ``compile``, ``execute``.

    Args:
        sample_dy: A tensor like the output's gradient.
        sample_saved: A record like the forward's.
        sample_w_qkvg: The first weight.
        sample_w_q_norm: Weight of the queries' norm, or None.
        sample_w_k_norm: Weight of the keys' norm, or None.
        sample_cos: Cosines.
        sample_sin: Sines.
        sample_w_o: Output projection.
        geometry: Extents and mask.
        recompute: Hint.
        need_dh: Whether the gradient of h is wanted; the others likewise.
        need_dw_qkvg: Of the first weight.
        need_dw_o: Of the output projection.
        need_dw_norms: Of the norms' weights; None is where there are any.
        seq_lens_present: Whether the record has lengths of padded sequences.
        dw_norm_dtype: float32.
        fuse_gate_bwd: Hint.
        fuse_wgrad_overlap: Hint.
        thd: Whether the record is of packed sequences.
        num_sequences: Packed sequences.
        max_seq_len: Tokens of the longest.
        cu_seqlens: Whether their lengths are offsets.
        quant: Must be None.
        grad_scaling: Of quantised blocks alone.
        grad_scale_margin_log2: Of quantised blocks alone.
    """

    def __init__(
        self,
        sample_dy: Any,
        sample_saved: SavedForBackward,
        sample_w_qkvg: Any,
        sample_w_q_norm: Any,
        sample_w_k_norm: Any,
        sample_cos: Any,
        sample_sin: Any,
        sample_w_o: Any,
        geometry: GatedAttentionBlockGeometry,
        *,
        recompute: RecomputePolicy = RecomputePolicy.RECOMPUTE_QK_PRE,
        need_dh: bool = True,
        need_dw_qkvg: bool = True,
        need_dw_o: bool = True,
        need_dw_norms: bool | None = None,
        seq_lens_present: bool = False,
        dw_norm_dtype: Any = "float32",
        fuse_gate_bwd: bool = False,
        fuse_wgrad_overlap: bool = False,
        thd: bool = False,
        num_sequences: int | None = None,
        max_seq_len: int | None = None,
        cu_seqlens: bool = False,
        quant: Any = None,
        grad_scaling: str = "current",
        grad_scale_margin_log2: int = 0,
    ) -> None:
        super().__init__()
        del fuse_gate_bwd, fuse_wgrad_overlap
        refuse_quantised(quant=quant)
        if grad_scaling != "current" or grad_scale_margin_log2:
            got = f"{grad_scaling!r}, {grad_scale_margin_log2}"
            raise OptionError("grad_scaling", got=got, wanted="the default without quant", remedy="leave it out")
        check_recompute(recompute)
        require_record(sample_saved)
        norms = geometry.qk_norm if need_dw_norms is None else need_dw_norms
        self._needs = need_dh, need_dw_qkvg, need_dw_o, norms
        self.geometry, self._form = geometry, lengths_form(thd, cu_seqlens)
        weights = (sample_w_qkvg, sample_w_q_norm, sample_w_k_norm, sample_cos, sample_sin, sample_w_o)
        s = sample_saved
        arrays = (sample_dy, s.h, *weights, s.proj_slab, s.o, s.lse, s.rstd_q, s.rstd_k, s.seq_lens)
        names = BACKWARD.problem.operands
        self._specs = [None if x is None else spec_of(x, n) for x, n in zip(arrays, names, strict=True)]
        if s.seq_lens_form != self._form or (s.seq_lens is not None) != (seq_lens_present or thd):
            raise OptionError(
                "sample_saved",
                got=f"lengths {s.seq_lens_form!r}, {'there' if s.seq_lens is not None else 'absent'}",
                wanted="what seq_lens_present, thd and cu_seqlens declare",
                remedy="declare the forward's",
            )
        if thd:
            check_packing(s.h.shape[-2], num_sequences, max_seq_len)
        if dtype(dw_norm_dtype, operand="dw_norm_dtype").name != statistics_dtype(spec_of(s.h, "h")).name:
            raise OptionError("dw_norm_dtype", got=str(dw_norm_dtype), wanted="float32", remedy="leave it out")

    def _validate(self) -> None:
        options = {"shape": frozen(self.geometry), "form": self._form, "needs": self._needs}
        choose(BACKWARD, BACKWARD.bind(*self._specs, **options))

    def quant_scalars(self, workspace: Any) -> dict[str, Any]:
        """The factors of a quantised block, which none is."""
        raise OptionError("quant_scalars", got="a call", wanted="a quantised block", remedy="make one with quant")

    def execute(
        self,
        dy: Any,
        saved: SavedForBackward,
        w_qkvg: Any,
        w_q_norm: Any,
        w_k_norm: Any,
        cos: Any,
        sin: Any,
        w_o: Any,
        dh: Any = None,
        dw_qkvg: Any = None,
        dw_o: Any = None,
        dw_q_norm: Any = None,
        dw_k_norm: Any = None,
        workspace: Any = None,
        seq_lens: Any = None,
        current_stream: Any = None,
        **options: Any,
    ) -> None:
        """Write the gradients that were declared.

        Args:
            dy: Gradient of the output.
            saved: The forward's record.
            w_qkvg: The first weight.
            w_q_norm: Weight of the queries' norm, or None.
            w_k_norm: Weight of the keys' norm, or None.
            cos: Cosines.
            sin: Sines.
            w_o: Output projection.
            dh: Buffer for the gradient of h; None exactly where it was not declared, and so are the others.
            dw_qkvg: Of the first weight.
            dw_o: Of the output projection.
            dw_q_norm: Of the queries' norm.
            dw_k_norm: Of the keys' norm.
            workspace: Not used.
            seq_lens: None, or the record's.
            current_stream: Launch stream for CUDA tensors.
            options: What quantised blocks take; not served.
        """
        self._require_compiled()
        refuse_modes(options)
        del workspace
        require_record(saved)
        check_lengths(saved, seq_lens, thd=self._form is not None)
        names = ("dh", "dw_qkvg", "dw_o", "dw_q_norm", "dw_k_norm")
        buffers = (dh, dw_qkvg, dw_o, dw_q_norm, dw_k_norm)
        for name, buffer, needed in zip(names, buffers, (*self._needs, self._needs[3]), strict=True):
            if (buffer is not None) != needed:
                wanted = "a buffer, as declared" if needed else "None, as declared"
                raise OptionError(name, got="the opposite", wanted=wanted, remedy="declare what is wanted")
        arrays = (dy, saved.h, w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o)
        for x, spec in zip(arrays, self._specs, strict=False):
            if x is not None and spec is not None:
                check_sample(spec_of(x, spec.name), spec)
        weights = (w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o)
        results = gradients(dy, saved, weights, self.geometry, self._needs, stream=current_stream)
        there = [name for name in names if results[name] is not None]
        chosen = tuple(buffer for buffer in buffers if buffer is not None)
        deliver(tuple(results[name] for name in there), chosen, tuple(there), stream=current_stream)
