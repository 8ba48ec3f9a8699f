"""The class of NVFP4 attention's gradients, with the parameters of cudnn-frontend 1.32."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from cudnn_fe.attention.nvfp4_qat import check_hints
from cudnn_fe.attention.nvfp4_qat.op import BACKWARD
from cudnn_fe.attention.operands import softmax_factor
from cudnn_fe.core.class_api import OpClass
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["Nvfp4AttentionQatBackward"]


def _bound(op: Op, given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]:
    samples = ((name, given["sample_" + name.removesuffix("_tensor")]) for name in op.problem.operands)
    problem = op.bind(*(spec_of(sample, name) for name, sample in samples), is_causal=given["is_causal"])
    q = given["sample_q"]
    check_hints(q, given["backend"], given["head_chunk"], given["workspace_limit_bytes"])
    return problem, problem.outputs, (softmax_factor(q, given["softmax_scale"], sign="positive"),)


class Nvfp4AttentionQatBackward(OpClass):
    """Class API of `nvfp4_attention_qat_backward`: samples in, then ``check_support``, ``compile``, ``execute``.

    Args:
        sample_q: A tensor like the queries; the others likewise.
        sample_k: Keys.
        sample_v: Values.
        sample_high_precision_o: The output before probabilities are quantised.
        sample_do: Gradient of the output.
        sample_lse: The log-sum-exp.
        is_causal: Whether queries see keys up to their own place only.
        softmax_scale: Factor of the scores; None is ``D ** -0.5``.
        backend: Hint.
        head_chunk: Hint.
        workspace_limit_bytes: Hint.
    """

    op = BACKWARD
    _counts = 6, 3
    _bind = staticmethod(partial(_bound, BACKWARD))

    def __init__(
        self,
        sample_q: Any,
        sample_k: Any,
        sample_v: Any,
        sample_high_precision_o: Any,
        sample_do: Any,
        sample_lse: Any,
        *,
        is_causal: bool = False,
        softmax_scale: float | None = None,
        backend: str = "auto",
        head_chunk: int = 0,
        workspace_limit_bytes: int | None = None,
    ) -> None:
        self._set_up({name: value for name, value in locals().items() if name not in ("self", "__class__")})
        self._head_chunk = head_chunk

    @property
    def selected_backend(self) -> str | None:
        """What runs, once `check_support` has chosen it; None before."""
        from cudnn_fe.core.choose import choose

        return None if self._problem is None else choose(self.op, self._problem).backend

    @property
    def selected_head_chunk(self) -> int:
        """Heads at a time, once `check_support` has accepted them; 0 before."""
        return 0 if self._problem is None else self._head_chunk

    @property
    def fallback_reason(self) -> str | None:
        """Why another backend runs than the one asked for: never."""
        return None

    def execute(
        self,
        q_tensor: Any,
        k_tensor: Any,
        v_tensor: Any,
        high_precision_o_tensor: Any,
        do_tensor: Any,
        lse_tensor: Any,
        dq_tensor: Any,
        dk_tensor: Any,
        dv_tensor: Any,
        workspace: Any,
        *,
        softmax_scale: float | None = None,
        current_stream: Any = None,
    ) -> None:
        """Launch into the given outputs on ``current_stream``; a scale of None is the constructor's."""
        run = self._run or self._require_compiled()
        self._check_workspace(workspace)
        scale = self._scalars[0] if softmax_scale is None else softmax_factor(q_tensor, softmax_scale, sign="positive")
        inputs = do_tensor, q_tensor, k_tensor, v_tensor, high_precision_o_tensor, lse_tensor
        run(*inputs, dq_tensor, dk_tensor, dv_tensor, scale, current_stream)
