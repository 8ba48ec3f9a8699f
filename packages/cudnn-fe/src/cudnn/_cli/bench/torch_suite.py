"""Runs one op's benchmark and turns times into rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import torch

from cudnn._cli.bench.machine import device_name, versions
from cudnn._cli.bench.rows import BenchRow
from cudnn._cli.bench.shapes import ROUTINGS, Shape
from cudnn._cli.bench.timing import Timing, rotation, time_alternating
from cudnn._cli.bench.torch_ceiling import gemm_ceiling
from cudnn._cli.bench.torch_contenders import Case, Contender, contenders
from cudnn._cli.bench.torch_grouped import GroupedCase, grouped_contenders
from cudnn._cli.bench.torch_verify import objection
from cudnn._cli.serving import devices, sample_problem, serving
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.op import Op

__all__ = ["Plan", "measure"]

# In this order: the first one timed is the rival that ratios refer to.
RIVALS = {
    "matmul": ("cuBLAS", "torch matmul", "QuACK"),
    "gemm_swiglu_forward": ("torch.compile", "torch eager", "QuACK"),
    "grouped_gemm_forward": ("torch._grouped_mm", "torch loop"),
    "grouped_gemm_glu_forward": ("torch.compile", "torch eager"),
    "grouped_gemm_wgrad_forward": ("torch._grouped_mm", "torch loop"),
}
_JAX_RIVAL = "jax.lax.ragged_dot"
_WHOLE = {
    "matmul": "product",
    "gemm_swiglu_forward": "activation",
    "grouped_gemm_forward": "product",
    "grouped_gemm_glu_forward": "activation",
    "grouped_gemm_wgrad_forward": "gradient",
}


class Work(NamedTuple):
    """One case: a weight, M, and in a mixture how the rows are spread."""

    shape: Shape
    m: int
    routing: str

    @property
    def name(self) -> str:
        """Model, layer and routing."""
        return f"{self.shape.name}, {self.routing}" if self.routing else self.shape.name


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        op: The op.
        shapes: Weights.
        rows: Values of M for shapes without their own.
        kind: Element type of the operands.
        cuda: Whether on the GPU.
        rounds: Timings per contender.
        backend: Backend of this project's calls; None lets it choose.
    """

    op: Op
    shapes: tuple[Shape, ...]
    rows: tuple[int, ...]
    kind: str
    cuda: bool
    rounds: int
    backend: str | None

    @property
    def cases(self) -> list[Work]:
        """Every shape with every M and routing."""
        return [
            Work(shape, m, routing)
            for shape in self.shapes
            for m in shape.rows or self.rows
            for routing in (ROUTINGS if shape.experts else ("",))
        ]


def measure(plan: Plan, say: Callable[[str], None]) -> Iterator[list[BenchRow]]:
    """Yield the rows of one case after another; ``say`` hears why a contender was left out."""
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_float32_matmul_precision("high")  # float32 rivals use TF32, as the kernels do
    if not plan.cuda:
        torch.set_num_threads(1)  # with more, other work on the machine decides the times
    try:
        ceiling = gemm_ceiling(plan.kind, plan.cuda)
        for work in plan.cases:
            yield _measure_case(plan, work, ceiling, say)
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)


def _measure_case(plan: Plan, work: Work, ceiling: tuple[float, str], say: Callable[[str], None]) -> list[BenchRow]:
    case, found = _case(plan, work)
    admitted = []
    for contender in found:
        reason = objection(case, contender)
        if reason is None:
            admitted.append(contender)
        else:
            say(f"{contender.who} is not timed at {case.label}: {reason}")
    rows = []
    for on_host in (False, True):
        group = [contender for contender in admitted if contender.on_host == on_host]
        if group:
            calls = [contender.run for contender in group]
            timings = time_alternating(calls, len(case.a), rounds=plan.rounds, cuda=plan.cuda and not on_host)
            rows += _rows(plan, work, list(zip(group, timings, strict=True)), ceiling)
    return rows


def _case(plan: Plan, work: Work) -> tuple[Case | GroupedCase, list[Contender]]:
    """The operands, and who takes part."""
    shape, m, routing = work
    where = "cuda" if plan.cuda else "cpu"
    sets = rotation((m + shape.n * max(shape.experts, 1)) * shape.k * dtype(plan.kind).itemsize)
    if shape.experts:
        grouped = GroupedCase(shape, m, routing, plan.kind, where, sets)
        return grouped, grouped_contenders(plan.op.name, grouped, plan.backend)
    case = Case(shape, m, plan.kind, where, sets)
    return case, contenders(plan.op.name, case, plan.backend)


def _rows(plan: Plan, work: Work, timed: list[tuple[Contender, Timing]], ceiling: tuple[float, str]) -> list[BenchRow]:
    shape, m, _ = work
    times = {contender.who: timing.microseconds for contender, timing in timed}
    rival = next((name for name in (*RIVALS[plan.op.name], _JAX_RIVAL) if name in times), "")
    flops = 2 * m * shape.n * shape.k
    rows = []
    for contender, timing in timed:
        rate = flops / timing.microseconds / 1e6
        rows.append(
            BenchRow(
                op=plan.op.name,
                shape_name=work.name,
                shape=(m, shape.n, shape.k, shape.experts or 1),
                dtype=plan.kind,
                who=f"{contender.who} ({_backend(plan, shape, m)})" if contender.ours else contender.who,
                does="op" if contender.computes == _WHOLE[plan.op.name] else "GEMM alone",
                microseconds=round(timing.microseconds, 2),
                rate=round(rate, 4),
                rate_unit="TFLOP/s",
                percent_of_ceiling=round(100 * rate / ceiling[0], 1),
                ceiling=f"{ceiling[0]:.4g} TFLOP/s: {ceiling[1]}",
                rival=rival,
                ratio_to_rival=round(times[rival] / timing.microseconds, 3) if rival else None,
                sm_clock_mhz=timing.clock_mhz,
                method=timing.method,
                rounds=timing.rounds,
                device=device_name(plan.cuda),
                versions=versions(plan.cuda),
                date=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )
    return rows


def _backend(plan: Plan, shape: Shape, m: int) -> str:
    where = next(where for where in devices() if (where.place != "cpu") == plan.cuda)
    problem = sample_problem(plan.op, where.place, m=m, n=shape.n, k=shape.k, kind=plan.kind)
    return plan.backend or serving(plan.op, where, problem).backend
