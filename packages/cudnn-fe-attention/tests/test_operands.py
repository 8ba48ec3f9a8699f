"""Every tensor of every attention op: what is none of the documented kind is refused by its own name."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.operands import default_scale
from cudnn_fe.core.errors import CudnnFeError
from cudnn_fe.core.op import op_named
from cudnn_fe_testkit.attention_cases import CASES

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
    """It equals the int, so that a plan made for it would be found again by later calls that are right."""
    operands, options = next((operands, options) for name, operands, options in CASES if name == op)
    function = getattr(attention, op)
    given = named(function, operands, options)
    value = given.get(option, inspect.signature(function).parameters[option].default)
    with pytest.raises(ValueError, match=rf"{option}: got {float(value)}, wanted one of"):
        function(**{**given, option: float(value)})
    assert function(**given) is not None


def test_the_factor_of_what_is_no_array_is_left_to_the_contract() -> None:
    """So that a list or an array without dims is refused by name, and not by an attribute that it lacks."""
    assert default_scale(np.ones((3, 16))) == 0.25
    assert default_scale(np.ones((3, 0))) == default_scale([1.0]) == default_scale(np.ones(())) == 1
