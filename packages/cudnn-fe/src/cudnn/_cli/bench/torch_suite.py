"""Runs one op's benchmark and turns times into rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from cudnn._cli.bench.machine import device_name, versions
from cudnn._cli.bench.rows import BenchRow
from cudnn._cli.bench.shapes import Shape
from cudnn._cli.bench.timing import Timing, rotation, time_alternating
from cudnn._cli.bench.torch_ceiling import gemm_ceiling
from cudnn._cli.bench.torch_contenders import Case, Contender, contenders
from cudnn._cli.bench.torch_verify import objection
from cudnn._cli.serving import devices, sample_problem, serving
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.op import Op

__all__ = ["Plan", "measure"]

# In this order: the first one timed is the rival that ratios refer to.
RIVALS = {
    "matmul": ("cuBLAS", "torch matmul", "QuACK"),
    "gemm_swiglu_forward": ("torch.compile", "torch eager", "QuACK"),
}


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
    def cases(self) -> list[tuple[Shape, int]]:
        """Every shape with every M."""
        return [(shape, m) for shape in self.shapes for m in shape.rows or self.rows]


def measure(plan: Plan, say: Callable[[str], None]) -> Iterator[list[BenchRow]]:
    """Yield the rows of one case after another; ``say`` hears why a contender was left out."""
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_float32_matmul_precision("high")  # float32 rivals use TF32, as the kernels do
    if not plan.cuda:
        torch.set_num_threads(1)  # with more, other work on the machine decides the times
    try:
        ceiling = gemm_ceiling(plan.kind, plan.cuda)
        for shape, m in plan.cases:
            yield _measure_case(plan, shape, m, ceiling, say)
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)


def _measure_case(
    plan: Plan, shape: Shape, m: int, ceiling: tuple[float, str], say: Callable[[str], None]
) -> list[BenchRow]:
    sets = rotation((m + shape.n) * shape.k * dtype(plan.kind).itemsize)
    case = Case(shape, m, plan.kind, "cuda" if plan.cuda else "cpu", sets)
    admitted = []
    for contender in contenders(plan.op.name, case, plan.backend):
        reason = objection(case, contender)
        if reason is None:
            admitted.append(contender)
        else:
            say(f"{contender.who} is not timed at {shape.name}, M {m}: {reason}")
    if not admitted:
        return []
    timings = time_alternating([c.run for c in admitted], sets, rounds=plan.rounds, cuda=plan.cuda)
    return _rows(plan, shape, m, list(zip(admitted, timings, strict=True)), ceiling)


def _rows(
    plan: Plan, shape: Shape, m: int, timed: list[tuple[Contender, Timing]], ceiling: tuple[float, str]
) -> list[BenchRow]:
    times = {contender.who: timing.microseconds for contender, timing in timed}
    rival = next((name for name in RIVALS[plan.op.name] if name in times), "")
    flops = 2 * m * shape.n * shape.k
    whole = "product" if plan.op.name == "matmul" else "activation"
    rows = []
    for contender, timing in timed:
        rate = flops / timing.microseconds / 1e6
        rows.append(
            BenchRow(
                op=plan.op.name,
                shape_name=shape.name,
                shape=(m, shape.n, shape.k, 1),
                dtype=plan.kind,
                who=f"{contender.who} ({_backend(plan, shape, m)})" if contender.ours else contender.who,
                does="op" if contender.computes == whole else "GEMM alone",
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
