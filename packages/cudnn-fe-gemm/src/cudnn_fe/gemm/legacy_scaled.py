"""The legacy names of the block-scaled GEMMs: tables, from which functions and classes are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.legacy import LegacyClass, LegacyFunction, make_class, make_function
from cudnn_fe.core.op import Problem
from cudnn_fe.core.require import require_same_device
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.gemm.amax import gemm_amax_forward, gemm_amax_jax_forward
from cudnn_fe.gemm.amax.op import AMAX
from cudnn_fe.gemm.dsrelu import gemm_srelu_backward, gemm_srelu_jax_backward
from cudnn_fe.gemm.dsrelu.op import DSRELU
from cudnn_fe.gemm.samples import (
    check_sample,
    common_major,
    one_element,
    quantising_options,
    required_specs,
    sample_spec,
)
from cudnn_fe.gemm.srelu import gemm_srelu_forward, gemm_srelu_jax_forward
from cudnn_fe.gemm.srelu.op import SRELU

__all__ = [
    "GemmAmaxSm100",
    "GemmDsreluSm100",
    "GemmSreluSm100",
    "gemm_amax_jax_sm100",
    "gemm_amax_wrapper_sm100",
    "gemm_dsrelu_jax_sm100",
    "gemm_dsrelu_wrapper_sm100",
    "gemm_srelu_jax_sm100",
    "gemm_srelu_wrapper_sm100",
]

_Bound = tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]

_AMAX_TAIL = "mma_tiler_mn=(128, 128), cluster_shape_mn=(1, 1), sf_vec_size=32"
_AMAX_WRAPPER = f"""a_tensor, b_tensor, sfa_tensor, sfb_tensor, c_major="n", c_dtype="float32", acc_dtype="float32",
    {_AMAX_TAIL}, stream=None"""
_AMAX_JAX = f'a_tensor, b_tensor, sfa_tensor, sfb_tensor, c_dtype="float32", acc_dtype="float32", {_AMAX_TAIL}'
_AMAX_CLASS = f'sample_a, sample_b, sample_sfa, sample_sfb, sample_c, sample_amax, acc_dtype="float32", {_AMAX_TAIL}'
_AMAX_EXECUTE = "a_tensor, b_tensor, sfa_tensor, sfb_tensor, c_tensor, amax_tensor, current_stream=None"

_TILES = "mma_tiler_mn=(256, 256), cluster_shape_mn=None"
_SRELU_WRAPPER = f"""a_tensor, b_tensor, sfa_tensor, sfb_tensor, prob_tensor, alpha=1.0, c_major="n",
    c_dtype="bfloat16", d_dtype="bfloat16", acc_dtype="float32", {_TILES}, norm_const_tensor=None,
    sf_vec_size=16, vector_f32=False, stream=None"""
_SRELU_JAX = f"""a_tensor, b_tensor, sfa_tensor, sfb_tensor, prob_tensor, alpha=1.0, c_dtype="bfloat16",
    d_dtype="bfloat16", acc_dtype="float32", {_TILES}, sf_vec_size=16, vector_f32=False"""
_SCALES = "sample_sfa, sample_sfb, sample_prob"
_CLASS_TAIL = f"""sample_sfd=None, sample_amax=None, sample_norm_const=None, alpha=1.0, acc_dtype="float32", {_TILES},
    sf_vec_size=16, vector_f32=False"""
_EXECUTE_TAIL = """sfa_tensor, sfb_tensor, prob_tensor, sfd_tensor=None, amax_tensor=None, norm_const_tensor=None,
    alpha=None, current_stream=None"""
_DSRELU_WRAPPER = f"""a_tensor, b_tensor, c_tensor, sfa_tensor, sfb_tensor, prob_tensor, alpha=1.0, d_major="n",
    d_dtype="bfloat16", acc_dtype="float32", {_TILES}, norm_const_tensor=None, sf_vec_size=16, vector_f32=False,
    stream=None"""
_DSRELU_JAX = f"""a_tensor, b_tensor, c_tensor, sfa_tensor, sfb_tensor, prob_tensor, alpha=1.0, d_dtype="bfloat16",
    acc_dtype="float32", {_TILES}, sf_vec_size=16, vector_f32=False"""


def _bind_amax(given: Mapping[str, Any]) -> _Bound:
    a, b, sfa, sfb, c, amax = required_specs(given, "a", "b", "sfa", "sfb", "c", "amax")
    names = ("acc_dtype", "mma_tiler_mn", "cluster_shape_mn", "sf_vec_size")
    options = {name: given[name] for name in names}
    shape = one_element(amax)
    problem = AMAX.bind(a, b, sfa, sfb, c_major=common_major(c), c_dtype=c.dtype, amax_shape=shape, **options)
    for sample, wanted in zip((c, amax), problem.outputs, strict=True):
        check_sample(sample, wanted)
    require_same_device(a, c, amax)
    return problem, (c, amax), ()


def _bind_srelu(given: Mapping[str, Any]) -> _Bound:
    a, b, c, d, sfa, sfb, prob = required_specs(given, "a", "b", "c", "d", "sfa", "sfb", "prob")
    norm_const, amax = sample_spec(given, "norm_const"), sample_spec(given, "amax")
    options = quantising_options(given, d, "sfd")
    problem = SRELU.bind(a, b, sfa, sfb, prob, norm_const, major=common_major(c, d), c_dtype=c.dtype, **options)
    sfd = sample_spec(given, "sfd") if d.dtype.is_fp8 else None
    for sample, wanted in zip((c, d, amax, sfd), problem.outputs, strict=True):
        check_sample(sample, wanted)
    require_same_device(a, c, d, amax, sfd)
    return problem, (c, d, amax, sfd), (given["alpha"],)


def _bind_dsrelu(given: Mapping[str, Any]) -> _Bound:
    a, b, c, d, dprob, sfa, sfb, prob = required_specs(given, "a", "b", "c", "d", "dprob", "sfa", "sfb", "prob")
    norm_const, amax = sample_spec(given, "norm_const"), sample_spec(given, "amax")
    options = quantising_options(given, d, "sfd")
    problem = DSRELU.bind(a, b, sfa, sfb, c, prob, norm_const, major=common_major(d), **options)
    sfd = sample_spec(given, "sfd") if d.dtype.is_fp8 else None
    for sample, wanted in zip((d, dprob, amax, sfd), problem.outputs, strict=True):
        check_sample(sample, wanted, any_strides=wanted.name == "dprob_tensor")
    require_same_device(a, d, dprob, amax, sfd)
    return problem, (d, dprob, amax, sfd), (given["alpha"],)


gemm_amax_wrapper_sm100 = make_function(
    LegacyFunction("gemm_amax_wrapper_sm100", gemm_amax_forward, _AMAX_WRAPPER), __name__
)
gemm_amax_jax_sm100 = make_function(LegacyFunction("gemm_amax_jax_sm100", gemm_amax_jax_forward, _AMAX_JAX), __name__)
gemm_srelu_wrapper_sm100 = make_function(
    LegacyFunction("gemm_srelu_wrapper_sm100", gemm_srelu_forward, _SRELU_WRAPPER), __name__
)
gemm_srelu_jax_sm100 = make_function(
    LegacyFunction("gemm_srelu_jax_sm100", gemm_srelu_jax_forward, _SRELU_JAX), __name__
)
gemm_dsrelu_wrapper_sm100 = make_function(
    LegacyFunction("gemm_dsrelu_wrapper_sm100", gemm_srelu_backward, _DSRELU_WRAPPER), __name__
)
gemm_dsrelu_jax_sm100 = make_function(
    LegacyFunction("gemm_dsrelu_jax_sm100", gemm_srelu_jax_backward, _DSRELU_JAX), __name__
)
GemmAmaxSm100 = make_class(
    LegacyClass(
        name="GemmAmaxSm100",
        op=AMAX,
        parameters=_AMAX_CLASS,
        execute=_AMAX_EXECUTE,
        inputs=("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor"),
        outputs=("c_tensor", "amax_tensor"),
        scalars=(),
        absent=(),
        bind=_bind_amax,
    ),
    __name__,
)
GemmSreluSm100 = make_class(
    LegacyClass(
        name="GemmSreluSm100",
        op=SRELU,
        parameters=f"sample_a, sample_b, sample_c, sample_d, {_SCALES}, {_CLASS_TAIL}",
        execute=f"a_tensor, b_tensor, c_tensor, d_tensor, {_EXECUTE_TAIL}",
        inputs=("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "prob_tensor", "norm_const_tensor"),
        outputs=("c_tensor", "d_tensor", "amax_tensor", "sfd_tensor"),
        scalars=("alpha",),
        absent=(),
        bind=_bind_srelu,
    ),
    __name__,
)
GemmDsreluSm100 = make_class(
    LegacyClass(
        name="GemmDsreluSm100",
        op=DSRELU,
        parameters=f"sample_a, sample_b, sample_c, sample_d, sample_dprob, {_SCALES}, {_CLASS_TAIL}",
        execute=f"a_tensor, b_tensor, c_tensor, d_tensor, dprob_tensor, {_EXECUTE_TAIL}",
        inputs=("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "c_tensor", "prob_tensor", "norm_const_tensor"),
        outputs=("d_tensor", "dprob_tensor", "amax_tensor", "sfd_tensor"),
        scalars=("alpha",),
        absent=(),
        bind=_bind_dsrelu,
    ),
    __name__,
)
