"""The op under its names in cudnn-frontend 1.32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.frost import check_frost
from cudnn_fe.core.legacy import LegacyClass, make_class
from cudnn_fe.core.op import Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.norm_rope.rope_qdq import rope_qdq_inplace_forward
from cudnn_fe.norm_rope.rope_qdq.op import FORWARD

__all__ = ["RopeQDQInplace", "rope_qdq_inplace"]


def rope_qdq_inplace(
    x: Any,
    cache: Any,
    positions: Any,
    *,
    quantization: str,
    backend: str = "frost",
    stream: Any = None,
    group_size: int = 32,
    scale_format: str = "ue8m0",
) -> TupleDict:
    """`rope_qdq_inplace_forward` under its name in cudnn-frontend 1.32."""
    check_frost(backend, x=x, cache=cache)
    return rope_qdq_inplace_forward(
        x,
        cache,
        positions,
        quantization=quantization,
        stream=stream,
        group_size=group_size,
        scale_format=scale_format,
    )


def _bind(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec, ...], tuple[float, ...]]:
    check_frost(given["backend"], x=given["x"], cache=given["cache"])
    specs = [spec_of(given[name], name) for name in ("x", "cache", "positions")]
    options = {name: given[name] for name in ("quantization", "group_size", "scale_format")}
    problem = FORWARD.bind(*specs, **options)
    return problem, problem.outputs, ()


RopeQDQInplace = make_class(
    LegacyClass(
        name="RopeQDQInplace",
        op=FORWARD,
        parameters='x, cache, positions, *, quantization, backend="frost", group_size=32, scale_format="ue8m0"',
        execute="x, cache, positions, *, current_stream=None",
        inputs=("x", "cache", "positions"),
        outputs=("x",),
        scalars=(),
        absent=(),
        bind=_bind,
        # Leading extents and the cache's rows; heads, which the plan fixes, are checked by its own contract.
        free={"x": (0,), "cache": (0,), "positions": (0,), "out": (0,)},
        returns=("out=x",),
        scratch_bytes=lambda problem: 0,
    ),
    __name__,
)
