"""The Hopper kernels of the grouped GEMMs: why one may refuse a problem, and what it is compiled for."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.gemm_spec import GemmSpec, GemmTile, Major
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.kernel_spec import RowsSpec, WgradSpec
from cudnn_fe.grouped.tiles import choose_rows_tile, choose_sum_tile

__all__ = ["dglu_sm90", "rows_sm90", "wgrad_sm90"]

_TMA_BYTES = 16  # what the copy engine wants base addresses, strides and stored rows to be multiples of
_MOST_ROWS = 2**30  # beyond which a group's place in the buffer cannot be named to the copy engine
_PART_COLUMNS, _PART_ROWS = 32, 16  # of the product that one part of dprob, and of dbias, sums


def _device_refusal(where: Device) -> str | None:
    if where.capability != (9, 0):
        return f"it is written for compute capability 9.0, not {'.'.join(map(str, where.capability))}"
    return None


def _operand_refusal(spec: TensorSpec) -> str | None:
    if spec.dtype.bits != 16:
        return f"{spec.name} is {spec.dtype}, and it multiplies bfloat16 and float16 alone"
    return _layout_refusal(spec)


def _layout_refusal(spec: TensorSpec) -> str | None:
    if spec.alignment < _TMA_BYTES:
        return f"{spec.name} starts at an address that is not a multiple of {_TMA_BYTES} bytes"
    steps = [step for extent, step in zip(spec.shape, spec.strides, strict=True) if extent > 1 and step != 1]
    if any(step <= 0 or step * spec.dtype.itemsize % _TMA_BYTES for step in steps):
        return f"{spec.name}'s strides {spec.strides} are not positive multiples of {_TMA_BYTES} bytes"
    return None


def _output_refusal(spec: TensorSpec) -> str | None:
    if spec.size and spec.shape[-1] * spec.dtype.itemsize % _TMA_BYTES:
        return f"{spec.name}'s rows of {spec.shape[-1]} elements are not multiples of {_TMA_BYTES} bytes"
    return None


def _first(*reasons: str | None) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _rows_refusal(problem: Any, where: Device) -> str | None:
    a, b = problem.a_tensor, problem.b_tensor
    too_many = f"{a.name} has {a.shape[0]} rows, more than 2^30" if a.shape[0] > _MOST_ROWS else None
    matrices = [spec for spec in problem.outputs if spec.ndim == 2]
    return _first(
        _device_refusal(where), _operand_refusal(a), _operand_refusal(b), too_many, *map(_output_refusal, matrices)
    )


def _dglu_refusal(problem: Any, where: Device) -> str | None:
    return _first(_rows_refusal(problem, where), _layout_refusal(problem.c_tensor))


def _wgrad_refusal(problem: Any, where: Device) -> str | None:
    a, b = problem.a_tensor, problem.b_tensor
    along_rows = [spec.name for spec, dim in ((a, 0), (b, 1)) if not spec.dense_in(dim)]
    many = f"{a.name} has {a.shape[1]} columns, more than 2^30" if a.shape[1] > _MOST_ROWS else None
    cut = f"{along_rows[0]} is contiguous along t, where groups may begin at any element" if along_rows else None
    return _first(
        _device_refusal(where), _operand_refusal(a), _operand_refusal(b), cut, many, _output_refusal(problem.outputs[0])
    )


def _gemm(problem: Any, where: Device, tile: GemmTile, majors: tuple[Major, Major]) -> GemmSpec:
    a, b = problem.a_tensor, problem.b_tensor
    results = tuple(spec.dtype.name for spec in problem.outputs)
    return GemmSpec(a.dtype.name, b.dtype.name, results, *majors, tile=tile, arch=where.arch)


def _rows_gemm(problem: Any, where: Device) -> GemmSpec:
    (rows, k), (groups, n, _) = problem.a_tensor.shape, problem.b_tensor.shape
    tile = choose_rows_tile(rows, groups, n, k, where.multiprocessors)
    return _gemm(problem, where, tile, ("k", "k" if problem.b_tensor.dense_in(2) else "mn"))


def _rows_spec(problem: Any, where: Device) -> RowsSpec:
    bias = problem.bias_tensor
    return RowsSpec(
        _rows_gemm(problem, where),
        getattr(problem, "act_func", "none"),
        prob=problem.prob_tensor is not None,
        bias_dtype=None if bias is None else bias.dtype.name,
        wanted=frozenset({"c"} if problem.generate_c else ()),
        zero_tail=getattr(problem, "zero_tail", True),
    )


def _dglu_spec(problem: Any, where: Device) -> RowsSpec:
    wanted = {"dbias": problem.generate_dbias, "activation": problem.generate_activation}
    return RowsSpec(
        _rows_gemm(problem, where),
        problem.act_func,
        c_dtype=problem.c_tensor.dtype.name,
        wanted=frozenset(name for name, given in wanted.items() if given),
        round_product=problem.round_dgrad,
        zero_tail=getattr(problem, "zero_tail", True),
    )
