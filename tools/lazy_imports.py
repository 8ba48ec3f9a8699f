"""Refuses an import that would make `import cudnn` slow, or need a package that the caller may not have.

Frameworks and the kernel compiler may be imported at module level only by the modules made for them, and no other
module may import one of those modules at module level. Imports inside functions and under `TYPE_CHECKING` are free.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Rule:
    """Packages that only some modules may import at module level.

    Attributes:
        packages: Top-level names of the packages.
        modules: Patterns of the dotted names of the modules that may.
    """

    packages: frozenset[str]
    modules: tuple[str, ...]

    def admits(self, module: str) -> bool:
        """Whether the rule lets ``module`` import the packages at its top."""
        return any(fnmatch(module, pattern) for pattern in self.modules)


KERNELS = ("cudnn_fe.core.cute", "cudnn_fe.core.cute.*", "*.sm90*", "*_sm90", "*.sm100*", "*.portable*")
# Kernels as JAX calls: whoever imports `cudnn.jax` asks for both.
JAX_KERNELS = ("cudnn_fe.core.jax_call", "cudnn.jax")
# Modules of the benchmark that are imported once a GPU benchmark is asked for.
TORCH_BENCH = tuple(f"cudnn._cli.bench.{name}" for name in ("ceiling", "contenders", "suite", "timing", "verify"))
RULES = (
    Rule(frozenset({"cutlass", "cuda", "tvm_ffi"}), KERNELS + JAX_KERNELS),
    Rule(frozenset({"torch", "triton"}), ("*.torch", "*._torch", "*.torch_*", "*._torch_*", "*_torch", *TORCH_BENCH)),
    Rule(frozenset({"jax", "jaxlib"}), ("*.jax", "*._jax", "*.jax_*", "*._jax_*", "*_jax")),
    Rule(frozenset({"rich", "typer"}), ("cudnn._cli", "cudnn._cli.*")),
    Rule(frozenset({"matplotlib"}), ()),
)


def module_name(path: Path, source: Path) -> str:
    """The dotted name of the module that ``path`` holds below the source folder ``source``."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _executed(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run when the module is imported."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If):
            if not _is_type_checking(node.test):
                yield from _executed(node.body)
            yield from _executed(node.orelse)
        elif isinstance(node, ast.Try):
            for block in (node.body, node.orelse, node.finalbody, *(handler.body for handler in node.handlers)):
                yield from _executed(block)
        elif isinstance(node, ast.With | ast.ClassDef):
            yield from _executed(node.body)


def _targets(node: ast.Import | ast.ImportFrom, module: str, is_package: bool) -> Iterator[str]:
    """Every module that the statement may import, by its dotted name."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parents = module.split(".")[: None if is_package and node.level == 1 else (1 if is_package else 0) - node.level]
        base = ".".join([*parents, base]).rstrip(".")
    yield base
    yield from (f"{base}.{alias.name}" for alias in node.names)


def violations(
    text: str, module: str, *, is_package: bool = False, known: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Every import of ``module`` that a rule refuses, as a message.

    Args:
        text: The module's source.
        module: Its dotted name.
        is_package: Whether it is a package's ``__init__``.
        known: The dotted names of all modules of the workspace.
    """
    refusing = [rule for rule in RULES if not rule.admits(module)]
    for node in _executed(ast.parse(text).body):
        for target in _targets(node, module, is_package):
            heavy = any(target.split(".")[0] in rule.packages for rule in refusing)
            if heavy or (target in known and any(rule.admits(target) for rule in refusing)):
                yield f"line {node.lineno}: imports {target} at module level; import it where it is used"
                break


def main() -> int:
    """Checks every module of every package; prints each violation."""
    files = {
        path: module_name(path, source)
        for source in sorted(ROOT.glob("packages/*/src"))
        for path in sorted(source.rglob("*.py"))
    }
    known = frozenset(files.values())
    found = 0
    for path, module in files.items():
        for message in violations(path.read_text(), module, is_package=path.name == "__init__.py", known=known):
            print(f"{path.relative_to(ROOT)}: {message}")
            found += 1
    print(f"lazy imports: {len(files)} modules, {found} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
