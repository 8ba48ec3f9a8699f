"""Which functions of flash-linear-attention are replaced, and how they come back."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from threading import RLock
from typing import Any

from cudnn_fe.attention.fla.versions import fla_version
from cudnn_fe.core.errors import MissingPackageError, OptionError, OptionTypeError
from cudnn_fe.core.op import resolve

__all__ = ["TARGETS", "Target", "accelerate", "patched", "restore"]


@dataclass(frozen=True)
class Target:
    """One attribute that can be replaced.

    Attributes:
        name: What callers call it.
        alias: Its short name.
        module: Where it is.
        owner: The class that holds it, or empty for the module itself.
        attribute: Its name there.
        factory: ``"module:function"`` that makes the replacement from the original.
        default: Whether it is among those that are replaced when none is named.
        version: The only release of flash-linear-attention that it is known in, or empty for any.
        refuse: ``"module:function"`` that says why the attribute found is not the one meant, or None.
    """

    name: str
    alias: str
    module: str
    owner: str
    attribute: str
    factory: str
    default: bool
    version: str = ""
    refuse: str = ""


_FLA = "cudnn_fe.attention.fla"
TARGETS = (
    Target(
        "gated_delta_rule",
        "gdn",
        "fla.ops.gated_delta_rule",
        "",
        "chunk_gated_delta_rule",
        f"{_FLA}.gated_delta_rule:make_chunk_gated_delta_rule",
        default=True,
    ),
    Target("kda", "kda", "fla.ops.kda", "", "chunk_kda", f"{_FLA}.kda:make_chunk_kda", default=True),
    Target(
        "gated_mlp",
        "mlp",
        "fla.modules.mlp",
        "GatedMLP",
        "forward",
        f"{_FLA}.gated_mlp:replacement",
        default=False,
        version="0.5.2",
        refuse=f"{_FLA}.gated_mlp:refuse",
    ),
    Target(
        "short_conv",
        "shortconv",
        "fla.modules.conv.triton.ops",
        "",
        "causal_conv1d_update",
        f"{_FLA}.short_conv:make_causal_conv1d_update",
        default=False,
        version="0.5.2",
        refuse=f"{_FLA}.short_conv:refuse",
    ),
)
_BY_NAME = {spelling: row for row in TARGETS for spelling in (row.name, row.alias)}


@dataclass(frozen=True)
class _Patch:
    target: Target
    owner: Any
    original: Any
    replacement: Any

    @property
    def in_place(self) -> bool:
        """Whether the attribute is still ours."""
        return vars(self.owner).get(self.target.attribute) is self.replacement


_lock = RLock()
_patches: dict[str, _Patch] = {}


def _named(targets: str | Iterable[str]) -> list[Target]:
    names = [targets] if isinstance(targets, str) else list(targets)
    if not names:
        raise OptionError(
            "targets", got="none", wanted=f"some of {', '.join(row.name for row in TARGETS)}", remedy="name a target"
        )
    return [_target(name) for name in dict.fromkeys(names)]


def _target(name: Any) -> Target:
    if not isinstance(name, str):
        raise OptionTypeError("targets", got=repr(name), wanted="a name, or several", remedy='pass e.g. targets="kda"')
    if name not in _BY_NAME:
        raise OptionError("targets", got=repr(name), wanted=f"one of {', '.join(_BY_NAME)}", remedy="name a target")
    return _BY_NAME[name]


def _prepare(target: Target) -> _Patch | str:
    """The patch, not yet applied, or why there is none."""
    try:
        module = importlib.import_module(target.module)
    except ImportError as error:
        return f"{target.module} cannot be imported: {error}"
    if target.version and fla_version() != target.version:
        return f"release {fla_version()} is not {target.version}, the one that this target is known in"
    owner = getattr(module, target.owner, None) if target.owner else module
    original = vars(owner).get(target.attribute) if owner is not None else None
    if original is None:
        return f"{target.module} has no {'.'.join(filter(None, (target.owner, target.attribute)))}"
    reason = resolve(target.refuse)(module, original) if target.refuse else None
    if reason is not None:
        return str(reason)
    return _Patch(target, owner, original, resolve(target.factory)(original))


def _rebind(attribute: str, before: Any, after: Any) -> None:
    """Every loaded module's attribute of that name that is ``before`` becomes ``after``."""
    for module in list(sys.modules.values()):
        scope = getattr(module, "__dict__", None)
        if scope is not None and scope.get(attribute) is before:
            scope[attribute] = after


def _apply(patch: _Patch) -> None:
    if patch.target.owner:
        setattr(patch.owner, patch.target.attribute, patch.replacement)
    else:
        _rebind(patch.target.attribute, patch.original, patch.replacement)
    _patches[patch.target.name] = patch


def _undo(patch: _Patch) -> None:
    if not patch.target.owner:
        _rebind(patch.target.attribute, patch.replacement, patch.original)
    elif patch.in_place:
        setattr(patch.owner, patch.target.attribute, patch.original)


def patched(name: str) -> bool:
    """Whether the target of that name is replaced now."""
    patch = _patches.get(_target(name).name)
    return patch is not None and patch.in_place


def accelerate(targets: str | Iterable[str] | None) -> list[str]:
    """Replace targets, and return the names of those that were not before.

    Raises:
        MissingPackageError: None of the default targets, or one of those named, cannot be replaced.
    """
    with _lock:
        wanted = [row for row in TARGETS if row.default] if targets is None else _named(targets)
        found: list[_Patch] = []
        refused: dict[str, str] = {}
        for target in wanted:
            if patched(target.name):
                continue
            displaced = _patches.pop(target.name, None)
            if displaced is not None and not displaced.target.owner:
                _rebind(target.attribute, displaced.replacement, displaced.original)
            made = _prepare(target)
            if isinstance(made, str):
                refused[target.name] = made
            else:
                found.append(made)
        failed = refused if targets is not None else refused if len(refused) == len(wanted) else {}
        if failed:
            raise MissingPackageError(
                "accelerate_fla",
                got="; ".join(f"{name}: {reason}" for name, reason in failed.items()),
                wanted="flash-linear-attention with these targets",
                remedy="pip install flash-linear-attention, or name other targets",
            )
        for patch in found:
            _apply(patch)
        return [patch.target.name for patch in found]


def restore(targets: str | Iterable[str] | None) -> None:
    """Put back what targets were, where they are still ours."""
    with _lock:
        for target in TARGETS if targets is None else _named(targets):
            patch = _patches.pop(target.name, None)
            if patch is not None:
                _undo(patch)
