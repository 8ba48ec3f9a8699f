"""The classes of cudnn-frontend 1.32; its functions have the arch-neutral names already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cudnn_fe.core.frost import check_frost
from cudnn_fe.core.legacy import Bind, LegacyClass, make_class
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_finite_positive
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.norm_rope.engram_gate.op import BACKWARD, CHANNELS, FORWARD, STREAMS

__all__ = ["EngramGateSavedBackward", "EngramGateSavedForward"]


def _binder(op: Op) -> Bind:
    def bind(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec, ...], tuple[float, ...]]:
        check_frost(given["backend"])
        scalars = tuple(require_finite_positive(given[name], name) for name in op.scalars)
        problem = op.bind(*(spec_of(given[name], name) for name in op.problem.operands))
        return problem, problem.outputs, scalars

    return bind


def _workspace_bytes(problem: Any) -> int:
    # A partial sum of the weight's gradient for every 16 tokens, and the documented words of every token.
    tokens = int(problem.x.shape[0])
    return 4 * (16 * tokens + STREAMS * CHANNELS * max(tokens // 16, 1))


def _allocate_workspace(self: Any) -> Any:
    """A fresh buffer of ``scratch_workspace_bytes()`` bytes where the samples live."""
    import torch  # the class API's buffers are torch's

    return torch.empty(self.scratch_workspace_bytes(), dtype=torch.uint8, device=self.problem.device)


def _class(name: str, op: Op, parameters: str, execute: str, **more: Any) -> Callable[..., Any]:
    inputs = op.problem.operands
    return make_class(
        LegacyClass(
            name=name,
            op=op,
            parameters=parameters,
            execute=execute,
            inputs=inputs,
            outputs=op.results,
            scalars=(),
            absent=(),
            bind=_binder(op),
            free={},
            returns=op.results,
            **more,
        ),
        __name__,
    )


EngramGateSavedForward = _class(
    "EngramGateSavedForward",
    FORWARD,
    'x, kv, weight, token_mask, *, eps=1e-20, backend="frost"',
    "x, kv, weight, token_mask, out, saved, *, current_stream=None",
    scratch_bytes=lambda problem: 0,
)
EngramGateSavedBackward = _class(
    "EngramGateSavedBackward",
    BACKWARD,
    'x, kv, weight, saved, grad_out, *, backend="frost"',
    "x, kv, weight, saved, grad_out, grad_x, grad_kv, grad_weight, workspace, *, current_stream=None",
    scratch_bytes=_workspace_bytes,
    methods={"allocate_workspace": _allocate_workspace},
)
