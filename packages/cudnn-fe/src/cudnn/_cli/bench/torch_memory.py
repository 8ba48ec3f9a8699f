"""Runs the benchmark of an op that brings its cases: every contender in turn.

The ceiling of what memory bounds is a device copy of as many bytes, timed among them; that of products is the
framework's GEMM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cudnn._cli.bench.machine import device_name, versions
from cudnn._cli.bench.rows import BenchRow
from cudnn._cli.bench.timing import Timing, rotation, time_alternating
from cudnn._cli.bench.torch_ceiling import gemm_ceiling
from cudnn_fe.core.bench import Entrant, MemoryCase
from cudnn_fe.core.op import Op

__all__ = ["MemoryPlan", "measure_memory", "objection_to"]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What to measure.

    Attributes:
        op: The op.
        cases: Its cases.
        cuda: Whether on the GPU.
        rounds: Timings per contender.
        backend: Backend of this project's calls; None lets it choose.
    """

    op: Op
    cases: Sequence[MemoryCase]
    cuda: bool
    rounds: int
    backend: str | None


def measure_memory(plan: MemoryPlan, say: Callable[[str], None]) -> Iterator[list[BenchRow]]:
    """Yield the rows of one case after another; ``say`` hears why a contender was left out."""
    threads = torch.get_num_threads()
    if not plan.cuda:
        torch.set_num_threads(1)  # with more, other work on the machine decides the times
    try:
        for case in plan.cases:
            yield _measure(plan, case, say)
    finally:
        torch.set_num_threads(threads)


def _measure(plan: MemoryPlan, case: MemoryCase, say: Callable[[str], None]) -> list[BenchRow]:
    place = "cuda" if plan.cuda else "cpu"
    sets = rotation(case.nbytes)
    admitted = []
    for entrant in case.entrants(place, sets, plan.backend):
        reason = objection_to(entrant, case.allowed)
        if reason is None:
            admitted.append(entrant)
        else:
            say(f"{entrant.who} is not timed at {case.name}: {reason}")
    if not admitted:
        return []
    if case.flops:
        best, reached_by = _product_ceiling(case.dtype, plan.cuda)
        ceiling = best, f"{best:.4g} TFLOP/s: {reached_by}"
        rows = []
        for on_host in (False, True):
            group = [entrant for entrant in admitted if entrant.on_host == on_host]
            runs = [entrant.run for entrant in group]
            timings = time_alternating(runs, sets, rounds=plan.rounds, cuda=plan.cuda and not on_host)
            rows += _rows(plan, case, (case.flops, "TFLOP/s"), ceiling, list(zip(group, timings, strict=True)))
        return rows
    source = torch.empty(case.nbytes // 2, dtype=torch.uint8, device=place).random_()
    targets = [torch.empty_like(source) for _ in range(2)]
    calls = [lambda index: targets[index % 2].copy_(source), *(entrant.run for entrant in admitted)]
    copied, *timings = time_alternating(calls, sets, rounds=plan.rounds, cuda=plan.cuda)
    best = case.nbytes / copied.microseconds / 1e6
    ceiling = best, f"{best:.4g} TB/s: a copy of as many bytes, in turn with the others"
    return _rows(plan, case, (case.nbytes, "TB/s"), ceiling, list(zip(admitted, timings, strict=True)))


@cache
def _product_ceiling(kind: str, cuda: bool) -> tuple[float, str]:
    return gemm_ceiling(kind, cuda)


def objection_to(entrant: Entrant, allowed: float) -> str | None:
    """Why the contender's results do not count, or None: it raised, or they differ from the definition's."""
    exact = [_values(x) for x in entrant.exact()]  # before the run, which may overwrite its operands
    try:
        got = [_values(x) for x in entrant.run(0)]
    except Exception as error:
        return f"it failed: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    if [x.shape for x in got] != [x.shape for x in exact]:
        return f"it is wrong: shapes {[tuple(x.shape) for x in got]}, not {[tuple(x.shape) for x in exact]}"
    worst = max((_distance(a, b) for a, b in zip(got, exact, strict=True)), default=0.0)
    return None if worst <= allowed else f"it is wrong: relative RMS {worst:.1e}, allowed {allowed:.1e}"


def _values(x: Any) -> Tensor:
    given: Tensor = x
    if given.dtype in (torch.uint8, torch.float4_e2m1fn_x2):  # two FP4 codes, whose steps are what is compared
        given = given.view(torch.uint8)
        given = torch.stack((given & 15, given >> 4), dim=-1)
        return torch.where(given > 7, 8.0 - given, given)
    if given.dtype == torch.float8_e8m0fnu:  # not every device of torch casts it
        return (given.view(torch.uint8).to(torch.float32) - 127.0).exp2()
    return given.to(torch.float32)


def _distance(got: Tensor, exact: Tensor) -> float:
    return float((got - exact).norm() / exact.norm().clamp_min(1e-30))


def _rows(
    plan: MemoryPlan,
    case: MemoryCase,
    work: tuple[int, str],
    ceiling: tuple[float, str],
    timed: list[tuple[Entrant, Timing]],
) -> list[BenchRow]:
    others = sorted(((e, t) for e, t in timed if not e.ours), key=lambda one: one[0].does != "op")
    rival = (others[0][0].who, others[0][1]) if others else None  # who computes the op, or else a part of it
    rows = []
    for entrant, timing in timed:
        rate = work[0] / timing.microseconds / 1e6
        rows.append(
            BenchRow(
                op=plan.op.name,
                shape_name=case.name,
                shape=case.shape,
                dtype=case.dtype,
                who=f"{entrant.who} ({_backend(plan)})" if entrant.ours else entrant.who,
                does=entrant.does,
                microseconds=round(timing.microseconds, 2),
                rate=float(f"{rate:.5g}"),
                rate_unit=work[1],
                percent_of_ceiling=round(100 * rate / ceiling[0], 1),
                ceiling=ceiling[1],
                rival=rival[0] if rival else "",
                ratio_to_rival=round(rival[1].microseconds / timing.microseconds, 3) if rival else None,
                sm_clock_mhz=timing.clock_mhz,
                method=timing.method,
                rounds=timing.rounds,
                device=device_name(plan.cuda),
                versions=versions(plan.cuda),
                date=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )
    return rows


def _backend(plan: MemoryPlan) -> str:
    offered = [kernel.backend for kernel in plan.op.kernels if plan.cuda and not kernel.opt_in]
    return plan.backend or next(iter(offered), "reference")
