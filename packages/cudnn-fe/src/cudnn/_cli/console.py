"""Where the commands print, and the few shapes of output they share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

import rich.box
from rich.console import Console
from rich.table import Table

__all__ = ["WIDTH", "error_line", "output", "print_json", "table", "unicode_ok"]

WIDTH = 100


def output() -> Console:
    """A console on the present standard output, never wider than `WIDTH` columns."""
    console = Console(highlight=False)
    return console if console.width <= WIDTH else Console(highlight=False, width=WIDTH)


def error_line(message: str) -> None:
    """Print one line on standard error, however wide the terminal is."""
    Console(stderr=True, highlight=False).print(f"error: {' '.join(message.split())}", markup=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Print ``value`` as JSON and nothing else, so that other programs can read it."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """A plain table; the columns named in ``right`` are aligned to the right."""
    made = Table(title=title, title_justify="left", box=rich.box.SIMPLE, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def unicode_ok(console: Console) -> bool:
    """Whether the terminal can show block characters."""
    return console.encoding.lower().startswith("utf")
