"""The legacy names of the query projection: tables, from which functions and classes are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cudnn_fe.core.legacy import Bind, LegacyClass, LegacyFunction, make_class, make_function
from cudnn_fe.core.op import Problem
from cudnn_fe.core.require import require_dtype
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.gemm.proj_rope import gemm_proj_rope_mxfp8_forward, gemm_proj_rope_mxfp8_jax_forward
from cudnn_fe.gemm.proj_rope.op import FORWARD

__all__ = [
    "GemmProjRopeMxfp8Bf16InSm100",
    "GemmProjRopeMxfp8Mxfp8InSm100",
    "gemm_proj_rope_mxfp8_jax_sm100",
    "gemm_proj_rope_mxfp8_wrapper_sm100",
]

_TABLES = ("cos", "sin")


def _binder(inputs: tuple[str, ...], element: str) -> Bind:
    """A class's bind: its inputs in the problem's order, the output samples held against what the problem returns."""

    def bind(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec, ...], tuple[float, ...]]:
        specs = {name: spec_of(given[f"sample_{name}"], name) for name in inputs}
        require_dtype(specs[inputs[0]], element)
        operands = list(specs.values()) + [None] * (len(FORWARD.problem.operands) - len(specs))
        problem = FORWARD.bind(*operands, w_out_in=given.get("w_out_in", True))
        outputs = tuple(spec_of(given[f"sample_{name}"], name) for name in FORWARD.results)
        for position, sample in enumerate(outputs):
            problem.check_output(position, sample)
        return problem, outputs, ()

    return bind


def _class(name: str, inputs: tuple[str, ...], order: tuple[str, ...], element: str, options: str) -> Any:
    """A class whose constructor and ``execute`` take the inputs in ``order``, and the problem in that of ``inputs``."""
    tensors = (*order, *FORWARD.results)
    return make_class(
        LegacyClass(
            name=name,
            op=FORWARD,
            parameters=", ".join((*(f"sample_{tensor}" for tensor in tensors), *([options] if options else []))),
            execute=", ".join((*tensors, "current_stream=None")),
            inputs=inputs,
            outputs=FORWARD.results,
            scalars=(),
            absent=(),
            bind=_binder(inputs, element),
        ),
        __name__,
    )


_PLAIN = ("x", "w", *_TABLES)
GemmProjRopeMxfp8Bf16InSm100 = _class("GemmProjRopeMxfp8Bf16InSm100", _PLAIN, _PLAIN, "bfloat16", "w_out_in=False")
GemmProjRopeMxfp8Mxfp8InSm100 = _class(
    "GemmProjRopeMxfp8Mxfp8InSm100",
    ("x_code", "w_code", *_TABLES, "x_scale", "w_scale"),
    ("x_code", "x_scale", "w_code", "w_scale", *_TABLES),
    "float8_e4m3fn",
    "",
)
gemm_proj_rope_mxfp8_wrapper_sm100: Callable[..., Any] = make_function(
    LegacyFunction(
        "gemm_proj_rope_mxfp8_wrapper_sm100",
        gemm_proj_rope_mxfp8_forward,
        "x, w, cos, sin, x_scale=None, w_scale=None, w_out_in=True, stream=None",
    ),
    __name__,
)
gemm_proj_rope_mxfp8_jax_sm100: Callable[..., Any] = make_function(
    LegacyFunction(
        "gemm_proj_rope_mxfp8_jax_sm100",
        gemm_proj_rope_mxfp8_jax_forward,
        "x, w, cos, sin, x_scale=None, w_scale=None",
    ),
    __name__,
)
