"""One run of the demo, from the two models to the verdict."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cudnn._cli.demo.chart import save_plot
from cudnn._cli.demo.check import checks
from cudnn._cli.demo.config import CHOSEN, DemoConfig
from cudnn._cli.demo.data import Corpus
from cudnn._cli.demo.frameworks import Device, trainers
from cudnn._cli.demo.report import (
    print_checks,
    print_loads,
    print_losses,
    print_sample,
    print_setup,
    print_speed,
    print_verdict,
)
from cudnn._cli.demo.train import Outcome, sample, train
from cudnn._cli.demo.trainer import Trainer
from cudnn._cli.demo.weights import count, initial_weights
from cudnn._cli.serving import devices, sample_problem, serving
from cudnn_fe.core.registry import find_op

__all__ = ["run"]


def run(console: Console, config: DemoConfig, corpus: Corpus, device: Device, seed: int, plot: Path | None) -> bool:
    """Train, report, and say whether every check passed."""
    initial = initial_weights(config, seed)
    backend = _backend(config, device)
    print_setup(console, config, corpus, device, count(initial), backend)
    ours, plain = trainers(device, config, initial)
    outcome = _train(console, config, corpus, seed, ours, plain)
    print_losses(console, outcome)
    found = checks(config, outcome)
    print_checks(console, found, device.framework)
    print_speed(console, config, outcome, device.framework, backend)
    if outcome.routing:
        print_loads(console, outcome, config)
    print_sample(console, config, sample(ours, config.context, seed))
    if plot is not None:
        save_plot(plot, outcome, f"Byte-level language model, {device.framework}, {device.description}", config.through)
        console.print(f"Plot written to {plot}")
    return print_verdict(console, config, found)


def _backend(config: DemoConfig, device: Device) -> str:
    op = find_op(config.op)
    assert op is not None  # the demo requires the family
    where = next(where for where in devices() if where.place.startswith(device.kind))
    rows = config.tokens_per_step * (CHOSEN if config.experts else 1)
    m, n, k = rows, 2 * config.hidden, config.width
    return serving(op, where, sample_problem(op, where.place, m=m, n=n, k=k, kind=config.compute_dtype)).backend


def _train(console: Console, config: DemoConfig, corpus: Corpus, seed: int, ours: Trainer, plain: Trainer) -> Outcome:
    columns = (
        TextColumn("training"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[ours]:.3f}, plain {task.fields[plain]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("training", total=config.steps, ours=float("nan"), plain=float("nan"))

        def on_step(ours_loss: float, plain_loss: float) -> None:
            progress.update(task, advance=1, ours=ours_loss, plain=plain_loss)

        return train(config, corpus, seed, ours, plain, on_step)
