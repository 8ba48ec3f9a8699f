"""Families of ops, as they announce themselves through the ``cudnn_fe.families`` entry points."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, util

from cudnn_fe.core.op import Op, resolve

__all__ = ["ENTRY_POINTS", "Family", "families", "find_op", "ops"]

ENTRY_POINTS = "cudnn_fe.families"


@dataclass(frozen=True)
class Family:
    """What one package offers.

    Attributes:
        name: E.g. ``"gemm"``.
        package: Distribution, e.g. ``"cudnn-fe-gemm"``.
        op_targets: ``"module:attribute"`` of each `Op`, imported when first asked for.
        exports: What ``cudnn`` re-exports: public name to ``"module:attribute"``.
    """

    name: str
    package: str
    op_targets: tuple[str, ...]
    exports: Mapping[str, str]

    @property
    def ops(self) -> tuple[Op, ...]:
        """The family's ops, internal ones included."""
        return tuple(resolve(target) for target in self.op_targets)


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """Every installed family, by name; two copies of one family on the path count once."""
    found = {point.name: point.load() for point in metadata.entry_points(group=ENTRY_POINTS)}
    found.update(_on_path(apart_from=frozenset(found)))
    return tuple(found[name] for name in sorted(found))


def _on_path(apart_from: frozenset[str]) -> dict[str, Family]:
    """Families whose sources lie on the path without being installed, as in a plain checkout."""
    import cudnn_fe  # a namespace package: its path lists every place that holds a family

    names = {row.name for row in pkgutil.iter_modules(cudnn_fe.__path__) if row.ispkg} - apart_from
    found = [name for name in names if util.find_spec(f"cudnn_fe.{name}.exports")]
    return {name: resolve(f"cudnn_fe.{name}.exports:FAMILY") for name in found}


def ops(*, public: bool = True) -> tuple[Op, ...]:
    """The ops of all installed families."""
    return tuple(op for family in families() for op in family.ops if op.public or not public)


def find_op(name: str) -> Op | None:
    """The op that ``name`` means: its own name or any legacy name."""
    return next((op for op in ops(public=False) if name in (op.name, op.jax_name, *op.legacy)), None)
