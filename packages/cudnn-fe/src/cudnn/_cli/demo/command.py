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
    model: Annotated[str, typer.Option(help="moe, a mixture of experts, or dense, with single MLPs.")] = "moe",
    framework: Annotated[str, typer.Option(help="torch or jax.")] = "torch",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    steps: Annotated[
        int | None,
        typer.Option(help="Optimiser steps; by default 240 (dense: 600) on a CPU, 200 (dense: 300) on a GPU."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights and the batches.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Also draw the loss curves into this PNG, SVG or PDF.")] = None,
) -> None:
    """Train a small language model through this project's ops, and check it against plain framework ops.

    The model reads the source of Python's standard library byte by byte. Each of its MLPs is a mixture of experts, of
    which a router chooses two for a byte; they go through grouped_gemm_glu_forward, grouped_gemm_forward and their
    backward. A twin in plain ops trains beside it on the same batches. It takes a minute on two CPU cores. The exit
    code is 1 if the two differ by more than rounding explains.
    """
    from cudnn._cli.demo.chart import check_plot_path
    from cudnn._cli.demo.config import MODELS
    from cudnn._cli.demo.data import read_corpus
    from cudnn._cli.demo.frameworks import find_device
    from cudnn._cli.demo.session import run

    if model not in MODELS:
        raise OptionError("--model", got=repr(model), wanted=" or ".join(MODELS), remedy="choose one")
    if steps is not None and steps < 1:
        raise OptionError("--steps", got=str(steps), wanted="at least 1", remedy="ask for more steps")
    if seed < 0:
        raise OptionError("--seed", got=str(seed), wanted="at least 0", remedy="choose another seed")
    if plot is not None:
        check_plot_path(plot)
    corpus = read_corpus()
    console = output()
    through = MODELS[model][0].through
    console.print(f"[bold]cudnn-fe demo[/]: a language model, trained through {through} and again in plain ops\n")
    with console.status(f"importing {framework} ..."):
        place = find_device(framework, device)
    config = MODELS[model][place.kind == "cuda"]
    if steps is not None:
        config = replace(config, steps=steps)
    if not run(console, config, corpus, place, seed, plot):
        raise typer.Exit(1)


demo.__doc__ = f"{demo.__doc__}\n\n    {EXAMPLE}\n"
