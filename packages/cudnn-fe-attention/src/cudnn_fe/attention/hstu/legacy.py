"""The classes of HSTU attention, from tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.attention.hstu.op import BACKWARD, FORWARD
from cudnn_fe.attention.hstu.operands import check_factors, divisor_of
from cudnn_fe.attention.operands import check_samples
from cudnn_fe.core.legacy import LegacyClass, make_class
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["HSTUBwd", "HSTUBwdSm100", "HSTUFwd", "HSTUFwdSm100"]


def _specs(given: Mapping[str, Any], names: tuple[str, ...]) -> tuple[TensorSpec | None, ...]:
    samples = ((name, given["sample_" + name.removesuffix("_tensor")]) for name in names)
    return tuple(None if sample is None else spec_of(sample, name) for name, sample in samples)


def _bind(
    op: Op, results: tuple[str, ...], options: tuple[str, ...], given: Mapping[str, Any]
) -> tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]:
    problem = op.bind(*_specs(given, op.problem.operands), **{name: given[name] for name in options})
    scaling = divisor_of(given["sample_q"], given["scaling_seqlen"], given["max_seqlen_q"])
    check_factors(given["alpha"], scaling)
    return problem, check_samples(problem, _specs(given, results)), (float(given["alpha"]), float(scaling))


_SHARED = ("max_seqlen_q", "max_seqlen_k", "window_size")
_GRADIENTS = ("dq_tensor", "dk_tensor", "dv_tensor")

HSTUFwdSm100 = make_class(
    LegacyClass(
        name="HSTUFwdSm100",
        op=FORWARD,
        parameters="""sample_q, sample_k, sample_v, sample_o, sample_cu_seqlens_q, sample_cu_seqlens_k, max_seqlen_q,
        max_seqlen_k, window_size=(-1, -1), alpha=1.0, scaling_seqlen=None, sample_func=None, sample_paged_kv=None,
        sample_page_ids=None, sample_page_indptrs=None""",
        execute="""q_tensor, k_tensor, v_tensor, o_tensor, cu_seqlens_q_tensor, cu_seqlens_k_tensor,
        func_tensor=None, paged_kv_tensor=None, page_ids_tensor=None, page_indptrs_tensor=None, current_stream=None""",
        inputs=FORWARD.problem.operands,
        outputs=("o_tensor",),
        scalars=(),
        absent=(),
        bind=lambda given: _bind(FORWARD, ("o_tensor",), _SHARED, given),
    ),
    __name__,
)
HSTUBwdSm100 = make_class(
    LegacyClass(
        name="HSTUBwdSm100",
        op=BACKWARD,
        parameters="""sample_do, sample_q, sample_k, sample_v, sample_dq, sample_dk, sample_dv, sample_cu_seqlens_q,
        sample_cu_seqlens_k, max_seqlen_q, max_seqlen_k, window_size=(-1, -1), alpha=1.0, scaling_seqlen=None,
        sample_func=None, deterministic=False""",
        execute="""do_tensor, q_tensor, k_tensor, v_tensor, dq_tensor, dk_tensor, dv_tensor, cu_seqlens_q_tensor,
        cu_seqlens_k_tensor, func_tensor=None, current_stream=None""",
        inputs=BACKWARD.problem.operands,
        outputs=_GRADIENTS,
        scalars=(),
        absent=(),
        bind=lambda given: _bind(BACKWARD, _GRADIENTS, (*_SHARED, "deterministic"), given),
    ),
    __name__,
)
HSTUFwd, HSTUBwd = HSTUFwdSm100, HSTUBwdSm100
