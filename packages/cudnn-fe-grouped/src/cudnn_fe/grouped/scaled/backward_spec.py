"""Which kernels serve the block-scaled grouped GEMMs that go backward, and what they are compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.powers import common_power_of_two
from cudnn_fe.core.row_plan import access_bytes
from cudnn_fe.core.targets import PORTABLE_TARGETS
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.operands import output
from cudnn_fe.grouped.scaled.product_spec import (
    SIDE,
    Backend,
    ProductSpec,
    product_refusal,
    product_scratch,
    product_spec,
)
from cudnn_fe.grouped.scaled.result_spec import ResultSpec, result_spec

__all__ = ["PART_COLUMNS", "PART_ROWS", "BackwardSpec", "backward_kernels"]

PART_COLUMNS, PART_ROWS = 64, 32  # of the product that one part of dprob, and of dbias, sums: a warp's tile


@dataclass(frozen=True, slots=True)
class BackwardSpec:
    """Multiply, scale, go through the activation's derivative, and store.

    Attributes:
        product: The product.
        result: What becomes of D.
        epilogue: The activation.
        c_dtype: Of what the forward kept.
        beta: Whether there are factors of it.
        prob_dtype: Of the rows' factors, None without.
        norm: Whether there is a factor of the scales.
        dbias: Whether the gradient of the bias is wanted.
        clamp: Bound of a squared ReLU, or None.
        numbers: How many numbers of the activation a launch is given.
        out_dtypes: Types of the outputs, in the op's order.
        out_ranks: Their dims.
        c_access: Elements of a row of C that may be read at once.
        access: Elements of a row of D that may be stored at once.
    """

    product: ProductSpec
    result: ResultSpec
    epilogue: str
    c_dtype: str
    beta: bool
    prob_dtype: str | None
    norm: bool
    dbias: bool
    clamp: float | None
    numbers: int
    out_dtypes: tuple[str, ...]
    out_ranks: tuple[int, ...]
    c_access: int
    access: int

    @property
    def gated(self) -> bool:
        """Whether the product's columns each have two of C and of D."""
        return self.epilogue != "srelu"


def backward_spec(problem: Any, where: Device, *, backend: Backend, numbers: int) -> BackwardSpec:
    """What the kernel of a problem is compiled for."""
    c, prob = problem.c_tensor, problem.prob_tensor
    access = common_power_of_two(SIDE, problem.width)
    return BackwardSpec(
        product=product_spec(problem, where, backend),
        result=result_spec(problem, where, "epilogue_columns"),
        epilogue=problem.epilogue,
        c_dtype=c.dtype.name,
        beta=problem.beta_tensor is not None,
        prob_dtype=None if prob is None else prob.dtype.name,
        norm=problem.norm_const_tensor is not None,
        dbias=problem.generate_dbias,
        clamp=problem.tanh_clamp_scale,
        numbers=numbers,
        out_dtypes=tuple(spec.dtype.name for spec in problem.outputs),
        out_ranks=tuple(spec.ndim for spec in problem.outputs),
        c_access=common_power_of_two(access, access_bytes(c) // c.dtype.itemsize),
        access=access,
    )


def _scratch(problem: Any, spec: Any) -> tuple[TensorSpec, ...]:
    """The product's; parts of dprob (columns' tiles, M), and of dbias (rows' tiles and experts, W) if it is wanted."""
    m, n, _, count = problem.extents
    parts = -(-m // PART_ROWS) + count if spec.dbias else 0
    shapes = (-(-n // PART_COLUMNS), m), (parts, problem.width)
    sums = (output("scratch", shape, "float32", problem.device) for shape in shapes)
    return *product_scratch(problem, spec.product), *sums


def backward_kernels(numbers: int) -> tuple[Kernel, ...]:
    """The kernels of an op with so many numbers, best first."""

    def row(backend: Backend, targets: tuple[str, ...]) -> Kernel:
        return Kernel(
            backend=backend,
            module="cudnn_fe.grouped.scaled.portable_backward",
            refuse=partial(product_refusal, backend),
            specialise=partial(backward_spec, backend=backend, numbers=numbers),
            targets=targets,
            scratch=_scratch,
            verified=("H200",),
        )

    return row("sm90", ("sm_90a",)), row("portable", PORTABLE_TARGETS)
