"""`TensorSpec`: what is read off arrays of every kind, and which bytes they touch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from torch._subclasses.fake_tensor import FakeTensorMode

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import AliasError, AlignmentError, DTypeError, FrameworkError, ShapeError, StrideError
from cudnn_fe.core.tensor import TensorSpec, byte_range, contiguous_strides, pointer_of, refuse_overlap, spec_of

F32 = dtype("float32")


class OnlyDLPack:
    def __init__(self, array: Any) -> None:
        self.array = array
        self.strides = "in bytes, as CuPy's"

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_torch_tensors_views_and_placeless_ones() -> None:
    x = torch.zeros(3, 4, 5, dtype=torch.bfloat16).permute(2, 0, 1)
    assert spec_of(x, "x") == TensorSpec((5, 3, 4), (1, 20, 5), dtype("bfloat16"), "cpu", 16)
    assert spec_of(torch.zeros(2, device="meta")).device == "meta"
    with FakeTensorMode():
        fake = torch.empty(2, 3, device="cuda:1")
    assert spec_of(fake) == TensorSpec((2, 3), (3, 1), F32, "cuda:1", 16)
    assert spec_of(torch.zeros(9)[1:]).alignment == 4
    assert spec_of(torch.zeros(0)).alignment == 16


def test_sparse_tensors_are_refused_with_the_remedy() -> None:
    with pytest.raises(StrideError, match=r"^x: got a torch.sparse_coo tensor, .*to_dense"):
        spec_of(torch.eye(2).to_sparse(), "x")


def test_jax_arrays_tracers_and_shapes_are_row_major() -> None:
    wanted = TensorSpec((2, 3), (3, 1), F32, "cpu", 16)
    assert spec_of(jnp.zeros((2, 3))) == wanted
    assert spec_of(jax.ShapeDtypeStruct((2, 3), jnp.float32)) == wanted
    seen = []
    jax.jit(lambda x: seen.append(spec_of(x)))(jnp.zeros((2, 3)))
    assert seen == [TensorSpec((2, 3), (3, 1), F32, "traced", 16)]


def test_numpy_counts_strides_in_elements_negative_and_zero_too() -> None:
    base = np.zeros((4, 6), np.float16)
    assert spec_of(base[::-1, ::2]).strides == (-6, 2)
    assert spec_of(np.broadcast_to(base[0], (5, 6))).strides == (0, 1)
    assert spec_of(np.zeros((2, 2), ml_dtypes.float8_e4m3fn)).dtype.name == "float8_e4m3fn"
    readonly = np.zeros(3, np.float32)
    readonly.flags.writeable = False
    assert spec_of(readonly).shape == (3,)


def test_numpy_byte_strides_that_split_elements_are_refused_unless_no_step_is_taken() -> None:
    odd = np.zeros(4, np.dtype([("tag", "u1"), ("value", "<f4")]))["value"]
    with pytest.raises(StrideError, match=r"^x: got byte strides \(5,\), wanted multiples of the element size 4"):
        spec_of(odd, "x")
    with pytest.raises(AlignmentError, match=r"not a multiple of 4 bytes, .*; copy"):
        spec_of(odd[:1], "x")


def test_dlpack_objects_are_described_by_dlpack_not_by_their_attributes() -> None:
    spec = spec_of(OnlyDLPack(np.zeros((3, 4), np.float32)[:, 1:]))
    assert (spec.shape, spec.strides, spec.device, spec.alignment) == ((3, 3), (4, 1), "cpu", 4)


def test_descriptions_need_shape_and_dtype_only() -> None:
    sample = SimpleNamespace(shape=(2, 3), dtype="bfloat16", device="cuda", stride=lambda: (1, 2))
    assert spec_of(sample, "s") == TensorSpec((2, 3), (1, 2), dtype("bfloat16"), "cuda:0")
    assert spec_of(SimpleNamespace(shape=[2, 3], dtype=torch.float32)).strides == (3, 1)
    renamed = spec_of(spec_of(sample, "s"), "other")
    assert renamed.name == "other"
    with pytest.raises(FrameworkError, match=r"^x: got builtins.float"):
        spec_of(1.0, "x")
    with pytest.raises(DTypeError, match=r"^x: got"):
        spec_of(np.zeros(1, np.complex64), "x")


def test_strides_of_unit_dims_never_matter() -> None:
    plain, odd = TensorSpec((1, 4, 1), (4, 1, 1), F32), TensorSpec((1, 4, 1), (77, 1, 0), F32)
    assert plain == odd
    assert hash(plain) == hash(odd)
    assert spec_of(torch.zeros(1, 4).as_strided((1, 4), (9, 1))) == spec_of(np.zeros((1, 4), np.float32))
    assert TensorSpec((2, 4), (4, 1), F32) != TensorSpec((2, 4), (5, 1), F32)


def test_ranks_must_match() -> None:
    with pytest.raises(StrideError, match=r"^x: got 1 strides for shape \(2, 3\)"):
        TensorSpec((2, 3), (1,), F32, name="x")
    with pytest.raises(ShapeError, match=r"^x: got shape \(2,\) with 1 dims, wanted 3 dims \(M, K, L\)"):
        TensorSpec((2,), (1,), F32, name="x").require_rank(3, "(M, K, L)")


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.randoms())
def test_contiguous_strides_are_numpys(shape: list[int], random: Any) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)
    wanted = spec_of(np.zeros([max(shape[dim], 1) for dim in reversed(order)], np.int8)).strides
    found = contiguous_strides(shape, order)
    merged = TensorSpec(tuple(shape[dim] for dim in reversed(order)), tuple(found[dim] for dim in reversed(order)), F32)
    assert merged == TensorSpec(merged.shape, wanted, F32)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-5, 5)), min_size=1, max_size=3))
def test_byte_range_holds_exactly_the_first_and_last_element(dims: list[tuple[int, int]]) -> None:
    spec = TensorSpec(tuple(n for n, _ in dims), tuple(step for _, step in dims), F32)
    offsets = [sum(i * s for i, s in zip(index, spec.strides, strict=True)) for index in np.ndindex(spec.shape)]
    assert byte_range(spec, 1000) == (1000 + 4 * min(offsets), 1000 + 4 * max(offsets) + 4)


def test_overlap_is_refused_naming_both_and_touching_is_not() -> None:
    memory = np.zeros(16, np.float32)

    def at(name: str, part: Any) -> tuple[TensorSpec, int]:
        return spec_of(part, name), pointer_of(part)

    refuse_overlap([at("a", memory[:8]), at("b", memory[4:8])], [at("c", memory[8:12]), at("d", memory[12:])])
    refuse_overlap([at("a", memory)], [at("empty", memory[4:4])])
    with pytest.raises(AliasError, match=r"^c: got bytes that overlap those of a,"):
        refuse_overlap([at("a", memory[:8])], [at("c", memory[7:9])])
    with pytest.raises(AliasError, match=r"^c: got bytes that overlap those of d,"):
        refuse_overlap([], [at("c", memory[:8]), at("d", memory[7::-1])])


def test_pointers_of_every_host_array() -> None:
    memory = np.zeros(4, np.float32)
    assert pointer_of(memory) == pointer_of(torch.from_numpy(memory)) == pointer_of(OnlyDLPack(memory))
