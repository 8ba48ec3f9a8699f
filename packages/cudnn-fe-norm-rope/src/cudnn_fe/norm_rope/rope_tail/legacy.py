"""The op under its names in cudnn-frontend 1.32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.frost import check_frost
from cudnn_fe.core.legacy import LegacyClass, make_class
from cudnn_fe.core.op import Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.norm_rope.rope_tail import tail_rope_forward
from cudnn_fe.norm_rope.rope_tail.op import FORWARD

__all__ = ["TailRoPEForward", "tail_rope"]


def tail_rope(x: Any, cosine: Any, sine: Any, *, backend: str = "frost", stream: Any = None) -> TupleDict:
    """`tail_rope_forward` under its name in cudnn-frontend 1.32; tensors that require gradients are refused."""
    check_frost(backend, x=x, cosine=cosine, sine=sine)
    return tail_rope_forward(x, cosine, sine, stream=stream)


def _bind(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec, ...], tuple[float, ...]]:
    check_frost(given["backend"], **{name: given[name] for name in ("x", "cosine", "sine", "out")})
    problem = FORWARD.bind(*(spec_of(given[name], name) for name in ("x", "cosine", "sine")))
    out = spec_of(given["out"], "out")
    problem.check_output(0, out)
    return problem, (out,), ()


TailRoPEForward = make_class(
    LegacyClass(
        name="TailRoPEForward",
        op=FORWARD,
        parameters='x, cosine, sine, out, *, backend="frost"',
        execute="x, cosine, sine, out, *, current_stream=None",
        inputs=("x", "cosine", "sine"),
        outputs=("out",),
        scalars=(),
        absent=(),
        bind=_bind,
        free=dict.fromkeys(("x", "cosine", "sine", "out"), (0,)),
        returns=("out",),
        scratch_bytes=lambda problem: 0,
    ),
    __name__,
)
