"""The documented forms of the class API's samples and tensors, brought to the ones that the ops take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.legacy import Arrange
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_same_device
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.grouped.forms import ROWS, VECTORS, as_weights, is_narrow, reformed, weights_of

__all__ = ["FREE", "Bound", "Mode", "Samples", "arrange", "arrange_wgrad", "bound"]

Bound = tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]

_POINTERS_OF = {"b_tensor": "b_ptrs", "sfb_tensor": "sfb_ptrs"}
_POINTERS = tuple(_POINTERS_OF.values())
FREE = dict.fromkeys((*ROWS, *VECTORS, "sfa_tensor", "rht_colwise_tensor", "sfrht_colwise_tensor"), (0,)) | {
    "sfd_row_tensor": (1,),
    "sfd_col_tensor": (2,),
    "sfd_col_d_srelu_tensor": (2,),
    "sfd_tensor": (1,),
    "sfrht_rowwise_tensor": (1,),
}
"""Extents that may differ from the samples' at each call: M."""


def _reformed(name: str, x: Any, options: Mapping[str, Any], layout: Mapping[str, bool]) -> Any:
    """One operand or buffer, or its spec, in the form that the op takes."""
    if x is not None and name == "b_tensor" and "canonical_n" in layout:
        return as_weights(x, options.get("b_major", "k"), **layout)
    return reformed(name, x)


def parameter(sample: str) -> str:
    """The parameter of ``execute`` that a constructor's sample stands for."""
    name = sample.removeprefix("sample_")
    return name if name in ("padded_offsets", "global_scale_a", "global_scale_b") else f"{name}_tensor"


class Samples:
    """A constructor's samples as specs, by the name of the parameter of ``execute``.

    Attributes:
        specs: In the forms of the problem.
        options: What belongs to the weights.
    """

    def __init__(self, given: Mapping[str, Any], **layout: bool) -> None:
        """``layout`` says which forms of dense weights there are; see `weights_of`."""
        self.given = given
        self.specs: dict[str, TensorSpec | None] = {}
        for name, value in given.items():
            if name.startswith("sample_"):
                place = parameter(name)
                spec = None if value is None else spec_of(value, place)
                self.specs[place] = _reformed(place, spec, given, layout)
        self.options: dict[str, Any] = {}
        if layout:
            self._add_weights(layout)

    def _add_weights(self, layout: Mapping[str, bool]) -> None:
        given, a = self.given, self.required("a_tensor")
        modes = [given.get(name) is not None for name in ("num_experts", "b_shape", "b_dtype")]
        dense = given.get("sample_b") is not None
        if dense == any(modes) or any(modes) != all(modes):
            raise OptionError(
                "sample_b",
                got="both modes or neither",
                wanted="sample_b, or num_experts, b_shape and b_dtype",
                remedy="choose one",
            )
        if dense:
            self.options = {"n": 0, "n_major": False, "zero_tail": False}
            return
        n, k = tuple(given["b_shape"])[:2]
        per_element = 2 if a.dtype.name in ("uint8", "float4_e2m1fn") else 1
        if k != per_element * a.shape[1]:
            raise ShapeError(
                "b_shape", got=str(given["b_shape"]), wanted=f"(N, {per_element * a.shape[1]})", remedy="pass A's K"
            )
        self.specs["b_tensor"], options = weights_of(
            a, None, self.addresses("b_ptrs"), n, given["b_dtype"], given.get("b_major", "k"), **layout
        )
        self.options = {**dict(options), "zero_tail": False}
        if "sfb_tensor" in self.specs or is_narrow(a, "a_tensor"):
            self.specs["sfb_tensor"] = self.addresses("sfb_ptrs") if is_narrow(a, "a_tensor") else None

    def addresses(self, name: str) -> TensorSpec:
        """The spec of an array of addresses, which has no sample."""
        device = self.required("a_tensor").device
        return TensorSpec((self.given["num_experts"],), (1,), dtype("int64"), device, 8, name)

    def required(self, name: str) -> TensorSpec:
        """The spec of a sample; raises OptionError where there is none."""
        spec = self.specs[name]
        if spec is None:
            raise OptionError(f"sample of {name}", got="None", wanted="a sample", remedy="pass one")
        return spec

    def dtype(self, name: str) -> str:
        """The dtype of a result's sample; bfloat16 where there is none."""
        spec = self.specs[name]
        return "bfloat16" if spec is None else spec.dtype.name


def bound(
    op: Op,
    samples: Samples,
    options: Mapping[str, Any],
    wanted: Mapping[str, bool],
    numbers: tuple[float, ...] = (),
    *,
    names: Sequence[str] | None = None,
) -> Bound:
    """The problem of a class, its results' specs, and its numbers.

    Args:
        op: The operation.
        samples: Those of the constructor.
        options: The op's.
        wanted: The op's outputs by their samples' names, in order, and whether they are written.
        numbers: The op's scalars.
        names: The samples that are the op's operands; None: those of the same names.
    """
    operands = [samples.specs.get(name) for name in names or op.problem.operands]
    for name, spec in zip(op.problem.operands, operands, strict=True):
        if spec is None and name not in op.problem.optional:
            samples.required(name)
    problem = op.bind(*operands, **options, **samples.options)
    results = tuple(samples.required(name) if there else None for name, there in wanted.items())
    for position, spec in enumerate(results):
        if spec is not None:
            require_same_device(samples.required("a_tensor"), spec)
            problem.check_output(position, spec)
    return problem, results, numbers


@dataclass(frozen=True)
class Mode:
    """One of the ops that a class stands for.

    Attributes:
        op: The op.
        outputs: The names of its outputs' buffers, in order; empty for one that has none.
        layout: Forms of dense weights; see `weights_of`.
        scalars: How many of execute's numbers it takes; 0 for all.
        more: Numbers that follow those.
        scaled: Whether it is the one of quantised operands.
    """

    op: Op
    outputs: tuple[str, ...]
    layout: Mapping[str, bool]
    scalars: int = 0
    more: tuple[float, ...] = ()
    scaled: bool = False


def arrange(inputs: Sequence[str], outputs: Sequence[str], *modes: Mode) -> Arrange:
    """Execute's tensors and numbers to those of the mode that A's type names, in the forms of its problem."""
    by_format = {mode.scaled: mode for mode in modes}

    def arranged(
        options: Mapping[str, Any], tensors: tuple[Any, ...], buffers: tuple[Any, ...], scalars: tuple[float, ...]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[float, ...]]:
        given, taken = dict(zip(inputs, tensors, strict=True)), dict(zip(outputs, buffers, strict=True))
        mode = by_format.get(is_narrow(given["a_tensor"], "a_tensor"), modes[0])
        names = mode.op.problem.operands
        for dense, pointers in (("b_tensor", "b_ptrs"), ("sfb_tensor", "sfb_ptrs")):
            if dense in names and (given.get(dense) is None) == (given.get(pointers) is None):
                raise OptionError(
                    f"{dense}, {pointers}", got="both or neither", wanted="one of the two", remedy="pass one"
                )
        unused = [name for name in inputs if name not in (*names, *_POINTERS) and given[name] is not None]
        if unused:
            raise OptionError(", ".join(unused), got="a tensor", wanted="None in this mode", remedy="leave it out")
        operands = tuple(
            given[_POINTERS_OF[name]]
            if name in _POINTERS_OF and given.get(name) is None
            else _reformed(name, given.get(name), options, mode.layout)
            for name in names
        )
        written = tuple(reformed(name, taken[name]) if name else None for name in mode.outputs)
        return operands, written, (scalars[: mode.scalars] if mode.scalars else scalars) + mode.more

    return arranged


def arrange_wgrad(
    options: Mapping[str, Any], inputs: tuple[Any, ...], outputs: tuple[Any, ...], scalars: tuple[float, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[float, ...]]:
    """The operands of the mode that A's type names; the buffer is one too where it is added to."""
    a, b, sfa, sfb, offsets, ga, gb, old, pointers = inputs
    old = old if options["accumulate_on_output"] else None
    if is_narrow(a, "a_tensor"):
        flat = (reformed("sfa_tensor", sfa), reformed("sfb_tensor", sfb))
        return (a, b, *flat, offsets, ga, gb, old, pointers), outputs, scalars
    given = {"sfa_tensor": sfa, "sfb_tensor": sfb, "global_scale_a": ga, "global_scale_b": gb}
    unused = [name for name, x in given.items() if x is not None]
    if unused:
        raise OptionError(", ".join(unused), got="a tensor", wanted="None in this mode", remedy="leave it out")
    return (a, b, offsets, old, pointers), outputs, scalars
