"""The float32 product of quantised rows and weights: what its kernels are compiled for, and the memory they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cudnn_fe.core.device import Device
from cudnn_fe.core.gemm_spec import GemmSpec, Major
from cudnn_fe.core.powers import common_power_of_two
from cudnn_fe.core.row_plan import access_bytes
from cudnn_fe.core.targets import portable_refusal
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.grouped.hopper import grouped_device_refusal
from cudnn_fe.grouped.kernel_spec import RowsSpec
from cudnn_fe.grouped.operands import output
from cudnn_fe.grouped.scaled.problem import ScaledRows, is_fp4
from cudnn_fe.grouped.tiles import choose_rows_tile

__all__ = [
    "Backend",
    "CodesSpec",
    "ProductSpec",
    "codes_spec",
    "padded",
    "product_refusal",
    "product_scratch",
    "product_spec",
]

Backend = Literal["sm90", "portable"]
SIDE = 8  # elements that kernels access at once at most


@dataclass(frozen=True, slots=True)
class CodesSpec:
    """A quantised operand, dequantised before the product; extents and strides are met at run time.

    Attributes:
        dtype: Type of the codes' tensor, or of the array of addresses that stands for it.
        kind: Type of the codes.
        rank: Dims of the tensor, 1 for addresses.
        major: ``"k"`` when K is the unit-stride dim, ``"mn"`` when the rows are.
        access: Elements that may be read at once.
        scales_dtype: Type of the scales' tensor, or of the array of addresses.
    """

    dtype: str
    kind: str
    rank: int
    major: Major
    access: int
    scales_dtype: str


@dataclass(frozen=True, slots=True)
class ProductSpec:
    """Dequantise rows and weights to bfloat16 and multiply.

    Attributes:
        element: Element format.
        scale: Scale format.
        block: Elements per scale.
        a: The rows.
        b: The weights.
        single_group: Whether the one expert has all rows, whatever the offsets say.
        backend: Whose main loop multiplies.
        rows: The product in bfloat16.
    """

    element: str
    scale: str
    block: int
    a: CodesSpec
    b: CodesSpec
    single_group: bool
    backend: Backend
    rows: RowsSpec


def codes_spec(spec: TensorSpec, scales: TensorSpec, k_dim: int, row_dim: int) -> CodesSpec:
    """That of codes in one tensor."""
    along_k = spec.dense_in(k_dim) and not (spec.shape[k_dim] == 1 and spec.dense_in(row_dim))
    per_byte = 2 if is_fp4(spec.dtype) else 1
    inner = spec.shape[k_dim if along_k else row_dim] * per_byte
    access = common_power_of_two(SIDE, inner, access_bytes(spec) * per_byte)
    name = spec.dtype.name
    return CodesSpec(name, name, spec.ndim, "k" if along_k else "mn", access, scales.dtype.name)


def _weights(problem: ScaledRows) -> CodesSpec:
    b, scales = problem.b_tensor, problem.sfb_tensor
    if not problem.discrete:
        return codes_spec(b, scales, 2, 1)
    _, n, k, _ = problem.extents
    access = common_power_of_two(SIDE, n if problem.n_major else k)
    major: Major = "mn" if problem.n_major else "k"
    return CodesSpec(b.dtype.name, problem.a_tensor.dtype.name, 1, major, access, scales.dtype.name)


def product_spec(problem: ScaledRows, where: Device, backend: Backend) -> ProductSpec:
    """What the product of a problem is compiled for."""
    rows, n, k, groups = problem.extents
    b = _weights(problem)
    tile = choose_rows_tile(rows, groups, n, k, where.multiprocessors) if backend == "sm90" else None
    gemm = GemmSpec("bfloat16", "bfloat16", ("float32",), b_major=b.major, tile=tile, arch=where.arch)
    return ProductSpec(
        element=problem.format.element.name,
        scale=problem.format.scale.name,
        block=problem.format.block,
        a=codes_spec(problem.a_tensor, problem.sfa_tensor, 1, 0),
        b=b,
        single_group=problem.single_group,
        backend=backend,
        rows=RowsSpec(gemm, alpha=False, prob=False, zero_tail=False),
    )


def padded(count: int) -> int:
    """The next multiple of 8: 16 bytes of bfloat16, and never 1, whose dim may have any stride."""
    return -(-count // SIDE) * SIDE


def product_scratch(problem: ScaledRows, spec: ProductSpec) -> tuple[TensorSpec, ...]:
    """bfloat16 rows (M, K) and weights (L, N, K), the float32 product (M, N), all padded, and the one expert's end."""
    m, n, k, count = problem.extents
    place = problem.device
    rows, product = (
        output("scratch", (m, padded(width)), kind, place) for width, kind in ((k, "bfloat16"), (n, "float32"))
    )
    along_k = spec.b.major == "k"
    shape = (count, n if along_k else padded(n), padded(k))
    strides = contiguous_strides(shape, (2, 1, 0) if along_k else (1, 2, 0))
    weights = TensorSpec(shape, strides, rows.dtype, place, 16, "scratch")
    end = (output("scratch", (1,), "int32", place),) if spec.single_group else ()
    return rows, weights, product, *end


def product_refusal(backend: Backend, problem: ScaledRows, where: Device) -> str | None:
    """Why the kernels cannot multiply, or None if they can."""
    return portable_refusal(problem, where) if backend == "portable" else grouped_device_refusal(problem, where)
