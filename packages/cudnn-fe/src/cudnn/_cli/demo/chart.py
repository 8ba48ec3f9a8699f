"""A loss curve drawn in text, and as a picture."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from cudnn._cli.demo.train import Outcome
from cudnn_fe.core.errors import MissingPackageError, OptionError

__all__ = ["check_plot_path", "save_plot", "text_chart"]

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*#@"


def text_chart(losses: Sequence[float], *, columns: int = 64, rows: int = 6, unicode: bool = True) -> list[str]:
    """A bar per group of steps; the axis starts at the lowest value, less a margin so that its bar is visible."""
    columns = min(columns, len(losses))
    edges = [index * len(losses) // columns for index in range(columns + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in pairwise(edges)]
    if not all(map(math.isfinite, means)):
        return ["(the loss is not finite)"]
    glyphs = BLOCKS if unicode else ASCII
    high, low = max(means), min(means)
    floor = low - max(0.05 * (high - low), 1e-6)
    heights = [round((mean - floor) / (high - floor) * rows * 8) for mean in means]
    lines = []
    for row in reversed(range(rows)):
        value = floor + (high - floor) * (row + 1) / rows
        bars = "".join(glyphs[min(8, max(0, height - 8 * row))] for height in heights)
        lines.append(f"{value:6.2f} {'┤' if unicode else '|'}{bars}".rstrip())
    return lines


def check_plot_path(path: Path) -> None:
    """Refuse, before any training, a picture that could not be written at the end.

    Raises:
        MissingPackageError: matplotlib is not installed.
        OptionError: The folder does not exist, or matplotlib writes no such format.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackageError(
            "--plot", got="no matplotlib", wanted="matplotlib", remedy="pip install matplotlib, or leave out --plot"
        )
    suffixes = (".png", ".svg", ".pdf")
    if path.suffix.lower() not in suffixes:
        raise OptionError("--plot", got=path.name, wanted=f"a name ending in {', '.join(suffixes)}", remedy="rename it")
    if not path.absolute().parent.is_dir():
        raise OptionError("--plot", got=str(path), wanted="a file in an existing folder", remedy="create the folder")


def save_plot(path: Path, outcome: Outcome, title: str, through: str) -> None:
    """Both loss curves over the steps, and below them their difference."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, height_ratios=(3, 1), figsize=(7, 5), layout="tight")
    above.plot(outcome.ours.losses, label=f"through {through}", linewidth=2.5)
    above.plot(outcome.plain.losses, label="plain framework ops", linewidth=1, linestyle="--", color="black")
    above.set(title=title, ylabel="loss, nats per byte")
    above.legend()
    pairs = zip(outcome.ours.losses, outcome.plain.losses, strict=True)
    below.plot([ours - plain for ours, plain in pairs], linewidth=1)
    below.set(xlabel="step", ylabel="difference")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
