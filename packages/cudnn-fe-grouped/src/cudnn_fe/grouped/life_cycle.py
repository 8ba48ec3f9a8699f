"""The class API of the family: samples in, `check_support`, `compile`, then `execute` into the caller's buffers.

The samples' M is free, as documented: everything else of a call's tensors must be as the samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cudnn_fe.core.choose import choose
from cudnn_fe.core.errors import NotCompiledError, OptionError, ShapeError
from cudnn_fe.core.experimental import announce_experimental
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["GroupedClass"]


def parameter(sample: str) -> str:
    """The parameter of ``execute`` that a constructor's sample stands for."""
    name = sample.removeprefix("sample_")
    return name if name == "padded_offsets" else f"{name}_tensor"


class GroupedClass:
    """Base of the family's classes.

    Attributes:
        op: The operation.
        free: Per parameter the dim that may differ from the sample's; parameters that are not named have none.
    """

    op: ClassVar[Op]
    free: ClassVar[Mapping[str, int]]

    def _set_up(self, given: Mapping[str, Any]) -> None:
        announce_experimental(type(self).__name__)
        self._given = dict(given)
        self._samples: dict[str, TensorSpec | None] = {
            parameter(name): None if value is None else spec_of(value, parameter(name))
            for name, value in given.items()
            if name.startswith("sample_")
        }
        self._supported = self._compiled = False

    def _problem(self) -> tuple[Problem, Mapping[str, TensorSpec | None]]:
        """The bound problem, and the results' specs in the samples' form, by parameter."""
        raise NotImplementedError

    def check_support(self) -> bool:
        """Validate the samples and find a backend; launches nothing.

        Returns:
            True.

        Raises:
            ShapeError, StrideError, DTypeError, DeviceError, OptionError: Samples outside the contract.
            NotYetSupportedError, BackendError: Nothing serves them here; the message says why.
        """
        if not self._supported:
            problem, results = self._problem()
            for name, wanted in results.items():
                sample = self._samples[name]
                if sample is None:
                    raise OptionError(name, got="None", wanted="a sample of the result", remedy="pass one")
                if wanted is not None and (sample.shape, sample.dtype) != (wanted.shape, wanted.dtype):
                    raise ShapeError(
                        name,
                        got=f"{sample.shape} {sample.dtype}",
                        wanted=f"{wanted.shape} {wanted.dtype}",
                        remedy="allocate the documented result",
                    )
            if problem.device != "meta":
                choose(self.op, problem)
            self._supported = True
        return True

    def compile(self) -> None:
        """Make ready to execute; the second call does nothing."""
        self.check_support()
        self._compiled = True

    def _check(self, **tensors: Any) -> None:
        """Raises unless the op is compiled and a call's tensors are like the samples."""
        if not self._compiled:
            name = type(self).__name__
            raise NotCompiledError(
                name, got="execute before compile", wanted="a compiled op", remedy=f"call {name}.compile() first"
            )
        for name, tensor in tensors.items():
            sample = self._samples.get(name)
            if (tensor is None) != (sample is None):
                raise OptionError(
                    name,
                    got="None" if tensor is None else "a tensor",
                    wanted="None" if sample is None else "a tensor",
                    remedy="pass the tensors that had samples, and no others",
                )
            if sample is not None:
                self._require_like(spec_of(tensor, name), sample)

    def _require_like(self, spec: TensorSpec, sample: TensorSpec) -> None:
        free = self.free.get(spec.name)
        fixed = [dim for dim in range(spec.ndim) if dim != free]
        same = spec.ndim == sample.ndim and all(spec.shape[dim] == sample.shape[dim] for dim in fixed)
        if not same or spec.dtype != sample.dtype or (sample.device not in ("meta", spec.device)):
            raise ShapeError(
                spec.name,
                got=f"{spec.shape} {spec.dtype} on {spec.device}",
                wanted=f"{sample.shape} {sample.dtype} on {sample.device}, as the sample"
                + ("" if free is None else f", but for dim {free}"),
                remedy="pass tensors like the samples, or make another op object",
            )
