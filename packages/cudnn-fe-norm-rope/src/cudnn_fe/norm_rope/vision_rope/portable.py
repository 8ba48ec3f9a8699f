"""The vision encoder's RoPE backward: a warp takes 32 tokens of one head, of Q, then K, then V.

K lies with the tokens innermost: lanes read along them, turn in registers, and store rows through shared memory.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.ptx_base import assemble, load_global, load_shared, store_shared
from cudnn_fe.core.cute.rotary import rotate_halves_back
from cudnn_fe.core.cute.row_vectors import VECTOR, load_words, store_words
from cudnn_fe.norm_rope.vision_rope.op import CHANNELS, HEADS, VisionSpec

__all__ = ["fake_arguments", "launcher"]

_TOKENS = 32
_WARPS = 8
_HALF = CHANNELS // 2
_VECTORS = CHANNELS // VECTOR
_PITCH = 2 * CHANNELS + 16  # bytes from token to token in shared memory: no two of a store's lanes share a bank
_OUT_ROW = 3 * HEADS * CHANNELS * 2


class _VisionRopeBackward:
    def __init__(self, spec: VisionSpec) -> None:
        self.table_width = spec.table_width

    @cute.jit
    def __call__(
        self,
        stream: cuda.CUstream,
        grad_q: cute.Tensor,
        grad_k: cute.Tensor,
        grad_v: cute.Tensor,
        cosine: cute.Tensor,
        sine: cute.Tensor,
        out: cute.Tensor,
    ) -> None:
        grid = ((grad_q.shape[0] - 1) // _TOKENS + 1, HEADS // _WARPS, 1)
        self.kernel(grad_q, grad_k, grad_v, cosine, sine, out).launch(
            grid=grid, block=(32 * _WARPS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        grad_q: cute.Tensor,
        grad_k: cute.Tensor,
        grad_v: cute.Tensor,
        cosine: cute.Tensor,
        sine: cute.Tensor,
        out: cute.Tensor,
    ) -> None:
        shared = SmemAllocator().allocate(_WARPS * _TOKENS * _PITCH, 16).toint()
        thread = Int32(cute.arch.thread_idx()[0])
        lane, warp = thread % 32, thread // 32
        head = Int32(cute.arch.block_idx()[1]) * _WARPS + warp
        first = Int64(cute.arch.block_idx()[0]) * _TOKENS
        tokens = Int64(grad_q.shape[0])
        target = out.iterator.toint() + Int64(head) * (2 * CHANNELS)
        self.turn_rows(grad_q.iterator.toint(), cosine, sine, target, head, first, tokens, lane)
        self.turn_columns(
            grad_k.iterator.toint(), cosine, sine, target, head, first, tokens, lane, shared + warp * _TOKENS * _PITCH
        )
        self.copy_rows(grad_v.iterator.toint(), target, head, first, tokens, lane)

    @cute.jit
    def turn_rows(
        self,
        source: Int64,
        cosine: cute.Tensor,
        sine: cute.Tensor,
        target: Int64,
        head: Int32,
        first: Int64,
        tokens: Int64,
        lane: Int32,
    ) -> None:
        """Q: four lanes share a token, each with eight channels and their partners."""
        loaded = []
        for step in cutlass.range_constexpr(4):
            token = first + lane // 4 + step * 8
            valid = Int32(token < tokens)
            at = source + (Int64(head) * tokens + token) * (2 * CHANNELS) + Int64(lane % 4) * 16
            words = [load_words(at + part * 2 * _HALF, 16, valid) for part in range(2)]
            loaded.append((token, valid, words))
        for step in cutlass.range_constexpr(4):
            token, valid, (low, high) = loaded[step]
            cosines = self.table(cosine, token, (lane % 4) * VECTOR, VECTOR, valid)
            sines = self.table(sine, token, (lane % 4) * VECTOR, VECTOR, valid)
            firsts, seconds = _turned(widen_pairs(low), widen_pairs(high), cosines, sines)
            at = target + token * _OUT_ROW + Int64(lane % 4) * 16
            store_words(at, narrow_pairs(firsts), 16, valid)
            store_words(at + 2 * _HALF, narrow_pairs(seconds), 16, valid)

    @cute.jit
    def turn_columns(
        self,
        source: Int64,
        cosine: cute.Tensor,
        sine: cute.Tensor,
        target: Int64,
        head: Int32,
        first: Int64,
        tokens: Int64,
        lane: Int32,
        shared: Int32,
    ) -> None:
        """K: a lane holds a token; its neighbours' elements lie beside its own."""
        token = first + lane
        valid = Int32(token < tokens)
        for group in cutlass.range_constexpr(_HALF // VECTOR):
            halves = []
            for part in cutlass.range_constexpr(2):
                channels = [part * _HALF + group * VECTOR + index for index in range(VECTOR)]
                places = [source + ((Int64(head) * CHANNELS + channel) * tokens + token) * 2 for channel in channels]
                halves.append([_widened(load_global(place, 2, valid)[0]) for place in places])
            cosines = self.table(cosine, token, group * VECTOR, VECTOR, valid)
            sines = self.table(sine, token, group * VECTOR, VECTOR, valid)
            firsts, seconds = _turned(halves[0], halves[1], cosines, sines)
            at = shared + lane * _PITCH + group * 16
            store_shared(at, narrow_pairs(firsts), 16)
            store_shared(at + 2 * _HALF, narrow_pairs(seconds), 16)
        cute.arch.sync_warp()
        for step in cutlass.range_constexpr(_TOKENS * _VECTORS // 32):
            row, vector = lane // _VECTORS + step * (32 // _VECTORS), lane % _VECTORS
            words = load_shared(shared + row * _PITCH + vector * 16, 4)
            at = target + (first + row) * _OUT_ROW + HEADS * CHANNELS * 2 + Int64(vector) * 16
            store_words(at, words, 16, Int32(first + row < tokens))

    @cute.jit
    def copy_rows(self, source: Int64, target: Int64, head: Int32, first: Int64, tokens: Int64, lane: Int32) -> None:
        """V: eight lanes share a token."""
        loaded = []
        for step in cutlass.range_constexpr(_TOKENS * _VECTORS // 32):
            token = first + lane // _VECTORS + step * (32 // _VECTORS)
            at = source + (Int64(head) * tokens + token) * (2 * CHANNELS) + Int64(lane % _VECTORS) * 16
            loaded.append((token, load_words(at, 16, Int32(token < tokens))))
        for step in cutlass.range_constexpr(_TOKENS * _VECTORS // 32):
            token, words = loaded[step]
            at = target + token * _OUT_ROW + 2 * HEADS * CHANNELS * 2 + Int64(lane % _VECTORS) * 16
            store_words(at, words, 16, Int32(token < tokens))

    def table(self, table: Any, token: Any, first: Any, count: int, valid: Any) -> list[Float32]:
        at = table.iterator.toint() + token * (_HALF * 4) + Int64(first) * 4
        words = [word for start in range(0, 4 * count, 16) for word in load_words(at + start, self.table_width, valid)]
        return [_as_float(word) for word in words]


def _as_float(word: Any) -> Float32:
    (value,) = assemble("mov.b32 $0, $1;", [Float32], [word])
    return value


def _widened(half: Any) -> Float32:
    return _as_float(half << 16)


def _turned(
    low: list[Any], high: list[Any], cosines: list[Any], sines: list[Any]
) -> tuple[list[Float32], list[Float32]]:
    pairs = [rotate_halves_back(*given) for given in zip(low, high, cosines, sines, strict=True)]
    return [first for first, _ in pairs], [second for _, second in pairs]


def launcher(spec: VisionSpec) -> Any:
    """The host function ``launch(stream, grad_q, grad_k, grad_v, cosine, sine, grad_qkv)``, to be compiled."""
    return _VisionRopeBackward(spec)


def fake_arguments(spec: VisionSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for (grad_q, grad_k, grad_v, cosine, sine, grad_qkv)."""
    return (
        fake_tensor("bfloat16", 2),
        fake_tensor("bfloat16", 0),
        fake_tensor("bfloat16", 2),
        fake_tensor("float32", 2, alignment=spec.table_width),
        fake_tensor("float32", 2, alignment=spec.table_width),
        fake_tensor("bfloat16", 1, rank=2),
    )
