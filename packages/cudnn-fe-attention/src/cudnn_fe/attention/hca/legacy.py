"""Aligned HCA's gradients under the names of cudnn-frontend 1.32, from tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.attention.hca import aligned_hca_backward
from cudnn_fe.attention.hca.op import BACKWARD, CP_SIZES, GROUP
from cudnn_fe.attention.operands import check_samples
from cudnn_fe.core.legacy import LegacyClass, LegacyFunction, make_class, make_function
from cudnn_fe.core.op import Problem
from cudnn_fe.core.require import require_finite_positive
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["AlignedHCABackward", "aligned_hca_backward_wrapper"]

_INPUTS = BACKWARD.problem.operands
_GRADIENTS = ("dq", "dkv", "d_sink")
_SAMPLES = ", ".join(f"sample_{name}" for name in (*_INPUTS, *_GRADIENTS))


def _bind(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]:
    inputs, gradients = ([spec_of(given[f"sample_{name}"], name) for name in names] for names in (_INPUTS, _GRADIENTS))
    problem = BACKWARD.bind(*inputs, cp_rank=given["cp_rank"], cp_size=given["cp_size"])
    scale = require_finite_positive(given["softmax_scale"], "softmax_scale")
    return problem, check_samples(problem, tuple(gradients)), (scale,)


def _supports_configuration(local_tokens: int, cp_size: int, device: Any) -> bool:
    """Whether chunks of that many tokens are served for that many ranks; every device is."""
    del device
    return local_tokens % GROUP == 0 and cp_size in CP_SIZES


aligned_hca_backward_wrapper = make_function(
    LegacyFunction(
        "aligned_hca_backward_wrapper",
        aligned_hca_backward,
        """q, kv, out, dout, lse, attn_sink, *, cp_rank, softmax_scale=512**-0.5, dq=None, dkv=None, d_sink=None,
        workspace=None, current_stream=None, cp_size=16""",
    ),
    __name__,
)
AlignedHCABackward = make_class(
    LegacyClass(
        name="AlignedHCABackward",
        op=BACKWARD,
        parameters=f"{_SAMPLES}, *, cp_rank, softmax_scale=512**-0.5, cp_size=16",
        execute="q, kv, out, dout, lse, attn_sink, dq, dkv, d_sink, workspace, *, current_stream=None",
        inputs=_INPUTS,
        outputs=_GRADIENTS,
        scalars=(),
        absent=(),
        bind=_bind,
        methods={"supports_configuration": staticmethod(_supports_configuration)},
    ),
    __name__,
)
