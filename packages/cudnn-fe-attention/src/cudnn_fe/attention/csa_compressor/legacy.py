"""The CSA compressor under the names of cudnn-frontend 1.32, from tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.attention.csa_compressor import csa_compressor_backward, csa_compressor_forward
from cudnn_fe.attention.csa_compressor.op import BACKWARD, FORWARD
from cudnn_fe.attention.operands import check_samples
from cudnn_fe.core.legacy import LegacyClass, LegacyFunction, make_class, make_function
from cudnn_fe.core.op import Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = [
    "CSACompressorBackward",
    "CSACompressorForward",
    "csa_compressor_backward_wrapper",
    "csa_compressor_forward_wrapper",
]

Bound = tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]
_INPUTS = ("kv", "score", "ape", "cu_seqlens", "cu_seqlens_comp")
_SAMPLES = ", ".join(f"sample_{name}" for name in (*_INPUTS, "out"))


def _bind_forward(given: Mapping[str, Any]) -> Bound:
    samples = [spec_of(given[f"sample_{name}"], name) for name in (*_INPUTS, "out")]
    *inputs, out = samples
    out.require_rank(2, "(total_comp, d)")
    options = {"ratio": given["ratio"], "coff": given["coff"], "head_dim": None, "total_comp": out.shape[0]}
    problem = FORWARD.bind(*inputs, **options)
    return problem, check_samples(problem, (out,)), ()


def _bind_backward(given: Mapping[str, Any]) -> Bound:
    inputs = [spec_of(given[f"sample_{name}"], name) for name in _INPUTS]
    grad = spec_of(given["sample_out"], "grad_out")
    problem = BACKWARD.bind(*inputs, grad, ratio=given["ratio"], coff=given["coff"], head_dim=None)
    return problem, problem.outputs, ()


csa_compressor_forward_wrapper = make_function(
    LegacyFunction(
        "csa_compressor_forward_wrapper",
        csa_compressor_forward,
        "kv, score, ape, cu_seqlens, cu_seqlens_comp, ratio=4, head_dim=None, coff=2, total_comp=None, stream=None",
    ),
    __name__,
)
csa_compressor_backward_wrapper = make_function(
    LegacyFunction(
        "csa_compressor_backward_wrapper",
        csa_compressor_backward,
        "kv, score, ape, cu_seqlens, cu_seqlens_comp, grad_out, ratio=4, head_dim=None, coff=2, stream=None, "
        "deterministic=False",
    ),
    __name__,
)
CSACompressorForward = make_class(
    LegacyClass(
        name="CSACompressorForward",
        op=FORWARD,
        parameters=f"{_SAMPLES}, ratio=4, coff=2",
        execute="kv, score, ape, cu_seqlens, cu_seqlens_comp, out, current_stream=None",
        inputs=_INPUTS,
        outputs=("out",),
        scalars=(),
        absent=(),
        bind=_bind_forward,
    ),
    __name__,
)
_Backward: Any = make_class(
    LegacyClass(
        name="CSACompressorBackward",
        op=BACKWARD,
        parameters=f"{_SAMPLES}, ratio=4, coff=2, deterministic=False",
        execute="kv, score, ape, cu_seqlens, cu_seqlens_comp, grad_out, grad_kv, grad_score, grad_ape, "
        "current_stream=None, workspace=None",
        inputs=(*_INPUTS, "grad_out"),
        outputs=("grad_kv", "grad_score", "grad_ape"),
        scalars=(),
        absent=(),
        bind=_bind_backward,
    ),
    __name__,
)


def _scratch_workspace_bytes(self: Any) -> int:
    """Bytes of the workspace that ``execute`` takes: none."""
    self.check_support()
    return 0


_Backward.scratch_workspace_bytes = _scratch_workspace_bytes
CSACompressorBackward = _Backward
