"""The command `cudnn-fe demo`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cudnn._cli.console import output
from cudnn_fe.core.errors import OptionError

__all__ = ["demo"]

EXAMPLE = "Example: [bold]cudnn-fe demo --framework jax --plot loss.png[/]"


def demo(
    framework: Annotated[str, typer.Option(help="torch or jax.")] = "torch",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    steps: Annotated[int | None, typer.Option(help="Optimiser steps; by default 240 on a CPU, 300 on a GPU.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights and the batches.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Also draw the loss curves into this PNG, SVG or PDF.")] = None,
) -> None:
    """Train a small language model through gemm_swiglu, and check it against plain framework ops.

    The model reads the source of Python's standard library byte by byte. Its MLPs go through gemm_swiglu_forward and
    its backward; a twin in plain ops trains beside it on the same batches. It takes a minute on two CPU cores. The
    exit code is 1 if the two differ by more than rounding explains.
    """
    from cudnn._cli.demo.chart import check_plot_path
    from cudnn._cli.demo.config import CPU, GPU
    from cudnn._cli.demo.data import read_corpus
    from cudnn._cli.demo.frameworks import find_device
    from cudnn._cli.demo.session import run

    if steps is not None and steps < 1:
        raise OptionError("--steps", got=str(steps), wanted="at least 1", remedy="ask for more steps")
    if seed < 0:
        raise OptionError("--seed", got=str(seed), wanted="at least 0", remedy="choose another seed")
    if plot is not None:
        check_plot_path(plot)
    corpus = read_corpus()
    console = output()
    console.print("[bold]cudnn-fe demo[/]: a language model, trained through gemm_swiglu and again in plain ops\n")
    with console.status(f"importing {framework} ..."):
        place = find_device(framework, device)
    config = GPU if place.kind == "cuda" else CPU
    if steps is not None:
        config = replace(config, steps=steps)
    if not run(console, config, corpus, place, seed, plot):
        raise typer.Exit(1)


demo.__doc__ = f"{demo.__doc__}\n\n    {EXAMPLE}\n"
