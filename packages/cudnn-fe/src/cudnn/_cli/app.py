"""The command line's root: which commands exist, and how errors leave it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cudnn._cli.bench.command import bench
from cudnn._cli.cache import cache_app
from cudnn._cli.console import error_line
from cudnn._cli.demo.command import demo
from cudnn._cli.doctor import doctor
from cudnn._cli.ops import ops
from cudnn._version import __version__
from cudnn_fe.core.errors import CudnnFeError

__all__ = ["app"]


class OneLineErrors(TyperGroup):
    """Turns the project's own errors into one line and exit code 2; any other is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
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


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cudnn-fe {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """GPU operations for training and serving large models; the same call runs on any device.

    Start with [bold]cudnn-fe demo[/].
    """


app.command()(demo)
app.command()(doctor)
app.command()(ops)
app.command()(bench)
app.add_typer(cache_app, name="cache")
