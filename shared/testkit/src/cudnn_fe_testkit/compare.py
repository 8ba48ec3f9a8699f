"""One error measure for every floating-point comparison, and the tolerances that go with it, derived."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_fe.core.dtypes import dtype

__all__ = ["assert_close", "gemm_tolerance", "rel_rms", "to_float64"]

# Relative error that one operand element takes on its way into the tensor core: float32 is rounded to TF32.
_TF32_ROUNDOFF = 2.0**-11
# FP8 instructions add 32 products to a significand of 13 bits; kernels promote to float32 after four of them.
_FP8_STEPS, _FP8_ROUNDOFF = 4, 2.0**-13
# Tensor cores cut float32 sums off instead of rounding them, one bit early: two units in the last place at most.
_SUM_ROUNDOFF = 2.0**-22


def to_float64(x: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A torch tensor, JAX array or NumPy array as float64 NumPy values on the host, exactly."""
    if hasattr(x, "detach"):
        return np.asarray(x.detach().cpu().double().numpy())
    return np.asarray(x).astype(np.float64)


def rel_rms(x: Any, reference: Any) -> float:
    """Root mean square of ``x - reference`` over that of ``reference``.

    NaN and infinities must be the same at the same places, else the result is infinite; they count no further.
    Two empty arrays differ by 0, and so does zero from zero.
    """
    got, wanted = to_float64(x), to_float64(reference)
    if got.shape != wanted.shape:
        raise AssertionError(f"shape {got.shape} is not {wanted.shape}")
    finite = np.isfinite(wanted)
    if not np.array_equal(got[~finite], wanted[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return float("inf")
    error = float(np.square(got[finite] - wanted[finite]).sum())
    norm = float(np.square(wanted[finite]).sum())
    if error == 0.0:
        return 0.0
    return float(np.sqrt(error / norm)) if norm else float("inf")


def assert_close(x: Any, reference: Any, tolerance: float, what: str = "result") -> None:
    """Fails, with the numbers, unless `rel_rms` is at most ``tolerance``."""
    error = rel_rms(x, reference)
    assert error <= tolerance, f"{what}: relative RMS error {error:.3e} exceeds {tolerance:.3e}"


def gemm_tolerance(k: int, input_dtype: Any, output_dtype: Any, *, tensor_cores: bool = True) -> float:
    """Bound of `rel_rms` of ``sum_k a_k b_k`` with zero-mean random operands against float64 on the same operands.

    Independent errors add in squares. Each partial sum of j products, of size sqrt(j), loses at most one unit
    roundoff u, so the sums' relative error is at most u * sqrt(K). TF32 and FP8 instructions add a term that does not
    grow with K, because every product, or every 128 of K, takes it once; rounding to the output type adds its own.

    Args:
        k: Length of the sum.
        input_dtype: Element type of both operands.
        output_dtype: Element type of the result.
        tensor_cores: Whether a GPU kernel computed it; False is plain float32 arithmetic, as references do.
    """
    given = dtype(input_dtype)
    unit = _SUM_ROUNDOFF if tensor_cores else 2.0**-24
    total = dtype(output_dtype).unit_roundoff + unit * max(k, 1) ** 0.5
    if tensor_cores and given.name == "float32":
        total += 2 * _TF32_ROUNDOFF  # both operands
    if tensor_cores and given.is_fp8:
        total += _FP8_STEPS * _FP8_ROUNDOFF
    return float(total)
