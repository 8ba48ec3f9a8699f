"""Functions of flash-linear-attention served by this package, with the original ones behind them."""

from __future__ import annotations

from collections.abc import Iterable

from cudnn_fe.attention.fla import gated_delta_rule, gated_mlp, short_conv
from cudnn_fe.attention.fla.patching import TARGETS, accelerate, patched, restore

__all__ = [
    "accelerate_fla",
    "is_accelerated",
    "last_path",
    "mlp_last_path",
    "restore_fla",
    "short_conv_last_path",
]


def accelerate_fla(verbose: bool = True, *, targets: str | Iterable[str] | None = None) -> None:
    """Replace functions of flash-linear-attention by this package's, wherever they were imported to.

    A call that is not served here goes on to the original function, once, with the same arguments. On a CPU, where the
    originals do not run, calls are served by the definition; on a GPU by kernels alone, and by the originals until
    there are some.

    Args:
        verbose: Whether to print what is replaced.
        targets: ``"gated_delta_rule"`` (``"gdn"``), ``"kda"``, ``"gated_mlp"`` (``"mlp"``), ``"short_conv"``
            (``"shortconv"``), or several; all of them or none. None takes the first two, as far as there are such.

    Raises:
        MissingPackageError: An ImportError: flash-linear-attention, or what a named target needs of it, is not there.
        OptionError: No such target, or none named.
        OptionTypeError: A TypeError: a target that is no name.
    """
    done = accelerate(targets)
    if verbose and done:
        print(f"cudnn.fla: {', '.join(done)}")


def restore_fla(*, targets: str | Iterable[str] | None = None) -> None:
    """Put back what `accelerate_fla` replaced; what someone else replaced since stays.

    Args:
        targets: As for `accelerate_fla`; None is all.

    Raises:
        OptionError: No such target, or none named.
        OptionTypeError: A TypeError: a target that is no name.
    """
    restore(targets)


def is_accelerated(target: str | None = None) -> bool:
    """Whether a target is replaced now; None asks for any.

    Args:
        target: As for `accelerate_fla`.

    Returns:
        The answer.
    """
    return any(patched(row.name) for row in TARGETS) if target is None else patched(target)


def last_path() -> str | None:
    """How the latest call of the gated delta rule went: ``"native"`` or ``"fallback:<reason>"``; None before any."""
    return gated_delta_rule.last_path()


def mlp_last_path() -> str | None:
    """Likewise for the gated MLP, or ``"error:<type>"``."""
    return gated_mlp.last_path()


def short_conv_last_path() -> str | None:
    """Likewise for the short convolution, or ``"error:<type>"``."""
    return short_conv.last_path()
