"""Samples of the class API: what they say about the problem, and whether they are what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError, StrideError
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.gemm.scaled import is_atom_form

__all__ = ["check_sample", "common_major", "one_element", "quantising_options", "required_specs", "sample_spec"]


def sample_spec(given: Mapping[str, Any], name: str) -> TensorSpec | None:
    """The sample called ``sample_<name>``, or None where it is."""
    found = given[f"sample_{name}"]
    return None if found is None else spec_of(found, f"{name}_tensor")


def required_specs(given: Mapping[str, Any], *names: str) -> tuple[TensorSpec, ...]:
    """The samples of these names, all of which must be there."""
    return tuple(spec_of(given[f"sample_{name}"], f"{name}_tensor") for name in names)


def check_sample(sample: TensorSpec | None, wanted: TensorSpec, *, any_strides: bool = False) -> None:
    """Raises unless an output's sample is what the problem returns."""
    if sample is None:
        return
    if sample.shape != wanted.shape:
        remedy = "allocate the documented shape"
        raise ShapeError(sample.name, got=str(sample.shape), wanted=str(wanted.shape), remedy=remedy)
    if sample.dtype != wanted.dtype:
        raise DTypeError(sample.name, got=str(sample.dtype), wanted=str(wanted.dtype), remedy="allocate that dtype")
    if sample.strides != wanted.strides and not any_strides:
        wanted_text = f"{wanted.strides}: compact, batch outermost, all results contiguous along the same dim"
        raise StrideError(sample.name, got=str(sample.strides), wanted=wanted_text, remedy="allocate it compact")


def one_element(sample: TensorSpec | None) -> tuple[int, ...]:
    """The shape of amax's sample; raises ShapeError unless it has one element."""
    if sample is not None and sample.size != 1:
        raise ShapeError(sample.name, got=str(sample.shape), wanted="one element", remedy="allocate (1, 1, 1)")
    return (1,) if sample is None else sample.shape


def common_major(*samples: TensorSpec) -> str:
    """``"n"`` if all are contiguous along their columns, else ``"m"``."""
    return "n" if all(sample.ndim == 3 and sample.dense_in(1) for sample in samples) else "m"


def quantising_options(given: Mapping[str, Any], result: TensorSpec, scales_name: str) -> dict[str, Any]:
    """Options that follow from the samples of a result that may be quantised, of its scales and its amax."""
    scales, amax = sample_spec(given, scales_name), sample_spec(given, "amax")
    if result.dtype.is_fp8 and scales is None:
        wanted = f"a buffer for the scales of a {result.dtype} {result.name}"
        raise OptionError(f"sample_{scales_name}", got="None", wanted=wanted, remedy="pass one")
    names = ("acc_dtype", "mma_tiler_mn", "cluster_shape_mn", "sf_vec_size")
    return {
        **{name: given[name] for name in names},
        "result_dtype": result.dtype,
        "scales_atom": scales is not None and is_atom_form(scales),
        "amax_shape": one_element(amax),
    }
