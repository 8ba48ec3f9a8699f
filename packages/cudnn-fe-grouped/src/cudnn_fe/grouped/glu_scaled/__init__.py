"""The block-scaled mode of the grouped GEMM with a gated activation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.op import Op
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.scaled.arguments import Rows, Weights, check_result, wants_amax
from cudnn_fe.grouped.scaled.calls import run_forward
from cudnn_fe.grouped.scaled.problem import FP8

__all__ = ["glu_numbers", "scaled_glu"]


def glu_numbers(
    act_func: Any,
    linear_offset: float | None,
    geglu_alpha: float,
    glu_clamp_max: float,
    glu_clamp_min: float,
    situ_beta1: float,
    situ_beta2: float,
    prefix: str = "",
) -> tuple[str, tuple[float, ...]]:
    """The activation without ``prefix``, and its numbers, validated."""
    require_one_of(act_func, "act_func", tuple(prefix + kind for kind in ("swiglu", "geglu", "situglu")))
    kind = act_func.removeprefix(prefix)
    if kind == "situglu":
        for name, beta in (("situ_beta1", situ_beta1), ("situ_beta2", situ_beta2)):
            if not math.isfinite(beta) or beta <= 0:
                raise OptionError(name, got=repr(beta), wanted="finite and above 0", remedy="e.g. 4.0")
    offset = linear_offset if linear_offset is not None else 1.0 if kind == "geglu" else 0.0
    return kind, (offset, geglu_alpha, glu_clamp_max, glu_clamp_min, situ_beta1, situ_beta2)


def scaled_glu(
    op: Op,
    rows: Rows,
    weights: Weights,
    activation: tuple[str, tuple[float, ...]],
    *,
    c_dtype: Any,
    d_dtype: Any,
    sf_vec_size: int,
    discrete_col_sfd: bool,
    single_group: bool = False,
    stream: Any = None,
    outs: Mapping[str, Any] | None = None,
    backend: str | None = None,
) -> TupleDict:
    """Call an op of this mode; D of FP8 operands has scales whatever its dtype."""
    kind = check_result(d_dtype, rows.a, fp8=("bfloat16", "float16", *FP8))
    return run_forward(
        op,
        rows,
        weights,
        epilogue=activation[0],
        numbers=activation[1],
        c_dtype=c_dtype or "bfloat16",
        d_dtype=kind,
        quantised=dtype(rows.a.dtype).is_fp8,
        keep_amax=wants_amax(kind),
        sf_vec_size=sf_vec_size,
        expert_columns=discrete_col_sfd,
        single_group=single_group,
        stream=stream,
        outs=outs,
        backend=backend,
    )
