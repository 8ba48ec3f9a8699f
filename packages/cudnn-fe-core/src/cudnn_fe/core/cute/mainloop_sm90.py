"""The WGMMA main loop: shared-memory layouts of the operands, the producer's and the consumers' loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, TFloat32, cute, pipeline
from cutlass._mlir.dialects import cute_nvgpu
from cutlass.cute.atom import make_atom
from cutlass.cute.core import _pack_shape
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.cute.nvgpu.warpgroup.mma import MmaOp, MmaTraits

from cudnn_fe.core.cute.tma import TmaTile

__all__ = ["consume", "consume_promoted", "make_tiled_mma", "operand_smem_layout", "produce", "skip", "swizzled_atom"]

STAGE_BYTES_K = 128
_ATOMS = warpgroup.SmemLayoutAtomKind
_K_ATOMS = {1024: _ATOMS.K_SW128, 512: _ATOMS.K_SW64, 256: _ATOMS.K_SW32, 128: _ATOMS.K_INTER}
_MN_ATOMS = {1024: _ATOMS.MN_SW128, 512: _ATOMS.MN_SW64, 256: _ATOMS.MN_SW32, 128: _ATOMS.MN_INTER}


class _Tf32Traits(MmaTraits):
    """Run-time state of the TF32 product."""


@dataclass(frozen=True)
class MmaTf32Op(MmaOp):
    """The TF32 WGMMA, which the DSL's own operations leave out; both operands K-major."""

    descriptive_name = "warpgroup TF32 MMA operation"

    def _make_trait(self, *, loc: Any = None, ip: Any = None, **_: Any) -> _Tf32Traits:
        element = TFloat32.mlir_type
        kind = cute_nvgpu.MmaAtomSM90Type.get(
            _pack_shape(self.shape_mnk, loc=loc, ip=ip).type.attribute,
            self.a_major_mode._to_ir(),
            self.b_major_mode._to_ir(),
            element,
            element,
            self.acc_dtype.mlir_type,
            self.a_src._to_ir(),
        )
        return _Tf32Traits(make_atom(kind, [Boolean(False).ir_value(loc=loc, ip=ip)], loc=loc, ip=ip))


def make_tiled_mma(a_type: Any, b_type: Any, majors: tuple[str, str], columns: int, warpgroups: tuple[int, int]) -> Any:
    """WGMMAs of 64 rows and `columns` columns, one per warpgroup of the (M, N) grid, accumulating in float32."""
    major_a, major_b = (OperandMajorMode.K if major == "k" else OperandMajorMode.MN for major in majors)
    shared = warpgroup.OperandSource.SMEM
    op: Any
    if a_type.width == 16:
        op = warpgroup.MmaF16BF16Op(a_type, Float32, (64, columns, 16), shared, major_a, major_b)
    elif a_type.width == 8:
        op = warpgroup.MmaF8Op(a_type, b_type, Float32, (64, columns, 32), shared, major_a, major_b)
    else:
        op = MmaTf32Op(TFloat32, TFloat32, Float32, (64, columns, 8), shared, major_a, major_b)
    return cute.make_tiled_mma(cute.make_mma_atom(op), (*warpgroups, 1))


def swizzled_atom(element: Any, contiguous: int, first_mode_major: bool) -> Any:
    """The widest swizzle whose rows divide `contiguous` elements."""
    bits = contiguous * element.width
    width = next(width for width in (1024, 512, 256, 128) if bits % width == 0)
    kinds = _MN_ATOMS if first_mode_major else _K_ATOMS
    return warpgroup.make_smem_layout_atom(kinds[width], element)


def operand_smem_layout(element: Any, major: str, rows: int, k: int, stages: int) -> Any:
    """Layout (rows, K, stages) that both TMA and WGMMA's descriptors can address."""
    k_major = major == "k"
    atom = swizzled_atom(element, k if k_major else rows, not k_major)
    return cute.tile_to_shape(atom, (rows, k, stages), order=(0, 1, 2) if k_major else (1, 0, 2))


@cute.jit
def produce(
    ring: Any,
    state: pipeline.PipelineState,
    load_a: TmaTile,
    load_b: TmaTile,
    from_a: tuple[cute.Tensor, cute.Tensor],
    from_b: tuple[cute.Tensor, cute.Tensor],
    k_tiles: Int32,
    a_mask: Any,
    b_mask: Any,
) -> pipeline.PipelineState:
    """Fills stages with the K tiles of one output tile; K tiles past the end arrive as zeros.

    Args:
        ring: The pipeline of stages.
        state: The producer's place in it.
        load_a: Loads of A.
        load_b: Loads of B.
        from_a: A's K tiles in global memory, and the stages.
        from_b: Likewise of B.
        k_tiles: How many.
        a_mask: CTAs that get A's part, None without multicast.
        b_mask: Likewise of B.
    """
    (tAgA, tAsA), (tBgB, tBsB) = from_a, from_b
    for k_tile in cutlass.range(k_tiles, unroll=1):
        ring.producer_acquire(state)
        barrier = ring.producer_get_barrier(state)
        cute.copy(load_a.atom, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier, mcast_mask=a_mask)
        cute.copy(load_b.atom, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier, mcast_mask=b_mask)
        ring.producer_commit(state)
        state.advance()
    return state


def skip(state: pipeline.PipelineState, stages: Int32) -> pipeline.PipelineState:
    """The state after `stages` more stages, which another warpgroup consumes."""
    index = state.index + stages
    laps = index // state.stages
    return pipeline.PipelineState(state.stages, state.count, index - laps * state.stages, state.phase ^ (laps & 1))


def _accumulating(tiled_mma: Any, accumulate: bool) -> Any:
    """A copy of the product that adds to its accumulator, or overwrites it.

    The flag lives in the object: setting it on a shared one inside a run-time loop would leak a value out of the loop.
    """
    fresh = cute.make_tiled_mma(cute.make_mma_atom(tiled_mma.op), tiled_mma.thr_layout_vmnk.shape[1:])
    fresh.set(warpgroup.Field.ACCUMULATE, accumulate)
    return fresh


def _multiply(first: Any, rest: Any, acc: cute.Tensor, tCrA: cute.Tensor, tCrB: cute.Tensor) -> None:
    """Issues one stage's WGMMAs as one group."""
    for k_block in range(cute.size(tCrA, mode=[2])):
        cute.gemm(rest if k_block else first, acc, tCrA[None, None, k_block], tCrB[None, None, k_block], acc)
    warpgroup.commit_group()


@cute.jit
def consume(
    ring: Any,
    state: pipeline.PipelineState,
    tiled_mma: Any,
    acc: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    k_tiles: Int32,
    next_turn: Any = None,
) -> pipeline.PipelineState:
    """Sums `k_tiles` (at least one) stages into `acc`, one group of WGMMAs in flight while the next is issued.

    Arrives at `next_turn`, if there is one, once every stage has been waited for and its WGMMAs are issued.
    """
    overwrite, accumulate = _accumulating(tiled_mma, False), _accumulating(tiled_mma, True)
    release = state.clone()
    warpgroup.fence()
    ring.consumer_wait(state)
    _multiply(overwrite, accumulate, acc, tCrA[None, None, None, state.index], tCrB[None, None, None, state.index])
    state.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        ring.consumer_wait(state)
        _multiply(accumulate, accumulate, acc, tCrA[None, None, None, state.index], tCrB[None, None, None, state.index])
        warpgroup.wait_group(1)
        ring.consumer_release(release)
        release.advance()
        state.advance()
    if cutlass.const_expr(next_turn is not None):
        next_turn.arrive()
    warpgroup.wait_group(0)
    ring.consumer_release(release)
    return state


@cute.jit
def consume_promoted(
    ring: Any,
    state: pipeline.PipelineState,
    tiled_mma: Any,
    acc: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    k_tiles: Int32,
    next_turn: Any = None,
) -> pipeline.PipelineState:
    """As `consume`, but each stage's products are added to `acc` by the CUDA cores.

    FP8 WGMMA keeps about 14 bits of its running sum; over a stage (128 elements of K) that is harmless, over all of K
    it is not. The other warpgroup's WGMMAs run meanwhile. Two accumulators must fit the register file: at most 192
    columns; summing more of them in parts makes the compiler keep both parts' sums alive, and spill.
    """
    overwrite, accumulate = _accumulating(tiled_mma, False), _accumulating(tiled_mma, True)
    acc.fill(0.0)
    for _ in cutlass.range(k_tiles, unroll=1):
        ring.consumer_wait(state)
        partial = cute.make_rmem_tensor(acc.shape, Float32)
        warpgroup.fence()
        _multiply(
            overwrite, accumulate, partial, tCrA[None, None, None, state.index], tCrB[None, None, None, state.index]
        )
        warpgroup.wait_group(0)
        ring.consumer_release(state)
        acc.store(acc.load() + partial.load())
        state.advance()
    if cutlass.const_expr(next_turn is not None):
        next_turn.arrive()
    return state
