"""What an op tells `cudnn-fe bench`: its cases, and who can compute them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Entrant", "MemoryCase"]


@dataclass(frozen=True, slots=True)
class Entrant:
    """One way to compute a case.

    Attributes:
        who: Its name in the table.
        run: Computes operand set ``index`` and returns its results, torch tensors.
        exact: The definition's results for set 0, to check ``run`` against before it is timed.
        does: ``"op"``, or what part of it.
        ours: Whether it is this project's.
        on_host: Whether it waits for its results and is timed by the host's clock, against its like alone.
    """

    who: str
    run: Callable[[int], Sequence[Any]]
    exact: Callable[[], Sequence[Any]]
    does: str = "op"
    ours: bool = False
    on_host: bool = False


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """A call whose time is that of its bytes, or of its products where it names them.

    Attributes:
        name: The model and layer that has it, or its extents.
        shape: Its extents.
        dtype: Element type of the operands.
        nbytes: Bytes that must move: each operand read once, each result written once.
        allowed: Relative RMS by which a result may differ from the definition's: roundings of the narrowest format.
        entrants: Called as ``entrants(device, sets, backend)``: who takes part with so many sets of operands, this
            project first, by the backend of that name.
        flops: Of its products, which rate it then; 0 where its bytes do.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    allowed: float
    entrants: Callable[[str, int, str | None], Sequence[Entrant]]
    flops: int = 0
