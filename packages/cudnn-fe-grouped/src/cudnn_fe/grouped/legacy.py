"""The family's legacy functions: one table, from which they are made. The classes stand in `classes`."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.legacy import LegacyFunction, make_function
from cudnn_fe.grouped.dglu import grouped_gemm_glu_backward
from cudnn_fe.grouped.glu import grouped_gemm_glu_forward
from cudnn_fe.grouped.unfused import grouped_gemm_forward
from cudnn_fe.grouped.wgrad import grouped_gemm_wgrad_forward

__all__ = [
    "grouped_gemm_dglu_wrapper_sm100",
    "grouped_gemm_glu_wrapper_sm100",
    "grouped_gemm_wgrad_wrapper_sm100",
    "grouped_gemm_wrapper_sm100",
]

_TILES = "mma_tiler_mn=(256, 256), cluster_shape_mn=None"
_UNFUSED = f"""a_tensor, padded_offsets, alpha_tensor, b_tensor=None, bias_tensor=None, b_ptrs=None, n=None,
    b_dtype=None, b_major="k", prob_tensor=None, acc_dtype=None, c_dtype=None, d_dtype=None, c_tensor=None,
    d_tensor=None, cd_major="n", {_TILES}, vector_f32=False, m_aligned=256, generate_c=False, use_dynamic_sched=False,
    current_stream=None"""
_GLU = f"""a_tensor, sfa_tensor, padded_offsets, alpha_tensor, b_tensor=None, sfb_tensor=None, bias_tensor=None,
    b_ptrs=None, sfb_ptrs=None, n=None, b_dtype=None, b_major="k", norm_const_tensor=None, prob_tensor=None,
    acc_dtype=None, c_dtype=None, d_dtype=None, cd_major="n", {_TILES}, sf_vec_size=16, vector_f32=False, m_aligned=256,
    discrete_col_sfd=False, act_func="swiglu", linear_offset=None, geglu_alpha=1.702, glu_clamp_max=7.0,
    glu_clamp_min=-7.0, situ_beta1=4.0, situ_beta2=25.0, use_dynamic_sched=False,
    use_single_group_runtime_offsets=False, current_stream=None, generate_c=False, sf_fp8_dtype_override=None, *,
    scheduler_counter_tensor=None"""
_DGLU = f"""a_tensor, c_tensor, sfa_tensor, padded_offsets, alpha_tensor, beta_tensor, prob_tensor, dprob_tensor,
    b_tensor=None, sfb_tensor=None, generate_dbias=False, b_ptrs=None, sfb_ptrs=None, n=None, b_dtype=None, b_major="k",
    norm_const_tensor=None, acc_dtype=None, d_dtype=None, cd_major="n", {_TILES}, sf_vec_size=16,
    sf_fp8_dtype_override=None, vector_f32=False, m_aligned=256, discrete_col_sfd=False, act_func="dswiglu",
    linear_offset=None, geglu_alpha=1.702, glu_clamp_max=7.0, glu_clamp_min=-7.0, situ_beta1=4.0, situ_beta2=25.0,
    epilogue_op=None, use_dynamic_sched=False, use_single_group_runtime_offsets=False, current_stream=None,
    round_dgrad_to_input_dtype=False, activation_tensor=None, deterministic=False"""
_WGRAD = f"""a_tensor, b_tensor, sfa_tensor, sfb_tensor, offsets_tensor, output_mode="dense", wgrad_tensor=None,
    wgrad_ptrs=None, global_scale_a=None, global_scale_b=None, acc_dtype=None, wgrad_dtype=None, {_TILES},
    sf_vec_size=16, sf_fp8_dtype_override=None, accumulate_on_output=False, input_order="tensor2d",
    current_stream=None, *, descriptor_workspace=None"""


def _wrapper(name: str, target: Any, parameters: str, *features: str) -> Any:
    function = make_function(LegacyFunction(name, target, parameters), __name__)
    for feature in ("bf16_canonical_layouts", *features):
        setattr(function, f"supports_{feature}", True)
    return function


grouped_gemm_wrapper_sm100 = _wrapper("grouped_gemm_wrapper_sm100", grouped_gemm_forward, _UNFUSED)
grouped_gemm_glu_wrapper_sm100 = _wrapper(
    "grouped_gemm_glu_wrapper_sm100", grouped_gemm_glu_forward, _GLU, "canonical_layouts"
)
grouped_gemm_dglu_wrapper_sm100 = _wrapper(
    "grouped_gemm_dglu_wrapper_sm100", grouped_gemm_glu_backward, _DGLU, "canonical_layouts"
)
grouped_gemm_wgrad_wrapper_sm100 = _wrapper(
    "grouped_gemm_wgrad_wrapper_sm100", grouped_gemm_wgrad_forward, _WGRAD, "canonical_layouts"
)
