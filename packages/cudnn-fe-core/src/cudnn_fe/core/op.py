"""The op model: what an op is, what one call of it computes, and which kernels may serve it."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Self

from cudnn_fe.core.device import Device
from cudnn_fe.core.errors import AlignmentError, DeviceError, DTypeError, OptionError, ShapeError, StrideError
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["Kernel", "Op", "Problem", "TensorRule", "op_named", "resolve"]

_ops: dict[str, Op] = {}


def op_named(name: str) -> Op:
    """The op of that name, among those whose modules are imported."""
    return _ops[name]


def _find(name: str) -> Op:
    from cudnn_fe.core.registry import find_op  # it imports this module

    return _ops.get(name) or find_op(name) or _ops[name]


def resolve(target: str) -> Any:
    """The object that ``"package.module:attribute"`` names, imported now."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class Problem(ABC):
    """What one call computes, validated: operand specs and options, never data.

    Subclasses are frozen dataclasses with one field per operand and option. Instances are hashable and are the key
    of every cache.
    """

    operands: ClassVar[tuple[str, ...]]  # names of the input fields, in the order of kernels and references
    optional: ClassVar[frozenset[str]] = frozenset()  # those that may be None
    kept: ClassVar[frozenset[str]] = frozenset()  # those whose float32 torch's autocast must not round
    output_count: ClassVar[int] = 1  # 0 where it depends on the options
    in_place: ClassVar[Mapping[int, str]] = {}  # result to the operand that it may share its memory with
    # Outputs, by position, that are folded into what a caller's buffer holds instead of overwriting it.
    accumulates: ClassVar[Mapping[int, Literal["sum", "maximum"]]] = {}

    @classmethod
    @abstractmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate once and return the problem; raises the typed errors of the op's contract."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Specs of the results, in order."""

    @property
    @abstractmethod
    def degenerate(self) -> bool:
        """Whether the mathematics needs no kernel: an empty sum. The reference answers then."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations of the contraction, by the field's convention."""

    def placed(self, device: str) -> Self:
        """The same problem with its operands on another device."""
        operands = zip(self.operands, self.inputs, strict=True)
        return replace(self, **{name: replace(spec, device=device) for name, spec in operands if spec is not None})

    def batched(self, size: int) -> Self | None:
        """The problem of ``size`` independent calls stacked outermost, or None where the op has no batch dim to use."""
        return None

    def written(self, xp: Any, operands: tuple[Any, ...]) -> Mapping[int, Any]:
        """Masks of where results lie, by position, where not everywhere; a caller's buffer keeps the rest."""
        del xp, operands
        return {}

    def check_output(self, position: int, given: TensorSpec) -> None:
        """Raises unless a caller's buffer may hold result ``position``: one like its spec, here."""
        wanted = self.outputs[position]
        for kind, what in ((ShapeError, "shape"), (DTypeError, "dtype"), (DeviceError, "device")):
            if getattr(given, what) != getattr(wanted, what):
                raise kind(
                    given.name,
                    got=f"{what} {getattr(given, what)}",
                    wanted=str(getattr(wanted, what)),
                    remedy="allocate the documented output",
                )
        self.check_output_layout(position, given)
        if given.alignment < wanted.alignment:
            raise AlignmentError(
                given.name,
                got=f"a pointer aligned to {given.alignment} bytes",
                wanted=f"{wanted.alignment} bytes",
                remedy="allocate a buffer of its own",
            )

    def check_output_layout(self, position: int, given: TensorSpec) -> None:
        """Raises StrideError unless the strides of a buffer for result ``position`` are served."""
        wanted = self.outputs[position]
        if given.size and given.strides != wanted.strides:
            raise StrideError(
                given.name, got=f"strides {given.strides}", wanted=str(wanted.strides), remedy="allocate it compact"
            )

    @property
    def options(self) -> tuple[tuple[str, Hashable], ...]:
        """The fields that are no operands, as pairs."""
        names = (row.name for row in fields(self) if row.name not in self.operands)
        return tuple((name, getattr(self, name)) for name in names)

    @property
    def inputs(self) -> tuple[TensorSpec | None, ...]:
        """Specs of the operands, in order; None for absent optional ones."""
        return tuple(getattr(self, name) for name in self.operands)

    @property
    def device(self) -> str:
        """Where the call runs: the first operand's place."""
        return next(spec.device for spec in self.inputs if spec is not None)

    @property
    def nbytes(self) -> int:
        """Bytes moved at least: each input read once, each output written once."""
        return sum(spec.nbytes for spec in (*self.inputs, *self.outputs) if spec is not None)


@dataclass(frozen=True)
class Kernel:
    """One implementation of an op on GPUs. The record is plain data; the DSL is imported when it compiles.

    Attributes:
        backend: ``"sm90"``, ``"portable"``, ...
        module: The module with ``launcher(spec)`` and ``fake_arguments(spec)``; imports the DSL.
        refuse: Why it cannot serve a problem on a device, or None if it can. Pure.
        specialise: What the compiled code depends on, for a problem on a device: a frozen dataclass of plain
            values whose ``repr`` is part of the cache's key. Pure.
        targets: Architectures that it is compiled for in the tests.
        scratch: Uninitialised buffers that it wants after the outputs, for a problem and what it is specialised for.
        verified: Chips on which its tests have run.
        opt_in: Offered only when the caller names it.
    """

    backend: str
    module: str
    refuse: Callable[[Any, Device], str | None]
    specialise: Callable[[Any, Device], Hashable]
    targets: tuple[str, ...]
    scratch: Callable[[Any, Any], tuple[TensorSpec, ...]] | None = None
    verified: tuple[str, ...] = ()
    opt_in: bool = False


@dataclass(frozen=True)
class TensorRule:
    """One operand's or result's row of an op's documentation.

    Attributes:
        name: Parameter or result key.
        shape: E.g. ``"(M, K, L)"``.
        layout: The accepted memory layouts in words.
        dtypes: The accepted element types.
        meaning: What it holds.
    """

    name: str
    shape: str
    layout: str
    dtypes: tuple[str, ...]
    meaning: str


@dataclass(frozen=True, eq=False)
class Op:
    """An operation: its contract, its definition, its kernels, and what its documentation says.

    Attributes:
        name: Arch-neutral public name of the torch / NumPy entry, e.g. ``"gemm_swiglu_forward"``.
        package: Distribution that holds it.
        problem: The contract.
        reference: ``"module:function"`` of the definition, called as ``f(problem, xp, *operands, *scalars)``.
        kernels: GPU implementations, best first.
        summary: One sentence.
        formula: LaTeX.
        tensors: Operands and results.
        example: Python source, run as a test.
        source: Where the definition comes from.
        notes: Paragraphs on deviations, determinism, and tolerances.
        results: Keys of the results; those beyond the kernels' outputs are None.
        scalars: Names of the numbers that are not part of the problem.
        integers: Those of them that are whole: kernels take them as such.
        autocast: Whether float32 operands take autocast's type, as those of a matrix product do.
        legacy: Other public names of the same op.
        jax_name: Public name of the JAX entry, where there is one.
        gradient: ``"module:attribute"`` of its derivative rule, where there is one.
        public: Whether it is exported, or only serves others.
        memory_cases: ``"module:function"``, called as ``f(cuda)``: the benchmark's `MemoryCase` records on a GPU or a
            CPU.
        reference_on_gpu: While no kernel of the op has run on a GPU, its reference runs there too, with one warning.
    """

    name: str
    package: str
    problem: type[Problem]
    reference: str
    kernels: tuple[Kernel, ...]
    summary: str
    formula: str = ""
    tensors: tuple[TensorRule, ...] = ()
    example: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    integers: frozenset[str] = frozenset()
    autocast: bool = True
    legacy: tuple[str, ...] = ()
    jax_name: str | None = None
    gradient: str | None = None
    public: bool = True
    memory_cases: str | None = None
    reference_on_gpu: bool = False
    _reference: list[Callable[..., Any]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        before = _ops.get(self.name)
        if before is not None and before.package != self.package:
            raise OptionError(
                "name",
                got=f"{self.name!r} of {self.package}",
                wanted=f"a name apart from those of {before.package}, which has an op of that name",
                remedy="rename one of the two",
            )
        _ops[self.name] = self  # a reloaded module replaces its own

    def __reduce__(self) -> tuple[Any, ...]:
        return _find, (self.name,)  # there is one object per op; caches go by its identity

    def bind(self, *operands: TensorSpec | None, **options: Any) -> Problem:
        """Validate a call; see `Problem.bind`."""
        for name, spec in zip(self.problem.operands, operands, strict=True):
            if spec is None and name not in self.problem.optional:
                raise OptionError(name, got="None", wanted="a tensor", remedy="pass the documented operand")
        return self.problem.bind(*operands, **options)

    @property
    def runs_reference_on_gpu(self) -> bool:
        """Whether a GPU runs the definition unless another backend is named."""
        return self.reference_on_gpu and all(kernel.opt_in for kernel in self.kernels)

    def run_reference(self, problem: Problem, xp: Any, *arguments: Any) -> tuple[Any, ...]:
        """Evaluate the definition with array namespace ``xp``."""
        if not self._reference:
            self._reference.append(resolve(self.reference))
        return tuple(self._reference[0](problem, xp, *arguments))

    def support(self) -> Mapping[str, str]:
        """Per backend: ``"run on <chips>"``, ``"compiled"``, or for the reference ``"run everywhere"``."""
        rows = {"reference": "run everywhere"}
        if self.runs_reference_on_gpu:
            rows["reference"] += ", GPUs included"
        for kernel in self.kernels:
            rows[kernel.backend] = f"run on {', '.join(kernel.verified)}" if kernel.verified else "compiled"
        return rows
