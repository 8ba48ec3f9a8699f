"""The op under its names in cudnn-frontend 1.32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.errors import ShapeError
from cudnn_fe.core.legacy import LegacyClass, LegacyFunction, make_class, make_function
from cudnn_fe.core.op import Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.norm_rope.rmsnorm_rht_amax import rmsnorm_rht_amax_forward
from cudnn_fe.norm_rope.rmsnorm_rht_amax.op import FORWARD, pick_rows_per_cta

__all__ = ["RmsNormRhtAmaxSm100", "rmsnorm_rht_amax_wrapper_sm100"]


def _bind(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec, ...], tuple[float, ...]]:
    x, w = (spec_of(given[f"sample_{name}"], f"{name}_tensor") for name in ("x", "w"))
    outs = tuple(spec_of(given[f"sample_{name}"], f"{name}_tensor") for name in ("o", "amax"))
    rows = given["rows_per_cta"]
    if rows is None:
        rows = pick_rows_per_cta(x.shape[0]) if x.shape else None
    problem = FORWARD.bind(x, w, num_threads=given["num_threads"], rows_per_cta=rows)
    if outs[1].shape != problem.outputs[1].shape:
        raise ShapeError(
            "amax_tensor",
            got=str(outs[1].shape),
            wanted=f"{problem.outputs[1].shape}: one for every {rows} rows",
            remedy="allocate M / rows_per_cta float32 values",
        )
    for position, spec in enumerate(outs):
        problem.check_output(position, spec)
    return problem, outs, (float(given["eps"]),)


rmsnorm_rht_amax_wrapper_sm100 = make_function(
    LegacyFunction(
        "rmsnorm_rht_amax_wrapper_sm100",
        rmsnorm_rht_amax_forward,
        "x_tensor, w_tensor, eps=1e-5, num_threads=None, rows_per_cta=None, current_stream=None",
    ),
    __name__,
)
RmsNormRhtAmaxSm100 = make_class(
    LegacyClass(
        name="RmsNormRhtAmaxSm100",
        op=FORWARD,
        parameters="sample_x, sample_w, sample_o, sample_amax, eps=1e-5, num_threads=None, rows_per_cta=None",
        execute="x_tensor, w_tensor, o_tensor, amax_tensor, current_stream=None",
        inputs=("x_tensor", "w_tensor"),
        outputs=("o_tensor", "amax_tensor"),
        scalars=(),
        absent=(),
        bind=_bind,
        free={"x_tensor": (0,), "o_tensor": (0,), "amax_tensor": (0,)},
    ),
    __name__,
)
