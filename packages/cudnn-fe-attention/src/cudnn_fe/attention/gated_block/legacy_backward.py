"""The backward class of the gated attention block, with the parameters of cudnn-frontend 1.32."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from cudnn_fe.attention.gated_block import (
    check_lengths,
    check_recompute,
    gradients,
    lengths_form,
    require_record,
)
from cudnn_fe.attention.gated_block.declarations import GradientScaling, factors_of, fp4_pairs
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.lifecycle import Block, check_packing, check_sample
from cudnn_fe.attention.gated_block.op import frozen
from cudnn_fe.attention.gated_block.op_backward import BACKWARD, SCALARS, beside
from cudnn_fe.attention.gated_block.operands import Formats
from cudnn_fe.attention.gated_block.record import RecomputePolicy, SavedForBackward
from cudnn_fe.attention.operands import deliver, statistics_dtype
from cudnn_fe.core.choose import choose
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.tensor import spec_of

__all__ = ["GatedAttentionBlockBwd"]


_WORKSPACE = 256  # bytes: the numbers of a quantised block, and what fills the line


def _numbers(workspace: Any) -> Any:
    """The part of a workspace that holds a quantised block's numbers, as float32."""
    spec = None if workspace is None else spec_of(workspace, "workspace")
    if spec is None or spec.dtype.name != "uint8" or spec.shape[:1] < (_WORKSPACE,):
        wanted = f"uint8 of {_WORKSPACE} bytes or more"
        raise OptionError("workspace", got=str(spec), wanted=wanted, remedy="allocate get_workspace_size() bytes")
    bytes_of = workspace[: 4 * len(SCALARS)]
    return bytes_of.view(array_namespace(workspace).float32)


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
        quant: The forward's declaration, or None.
        grad_scaling: ``"current"`` or ``"delayed"``: whether gradients are scaled by their largest magnitudes, or by
            the caller.
        grad_scale_margin_log2: Powers of two that current scales stay below the largest possible ones.
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
        factors_of(quant)  # or there is none of that kind
        self._quant, self._scaling = quant, (grad_scaling, grad_scale_margin_log2)
        self._workspace = 0 if quant is None else _WORKSPACE
        if quant is not None:
            sample_w_qkvg, sample_w_o = fp4_pairs(sample_w_qkvg, "w_qkvg"), fp4_pairs(sample_w_o, "w_o")
        check_recompute(recompute)
        require_record(sample_saved)
        norms = geometry.qk_norm if need_dw_norms is None else need_dw_norms
        self._needs = need_dh, need_dw_qkvg, need_dw_o, norms
        self.geometry, self._form = geometry, lengths_form(thd, cu_seqlens)
        weights = (sample_w_qkvg, sample_w_q_norm, sample_w_k_norm, sample_cos, sample_sin, sample_w_o)
        s = sample_saved
        arrays = (sample_dy, s.h, *weights, s.proj_slab, s.o, s.lse, s.rstd_q, s.rstd_k, s.seq_lens)
        names = BACKWARD.problem.operands[: len(arrays)]
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
        if dtype(dw_norm_dtype, operand="dw_norm_dtype").name != statistics_dtype(spec_of(s.o, "o")).name:
            raise OptionError("dw_norm_dtype", got=str(dw_norm_dtype), wanted="float32", remedy="leave it out")

    def _validate(self) -> None:
        scaling = GradientScaling(self._quant, *self._scaling).options
        options: dict[str, Any] = {"shape": frozen(self.geometry), "form": self._form, "needs": self._needs}
        options |= dict(scaling)
        h = self._specs[1]
        assert h is not None
        formats = Formats(*(options[name] for name in ("quant", "w_fp4", "o_fp4")))
        specs = beside(self.geometry, h.size // self.geometry.d_model, formats, options["delayed"], h.device)
        choose(BACKWARD, BACKWARD.bind(*self._specs, *specs, **options))

    def quant_scalars(self, workspace: Any) -> dict[str, Any]:
        """The numbers of the latest ``execute`` of a quantised block with that workspace, one float32 each.

        Args:
            workspace: The uint8 buffer that it got; the numbers are views of it.
        """
        if self._quant is None:
            raise OptionError("quant_scalars", got="a call", wanted="a quantised block", remedy="make one with quant")
        found = _numbers(workspace)
        return {name: found[i : i + 1] for i, name in enumerate(SCALARS)}

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
        *,
        scale_dp: Any = None,
        scale_dy: Any = None,
        scale_do: Any = None,
        scale_dqkvg: Any = None,
        h_t: Any = None,
        h_t_sf: Any = None,
        w_qkvg_t: Any = None,
        w_qkvg_t_sf: Any = None,
        w_o_t: Any = None,
        w_o_t_sf: Any = None,
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
            workspace: uint8 buffer of a quantised block, of `get_workspace_size` bytes: its numbers go there.
            seq_lens: None, or the record's.
            current_stream: Launch stream for CUDA tensors.
            scale_dp: Factor of dS, of FP8; this and the others as in `gated_attention_block_backward`.
            scale_dy: Factor of dY, delayed.
            scale_do: Factor of dO, delayed.
            scale_dqkvg: Factor of the projection's gradient, delayed.
            h_t: h transposed, of MXFP8.
            h_t_sf: Its scales.
            w_qkvg_t: The first weight transposed, of MXFP8.
            w_qkvg_t_sf: Its scales.
            w_o_t: The last weight transposed, where it is FP4.
            w_o_t_sf: Its scales.
        """
        self._require_compiled()
        scales = (scale_dp, scale_dy, scale_do, scale_dqkvg)
        turned = (h_t, h_t_sf, w_qkvg_t, w_qkvg_t_sf, w_o_t, w_o_t_sf)
        scaling = GradientScaling(self._quant, *self._scaling, *scales, *turned)
        numbers = None if self._quant is None else _numbers(workspace)
        require_record(saved)
        check_lengths(saved, seq_lens, thd=self._form is not None)
        names = ("dh", "dw_qkvg", "dw_o", "dw_q_norm", "dw_k_norm")
        buffers = (dh, dw_qkvg, dw_o, dw_q_norm, dw_k_norm)
        for name, buffer, needed in zip(names, buffers, (*self._needs, self._needs[3]), strict=True):
            if (buffer is not None) != needed:
                wanted = "a buffer, as declared" if needed else "None, as declared"
                raise OptionError(name, got="the opposite", wanted=wanted, remedy="declare what is wanted")
        if self._quant is not None:
            w_qkvg, w_o = fp4_pairs(w_qkvg, "w_qkvg"), fp4_pairs(w_o, "w_o")
        arrays = (dy, saved.h, w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o)
        for x, spec in zip(arrays, self._specs, strict=False):
            if x is not None and spec is not None:
                check_sample(spec_of(x, spec.name), spec)
        weights = (w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o)
        results = gradients(dy, saved, weights, self.geometry, self._needs, scaling, stream=current_stream)
        there = [name for name in names if results[name] is not None]
        chosen = tuple(buffer for buffer in buffers if buffer is not None)
        deliver(tuple(results[name] for name in there), chosen, tuple(there), stream=current_stream)
        if numbers is not None:
            deliver((results["quant_scalars"],), (numbers,), ("workspace",), stream=current_stream)
