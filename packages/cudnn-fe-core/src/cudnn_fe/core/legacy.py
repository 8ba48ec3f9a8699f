"""Legacy names from tables: functions and classes with the exact parameters of cudnn-frontend 1.32.

The functions are made from their signature's text, as dataclasses are, so that they cost what a hand-written
function costs and ``inspect.signature`` and editors show the real parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnn_fe.core.class_api import OpClass
from cudnn_fe.core.errors import NotYetSupportedError, OptionError
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["LegacyClass", "LegacyFunction", "make_alias", "make_class", "make_function"]

_NEW = frozenset({"backend", "outs"})  # parameters that the old functions do not have
Bind = Callable[[Mapping[str, Any]], tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]]
Tensors = tuple[Any, ...]
Arrange = Callable[[Mapping[str, Any], Tensors, Tensors, Tensors], tuple[Tensors, Tensors, Tensors]]


@dataclass(frozen=True)
class LegacyFunction:
    """A wrapper or JAX entry under its old name.

    Attributes:
        name: Public name.
        target: The new function; parameters of the same names are handed to it.
        parameters: The old signature's text, without parentheses.
    """

    name: str
    target: Callable[..., Any]
    parameters: str


@dataclass(frozen=True)
class LegacyClass:
    """A class of the class API.

    Attributes:
        name: Public name.
        op: The operation.
        parameters: The constructor's signature text, without ``self``.
        execute: The signature text of ``execute``, without ``self``.
        inputs: Its parameters that are kernel inputs, in order.
        outputs: Its parameters that are kernel outputs, in order; those whose sample was None are not written.
        scalars: Its parameters that are numbers; None there means the constructor's value. Empty: the constructor's.
        absent: Its parameters that must be None in the modes served.
        bind: From the constructor's arguments to the problem, the outputs' specs and the scalars.
        arrange: From the constructor's options and execute's inputs, outputs and scalars to those of the problem.
        fixed: Its parameters that must be None or what the constructor was given.
        free: Dims that may differ from the samples' at each `execute`, by operand or output of the problem; None: none.
        returns: Its parameters that `execute` returns, as a mapping, ``"key=parameter"`` where the names differ.
        bare: Whether the one returned is returned itself.
        scratch_bytes: Bytes of the workspace that the documentation asks for; gives ``scratch_workspace_bytes``.
        methods: Further methods, by name.
        modes: Further ops that the class may stand for: the one whose problem `bind` returns.
    """

    name: str
    op: Op
    parameters: str
    execute: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scalars: tuple[str, ...]
    absent: tuple[str, ...]
    bind: Bind
    arrange: Arrange | None = None
    fixed: tuple[str, ...] = ()
    free: Mapping[str, tuple[int, ...]] | None = None
    returns: tuple[str, ...] = ()
    bare: bool = False
    scratch_bytes: Callable[[Any], int] | None = None
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    modes: tuple[Op, ...] = ()


def _names(parameters: str) -> list[str]:
    return [part.split("=")[0].split(":")[0].strip() for part in _split(parameters)]


def _split(parameters: str) -> list[str]:
    """The parameters of a signature's text; commas inside parentheses do not separate."""
    scope: dict[str, Any] = {}
    exec(f"def probe({parameters}): pass", scope)  # the text comes from a table of this project
    return [str(parameter) for parameter in inspect.signature(scope["probe"]).parameters.values()]


def _define(name: str, source: str, scope: dict[str, Any], module: str, doc: str) -> Callable[..., Any]:
    exec(source, scope)  # likewise
    function: Callable[..., Any] = scope[name]
    function.__module__, function.__doc__ = module, doc
    return function


def make_function(row: LegacyFunction, module: str) -> Callable[..., Any]:
    """The function of a row; ``module`` becomes its ``__module__``."""
    passed = ", ".join(f"{name}={name}" for name in _names(row.parameters))
    source = f"def {row.name}({row.parameters}):\n    return _target({passed})"
    doc = f"`{row.target.__name__}` under its name in cudnn-frontend 1.32.\n\n{inspect.getdoc(row.target) or ''}"
    function = _define(row.name, source, {"_target": row.target}, module, doc)
    function.__qualname__ = row.name
    return function


def make_alias(
    name: str, target: Callable[..., Any], module: str, supports: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """``target``, whose parameters but for ``backend`` and ``outs`` are the old signature, under its old name.

    ``supports`` names its documented attributes ``supports_...``, all True.
    """
    kept = [p.replace(annotation=p.empty) for p in inspect.signature(target).parameters.values() if p.name not in _NEW]
    text = str(inspect.Signature(kept))[1:-1]
    function = make_function(LegacyFunction(name, target, text), module)
    for feature in supports:
        setattr(function, f"supports_{feature}", True)
    return function


def make_class(row: LegacyClass, module: str) -> type[OpClass]:
    """The class of a row; ``module`` becomes its ``__module__``."""
    collected = ", ".join(f"{name!r}: {name}" for name in _names(row.parameters))
    init = _define(
        "__init__",
        f"def __init__(self, {row.parameters}):\n    self._set_up({{{collected}}})",
        {},
        module,
        "Record the samples' metadata and the options; nothing is compiled or launched.",
    )

    scalars = [f"self._scalars[{i}] if {name} is None else {name}" for i, name in enumerate(row.scalars)]
    stream = next(name for name in ("current_stream", "stream") if name in _names(row.execute))
    lines = [f"def execute(self, {row.execute}):"]
    if row.absent:
        lines.append(f"    if not ({' is '.join((*row.absent, 'None'))}):")
        lines.append(f"        _refuse({{{', '.join(f'{name!r}: {name}' for name in row.absent)}}})")
    for name in row.fixed:
        lines.append(f"    if {name} is not None and {name} != self._options[{name!r}]:")
        lines.append(f"        _refuse_change({name!r}, {name}, self._options[{name!r}])")
    lines.append("    run = self._run or self._require_compiled()")
    given = ", ".join((*row.inputs, *row.outputs, *(scalars or ["*self._scalars"]), stream))
    if "workspace" in _names(row.execute):
        tensors = ", ".join(f"{name}={name}" for name in (*row.inputs, *row.outputs))
        lines.append(f"    self._check_workspace(workspace, {tensors})")
        if row.free is not None:
            given += ", workspace=workspace"
    lines.append(f"    run({given})")
    if row.returns:
        pairs = ", ".join(name if "=" in name else f"{name}={name}" for name in row.returns)
        lines.append(f"    return {row.returns[0] if row.bare else f'_TupleDict({pairs})'}")
    init.__qualname__ = f"{row.name}.__init__"
    execute = _define(
        "execute",
        "\n".join(lines),
        {"_refuse": _refuse_modes, "_refuse_change": _refuse_change, "_TupleDict": TupleDict},
        module,
        "Launch into the given outputs on ``current_stream``; allocates nothing and does not synchronise.",
    )
    execute.__qualname__ = f"{row.name}.execute"
    body = {
        "op": row.op,
        "_modes": row.modes,
        "_bind": staticmethod(row.bind),
        "_counts": (len(row.inputs), len(row.outputs)),
        "_free": row.free,
        "_arrange": row.arrange and staticmethod(row.arrange),
        "__init__": init,
        "execute": execute,
        "__module__": module,
        "__doc__": f"Class API of `{row.op.name}`. {row.op.summary}\n\n"
        "Samples are tensors or anything with shape, strides, dtype and device; ``check_support``, ``compile``, then\n"
        "``execute`` with tensors like the samples.",
    }
    if row.scratch_bytes is not None:
        body["scratch_workspace_bytes"] = _workspace_method(row.scratch_bytes)
    return type(row.name, (OpClass,), {**body, **row.methods})


def _workspace_method(count: Callable[[Any], int]) -> Callable[[OpClass], int]:
    def scratch_workspace_bytes(self: OpClass) -> int:
        """Bytes of the workspace that ``execute`` takes; 0 where it takes none."""
        self.check_support()
        return count(self.problem)

    return scratch_workspace_bytes


def _refuse_change(name: str, given: Any, constructed: Any) -> None:
    raise OptionError(name, got=repr(given), wanted=f"{constructed!r}, as constructed", remedy="make another op object")


def _refuse_modes(given: Mapping[str, Any]) -> None:
    named = [name for name, tensor in given.items() if tensor is not None]
    raise NotYetSupportedError(
        ", ".join(named), got="a tensor", wanted="None in the mode the op was made for", remedy="leave it out"
    )
