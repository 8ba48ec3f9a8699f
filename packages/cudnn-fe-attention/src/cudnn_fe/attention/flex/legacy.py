"""The classes of flex attention under the names of cudnn-frontend 1.32."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from cudnn_fe.attention.flex.op import BACKWARD, FORWARD
from cudnn_fe.attention.flex.plan import MaskPlan, match_plan
from cudnn_fe.attention.operands import check_samples, require_flag, softmax_factor
from cudnn_fe.core.class_api import OpClass
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["FlexAttentionBwd", "FlexAttentionFwd"]

Bound = tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]


def _spec(given: Mapping[str, Any], name: str) -> TensorSpec | None:
    sample = given["sample_" + name.removesuffix("_tensor")]
    return None if sample is None else spec_of(sample, name)


def _bound(op: Op, given: Mapping[str, Any]) -> Bound:
    plan: MaskPlan = given["sample_mask_plan"]
    metadata = match_plan(plan, *(given[f"sample_{name}"] for name in "qkv"))
    tensors = dict(zip(("mask_func", "cu_seqlens_q", "cu_seqlens_k"), plan.tensors, strict=True))
    plans = {name: None if x is None else spec_of(x, name) for name, x in tensors.items()}
    specs = (plans[name] if name in plans else _spec(given, name) for name in op.problem.operands)
    options = {"deterministic": given["deterministic"], "has_backward": metadata.has_backward}
    problem = op.bind(*specs, **options)
    samples = check_samples(problem, tuple(_spec(given, name) for name in op.results))
    return problem, samples, (softmax_factor(given["sample_q"], None),)


class _FlexClass(OpClass):
    """What both classes share: a plan may differ from the sample's in its mask, endpoints included."""

    _free = {"mask_func": (0, 1)}  # noqa: RUF012 - declared as a ClassVar by the base
    _workspace_dtype = None

    @property
    def workspace_size(self) -> int:
        """Bytes of the workspace that ``execute`` takes."""
        return self.scratch_workspace_bytes()

    def _launch(self, q: Any, inputs: Any, outputs: Any, mask_plan: MaskPlan, scale: Any, stream: Any) -> None:
        run = self._run or self._require_compiled()
        match_plan(mask_plan, *q)
        run(*inputs, *outputs, self._scalars[0] if scale is None else softmax_factor(q[0], scale), stream)


class FlexAttentionFwd(_FlexClass):
    """Class API of `flex_attention_forward`: samples in, then ``check_support``, ``compile``, ``execute``.

    Args:
        sample_q: A tensor like the queries; the others likewise.
        sample_k: Keys.
        sample_v: Values.
        sample_o: The output.
        sample_mask_plan: A plan for such operands.
        sample_lse: The log-sum-exp, where it is wanted.
        sm90_use_smem_mask_pipeline: Hint without effect on results.
        sample_max_logit: The largest scores, where they are wanted.
    """

    op = FORWARD
    _counts = 6, 3
    _bind = staticmethod(partial(_bound, FORWARD))

    def __init__(
        self,
        sample_q: Any,
        sample_k: Any,
        sample_v: Any,
        sample_o: Any,
        sample_mask_plan: Any,
        sample_lse: Any = None,
        *,
        sm90_use_smem_mask_pipeline: bool = True,
        sample_max_logit: Any = None,
    ) -> None:
        require_flag(sm90_use_smem_mask_pipeline, "sm90_use_smem_mask_pipeline")
        self._set_up(
            {
                "sample_q": sample_q,
                "sample_k": sample_k,
                "sample_v": sample_v,
                "sample_o": sample_o,
                "sample_lse": sample_lse,
                "sample_max_logit": sample_max_logit,
                "sample_mask_plan": sample_mask_plan,
                "deterministic": False,
            }
        )

    def execute(
        self,
        q_tensor: Any,
        k_tensor: Any,
        v_tensor: Any,
        o_tensor: Any,
        mask_plan: MaskPlan,
        lse_tensor: Any = None,
        *,
        workspace: Any = None,
        softmax_scale: float | None = None,
        current_stream: Any = None,
        max_logit_tensor: Any = None,
    ) -> None:
        """Launch into the given outputs on ``current_stream``; ``softmax_scale`` is ``D ** -0.5`` where it is None."""
        q = q_tensor, k_tensor, v_tensor
        if max_logit_tensor is not None:
            softmax_factor(q_tensor, softmax_scale, sign="not negative")
        outputs = o_tensor, lse_tensor, max_logit_tensor
        self._check_workspace(workspace)
        self._launch(q, (*q, *_tensors(mask_plan)), outputs, mask_plan, softmax_scale, current_stream)


class FlexAttentionBwd(_FlexClass):
    """Class API of `flex_attention_backward`: samples in, then ``check_support``, ``compile``, ``execute``.

    Args:
        sample_q: A tensor like the queries; the others likewise.
        sample_k: Keys.
        sample_v: Values.
        sample_o: The forward's output.
        sample_do: Its gradient.
        sample_lse: The forward's log-sum-exp.
        sample_dq: Gradient of Q.
        sample_dk: Gradient of K.
        sample_dv: Gradient of V.
        sample_mask_plan: A plan for such operands, with a backward.
        sample_dlse: Gradient of the log-sum-exp, where there is one.
        deterministic: Whether results must be bit-equal from run to run.
    """

    op = BACKWARD
    _counts = 10, 3
    _bind = staticmethod(partial(_bound, BACKWARD))

    def __init__(
        self,
        sample_q: Any,
        sample_k: Any,
        sample_v: Any,
        sample_o: Any,
        sample_do: Any,
        sample_lse: Any,
        sample_dq: Any,
        sample_dk: Any,
        sample_dv: Any,
        sample_mask_plan: Any,
        sample_dlse: Any = None,
        *,
        deterministic: bool = False,
    ) -> None:
        self._set_up(
            {
                "sample_q": sample_q,
                "sample_k": sample_k,
                "sample_v": sample_v,
                "sample_o": sample_o,
                "sample_do": sample_do,
                "sample_lse": sample_lse,
                "sample_dq": sample_dq,
                "sample_dk": sample_dk,
                "sample_dv": sample_dv,
                "sample_mask_plan": sample_mask_plan,
                "sample_dlse": sample_dlse,
                "deterministic": deterministic,
            }
        )

    def execute(
        self,
        q_tensor: Any,
        k_tensor: Any,
        v_tensor: Any,
        o_tensor: Any,
        do_tensor: Any,
        lse_tensor: Any,
        dq_tensor: Any,
        dk_tensor: Any,
        dv_tensor: Any,
        mask_plan: MaskPlan,
        dlse_tensor: Any = None,
        *,
        workspace: Any,
        softmax_scale: float | None = None,
        current_stream: Any = None,
    ) -> None:
        """Launch into the given outputs on ``current_stream``; ``softmax_scale`` is ``D ** -0.5`` where it is None."""
        q = q_tensor, k_tensor, v_tensor
        inputs = (do_tensor, *q, o_tensor, lse_tensor, *_tensors(mask_plan), dlse_tensor)
        self._check_workspace(workspace)
        self._launch(q, inputs, (dq_tensor, dk_tensor, dv_tensor), mask_plan, softmax_scale, current_stream)


def _tensors(plan: Any) -> tuple[Any, ...]:
    return plan.tensors if isinstance(plan, MaskPlan) else (None, None, None)  # no plan is refused a step later
