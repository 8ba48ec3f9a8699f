"""The class of cudnn-frontend 1.32; its function has the arch-neutral name already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.class_api import OpClass
from cudnn_fe.core.frost import check_frost
from cudnn_fe.core.legacy import LegacyClass, make_class
from cudnn_fe.core.op import Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.gemm.mhc_projection.op import BACKWARD

__all__ = ["MhcProjectionBackward"]

_INPUTS = BACKWARD.problem.operands
_SPLITS = 8  # of the rows, for whose partial sums the documented workspace has room


def _bind(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec, ...], tuple[float, ...]]:
    check_frost(given["backend"])
    specs = [spec_of(given[name], name) for name in _INPUTS]
    problem = BACKWARD.bind(*specs, allow_tf32=given["allow_tf32"])
    outputs = tuple(spec_of(given[name], name) for name in BACKWARD.results)
    for position, sample in enumerate(outputs):
        problem.check_output(position, sample)
    return problem, outputs, ()


def _workspace_bytes(problem: Any) -> int:
    n, k = problem.weight.shape
    return _SPLITS * n * k * 4


def _compile(self: Any) -> Any:
    """Compile or load the kernel; the second call does nothing. Returns the object itself."""
    OpClass.compile(self)
    return self


MhcProjectionBackward = make_class(
    LegacyClass(
        name="MhcProjectionBackward",
        op=BACKWARD,
        parameters='x, weight, grad_proj, grad_r, r, dx, dweight, *, allow_tf32=False, backend="frost"',
        execute="x, weight, grad_proj, grad_r, r, dx, dweight, workspace, current_stream=None",
        inputs=_INPUTS,
        outputs=BACKWARD.results,
        scalars=(),
        absent=(),
        bind=_bind,
        scratch_bytes=_workspace_bytes,
        methods={"compile": _compile},
    ),
    __name__,
)
