"""Writes the pages that the code knows best: the ops, the errors, the settings, the measurements.

Runs inside `mkdocs build`. Each of these pages has its introduction in `docs/` and its tables from here.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mkdocs_gen_files
from latex2mathml.converter import convert

from cudnn_fe.core import errors
from cudnn_fe.core.op import Op, resolve
from cudnn_fe.core.registry import families, ops
from cudnn_fe.core.settings import Settings

ROOT = Path(__file__).resolve().parent.parent


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table, ended by an empty line; bars inside a cell stay bars."""
    names = list(header)
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def code(words: Iterable[str]) -> str:
    """Words in code style, by commas."""
    return ", ".join(f"`{word}`" for word in words)


def paragraphs(docstring: str | None) -> str:
    """A docstring's prose, with its argument sections left out."""
    text = inspect.cleandoc(docstring or "")
    return re.split(r"\n(?:Args|Attributes|Example|Raises|Returns):\n", text)[0].strip()


def section(docstring: str | None, title: str) -> str:
    """The text of one section of a docstring, its own indentation taken off."""
    text = inspect.cleandoc(docstring or "")
    found = re.search(rf"^{title}:\n((?:(?: {{4}}.*)?\n?)*)", text, re.MULTILINE)
    return textwrap.dedent(found[1]).strip() if found else ""


def arguments(docstring: str | None) -> Iterator[tuple[str, str]]:
    """Each argument that a docstring describes, with its description on one line."""
    for entry in re.split(r"\n(?=\S)", section(docstring, "Args")):
        name, _, meaning = entry.partition(":")
        if meaning:
            yield name, " ".join(meaning.replace("``", "`").split())


def source_of(target: str) -> str:
    """The source of what ``"package.module:name"`` (or ``:Class.method``) names, comments in it included."""
    module, _, path = target.partition(":")
    found = find_spec(module)
    if found is None or found.origin is None:
        raise LookupError(f"adding-an-op.md shows {target}, and there is no module {module}")
    text = Path(found.origin).read_text()
    body = ast.parse(text).body
    for name in path.split("."):
        matching = [child for child in body if name in _names(child)]
        if not matching:
            raise LookupError(f"adding-an-op.md shows {target}, and there is no {name}")
        node = matching[0]
        body = getattr(node, "body", [])
    first = min(part.lineno for part in (node, *getattr(node, "decorator_list", []))) - 1
    return textwrap.dedent("\n".join(text.splitlines()[first : node.end_lineno]))


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    return [getattr(node, "name", "")]


def with_sources(page: str) -> Iterator[str]:
    """A page's text with each `{{ source module:name }}` line replaced by that source."""
    text = (ROOT / "docs" / page).read_text()
    yield re.sub(
        r"^\{\{ source (\S+) \}\}$", lambda found: f"```python\n{source_of(found[1])}\n```", text, flags=re.MULTILINE
    )


def op_page(op: Op) -> Iterator[str]:
    """The page of one op."""
    yield f"# {op.name}\n"
    yield f"{op.summary}\n"
    if op.formula:
        yield f"{convert(op.formula, display='block')}\n"
    yield "## Tensors\n"
    yield from table(
        ("name", "shape", "layout", "dtypes", "meaning"),
        ((f"`{rule.name}`", rule.shape, rule.layout, code(rule.dtypes) or "-", rule.meaning) for rule in op.tensors),
    )
    yield from _arguments_section(op)
    if op.example:
        yield f"## Example\n\n```python\n{op.example.strip()}\n```\n"
    yield "## Runs on\n"
    yield from table(("backend", "status"), ((f"`{backend}`", status) for backend, status in op.support().items()))
    yield "## Names\n"
    names = [("torch, NumPy", [op.name]), ("JAX", [op.jax_name] if op.jax_name else []), ("cudnn-frontend", op.legacy)]
    yield from table(("", "name"), ((label, code(given)) for label, given in names if given))
    yield f"Package: `{op.package}`. Differentiable: {'yes' if op.gradient else 'no'}.\n"
    if op.notes:
        yield "## Notes\n"
        yield from (f"{note}\n" for note in op.notes)
    if op.source:
        yield f"## Source\n\n{op.source}\n"


def _arguments_section(op: Op) -> Iterator[str]:
    exported = [(name.rpartition(".")[2], target) for family in families() for name, target in family.exports.items()]
    targets = [target for name, target in exported if name == op.name]
    for target in targets:
        function = resolve(target)
        defaults = {
            name: "required" if row.default is row.empty else f"`{row.default!r}`"
            for name, row in inspect.signature(function).parameters.items()
        }
        yield "## Arguments\n"
        yield from table(
            ("name", "default", "meaning"),
            ((f"`{name}`", defaults[name], meaning) for name, meaning in arguments(function.__doc__)),
        )


def op_overview(known: Iterable[Op]) -> Iterator[str]:
    """The table of all ops: what computes what, and where it runs."""
    rows = (
        (
            f"[`{op.name}`](ops/{op.name}.md)",
            op.summary,
            "<br>".join(f"`{key}`: {value}" for key, value in op.support().items()),
        )
        for op in known
    )
    yield from table(("op", "what it computes", "runs on"), rows)


def error_page() -> Iterator[str]:
    """Each error class, what it derives from, and when it is raised."""
    for name in sorted(errors.__all__, key=lambda name: (name != "CudnnFeError", name)):
        kind = getattr(errors, name)
        bases = [base.__name__ for base in kind.__mro__[1:] if base.__module__ == "builtins" and base is not object]
        bases = [name for name in bases if name not in ("Exception", "BaseException")]
        yield f"## {name}\n"
        yield f"{paragraphs(kind.__doc__)}\n"
        if bases:
            yield f"Also a {' and a '.join(f'`{base}`' for base in bases)}.\n"


def settings_page() -> Iterator[str]:
    """Each setting with its environment variable."""
    rows = (
        (f"`{row.name}`", f"`{row.metadata['env']}`", f"`{row.default!r}`", row.metadata["doc"])
        for row in fields(Settings)
    )
    yield from table(("setting", "environment variable", "default", "meaning"), rows)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def benchmark_page() -> Iterator[str]:
    """Every committed result file: what it says about the run, and its rows."""
    files = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    if not files:
        yield "No measurement is committed yet.\n"
    for path in files:
        content = json.loads(path.read_text())
        about, rows = (content, content.get("rows", [])) if isinstance(content, dict) else ({}, content)
        yield f"## {path.stem}\n"
        plain = [(key, _cell(value)) for key, value in about.items() if key != "rows"]
        if plain:
            yield from table(("run", ""), plain)
        if rows:
            shared = [key for key in rows[0] if all(row.get(key) == rows[0][key] for row in rows)] if rows[1:] else []
            yield from table(("all rows", ""), ((key.replace("_", " "), _cell(rows[0][key])) for key in shared))
            header = [key for key in rows[0] if key not in shared]
            names = [key.replace("_", " ") for key in header]
            yield from table(names, ([_cell(row.get(key)) for key in header] for row in rows))


def append(page: str, lines: Iterable[str]) -> None:
    """Adds lines to a page whose introduction stands in `docs/`."""
    with mkdocs_gen_files.open(page, "a") as file:
        file.write("\n" + "\n".join(lines) + "\n")


def main() -> None:
    """Writes every generated page and enters the ops' pages into the navigation."""
    public = ops()
    for op in public:
        with mkdocs_gen_files.open(f"ops/{op.name}.md", "w") as file:
            file.write("\n".join(op_page(op)))
    append("ops.md", op_overview(public))
    append("errors.md", error_page())
    append("settings.md", settings_page())
    append("benchmarks.md", benchmark_page())
    with mkdocs_gen_files.open("adding-an-op.md", "w") as file:
        file.write("".join(with_sources("adding-an-op.md")))
    (section,) = (entry["Ops"] for entry in mkdocs_gen_files.config["nav"] if "Ops" in entry)
    section.extend({op.name: f"ops/{op.name}.md"} for op in public)


main()
