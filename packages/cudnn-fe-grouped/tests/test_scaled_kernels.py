"""The block-scaled grouped GEMMs' kernels compile without a GPU, refuse what they must, and know their memory."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import math
from typing import Any

import pytest

from cudnn_fe.core.block_scale import scale_shape
from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.registry import ops
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped import grouped_gemm_swiglu_jax_forward
from cudnn_fe.grouped.discrete_swiglu.op import FORWARD as DISCRETE
from cudnn_fe.grouped.glu_hadamard.op import FORWARD as HADAMARD
from cudnn_fe.grouped.glu_hadamard_quant.op import FORWARD as HADAMARD_QUANT
from cudnn_fe.grouped.glu_scaled.op import SCALED as GLU
from cudnn_fe.grouped.quant.op import FORWARD as QUANT
from cudnn_fe.grouped.scaled.forward import ScaledForward
from cudnn_fe.grouped.scaled.forward_spec import ForwardSpec
from cudnn_fe.grouped.srelu.op import FORWARD as SRELU
from cudnn_fe.grouped.swiglu.op import FORWARD as SWIGLU
from cudnn_fe_testkit.chips import CHIPS, needs_compiler, tensor
from cudnn_fe_testkit.scaled_gemm import KINDS

M, N, K, L = 512, 128, 160, 4


def scales(format: Any, rows: int, count: int = 1) -> TensorSpec:
    return tensor((count * math.prod(scale_shape(rows, -(-K // format.block))),), format.scale.name)


def problem(
    op: Op, epilogue: str, kind: str = "mxfp8_e4m3", *, n: int = N, discrete: bool = False, **options: Any
) -> Problem:
    format = KINDS[kind]
    fp4 = format.element.bits == 4
    k, element = K // 2 if fp4 else K, "float4_e2m1fn" if fp4 else format.element.name
    named = {
        "epilogue": epilogue,
        "c_dtype": None if epilogue == "none" else "bfloat16",
        "d_dtype": "bfloat16" if fp4 else "float8_e4m3fn",
        "sf_vec_size": format.block,
        "quantised": not fp4,
        "expert_columns": False,
        "keep_amax": True,
        "single_group": False,
        "tanh_clamp_scale": None,
    }
    bias, row_scale = options.pop("bias", None), options.pop("row_scale", False)
    b, sfb = tensor((L, n, k), element, options.pop("order", None)), scales(format, n, L)
    if discrete:
        b = sfb = tensor((L,), "int64")
        named |= {"n": n, "n_major": False}
    named |= options
    return op.bind(
        tensor((M, k), element),
        b,
        scales(format, M),
        sfb,
        tensor((1 if named["single_group"] else L,), "int32"),
        tensor((L,)),
        tensor((M,), "bfloat16") if epilogue == "srelu" else tensor((M,)),
        None if fp4 else tensor((1,)),
        None if bias is None else tensor((n, L), bias, (0, 1)),
        tensor((M,)) if row_scale else None,
        *([tensor((16, 16), "bfloat16")] if op is HADAMARD else []),
        **named,
    )


def hadamard_quant(**options: Any) -> Problem:
    """All results in FP4, along rows and along columns."""
    fp4 = "float4_e2m1fn"
    named = {"d_dtype": fp4, "rht_rowwise_dtype": fp4, "rht_colwise_dtype": fp4, "glu_alpha": 2.0, "glu_limit": 3.0}
    return problem(HADAMARD_QUANT, "geglu", "nvfp4", n=256, **named, **options)


PROBLEMS: dict[str, tuple[Op, Problem]] = {
    "quant": (QUANT, problem(QUANT, "none", row_scale=True, bias="bfloat16")),
    "quant, NVFP4": (QUANT, problem(QUANT, "none", "nvfp4")),
    "glu, situglu, 16-bit results with scales": (GLU, problem(GLU, "situglu", d_dtype="float16", bias="float32")),
    "swiglu, columns by expert, n-major": (SWIGLU, problem(SWIGLU, "swiglu", expert_columns=True, order=(1, 2, 0))),
    "discrete, geglu, MXFP4": (DISCRETE, problem(DISCRETE, "geglu", "mxfp4", discrete=True)),
    "discrete, n-major": (DISCRETE, problem(DISCRETE, "swiglu", discrete=True, n_major=True)),
    "srelu, bounded": (SRELU, problem(SRELU, "srelu", "mxfp8_e5m2", tanh_clamp_scale=16.0, zero_tail=False)),
    "hadamard, a matrix": (HADAMARD, problem(HADAMARD, "swiglu", "nvfp4")),
    "hadamard, quantised": (HADAMARD_QUANT, hadamard_quant()),
}
CASES = [
    *[("quant", "portable", arch) for arch in CHIPS],
    ("quant, NVFP4", "sm90", "sm_90a"),
    ("glu, situglu, 16-bit results with scales", "portable", "sm_80"),
    ("swiglu, columns by expert, n-major", "sm90", "sm_90a"),
    ("discrete, geglu, MXFP4", "portable", "sm_80"),
    ("discrete, n-major", "portable", "sm_90a"),
    ("srelu, bounded", "portable", "sm_100a"),
    ("hadamard, a matrix", "portable", "sm_120a"),
    ("hadamard, quantised", "portable", "sm_80"),
]


@needs_compiler
@pytest.mark.parametrize(("name", "backend", "arch"), CASES)
def test_compiles(name: str, backend: str, arch: str) -> None:
    op, call = PROBLEMS[name]
    (kernel,) = (kernel for kernel in op.kernels if kernel.backend == backend)
    assert kernel.refuse(call, CHIPS[arch]) is None
    assert compile_now(kernel.module, kernel.specialise(call, CHIPS[arch]), arch) is not None


def test_every_op_and_target_is_compiled() -> None:
    assert {op.name for op, _ in PROBLEMS.values()} == {
        op.name for op in ops(public=False) if issubclass(op.problem, ScaledForward)
    }
    assert {name for name, *_ in CASES} == set(PROBLEMS)
    assert {target for kernel in QUANT.kernels for target in kernel.targets} == {arch for *_, arch in CASES}


def test_hopper_alone_runs_the_hopper_main_loop() -> None:
    sm90, portable = QUANT.kernels
    call = PROBLEMS["quant"][1]
    assert sm90.refuse(call, CHIPS["sm_100a"]) == "it is written for compute capability 9.0, not 10.0"
    assert portable.refuse(call, Device("cuda:0", (7, 5), 40, "T4")) == "it needs compute capability 8.0 or newer"


def test_scratch() -> None:
    for name, weights in (("quant", (L, N, K)), ("discrete, n-major", (L, N, K))):
        op, call = PROBLEMS[name]
        kernel = op.kernels[1]
        assert kernel.scratch is not None
        a, b, product = kernel.scratch(call, kernel.specialise(call, CHIPS["sm_80"]))
        assert (a.shape, b.shape, product.shape) == ((M, K), weights, (M, N))
        assert [spec.dtype.name for spec in (a, b, product)] == ["bfloat16", "bfloat16", "float32"]
        assert b.dense_in(1 if name.endswith("n-major") else 2)


def test_no_extent_is_compiled_in() -> None:
    """Nor do strides that follow from extents."""
    kernel = QUANT.kernels[1]
    call = PROBLEMS["quant"][1]
    wider = QUANT.bind(*_longer(call), **dict(call.options))
    first, second = (kernel.specialise(x, CHIPS["sm_90a"]) for x in (call, wider))
    assert isinstance(first, ForwardSpec)
    assert first == second


def _longer(call: Any) -> list[TensorSpec | None]:
    format = KINDS["mxfp8_e4m3"]
    found = list(call.inputs)
    for place in (0, 6, 9):
        spec = found[place]
        found[place] = tensor((2 * M, *spec.shape[1:]), spec.dtype.name)
    found[2] = scales(format, 2 * M)
    return found


@needs_compiler
def test_jax_lowers_a_kernel_with_numbers_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")  # read once: a test before this may have compiled for another
    a, b = jnp.ones((128, 64), jnp.float8_e4m3fn), jnp.ones((2, 64, 64), jnp.float8_e4m3fn)
    sfa, sfb = (jnp.ones((count, 1, 1, 32, 4, 4), jnp.float8_e8m0fnu) for count in (1, 2))

    def forward(a: Any, ends: Any) -> Any:
        one = jnp.ones(2)
        return grouped_gemm_swiglu_jax_forward(
            a, b, sfa, sfb, ends, one, jnp.ones(128), one[:1], d_dtype="float8_e4m3fn", backend="portable"
        )

    traced = jax.jit(forward).trace(a, jnp.asarray([5, 128], jnp.int32))
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("custom_call @CuteDSL") == 1
