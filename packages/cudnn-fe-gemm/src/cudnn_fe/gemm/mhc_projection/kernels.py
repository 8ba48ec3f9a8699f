"""The kernel of the hyper-connections' gradients: bound by memory, one portable kernel serves every GPU."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.powers import common_power_of_two
from cudnn_fe.core.row_plan import access_bytes
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.gemm.mhc_projection.kernel_spec import MhcSpec

__all__ = ["KERNELS", "row_parts"]

_MOST_PARTS = 8  # of the rows, for whose partial sums the documented workspace has room
_PART_ROWS = 512  # fewer would not pay for another partial sum
_BLOCK, _MOST_BLOCKS = 8, 4
_STRIP = 256  # columns of a CTA
_RESIDENT = 2  # CTAs that run on a multiprocessor at once


def row_parts(rows: int, columns: int, multiprocessors: int) -> int:
    """In how many parts the rows are summed: such that all multiprocessors have as much to do, and as few as can be.

    Args:
        rows: M.
        columns: K.
        multiprocessors: Of the device.
    """
    strips, at_once = -(-columns // _STRIP), _RESIDENT * multiprocessors
    most = min(-(-rows // _PART_ROWS), _MOST_PARTS)
    return min(range(1, most + 1), key=lambda parts: (-(-strips * parts // at_once) / parts, parts))


def _specialise(problem: Any, where: Device) -> MhcSpec:
    n, k = problem.weight.shape
    blocks = -(-n // _BLOCK)
    return MhcSpec(
        blocks=min(blocks, _MOST_BLOCKS),
        chunked=blocks > _MOST_BLOCKS,
        access=common_power_of_two(8, k, access_bytes(problem.x) // problem.x.dtype.itemsize),
        projection_access=4 if n % 4 == 0 and access_bytes(problem.grad_proj) == 16 else 1,
        multiprocessors=where.multiprocessors,
        arch=where.arch,
    )


def _scratch(problem: Any, spec: Any) -> tuple[TensorSpec, ...]:
    """dweight's partial sums over parts of the rows."""
    m, k = problem.x.shape
    shape = (row_parts(m, k, spec.multiprocessors), *problem.weight.shape)
    return (TensorSpec(shape, contiguous_strides(shape), dtype("float32"), problem.device, 16, "partials"),)


KERNELS = (
    Kernel(
        backend="portable",
        module="cudnn_fe.gemm.mhc_projection.portable",
        refuse=portable_refusal,
        specialise=_specialise,
        targets=PORTABLE_TARGETS,
        scratch=_scratch,
        verified=("H200",),
    ),
)
