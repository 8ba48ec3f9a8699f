"""What becomes of float32 values of rows, whichever op made them: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_fe.core.block_scale import BlockFormat
from cudnn_fe.core.block_scale.quantize import Recipe, quotient_of
from cudnn_fe.core.codecs import E8M0, format_of
from cudnn_fe.core.device import Device
from cudnn_fe.grouped.scaled.problem import ScaledRows

__all__ = ["ResultSpec", "result_spec"]


@dataclass(frozen=True, slots=True)
class ResultSpec:
    """The results of an epilogue.

    Attributes:
        dtype: Of D.
        recipes: Of the scales of D by rows and by columns; empty without scales.
        quotient: The float32 that a block's largest magnitude is multiplied by.
        expert_columns: Whether the column scales are packed expert by expert.
        keep_amax: Whether each expert's largest magnitude is wanted.
        zero_tail: Whether rows past the last end become zeros; else they keep what they held.
        single_group: Whether the one expert has all rows.
        arch: The compiler's target.
    """

    dtype: str
    recipes: tuple[Recipe, ...]
    quotient: float
    expert_columns: bool
    keep_amax: bool
    zero_tail: bool
    single_group: bool
    arch: str


def result_spec(problem: ScaledRows, where: Device, columns: Recipe) -> ResultSpec:
    """That of a problem; ``columns`` is the recipe of column scales."""
    kind = problem.d_dtype
    quotient = 1.0
    if kind.is_fp8:
        quotient = quotient_of(BlockFormat(format_of(kind.name), E8M0, 32), "epilogue")
    recipes: tuple[Any, ...] = ("epilogue", columns) if problem.quantised else ()
    return ResultSpec(
        kind.name,
        recipes,
        quotient,
        problem.expert_columns,
        problem.keep_amax,
        problem.zero_tail,
        problem.single_group,
        where.arch,
    )
