"""The commands `cudnn-fe cache list`, `clear` and `warmup`: compiled kernels on disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cudnn._cli.console import output, print_json, table
from cudnn_fe.core.errors import BackendError, OptionError

if TYPE_CHECKING:
    from cudnn_fe.core.device import Device
    from cudnn_fe.core.object_cache import ObjectCache
    from cudnn_fe.core.op import Op

__all__ = ["cache_app"]

cache_app = typer.Typer(no_args_is_help=True, help="List, clear or fill the folder of compiled kernels.")


def _cache() -> ObjectCache:
    from cudnn_fe.core.object_cache import object_cache

    cache = object_cache()
    if cache is None:
        raise OptionError(
            "the kernel cache",
            got="turned off, or no home folder",
            wanted="a folder",
            remedy="unset CUDNN_FRONTEND_DISABLE_COMPILED_CACHE, or name a folder in CUDNN_FRONTEND_COMPILED_CACHE",
        )
    return cache


@cache_app.command("list")
def list_entries(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the compiled kernels, the most recently used first.

    Example: [bold]cudnn-fe cache list[/]
    """
    cache = _cache()
    entries = cache.entries()
    if as_json:
        print_json({"folder": str(cache.folder), "entries": [asdict(entry) for entry in entries]})
        return
    rows = [
        (
            entry.key[:12],
            entry.labels.get("module", "?").removeprefix("cudnn_fe."),
            entry.labels.get("arch", "?"),
            f"{entry.nbytes / 1024:.0f} KiB",
            _age(time.time() - entry.created),
        )
        for entry in entries
    ]
    console = output()
    total = sum(entry.nbytes for entry in entries) / 2**20
    console.print(f"{cache.folder}: {len(entries)} kernels, {total:.1f} MiB", soft_wrap=True)
    if rows:
        console.print(table("", ("key", "kernel", "for", "size", "age"), rows, right=("size", "age")))


@cache_app.command()
def clear() -> None:
    """Delete every compiled kernel; each is compiled again when it is next needed.

    Example: [bold]cudnn-fe cache clear[/]
    """
    cache = _cache()
    output().print(f"{cache.folder}: {cache.clear()} kernels deleted", soft_wrap=True)


@cache_app.command()
def warmup(
    names: Annotated[list[str] | None, typer.Argument(metavar="[OP]...", help="Ops; all of them by default.")] = None,
    arch: Annotated[str, typer.Option(help="Target such as sm_90a; by default that of the first GPU.")] = "",
    dtype: Annotated[str, typer.Option(help="Element type of the operands.")] = "bfloat16",
) -> None:
    """Compile ahead of time what ordinary calls would compile. No GPU is needed if --arch names one.

    Example: [bold]cudnn-fe cache warmup gemm_swiglu_forward --arch sm_90a[/]
    """
    from cudnn_fe.core.registry import find_op, ops
    from cudnn_fe.core.toolchain import missing_toolchain

    _cache()
    chosen = []
    for name in names or []:
        op = find_op(name)
        if op is None:
            known = ", ".join(op.name for op in ops(public=False))
            raise OptionError("OP", got=repr(name), wanted=f"one of {known}", remedy="see cudnn-fe ops")
        chosen.append(op)
    missing = missing_toolchain()
    if missing:
        raise BackendError("cache warmup", got=missing, wanted="the kernel compiler", remedy="install what is named")
    where = _target(arch)
    console = output()
    for op in chosen or ops(public=False):
        _compile(op, where, dtype, console.print)


def _target(arch: str) -> Device:
    from cudnn_fe.core.device import compile_target

    if arch:
        os.environ["CUTE_DSL_ARCH"] = arch
    where = compile_target()
    if where is None or (arch and where.name != arch):
        raise OptionError("--arch", got=repr(arch), wanted="e.g. sm_90a", remedy="name the GPU to compile for")
    return where


def _compile(op: Op, where: Device, dtype: str, say: Callable[[str], None]) -> None:
    from cudnn._cli.serving import sample_problem
    from cudnn_fe.core.compile import compile_counts, compiled

    problem = sample_problem(op, where.place, kind=dtype)
    if problem is None:
        say(f"{op.name}: skipped, no ordinary call is known")
        return
    kernel = next((k for k in op.kernels if not k.opt_in and k.refuse(problem, where) is None), None)
    if kernel is None:
        say(f"{op.name}: skipped, no kernel for {where.arch}")
        return
    before, began = compile_counts.compiled, time.perf_counter()
    compiled(kernel.module, kernel.specialise(problem, where), where.arch)
    done = "compiled" if compile_counts.compiled > before else "was there already"
    say(f"{op.name}: {kernel.backend} for {where.arch} {done} ({time.perf_counter() - began:.1f} s)")


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
