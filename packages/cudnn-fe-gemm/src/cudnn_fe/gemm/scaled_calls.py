"""What the public functions of the block-scaled GEMMs with a quantising result share."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import DTypeError
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.gemm.scaled import is_fp4

__all__ = ["documented", "refuse_fp8_result", "scaled_options"]


def scaled_options(
    a_tensor: Any,
    major: str,
    result_dtype: Any,
    acc_dtype: Any,
    tiles: tuple[Any, Any],
    sf_vec_size: int,
    amax_shape: tuple[int, ...] = (1,),
) -> tuple[tuple[str, Hashable], ...]:
    """The problem's options that all of them have; ``tiles`` are the two hints."""
    return (
        ("major", major),
        ("result_dtype", result_dtype),
        ("acc_dtype", acc_dtype),
        ("mma_tiler_mn", tiles[0]),
        ("cluster_shape_mn", tiles[1]),
        ("sf_vec_size", sf_vec_size),
        ("scales_atom", framework_of(a_tensor, operand="a_tensor") != "jax"),
        ("amax_shape", amax_shape),
    )


def documented(a_tensor: Any, result_dtype: Any, amax: Any, scales: Any) -> tuple[Any, Any]:
    """amax with FP4 operands and the scales of an FP8 result; None in the other modes."""
    kept = amax if is_fp4(dtype(a_tensor.dtype)) else None
    return kept, scales if dtype(result_dtype).is_fp8 else None


def refuse_fp8_result(name: str, given: Any, instead: str) -> None:
    """Raises DTypeError for an FP8 result of a JAX entry, which returns no scales."""
    kind = dtype(given, operand=name)
    if kind.is_fp8:
        raise DTypeError(
            name,
            got=str(kind),
            wanted="float32, float16 or bfloat16",
            remedy=f"{instead} takes JAX arrays and returns scales too",
        )
