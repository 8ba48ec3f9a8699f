"""What holds for every op: the same results in every framework, traced or not; no rows; names; kernels that compile."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import cudnn
from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.op import Op
from cudnn_fe.core.settings import override
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides, spec_of
from cudnn_fe.norm_rope.exports import FAMILY
from cudnn_fe.norm_rope.rmsnorm_rht_amax.op import FORWARD as RHT_AMAX
from cudnn_fe.norm_rope.rmsnorm_silu.op import FORWARD as RMS_SILU

CHIPS = {"sm_80": (8, 0), "sm_90a": (9, 0), "sm_100a": (10, 0), "sm_120a": (12, 0)}


def as_torch(x: Any) -> torch.Tensor:
    if x.dtype.name in ("bfloat16", "float8_e4m3fn"):
        width = np.int16 if x.dtype.itemsize == 2 else np.uint8
        return torch.from_numpy(x.view(width).copy(order="K")).view(getattr(torch, x.dtype.name))
    return torch.from_numpy(x.copy(order="K"))


def values(result: Any) -> list[Any]:
    found = list(result) if isinstance(result, dict | tuple | list) else [result]
    return [_float64(x) for x in found if x is not None]


def _float64(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach().to(torch.float64).numpy()
    return np.asarray(x).astype(np.float64)


def distance(got: Any, wanted: Any) -> float:
    """Relative RMS of the difference."""
    size = float(np.sqrt(np.mean(wanted**2))) or 1.0
    return float(np.sqrt(np.mean((got - wanted) ** 2))) / size


def agree(got: Any, wanted: Any, unit: float) -> None:
    got, wanted = values(got), values(wanted)
    assert [x.shape for x in got] == [x.shape for x in wanted]
    assert all(distance(a, b) <= unit for a, b in zip(got, wanted, strict=True))


def run(case: Any, wrap: Any, function: Any = None) -> Any:
    function = function or getattr(cudnn, case.function)
    return function(**{name: wrap(x) for name, x in case.make().items()}, **case.options)


def _call_by_position(entry: Any, options: Any, arrays: Any) -> Any:
    return entry(*arrays, **options)


def test_frameworks_agree(case: Any) -> None:
    agree(run(case, as_torch), run(case, np.array), case.unit)
    if case.jax is None:
        return
    entry = getattr(cudnn, case.jax)
    jitted = jax.jit(partial(_call_by_position, entry, case.options))
    agree(jitted([jnp.asarray(x) for x in case.for_jax()]), run(case, np.array), case.unit)


def test_torch_compile_traces_in_one_graph(case: Any) -> None:
    torch.compiler.reset()  # every case traces the same lambda anew
    function = getattr(cudnn, case.function)
    given = {name: as_torch(x) for name, x in case.make().items()}
    traced = torch.compile(lambda **arrays: list(function(**arrays, **case.options)), fullgraph=True, backend="eager")
    agree(traced(**given), run(case, as_torch), 0.0)


def test_no_rows_give_no_rows_and_no_gradients(case: Any) -> None:
    function = getattr(cudnn, case.function)
    found = [function(**{name: wrap(x) for name, x in case.make(0).items()}, **case.options)
             for wrap in (as_torch, np.array)]  # fmt: skip
    found.append(getattr(cudnn, case.jax)(*map(jnp.asarray, case.for_jax(0)), **case.options))
    shapes = [[x.shape for x in values(result)] for result in found]
    assert shapes[0] == shapes[1] == shapes[2]
    assert not any(x.any() for result in found for x in values(result))


def test_jax_lowers_for_cuda_without_a_gpu(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.jax is None:
        pytest.skip("no JAX entry")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    entry = getattr(cudnn, case.jax)
    # Shapes of its own: traces are kept, and other tests trace without a target.
    arrays = [jnp.asarray(x) for x in case.for_jax(case.rows + 2)]
    with override(backend="portable"):
        traced = jax.jit(partial(_call_by_position, entry, case.options)).trace(arrays)
        lowered = traced.lower(lowering_platforms=("cuda",))
    assert "custom_call" in lowered.as_text()


@pytest.mark.parametrize("op", FAMILY.ops, ids=lambda op: op.name)
def test_op_has_its_names_and_documentation(op: Op) -> None:
    for name in filter(None, (op.name, op.jax_name, *op.legacy)):
        assert callable(getattr(cudnn, name))
    scope: dict[str, Any] = {}
    exec(op.example, scope)
    documented = [rule.name for rule in op.tensors]
    assert set(op.results) <= set(documented)
    assert set(op.problem.operands) <= set(documented)
    required = set(op.problem.operands) - op.problem.optional
    assert required <= set(inspect.signature(getattr(cudnn, op.name)).parameters)


# Kept in shared memory between two passes; shared by a cluster; both; on SM80, which has none, read twice.
@pytest.mark.parametrize(
    ("arch", "columns"), [("sm_80", 16384), ("sm_80", 65536), ("sm_90a", 65536), ("sm_120a", 262144)]
)
@pytest.mark.parametrize("op", [RHT_AMAX, RMS_SILU], ids=lambda op: op.name)
def test_kernels_of_wide_rows_compile(op: Op, arch: str, columns: int) -> None:
    shapes = ((2, columns), (columns,))
    specs = [TensorSpec(shape, contiguous_strides(shape), dtype("bfloat16"), "cuda:0", 16, "x") for shape in shapes]
    problem = op.bind(*specs, out_dtype="float4_e2m1fn", num_threads=None, rows_per_cta=2)
    chip = Device("cuda:0", CHIPS[arch], 132, arch)
    assert compile_now(op.kernels[0].module, op.kernels[0].specialise(problem, chip), arch) is not None


@pytest.mark.parametrize("arch", CHIPS)
def test_kernels_compile(case: Any, arch: str) -> None:
    op = next(op for op in FAMILY.ops if case.function in (op.name, *op.legacy))
    arrays = case.make()
    specs = [spec_of(arrays[name], name) if name in arrays else None for name in op.problem.operands]
    options = {"dropout": bool(case.options.get("dropout_ratio")), **case.options}
    problem = op.bind(*specs, **options)
    chip = Device("cuda:0", CHIPS[arch], 132, arch)
    for kernel in op.kernels:
        assert arch in kernel.targets
        assert kernel.refuse(problem, chip) is None
        assert compile_now(kernel.module, kernel.specialise(problem, chip), arch) is not None
