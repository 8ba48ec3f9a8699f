"""What every codec owes its argument: any shape, layout and framework, no trust in its casts, clear errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe.core.codecs import (
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    UE5M3,
    Format,
    decode,
    encode,
    from_codes,
    pack_fp4,
    round_to_tf32,
    to_bfloat16,
    to_codes,
    to_float16,
    unpack_fp4,
)
from cudnn_fe.core.errors import DTypeError, FrameworkError, ShapeError

FRAMEWORKS = pytest.mark.parametrize(
    "framework", [np.asarray, torch.asarray, jnp.asarray], ids=["numpy", "torch", "jax"]
)
NATIVE = [E4M3, E5M2, E8M0, E2M1]
native = pytest.mark.parametrize("row", NATIVE, ids=lambda row: row.name)
Framework = Callable[[Any], Any]


@pytest.fixture
def flushed_subnormals() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushed_subnormals")
def test_subnormals_survive_where_the_processor_flushes_them() -> None:
    x = np.asarray([1, 0x400000, 0x400001, 0x7FFFFF, 0x80000001], np.uint32).view(np.float32)
    assert float((torch.from_numpy(x) * 1).abs().sum()) == 0, "nothing is flushed, so nothing is shown"
    for array in (x, torch.from_numpy(x)):
        assert encode(array, E8M0).tolist() == [0, 0, 1, 1, 0]
        assert np.asarray(round_to_tf32(array)).view(np.uint32).tolist() == [0, 0x400000, 0x400000, 0x800000, 1 << 31]
    assert to_bfloat16(torch.from_numpy(x)).view(torch.int16).tolist() == [0, 0x40, 0x40, 0x80, -(2**15)]
    smallest = decode(torch.zeros(1, dtype=torch.uint8), E8M0)
    assert smallest.view(torch.int32).tolist() == [0x400000]
    halves = np.asarray([1, 0x3FF], np.uint16).view(np.float16)
    assert encode(torch.from_numpy(halves), E8M0).tolist() == [127 - 24, 127 - 14]


@FRAMEWORKS
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3, 4)])
def test_shapes(framework: Framework, shape: tuple[int, ...]) -> None:
    x = framework(np.full(shape, 1.5, np.float32))
    for row in (E4M3, E2M1, E8M0):
        codes = encode(x, row)
        assert tuple(codes.shape) == shape
        assert "uint8" in str(codes.dtype)
        values = decode(codes, row)
        assert tuple(values.shape) == shape
        assert (np.asarray(values) == (2.0 if row is E8M0 else 1.5)).all()
    for narrow in (to_bfloat16, to_float16, round_to_tf32):
        assert tuple(narrow(x).shape) == shape


@pytest.mark.parametrize("framework", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_strided_input(framework: Framework) -> None:
    x = np.linspace(-500, 500, 60, dtype=np.float32).reshape(6, 10)
    for array in (framework(x).T[1::2], framework(x.astype(np.float16))[:, ::3]):
        contiguous = np.ascontiguousarray(np.asarray(array))
        np.testing.assert_array_equal(np.asarray(encode(array, E4M3)), encode(contiguous, E4M3))
    codes = framework(encode(x, E4M3)).T[::2]
    np.testing.assert_array_equal(np.asarray(decode(codes, E4M3)), decode(encode(x, E4M3), E4M3).T[::2])
    np.testing.assert_array_equal(np.asarray(to_codes(from_codes(codes, E4M3))), np.asarray(codes))


@pytest.mark.parametrize("row", [E4M3, E5M2, E2M1, E8M0], ids=lambda row: row.name)
@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
def test_torch_compile_takes_the_codecs_in_one_graph(row: Format) -> None:
    def there_and_back(x: Any) -> Any:
        array = from_codes(encode(x, row), row)
        return round_to_tf32(to_bfloat16(decode(array)))

    x = torch.linspace(-1000, 1000, 1024)
    compiled = torch.compile(there_and_back, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x).view(torch.int32), there_and_back(x).view(torch.int32))


def test_vmap() -> None:
    x = jnp.linspace(-500, 500, 60).reshape(6, 10)
    np.testing.assert_array_equal(np.asarray(jax.vmap(lambda row: encode(row, E4M3))(x)), np.asarray(encode(x, E4M3)))


def test_the_input_is_not_written_and_autograd_is_no_obstacle() -> None:
    x = torch.tensor([300.0, float("nan")], requires_grad=True)
    before = x.detach().clone()
    assert not encode(x, E4M3).requires_grad
    assert torch.equal(x.detach().view(torch.int32), before.view(torch.int32))


@native
@FRAMEWORKS
def test_native_dtypes_hold_the_codes(row: Format, framework: Framework) -> None:
    codes = np.arange(2**row.bits, dtype=np.uint8)
    array = from_codes(framework(codes), row)
    name = {"float4_e2m1fn": "float4_e2m1fn_x2"}.get(row.name, row.name) if framework is torch.asarray else row.name
    assert str(array.dtype).removeprefix("torch.") == name
    back = to_codes(array)
    assert type(back) is type(framework(codes))
    np.testing.assert_array_equal(np.asarray(back), codes)
    np.testing.assert_array_equal(np.asarray(decode(array)), decode(codes, row))
    np.testing.assert_array_equal(np.asarray(decode(array, row)), decode(codes, row))


@native
def test_native_dtypes_under_jit(row: Format) -> None:
    codes = jnp.arange(2**row.bits, dtype=jnp.uint8)
    there_and_back = jax.jit(lambda c: to_codes(from_codes(c, row)))
    np.testing.assert_array_equal(np.asarray(there_and_back(codes)), np.asarray(codes))


def test_fp8_views_share_memory() -> None:
    codes = np.arange(4, dtype=np.uint8)
    assert np.shares_memory(from_codes(codes, E4M3), codes)
    tensor = torch.arange(4, dtype=torch.uint8)
    assert to_codes(from_codes(tensor, E5M2)).data_ptr() == tensor.data_ptr()


def test_stray_upper_bits_of_an_ml_dtypes_fp4_byte_are_dropped() -> None:
    dirty = np.asarray([0xF1, 0x2C], np.uint8).view(ml_dtypes.float4_e2m1fn)
    assert to_codes(dirty).tolist() == [0x1, 0xC]


@FRAMEWORKS
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_packing_along_any_axis(framework: Framework, axis: int) -> None:
    codes = (np.arange(4 * 6 * 8) % 16).astype(np.uint8).reshape(4, 6, 8)
    packed = np.asarray(pack_fp4(framework(codes), axis=axis))
    low, high = (np.take(codes, np.arange(start, codes.shape[axis], 2), axis) for start in (0, 1))
    np.testing.assert_array_equal(packed, low + 16 * high)
    np.testing.assert_array_equal(np.asarray(unpack_fp4(framework(packed), axis=axis)), codes)


@FRAMEWORKS
def test_packing_nothing_and_dirty_codes(framework: Framework) -> None:
    assert tuple(pack_fp4(framework(np.zeros((3, 0), np.uint8))).shape) == (3, 0)
    assert tuple(unpack_fp4(framework(np.zeros((0, 2), np.uint8))).shape) == (0, 4)
    assert np.asarray(pack_fp4(framework(np.asarray([0xF1, 0xF2], np.uint8)))).tolist() == [0x21]


@FRAMEWORKS
def test_packing_errors(framework: Framework) -> None:
    with pytest.raises(ShapeError, match="codes: got extent 3, wanted an even extent"):
        pack_fp4(framework(np.zeros((2, 3), np.uint8)))
    with pytest.raises(ShapeError, match="packed: got 1 axes, wanted an axis 1"):
        unpack_fp4(framework(np.zeros(2, np.uint8)), axis=1)
    with pytest.raises(DTypeError, match="codes: got float32, wanted uint8"):
        pack_fp4(framework(np.zeros(2, np.float32)))


@pytest.mark.parametrize(
    "x", [np.zeros(1), torch.zeros(1, dtype=torch.float64), np.zeros(1, np.int32), torch.zeros(1, dtype=torch.uint8)]
)
def test_other_inputs_are_refused(x: Any) -> None:
    convert: Callable[[Any], Any]
    for convert in (lambda a: encode(a, E4M3), to_bfloat16, to_float16, round_to_tf32):
        with pytest.raises(DTypeError, match="wanted float32, float16 or bfloat16; cast to float32 explicitly"):
            convert(x)


def test_foreign_byte_order_is_refused_rather_than_misread() -> None:
    with pytest.raises(DTypeError, match="native byte order"):
        encode(np.ones(1, np.dtype(np.float32).newbyteorder()), E4M3)


@pytest.mark.parametrize("x", [1.0, [1.0], None, "1.0"])
def test_what_is_no_array_is_refused(x: Any) -> None:
    convert: Callable[[Any], Any]
    for convert in (lambda a: encode(a, E4M3), lambda a: decode(a, E4M3), to_codes, pack_fp4, round_to_tf32):
        with pytest.raises(FrameworkError, match="wanted a NumPy, torch or JAX array"):
            convert(x)


def test_decoding_needs_to_know_the_format() -> None:
    codes = np.zeros(1, np.uint8)
    with pytest.raises(DTypeError, match="codes: got uint8"):
        decode(codes)
    with pytest.raises(DTypeError, match="codes: got float8_e5m2, wanted uint8 or float8_e4m3fn"):
        decode(from_codes(codes, E5M2), E4M3)
    with pytest.raises(DTypeError, match="codes: got float32"):
        decode(np.zeros(1, np.float32), E4M3)


def test_native_dtype_errors() -> None:
    with pytest.raises(DTypeError, match="format: got ue5m3, wanted a format with a dtype"):
        from_codes(np.zeros(1, np.uint8), UE5M3)
    with pytest.raises(DTypeError, match="codes: got float32, wanted uint8"):
        from_codes(np.zeros(1, np.float32), E4M3)
    with pytest.raises(DTypeError, match="x: got float32"):
        to_codes(np.zeros(1, np.float32))
    with pytest.raises(ShapeError, match="even extent"):
        from_codes(torch.zeros(3, dtype=torch.uint8), E2M1)


def test_importing_and_using_the_codecs_with_numpy_imports_no_framework() -> None:
    program = (
        "import sys, numpy as np\n"
        "from cudnn_fe.core import codecs\n"
        "x = codecs.encode(np.ones(2, np.float32), 'float4_e2m1fn')\n"
        "codecs.decode(codecs.to_codes(codecs.from_codes(x, codecs.E2M1)), codecs.E2M1)\n"
        "codecs.to_bfloat16(np.ones(1, np.float32))\n"
        "print(sorted({'torch', 'jax', 'cutlass'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
