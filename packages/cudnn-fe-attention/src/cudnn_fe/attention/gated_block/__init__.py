"""A whole attention block: projection of queries, gates, keys and values, norms, RoPE, attention, gate, projection."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.arrays import without_gradient
from cudnn_fe.attention.gated_block.declarations import GradientScaling, factors_of, fp4_pairs
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.op import FACTORS, FORWARD, PLAIN, frozen
from cudnn_fe.attention.gated_block.op_backward import BACKWARD
from cudnn_fe.attention.gated_block.record import (
    RecomputePolicy,
    SavedForBackward,
    register_pytree,
    saved_slab_views,
)
from cudnn_fe.core.call import call
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, OptionTypeError
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["gated_attention_block_backward", "gated_attention_block_forward", "gradients", "require_record"]

_RESULTS = ("dh", "dw_qkvg", "dw_o", "dw_q_norm", "dw_k_norm")


def lengths_form(thd: bool, cu_seqlens: bool) -> str | None:
    """What lengths say: None of padded sequences, else ``"lengths"`` or ``"prefix"``."""
    return ("prefix" if cu_seqlens else "lengths") if thd else None


def gated_attention_block_forward(
    h: Any,
    w_qkvg: Any,
    w_q_norm: Any,
    w_k_norm: Any,
    cos: Any,
    sin: Any,
    w_o: Any,
    geometry: GatedAttentionBlockGeometry,
    *,
    seq_lens: Any = None,
    return_lse: bool = False,
    save_for_backward: bool = False,
    current_stream: Any = None,
    thd: bool = False,
    cu_seqlens: bool = False,
    backend: str | None = None,
) -> TupleDict:
    """A whole attention block: projection, norms, partial RoPE, attention, sigmoid gate, output projection.

    Differentiable in h and all weights under torch autograd and JAX. The tables are constants: torch refuses to
    differentiate them, JAX gives zeros.

    Args:
        h: Hidden states (B, S, d_model): float16, bfloat16, float32 or float64; with ``thd`` packed, (T, d_model) or
            (1, T, d_model).
        w_qkvg: First weight (n_qkvg, d_model) of the same dtype: rows of queries, gates, keys and values; see
            `build_fused_qkvg_weight`.
        w_q_norm: Weight of the queries' RMSNorm (D,); None without ``geometry.qk_norm``.
        w_k_norm: Likewise of the keys'.
        cos: Cosines (B, S, rope_dim) of each token, or packed like h.
        sin: Sines.
        w_o: Output projection (d_model, Hq D).
        geometry: Extents and mask.
        seq_lens: int32 (B,): keys of each sequence, None for all. With ``thd`` lengths (B,) of the sequences, or
            their offsets (B+1,) with ``cu_seqlens``.
        return_lse: Whether to return the log-sum-exp.
        save_for_backward: Whether to return what `gated_attention_block_backward` takes.
        current_stream: Launch stream for CUDA tensors; None is torch's current one.
        thd: Whether h packs sequences.
        cu_seqlens: Whether ``seq_lens`` are offsets.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``out`` like h; ``lse`` (B, Hq, S) and ``saved``, a `SavedForBackward`, each None unless asked for.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError, OptionTypeError, NotYetSupportedError: As the message says.
    """
    operands = (h, w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o, seq_lens)
    jax = framework_of(h, operand="h") == "jax"
    # Under JAX a derivative may be asked for later; what is not used then is never computed under jit.
    training = True if jax or _needs_gradient(operands[:7]) else save_for_backward
    form = lengths_form(thd, cu_seqlens)
    options = (("shape", frozen(geometry)), ("form", form), ("training", training), *PLAIN)
    factors, scales = (1.0,) * len(FACTORS), (None, None, None)
    out, lse, *record = call(FORWARD, (*operands, *scales), options, factors, backend=backend, stream=current_stream)
    saved = None
    if save_for_backward:
        if jax:
            register_pytree()
        lse = without_gradient(lse)
        slab, o, *roots = (without_gradient(x) for x in record)
        rstd_q, rstd_k = roots or (None, None)
        q, gate, k, _ = saved_slab_views(slab, geometry, *o.shape[:2])
        saved = SavedForBackward(h, gate, o, lse, rstd_q, rstd_k, q, k, slab, seq_lens, form)
    return TupleDict(out=out, lse=without_gradient(lse) if return_lse else None, saved=saved)


def _needs_gradient(arrays: tuple[Any, ...]) -> bool:
    if not any(getattr(x, "requires_grad", False) for x in arrays):
        return False
    import torch  # they are its tensors

    return torch.is_grad_enabled()


def require_record(saved: Any) -> None:
    """Raises OptionTypeError unless ``saved`` is a record."""
    if not isinstance(saved, SavedForBackward):
        got = type(saved).__qualname__
        raise OptionTypeError("saved", got=got, wanted="a SavedForBackward", remedy="take the forward's")


def gradients(
    dy: Any,
    saved: SavedForBackward,
    weights: tuple[Any, ...],
    geometry: GatedAttentionBlockGeometry,
    needs: tuple[bool, bool, bool, bool],
    scaling: GradientScaling,
    *,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """The gradients that are needed, None for the others, and ``quant_scalars`` of a quantised block."""
    first, *others, last = weights
    weights = (fp4_pairs(first, "w_qkvg"), *others, fp4_pairs(last, "w_o")) if scaling.quant else weights
    record = (saved.proj_slab, saved.o, saved.lse, saved.rstd_q, saved.rstd_k, saved.seq_lens)
    arrays = (dy, saved.h, *weights, *record, *scaling.arrays)
    operands = tuple(None if x is None else without_gradient(x) for x in arrays)
    options = (("shape", frozen(geometry)), ("form", saved.seq_lens_form), ("needs", needs), *scaling.options)
    factors = factors_of(scaling.quant)
    results = iter(call(BACKWARD, operands, options, factors, backend=backend, stream=stream))
    wanted = zip((*_RESULTS, "quant_scalars"), (*needs, needs[3], scaling.quant is not None), strict=True)
    return TupleDict({name: next(results) if needed else None for name, needed in wanted})


def gated_attention_block_backward(
    dy: Any,
    saved: SavedForBackward,
    w_qkvg: Any,
    w_q_norm: Any,
    w_k_norm: Any,
    cos: Any,
    sin: Any,
    w_o: Any,
    geometry: GatedAttentionBlockGeometry,
    *,
    seq_lens: Any = None,
    recompute: RecomputePolicy = RecomputePolicy.RECOMPUTE_QK_PRE,
    current_stream: Any = None,
    fuse_gate_bwd: bool = False,
    fuse_wgrad_overlap: bool = False,
    thd: bool = False,
    max_seq_len: int | None = None,
    quant: Any = None,
    grad_scaling: str = "current",
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
    grad_scale_margin_log2: int = 0,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `gated_attention_block_forward`.

    Args:
        dy: Gradient of the output, like h.
        saved: The forward's record.
        w_qkvg: As in the forward, and so are all arguments that both have.
        w_q_norm: Weight of the queries' norm.
        w_k_norm: Weight of the keys' norm.
        cos: Cosines.
        sin: Sines.
        w_o: Output projection.
        geometry: Extents and mask.
        seq_lens: None, or the record's.
        recompute: Hint; ``RECOMPUTE_GATE`` is refused.
        current_stream: Launch stream for CUDA tensors.
        fuse_gate_bwd: Hint.
        fuse_wgrad_overlap: Hint.
        thd: Whether the record is of packed sequences.
        max_seq_len: Hint.
        quant: The declaration of a quantised forward, or None; what follows but ``backend`` is for it alone.
        grad_scaling: ``"current"``: gradients are scaled by the largest power of two that E4M3 holds them with;
            ``"delayed"``: by the caller's scales.
        scale_dp: Factor of dS before it is encoded, one float32 number, always of FP8.
        scale_dy: Factor of dY, delayed.
        scale_do: Factor of dO, delayed, of FP8.
        scale_dqkvg: Factor of the projection's gradient, delayed, of FP8.
        h_t: h transposed, E4M3 (d_model, T) quantised along tokens, of MXFP8.
        h_t_sf: Its packed scales.
        w_qkvg_t: The first weight transposed (d_model, n_qkvg), quantised along its last dim, of MXFP8.
        w_qkvg_t_sf: Its packed scales.
        w_o_t: The last weight transposed, FP4 (Hq D, d_model) quantised along its last dim, where it is FP4.
        w_o_t_sf: Its packed scales.
        grad_scale_margin_log2: Powers of two, 0 to 8, that current scales stay below the largest possible ones.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dh``, ``dw_qkvg``, ``dw_o`` of their operands' shapes and dtype, and float32 ``dw_q_norm`` and ``dw_k_norm``.
        Of torch tensors those that require gradients, None for the others; of other arrays all.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError, OptionTypeError, NotYetSupportedError: As the message says.
    """
    del fuse_gate_bwd, fuse_wgrad_overlap, max_seq_len
    scaling = GradientScaling(
        quant,
        grad_scaling,
        grad_scale_margin_log2,
        *(scale_dp, scale_dy, scale_do, scale_dqkvg),
        *(h_t, h_t_sf, w_qkvg_t, w_qkvg_t_sf, w_o_t, w_o_t_sf),
    )
    require_record(saved)
    check_recompute(recompute)
    check_lengths(saved, seq_lens, thd=thd)
    weights = (w_qkvg, w_q_norm, w_k_norm, cos, sin, w_o)
    frozen(geometry)  # asks whether it is one
    needs = (True, True, True, geometry.qk_norm)
    if hasattr(saved.h, "requires_grad"):
        asked = [getattr(x, "requires_grad", False) for x in (saved.h, w_qkvg, w_o, w_q_norm, w_k_norm)]
        needs = (asked[0], asked[1], asked[2], asked[3] or asked[4])
    results = gradients(dy, saved, weights, geometry, needs, scaling, stream=current_stream, backend=backend)
    return TupleDict({name: results[name] for name in _RESULTS})  # the class hands out the numbers


def check_recompute(policy: Any) -> None:
    """Raises unless the policy is one that is served."""
    if not isinstance(policy, RecomputePolicy):
        got = type(policy).__qualname__
        raise OptionTypeError("recompute", got=got, wanted="a RecomputePolicy", remedy="leave it out")
    if policy is RecomputePolicy.RECOMPUTE_GATE:
        raise NotYetSupportedError("recompute", got="RECOMPUTE_GATE", wanted="another policy", remedy="leave it out")


def check_lengths(saved: SavedForBackward, seq_lens: Any, *, thd: bool) -> None:
    """Raises OptionError unless the record's form of lengths is ``thd``'s and ``seq_lens`` are its own, or None."""
    if (saved.seq_lens_form is not None) != thd:
        form = saved.seq_lens_form
        raise OptionError("thd", got=str(thd), wanted=f"{not thd}: the record's lengths are {form}", remedy="fit both")
    if seq_lens is not None and seq_lens is not saved.seq_lens:
        raise OptionError("seq_lens", got="another array", wanted="None, or the record's", remedy="leave it out")
