"""One policy for ops whose fast path adds in an order that differs from run to run."""

from __future__ import annotations

import sys
import warnings

from cudnn_fe.core.errors import DeterminismError, NotYetSupportedError

__all__ = ["want_deterministic"]


def want_deterministic(op: str, requested: bool | None, *, has_path: bool) -> bool:
    """Whether a call must take its deterministic path.

    Args:
        op: The op's name, for messages.
        requested: The call's ``deterministic`` argument; None follows torch's deterministic mode.
        has_path: Whether the op has a path that is bit-equal run to run.

    Returns:
        True when that path must be taken.

    Raises:
        NotYetSupportedError: The caller asked for a path that the op does not have.
        DeterminismError: torch's deterministic mode is on and the op has no such path; with ``warn_only`` a
            RuntimeWarning is issued instead, as torch's own ops do.
    """
    if requested is not None:
        if requested and not has_path:
            raise NotYetSupportedError(
                "deterministic",
                got="True",
                wanted=f"False: {op} adds with atomics",
                remedy="leave deterministic unset, or sum in a fixed order yourself",
            )
        return requested
    torch = sys.modules.get("torch")
    if torch is None or not torch.are_deterministic_algorithms_enabled():
        return False
    if has_path:
        return True
    error = DeterminismError(
        op,
        got="torch.use_deterministic_algorithms(True)",
        wanted="the mode off: the op adds with atomics and has no deterministic path",
        remedy="use warn_only=True, or sum in a fixed order yourself",
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise error
    warnings.warn(str(error), RuntimeWarning, stacklevel=3)
    return False
