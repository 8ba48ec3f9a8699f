"""The classes of cudnn-frontend 1.32 without scale factors: tables, from which they are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.hints import check_fixed
from cudnn_fe.core.legacy import LegacyClass, make_class
from cudnn_fe.grouped.class_forms import FREE, Bound, Mode, Samples, arrange, arrange_wgrad, bound
from cudnn_fe.grouped.dglu import scalars_of
from cudnn_fe.grouped.dglu.op import BACKWARD
from cudnn_fe.grouped.dglu_scaled.op import BACKWARD as SCALED_BACKWARD
from cudnn_fe.grouped.forms import is_narrow
from cudnn_fe.grouped.glu import check_glu_hints, offset_of
from cudnn_fe.grouped.glu.op import FORWARD as GLU
from cudnn_fe.grouped.glu_scaled import glu_numbers
from cudnn_fe.grouped.glu_scaled.op import NUMBERS, SCALED
from cudnn_fe.grouped.scaled.arguments import check_common
from cudnn_fe.grouped.scaled.calls import BACKWARD_KEYS
from cudnn_fe.grouped.scaled.classes import (
    BACKWARD_INPUTS,
    FORWARD_INPUTS,
    FORWARD_OUTPUTS,
    SCALED_LAYOUT,
    bind_backward,
    bind_forward,
)
from cudnn_fe.grouped.unfused import check_unfused_hints
from cudnn_fe.grouped.unfused.op import FORWARD
from cudnn_fe.grouped.wgrad import is_ragged
from cudnn_fe.grouped.wgrad.op import WGRAD
from cudnn_fe.grouped.wgrad_scaled.op import SCALED as SCALED_WGRAD

__all__ = ["GroupedGemmDgluSm100", "GroupedGemmGluSm100", "GroupedGemmSm100", "GroupedGemmWgradSm100"]

_SCALED = ("sfa", "sfb", "d_col", "sfd_row", "sfd_col", "amax", "norm_const", "scheduler_counter")
_TILES = "mma_tiler_mn=(256, 256), cluster_shape_mn=None"
_GEGLU = "geglu_alpha=1.702, glu_clamp_max=7.0, glu_clamp_min=-7.0"
_DISCRETE = "num_experts=None, b_shape=None, b_dtype=None"

_UNFUSED = f"""sample_a, sample_c, sample_d, sample_padded_offsets, sample_alpha, sample_b=None, sample_bias=None,
    sample_prob=None, {_DISCRETE}, acc_dtype=None, {_TILES}, vector_f32=False, m_aligned=256, generate_c=False,
    b_major="k", use_dynamic_sched=False"""
_UNFUSED_EXECUTE = """a_tensor, c_tensor, d_tensor, padded_offsets, alpha_tensor, b_tensor=None, b_ptrs=None,
    bias_tensor=None, prob_tensor=None, current_stream=None"""
_GLU = f"""sample_a, sample_c, sample_d, sample_sfa, sample_padded_offsets, sample_alpha, sample_d_col, sample_b=None,
    sample_sfb=None, sample_bias=None, {_DISCRETE}, sample_sfd_row=None, sample_sfd_col=None, sample_amax=None,
    sample_norm_const=None, sample_prob=None, acc_dtype=None, {_TILES}, sf_vec_size=16, sf_fp8_dtype_override=None,
    vector_f32=False, m_aligned=256, discrete_col_sfd=False, act_func="swiglu", situ_beta1=4.0, b_major="k",
    use_dynamic_sched=False, use_single_group_runtime_offsets=False, generate_c=False, *,
    sample_scheduler_counter=None"""
_GLU_EXECUTE = f"""a_tensor, c_tensor, d_tensor, sfa_tensor, padded_offsets, alpha_tensor, b_tensor=None,
    sfb_tensor=None, bias_tensor=None, b_ptrs=None, sfb_ptrs=None, d_col_tensor=None, sfd_row_tensor=None,
    sfd_col_tensor=None, amax_tensor=None, norm_const_tensor=None, prob_tensor=None, linear_offset=None, {_GEGLU},
    situ_beta1=4.0, situ_beta2=25.0, current_stream=None, *, scheduler_counter_tensor=None"""
_DGLU = f"""sample_a, sample_c, sample_d_row, sample_d_col, sample_sfa, sample_padded_offsets, sample_alpha,
    sample_beta, sample_prob, sample_dprob, sample_b=None, sample_sfb=None, sample_dbias=None, {_DISCRETE},
    sample_sfd_row=None, sample_sfd_col=None, sample_amax=None, sample_norm_const=None, acc_dtype=None, {_TILES},
    sf_vec_size=16, sf_fp8_dtype_override=None, vector_f32=False, m_aligned=256, discrete_col_sfd=False,
    act_func="dswiglu", b_major="k", epilogue_op=None, use_dynamic_sched=False,
    use_single_group_runtime_offsets=False, linear_offset=None, {_GEGLU}, situ_beta1=4.0, situ_beta2=25.0,
    round_dgrad_to_input_dtype=False, sample_activation=None, _deterministic=False"""
_DGLU_EXECUTE = """a_tensor, c_tensor, d_row_tensor, d_col_tensor, sfa_tensor, padded_offsets, alpha_tensor,
    beta_tensor, prob_tensor, dprob_tensor, b_tensor=None, sfb_tensor=None, dbias_tensor=None, b_ptrs=None,
    sfb_ptrs=None, sfd_row_tensor=None, sfd_col_tensor=None, amax_tensor=None, norm_const_tensor=None,
    current_stream=None, activation_tensor=None, *, workspace=None"""
_WGRAD = f"""sample_a, sample_b, sample_sfa, sample_sfb, sample_offsets, sample_wgrad=None, sample_wgrad_expert=None,
    num_experts=None, wgrad_shape=None, wgrad_dtype=None, sample_global_scale_a=None, sample_global_scale_b=None,
    acc_dtype=None, {_TILES}, sf_vec_size=16, sf_fp8_dtype_override=None, accumulate_on_output=False,
    input_order='tensor2d'"""
_WGRAD_EXECUTE = """a_tensor, b_tensor, sfa_tensor, sfb_tensor, offsets_tensor, wgrad_tensor=None, wgrad_ptrs=None,
    global_scale_a=None, global_scale_b=None, current_stream=None, *, descriptor_workspace=None"""


def _refuse_scaled(given: Mapping[str, Any]) -> None:
    names = [f"sample_{name}" for name in _SCALED if given.get(f"sample_{name}") is not None]
    if names:
        raise OptionError(
            ", ".join(names), got="samples", wanted="None for operands without scale factors", remedy="leave them out"
        )


def _bind_unfused(given: Mapping[str, Any]) -> Bound:
    check_fixed(given["acc_dtype"], m_aligned=given["m_aligned"])
    check_unfused_hints(given["mma_tiler_mn"], given["cluster_shape_mn"])
    s = Samples(given, canonical_n=True)
    options = {"d_dtype": s.dtype("d_tensor"), "c_dtype": s.dtype("c_tensor"), "generate_c": given["generate_c"]}
    return bound(FORWARD, s, options, {"d_tensor": True, "c_tensor": given["generate_c"]})


def _bind_glu(given: Mapping[str, Any]) -> Bound:
    if is_narrow(given["sample_a"], "a_tensor"):
        activation = glu_numbers(given["act_func"], None, 1.702, 7.0, -7.0, given["situ_beta1"], 25.0)
        return bind_forward(SCALED, given, *activation, override=given["sf_fp8_dtype_override"])
    _refuse_scaled(given)
    check_fixed(given["acc_dtype"], m_aligned=given["m_aligned"])
    check_glu_hints(given["mma_tiler_mn"], given["cluster_shape_mn"])
    s = Samples(given, canonical_n=False)
    options = {
        "act_func": given["act_func"],
        "d_dtype": s.dtype("d_tensor"),
        "c_dtype": s.dtype("c_tensor"),
        "generate_c": given["generate_c"],
    }
    numbers = (offset_of(given["act_func"], None),)
    return bound(GLU, s, options, {"d_tensor": True, "c_tensor": given["generate_c"]}, numbers)


def _bind_dglu(given: Mapping[str, Any]) -> Bound:
    if is_narrow(given["sample_a"], "a_tensor"):
        activation = glu_numbers(given["act_func"], **{name: given[name] for name in NUMBERS}, prefix="d")
        return bind_backward(SCALED_BACKWARD, given, *activation, override=given["sf_fp8_dtype_override"])
    _refuse_scaled(given)
    check_fixed(given["acc_dtype"], m_aligned=given["m_aligned"])
    check_unfused_hints(given["mma_tiler_mn"], given["cluster_shape_mn"])
    names = ("linear_offset", "geglu_alpha", "glu_clamp_max", "glu_clamp_min")
    numbers = scalars_of(given["act_func"], *(given[name] for name in names))
    s = Samples(given, canonical_n=True)
    dbias, again = (s.specs[f"{name}_tensor"] is not None for name in ("dbias", "activation"))
    options = {
        "act_func": given["act_func"],
        "d_dtype": s.dtype("d_row_tensor"),
        "generate_dbias": dbias,
        "generate_activation": again,
        "round_dgrad": given["round_dgrad_to_input_dtype"],
    }
    wanted = {"d_row_tensor": True, "dprob_tensor": True, "dbias_tensor": dbias, "activation_tensor": again}
    return bound(BACKWARD, s, options, wanted, numbers)


def _bind_wgrad(given: Mapping[str, Any]) -> Bound:
    scaled = is_narrow(given["sample_a"], "a_tensor")
    if scaled:
        tiles = (given["mma_tiler_mn"], given["cluster_shape_mn"])
        check_common(given["acc_dtype"], "n", 256, *tiles, given["sf_fp8_dtype_override"])
    else:
        check_fixed(given["acc_dtype"])
        check_glu_hints(given["mma_tiler_mn"], given["cluster_shape_mn"])
        _refuse_scaled(given)
    s = Samples(given)
    discrete = ("num_experts", "wgrad_shape", "wgrad_dtype")
    dense = s.specs["wgrad_tensor"] is not None
    if any((given[name] is None) != dense for name in discrete if dense or name != "wgrad_dtype"):
        raise OptionError(
            "sample_wgrad",
            got="both modes or neither",
            wanted=f"sample_wgrad, or {', '.join(discrete)}",
            remedy="choose one",
        )
    accumulate, kind = given["accumulate_on_output"], given["wgrad_dtype"] or "bfloat16"
    if dense:
        kind = s.dtype("wgrad_tensor")
    else:
        shape, wanted = tuple(given["wgrad_shape"]), (s.specs["a_tensor"], s.specs["b_tensor"])
        if wanted[0] is not None and wanted[1] is not None and shape != (wanted[0].shape[0], wanted[1].shape[1]):
            raise ShapeError("wgrad_shape", got=str(shape), wanted="(h, i) of A and B", remedy="pass their extents")
        s.specs["wgrad_ptrs"] = s.addresses("wgrad_ptrs")
    if not accumulate:
        s.specs["old"] = None
    options = {"wgrad_dtype": kind, "ragged": is_ragged(given["input_order"]), "accumulate": accumulate}
    op = SCALED_WGRAD if scaled else WGRAD
    options |= {"sf_vec_size": given["sf_vec_size"]} if scaled else {}
    old = "wgrad_tensor" if accumulate and dense else "old"
    names = [old if name == "wgrad_tensor" else name for name in op.problem.operands]
    return bound(op, s, options, {"wgrad_tensor": dense}, names=names)


_FORWARD_OUTPUTS = ("d_tensor", "c_tensor")
_UNIFIED_OUTPUTS = (*(key for key in BACKWARD_KEYS if "srelu" not in key), "activation_tensor")
_BACKWARD_OUTPUTS = ("d_row_tensor", "dprob_tensor", "dbias_tensor", "activation_tensor")

GroupedGemmSm100 = make_class(
    LegacyClass(
        name="GroupedGemmSm100",
        op=FORWARD,
        parameters=_UNFUSED,
        execute=_UNFUSED_EXECUTE,
        inputs=(*FORWARD.problem.operands, "b_ptrs"),
        outputs=_FORWARD_OUTPUTS,
        scalars=(),
        absent=(),
        bind=_bind_unfused,
        arrange=arrange(
            (*FORWARD.problem.operands, "b_ptrs"),
            _FORWARD_OUTPUTS,
            Mode(FORWARD, _FORWARD_OUTPUTS, {"canonical_n": True}),
        ),
        free=FREE,
    ),
    __name__,
)
GroupedGemmGluSm100 = make_class(
    LegacyClass(
        name="GroupedGemmGluSm100",
        op=GLU,
        parameters=_GLU,
        execute=_GLU_EXECUTE,
        inputs=FORWARD_INPUTS,
        outputs=FORWARD_OUTPUTS,
        scalars=NUMBERS,
        absent=(),
        bind=_bind_glu,
        arrange=arrange(
            FORWARD_INPUTS,
            FORWARD_OUTPUTS,
            Mode(GLU, _FORWARD_OUTPUTS, {"canonical_n": False}, scalars=1),
            Mode(SCALED, FORWARD_OUTPUTS, SCALED_LAYOUT, scaled=True),
        ),
        fixed=("situ_beta1",),
        free=FREE,
        modes=(SCALED,),
    ),
    __name__,
)
GroupedGemmDgluSm100 = make_class(
    LegacyClass(
        name="GroupedGemmDgluSm100",
        op=BACKWARD,
        parameters=_DGLU,
        execute=_DGLU_EXECUTE,
        inputs=BACKWARD_INPUTS,
        outputs=_UNIFIED_OUTPUTS,
        scalars=(),
        absent=(),
        bind=_bind_dglu,
        arrange=arrange(
            BACKWARD_INPUTS,
            _UNIFIED_OUTPUTS,
            Mode(BACKWARD, _BACKWARD_OUTPUTS, {"canonical_n": True}),
            Mode(
                SCALED_BACKWARD,
                tuple("" if "srelu" in key else key for key in BACKWARD_KEYS),
                SCALED_LAYOUT,
                scaled=True,
            ),
        ),
        modes=(SCALED_BACKWARD,),
        free=FREE,
    ),
    __name__,
)
GroupedGemmWgradSm100 = make_class(
    LegacyClass(
        name="GroupedGemmWgradSm100",
        op=WGRAD,
        parameters=_WGRAD,
        execute=_WGRAD_EXECUTE,
        inputs=SCALED_WGRAD.problem.operands,
        outputs=("wgrad_tensor",),
        scalars=(),
        absent=(),
        bind=_bind_wgrad,
        arrange=arrange_wgrad,
        free={"a_tensor": (1,), "b_tensor": (0,), "sfa_tensor": (0,), "sfb_tensor": (0,)},
        modes=(SCALED_WGRAD,),
    ),
    __name__,
)
