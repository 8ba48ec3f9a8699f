"""The block-scaled GEMMs' kernels compile without a GPU, refuse what they must, and know the memory that they need."""

# mypy: disable-error-code="arg-type, misc"

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.gemm import gemm_srelu_jax_forward
from cudnn_fe.gemm.amax.op import AMAX
from cudnn_fe.gemm.dsrelu.op import DSRELU
from cudnn_fe.gemm.proj_rope.op import FORWARD
from cudnn_fe.gemm.srelu.op import SRELU
from cudnn_fe.gemm.swiglu_scaled.op import SCALED
from cudnn_fe_testkit.chips import CHIPS, needs_compiler
from cudnn_fe_testkit.scaled_gemm import Case, M

N = 128
TILES: dict[str, Any] = {"acc_dtype": "float32", "mma_tiler_mn": (128, 128), "cluster_shape_mn": (1, 1)}


def bound(op: Op, tensors: list[Any], **options: Any) -> Problem:
    names = op.problem.operands
    return op.bind(*(None if t is None else spec_of(t, n) for n, t in zip(names, tensors, strict=True)), **options)


def problem(op: Op, kind: str = "mxfp8_e4m3") -> Problem:
    """A call of each op; FP8 operands with a quantised result."""
    if op is FORWARD:
        x, w, table = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((70, 96), (384, 96), (70, 64)))
        if kind == "bfloat16":
            return bound(op, [x, w, table, table, None, None], w_out_in=True)
        scales = [torch.zeros(shape, dtype=torch.uint8) for shape in ((70, 3), (3, 384))]
        codes = [t.to(torch.float8_e4m3fn) for t in (x, w.T.contiguous())]
        return bound(op, [*codes, table, table, *scales], w_out_in=False)
    case = Case(kind, batch=2, n=N)
    operands, prob, upstream = case.operands("torch"), torch.from_numpy(case.prob), torch.from_numpy(case.upstream)
    norm = None if case.fp4 else torch.ones(1)
    shared = {**TILES, "sf_vec_size": case.format.block}
    if op is AMAX:
        return bound(op, operands, **shared, c_major="n", c_dtype="uint8" if case.fp4 else "bfloat16")
    shared |= {"scales_atom": True, "amax_shape": (1,), "major": "n"}
    shared["result_dtype"] = "bfloat16" if case.fp4 else "float8_e4m3fn"
    more: dict[str, Any] = {
        SRELU.name: ([prob, norm], {"c_dtype": "float16"}),
        DSRELU.name: ([upstream, prob, norm], {}),
        SCALED.name: ([norm], {"ab12_dtype": "bfloat16", "ab12_stages": 4}),
    }
    tensors, options = more[op.name]
    return bound(op, [*operands, *tensors], **shared, **options)


@needs_compiler
@pytest.mark.parametrize(
    ("op", "kind", "backend", "arch"),
    [
        *[(AMAX, "nvfp4", "portable", arch) for arch in CHIPS],
        (AMAX, "nvfp4", "sm90", "sm_90a"),
        (SRELU, "mxfp8_e4m3", "sm90", "sm_90a"),
        (DSRELU, "mxfp4", "portable", "sm_80"),
        (SCALED, "mxfp8_e4m3", "portable", "sm_90a"),
        (FORWARD, "bfloat16", "sm90", "sm_90a"),
        (FORWARD, "mxfp8_e4m3", "portable", "sm_100a"),
    ],
)
def test_compiles(op: Op, kind: str, backend: str, arch: str) -> None:
    (kernel,) = (kernel for kernel in op.kernels if kernel.backend == backend)
    call, chip = problem(op, kind), CHIPS[arch]
    assert kernel.refuse(call, chip) is None
    assert compile_now(kernel.module, kernel.specialise(call, chip), arch) is not None


def test_every_target_is_compiled_for() -> None:
    assert {kernel.module for kernel in AMAX.kernels} == {
        kernel.module for op in (DSRELU, FORWARD, SCALED, SRELU) for kernel in op.kernels
    }
    assert {target for kernel in AMAX.kernels for target in kernel.targets} == set(CHIPS)


def test_hopper_alone_runs_the_hopper_main_loop() -> None:
    sm90, portable = AMAX.kernels
    call = problem(AMAX)
    assert sm90.refuse(call, CHIPS["sm_100a"]) == "it is written for compute capability 9.0, not 10.0"
    assert portable.refuse(call, Device("cuda:0", (7, 5), 40, "T4")) == "it needs compute capability 8.0 or newer"
    x, table = torch.zeros(71, 97, dtype=torch.bfloat16), torch.zeros(71, 64, dtype=torch.bfloat16)
    odd = bound(FORWARD, [x, torch.zeros(192, 97, dtype=torch.bfloat16), table, table, None, None], w_out_in=True)
    assert FORWARD.kernels[0].refuse(odd, CHIPS["sm_90a"]) == "x's address or rows are not multiples of 16 bytes"
    spec: Any = FORWARD.kernels[1].specialise(odd, CHIPS["sm_90a"])
    assert spec.gemm.alignment == 2


def test_scratch() -> None:
    (kernel,) = (kernel for kernel in DSRELU.kernels if kernel.backend == "portable")
    call = problem(DSRELU)
    assert kernel.scratch is not None
    a, b, product, partials = kernel.scratch(call, kernel.specialise(call, CHIPS["sm_80"]))
    assert [spec.dtype.name for spec in (a, b, product, partials)] == ["bfloat16", "bfloat16", "float32", "float32"]
    assert (a.shape, b.shape, product.shape) == ((M, 176, 2), (N, 176, 2), (M, N, 2))
    assert partials.shape == (M, 8, 2)  # two tiles of 64 columns, and padding to 8


@needs_compiler
def test_jax_lowers_the_kernels_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")  # read once: a test before this may have compiled for another
    a, scales = jnp.ones((128, 64, 1), jnp.float8_e4m3fn), jnp.ones((1, 1, 1, 32, 4, 4), jnp.float8_e8m0fnu)

    def forward(a: Any, scales: Any, prob: Any) -> Any:
        return gemm_srelu_jax_forward(a, a, scales, scales, prob, alpha=0.5, sf_vec_size=32, backend="portable")

    traced = jax.jit(forward).trace(a, scales, jnp.ones((128, 1, 1)))
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("custom_call @CuteDSL") == 1
