"""Hyper-connections' projection gradients against float64, in every framework, with padding, classes and refusals."""

# mypy: disable-error-code="arg-type, misc, call-arg"

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn
from cudnn_fe.core.errors import (
    AliasError,
    AlignmentError,
    DeviceError,
    DTypeError,
    NotCompiledError,
    NotYetSupportedError,
    OptionError,
    ShapeError,
    StrideError,
)
from cudnn_fe.gemm import mhc_projection_backward, mhc_projection_jax_backward
from cudnn_fe_testkit.hyper_connections import NAMES, case, exact, tensor

M, K, N = 130, 96, 24


@pytest.mark.parametrize("wrap", [np.asarray, tensor, jnp.asarray], ids=["numpy", "torch", "jax"])
def test_against_float64(wrap: Any) -> None:
    given = case(M, K, N)
    out = mhc_projection_backward(**{name: wrap(x) for name, x in given.items()}, allow_tf32=True)
    assert list(out.keys()) == ["dx", "dweight"]
    dx, dweight = (np.asarray(x.float() if hasattr(x, "float") else x, np.float64) for x in out)
    wanted_dx, wanted_dw, dx_size, dw_size = exact(given)
    # TF32 rounds each factor by 2**-11 of it; float32 sums of n or M terms; dx is rounded once to bfloat16.
    dx_bound = (2 * 2.0**-11 + (N + 4) * 2.0**-24) * dx_size
    assert (np.abs(dx - wanted_dx) <= dx_bound + 2.0**-8 * np.abs(wanted_dx)).all()
    assert (np.abs(dweight - wanted_dw) <= (2.0**-11 + M * 2.0**-24) * dw_size).all()
    assert np.abs(dx - wanted_dx).max() > 0


def test_exact_where_the_factors_are() -> None:
    rng = np.random.default_rng(1)
    given = case(6, 8, 3)
    for name in ("weight", "grad_proj"):
        given[name][:, :8] = rng.integers(-4, 5, given[name][:, :8].shape)
    given["x"], given["grad_r"], given["r"] = np.ones((6, 8), ml_dtypes.bfloat16), np.full((6, 1), 16.0, np.float32), \
        np.full((6, 1), 0.5, np.float32)  # fmt: skip
    dx, dweight = mhc_projection_backward(**given, allow_tf32=True)
    p = given["grad_proj"][:, :3].astype(np.float64)
    assert np.array_equal(dx.astype(np.float64), 4 + p @ given["weight"])
    assert np.array_equal(dweight, np.repeat(p.sum(0)[:, None], 8, 1))


def test_factors_are_rounded_to_tf32() -> None:
    given = case(1, 1, 1)
    given["x"][:], given["grad_r"][:] = 1, 0
    given["grad_proj"][0, 0] = 1 + 2.0**-11  # halfway: away from zero
    dweight = mhc_projection_backward(**given, allow_tf32=True)["dweight"]
    assert dweight.item() == 1 + 2.0**-10


def test_under_jit_and_compile() -> None:
    given = case(M, K, N)
    arrays, tensors = ([f(given[name]) for name in NAMES] for f in (jnp.asarray, tensor))
    wanted = mhc_projection_backward(*tensors, allow_tf32=True)

    def run(*xs: Any) -> Any:
        return mhc_projection_backward(*xs, allow_tf32=True)

    compiled = torch.compile(run, backend="eager", fullgraph=True)(*tensors)
    assert all(torch.equal(a, b) for a, b in zip(compiled, wanted, strict=True))
    jitted = jax.jit(lambda *xs: mhc_projection_jax_backward(*xs, allow_tf32=True))(*arrays)
    assert [x.shape for x in jitted] == [(M, K), (N, K)]
    _, _, _, dw_size = exact(given)
    assert (np.abs(np.asarray(jitted[1]) - wanted[1].numpy()) <= 2 * M * 2.0**-24 * dw_size).all()


@pytest.mark.parametrize("shape", [(0, 8, 3), (4, 0, 3), (4, 8, 0)])
def test_empty(shape: tuple[int, int, int]) -> None:
    given = case(*shape)
    given["r"] = np.ones_like(given["r"])
    dx, dweight = mhc_projection_backward(**given, allow_tf32=True)
    m, k, n = shape
    assert (dx.shape, dweight.shape) == ((m, k), (n, k))
    assert not dweight.any()
    if n == 0 and dx.size:
        wanted = given["x"].astype(np.float32) * given["grad_r"] * np.float32(1 / 8)
        assert np.array_equal(dx, wanted.astype(ml_dtypes.bfloat16))


def test_class() -> None:
    tensors = [tensor(x) for x in case(M, K, N).values()]
    outs = [torch.empty(M, K, dtype=torch.bfloat16), torch.empty(N, K)]
    op: Any = cudnn.MhcProjectionBackward(*tensors, *outs, allow_tf32=True)
    workspace = torch.empty(8 * N * K * 4, dtype=torch.uint8)
    with pytest.raises(NotCompiledError):
        op.execute(*tensors, *outs, workspace)
    assert op.compile() is op
    assert op.scratch_workspace_bytes() == workspace.numel()
    op.execute(*tensors, *outs, workspace)
    wanted = cudnn.gemm.mhc_projection_backward(*tensors, allow_tf32=True)
    assert all(torch.equal(a, b) for a, b in zip(outs, wanted, strict=True))
    with pytest.raises(ShapeError, match="workspace"):
        op.execute(*tensors, *outs, workspace[:-1])
    for wrong, error, message in (
        (None, OptionError, "workspace: got None"),
        (workspace.view(torch.float32), DTypeError, "workspace: got float32, wanted 73728 contiguous uint8"),
        (torch.empty(2 * len(workspace), dtype=torch.uint8)[::2], ShapeError, "workspace: got"),
        (torch.empty(len(workspace) + 1, dtype=torch.uint8)[1:], AlignmentError, "workspace: got"),
        (workspace.to("meta"), DeviceError, "workspace: got meta"),
        (tensors[0].view(-1).view(torch.uint8).new_empty(0), ShapeError, "workspace: got"),
    ):
        with pytest.raises(error, match=message):
            op.execute(*tensors, *outs, wrong)
    shared = torch.empty(len(workspace) + 4 * N * K, dtype=torch.uint8)
    inside = shared[-4 * N * K :].view(torch.float32).view(N, K)
    with pytest.raises(AliasError, match="workspace: got bytes that overlap those of dweight"):
        op.execute(*tensors, outs[0], inside, shared)
    with pytest.raises(AliasError, match="dx: got bytes that overlap those of x"):
        op.execute(*tensors, tensors[0], outs[1], workspace)
    with pytest.raises(ShapeError, match="dweight"):
        cudnn.MhcProjectionBackward(*tensors, outs[0], outs[0], allow_tf32=True).check_support()


def test_documented_workspace() -> None:
    shapes = {"x": (4096, 20480), "weight": (24, 20480), "grad_proj": (4096, 32), "grad_r": (4096, 1), "r": (4096, 1)}
    kinds = {"x": torch.bfloat16}
    samples = [torch.empty(s, dtype=kinds.get(name, torch.float32), device="meta") for name, s in shapes.items()]
    outs = [torch.empty_like(samples[0]), torch.empty_like(samples[1])]
    assert cudnn.MhcProjectionBackward(*samples, *outs, allow_tf32=True).scratch_workspace_bytes() == 15728640


def test_refusals() -> None:
    given = case(M, K, N)
    backward: Any = mhc_projection_backward
    with pytest.raises(NotYetSupportedError, match="allow_tf32: got False"):
        backward(**given)
    given["allow_tf32"] = True
    with pytest.raises(ShapeError, match="at least 24 columns"):
        backward(**{**given, "grad_proj": given["grad_proj"][:, :23]})
    with pytest.raises(ShapeError, match=r"\(n, K\)"):
        backward(**{**given, "weight": given["weight"][:, :5]})
    with pytest.raises(ShapeError, match=r"\(M, 1\)"):
        backward(**{**given, "r": given["r"][:5]})
    with pytest.raises(DTypeError, match="x: got float32, wanted bfloat16"):
        backward(**{**given, "x": given["x"].astype(np.float32)})
    with pytest.raises(OptionError, match="x: got None"):
        backward(**{**given, "x": None})
    with pytest.raises(OptionError, match="backend: got 'other'"):
        backward(**given, backend="other")
    with pytest.raises(DTypeError, match="r: got float64"):
        backward(**{**given, "r": given["r"].astype(np.float64)})
    with pytest.raises(StrideError, match="x: got strides"):
        backward(**{**given, "x": np.asfortranarray(given["x"])})
    tensors = [tensor(given[name]) for name in NAMES]
    with pytest.raises(DeviceError, match="weight: got meta, wanted cpu"):
        backward(tensors[0], tensors[1].to("meta"), *tensors[2:], allow_tf32=True)
    with pytest.raises(OptionError, match="backend"):
        cudnn.MhcProjectionBackward(*tensors, tensors[0], tensors[1], allow_tf32=True, backend="x").check_support()
