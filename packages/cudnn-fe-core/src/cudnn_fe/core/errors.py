"""Typed errors. Each says which operand, what was got, what is wanted, and what to do about it."""

from __future__ import annotations

__all__ = [
    "AliasError",
    "AlignmentError",
    "BackendError",
    "CudnnFeError",
    "DTypeError",
    "DeterminismError",
    "DeviceError",
    "FrameworkError",
    "MissingDeviceError",
    "MissingPackageError",
    "NotCompiledError",
    "NotYetSupportedError",
    "OptionError",
    "OptionTypeError",
    "ShapeError",
    "StrideError",
]


class CudnnFeError(Exception):
    """Base of every error this project raises on purpose.

    Attributes:
        operand: The argument or object at fault.
        got: What it was.
        wanted: What the contract asks for.
        remedy: What the caller can do.
    """

    def __init__(self, operand: str, *, got: str, wanted: str, remedy: str) -> None:
        self.operand, self.got, self.wanted, self.remedy = operand, got, wanted, remedy
        super().__init__(f"{operand}: got {got}, wanted {wanted}; {remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.operand, self.got, self.wanted, self.remedy)


def _rebuild(kind: type[CudnnFeError], operand: str, got: str, wanted: str, remedy: str) -> CudnnFeError:
    return kind(operand, got=got, wanted=wanted, remedy=remedy)


class ShapeError(CudnnFeError, ValueError):
    """An extent or rank breaks the contract."""


class StrideError(CudnnFeError, ValueError):
    """A memory layout is neither honoured by the op nor unambiguous."""


class DTypeError(CudnnFeError, TypeError, ValueError):
    """An element type, or a combination of them, is outside the contract.

    Also a TypeError, which the documentation of some ops promises.
    """


class DeviceError(CudnnFeError, ValueError):
    """Operands live on different devices, or a stream belongs to another one."""


class MissingDeviceError(DeviceError, RuntimeError):
    """The CUDA device that an operand or sample names is not there.

    Also a RuntimeError, which the class API's documentation promises where there is no CUDA.
    """


class OptionError(CudnnFeError, ValueError):
    """An option has a value outside its documented set."""


class OptionTypeError(OptionError, TypeError):
    """An option is of another type than the documented one."""


class AliasError(CudnnFeError, ValueError):
    """An output's bytes overlap another operand's."""


class AlignmentError(CudnnFeError, ValueError):
    """A data pointer is not aligned to its element size."""


class FrameworkError(CudnnFeError, TypeError, ValueError):
    """An operand comes from no supported array framework, or operands come from several.

    Also a ValueError, which the wrappers' documentation promises.
    """


class NotYetSupportedError(CudnnFeError, NotImplementedError):
    """A documented combination that this release does not serve yet."""


class BackendError(CudnnFeError, NotImplementedError, RuntimeError):
    """No implementation serves the call on this device; the message holds every implementation's reason.

    Also a RuntimeError, which the class API's documentation promises for an unsuitable GPU.
    """


class UnknownBackendError(BackendError, OptionError):
    """The op has no backend of the name that was asked for.

    Also an OptionError, and so a ValueError, which the functions with a ``backend`` argument document.
    """


class DeterminismError(CudnnFeError, RuntimeError):
    """torch's deterministic mode is on and the op's result depends on an order that differs from run to run."""


class NotCompiledError(CudnnFeError, RuntimeError):
    """`execute` was called before `compile`."""


class MissingPackageError(CudnnFeError, ImportError):
    """An optional package or an op family is not installed."""
