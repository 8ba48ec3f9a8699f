"""The command `cudnn-fe ops`: what exists, and where each op has run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from cudnn._cli.console import output, print_json, table

__all__ = ["OpRecord", "op_records", "ops"]

BACKENDS = ("reference", "portable", "sm90", "sm100")


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One op.

    Attributes:
        name: Arch-neutral name of the torch and NumPy entry.
        package: Distribution that holds it.
        summary: One sentence.
        jax_name: Name of the JAX entry, or None.
        legacy_names: Other public names of the same op.
        frameworks: Whose arrays it takes.
        differentiable: Whether torch autograd and jax.grad go through it.
        backends: Per backend ``"run on <chips>"``, ``"compiled"`` or ``"none"``.
    """

    name: str
    package: str
    summary: str
    jax_name: str | None
    legacy_names: tuple[str, ...]
    frameworks: tuple[str, ...]
    differentiable: bool
    backends: dict[str, str]


def op_records() -> list[OpRecord]:
    """A record for each public op of the installed families."""
    from cudnn_fe.core.registry import ops as registered

    return [
        OpRecord(
            name=op.name,
            package=op.package,
            summary=op.summary,
            jax_name=op.jax_name,
            legacy_names=op.legacy,
            frameworks=("torch", "numpy", *(("jax",) if op.jax_name else ())),
            differentiable=op.gradient is not None,
            backends={**dict.fromkeys(BACKENDS, "none"), **op.support()},
        )
        for op in registered()
    ]


def ops(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, legacy names included.")] = False) -> None:
    """List the installed ops: names, frameworks, and what each backend's code has run on.

    [bold]run on H200[/]: its tests ran on that chip. [bold]compiled[/]: it compiles; its tests have not all run there.

    Example: [bold]cudnn-fe ops --json[/]
    """
    records = op_records()
    if as_json:
        print_json([asdict(record) for record in records])
        return
    rows = [
        (_names(record), "\n".join(record.frameworks), *(record.backends[b] for b in BACKENDS)) for record in records
    ]
    found = table("Installed ops", ("op, other names, package", "takes", *BACKENDS), rows)
    found.columns[0].no_wrap = True
    for column in found.columns[1:]:  # break between words, not inside them
        words = " ".join([str(column.header), *map(str, column.cells)]).split()
        column.min_width = max(map(len, words))
    output().print(found)


def _names(record: OpRecord) -> str:
    others = [name for name in (record.jax_name, *record.legacy_names) if name]
    return "\n".join([f"[bold]{record.name}[/]", *(f"  [dim]{name}[/]" for name in others), f"  in {record.package}"])
