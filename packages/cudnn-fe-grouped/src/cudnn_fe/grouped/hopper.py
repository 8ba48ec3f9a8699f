"""The Hopper kernels of the grouped GEMMs: why one may refuse a problem, and what it is compiled for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.gemm_spec import GemmTile
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.kernel_spec import RowsSpec
from cudnn_fe.grouped.operands import output
from cudnn_fe.grouped.tiles import choose_rows_tile, choose_sum_tile

__all__ = ["dglu_sm90", "grouped_device_refusal", "rows_sm90", "sums_refusal", "wgrad_sm90"]

_BYTES = 16  # what the copy engine wants base addresses, strides and stored rows to be multiples of
_MOST_ROWS = 2**30  # beyond which a group's place in the buffer cannot be named to the copy engine
_PART_COLUMNS, _PART_ROWS = 32, 16  # of the product that one part of dprob, and of dbias, sums: a warp's share

Specialise = Callable[[Any, Device], Any]


def _device_refusal(where: Device) -> str | None:
    if where.capability != (9, 0):
        return f"it is written for compute capability 9.0, not {'.'.join(map(str, where.capability))}"
    return None


def _layout_refusal(spec: TensorSpec) -> str | None:
    if spec.alignment < _BYTES:
        return f"{spec.name} starts at an address that is not a multiple of {_BYTES} bytes"
    steps = [step for extent, step in zip(spec.shape, spec.strides, strict=True) if extent > 1 and step != 1]
    if any(step <= 0 or step * spec.dtype.itemsize % _BYTES for step in steps):
        return f"{spec.name}'s strides {spec.strides} are not positive multiples of {_BYTES} bytes"
    return None


def _operand_refusal(spec: TensorSpec) -> str | None:
    if spec.dtype.bits != 16:
        return f"{spec.name} is {spec.dtype}, and it multiplies bfloat16 and float16 alone"
    return _layout_refusal(spec)


def _rows_refusal(spec: TensorSpec) -> str | None:
    if spec.size and spec.shape[-1] * spec.dtype.itemsize % _BYTES:
        return f"{spec.name}'s rows of {spec.shape[-1]} elements are not multiples of {_BYTES} bytes"
    return None


def _weights_refusal(problem: Any) -> str | None:
    if not problem.discrete:
        return _operand_refusal(problem.b_tensor)
    _, n, k, _ = problem.extents
    extent = n if problem.n_major else k
    if extent * problem.a_tensor.dtype.itemsize % _BYTES:
        return f"rows of {extent} elements, at addresses, are not multiples of {_BYTES} bytes"
    return None


def _first(*reasons: str | None) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _too_many(name: str, rows: int) -> str | None:
    return f"{name} has {rows} rows, more than {_MOST_ROWS}" if rows > _MOST_ROWS else None


def grouped_device_refusal(problem: Any, where: Device) -> str | None:
    """Why it cannot serve rows in groups on this device, whatever the operands are."""
    return _first(_device_refusal(where), _too_many(problem.a_tensor.name, problem.a_tensor.shape[0]))


def _refuse_rows(problem: Any, where: Device) -> str | None:
    return _first(
        grouped_device_refusal(problem, where),
        _operand_refusal(problem.a_tensor),
        _weights_refusal(problem),
        *(_rows_refusal(spec) for spec in problem.outputs if spec.ndim == 2),
    )


def _refuse_dglu(problem: Any, where: Device) -> str | None:
    return _first(_refuse_rows(problem, where), _layout_refusal(problem.c_tensor))


def _refuse_wgrad(problem: Any, where: Device) -> str | None:
    a, b = problem.a_tensor, problem.b_tensor
    cut = [
        f"{spec.name} is contiguous along t, where an expert's rows may begin at any element"
        for spec, dim in ((a, 0), (b, 1))
        if not spec.dense_in(dim)
    ]
    return _first(_operand_refusal(a), _operand_refusal(b), *cut, sums_refusal(problem, where))


def sums_refusal(problem: Any, where: Device) -> str | None:
    """Why it cannot sum over the rows of groups on this device into these results, whatever the operands are."""
    a, b = problem.a_tensor, problem.b_tensor
    result = output("wgrad_tensor", (a.shape[0], b.shape[1]), problem.wgrad_dtype, a.device)
    old = problem.wgrad_tensor
    return _first(
        _device_refusal(where),
        _too_many(b.name, b.shape[0]),
        _rows_refusal(result),
        None if old is None else _layout_refusal(old),
    )


def _tiled(spec: Any, tile: GemmTile) -> Any:
    return replace(spec, gemm=replace(spec.gemm, tile=tile, alignment=_BYTES))


def _rows_spec(base: Specialise, problem: Any, where: Device, *, reads: bool = False) -> RowsSpec:
    rows, n, k, groups = problem.extents
    tile = choose_rows_tile(rows, groups, n, k, where.multiprocessors, reads=reads)
    spec: RowsSpec = _tiled(base(problem, where), tile)
    return spec


def _wgrad_spec(base: Specialise, problem: Any, where: Device) -> Any:
    tile = choose_sum_tile(problem.a_tensor.shape[0], problem.b_tensor.shape[1], where.multiprocessors)
    return _tiled(base(problem, where), tile)


def _dglu_scratch(problem: Any, spec: Any) -> tuple[TensorSpec, ...]:
    """Parts of dprob (columns' blocks, M), and of dbias (places, 2N), which has no rows where it is not wanted."""
    del spec
    rows, n, _, groups = problem.extents
    places = rows // _PART_ROWS + groups + 1 if problem.generate_dbias else 0
    shapes = (n // _PART_COLUMNS, rows), (places, 2 * n)
    return tuple(output("scratch", shape, "float32", problem.device) for shape in shapes)


def rows_sm90(folder: str, base: Specialise) -> Kernel:
    """The kernel of the forward in ``cudnn_fe.grouped.<folder>``; ``base`` makes its spec without a tile."""
    return Kernel(
        backend="sm90",
        module=f"cudnn_fe.grouped.{folder}.sm90",
        refuse=_refuse_rows,
        specialise=partial(_rows_spec, base),
        targets=("sm_90a",),
        verified=("H200",),
    )


def dglu_sm90(base: Specialise) -> Kernel:
    """The kernel of the gated activation's backward."""
    return Kernel(
        backend="sm90",
        module="cudnn_fe.grouped.dglu.sm90",
        refuse=_refuse_dglu,
        specialise=partial(_rows_spec, base, reads=True),
        targets=("sm_90a",),
        scratch=_dglu_scratch,
        verified=("H200",),
    )


def wgrad_sm90(base: Specialise) -> Kernel:
    """The kernel of the weight gradient."""
    return Kernel(
        backend="sm90",
        module="cudnn_fe.grouped.wgrad.sm90",
        refuse=_refuse_wgrad,
        specialise=partial(_wgrad_spec, base),
        targets=("sm_90a",),
        verified=("H200",),
    )
