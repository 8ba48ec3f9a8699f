"""The class API: samples in, `check_support`, `compile`, then `execute` into the caller's buffers, again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from cudnn_fe.core.choose import choose
from cudnn_fe.core.class_launch import (
    Launch,
    cuda_launch,
    flat,
    free_launch,
    kernel_or_plan,
    reference_launch,
    repeated,
)
from cudnn_fe.core.device import cuda_device_count
from cudnn_fe.core.errors import (
    AlignmentError,
    DeviceError,
    DTypeError,
    NotCompiledError,
    OptionError,
    ShapeError,
)
from cudnn_fe.core.experimental import announce_experimental
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides, pointer_of, refuse_overlap, spec_of

__all__ = ["OpClass"]


class OpClass:
    """Base of the generated classes; a subclass fixes the op and gives `__init__` and `execute` their signatures.

    Attributes:
        op: The operation.
    """

    op: Op
    _modes: ClassVar[tuple[Op, ...]] = ()
    _bind: ClassVar[Callable[[Mapping[str, Any]], tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]]]
    _counts: ClassVar[tuple[int, int]]  # of the tensors that `execute` takes: inputs, outputs
    _free: ClassVar[Mapping[str, tuple[int, ...]] | None] = None
    _arrange: ClassVar[Callable[..., Any] | None] = None

    if TYPE_CHECKING:  # the subclasses' signatures are made at run time

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def _set_up(self, arguments: Mapping[str, Any]) -> None:
        announce_experimental(type(self).__name__)
        self._arguments: Mapping[str, Any] | None = arguments
        self._options = {name: value for name, value in arguments.items() if not name.startswith("sample_")}
        self._problem: Problem | None = None
        self._outputs: tuple[TensorSpec | None, ...] = ()
        self._scalars: tuple[float, ...] = ()
        self._run: Launch | None = None

    def check_support(self) -> bool:
        """Validate the samples and find a backend; launches nothing.

        Returns:
            True.

        Raises:
            ShapeError, StrideError, DTypeError, DeviceError, OptionError: Samples outside the contract.
            NotYetSupportedError, BackendError: Nothing serves them here; the message says why.
        """
        if self._problem is None:
            assert self._arguments is not None
            problem, outputs, scalars = type(self)._bind(self._arguments)
            self.op = next((op for op in self._modes if isinstance(problem, op.problem)), self.op)
            if problem.device == "meta":  # metadata alone: the tensors will be where kernels run
                place = "cuda:0" if cuda_device_count() else "cpu"
                moved = (spec and replace(spec, device=place) for spec in outputs)
                problem, outputs = problem.placed(place), tuple(moved)
            choose(self.op, problem)
            self._problem, self._outputs, self._scalars = problem, outputs, scalars
        return True

    def compile(self) -> None:
        """Compile or load the kernel; the second call does nothing."""
        if self._run is not None:
            return
        if self._problem is None:
            logging.getLogger(type(self).__name__).info("compile: check_support was not called, calling it")
            self.check_support()
        assert self._problem is not None
        specs = [spec for spec in (*self._problem.inputs, *self._outputs) if spec is not None]
        wanted = tuple(spec is not None for spec in self._outputs)
        function = None
        if self._free is not None:
            launch = free_launch(self.op, self._problem, self._outputs, self._free)
        elif self._problem.device.startswith("cuda"):
            way = kernel_or_plan(self.op, self._problem, wanted)
            function = way if callable(way) else None
            launch = cuda_launch(self.op, self._problem, way, specs, wanted)
        else:
            launch = reference_launch(self.op, self._problem, specs, wanted)
        arrange = type(self)._arrange
        self._run = flat(launch, *self._counts, arrange and partial(arrange, self._options))
        if function is not None and arrange is None:
            groups = zip((self._problem.inputs, self._outputs), self._counts, strict=True)
            operands = [spec for group, count in groups for spec in (*group, *(None,) * (count - len(group)))]
            index = int(self._problem.device.partition(":")[2])
            self._run = repeated(self._run, function, operands, len(self._scalars), index)
        self._arguments = None

    @property
    def problem(self) -> Problem:
        """What the op was made for, once `check_support` has accepted it."""
        assert self._problem is not None
        return self._problem

    def scratch_workspace_bytes(self) -> int:
        """Bytes of the workspace that ``execute`` takes; 0 where it takes none."""
        return 0

    def _check_workspace(self, workspace: Any, **tensors: Any) -> None:
        """Raises unless the workspace is contiguous uint8, 16-byte aligned, large enough, on the op's device.

        ``tensors`` are the call's, by name, whose bytes it must not share. An op that needs none takes None.
        """
        if workspace is None and self.scratch_workspace_bytes() == 0:
            return
        wanted = f"{self.scratch_workspace_bytes()} contiguous uint8, 16-byte aligned, on {self.problem.device}"
        remedy = f"allocate {type(self).__name__}.scratch_workspace_bytes() bytes"
        if workspace is None:
            raise OptionError("workspace", got="None", wanted=wanted, remedy=remedy)
        spec = spec_of(workspace, "workspace")
        if spec.dtype.name != "uint8":
            raise DTypeError("workspace", got=str(spec.dtype), wanted=wanted, remedy=remedy)
        if spec.strides != contiguous_strides(spec.shape) or spec.nbytes < self.scratch_workspace_bytes():
            raise ShapeError(
                "workspace", got=f"{spec.shape} {spec.dtype}, {spec.strides}", wanted=wanted, remedy=remedy
            )
        if spec.alignment < 16:
            raise AlignmentError("workspace", got=f"{spec.alignment} bytes", wanted=wanted, remedy=remedy)
        if spec.device != self.problem.device:
            raise DeviceError("workspace", got=spec.device, wanted=wanted, remedy=remedy)
        others = [(spec_of(x, name), pointer_of(x)) for name, x in tensors.items() if x is not None]
        refuse_overlap(others, [(spec, pointer_of(workspace))])

    def _require_compiled(self) -> Launch:
        if self._run is None:
            name = type(self).__name__
            raise NotCompiledError(
                name, got="execute before compile", wanted="a compiled op", remedy=f"call {name}.compile() first"
            )
        return self._run

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Compile if that has not happened, then `execute`."""
        self.compile()
        self.execute(*args, **kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Launch into the caller's buffers; subclasses give the signature."""
        raise NotImplementedError
