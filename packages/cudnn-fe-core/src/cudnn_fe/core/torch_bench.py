"""Benchmark cases of torch operands: sets of them, this project's call, and rivals that take the same operands."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from cudnn_fe.core.bench import Entrant, MemoryCase

__all__ = ["ONE_ROUNDING", "Rival", "compiled_and_eager", "normal", "operand_case", "results_of"]

ONE_ROUNDING = 2.0**-8  # of bfloat16, twice: kernels sum in another order, rivals in other intermediate steps


@dataclass(frozen=True, slots=True)
class Rival:
    """Somebody else's call.

    Attributes:
        who: Its name in the table.
        run: Takes a case's operands.
        does: ``"op"``, or what part of it.
        defined: That part's definition, where it is not the op's.
        module: What must be installed for it, None for nothing beside torch.
        cuda_only: Whether it is left out on a CPU.
    """

    who: str
    run: Callable[..., Any]
    does: str = "op"
    defined: Callable[..., Any] | None = None
    module: str | None = None
    cuda_only: bool = True


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile`` of a function, with every shape compiled for itself."""
    return torch.compile(function, dynamic=False)


def compiled_and_eager(function: Callable[..., Any]) -> tuple[Rival, Rival]:
    """What torch makes of the op's own formula: compiled, and step by step."""
    # On a CPU, the compiler would need a C++ compiler, and minutes.
    lazily = Rival("torch.compile", lambda *operands: _compiled(function)(*operands))
    return lazily, Rival("torch eager", function, cuda_only=False)


def normal(place: str, *shape: int, kind: torch.dtype = torch.bfloat16) -> Tensor:
    """Standard normal values."""
    return torch.randn(shape, device=place, dtype=torch.float32).to(kind)


def operand_case(
    name: str,
    shape: tuple[int, ...],
    nbytes: float,
    make: Callable[[str], tuple[Any, ...]],
    ours: Callable[..., Any],
    rivals: Sequence[Rival],
    *,
    allowed: float = ONE_ROUNDING,
    flops: int = 0,
) -> MemoryCase:
    """A case of bfloat16 operands.

    Args:
        name: As `MemoryCase` has it.
        shape: Likewise.
        nbytes: Likewise.
        make: Called as ``make(place)``: one set of operands.
        ours: Called as ``ours(*operands, backend=...)``.
        rivals: Who else takes the operands.
        allowed: As `MemoryCase` has it.
        flops: Likewise.
    """

    def entrants(place: str, sets: int, backend: str | None) -> list[Entrant]:
        torch.manual_seed(shape[-1])
        operands = [make(place) for _ in range(sets)]

        def call(function: Callable[..., Any], index: int) -> Sequence[Tensor]:
            return results_of(function(*operands[index]))

        def exact() -> Sequence[Tensor]:
            copies = [x.clone() if isinstance(x, Tensor) and x.is_contiguous() else x for x in operands[0]]
            return results_of(ours(*copies, backend="reference"))

        found = [Entrant("cudnn-fe", partial(call, partial(ours, backend=backend)), exact, ours=True)]
        for rival in rivals:
            here = place == "cuda" or not rival.cuda_only
            if here and (rival.module is None or importlib.util.find_spec(rival.module)):
                wanted = exact if rival.defined is None else partial(call, rival.defined, 0)
                found.append(Entrant(rival.who, partial(call, rival.run), wanted, does=rival.does))
        return found

    return MemoryCase(name, shape, "bfloat16", int(nbytes), allowed, entrants, flops)


def results_of(found: Any) -> Sequence[Tensor]:
    """A call's tensors in order, without those that are None."""
    if isinstance(found, Tensor):
        return (found,)
    return [x for x in (found.values() if isinstance(found, dict) else found) if x is not None]
