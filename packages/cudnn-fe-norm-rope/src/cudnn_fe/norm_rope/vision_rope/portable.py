"""The vision encoder's RoPE backward: a block takes 64 tokens of a head, of Q, K and V at once.

Four lanes share a token, each with eight channels and their partners half a head on. K lies with the tokens innermost:
it goes through shared memory, whose transposing loads pick channels so that K arrives in registers as Q does.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.ptx_base import load_global, load_matrix, store_shared
from cudnn_fe.core.cute.rotary import rotate_halves_back
from cudnn_fe.core.cute.row_vectors import VECTOR, load_floats, load_words, store_words
from cudnn_fe.norm_rope.vision_rope.op import CHANNELS, HEADS, VisionSpec

__all__ = ["fake_arguments", "launcher"]

_WARPS = 8
_TOKENS = 8 * _WARPS
_ROW = 2 * CHANNELS  # bytes of a token's head
_HALF_ROW = CHANNELS  # bytes from a channel to its partner
_PART = HEADS * _ROW  # bytes of a token's Q, K or V in the result
_TILE_ROW = 2 * _TOKENS  # bytes of a channel of K in shared memory
_TILE = CHANNELS * _TILE_ROW


class _VisionRopeBackward:
    def __init__(self, spec: VisionSpec) -> None:
        self.spec = spec

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
        # The heads of a token follow one another: what they write lies side by side, and goes to memory together.
        grid = (((grad_q.shape[0] - 1) // _TOKENS + 1) * HEADS, 1, 1)
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
        shared = SmemAllocator().allocate(_TILE, 128).toint()
        thread = Int32(cute.arch.thread_idx()[0])
        lane, warp = thread % 32, thread // 32
        quarter = lane % 4
        block = Int32(cute.arch.block_idx()[0])
        head, first = block % HEADS, Int64(block // HEADS) * _TOKENS
        tokens = Int64(grad_q.shape[0])
        token = first + thread // 4
        valid = Int32(token < tokens)
        columns = self.load_columns(grad_k.iterator.toint(), head, first, tokens, thread)
        place = (Int64(head) * tokens + token) * _ROW + Int64(quarter * 16)
        row, copied = (self.load_row(source.iterator.toint() + place, valid) for source in (grad_q, grad_v))
        at = token * (CHANNELS // 2 * 4) + Int64(quarter * (VECTOR * 4))
        width = self.spec.table_width
        cosines = load_floats(cosine.iterator.toint() + at, VECTOR, valid, width)
        sines = load_floats(sine.iterator.toint() + at, VECTOR, valid, width)
        _store_columns(shared, thread, columns)
        target = out.iterator.toint() + token * (3 * _PART) + Int64(head * _ROW + quarter * 16)
        _store_row(target, _turned(*row, cosines, sines), valid)
        _store_row(target + 2 * _PART, copied, valid)
        cute.arch.sync_threads()
        _store_row(target + _PART, _turned(*_transposed(shared, lane, warp), cosines, sines), valid)

    def load_row(self, place: Any, valid: Any) -> tuple[list[Any], list[Any]]:
        """Eight channels of a token, and their partners."""
        return load_words(place, 16, valid), load_words(place + _HALF_ROW, 16, valid)

    def load_columns(self, source: Any, head: Any, first: Any, tokens: Any, thread: Any) -> list[list[Any]]:
        """This thread's share of K's tile: eight tokens of a channel at a time; zeros past the last token."""
        loaded = []
        for step in range(CHANNELS // (32 * _WARPS // 8)):
            channel, token = thread // 8 + step * (32 * _WARPS // 8), first + thread % 8 * VECTOR
            place = source + ((Int64(head) * CHANNELS + channel) * tokens + token) * 2
            loaded.append(_load_partly(place, self.spec.column_width, token, tokens))
        return loaded


def _load_partly(place: Any, width: int, token: Any, tokens: Any) -> list[Int32]:
    """Four words by accesses of ``width`` bytes, each of which lies before the last token or behind it."""
    pieces = []
    for start in range(0, 16, width):
        pieces += load_global(place + start, width, Int32(token + start // 2 < tokens))
    if width > 2:
        return pieces
    return [low | (high << 16) for low, high in zip(pieces[::2], pieces[1::2], strict=True)]


def _swizzle(channel: Any) -> Any:
    """What the places of a channel's vectors are xor-ed with: both a store's and a load's eight lie in eight banks."""
    return ((channel >> 3) & 3) * 2 + (channel & 1)


def _store_columns(tile: Any, thread: Any, columns: list[list[Any]]) -> None:
    for step, words in enumerate(columns):
        channel = thread // 8 + step * (32 * _WARPS // 8)
        store_shared(tile + channel * _TILE_ROW + (thread % 8 ^ _swizzle(channel)) * 16, words, 16)


def _transposed(tile: Any, lane: Any, warp: Any) -> tuple[list[Any], list[Any]]:
    """A warp's eight tokens as `load_row` gives them: of eight channels in a row, each matrix has two."""
    channel = lane % 8 // 2 * 8 + lane // 8 * 2 + lane % 2
    at = tile + channel * _TILE_ROW + (warp ^ _swizzle(channel)) * 16
    return load_matrix(at, transpose=True), load_matrix(at + CHANNELS // 2 * _TILE_ROW, transpose=True)


def _turned(low: list[Any], high: list[Any], cosines: list[Float32], sines: list[Float32]) -> tuple[Any, Any]:
    pairs = [
        rotate_halves_back(*given) for given in zip(widen_pairs(low), widen_pairs(high), cosines, sines, strict=True)
    ]
    return narrow_pairs([first for first, _ in pairs]), narrow_pairs([second for _, second in pairs])


def _store_row(place: Any, halves: tuple[list[Any], list[Any]], valid: Any) -> None:
    store_words(place, halves[0], 16, valid)
    store_words(place + _HALF_ROW, halves[1], 16, valid)


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
