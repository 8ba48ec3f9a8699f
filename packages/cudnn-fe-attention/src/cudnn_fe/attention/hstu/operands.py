"""What forward and backward of HSTU attention share: packed operands, lengths and the window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from cudnn_fe.attention.operands import FLOATS, require_offsets, require_same_dtype
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["Window", "bind_window", "check_factors", "divisor_of", "require_arbitrary", "require_packed"]


@dataclass(frozen=True)
class Window:
    """Which keys a query sees, but for arbitrary masks.

    Attributes:
        kind: ``"full"``, ``"causal"``, ``"local"`` or ``"arbitrary"``.
        left: Keys before the diagonal, of local windows.
        right: Keys after it.
    """

    kind: Literal["full", "causal", "local", "arbitrary"]
    left: int = 0
    right: int = 0


def _length(name: str, given: int | None, rows: int) -> int:
    """The longest sequence: what the caller says, an int above 0 or an OptionError, else all rows."""
    value = max(rows, 1) if given is None else given
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(name, got=repr(value), wanted="an int above 0, or None", remedy="pass the longest sequence")
    return value


def divisor_of(q: Any, given: float | None, longest: int | None) -> float:
    """What outputs are divided by: the caller's number, else the longest sequence of queries."""
    rows = (getattr(q, "shape", None) or (1,))[0]
    return _length("max_seqlen_q", longest, rows) if given is None else given


def require_packed(q: TensorSpec, k: TensorSpec, v: TensorSpec, q_offsets: TensorSpec, k_offsets: TensorSpec) -> None:
    """Raises unless Q (Tq, H, D), K and V (Tk, H, D) and the offsets (B+1,) fit one another."""
    q.require_rank(3, "(Tq, H, D)")
    k.require_rank(3, "(Tk, H, D)")
    require_shape(k, (k.shape[0], *q.shape[1:]), "(Tk, H, D)")
    require_shape(v, k.shape, "(Tk, H, D)")
    require_dtype(q, *FLOATS)
    require_same_dtype(q, k, v)
    require_same_device(q, k, v, q_offsets, k_offsets)
    for spec in (q_offsets, k_offsets):
        require_dtype(spec, "int32")
    require_offsets(q_offsets)
    require_offsets(k_offsets, q_offsets)


def require_arbitrary(func: TensorSpec, q: TensorSpec) -> None:
    """Raises unless ``func`` (1, N, L) holds an odd number of ends for every query."""
    require_dtype(func, "int32")
    func.require_rank(3, "(1, N, L)")
    if func.shape[0] != 1 or func.shape[1] % 2 == 0 or func.shape[2] < q.shape[0]:
        raise ShapeError(
            func.name,
            got=str(func.shape),
            wanted=f"(1, N, L) with odd N and L >= {q.shape[0]}",
            remedy="pad the last dim",
        )
    require_same_device(q, func)


def bind_window(q: TensorSpec, k: TensorSpec, func: TensorSpec | None, options: dict[str, Any]) -> Window:
    """Validates lengths and window and says what kind of mask they make."""
    lengths = []
    for name, rows in (("max_seqlen_q", q.shape[0]), ("max_seqlen_k", k.shape[0])):
        lengths.append(_length(name, options[name], rows))
    if lengths[0] > lengths[1] and None not in (options["max_seqlen_q"], options["max_seqlen_k"]):
        raise OptionError(
            "max_seqlen_q",
            got=str(lengths[0]),
            wanted=f"at most max_seqlen_k = {lengths[1]}",
            remedy="swap or raise one",
        )
    window, most = options["window_size"], lengths[1]
    pair = isinstance(window, tuple | list) and len(window) == 2
    if not pair or not all(type(x) is int and (x == -1 or 0 <= x <= most) for x in window):
        raise OptionError(
            "window_size", got=repr(window), wanted=f"(left, right), each -1 or 0..{most}", remedy="-1 is unlimited"
        )
    left, right = (most if x < 0 else x for x in window)
    kind: Literal["full", "causal", "local"] = "full"
    if left == most and right == 0:
        kind = "causal"
    elif left < most or right < most:
        kind = "local"
    if func is None:
        return Window(kind, left, right)
    if kind != "full":
        raise OptionError(
            "func_tensor", got=f"a mask beside a {kind} window", wanted="window_size=(-1, -1)", remedy="mask it in func"
        )
    require_arbitrary(func, q)
    return Window("arbitrary")


def check_factors(alpha: Any, scaling: Any) -> None:
    """Raises OptionError unless alpha is finite, and the divisor finite and above 0."""
    for name, value, good in (("alpha", alpha, math.isfinite), ("scaling_seqlen", scaling, lambda x: 0 < x < math.inf)):
        if isinstance(value, int | float) and not good(value):
            wanted = "a finite number" + (" above 0" if name == "scaling_seqlen" else "")
            raise OptionError(name, got=repr(value), wanted=wanted, remedy="pass a Python number")
