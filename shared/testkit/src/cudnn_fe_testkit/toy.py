"""The smallest op with everything an op has: ``y = alpha * x + bias``, for tests of what serves every op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.call import call
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DeviceError, ShapeError, StrideError
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.core.op import Kernel, Op, Problem
from cudnn_fe.core.tensor import TRACED, TensorSpec, contiguous_strides

__all__ = ["GRADIENT", "TOY", "Toy", "ToySpec", "kernel", "toy", "toy_op"]

KERNEL_MODULE = "cudnn_fe_testkit.toy_kernel"


@dataclass(frozen=True)
class Toy(Problem):
    """One call: x (rows, columns), contiguous along either, and optionally bias (columns,)."""

    operands: ClassVar[tuple[str, ...]] = ("x", "bias")
    optional: ClassVar[frozenset[str]] = frozenset({"bias"})

    x: TensorSpec
    bias: TensorSpec | None
    y_dtype: DType
    order: str = "row"
    window: tuple[int, ...] = ()

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Options: ``y_dtype``, ``order`` of the result in memory, ``window``, which has no effect."""
        x, bias = operands
        assert x is not None
        x.require_rank(2, "(rows, columns)")
        if not (x.dense_in(0) or x.dense_in(1)):
            raise StrideError(x.name, got=str(x.strides), wanted="contiguous rows or columns", remedy="copy it")
        if bias is not None:
            if bias.shape != (x.shape[1],):
                raise ShapeError(bias.name, got=str(bias.shape), wanted=f"({x.shape[1]},)", remedy="pass a row")
            if bias.device != x.device and TRACED not in (bias.device, x.device):
                raise DeviceError(bias.name, got=bias.device, wanted=x.device, remedy="move it")
        window = tuple(options.get("window", ()))
        return cls(
            x, bias, dtype(options.get("y_dtype", x.dtype), operand="y_dtype"), options.get("order", "row"), window
        )

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """y (rows, columns), compact, rows or columns contiguous as ``order`` says."""
        strides = contiguous_strides(self.x.shape, (1, 0) if self.order == "row" else (0, 1))
        return (TensorSpec(self.x.shape, strides, self.y_dtype, self.device, 16, "y"),)

    @property
    def degenerate(self) -> bool:
        """Nothing to write."""
        return 0 in self.x.shape

    @property
    def flops(self) -> int:
        """One multiplication and, with a bias, one addition per element."""
        return self.x.size * (1 if self.bias is None else 2)


@dataclass(frozen=True, slots=True)
class ToySpec:
    """What the toy's kernel is compiled for."""

    x_dtype: str
    alignment: int = 16


def reference(problem: Toy, xp: Any, x: Any, bias: Any, alpha: float) -> tuple[Any]:
    """The definition."""
    y = alpha * x if bias is None else alpha * x + bias[None, :]
    if xp.__name__.endswith("torch"):
        return (y.to(getattr(xp, problem.y_dtype.torch)),)
    import ml_dtypes

    return (y.astype(getattr(ml_dtypes, problem.y_dtype.name, problem.y_dtype.name)),)


def _backward(saved: Any, cotangents: Any, scalars: Any, needed: Any, backend: str | None) -> tuple[Any, ...]:
    (x, bias), (dy,) = saved, cotangents
    dx = toy(dy, alpha=scalars[0], y_dtype=dtype(x.dtype).name, backend=backend)
    return dx if needed[0] else None, dy.sum(0) if bias is not None and needed[1] else None


GRADIENT = Gradient("toy", save=lambda operands, outputs: tuple(operands), backward=_backward, explicit="toy_backward")


def kernel(
    backend: str = "portable",
    *,
    refuse: Callable[[Any, Device], str | None] = lambda problem, where: None,
    opt_in: bool = False,
) -> Kernel:
    """A record of the toy's kernel under any name."""
    return Kernel(
        backend=backend,
        module=KERNEL_MODULE,
        refuse=refuse,
        specialise=lambda problem, where: ToySpec(problem.x.dtype.name, problem.x.alignment),
        targets=("sm_90a",),
        opt_in=opt_in,
    )


def toy_op(name: str, *kernels: Kernel, gradient: bool = True) -> Op:
    """Another op of that name with the toy's mathematics."""
    return Op(
        name=name,
        package="cudnn-fe-testkit",
        problem=Toy,
        reference=f"{__name__}:reference",
        kernels=kernels,
        summary="Scale and shift.",
        results=("y",),
        scalars=("alpha",),
        legacy=(f"{name}_wrapper_sm100",),
        gradient=f"{__name__}:GRADIENT" if gradient else None,
    )


TOY = toy_op("toy", kernel())


def toy(
    x: Any,
    bias: Any = None,
    *,
    alpha: Any = 1.0,
    y_dtype: Any = "float32",
    order: str = "row",
    window: Any = (),
    backend: str | None = None,
    stream: Any = None,
    op: Op = TOY,
) -> Any:
    """``alpha * x + bias`` through the toy op, or through another op with its mathematics."""
    options = (("y_dtype", y_dtype), ("order", order), ("window", window))
    return call(op, (x, bias), options, (alpha,), backend=backend, stream=stream)[0]
