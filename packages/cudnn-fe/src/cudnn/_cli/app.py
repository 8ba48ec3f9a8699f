"""The command line's root: which commands exist, and how errors leave it."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from cudnn._cli.cache import cache_app
from cudnn._cli.console import error_line
from cudnn._cli.doctor import doctor
from cudnn._cli.ops import ops
from cudnn._version import __version__
from cudnn_fe.core.errors import CudnnFeError

__all__ = ["app"]


class OneLineErrors(TyperGroup):
    """Turns the project's own errors into one line and exit code 2; everything else is a bug and keeps its traceback."""

    def invoke(self, ctx: typer.Context) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except CudnnFeError as error:
            error_line(str(error))
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
