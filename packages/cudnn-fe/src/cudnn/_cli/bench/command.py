"""The command `cudnn-fe bench`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudnn._cli.console import output, table
from cudnn_fe.core.errors import MissingPackageError, OptionError

if TYPE_CHECKING:
    from rich.table import Table

    from cudnn._cli.bench.rows import BenchRow
    from cudnn._cli.bench.torch_memory import MemoryPlan
    from cudnn._cli.bench.torch_suite import Plan
    from cudnn_fe.core.op import Op

__all__ = ["bench"]

GEMMS = ("gemm_swiglu_forward", "matmul")  # shapes and contenders here; other ops bring their own
DTYPES = ("bfloat16", "float16", "float32")


def bench(
    op: Annotated[str, typer.Argument(metavar="OP", help="An op that has cases, or another name of it.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows into this file.")] = None,
    m: Annotated[str, typer.Option(help="Values of M, separated by commas.")] = "",
    model: Annotated[str, typer.Option(help="Only shapes whose name contains this.")] = "",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32; on a CPU float32 by default.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    rounds: Annotated[int, typer.Option(help="Timings of each contender.")] = 30,
    backend: Annotated[str | None, typer.Option(help="Backend of our own calls; chosen by default.")] = None,
) -> None:
    """Time an op beside every rival that is installed, on the shapes of known models.

    Contenders run in turn on the same operands, which rotate over more than the L2 cache; each result is checked
    against a float64 evaluation before it is timed. Only the ratios of one run hold: `x RIVAL` is the speed over that
    rival's.

    Example: [bold]cudnn-fe bench gemm_swiglu_forward --model Llama --m 4096,8192 --json rows.json[/]
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingPackageError("bench", got="no torch", wanted="torch", remedy='pip install "cudnn-fe[torch]"')
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise OptionError("--json", got=str(json_file), wanted="a file in an existing folder", remedy="create it")
    from cudnn._cli.bench.rows import save_rows

    plan = _plan(op, m, model, dtype, device, rounds, backend)
    console = output()
    if not plan.cuda:
        console.print("No GPU is used: this times the [bold]reference[/] beside plain torch ops, on one CPU thread.")
        console.print("It says nothing about the kernels.\n")
    rows: list[BenchRow] = []
    status = console.status("warming up ...")
    status.start()
    try:
        for number, found in enumerate(_measure(plan, lambda text: console.print(text, style="yellow")), 1):
            rows += found
            if found:
                console.print(_case_table(found))
            status.update(f"{number} of {len(plan.cases)} shapes done ...")
            if json_file is not None:
                save_rows(json_file, rows)  # after each case: a long run may be cut short
    finally:
        status.stop()
    if not rows:
        raise typer.Exit(1)
    console.print(f"[dim]{rows[0].device}; {rows[0].method}, {rows[0].rounds} rounds; ceiling {rows[0].ceiling}[/]")


def _measure(plan: Plan | MemoryPlan, say: Callable[[str], None]) -> Iterator[list[BenchRow]]:
    from cudnn._cli.bench.torch_memory import MemoryPlan, measure_memory
    from cudnn._cli.bench.torch_suite import measure

    return measure_memory(plan, say) if isinstance(plan, MemoryPlan) else measure(plan, say)


def _has_cases(op: Op) -> bool:
    return bool(op.memory_cases) or op.name in GEMMS


def _plan(op: str, m: str, model: str, kind: str, device: str, rounds: int, backend: str | None) -> Plan | MemoryPlan:
    import torch

    from cudnn_fe.core.registry import find_op, ops

    found = find_op(op)
    if found is None or not _has_cases(found):
        names = ", ".join(sorted(one.name for one in ops(public=False) if _has_cases(one)))
        raise OptionError("OP", got=repr(op), wanted=f"one of {names}", remedy="see cudnn-fe ops")
    if device not in ("auto", "cpu", "cuda"):
        raise OptionError("--device", got=repr(device), wanted="auto, cpu or cuda", remedy="choose one")
    if device == "cuda" and not torch.cuda.is_available():
        raise OptionError("--device", got="cuda", wanted="a GPU that torch sees", remedy="use --device cpu")
    cuda = device != "cpu" and torch.cuda.is_available()
    if rounds < 3:
        raise OptionError("--rounds", got=str(rounds), wanted="at least 3", remedy="a median needs a few timings")
    if found.memory_cases:
        return _memory_plan(found, {"--m": m, "--dtype": kind}, model, cuda, rounds, backend)
    return _gemm_plan(found, m, model, kind, cuda, rounds, backend)


def _memory_plan(
    op: Op, refused: dict[str, str], model: str, cuda: bool, rounds: int, backend: str | None
) -> MemoryPlan:
    from cudnn._cli.bench.torch_memory import MemoryPlan
    from cudnn_fe.core.op import resolve

    for name, given in refused.items():
        if given:
            raise OptionError(name, got=repr(given), wanted=f"none: {op.name} has its own", remedy="use --model")
    assert op.memory_cases is not None
    cases = [case for case in resolve(op.memory_cases)(cuda) if model.lower() in case.name.lower()]
    if not cases:
        raise OptionError("--model", got=repr(model), wanted="part of a case's name", remedy="leave it out to see all")
    return MemoryPlan(op, cases, cuda, rounds, backend)


def _gemm_plan(op: Op, m: str, model: str, kind: str, cuda: bool, rounds: int, backend: str | None) -> Plan:
    from cudnn._cli.bench.shapes import CPU_ROWS, CPU_SHAPES, MODEL_SHAPES, ROWS, SQUARE_SHAPES, Shape
    from cudnn._cli.bench.torch_suite import Plan

    kind = kind or ("bfloat16" if cuda else "float32")
    if kind not in DTYPES:
        raise OptionError("--dtype", got=repr(kind), wanted=f"one of {', '.join(DTYPES)}", remedy="choose one")
    shapes: tuple[Shape, ...] = MODEL_SHAPES if cuda else CPU_SHAPES
    if cuda and op.name == "matmul":
        shapes = SQUARE_SHAPES + shapes
    rows = _numbers(m) or (ROWS if cuda else CPU_ROWS)
    shapes = tuple(replace(s, rows=()) if m else s for s in shapes if model.lower() in s.name.lower())
    if not shapes:
        raise OptionError("--model", got=repr(model), wanted="part of a shape's name", remedy="leave it out to see all")
    return Plan(op, shapes, rows, kind, cuda, rounds, backend)


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if any(not part.isdigit() or int(part) < 1 for part in parts):
        raise OptionError("--m", got=repr(text), wanted="positive numbers", remedy="write e.g. --m 4096,8192")
    return tuple(int(part) for part in parts)


def _case_table(rows: list[BenchRow]) -> Table:
    extents = ", ".join(str(extent) for extent in rows[0].shape)
    if rows[0].rate_unit == "TFLOP/s":
        extents = ", ".join(f"{name} {extent}" for name, extent in zip("MNK", rows[0].shape, strict=False))
    rivals = dict.fromkeys(row.rival or "rival" for row in rows)
    columns = [
        "who",
        "does",
        "time",
        rows[0].rate_unit,
        "of ceiling",
        f"x {next(iter(rivals)) if len(rivals) == 1 else 'rival'}",
    ]
    clocked = any(row.sm_clock_mhz is not None for row in rows)
    cells = [
        [
            f"[bold]{row.who}[/]" if row.who.startswith("cudnn-fe") else row.who,
            row.does,
            f"{row.microseconds:,.1f} us",
            f"{row.rate:,.4g}",
            f"{row.percent_of_ceiling:.0f} %",
            "" if row.ratio_to_rival is None else f"{row.ratio_to_rival:.2f}",
            *([f"{row.sm_clock_mhz} MHz"] if clocked else []),
        ]
        for row in rows
    ]
    columns += ["clock"] if clocked else []
    made = table(f"{rows[0].shape_name}: {extents}, {rows[0].dtype}", columns, cells, right=columns[2:])
    made.columns[0].no_wrap = True
    return made
