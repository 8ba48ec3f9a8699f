"""Every tensor of every attention op: refused by name where it is none of the documented kind, else in any layout."""

from __future__ import annotations

import inspect
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.operands import default_scale
from cudnn_fe.core.errors import CudnnFeError
from cudnn_fe.core.op import op_named
from cudnn_fe_testkit.attention_cases import CASES
from cudnn_fe_testkit.compare import rel_rms, to_float64

compactify: Any = attention.dsa_compactify_forward

# What may be left out although the contract has it: the function has a value for it.
DEFAULTS = {("nsa_selection_attention_forward", "cum_seqlen_k_tensor")}


def named(function: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name, without gradients."""
    arguments = inspect.signature(function).bind(*operands, **options).arguments
    return {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}


@pytest.mark.parametrize("op", [name for name, _, _ in CASES])
def test_names_what_it_refuses(op: str) -> None:
    operands, options = next((operands, options) for name, operands, options in CASES if name == op)
    function = getattr(attention, op)
    given = named(function, operands, options)
    optional = op_named(op).problem.optional
    tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    assert tensors
    for name, tensor in tensors.items():
        wrong = [("a string", "x"), ("complex numbers", tensor.to(torch.complex64))]
        if name != "grad_loss":  # one element, of any number of dims
            wrong.append(("two dims more", tensor[None, None]))
        if tensor.numel() and len(tensors) > 1:
            wrong.append(("another device", tensor.to("meta")))
        if name not in optional and (op, name) not in DEFAULTS:
            wrong.append(("nothing", None))
        for what, bad in wrong:
            with pytest.raises(CudnnFeError) as caught:
                function(**{**given, name: bad})
            message = str(caught.value)
            assert ": got " in message
            # An op of one operand cannot say which one is missing; of two places the second operand's may be named.
            alone = what == "nothing" and len(op_named(op).problem.operands) == 1
            found = re.search(rf"\b{name}\b" if what == "another device" else rf"\b{name}\b.*: got", message)
            assert alone or found, f"{name}, {what}: {message}"


def spread(x: torch.Tensor, gap: int = 3) -> torch.Tensor:
    """The same numbers with something else between rows, NaN where there is one."""
    if not x.ndim:
        return x
    shape = (*x.shape[:-1], x.shape[-1] + gap)
    memory = torch.full(shape, torch.nan if x.is_floating_point() else 10**6, dtype=x.dtype)
    memory[..., :-gap] = x
    return memory[..., :-gap]


def turned(x: torch.Tensor) -> torch.Tensor:
    """The same numbers with all dims but the last the other way round in memory."""
    order = (*range(x.ndim - 2, -1, -1), x.ndim - 1)
    return x.permute(order).contiguous().permute(order) if x.ndim > 2 else x


def as_numpy(x: torch.Tensor) -> Any:
    return x.float().numpy().astype(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def results(function: Any, given: dict[str, Any], change: Any) -> list[Any]:
    changed = {name: change(x) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    return [x for x in function(**changed) if hasattr(x, "dtype")]


# Their plans and records are of torch; they have tests of their own in every framework.
OF_TORCH = ("flex_attention_forward", "flex_attention_backward", "gated_attention_block_backward")


@pytest.mark.parametrize("op", [name for name, _, _ in CASES])
@torch.no_grad()
def test_layouts_and_numpy(op: str) -> None:
    """Memory between rows is not read, the order of dims in memory means nothing, and NumPy gives what torch gives."""
    operands, options = next((operands, options) for name, operands, options in CASES if name == op)
    function = getattr(attention, op)
    given = named(function, operands, options)
    wanted = results(function, given, lambda x: x)
    for change in (spread, turned, *([] if op in OF_TORCH else [as_numpy])):
        got = results(function, given, change)
        assert len(got) == len(wanted)
        for x, reference in zip(got, wanted, strict=True):
            assert x.shape == reference.shape
            assert str(x.dtype).removeprefix("torch.") == str(reference.dtype).removeprefix("torch.")
            if change is spread:
                assert np.array_equal(to_float64(x), to_float64(reference), equal_nan=True)
            elif x.shape and 0 not in x.shape:
                # Sums in another order; one beside the middle of two numbers of a narrow type falls to the other side.
                bound = 2.0**-8 if reference.dtype == torch.bfloat16 else 64 * 2.0**-24
                assert rel_rms(to_float64(x), to_float64(reference)) <= bound


@pytest.mark.parametrize("backend", [["reference"], {"reference": 1}])
def test_a_backend_that_is_no_name(backend: Any) -> None:
    for ids in (np.zeros((1, 2), np.int32), torch.zeros(1, 2, dtype=torch.int32)):
        with pytest.raises(RuntimeError, match=r"backend: got .*, wanted auto or one of reference; name a backend"):
            compactify(ids, backend=backend)


@pytest.mark.parametrize(
    ("op", "option"),
    [
        ("block_sparse_attention_forward", "sparse_block_size"),
        ("nsa_selection_attention_forward", "block_size"),
        ("csa_compressor_forward", "ratio"),
        ("csa_compressor_backward", "coff"),
        ("dsa_indexer_top_k_forward", "tie_break"),
        ("aligned_hca_backward", "cp_size"),
    ],
)
def test_a_float_in_place_of_an_int_is_refused_and_forgotten(op: str, option: str) -> None:
    """It equals the int, so that a plan made for it would be found again by later calls that are right.

    Nor does a plan that another test left behind answer for it here: the operands' layout is one of its own.
    """
    operands, options = next((operands, options) for name, operands, options in CASES if name == op)
    function = getattr(attention, op)
    arguments = named(function, operands, options).items()
    given = {name: spread(x, 5) if isinstance(x, torch.Tensor) else x for name, x in arguments}
    value = given.get(option, inspect.signature(function).parameters[option].default)
    with pytest.raises(ValueError, match=rf"{option}: got {float(value)}, wanted one of"):
        function(**{**given, option: float(value)})
    assert function(**given) is not None


def test_the_factor_of_what_is_no_array_is_left_to_the_contract() -> None:
    """So that a list or an array without dims is refused by name, and not by an attribute that it lacks."""
    assert default_scale(np.ones((3, 16))) == 0.25
    assert default_scale(np.ones((3, 0))) == default_scale([1.0]) == default_scale(np.ones(())) == 1
