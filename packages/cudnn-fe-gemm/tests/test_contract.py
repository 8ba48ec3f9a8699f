"""Bad input to GEMM + SwiGLU: a typed error before anything runs, saying operand, got, wanted and remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe.core.errors import (
    AliasError,
    AlignmentError,
    BackendError,
    CudnnFeError,
    DeviceError,
    DTypeError,
    FrameworkError,
    NotCompiledError,
    NotYetSupportedError,
    OptionError,
    ShapeError,
    StrideError,
)
from cudnn_fe.gemm import gemm_swiglu_backward, gemm_swiglu_forward, gemm_swiglu_jax_forward
from cudnn_fe.gemm.legacy import GemmSwigluSm100


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


CASES: dict[str, tuple[Callable[[], Any], type[CudnnFeError], type[Exception], str]] = {
    "rank of A": (
        lambda: gemm_swiglu_forward(array(4, 8), array(64, 8, 1)),
        ShapeError,
        ValueError,
        r"a: got shape \(4, 8\) with 2 dims, wanted 3 dims \(M, K, L\); reshape",
    ),
    "K differs": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 9, 1)),
        ShapeError,
        ValueError,
        r"b: got \(64, 9, 1\), wanted \(N, K, L\) = \(64, 8, 1\)",
    ),
    "L differs": (lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 2)), ShapeError, ValueError, r"b: got"),
    "N is not whole pairs": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(96, 8, 1)),
        ShapeError,
        ValueError,
        r"b: got N = 96, wanted a multiple of 64: blocks of 32 value and 32 gate columns; pad",
    ),
    "dtype of A": (
        lambda: gemm_swiglu_forward(array(4, 8, 1, dtype=np.int8), array(64, 8, 1, dtype=np.int8)),
        DTypeError,
        ValueError,
        r"a: got int8, wanted float16 or bfloat16 or float32 or float8_e4m3fn or float8_e5m2; cast",
    ),
    "dtypes differ": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1, dtype=np.float16)),
        DTypeError,
        ValueError,
        r"b: got float16, wanted float32, the dtype of a; cast one",
    ),
    "AB12 dtype": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), ab12_dtype="int32"),
        DTypeError,
        ValueError,
        r"ab12_dtype: got int32, wanted one of float32, float16, bfloat16",
    ),
    "FP8 AB12": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), ab12_dtype="float8_e4m3fn"),
        NotYetSupportedError,
        NotImplementedError,
        r"ab12_dtype: got float8_e4m3fn",
    ),
    "C dtype": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), c_dtype="float32"),
        DTypeError,
        ValueError,
        r"c_dtype: got float32, wanted one of float16, bfloat16",
    ),
    "float16 accumulator with bfloat16 operands": (
        lambda: gemm_swiglu_forward(
            array(4, 8, 1, dtype=ml_dtypes.bfloat16), array(64, 8, 1, dtype=ml_dtypes.bfloat16), acc_dtype="float16"
        ),
        DTypeError,
        ValueError,
        r"a: got bfloat16, wanted float16 or float8_e4m3fn or float8_e5m2",
    ),
    "unknown dtype": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), c_dtype="float17"),
        DTypeError,
        ValueError,
        r"c_dtype: got 'float17', wanted one of",
    ),
    "no dtype": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), c_dtype=None),
        DTypeError,
        ValueError,
        r"c_dtype: got None",
    ),
    "major": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), c_major="k"),
        OptionError,
        ValueError,
        r"c_major: got 'k', wanted \"m\" or \"n\"",
    ),
    "tile": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), mma_tiler_mn=(64, 128)),
        OptionError,
        ValueError,
        r"mma_tiler_mn: got \(64, 128\), wanted 128 or 256 first",
    ),
    "tile columns": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), mma_tiler_mn=(128, 48)),
        OptionError,
        ValueError,
        r"a multiple of 32 in 32..256 second",
    ),
    "cluster with a 128-row tile": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), cluster_shape_mn=(2, 1)),
        OptionError,
        ValueError,
        r"cluster_shape_mn: got \(2, 1\), wanted \(1, 1\) with mma_tiler_mn\[0\] == 128",
    ),
    "odd cluster with a 256-row tile": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), mma_tiler_mn=(256, 128), cluster_shape_mn=(1, 2)),
        OptionError,
        ValueError,
        r"an even first extent",
    ),
    "batch innermost": (
        lambda: gemm_swiglu_forward(array(4, 8, 2), array(64, 8, 2)),
        StrideError,
        ValueError,
        r"a: got strides \(16, 2, 1\) for shape \(4, 8, 2\), wanted stride 1 along one of the first two dims",
    ),
    "frameworks differ": (
        lambda: gemm_swiglu_forward(torch.zeros(4, 8, 1), array(64, 8, 1)),
        FrameworkError,
        ValueError,
        r"b: got an array of numpy, wanted an array of torch, as a is",
    ),
    "not an array": (
        lambda: gemm_swiglu_forward([1.0], array(64, 8, 1)),
        FrameworkError,
        TypeError,
        r"a: got builtins.list, wanted a torch tensor",
    ),
    "devices differ": (
        lambda: gemm_swiglu_forward(torch.zeros(4, 8, 1), torch.zeros(64, 8, 1, device="meta")),
        DeviceError,
        ValueError,
        r"b: got meta, wanted cpu, where a is",
    ),
    "unknown backend": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), backend="sm42"),
        BackendError,
        NotImplementedError,
        r"backend: got 'sm42', wanted auto or one of reference, sm90, portable",
    ),
    "GPU backend on the CPU": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), backend="sm90"),
        BackendError,
        RuntimeError,
        r"sm90: the operands are on the CPU.*backend=\"reference\"",
    ),
    "scales of one operand alone": (
        lambda: gemm_swiglu_forward(array(4, 8, 1), array(64, 8, 1), sfa_tensor=array(1)),
        OptionError,
        ValueError,
        r"sfb_tensor: got None, wanted scale factors of both operands",
    ),
    "torch operand to the JAX entry": (
        lambda: gemm_swiglu_jax_forward(torch.zeros(4, 8, 1), torch.zeros(64, 8, 1)),
        FrameworkError,
        TypeError,
        r"a_tensor: got Tensor, wanted a JAX or NumPy array",
    ),
    "gradient of the wrong shape": (
        lambda: gemm_swiglu_backward(array(4, 8, 1), array(64, 8, 1), array(4, 64, 1), array(4, 64, 1)),
        ShapeError,
        ValueError,
        r"dc: got \(4, 64, 1\), wanted \(M, N/2, L\) = \(4, 32, 1\)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_with_its_remedy(name: str) -> None:
    call, kind, builtin, message = CASES[name]
    with pytest.raises(kind, match=message) as caught:
        call()
    assert isinstance(caught.value, builtin)
    assert caught.value.remedy in str(caught.value)


def samples() -> dict[str, torch.Tensor]:
    return {
        "a": torch.zeros(4, 8, 1),
        "b": torch.zeros(64, 8, 1),
        "ab12": torch.zeros(4, 64, 1),
        "c": torch.zeros(4, 32, 1, dtype=torch.float16),
    }


def test_execute_before_compile_is_refused() -> None:
    tensors = samples()
    op = GemmSwigluSm100(*tensors.values())
    with pytest.raises(NotCompiledError, match=r"call GemmSwigluSm100.compile\(\) first") as caught:
        op.execute(*tensors.values())
    assert isinstance(caught.value, RuntimeError)


def test_overlapping_outputs_are_refused_before_they_are_written() -> None:
    tensors = samples()
    memory = torch.full((4 * 64,), 7.0)
    tensors["ab12"] = memory.view(4, 64, 1)
    op = GemmSwigluSm100(*tensors.values())
    op.compile()
    overlapping = memory[:32].view(4, 8, 1)
    with pytest.raises(AliasError, match="ab12_tensor: got bytes that overlap those of a_tensor"):
        op.execute(overlapping, tensors["b"], tensors["ab12"], tensors["c"])
    assert bool((memory == 7.0).all())


def test_elements_across_their_natural_alignment_are_refused() -> None:
    raw = np.zeros(4 * 8 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(4, 8, 1)
    with pytest.raises(AlignmentError, match=r"a: got a data pointer .* not a multiple of 4 bytes"):
        gemm_swiglu_forward(raw, array(64, 8, 1))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"c": torch.zeros(4, 64, 1, dtype=torch.float16)}, ShapeError, r"c_tensor: got \(4, 64, 1\)"),
        ({"ab12": torch.zeros(64, 4, 1).permute(1, 0, 2)}, StrideError, r"all results contiguous along the same dim"),
        ({"ab12": torch.zeros(4, 128, 1)[:, :64]}, StrideError, r"ab12_tensor: got \(128, 1, 1\), wanted \(64, 1, 1\)"),
        ({"c": torch.zeros(4, 32, 1)}, DTypeError, r"c_dtype: got float32"),
    ],
)
def test_output_samples_are_checked(change: dict[str, torch.Tensor], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        GemmSwigluSm100(*(samples() | change).values()).check_support()


def test_class_alpha_is_the_constructors_unless_given() -> None:
    tensors = samples()
    tensors["a"], tensors["b"] = torch.ones(4, 8, 1), torch.ones(64, 8, 1)
    a, b, ab12, c = tensors.values()
    op = GemmSwigluSm100(a, b, ab12, c, alpha=0.5)
    op(a, b, ab12, c)
    assert float(tensors["ab12"][0, 0, 0]) == 4.0
    op.execute(a, b, ab12, c, alpha=2.0)
    assert float(tensors["ab12"][0, 0, 0]) == 16.0
