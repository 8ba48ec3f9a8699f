"""Which kernels serve the block-scaled grouped GEMMs that go forward, and what they are compiled for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.powers import common_power_of_two
from cudnn_fe.core.row_plan import access_bytes
from cudnn_fe.core.targets import PORTABLE_TARGETS
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.scaled.product_spec import (
    SIDE,
    Backend,
    ProductSpec,
    product_refusal,
    product_scratch,
    product_spec,
)
from cudnn_fe.grouped.scaled.result_spec import ResultSpec, result_spec

__all__ = ["ForwardSpec", "forward_kernels"]


@dataclass(frozen=True, slots=True)
class ForwardSpec:
    """Multiply, scale, activate, and store.

    Attributes:
        product: The product.
        result: What becomes of the activation.
        epilogue: The activation.
        c_dtype: Of C, None where it is not wanted.
        prob_dtype: Of the rows' factors, None without.
        norm: Whether there is a factor of the scales.
        bias_dtype: Of the bias, None without.
        bias_access: Elements of it along N that may be read at once; 0 where they are no neighbours.
        row_scale: Whether there are further factors of the rows.
        matrix_dtype: Of the matrix of a transform, None without.
        scales: Whether results have packed scales.
        clamp: Bound of a squared ReLU, or None.
        numbers: How many numbers of the activation a launch is given.
        out_dtypes: Types of the outputs, in the op's order.
        out_ranks: Their dims.
        access: Elements of a row of C that may be stored at once.
        result_access: Elements of a row of D that may be.
    """

    product: ProductSpec
    result: ResultSpec
    epilogue: str
    c_dtype: str | None
    prob_dtype: str | None
    norm: bool
    bias_dtype: str | None
    bias_access: int
    row_scale: bool
    matrix_dtype: str | None
    scales: bool
    clamp: float | None
    numbers: int
    out_dtypes: tuple[str, ...]
    out_ranks: tuple[int, ...]
    access: int
    result_access: int

    @property
    def gated(self) -> bool:
        """Whether pairs of columns give one."""
        return self.epilogue not in ("srelu", "none")


def _name(spec: TensorSpec | None) -> str | None:
    return None if spec is None else spec.dtype.name


def _bias_access(bias: TensorSpec | None) -> int:
    if bias is None or not bias.dense_in(0):
        return 0
    return common_power_of_two(SIDE, bias.shape[0], access_bytes(bias) // bias.dtype.itemsize)


def forward_spec(problem: Any, where: Device, *, backend: Backend, numbers: int) -> ForwardSpec:
    """What the kernel of a problem is compiled for."""
    n = problem.extents[1]
    return ForwardSpec(
        product=product_spec(problem, where, backend),
        result=result_spec(problem, where, "epilogue"),
        epilogue=problem.epilogue,
        c_dtype=None if problem.c_dtype is None else problem.c_dtype.name,
        prob_dtype=_name(problem.prob_tensor),
        norm=problem.norm_const_tensor is not None,
        bias_dtype=_name(problem.bias_tensor),
        bias_access=_bias_access(problem.bias_tensor),
        row_scale=problem.row_scale_tensor is not None,
        matrix_dtype=_name(getattr(problem, "hadamard_tensor", None)),
        scales=any(spec.name.startswith("sf") and spec.size for spec in problem.outputs),
        clamp=problem.tanh_clamp_scale,
        numbers=numbers,
        out_dtypes=tuple(spec.dtype.name for spec in problem.outputs),
        out_ranks=tuple(spec.ndim for spec in problem.outputs),
        access=common_power_of_two(SIDE, n),
        result_access=common_power_of_two(SIDE, n // 2 if problem.gated else n),
    )


def _scratch(problem: Any, spec: Any) -> tuple[TensorSpec, ...]:
    return product_scratch(problem, spec.product)


def forward_kernels(
    numbers: int,
    module: str = "cudnn_fe.grouped.scaled.portable_forward",
    specialise: Callable[..., Any] = forward_spec,
    scratch: Callable[[Any, Any], tuple[TensorSpec, ...]] = _scratch,
) -> tuple[Kernel, ...]:
    """The kernels of an op, best first.

    Args:
        numbers: How many numbers a launch is given.
        module: With the launcher.
        specialise: Makes what it is compiled for.
        scratch: The memory it needs.
    """

    def row(backend: Backend, targets: tuple[str, ...]) -> Kernel:
        return Kernel(
            backend=backend,
            module=module,
            refuse=partial(product_refusal, backend),
            specialise=partial(specialise, backend=backend, numbers=numbers),
            targets=targets,
            scratch=scratch,
            verified=("H200",),
        )

    return row("sm90", ("sm_90a",)), row("portable", PORTABLE_TARGETS)
