"""Which kernels serve the block-scaled GEMMs, what they are compiled for, and the memory that they need beside."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from cudnn_fe.core.block_scale import BlockFormat, block_format
from cudnn_fe.core.block_scale.quantize import quotient_of
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gemm_spec import GemmSpec, Major, operand_alignment
from cudnn_fe.core.gemm_tiles import choose_tile
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.powers import common_power_of_two
from cudnn_fe.core.row_plan import access_bytes
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.gemm.scaled_spec import FinishSpec, Kind, OperandSpec, ScaledSpec

__all__ = ["scaled_kernels"]

_SIDE = 8
_MODULE = "cudnn_fe.gemm.portable_scaled"
_TMA_BYTES = 16
_BASE = frozenset({"a", "b", "x", "w", "sfa", "sfb", "x_scale", "w_scale"})


def _matrices(problem: Any, kind: Kind) -> tuple[TensorSpec, TensorSpec]:
    return (problem.x, problem.w) if kind == "proj_rope" else (problem.a, problem.b)


def _scales(problem: Any, kind: Kind) -> tuple[TensorSpec | None, TensorSpec | None]:
    return (problem.x_scale, problem.w_scale) if kind == "proj_rope" else (problem.sfa, problem.sfb)


def _transposed(problem: Any, kind: Kind) -> tuple[bool, bool]:
    return (False, kind == "proj_rope" and not problem.w_out_in)


def _extents(problem: Any, kind: Kind) -> tuple[int, int, int, int]:
    """(M, N, K, L)."""
    if kind != "proj_rope":
        m, n, k, batch = problem.extents
        return m, n, k, batch
    tokens, heads, k = problem.extents
    return tokens, heads * 192, k, 1


def _major(spec: TensorSpec, transposed: bool) -> Major:
    k_dim, row_dim = (0, 1) if transposed else (1, 0)
    along_k = spec.dense_in(k_dim) and not (spec.shape[k_dim] == 1 and spec.dense_in(row_dim))
    return "k" if along_k else "mn"


def _format(problem: Any, kind: Kind) -> BlockFormat | None:
    if kind != "proj_rope":
        return problem.format  # type: ignore[no-any-return]
    return block_format("float8_e4m3fn", "uint8", 32) if problem.x_scale is not None else None


def _operand(spec: TensorSpec, scales: TensorSpec | None, transposed: bool, packed: bool) -> OperandSpec:
    major = _major(spec, transposed)
    inner = spec.shape[1 if (major == "k") != transposed else 0]
    per_byte = 2 if spec.dtype.name in ("float4_e2m1fn", "uint8") else 1
    access = common_power_of_two(_SIDE, inner * per_byte, access_bytes(spec) * per_byte // spec.dtype.itemsize)
    return OperandSpec(
        codes_dtype=spec.dtype.name,
        rank=spec.ndim,
        transposed=transposed,
        major=major,
        access=access,
        scales_dtype=None if scales is None else scales.dtype.name,
        packed=packed,
    )


def _finish(problem: Any, where: Device, kind: Kind) -> FinishSpec:
    outputs = problem.outputs
    n = _extents(problem, kind)[1]
    extra = [
        (name, spec)
        for name, spec in zip(problem.operands, problem.inputs, strict=True)
        if name not in _BASE and spec is not None
    ]
    wide = [spec for name, spec in extra if name in ("c", "cos", "sin")]
    reach = [access_bytes(spec) // spec.dtype.itemsize for spec in wide]
    result = n // 2 if kind == "swiglu" else n
    quantised, quotient = None, 0.0
    if kind == "proj_rope":
        quantised = "float8_e4m3fn"
        quotient = quotient_of(block_format(quantised, "uint8", 32), "power_of_two")
    elif kind != "amax" and problem.result_format is not None:
        quantised = problem.result_dtype.name
        quotient = quotient_of(problem.result_format, "epilogue")
    return FinishSpec(
        kind=kind,
        out_dtypes=tuple(spec.dtype.name for spec in outputs),
        out_ranks=tuple(spec.ndim for spec in outputs),
        out_major="n" if kind == "proj_rope" else problem.out_major,
        quantised=quantised,
        quotient=quotient,
        inputs=tuple(name for name, _ in extra),
        input_dtypes=tuple(spec.dtype.name for _, spec in extra),
        input_ranks=tuple(spec.ndim for _, spec in extra),
        access=common_power_of_two(_SIDE, n),
        result_access=common_power_of_two(_SIDE, result),
        input_access=common_power_of_two(_SIDE, n, *reach),
        arch=where.arch,
    )


def _specialise(problem: Any, where: Device, *, kind: Kind, backend: Literal["sm90", "portable"]) -> ScaledSpec:
    matrices, scales, transposed = _matrices(problem, kind), _scales(problem, kind), _transposed(problem, kind)
    packed = kind != "proj_rope"
    a, b = (_operand(*row, packed) for row in zip(matrices, scales, transposed, strict=True))
    format = _format(problem, kind)
    m, n, k, batch = _extents(problem, kind)
    tile, alignment = None, _TMA_BYTES
    if backend == "sm90":
        tile = choose_tile(
            m, n, k, batch, dtype="bfloat16", epilogue="identity", multiprocessors=where.multiprocessors,
            majors=(a.major, b.major),
        )  # fmt: skip
    elif format is None:
        alignment = min(_alignment(*row) for row in zip(matrices, transposed, strict=True))
    gemm = GemmSpec(
        "bfloat16", "bfloat16", ("float32",), a.major, b.major, tile=tile, arch=where.arch, alignment=alignment
    )
    return ScaledSpec(
        backend=backend,
        element=format.element.name if format else "bfloat16",
        scale=format.scale.name if format else None,
        block=format.block if format else 32,
        a=a,
        b=b,
        gemm=gemm,
        finish=_finish(problem, where, kind),
        arch=where.arch,
    )


def _alignment(spec: TensorSpec, transposed: bool) -> int:
    return operand_alignment(spec, 1 if (_major(spec, transposed) == "k") != transposed else 0)


def _padded(count: int) -> int:
    """The next multiple of 8: 16 bytes of bfloat16, and never 1, whose dim may have any stride."""
    return -(-count // _SIDE) * _SIDE


def _scratch(problem: Any, spec: Any, *, kind: Kind) -> tuple[TensorSpec, ...]:
    """bfloat16 operands, the float32 product, and the rows' partial sums: those that the op needs."""
    m, n, k, batch = _extents(problem, kind)
    found = []

    def matrix(rows: int, columns: int, along_columns: bool, name: str, dtype_name: str) -> TensorSpec:
        shape = (rows, _padded(columns), batch) if along_columns else (_padded(rows), columns, batch)
        strides = contiguous_strides(shape, (1, 0, 2) if along_columns else (0, 1, 2))
        return TensorSpec(shape, strides, dtype(dtype_name), problem.device, 16, name)

    if spec.scale is not None:
        for rows, operand, name in ((m, spec.a, "a"), (n, spec.b, "b")):
            found.append(matrix(rows, k, operand.major == "k", f"wide_{name}", "bfloat16"))
    found.append(matrix(m, n, True, "product", "float32"))
    if kind == "dsrelu":
        found.append(matrix(m, -(-n // 64), True, "partials", "float32"))
    return tuple(found)


def _sm90_refusal(problem: Any, where: Device, *, kind: Kind) -> str | None:
    if where.capability != (9, 0):
        return f"it is written for compute capability 9.0, not {'.'.join(map(str, where.capability))}"
    if _format(problem, kind) is None:
        for spec, transposed in zip(_matrices(problem, kind), _transposed(problem, kind), strict=True):
            if _alignment(spec, transposed) < _TMA_BYTES:
                return f"{spec.name}'s address or rows are not multiples of {_TMA_BYTES} bytes"
    return None


def scaled_kernels(kind: Kind) -> tuple[Kernel, ...]:
    """The kernels of one op, best first."""

    def row(backend: Literal["sm90", "portable"], refuse: Any, targets: tuple[str, ...]) -> Kernel:
        return Kernel(
            backend=backend,
            module=_MODULE,
            refuse=refuse,
            specialise=partial(_specialise, kind=kind, backend=backend),
            targets=targets,
            scratch=partial(_scratch, kind=kind),
            verified=("H200",),
        )

    return (
        row("sm90", partial(_sm90_refusal, kind=kind), ("sm_90a",)),
        row("portable", portable_refusal, PORTABLE_TARGETS),
    )
