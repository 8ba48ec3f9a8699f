"""The family's legacy names: one table, from which functions and classes are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.legacy import LegacyClass, LegacyFunction, make_class, make_function
from cudnn_fe.core.op import Problem
from cudnn_fe.core.require import require_same_device
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.gemm.samples import check_sample, common_major, quantising_options, required_specs, sample_spec
from cudnn_fe.gemm.swiglu import gemm_swiglu_forward, gemm_swiglu_jax_forward, require_both_scales
from cudnn_fe.gemm.swiglu.op import FORWARD
from cudnn_fe.gemm.swiglu_scaled.op import SCALED

__all__ = ["GemmSwigluSm100", "gemm_swiglu_jax_sm100", "gemm_swiglu_wrapper_sm100"]

_WRAPPER = """a_tensor, b_tensor, alpha=1.0, c_major="n", ab12_dtype="float32", c_dtype="float16", acc_dtype="float32",
    mma_tiler_mn=(128, 128), cluster_shape_mn=None, sfa_tensor=None, sfb_tensor=None, norm_const_tensor=None,
    sf_vec_size=16, vector_f32=False, ab12_stages=4, stream=None"""
_JAX = """a_tensor, b_tensor, alpha=1.0, ab12_dtype="float32", c_dtype="float16", acc_dtype="float32",
    mma_tiler_mn=(128, 128), cluster_shape_mn=None, sfa_tensor=None, sfb_tensor=None, sf_vec_size=16,
    vector_f32=False, ab12_stages=4"""
_CLASS = """sample_a, sample_b, sample_ab12, sample_c, alpha=1.0, acc_dtype="float32", mma_tiler_mn=(128, 128),
    cluster_shape_mn=None, sample_sfa=None, sample_sfb=None, sample_amax=None, sample_sfc=None,
    sample_norm_const=None, sf_vec_size=16, vector_f32=False, ab12_stages=4"""
_EXECUTE = """a_tensor, b_tensor, ab12_tensor, c_tensor, sfa_tensor=None, sfb_tensor=None, amax_tensor=None,
    sfc_tensor=None, norm_const_tensor=None, alpha=None, current_stream=None"""
_SCALES = ("sfa", "sfb", "amax", "sfc", "norm_const")


def _bind_swiglu(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]:
    """The problem of a `GemmSwigluSm100`: output dtypes and major come from the output samples."""
    if any(given[f"sample_{name}"] is not None for name in _SCALES):
        return _bind_scaled(given)
    a, b, ab12, c = required_specs(given, "a", "b", "ab12", "c")
    ab12.require_rank(3, "(M, N, L)")
    c.require_rank(3, "(M, N/2, L)")
    problem = FORWARD.bind(
        a,
        b,
        c_major=common_major(ab12, c),
        ab12_dtype=ab12.dtype,
        c_dtype=c.dtype,
        **{key: given[key] for key in ("acc_dtype", "mma_tiler_mn", "cluster_shape_mn", "sf_vec_size", "ab12_stages")},
    )
    for sample, wanted in zip((ab12, c), problem.outputs, strict=True):
        check_sample(sample, wanted)
    require_same_device(a, ab12, c)
    return problem, (ab12, c), (given["alpha"],)


def _bind_scaled(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]:
    """The same in block-scaled mode."""
    require_both_scales(given["sample_sfa"], given["sample_sfb"])
    a, b, ab12, c, sfa, sfb = required_specs(given, "a", "b", "ab12", "c", "sfa", "sfb")
    norm_const, amax = sample_spec(given, "norm_const"), sample_spec(given, "amax")
    sfc = sample_spec(given, "sfc") if c.dtype.is_fp8 else None
    options = {**quantising_options(given, c, "sfc"), "ab12_stages": given["ab12_stages"]}
    problem = SCALED.bind(a, b, sfa, sfb, norm_const, major=common_major(ab12, c), ab12_dtype=ab12.dtype, **options)
    outputs = (ab12, c, sfc, amax)
    for sample, wanted in zip(outputs, problem.outputs, strict=True):
        check_sample(sample, wanted)
    require_same_device(a, *outputs)
    return problem, outputs, (given["alpha"],)


gemm_swiglu_wrapper_sm100 = make_function(
    LegacyFunction("gemm_swiglu_wrapper_sm100", gemm_swiglu_forward, _WRAPPER), __name__
)
gemm_swiglu_jax_sm100 = make_function(LegacyFunction("gemm_swiglu_jax_sm100", gemm_swiglu_jax_forward, _JAX), __name__)
GemmSwigluSm100 = make_class(
    LegacyClass(
        name="GemmSwigluSm100",
        op=FORWARD,
        parameters=_CLASS,
        execute=_EXECUTE,
        inputs=("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "norm_const_tensor"),
        outputs=("ab12_tensor", "c_tensor", "sfc_tensor", "amax_tensor"),
        scalars=("alpha",),
        absent=(),
        bind=_bind_swiglu,
        modes=(SCALED,),
    ),
    __name__,
)
