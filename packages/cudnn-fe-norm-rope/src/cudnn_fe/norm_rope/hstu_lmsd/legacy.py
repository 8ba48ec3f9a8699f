"""The classes of cudnn-frontend 1.32; its functions have the arch-neutral names already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.legacy import LegacyClass, make_class
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_finite_positive
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.norm_rope.hstu_lmsd.dropout import checked_ratio, dropout, key_words, require_mask, signed_word
from cudnn_fe.norm_rope.hstu_lmsd.op import BACKWARD, FORWARD

__all__ = ["HSTULMSDBwd", "HSTULMSDFwd"]

Bound = tuple[Problem, tuple[TensorSpec, ...], tuple[float, ...]]
Tensors = tuple[Any, ...]
_FLAGS = ("apply_u_silu", "concat_u", "concat_x")


def _spec(given: Mapping[str, Any], name: str) -> TensorSpec | None:
    """A sample's spec by the name of the operand or result that it stands for."""
    sample = given["sample_" + name.removesuffix("_tensor")]
    return None if sample is None else spec_of(sample, name)


def _outputs(problem: Problem, given: Mapping[str, Any], names: tuple[str, ...]) -> tuple[TensorSpec, ...]:
    found = []
    for position, name in enumerate(names):
        spec = _spec(given, name)
        if spec is None:
            raise OptionError(f"sample_{name}", got="None", wanted="a sample", remedy="pass one for every result")
        problem.check_output(position, spec)
        found.append(spec)
    return tuple(found)


def _bind_forward(given: Mapping[str, Any]) -> Bound:
    ratio = checked_ratio(given["dropout_ratio"])
    require_mask(given["sample_mask"], ratio)
    operands = [_spec(given, name) for name in FORWARD.problem.operands[:4]]
    flags = {name: given[name] for name in _FLAGS}
    problem = FORWARD.bind(*operands, None, dropout=ratio > 0, **flags)
    scale, threshold = dropout(ratio) if ratio else (1.0, 0)
    names = FORWARD.results if ratio else FORWARD.results[:3]
    scalars = (require_finite_positive(given["eps"], "eps"), scale, signed_word(threshold))
    return problem, _outputs(problem, given, names), scalars


def _arrange_forward(
    options: Mapping[str, Any], inputs: Tensors, outputs: Tensors, scalars: Tensors
) -> tuple[Tensors, Tensors, Tensors]:
    """The seed comes as numbers; without dropout there is no mask."""
    if outputs[3] is None and not checked_ratio(options["dropout_ratio"]):
        outputs = outputs[:3]
    return (*inputs, None), outputs, scalars


def _execute_forward(
    self: Any,
    x_tensor: Any,
    u_tensor: Any,
    weight_tensor: Any,
    bias_tensor: Any,
    y_tensor: Any,
    mean_tensor: Any,
    rstd_tensor: Any,
    mask_tensor: Any,
    seed: int = 0,
    current_stream: Any = None,
) -> None:
    """Launch into the given outputs on ``current_stream``; the same seed gives the same mask."""
    run: Callable[..., None] = self._run or self._require_compiled()
    inputs = (x_tensor, u_tensor, weight_tensor, bias_tensor)
    outputs = (y_tensor, mean_tensor, rstd_tensor, mask_tensor)
    run(*inputs, *outputs, *self._scalars, *key_words(seed), current_stream)


def _bind_backward(given: Mapping[str, Any]) -> Bound:
    ratio, wanted = checked_ratio(given["dropout_ratio"]), given["compute_dweight"]
    require_mask(given["sample_mask"], ratio)
    if (given["sample_dweight"] is not None) != bool(wanted):
        raise OptionError(
            "sample_dweight",
            got="None" if wanted else "a sample",
            wanted=f"{'a sample' if wanted else 'None'} with compute_dweight={wanted}",
            remedy="change one of them",
        )
    operands = [_spec(given, name) for name in BACKWARD.problem.operands]
    problem = BACKWARD.bind(*operands, **{name: given[name] for name in (*_FLAGS, "compute_dweight")})
    names = tuple(name for name in BACKWARD.results if wanted or name != "dweight_tensor")
    return problem, _outputs(problem, given, names), (dropout(ratio)[0] if ratio else 1.0,)


def _arrange_backward(
    options: Mapping[str, Any], inputs: Tensors, outputs: Tensors, scalars: Tensors
) -> tuple[Tensors, Tensors, Tensors]:
    """Without the weight's gradient there is no buffer for it."""
    dx, du, dweight, dbias = outputs
    there = options["compute_dweight"] or dweight is not None
    return inputs, outputs if there else (dx, du, dbias), scalars


def _class(name: str, op: Op, parameters: str, execute: str, inputs: tuple[str, ...], **more: Any) -> Any:
    tensors = (*op.problem.operands, *op.results)
    rows = {tensor: (0,) for tensor in tensors if tensor.split("_")[0] not in ("weight", "bias", "dweight", "dbias")}
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
            free=rows,
            **more,
        ),
        __name__,
    )


HSTULMSDFwd = _class(
    "HSTULMSDFwd",
    FORWARD,
    "sample_x, sample_u, sample_weight, sample_bias, sample_y, sample_mean, sample_rstd, sample_mask, eps=1e-6, "
    "dropout_ratio=0.1, apply_u_silu=True, concat_u=True, concat_x=True",
    f"{', '.join((*FORWARD.problem.operands[:4], *FORWARD.results))}, current_stream=None",
    FORWARD.problem.operands[:4],
    bind=_bind_forward,
    arrange=_arrange_forward,
    methods={"execute": _execute_forward},
)
# The peer's partial sums have buffers of the caller's; the kernels' own, which depend on the chip, are allocated.
HSTULMSDBwd = _class(
    "HSTULMSDBwd",
    BACKWARD,
    "sample_dy, sample_x, sample_u, sample_weight, sample_bias, sample_mean, sample_rstd, sample_mask, sample_dx, "
    "sample_du, sample_dweight, sample_dbias, sample_dweight_workspace=None, sample_dbias_workspace=None, "
    "dropout_ratio=0.1, apply_u_silu=True, concat_u=True, concat_x=True, compute_dweight=True",
    f"{', '.join((*BACKWARD.problem.operands, *BACKWARD.results))}, dweight_workspace_tensor=None, "
    "dbias_workspace_tensor=None, current_stream=None",
    BACKWARD.problem.operands,
    bind=_bind_backward,
    arrange=_arrange_backward,
)
