"""RMSNorm + Hadamard: rows normalised and transformed; a second launch takes the maxima over groups of rows."""

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
from cudnn_fe.core.cute.row_maxima import row_maxima
from cudnn_fe.core.cute.row_vectors import row_address, store_global, store_words
from cudnn_fe.core.cute.small_floats import as_bits
from cudnn_fe.norm_rope.rmsnorm_rht_amax.op import RowSpec

__all__ = ["fake_arguments", "launcher"]


class _RmsNormRhtAmax:
    def __init__(self, spec: RowSpec) -> None:
        self.rows = RmsRows(spec.columns, spec.width, spec.plan)
        self.early = not spec.arch.startswith("sm_8")

    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        x: cute.Tensor,
        w: cute.Tensor,
        o: cute.Tensor,
        amax: cute.Tensor,
        maxima: cute.Tensor,
        eps: Float32,
    ) -> None:
        self.rows.launch(self.kernel(x, w, o, maxima, eps), x.shape[0], stream)
        row_maxima(stream, maxima, amax, self.early)

    @cute.kernel
    def kernel(self, x: cute.Tensor, w: cute.Tensor, o: cute.Tensor, maxima: cute.Tensor, eps: Float32) -> None:
        shared = SmemAllocator().allocate(self.rows.shared_bytes, 16).toint()
        top = cute.make_rmem_tensor(1, Float32)
        top.fill(0.0)
        self.rows.each_row(x, w, eps, shared, partial(_transform, o, top), partial(self.note, maxima, top))

    def note(self, maxima: Any, top: Any, row: Int64, part: Any, lane: Any, valid: Any) -> None:
        """The largest of this warp's part of a row, stored: a barrier for the row's own would cost more."""
        largest = self.rows.groups.warp_maximum(top[0])
        first = Int32(lane % min(self.rows.plan.threads, 32) == 0)
        at = maxima.iterator.toint() + (row * self.rows.plan.parts + Int64(part)) * 4
        store_global(at, [as_bits(largest)], 4, valid * first)
        top[0] = Float32(0.0)


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
    """The host function ``launch(stream, x, w, o, amax, maxima, eps)`` of a spec, to be compiled."""
    return _RmsNormRhtAmax(spec)


def fake_arguments(spec: RowSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (x, w, o, amax, maxima, eps)."""
    return (
        fake_tensor("bfloat16", 1, rank=spec.x_rank, alignment=spec.width),
        fake_tensor("bfloat16", 0, rank=spec.w_rank, alignment=spec.width),
        fake_tensor("bfloat16", 1, rank=spec.x_rank, alignment=16),
        fake_tensor("float32", 0, rank=1, alignment=4),
        fake_tensor("float32", 0, rank=1),
        Float32(1e-5),
    )
