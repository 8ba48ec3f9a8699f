"""The block-scaled classes of cudnn-frontend 1.32: tables, from which they are made."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.legacy import LegacyClass, make_class
from cudnn_fe.core.op import Op
from cudnn_fe.core.require import require_one_of
from cudnn_fe.grouped.class_forms import FREE, Bound, Mode, arrange
from cudnn_fe.grouped.discrete_dswiglu.op import BACKWARD as DISCRETE_DSWIGLU
from cudnn_fe.grouped.discrete_swiglu.op import FORWARD as DISCRETE_SWIGLU
from cudnn_fe.grouped.dsrelu.op import BACKWARD as DSRELU
from cudnn_fe.grouped.dsrelu.workspaces import METHODS
from cudnn_fe.grouped.dswiglu.op import BACKWARD as DSWIGLU
from cudnn_fe.grouped.glu_scaled import glu_numbers
from cudnn_fe.grouped.quant.op import FORWARD as QUANT
from cudnn_fe.grouped.scaled.calls import BACKWARD_KEYS
from cudnn_fe.grouped.scaled.classes import (
    BACKWARD_INPUTS,
    FORWARD_INPUTS,
    FORWARD_OUTPUTS,
    SCALED_LAYOUT,
    bind_backward,
    bind_forward,
)
from cudnn_fe.grouped.srelu.op import FORWARD as SRELU
from cudnn_fe.grouped.swiglu import SWIGLU as SWIGLU_NUMBERS
from cudnn_fe.grouped.swiglu.op import FORWARD as SWIGLU

__all__ = [
    "DiscreteGroupedGemmDswigluSm100",
    "DiscreteGroupedGemmSwigluSm100",
    "GroupedGemmDsreluSm100",
    "GroupedGemmDswigluSm100",
    "GroupedGemmQuantSm100",
    "GroupedGemmSreluSm100",
    "GroupedGemmSwigluSm100",
]

_TILES = "acc_dtype=None, mma_tiler_mn=(256, 256), cluster_shape_mn=None"
_GEGLU = "geglu_alpha=1.702, glu_clamp_max=7.0, glu_clamp_min=-7.0"
_SFD = "sample_sfd_row=None, sample_sfd_col=None, sample_amax=None, sample_norm_const=None, sample_prob=None"
_HINTS = "sf_vec_size=16, vector_f32=False, m_aligned=256, discrete_col_sfd=False"
_RESULTS = """d_col_tensor=None, sfd_row_tensor=None, sfd_col_tensor=None, amax_tensor=None, norm_const_tensor=None,
    prob_tensor=None"""

_SWIGLU = f"""sample_a, sample_b, sample_c, sample_d, sample_sfa, sample_sfb, sample_padded_offsets, sample_alpha,
    sample_d_col, {_SFD}, {_TILES}, {_HINTS}"""
_SWIGLU_EXECUTE = f"""a_tensor, b_tensor, c_tensor, d_tensor, sfa_tensor, sfb_tensor, padded_offsets, alpha_tensor,
    {_RESULTS}, current_stream=None"""
_SRELU = f"""sample_a, sample_b=None, sample_c=None, sample_d=None, sample_sfa=None, sample_sfb=None,
    sample_padded_offsets=None, sample_alpha=None, sample_d_col=None, sample_bias=None, num_experts=None, b_shape=None,
    b_dtype=None, {_SFD}, {_TILES}, {_HINTS}, b_major="k", use_dynamic_sched=False, tanh_clamp_scale=None"""
_SRELU_EXECUTE = f"""a_tensor, sfa_tensor, padded_offsets, alpha_tensor, c_tensor, d_tensor, b_tensor=None,
    sfb_tensor=None, bias_tensor=None, b_ptrs=None, sfb_ptrs=None, {_RESULTS}, current_stream=None"""
_QUANT = f"""sample_a, sample_sfa, sample_padded_offsets, sample_alpha, sample_d, sample_d_col=None, sample_b=None,
    sample_sfb=None, sample_bias=None, num_experts=None, b_shape=None, b_dtype=None, {_SFD}, sample_row_scale=None,
    {_TILES}, sf_vec_size=16, sf_fp8_dtype_override=None, vector_f32=False, m_aligned=256, discrete_col_sfd=False,
    b_major="k", use_dynamic_sched=False, use_single_group_runtime_offsets=False, *, sample_scheduler_counter=None"""
_QUANT_EXECUTE = f"""a_tensor, sfa_tensor, padded_offsets, alpha_tensor, d_tensor, b_tensor=None, sfb_tensor=None,
    bias_tensor=None, b_ptrs=None, sfb_ptrs=None, {_RESULTS}, row_scale_tensor=None, current_stream=None, *,
    scheduler_counter_tensor=None"""
_DISCRETE = f"""sample_a, num_experts, b_shape, b_dtype, sample_c, sample_d, sample_sfa, sample_padded_offsets,
    sample_alpha, sample_d_col, sample_bias=None, {_SFD}, {_TILES}, {_HINTS}, act_func="swiglu", b_major="k",
    use_dynamic_sched=False"""
_DISCRETE_EXECUTE = f"""a_tensor, b_ptrs, c_tensor, d_tensor, sfa_tensor, sfb_ptrs, padded_offsets, alpha_tensor,
    bias_tensor=None, {_RESULTS}, linear_offset=None, {_GEGLU}, current_stream=None"""

_SAMPLES = """sample_sfd_row=None, sample_sfd_col=None, sample_amax=None, sample_norm_const=None"""
_GRADIENTS = "sfd_row_tensor=None, sfd_col_tensor=None, amax_tensor=None, norm_const_tensor=None"
_DSWIGLU = f"""sample_a, sample_b, sample_c, sample_d_row, sample_d_col, sample_sfa, sample_sfb, sample_padded_offsets,
    sample_alpha, sample_beta, sample_prob, sample_dprob, {_SAMPLES}, {_TILES}, {_HINTS}, epilogue_op=None"""
_DSWIGLU_EXECUTE = f"""a_tensor, b_tensor, c_tensor, d_row_tensor, d_col_tensor, sfa_tensor, sfb_tensor, padded_offsets,
    alpha_tensor, beta_tensor, prob_tensor, dprob_tensor, {_GRADIENTS}, current_stream=None"""
_DSRELU = f"""sample_a, sample_b=None, sample_c=None, sample_d_row=None, sample_d_col=None, sample_d_srelu=None,
    sample_sfa=None, sample_sfb=None, sample_padded_offsets=None, sample_alpha=None, sample_prob=None,
    sample_dprob=None, sample_dbias=None, sample_dprob_workspace=None, sample_dbias_workspace=None, num_experts=None,
    b_shape=None, b_dtype=None, sample_sfd_row=None, sample_sfd_col=None, sample_sfd_col_d_srelu=None,
    sample_amax=None, sample_norm_const=None, {_TILES}, {_HINTS}, b_major="k", use_dynamic_sched=False,
    use_dsrelu_reuse=False, deterministic=False, tanh_clamp_scale=None"""
_DSRELU_EXECUTE = """a_tensor, c_tensor, d_row_tensor, d_col_tensor, sfa_tensor, padded_offsets, alpha_tensor,
    prob_tensor, dprob_tensor, b_tensor=None, sfb_tensor=None, dbias_tensor=None, dprob_workspace_tensor=None,
    dbias_workspace_tensor=None, b_ptrs=None, sfb_ptrs=None, sfd_row_tensor=None, sfd_col_tensor=None,
    d_srelu_tensor=None, sfd_col_d_srelu_tensor=None, amax_tensor=None, norm_const_tensor=None, current_stream=None"""
_DISCRETE_BACK = f"""sample_a, num_experts, b_shape, b_dtype, sample_c, sample_d_row, sample_d_col, sample_sfa,
    sample_padded_offsets, sample_alpha, sample_beta, sample_prob, sample_dprob, sample_dbias=None, {_SAMPLES},
    {_TILES}, {_HINTS}, act_func="dswiglu", b_major="k", epilogue_op=None, use_dynamic_sched=False"""
_DISCRETE_BACK_EXECUTE = f"""a_tensor, b_ptrs, c_tensor, d_row_tensor, d_col_tensor, sfa_tensor, sfb_ptrs,
    padded_offsets, alpha_tensor, beta_tensor, prob_tensor, dprob_tensor, dbias_tensor=None, {_GRADIENTS},
    linear_offset=None, {_GEGLU}, current_stream=None"""


def _bind_quant(given: Mapping[str, Any]) -> Bound:
    return bind_forward(QUANT, given, "none", with_c=False, override=given["sf_fp8_dtype_override"])


def _bind_discrete(given: Mapping[str, Any]) -> Bound:
    require_one_of(given["act_func"], "act_func", ("swiglu", "geglu"))
    return bind_forward(DISCRETE_SWIGLU, given, *glu_numbers(given["act_func"], None, 1.702, 7.0, -7.0, 4.0, 25.0))


def _bind_discrete_back(given: Mapping[str, Any]) -> Bound:
    require_one_of(given["act_func"], "act_func", ("dswiglu", "dgeglu"))
    activation = glu_numbers(given["act_func"], None, 1.702, 7.0, -7.0, 4.0, 25.0, prefix="d")
    return bind_backward(DISCRETE_DSWIGLU, given, *activation)


def _bind_dsrelu(given: Mapping[str, Any]) -> Bound:
    if given["deterministic"]:
        raise NotYetSupportedError(
            "deterministic",
            got="True",
            wanted="False: sums have a fixed order, and go into dprob and dbias themselves",
            remedy="leave it and the workspaces out",
        )
    return bind_backward(DSRELU, given, "srelu")


def _names(parameters: str) -> list[str]:
    return [part.split("=")[0].strip() for part in parameters.split(",")]


def _made(
    name: str,
    op: Op,
    parameters: str,
    execute: str,
    bind: Any,
    scalars: tuple[str, ...] = (),
    rest: tuple[float, ...] = (),
    methods: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """A class of ``op``; ``scalars`` are the numbers that execute takes, ``rest`` those of the op that follow."""
    forward = FORWARD_OUTPUTS[1] in _names(execute)
    taken = (*FORWARD_INPUTS, "row_scale_tensor") if forward else BACKWARD_INPUTS
    results = FORWARD_OUTPUTS if forward else BACKWARD_KEYS
    inputs = tuple(x for x in taken if x in _names(execute))
    outputs = tuple(x for x in results if x in _names(execute))
    written = tuple(x if x in outputs else "" for x in results)
    return make_class(
        LegacyClass(
            name=name,
            op=op,
            parameters=parameters,
            execute=execute,
            inputs=inputs,
            outputs=outputs,
            scalars=scalars,
            absent=(),
            bind=bind,
            arrange=arrange(inputs, outputs, Mode(op, written, SCALED_LAYOUT, more=rest)),
            free=FREE,
            methods=methods,
        ),
        __name__,
    )


GroupedGemmSwigluSm100 = _made(
    "GroupedGemmSwigluSm100",
    SWIGLU,
    _SWIGLU,
    _SWIGLU_EXECUTE,
    lambda given: bind_forward(SWIGLU, given, *SWIGLU_NUMBERS),
)
GroupedGemmSreluSm100 = _made(
    "GroupedGemmSreluSm100", SRELU, _SRELU, _SRELU_EXECUTE, lambda given: bind_forward(SRELU, given, "srelu")
)
GroupedGemmQuantSm100 = _made("GroupedGemmQuantSm100", QUANT, _QUANT, _QUANT_EXECUTE, _bind_quant)
DiscreteGroupedGemmSwigluSm100 = _made(
    "DiscreteGroupedGemmSwigluSm100",
    DISCRETE_SWIGLU,
    _DISCRETE,
    _DISCRETE_EXECUTE,
    _bind_discrete,
    scalars=("linear_offset", "geglu_alpha", "glu_clamp_max", "glu_clamp_min"),
    rest=(4.0, 25.0),
)
GroupedGemmDswigluSm100 = _made(
    "GroupedGemmDswigluSm100",
    DSWIGLU,
    _DSWIGLU,
    _DSWIGLU_EXECUTE,
    lambda given: bind_backward(DSWIGLU, given, *SWIGLU_NUMBERS),
)
GroupedGemmDsreluSm100 = _made(
    "GroupedGemmDsreluSm100", DSRELU, _DSRELU, _DSRELU_EXECUTE, _bind_dsrelu, methods=METHODS
)
DiscreteGroupedGemmDswigluSm100 = _made(
    "DiscreteGroupedGemmDswigluSm100",
    DISCRETE_DSWIGLU,
    _DISCRETE_BACK,
    _DISCRETE_BACK_EXECUTE,
    _bind_discrete_back,
    scalars=("linear_offset", "geglu_alpha", "glu_clamp_max", "glu_clamp_min"),
    rest=(4.0, 25.0),
)
