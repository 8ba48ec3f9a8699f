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

__all__ = ["KERNELS", "SPLITS"]

SPLITS = 8  # of the rows at most, for whose partial sums the documented workspace has room
_SPLIT_ROWS = 512  # fewer would not pay for another partial sum
_BLOCK, _MOST_BLOCKS = 8, 4


def _specialise(problem: Any, where: Device) -> MhcSpec:
    n, k = problem.weight.shape
    blocks = -(-n // _BLOCK)
    return MhcSpec(
        blocks=min(blocks, _MOST_BLOCKS),
        chunked=blocks > _MOST_BLOCKS,
        access=common_power_of_two(8, k, access_bytes(problem.x) // problem.x.dtype.itemsize),
        projection_access=4 if n % 4 == 0 and access_bytes(problem.grad_proj) == 16 else 1,
        arch=where.arch,
    )


def _scratch(problem: Any, spec: Any) -> tuple[TensorSpec, ...]:
    """dweight's partial sums over parts of the rows."""
    del spec
    shape = (min(-(-problem.x.shape[0] // _SPLIT_ROWS), SPLITS), *problem.weight.shape)
    return (TensorSpec(shape, contiguous_strides(shape), dtype("float32"), problem.device, 16, "partials"),)


KERNELS = (
    Kernel(
        backend="portable",
        module="cudnn_fe.gemm.mhc_projection.portable",
        refuse=portable_refusal,
        specialise=_specialise,
        targets=PORTABLE_TARGETS,
        scratch=_scratch,
        opt_in=True,
    ),
)
