"""The kernels of the block-scaled derivatives and weight gradients compile without a GPU, and know their memory."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import math
from typing import Any

import pytest

from cudnn_fe.core.block_scale import scale_shape
from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.registry import ops
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped import grouped_gemm_swiglu_jax_backward
from cudnn_fe.grouped.dglu_scaled.op import BACKWARD as DGLU
from cudnn_fe.grouped.discrete_dswiglu.op import BACKWARD as DISCRETE
from cudnn_fe.grouped.dsrelu.op import BACKWARD as DSRELU
from cudnn_fe.grouped.dswiglu.op import BACKWARD as DSWIGLU
from cudnn_fe.grouped.scaled.backward import ScaledBackward
from cudnn_fe.grouped.wgrad_scaled.op import SCALED as WGRAD
from cudnn_fe_testkit.chips import CHIPS, needs_compiler, tensor
from cudnn_fe_testkit.scaled_gemm import KINDS

M, N, K, L = 512, 128, 160, 4


def scales(format: Any, rows: int, extent: int, count: int = 1) -> TensorSpec:
    return tensor((count * math.prod(scale_shape(rows, -(-extent // format.block))),), format.scale.name)


def derivative(
    op: Op, epilogue: str, c: str, kind: str = "mxfp8_e4m3", *, discrete: bool = False, **options: Any
) -> Problem:
    """With C of type ``c``, and without beta where there is a gradient of the bias."""
    format = KINDS[kind]
    fp4 = format.element.bits == 4
    k, element = K // 2 if fp4 else K, "float4_e2m1fn" if fp4 else format.element.name
    named = {
        "epilogue": epilogue,
        "d_dtype": "bfloat16" if fp4 else "float8_e4m3fn",
        "sf_vec_size": format.block,
        "quantised": not fp4,
        "expert_columns": False,
        "keep_amax": True,
        "single_group": False,
        "generate_dbias": False,
        "tanh_clamp_scale": None,
        **({"n": N, "n_major": False} if discrete else {}),
        **options,
    }
    b, sfb = tensor((L, N, k), element), scales(format, N, K, L)
    return op.bind(
        tensor((M, k), element),
        tensor((M, N if epilogue == "srelu" else 2 * N), c),
        tensor((L,), "int64") if discrete else b,
        scales(format, M, K),
        tensor((L,), "int64") if discrete else sfb,
        tensor((L,), "int32"),
        tensor((L,)),
        None if named["generate_dbias"] else tensor((L,)),
        tensor((M,)),
        None if fp4 else tensor((1,)),
        **named,
    )


def weight_gradient(
    kind: str, major: str = "t", *, addressed: bool = False, width: int = 2 * N, **options: Any
) -> Problem:
    """Operands with the buffer's rows, or their own, contiguous."""
    format = KINDS[kind]
    per = 2 if format.element.bits == 4 else 1
    element = "uint8" if per == 2 else format.element.name
    factors = [tensor((L,))] * 2 if format.scale.name == "float8_e4m3fn" else [None] * 2
    named = {"wgrad_dtype": "bfloat16", "ragged": False, "accumulate": False} | options
    return WGRAD.bind(
        tensor((N, M // per), element, None if major == "t" else (0, 1)),
        tensor((M // per, width), element, (0, 1) if major == "t" else None),
        *(scales(format, rows, M) for rows in (N, width)),
        tensor((L,), "int32"),
        *factors,
        tensor((L, N, width), "bfloat16") if named["accumulate"] and not addressed else None,
        tensor((L,), "int64") if addressed else None,
        sf_vec_size=format.block,
        **named,
    )


PROBLEMS: dict[str, tuple[Op, Problem]] = {
    "dglu, with the bias's": (DGLU, derivative(DGLU, "geglu", "bfloat16", generate_dbias=True)),
    "dswiglu, situglu, NVFP4": (DSWIGLU, derivative(DSWIGLU, "situglu", "float32", "nvfp4")),
    "discrete dswiglu": (DISCRETE, derivative(DISCRETE, "swiglu", "float16", discrete=True, expert_columns=True)),
    "dsrelu, bounded": (
        DSRELU,
        derivative(DSRELU, "srelu", "float8_e5m2", generate_dbias=True, tanh_clamp_scale=2.5),
    ),
    "wgrad": (WGRAD, weight_gradient("mxfp8_e4m3", "rows")),
    "wgrad, NVFP4, added": (WGRAD, weight_gradient("nvfp4", accumulate=True, ragged=True)),
    "wgrad, at addresses": (WGRAD, weight_gradient("mxfp8_e5m2", addressed=True, accumulate=True)),
}
CASES = [
    ("dglu, with the bias's", "portable", "sm_90a"),
    ("dswiglu, situglu, NVFP4", "sm90", "sm_90a"),
    ("discrete dswiglu", "portable", "sm_120a"),
    ("dsrelu, bounded", "portable", "sm_80"),
    ("dsrelu, bounded", "portable", "sm_100a"),
    ("wgrad", "sm90", "sm_90a"),
    ("wgrad, NVFP4, added", "portable", "sm_80"),
    ("wgrad, NVFP4, added", "portable", "sm_120a"),
    ("wgrad, at addresses", "sm90", "sm_90a"),
    ("wgrad, at addresses", "portable", "sm_100a"),
]


@needs_compiler
@pytest.mark.parametrize(("name", "backend", "arch"), CASES)
def test_compiles(name: str, backend: str, arch: str) -> None:
    op, call = PROBLEMS[name]
    (kernel,) = (kernel for kernel in op.kernels if kernel.backend == backend)
    assert kernel.refuse(call, CHIPS[arch]) is None
    assert compile_now(kernel.module, kernel.specialise(call, CHIPS[arch]), arch) is not None


def test_every_op_and_target_is_compiled() -> None:
    backward = {op.name for op in ops(public=False) if issubclass(op.problem, ScaledBackward)}
    assert {op.name for op, _ in PROBLEMS.values()} == {*backward, WGRAD.name}
    for op in (DSRELU, WGRAD):
        assert {target for kernel in op.kernels for target in kernel.targets} == {arch for *_, arch in CASES}


def test_scratch() -> None:
    for name, parts in (("dglu, with the bias's", (M // 32 + L, 2 * N)), ("discrete dswiglu", (0, 2 * N))):
        op, call = PROBLEMS[name]
        kernel = op.kernels[1]
        assert kernel.scratch is not None
        *_, of_rows, of_columns = kernel.scratch(call, kernel.specialise(call, CHIPS["sm_80"]))
        assert (of_rows.shape, of_columns.shape) == ((N // 64, M), parts)
    op, call = PROBLEMS["wgrad"]
    kernel = op.kernels[1]
    assert kernel.scratch is not None
    assert [spec.shape for spec in kernel.scratch(call, None)] == [(M, N), (M, 2 * N)]


def test_results_that_the_copy_engine_cannot_store() -> None:
    sm90, portable = WGRAD.kernels
    odd = weight_gradient("mxfp8_e4m3", "rows", width=257)
    assert sm90.refuse(odd, CHIPS["sm_90a"]) == "wgrad_tensor's rows of 257 elements are not multiples of 16 bytes"
    assert sm90.refuse(odd, CHIPS["sm_100a"]) == "it is written for compute capability 9.0, not 10.0"
    assert portable.refuse(odd, CHIPS["sm_90a"]) is None


@needs_compiler
def test_jax_lowers_a_derivative_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")  # read once: a test before this may have compiled for another

    def like(spec: TensorSpec | None) -> Any:
        assert spec is not None
        return jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype.name))

    def backward(*operands: Any) -> Any:
        return grouped_gemm_swiglu_jax_backward(*operands, backend="portable")

    a, c, b, sfa, sfb, *others = map(like, derivative(DSWIGLU, "swiglu", "bfloat16").inputs)
    lowered = jax.jit(backward).trace(a, b, c, sfa, sfb, *others).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("custom_call @CuteDSL") == 1
