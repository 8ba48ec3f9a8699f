"""Which kernels serve the dense GEMMs, why one may refuse a problem, and what it is compiled for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from cudnn_fe.core.device import Device
from cudnn_fe.core.gemm_spec import GemmSpec, GemmTile, Major, operand_alignment
from cudnn_fe.core.gemm_tiles import choose_tiles, tile_candidates
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.core.tuning import stored_choice

__all__ = [
    "gemm_kernels",
    "sm90_candidates",
    "tuning_key",
]

Epilogue = Literal["identity", "swiglu"]
_TMA_BYTES = 16  # what the copy engine wants base addresses, strides and stored extents to be multiples of


def _major(spec: TensorSpec) -> Major:
    """The contiguous dim; K where both are, so that row vectors of either layout share one kernel."""
    return "k" if spec.dense_in(1) and not (spec.shape[1] == 1 and spec.strides[0] == 1) else "mn"


def _spec(
    problem: Any,
    where: Device,
    epilogue: Epilogue,
    *,
    tile: GemmTile | None,
    rest: GemmTile | None = None,
    alignment: int = 16,
) -> GemmSpec:
    outputs = problem.outputs
    return GemmSpec(
        a_dtype=problem.a.dtype.name,
        b_dtype=problem.b.dtype.name,
        out_dtypes=tuple(spec.dtype.name for spec in outputs),
        a_major=_major(problem.a),
        b_major=_major(problem.b),
        out_major=problem.out_major,
        epilogue=epilogue,
        tile=tile,
        rest=rest,
        arch=where.arch,
        alignment=alignment,
    )


def _sm90_spec(problem: Any, where: Device, epilogue: Epilogue) -> GemmSpec:
    tuned = stored_choice(tuning_key(problem, where, epilogue))
    if tuned is not None:
        return _spec(problem, where, epilogue, tile=GemmTile(**tuned))
    tile, rest = choose_tiles(
        *problem.extents,
        dtype=problem.a.dtype.name,
        epilogue=epilogue,
        multiprocessors=where.multiprocessors,
        majors=_majors(problem),
    )
    return _spec(problem, where, epilogue, tile=tile, rest=rest)


def _majors(problem: Any) -> tuple[Major, Major]:
    return _major(problem.a), _major(problem.b)


def tuning_key(problem: Any, where: Device, epilogue: Epilogue) -> str:
    """What a tuned tile holds for: this problem on this kind of device."""
    outputs = "+".join(spec.dtype.name for spec in problem.outputs)
    majors = "".join(_majors(problem)) + problem.out_major
    extents = "x".join(map(str, problem.extents))
    return f"{epilogue} {problem.a.dtype} {outputs} {majors} {extents} {where.name} {where.multiprocessors}"


def sm90_candidates(problem: Any, where: Device, epilogue: Epilogue) -> list[GemmSpec]:
    """Every specialisation of the Hopper kernel that a tuner may try."""
    m = problem.extents[0]
    tiles = tile_candidates(m, dtype=problem.a.dtype.name, epilogue=epilogue, majors=_majors(problem))
    ready = [replace(tile, persistent_ctas=where.multiprocessors, early_launch=True) for tile in tiles]
    return [_spec(problem, where, epilogue, tile=tile) for tile in ready]


def _portable_spec(problem: Any, where: Device, epilogue: Epilogue) -> GemmSpec:
    dense = [1 if major == "k" else 0 for major in _majors(problem)]
    alignment = min(map(operand_alignment, (problem.a, problem.b), dense))
    return _spec(problem, where, epilogue, tile=None, alignment=alignment)


def _sm90_refusal(problem: Any, where: Device) -> str | None:
    if where.capability != (9, 0):
        return f"it is written for compute capability 9.0, not {'.'.join(map(str, where.capability))}"
    for spec in (problem.a, problem.b):
        if spec.alignment < _TMA_BYTES:
            return f"{spec.name} starts at an address that is not a multiple of {_TMA_BYTES} bytes"
        steps = [step for extent, step in zip(spec.shape, spec.strides, strict=True) if extent > 1 and step != 1]
        if any(step <= 0 or step * spec.dtype.itemsize % _TMA_BYTES for step in steps):
            return f"{spec.name}'s strides {spec.strides} are not positive multiples of {_TMA_BYTES} bytes"
        if spec.dtype.bits not in (16,) and _major(spec) != "k":
            return f"{spec.name} is {spec.dtype} and not contiguous along K, which its tensor-core instruction needs"
    dense = 1 if problem.out_major == "n" else 0
    for spec in problem.outputs:
        if spec.shape[dense] * spec.dtype.itemsize % _TMA_BYTES:
            return f"{spec.name}'s contiguous extent {spec.shape[dense]} is not a multiple of {_TMA_BYTES} bytes"
    return None


def gemm_kernels(folder: str, epilogue: Epilogue) -> tuple[Kernel, ...]:
    """The kernels of the GEMM in ``cudnn_fe.gemm.<folder>``, best first."""
    module = f"cudnn_fe.gemm.{folder}"
    return (
        Kernel(
            backend="sm90",
            module=f"{module}.sm90",
            refuse=_sm90_refusal,
            specialise=partial(_sm90_spec, epilogue=epilogue),
            targets=("sm_90a",),
            verified=("H200",),
        ),
        Kernel(
            backend="portable",
            module=f"{module}.portable",
            refuse=portable_refusal,
            specialise=partial(_portable_spec, epilogue=epilogue),
            targets=PORTABLE_TARGETS,
            verified=("H200",),
        ),
    )
