"""Any object that names an element type finds its record; nothing else does."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe.core.dtypes import DType, dtype, dtypes
from cudnn_fe.core.errors import DTypeError

ROWS = pytest.mark.parametrize("row", dtypes(), ids=str)


def numpy_type(row: DType) -> type:
    """NumPy's scalar type of that name, or the one that ml_dtypes adds."""
    found = getattr(ml_dtypes, row.name, None) or np.dtype(row.name).type
    assert isinstance(found, type)
    return found


def is_float(row: DType) -> bool:
    return row.kind == "float"


def test_the_table_holds_each_spelling_once() -> None:
    for attribute in ("name", "cutlass", "torch"):
        spellings = [getattr(row, attribute) for row in dtypes()]
        assert len(set(spellings)) == len(spellings)
    assert {row.name for row in dtypes()} == {
        "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn",
        "int8", "int32", "int64", "uint8", "bool",
    }  # fmt: skip


@ROWS
def test_names_find_their_row(row: DType) -> None:
    for spelling in (row, row.name, row.torch, f"torch.{row.torch}", row.cutlass, str(row)):
        assert dtype(spelling) is row


@ROWS
def test_torch_dtypes(row: DType) -> None:
    theirs = getattr(torch, row.torch)
    assert isinstance(theirs, torch.dtype)
    assert dtype(theirs) is row
    # torch's FP4 dtype is the byte of two.
    assert theirs.itemsize == row.itemsize
    assert theirs.is_floating_point == is_float(row) or row.name == "float4_e2m1fn"


@ROWS
def test_numpy_and_ml_dtypes(row: DType) -> None:
    scalar = numpy_type(row)
    assert dtype(np.dtype(scalar)) is row
    assert dtype(scalar) is row
    assert dtype(np.zeros(1, scalar).dtype) is row
    assert np.dtype(scalar).itemsize == row.itemsize


@ROWS
def test_jax_dtypes(row: DType) -> None:
    assert dtype(getattr(jnp, row.name)) is row
    if row.bits < 64:
        assert dtype(jnp.zeros(1, row.name).dtype) is row


@ROWS
def test_cutlass_types_by_their_class_names(row: DType) -> None:
    assert dtype(type(row.cutlass, (), {})) is row
    # The DSL's types are instances of a metaclass; some carry a `name` too.
    meta = type("NumericMeta", (type,), {})
    assert dtype(meta(row.cutlass, (), {})) is row


def test_the_types_of_the_dsl_itself() -> None:
    cutlass = pytest.importorskip("cutlass")
    for row in dtypes():
        assert dtype(getattr(cutlass, row.cutlass)) is row


@pytest.mark.parametrize("row", [row for row in dtypes() if row.kind == "float"], ids=str)
def test_float_facts_are_those_of_ml_dtypes(row: DType) -> None:
    facts = ml_dtypes.finfo(numpy_type(row))
    assert (facts.bits, facts.nmant) == (row.bits, row.mantissa_bits)
    if row.name != "float8_e8m0fnu":
        assert row.unit_roundoff == float(facts.eps) / 2


@pytest.mark.parametrize("row", [row for row in dtypes() if row.kind != "float"], ids=str)
def test_integer_facts(row: DType) -> None:
    kind = {"int": "i", "uint": "u", "bool": "b"}[row.kind]
    assert np.dtype(row.name).kind == kind
    assert row.mantissa_bits == 0


def test_fp8_are_the_two_element_formats() -> None:
    assert [row.name for row in dtypes() if row.is_fp8] == ["float8_e4m3fn", "float8_e5m2"]


def test_records_are_frozen_and_hashable() -> None:
    assert len(set(dtypes())) == len(dtypes())
    with pytest.raises(dataclasses.FrozenInstanceError):
        dtype("float32").bits = 16  # type: ignore[misc]


@pytest.mark.parametrize(
    "given",
    [None, "float8", "", 32, torch.complex64, torch.int16, np.uint16, np.dtype("M8[s]"), "torch.", object(), list],
)
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(DTypeError, match=r"c_dtype: got .*wanted one of float64, float32") as caught:
        dtype(given, operand="c_dtype")
    assert isinstance(caught.value, ValueError)
    assert (caught.value.operand, caught.value.got) == ("c_dtype", repr(given))
