"""RMSNorm + Hadamard + amax: a block, or a cluster for wide rows, takes the rows of one amax."""

from __future__ import annotations

from functools import partial
from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs
from cudnn_fe.core.cute.hadamard import hadamard16_of_lane_pair
from cudnn_fe.core.cute.rms_rows import RmsRows
from cudnn_fe.core.cute.row_vectors import row_address, store_words
from cudnn_fe.norm_rope.rmsnorm_rht_amax.op import RowSpec

__all__ = ["fake_arguments", "launcher"]


class _RmsNormRhtAmax:
    def __init__(self, spec: RowSpec) -> None:
        self.plan = spec.plan
        self.rows = RmsRows(spec.columns, spec.width, spec.plan)

    @cute.jit
    def __call__(
        self, stream: cuda.CUstream, x: cute.Tensor, w: cute.Tensor, o: cute.Tensor, amax: cute.Tensor, eps: Float32
    ) -> None:
        self.rows.launch(self.kernel(x, w, o, amax, eps), amax.shape[0], stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, w: cute.Tensor, o: cute.Tensor, amax: cute.Tensor, eps: Float32) -> None:
        shared = SmemAllocator().allocate(self.rows.shared_bytes, 16).toint()
        chunk = Int32(cute.arch.block_idx()[0]) // self.plan.ctas
        rows = Int32(x.shape[0]) // Int32(amax.shape[0])
        top = cute.make_rmem_tensor(1, Float32)
        top.fill(0.0)
        slot = self.rows.each(x, w, Int64(chunk) * rows, rows, eps, shared, partial(_transform, o, top))
        largest = self.rows.groups.maximum_of_block(top[0], shared + self.rows.reduction, slot)
        if cute.arch.thread_idx()[0] == 0:
            amax[chunk] = largest


def _transform(
    o: Any, top: Any, row: Int64, vector: Int32, values: list[Any], factors: list[Any], scale: Float32, valid: Int32
) -> None:
    """One vector's transform stored, and its largest magnitude noted; its neighbour has the other half of the 16."""
    scaled = [value * scale * factor for value, factor in zip(values, factors, strict=True)]
    mixed = [value * Float32(0.25) for value in hadamard16_of_lane_pair(scaled, vector)]
    for value in mixed:
        top[0] = cute.arch.fmax(top[0], cute.arch.fmax(value, -value))
    store_words(row_address(o, row) + Int64(vector) * 16, narrow_pairs(mixed), 16, valid)


def launcher(spec: RowSpec) -> Any:
    """The host function ``launch(stream, x, w, o, amax, eps)`` of a spec, to be compiled."""
    return _RmsNormRhtAmax(spec)


def fake_arguments(spec: RowSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (x, w, o, amax, eps)."""
    return (
        fake_tensor("bfloat16", 1, rank=spec.x_rank, alignment=spec.width),
        fake_tensor("bfloat16", 0, rank=spec.w_rank, alignment=spec.width),
        fake_tensor("bfloat16", 1, rank=spec.x_rank, alignment=16),
        fake_tensor("float32", 0, rank=1, alignment=4),
        Float32(1e-5),
    )
