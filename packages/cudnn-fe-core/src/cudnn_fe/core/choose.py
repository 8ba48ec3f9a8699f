"""Which implementation serves a problem: every kernel may say no with a reason, and all reasons go into one error."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from cudnn_fe.core.device import Device, device
from cudnn_fe.core.errors import BackendError, UnknownBackendError
from cudnn_fe.core.experimental import warn_reference_on_gpu
from cudnn_fe.core.op import Kernel, Op, Problem
from cudnn_fe.core.settings import settings
from cudnn_fe.core.toolchain import missing_toolchain

__all__ = ["REFERENCE", "Choice", "choose", "unknown_backend"]

REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation that serves a problem.

    Attributes:
        backend: Its name.
        kernel: The kernel, or None for the reference.
        spec: What the kernel is compiled for.
    """

    backend: str
    kernel: Kernel | None = None
    spec: Hashable = None


def unknown_backend(op: Op, backend: object) -> UnknownBackendError:
    """The error of a backend that the op does not have."""
    known = ", ".join((REFERENCE, *(kernel.backend for kernel in op.kernels)))
    return UnknownBackendError(
        "backend", got=repr(backend), wanted=f"auto or one of {known}", remedy=f"name a backend of {op.name}"
    )


def choose(op: Op, problem: Problem, backend: str | None = None, *, on: Device | None = None) -> Choice:
    """Choose the implementation of one problem.

    Args:
        op: The op.
        problem: The bound problem.
        backend: ``None`` or ``"auto"`` lets the op decide (``CUDNN_FE_BACKEND`` sets the default); any other name
            means that backend or an error. An internal op, which takes the name from the op that it serves, decides
            for itself where it has no such backend.
        on: The device, where the problem does not name it (JAX tracers).

    Raises:
        BackendError: Nothing serves it; the message holds every backend's reason.
    """
    wanted = backend or settings().backend
    if wanted == REFERENCE:
        return Choice(REFERENCE)
    if not op.public and wanted not in {kernel.backend for kernel in op.kernels}:
        wanted = "auto"
    where = on or device(problem.device if problem.device.startswith("cuda") else "cpu")
    if wanted == "auto" and (problem.degenerate or where.place == "cpu"):
        return Choice(REFERENCE)
    if wanted == "auto" and op.runs_reference_on_gpu:
        warn_reference_on_gpu(op.name)
        return Choice(REFERENCE)
    reasons = []
    for kernel in op.kernels:
        if wanted not in ("auto", kernel.backend):
            continue
        reason = _refusal(kernel, problem, where, named=wanted != "auto")
        if reason is None:
            if problem.degenerate:
                return Choice(kernel.backend)
            return Choice(kernel.backend, kernel, kernel.specialise(problem, where))
        reasons.append(f"{kernel.backend}: {reason}")
    if not reasons and wanted == "auto":
        reasons = ["the op has no kernels yet"]
    if not reasons:
        raise unknown_backend(op, wanted)
    raise BackendError(
        op.name,
        got="; ".join(reasons),
        wanted=f"a backend for {where.name} ({where.place})",
        remedy='change what a reason names, or pass backend="reference" to run the definition itself',
    )


def _refusal(kernel: Kernel, problem: Problem, where: Device, *, named: bool) -> str | None:
    if where.place == "cpu":
        return "the operands are on the CPU"
    if kernel.opt_in and not named:
        asked = f'backend="{kernel.backend}"'
        return f"its tests are not known to pass on such a chip: it is used only where {asked} asks for it"
    return missing_toolchain() or kernel.refuse(problem, where)
