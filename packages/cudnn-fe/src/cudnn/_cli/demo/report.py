"""What the demo prints before and after the training."""

from __future__ import annotations

from statistics import median

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from cudnn._cli.console import table, unicode_ok
from cudnn._cli.demo.chart import text_chart
from cudnn._cli.demo.check import Check
from cudnn._cli.demo.config import CHOSEN, DemoConfig
from cudnn._cli.demo.data import Corpus
from cudnn._cli.demo.frameworks import Device
from cudnn._cli.demo.train import Curve, Outcome
from cudnn_fe.core.choose import REFERENCE

__all__ = ["print_checks", "print_loads", "print_losses", "print_sample", "print_setup", "print_speed", "print_verdict"]


def print_setup(
    console: Console, config: DemoConfig, corpus: Corpus, device: Device, parameters: int, backend: str
) -> None:
    """What is about to happen."""
    mlp = (
        f"{config.experts} experts of {config.hidden}, {CHOSEN} for a byte"
        if config.experts
        else f"MLP {config.hidden}"
    )
    facts = {
        "text": f"{corpus.text.size / 1e6:.1f} MB: the {corpus.files} top-level modules of Python's standard library",
        "model": f"{config.layers} blocks, width {config.width}, {mlp}, context {config.context} bytes; "
        f"{parameters / 1e6:.2f} M parameters",
        "steps": f"{config.steps} of {config.tokens_per_step} bytes; the same batches for both models",
        "device": f"{device.description}; {device.framework}, matrix operands in {config.compute_dtype}",
        "backend": f"{backend} serves {config.through}",
    }
    for name, fact in facts.items():
        console.print(f"  [dim]{name:8}[/] {fact}")
    console.print()


def print_losses(console: Console, outcome: Outcome) -> None:
    """The loss of the training through the op: from, to, and the curve."""
    ours, plain = outcome.ours, outcome.plain
    console.print(f"[bold]Loss[/] {ours.start():.3f} -> {ours.end():.3f} nats per byte (plain: {plain.end():.3f})")
    for line in text_chart(ours.losses, unicode=unicode_ok(console)):
        console.print(Text(line))
    console.print()


def print_checks(console: Console, found: list[Check], framework: str) -> None:
    """Each comparison with what it measured and what it allows."""
    rows = [
        (check.what, f"{check.measured:.1e}", f"{check.allowed:.1e}", _mark(check.passed), check.reason)
        for check in found
    ]
    columns = ("check", "measured", "allowed", "", "allowed for")
    console.print(table(f"Difference from the same model in plain {framework} ops", columns, rows, right=columns[1:3]))


def print_speed(console: Console, config: DemoConfig, outcome: Outcome, framework: str, backend: str) -> None:
    """Bytes a second of each training, by the median step."""

    def rate(curve: Curve) -> str:
        return f"{config.tokens_per_step / median(curve.seconds) / 1e3:,.1f} kB/s"

    console.print(
        f"[bold]Speed[/] {rate(outcome.ours)} through {config.through}, {rate(outcome.plain)} in plain {framework} ops"
    )
    if backend == REFERENCE:
        console.print("[dim]The reference defines the op, and is not built for speed; the kernels need a GPU.[/]")
    console.print()


def print_loads(console: Console, outcome: Outcome, config: DemoConfig) -> None:
    """How many bytes of the last batch went to each expert, block by block."""
    counts = [np.bincount(chosen.ravel(), minlength=config.experts) for chosen in outcome.routing]
    even = outcome.routing[0].size / config.experts
    columns = ["block", *map(str, range(config.experts)), "largest / even"]
    rows = [[str(index), *map(str, row.tolist()), f"{row.max() / even:.2f}"] for index, row in enumerate(counts)]
    console.print(table("Tokens per expert in the last step", columns, rows, right=columns))


def print_sample(console: Console, config: DemoConfig, text: str) -> None:
    """What the trained model writes."""
    console.print(f"[bold]Sample[/] written by the model trained through {config.through}")
    printable = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
    console.print(Padding(Text(printable, style="dim"), (0, 0, 1, 2)))


def print_verdict(console: Console, config: DemoConfig, found: list[Check]) -> bool:
    """One last line; returns whether every check passed."""
    failed = [check.what for check in found if not check.passed]
    if failed:
        console.print(f"[bold red]FAIL[/] beyond what rounding explains: {', '.join(failed)}")
        return False
    console.print(f"[bold green]PASS[/] training through {config.through} is training in plain ops, up to rounding")
    return True


def _mark(passed: bool) -> str:
    return "[green]ok[/]" if passed else "[bold red]FAIL[/]"
