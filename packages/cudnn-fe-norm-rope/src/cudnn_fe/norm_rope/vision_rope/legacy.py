"""The op under its names in cudnn-frontend 1.32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.frost import check_frost
from cudnn_fe.core.legacy import LegacyClass, make_class
from cudnn_fe.core.op import Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.norm_rope.vision_rope import vision_rope_backward
from cudnn_fe.norm_rope.vision_rope.op import BACKWARD

__all__ = ["VisionRoPEBackward", "vision_rope_backward_wrapper"]

_INPUTS = BACKWARD.problem.operands


def vision_rope_backward_wrapper(
    grad_q: Any,
    grad_k: Any,
    grad_v: Any,
    cosine: Any,
    sine: Any,
    *,
    backend: str = "frost",
    current_stream: Any = None,
) -> TupleDict:
    """`vision_rope_backward` under its name in cudnn-frontend 1.32."""
    check_frost(backend)
    return vision_rope_backward(grad_q, grad_k, grad_v, cosine, sine, current_stream=current_stream)


def _bind(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec, ...], tuple[float, ...]]:
    check_frost(given["backend"])
    problem = BACKWARD.bind(*(spec_of(given[name], name) for name in _INPUTS))
    return problem, problem.outputs, ()


VisionRoPEBackward = make_class(
    LegacyClass(
        name="VisionRoPEBackward",
        op=BACKWARD,
        parameters='grad_q, grad_k, grad_v, cosine, sine, *, backend="frost"',
        execute="grad_q, grad_k, grad_v, cosine, sine, grad_qkv, current_stream=None",
        inputs=_INPUTS,
        outputs=("grad_qkv",),
        scalars=(),
        absent=(),
        bind=_bind,
        free=dict.fromkeys((*_INPUTS, "grad_qkv"), (0,)),
        returns=("grad_qkv",),
        bare=True,
        scratch_bytes=lambda problem: 0,
    ),
    __name__,
)
