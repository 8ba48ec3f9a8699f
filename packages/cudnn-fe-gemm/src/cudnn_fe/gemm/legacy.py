"""The family's legacy names: one table, from which functions and classes are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.errors import ShapeError, StrideError
from cudnn_fe.core.legacy import LegacyClass, LegacyFunction, make_class, make_function
from cudnn_fe.core.op import Problem
from cudnn_fe.core.require import require_same_device
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.gemm.swiglu import gemm_swiglu_forward, gemm_swiglu_jax_forward, refuse_block_scaled
from cudnn_fe.gemm.swiglu.op import FORWARD

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


def _bind_swiglu(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec, ...], tuple[float, ...]]:
    """The problem of a `GemmSwigluSm100`: output dtypes and major come from the output samples."""
    scales = {f"sample_{name}": given[f"sample_{name}"] for name in _SCALES}
    if any(sample is not None for sample in scales.values()):
        refuse_block_scaled(**scales)
    a, b = (spec_of(given[f"sample_{name}"], f"{name}_tensor") for name in ("a", "b"))
    ab12, c = (spec_of(given[f"sample_{name}"], f"{name}_tensor") for name in ("ab12", "c"))
    ab12.require_rank(3, "(M, N, L)")
    c.require_rank(3, "(M, N/2, L)")
    problem = FORWARD.bind(
        a,
        b,
        c_major="n" if ab12.dense_in(1) and c.dense_in(1) else "m",
        ab12_dtype=ab12.dtype,
        c_dtype=c.dtype,
        **{key: given[key] for key in ("acc_dtype", "mma_tiler_mn", "cluster_shape_mn", "sf_vec_size", "ab12_stages")},
    )
    for sample, wanted in zip((ab12, c), problem.outputs, strict=True):
        if sample.shape != wanted.shape:
            raise ShapeError(
                sample.name, got=str(sample.shape), wanted=str(wanted.shape), remedy="allocate the documented shape"
            )
        if sample.strides != wanted.strides:
            raise StrideError(
                sample.name,
                got=str(sample.strides),
                wanted=f"{wanted.strides}: compact, both outputs contiguous along one same dim, batch outermost",
                remedy="allocate it compact, both outputs with the same major",
            )
    require_same_device(a, ab12, c)
    return problem, (ab12, c), (given["alpha"],)


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
        inputs=("a_tensor", "b_tensor"),
        outputs=("ab12_tensor", "c_tensor"),
        scalars=("alpha",),
        absent=tuple(f"{name}_tensor" for name in _SCALES),
        bind=_bind_swiglu,
    ),
    __name__,
)
