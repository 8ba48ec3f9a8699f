"""The `cudnn-fe` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; without typer and rich, say in one line how to get them."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as missing:
        print(f'cudnn-fe: {missing.name} is not installed; pip install "cudnn-fe[cli]"', file=sys.stderr)
        raise SystemExit(2) from None
    from cudnn._cli.app import app

    app(prog_name="cudnn-fe")
