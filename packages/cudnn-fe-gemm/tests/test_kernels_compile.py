"""Every kernel of the family compiles for its targets without a GPU, holds the instructions it is written for, and
lowers into JAX programs."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cudnn_fe.core.choose import choose
from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.op import Kernel, Op, Problem
from cudnn_fe.core.registry import ops
from cudnn_fe.core.settings import override
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.core.tuning import forget_choices, tune
from cudnn_fe.gemm.dswiglu.op import DSWIGLU
from cudnn_fe.gemm.kernels import sm90_candidates, tuning_key
from cudnn_fe.gemm.matmul.op import MATMUL
from cudnn_fe.gemm.mhc_projection.kernels import row_parts
from cudnn_fe.gemm.mhc_projection.op import BACKWARD
from cudnn_fe.gemm.swiglu.op import FORWARD
from cudnn_fe_testkit.chips import CHIPS, needs_compiler
from cudnn_fe_testkit.machine_code import stack_bytes

pytestmark = needs_compiler
DEFAULTS = {
    "acc_dtype": "float32",
    "mma_tiler_mn": (128, 128),
    "cluster_shape_mn": None,
    "sf_vec_size": 16,
    "ab12_stages": 4,
}


def spec(shape: tuple[int, int, int], kind: str, major: str = "k", name: str = "tensor") -> TensorSpec:
    order = (1, 0, 2) if major in "kn" else (0, 1, 2)
    return TensorSpec(shape, contiguous_strides(shape, order), dtype(kind), "cuda:0", 16, name)


def swiglu(
    m: int, k: int, kind: str, a_major: str = "k", b_major: str = "k", c_major: str = "n", ab12: str = "bfloat16"
) -> Problem:
    a, b = spec((m, k, 1), kind, a_major, "a"), spec((512, k, 1), kind, b_major, "b")
    return FORWARD.bind(a, b, c_major=c_major, ab12_dtype=ab12, c_dtype="bfloat16", **DEFAULTS)


def hyper_connections(k: int, n: int) -> Problem:
    shapes = {"x": (512, k), "weight": (n, k), "grad_proj": (512, n + 8), "grad_r": (512, 1), "r": (512, 1)}
    specs = [
        TensorSpec(s, contiguous_strides(s), dtype("bfloat16" if name == "x" else "float32"), "cuda:0", 16, name)
        for name, s in shapes.items()
    ]
    return BACKWARD.bind(*specs, allow_tf32=True)


# What differs in code: types, majors, odd extents (scalar loads), a small M (another tile), the derivative's operands.
PROBLEMS: dict[str, tuple[Op, Problem]] = {
    "swiglu bf16": (FORWARD, swiglu(4096, 512, "bfloat16")),
    "swiglu bf16, M of 16": (FORWARD, swiglu(16, 512, "bfloat16")),
    "swiglu fp16, mn-major, m-major results": (FORWARD, swiglu(4096, 512, "float16", "m", "m", "m", "float32")),
    "swiglu tf32": (FORWARD, swiglu(4096, 512, "float32")),
    "swiglu e4m3": (FORWARD, swiglu(4096, 512, "float8_e4m3fn")),
    "swiglu e5m2, mn-major": (FORWARD, swiglu(4096, 512, "float8_e5m2", "m", "m")),
    "swiglu bf16, odd K": (FORWARD, swiglu(4096, 333, "bfloat16")),
    "matmul bf16": (
        MATMUL,
        MATMUL.bind(spec((4096, 512, 1), "bfloat16"), spec((512, 512, 1), "bfloat16"), d_dtype="bfloat16", d_major="n"),
    ),
    "matmul bf16, mn-major": (
        MATMUL,
        MATMUL.bind(
            spec((4096, 512, 1), "bfloat16", "m"), spec((512, 512, 1), "bfloat16", "m"), d_dtype="float32", d_major="n"
        ),
    ),
    "dswiglu": (
        DSWIGLU,
        DSWIGLU.bind(spec((512, 128, 1), "float32"), spec((512, 64, 1), "bfloat16"), None, dtype="bfloat16"),
    ),
    "dswiglu, m-major, upstream": (
        DSWIGLU,
        DSWIGLU.bind(*(spec((512, n, 1), "bfloat16", "m") for n in (128, 64, 128)), dtype="bfloat16"),
    ),
    "hyper-connections": (BACKWARD, hyper_connections(512, 24)),
}


def served() -> list[tuple[str, Kernel, str]]:
    """Each problem with each kernel and target that serves it."""
    return [
        (name, kernel, target)
        for (name, (op, problem)) in PROBLEMS.items()
        for kernel in op.kernels
        for target in kernel.targets
        if kernel.refuse(problem, CHIPS[target]) is None
    ]


@pytest.mark.parametrize(("name", "kernel", "target"), served(), ids=lambda x: getattr(x, "backend", str(x)))
def test_compiles(name: str, kernel: Kernel, target: str) -> None:
    problem = PROBLEMS[name][1]
    compile_now(kernel.module, kernel.specialise(problem, CHIPS[target]), target)


def test_every_kernel_and_target_is_among_them() -> None:
    covered = {(kernel.module, target) for _, kernel, target in served()}
    covered |= {("cudnn_fe.gemm.portable_scaled", target) for target in CHIPS}  # by test_scaled_kernels.py
    wanted = {
        (k.module, t)
        for op in ops(public=False)
        if op.package == "cudnn-fe-gemm"
        for k in op.kernels
        for t in k.targets
    }
    assert covered == wanted


def test_a_tuned_tile_goes_before_the_estimated_one(tmp_path: Path) -> None:
    problem, where = PROBLEMS["matmul bf16"][1], CHIPS["sm_90a"]
    kernel = MATMUL.kernels[0]
    specs = sm90_candidates(problem, where, "identity")
    estimated = kernel.specialise(problem, where)
    assert estimated in specs
    other = next(spec for spec in specs if spec != estimated)
    with override(cache_dir=str(tmp_path)):
        forget_choices()
        tune(tuning_key(problem, where, "identity"), [spec.tile for spec in specs], lambda tile: tile != other.tile)
        assert kernel.specialise(problem, where) == other
    forget_choices()
    assert kernel.specialise(problem, where) == estimated


def test_a_backward_serves_a_named_backend_throughout() -> None:
    """The derivative of the activation has one kernel for all GPUs, also where the caller names another."""
    problem = PROBLEMS["dswiglu"][1]
    assert choose(DSWIGLU, problem, "sm90", on=CHIPS["sm_90a"]).backend == "portable"
    assert choose(MATMUL, PROBLEMS["matmul bf16"][1], "sm90", on=CHIPS["sm_90a"]).backend == "sm90"


def ptx_of(name: str, backend: str, target: str, folder: Path) -> str:
    op, problem = PROBLEMS[name]
    kernel = next(kernel for kernel in op.kernels if kernel.backend == backend)
    compile_now(kernel.module, kernel.specialise(problem, CHIPS[target]), target, f"--keep-ptx --dump-dir={folder}")
    files = list(folder.glob("*.ptx"))
    assert len(files) == 1
    return files[0].read_text()


@pytest.mark.parametrize("name", ["swiglu bf16", "swiglu e4m3", "swiglu tf32", "matmul bf16"])
def test_sm90_uses_tensor_cores_and_the_copy_engine(name: str, tmp_path: Path) -> None:
    ptx = ptx_of(name, "sm90", "sm_90a", tmp_path)
    for instruction in ("wgmma.mma_async", "cp.async.bulk.tensor", "mbarrier.try_wait", "setmaxnreg"):
        assert instruction in ptx, instruction


def test_portable_stays_within_the_base_instruction_set(tmp_path: Path) -> None:
    ptx = ptx_of("swiglu bf16", "portable", "sm_80", tmp_path)
    assert ".target sm_80" in ptx
    for instruction in ("mma.sync", "ldmatrix"):
        assert instruction in ptx, instruction
    for instruction in ("wgmma", "cp.async.bulk", "mbarrier", "tcgen05"):
        assert instruction not in ptx, instruction


def test_hyper_connections_in_registers(tmp_path: Path) -> None:
    """More projections than one CTA takes, and rows of any length."""
    (kernel,) = BACKWARD.kernels
    spec: Any = kernel.specialise(hyper_connections(97, 70), CHIPS["sm_80"])
    assert (spec.blocks, spec.chunked, spec.access, spec.projection_access) == (4, True, 1, 1)
    compile_now(kernel.module, spec, "sm_80", f"--keep-cubin --dump-dir={tmp_path}")
    (cubin,) = tmp_path.glob("*.cubin")
    assert stack_bytes(cubin.read_bytes()) == 0
    assert kernel.scratch is not None
    wide = BACKWARD.kernels[0].specialise(hyper_connections(512, 24), CHIPS["sm_80"])
    assert [s.shape for s in kernel.scratch(hyper_connections(512, 24), wide)] == [(1, 24, 512)]


def test_hyper_connections_share_out_their_rows() -> None:
    assert row_parts(4096, 20480, 132) == 3  # 240 CTAs of the 264 that an H200 runs at once
    assert row_parts(4096, 256, 132) == 8
    assert row_parts(100, 20480, 132) == 1


@pytest.mark.parametrize(("m", "n", "k"), list(product((1, 16, 100, 1000, 16384), (64, 4096, 57344), (64, 16384))))
def test_few_specialisations_cover_all_shapes(m: int, n: int, k: int) -> None:
    """M, N and K enter the compiled code only through one of a few tiles, or of two pairs of them."""
    kernel = FORWARD.kernels[0]

    def tile(m: int) -> Any:
        a, b = spec((m, k, 1), "bfloat16"), spec((n, k, 1), "bfloat16")
        problem = FORWARD.bind(a, b, c_major="n", ab12_dtype="bfloat16", c_dtype="bfloat16", **DEFAULTS)
        return kernel.specialise(problem, CHIPS["sm_90a"])

    assert len({tile(size) for size in range(1, 16384, 97)}) <= 7 + 2
    assert tile(m) == tile(m)


LOWER = """
import jax, jax.numpy as jnp
from cudnn_fe.gemm import gemm_swiglu_jax_forward

def loss(a, b):
    ab12, c = gemm_swiglu_jax_forward(a, b, c_dtype="bfloat16")
    return c.astype(jnp.float32).sum() + ab12.sum()

shapes = [jax.ShapeDtypeStruct((m, 512, 1), jnp.bfloat16) for m in (256, 128)]
text = jax.jit(jax.grad(loss, (0, 1))).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
print(text.count("stablehlo.custom_call @CuteDSL"))
"""


def test_jax_lowers_forward_and_backward_for_cuda() -> None:
    """In a process of its own, which names a GPU target without having one."""
    pytest.importorskip("jax")
    environment = {**os.environ, "CUTE_DSL_ARCH": "sm_90a", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", LOWER], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == 4  # the product, the activation's derivative, and two products
