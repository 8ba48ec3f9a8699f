"""Rules that the attention contracts share."""

from __future__ import annotations

import math
from typing import Any, Literal

from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, NotYetSupportedError, OptionError, OptionTypeError, ShapeError
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.op import Problem
from cudnn_fe.core.require import (
    require_dtype,
    require_finite_positive,
    require_rows,
    require_same_device,
    require_shape,
)
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides, spec_of

__all__ = [
    "FLOATS",
    "STATISTICS",
    "Sign",
    "check_samples",
    "compact",
    "default_scale",
    "deliver",
    "require_finite",
    "require_flag",
    "require_groups",
    "require_offsets",
    "require_positive",
    "require_same_dtype",
    "require_statistic",
    "require_streamable",
    "softmax_factor",
    "statistics_dtype",
]

FLOATS = ("float16", "bfloat16", "float32", "float64")
Sign = Literal["any", "not negative", "positive"]  # of a factor
STATISTICS = ("float32", "float64")  # of log-sum-exps and the like: the second beside float64 operands


def compact(
    name: str, shape: tuple[int, ...], dtype: DType, device: str, order: tuple[int, ...] | None = None
) -> TensorSpec:
    """A compact result; ``order`` lists dims from the innermost, row-major when None."""
    return TensorSpec(shape, contiguous_strides(shape, order), dtype, device, 16, name)


def statistics_dtype(q: TensorSpec) -> DType:
    """What log-sum-exps and sums of exponentials are kept in."""
    return dtype("float64" if q.dtype.name == "float64" else "float32")


def require_same_dtype(first: TensorSpec, *others: TensorSpec) -> None:
    """Raises DTypeError unless all operands have the first one's element type."""
    for other in others:
        if other.dtype != first.dtype:
            raise DTypeError(
                other.name,
                got=str(other.dtype),
                wanted=f"{first.dtype}, the dtype of {first.name}",
                remedy="cast one of the operands",
            )


def require_streamable(allowed: tuple[str, ...], first: TensorSpec, *others: TensorSpec) -> None:
    """Raises unless the operands share one allowed dtype and place and are contiguous along channels."""
    require_dtype(first, *allowed)
    require_same_dtype(first, *others)
    require_same_device(first, *others)
    for spec in (first, *others):
        require_rows(spec)


def require_groups(query_heads: int, key_heads: int, name: str) -> None:
    """Raises ShapeError unless query heads divide into groups, one per key head."""
    if query_heads != key_heads and (key_heads < 1 or query_heads % key_heads):
        raise ShapeError(
            name,
            got=f"{query_heads} query heads and {key_heads} key heads",
            wanted="a multiple of the key heads",
            remedy="repeat or drop heads",
        )


def require_offsets(spec: TensorSpec, like: TensorSpec | None = None) -> int:
    """Validates cumulative lengths (B+1,) and returns B."""
    require_dtype(spec, "int32", "int64")
    spec.require_rank(1, "(B+1,)")
    if spec.shape[0] < 2 or (like is not None and like.shape != spec.shape):
        wanted = "at least two offsets" if like is None else f"{like.shape}, the shape of {like.name}"
        raise ShapeError(spec.name, got=str(spec.shape), wanted=wanted, remedy="pass B+1 offsets that start at 0")
    return spec.shape[0] - 1


def deliver(
    results: tuple[Any, ...], buffers: tuple[Any, ...], names: tuple[str, ...], *, stream: Any = None
) -> tuple[Any, ...]:
    """The results, each in the caller's buffer where there is one; copied on ``stream``.

    Raises:
        ShapeError, DTypeError, NotYetSupportedError: A buffer of another shape or dtype, or of a framework whose
            arrays do not change.
    """
    placed = []
    for result, buffer, name in zip(results, buffers, names, strict=True):
        if buffer is None:
            placed.append(result)
            continue
        framework = framework_of(buffer, operand=name)
        if framework not in ("torch", "numpy") or framework != framework_of(result):
            raise NotYetSupportedError(
                name, got=f"a {framework} buffer", wanted="None", remedy="use the array that is returned"
            )
        given, wanted = spec_of(buffer, name), spec_of(result, name)
        if given.shape != wanted.shape:
            raise ShapeError(name, got=str(given.shape), wanted=str(wanted.shape), remedy="allocate like the operand")
        require_dtype(given, wanted.dtype.name)
        require_same_device(wanted, given)
        require_rows(given)
        if framework == "torch":
            _copy(buffer, result, stream)
        else:
            buffer[...] = result
        placed.append(buffer)
    return tuple(placed)


def _copy(buffer: Any, result: Any, stream: Any) -> None:
    import torch  # they are its tensors

    from cudnn_fe.core.streams import torch_stream

    with torch.no_grad():
        if stream is None or not buffer.is_cuda:
            buffer.copy_(result)
            return
        launch = torch_stream(stream, buffer.get_device())
        with torch.cuda.stream(launch):
            buffer.copy_(result)
        buffer.record_stream(launch)


def require_flag(value: Any, name: str) -> None:
    """Raises OptionTypeError unless ``value`` is a bool."""
    if not isinstance(value, bool):
        raise OptionTypeError(name, got=repr(value), wanted="True or False", remedy="pass a Python bool")


def check_samples(problem: Problem, samples: tuple[TensorSpec | None, ...]) -> tuple[TensorSpec | None, ...]:
    """The samples of a class's outputs, checked against the problem's."""
    for sample, wanted in zip(samples, problem.outputs, strict=True):
        if sample is None:
            continue
        if sample.shape != wanted.shape:
            raise ShapeError(sample.name, got=str(sample.shape), wanted=str(wanted.shape), remedy="allocate that shape")
        if sample.dtype != wanted.dtype:
            raise DTypeError(sample.name, got=str(sample.dtype), wanted=str(wanted.dtype), remedy="allocate that dtype")
    return samples


def require_positive(value: Any, name: str) -> None:
    """Raises OptionError unless ``value`` is an int above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(name, got=repr(value), wanted="an int above 0", remedy="pass a Python int")


def require_statistic(spec: TensorSpec, shape: tuple[int, ...], words: str, like: TensorSpec) -> None:
    """Validates a float32 tensor, float64 beside float64 operands, of one number per row or head."""
    require_dtype(spec, statistics_dtype(like).name)
    require_shape(spec, shape, words)
    require_same_device(like, spec)


def require_finite(value: Any, name: str) -> float:
    """``value`` as a float; raises OptionError unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OptionError(name, got=repr(value), wanted="a finite number", remedy="pass e.g. 0.125")
    return float(value)


def default_scale(q: Any) -> float:
    """``D ** -0.5`` of queries whose last dim is D; 1 for what has no dims, which the contract refuses by name."""
    return 1.0 / math.sqrt(max((getattr(q, "shape", None) or (1,))[-1], 1))


def softmax_factor(q: Any, given: Any, name: str = "softmax_scale", sign: Sign = "any") -> float:
    """The factor of scores: a finite number of that sign, or ``D ** -0.5`` of queries whose last dim is D."""
    if given is None:
        return default_scale(q)
    if sign == "positive":
        return require_finite_positive(given, name)
    factor = require_finite(given, name)
    if sign == "not negative" and factor < 0:
        raise OptionError(
            name, got=repr(given), wanted="a finite number that is not negative", remedy="pass e.g. 0.125"
        )
    return factor
