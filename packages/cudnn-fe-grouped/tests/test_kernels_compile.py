"""Every kernel of the family compiles for its targets without a GPU, stays within its instruction set, and lowers into
JAX programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.op import Kernel, Op, Problem
from cudnn_fe.core.registry import ops
from cudnn_fe.grouped.dglu.op import BACKWARD
from cudnn_fe.grouped.glu.op import FORWARD as GLU
from cudnn_fe.grouped.glu_gradient.op import GLU_GRADIENT
from cudnn_fe.grouped.row_sums.op import ROW_SUMS
from cudnn_fe.grouped.scaled.problem import ScaledRows
from cudnn_fe.grouped.unfused.op import FORWARD as UNFUSED
from cudnn_fe.grouped.wgrad.op import WGRAD
from cudnn_fe.grouped.wgrad_scaled.op import ScaledWgrad
from cudnn_fe_testkit.chips import CHIPS, needs_compiler, tensor

pytestmark = needs_compiler
M, L, K = 512, 4, 128


def forward(op: Op, kind: str = "bfloat16", k: int = K, order: Any = None, **options: Any) -> Problem:
    bias = options.pop("bias", None)
    named = {"d_dtype": kind, "c_dtype": "float32", "generate_c": False, **options}
    shared = tensor((L,), "int32"), tensor((L,)), tensor((M,))
    extra = None if bias is None else tensor((128, L), bias)
    return op.bind(tensor((M, k), kind), tensor((L, 128, k), kind, order), *shared, extra, **named)


def backward(kind: str, **options: Any) -> Problem:
    wanted = {"generate_dbias": True, "generate_activation": False, "round_dgrad": False, **options}
    operands = tensor((M, K), kind), tensor((M, 256), kind), tensor((L, 128, K), kind), tensor((L,), "int32")
    return BACKWARD.bind(*operands, tensor((L,)), tensor((L,)), tensor((M,)), d_dtype=kind, **wanted)


def wgrad(kind: str, orders: tuple[Any, Any], *, adds: bool = False, ragged: bool = False) -> Problem:
    old = tensor((L, 128, K)) if adds else None
    operands = tensor((128, M), kind, orders[0]), tensor((M, K), kind, orders[1]), tensor((L,), "int32"), old
    return WGRAD.bind(*operands, None, wgrad_dtype="float32", ragged=ragged)


def gradient(kind: str, c: str, dc: str | None = None, *, alpha: bool = True) -> Problem:
    operands = tensor((M, 256), c), tensor((M, 128), kind), tensor((L,), "int32"), tensor((M,))
    extras = tensor((L,)) if alpha else None, None if dc is None else tensor((M, 256), dc)
    return GLU_GRADIENT.bind(*operands, *extras, act_func="geglu", dtype=kind)


def behind_addresses(op: Op) -> Problem:
    """A problem whose weights, or whose results, lie at addresses."""
    addresses, shared = tensor((L,), "int64"), (tensor((L,), "int32"), tensor((L,)), tensor((M,)))
    if op is WGRAD:
        operands = tensor((128, M), "bfloat16", (0, 1)), tensor((M, K), "bfloat16"), shared[0], None, addresses
        return op.bind(*operands, wgrad_dtype="float32", ragged=False, accumulate=True)
    options = {"d_dtype": "bfloat16", "c_dtype": "bfloat16", "generate_c": False, "n": 128, "n_major": True}
    return op.bind(tensor((M, K), "bfloat16"), addresses, *shared, None, **options)


PROBLEMS: dict[str, tuple[Op, Problem]] = {
    "unfused": (UNFUSED, forward(UNFUSED)),
    "glu": (GLU, forward(GLU, act_func="swiglu", generate_c=True)),
    "dglu": (BACKWARD, backward("bfloat16", act_func="dswiglu")),
    "glu gradient": (GLU_GRADIENT, gradient("bfloat16", "float32")),
    "row sums": (ROW_SUMS, ROW_SUMS.bind(tensor((M, 77)), tensor((L,), "int32"))),
    "wgrad": (WGRAD, wgrad("bfloat16", ((0, 1), (1, 0)))),
}
# What differs in code: types, layouts, odd extents (scalar loads), optional operands and results.
VARIANTS: dict[str, tuple[Op, Problem]] = {
    "unfused, float32, n-major weights": (UNFUSED, forward(UNFUSED, "float32", order=(1, 2, 0))),
    "unfused, odd K, bias": (UNFUSED, forward(UNFUSED, k=77, bias="bfloat16", generate_c=True)),
    "glu, geglu, float16, bias": (GLU, forward(GLU, "float16", act_func="geglu", bias="float16")),
    "dglu, dgeglu, activation": (
        BACKWARD,
        backward("bfloat16", act_func="dgeglu", generate_dbias=False, generate_activation=True, round_dgrad=True),
    ),
    "wgrad, k-major, ragged, added": (WGRAD, wgrad("float16", ((1, 0), (0, 1)), adds=True, ragged=True)),
    "unfused, addresses of n-major weights": (UNFUSED, behind_addresses(UNFUSED)),
    "wgrad, addresses of results to add to": (WGRAD, behind_addresses(WGRAD)),
    "glu gradient, dC, no alpha": (GLU_GRADIENT, gradient("float32", "float16", "bfloat16", alpha=False)),
}


def served(problems: dict[str, tuple[Op, Problem]], targets: set[str] | None = None) -> list[tuple[str, Kernel, str]]:
    """Each problem with each kernel and target that serves it."""
    return [
        (name, kernel, target)
        for name, (op, problem) in problems.items()
        for kernel in op.kernels
        for target in kernel.targets
        if (targets is None or target in targets) and kernel.refuse(problem, CHIPS[target]) is None
    ]


CASES = [*served(PROBLEMS), *served(VARIANTS, {"sm_80"})]


@pytest.mark.parametrize(("name", "kernel", "target"), CASES, ids=lambda x: getattr(x, "backend", str(x)))
def test_compiles(name: str, kernel: Kernel, target: str) -> None:
    problem = (PROBLEMS | VARIANTS)[name][1]
    compile_now(kernel.module, kernel.specialise(problem, CHIPS[target]), target)


def test_every_kernel_and_target_is_among_them() -> None:
    family = [
        op
        for op in ops(public=False)
        if op.package == "cudnn-fe-grouped"
        and not issubclass(op.problem, (ScaledRows, ScaledWgrad))  # test_scaled_kernels has those
    ]
    wanted = {(kernel.module, target) for op in family for kernel in op.kernels for target in kernel.targets}
    assert {(kernel.module, target) for _, kernel, target in CASES} == wanted


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_portable_stays_within_the_base_instruction_set(name: str, tmp_path: Path) -> None:
    op, problem = PROBLEMS[name]
    kernel = next(kernel for kernel in op.kernels if kernel.backend == "portable")
    compile_now(kernel.module, kernel.specialise(problem, CHIPS["sm_80"]), "sm_80", f"--keep-ptx --dump-dir={tmp_path}")
    (path,) = tmp_path.glob("*.ptx")
    ptx = path.read_text()
    assert ".target sm_80" in ptx
    assert name in ("glu gradient", "row sums") or ("mma.sync" in ptx and "ldmatrix" in ptx)
    for instruction in ("wgmma", "cp.async.bulk", "mbarrier", "tcgen05", "\tatom.", "\tred."):
        assert instruction not in ptx, instruction


def test_extents_and_offsets_compile_nothing_new() -> None:
    """M, N, L and the strides that follow from them enter no specialisation."""
    (kernel,) = (kernel for kernel in UNFUSED.kernels if kernel.backend == "portable")
    found = set()
    for m, n, k, experts in ((1, 32, 64, 1), (300, 4096, 7168, 256), (65536, 64, 128, 1024)):
        operands = tensor((m, k), "bfloat16"), tensor((experts, n, k), "bfloat16"), tensor((experts,), "int32")
        options = {"d_dtype": "bfloat16", "c_dtype": "bfloat16", "generate_c": False}
        problem = UNFUSED.bind(*operands, tensor((experts,)), tensor((m,)), None, **options)
        found.add(kernel.specialise(problem, CHIPS["sm_90a"]))
    assert len(found) == 1


LOWER = """
import jax, jax.numpy as jnp
from cudnn_fe.grouped import grouped_gemm_glu_jax_backward as dglu, grouped_gemm_glu_jax_forward as glu
from cudnn_fe.grouped import grouped_gemm_jax_forward as unfused, grouped_gemm_wgrad_jax_forward as wgrad

def step(x, w1, w2, ends, prob, dy):
    one, ones = jnp.ones(4, jnp.float32), jnp.ones_like(prob)
    h = glu(x, ends, one, prob_tensor=ones, b_tensor=w1, generate_c=True)
    y, _ = unfused(h["d_tensor"], ends, one, prob_tensor=prob, b_tensor=w2)
    d = dglu(dy, h["c_tensor"], ends, one, one, prob_tensor=ones, b_tensor=w2, b_major="n")
    return y, d["d_row_tensor"], d["dprob_tensor"], wgrad(dy.T, h["d_tensor"], ends)["wgrad_tensor"]

def loss(x, w1, w2, ends, prob, dy):
    one = jnp.ones(4, jnp.float32)
    h = glu(x, ends, one, prob_tensor=jnp.ones_like(prob), b_tensor=w1)["d_tensor"]
    return (unfused(h, ends, one, prob_tensor=prob, b_tensor=w2)[0] * dy).astype(jnp.float32).sum()

of, bf16 = jax.ShapeDtypeStruct, jnp.bfloat16
shapes = [of((300, 64), bf16), of((4, 128, 64), bf16), of((4, 64, 64), bf16), of((4,), jnp.int32)]
shapes += [of((300,), jnp.float32), of((300, 64), bf16)]
for function in (step, jax.grad(loss, (0, 1, 2, 4))):
    text = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    print(text.count("stablehlo.custom_call @CuteDSL"), text.count("host_callback"))
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_jax_lowers_every_op_and_the_gradients_for_cuda(arch: str) -> None:
    """In a process of its own, which names a GPU target without having one."""
    pytest.importorskip("jax")
    environment = {**os.environ, "CUTE_DSL_ARCH": arch, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", LOWER], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    forward, gradient = done.stdout.split("\n")[:2]
    assert forward == "4 0"
    # The first layer, its pre-activations again, the activation's gradient, the second layer again for dprob; for each
    # layer a product and a weight gradient. The second layer's own result is not needed.
    assert gradient == "8 0"
