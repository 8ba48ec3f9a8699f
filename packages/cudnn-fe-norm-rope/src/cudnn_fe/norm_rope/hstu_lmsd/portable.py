"""LayerNorm-Multiply-SiLU-Dropout: up to 64 threads share a row, each with a few vectors of it.

With dropout, the operands are copied into shared memory while the random words are computed.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.activations import sigmoid, silu
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.exact import reciprocal_square_root
from cudnn_fe.core.cute.ptx_base import assemble, copy_async, load_global, load_shared
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.row_vectors import VECTOR, load_words, row_address, store_global, store_words, wait_for_copies
from cudnn_fe.core.cute.small_floats import as_bits
from cudnn_fe.norm_rope.hstu_lmsd.dropout import GATE, PRODUCT, X
from cudnn_fe.norm_rope.hstu_lmsd.kernels import LmsdSpec
from cudnn_fe.norm_rope.hstu_lmsd.portable_kept import kept_pairs, mask_words

__all__ = ["fake_arguments", "launcher"]

_RESIDENT = 1024  # threads of a multiprocessor with two vectors each, whose registers then suffice

_SCALARS = {"eps": Float32, "scale": Float32, "threshold": Int32, "seed_low": Int32, "seed_high": Int32}


class _Forward:
    def __init__(self, spec: LmsdSpec) -> None:
        self.spec, self.plan = spec, spec.plan
        self.per_row = spec.columns // VECTOR
        self.groups = RowGroups(spec.plan.threads, spec.plan.groups)
        block = self.groups.block
        self.copies = self.shared_bytes = 4 * self.groups.shared_words(2)
        if spec.dropout:
            self.detour = self.copies + 4 * 16 * spec.plan.vectors * block
            self.shared_bytes = self.detour + 4 * block
        self.blocks = min(_RESIDENT, 2 * _RESIDENT // spec.plan.vectors) // block

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *arguments: Any, **constants: Any) -> None:
        tensors, scalars = _without_scalars(arguments, constants)
        seed = tensors.pop(4) if cutlass.const_expr(self.spec.seed_operand) else None
        mask = tensors.pop() if cutlass.const_expr(self.spec.dropout) else None
        x, u, weight, bias, y, mean, rstd = tensors
        self.kernel(x, u, weight, bias, seed, y, mean, rstd, mask, *scalars).launch(
            grid=((x.shape[0] - 1) // self.plan.groups + 1, 1, 1),
            block=(self.groups.block, 1, 1),
            stream=stream,
            min_blocks_per_mp=self.blocks,
            preferred_smem_carveout=-1,  # the driver's choice; without it the compiler asks a GPU
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        u: cute.Tensor,
        weight: cute.Tensor,
        bias: cute.Tensor,
        seed: Any,
        y: cute.Tensor,
        mean: cute.Tensor,
        rstd: cute.Tensor,
        mask: Any,
        eps: Float32,
        scale: Float32,
        threshold: Int32,
        low: Int32,
        high: Int32,
    ) -> None:
        shared = SmemAllocator().allocate(self.shared_bytes, 16).toint()
        thread = Int32(cute.arch.thread_idx()[0])
        group, lane = self.groups.place()
        row = Int64(cute.arch.block_idx()[0]) * self.plan.groups + group
        inside = row < Int64(x.shape[0])
        limit = cutlass.select_(inside, Int32(self.per_row), Int32(0))
        vectors = [lane + index * self.plan.threads for index in range(self.plan.vectors)]
        valid = [Int32(vector < limit) for vector in vectors]
        sources = (row_address(x, row), row_address(u, row), weight.iterator.toint(), bias.iterator.toint())
        masks = []
        if cutlass.const_expr(self.spec.dropout):
            for which, source in enumerate(sources):
                for place, vector, here in zip(self.places(shared, thread, which), vectors, valid, strict=True):
                    copy_async(place, source + Int64(vector) * 16, 16, here, common=which >= 2)
            if cutlass.const_expr(self.spec.seed_operand):
                words = load_global(seed.iterator.toint(), 4, 1) + load_global(seed.iterator.toint() + 4, 4, 1)
                low, high = words[0], words[1]
            # While the copies are on their way: the random words need nothing of them.
            drawn_for = _behind_copies(Int32(row), shared + self.detour + thread * 4)
            for index in cutlass.range_constexpr(self.plan.vectors):
                masks.append(mask_words((drawn_for, vectors[index]), self.spec.planes, threshold, (low, high)))
                at = mask.iterator.toint() + row * self.spec.columns + Int64(vectors[index]) * VECTOR
                store_global(at, masks[index], 8, valid[index])
            wait_for_copies()
            operands = [[load_shared(place, 4) for place in self.places(shared, thread, which)] for which in range(4)]
        else:
            operands = [
                [load_words(source + Int64(vector) * 16, 16, here) for vector, here in zip(vectors, valid, strict=True)]
                for source in sources
            ]
        total, squares = Float32(0.0), Float32(0.0)
        for value in widen_pairs([word for words in operands[0] for word in words]):
            total += value
            squares += value * value
        total, squares = self.groups.sum([total, squares], shared, Int32(0))
        share = Float32(1.0 / self.spec.columns)
        centre = total * share
        variance = squares * share - centre * centre
        # NaN stays: only a negative variance is clamped.
        variance = cutlass.select_(variance < Float32(0.0), Float32(0.0), variance)
        spread = reciprocal_square_root(variance + eps)
        first = Int32(inside) * Int32(lane == 0)
        for statistic, value in ((mean, centre), (rstd, spread)):
            store_global(statistic.iterator.toint() + row * 4, [as_bits(value)], 4, first)
        for index in cutlass.range_constexpr(self.plan.vectors):
            x8, u8, w8, b8 = (widen_pairs(operand[index]) for operand in operands)
            gate = [self.gate(value, scale) for value in u8]
            product = [((a - centre) * spread * w + b) * g for a, w, b, g in zip(x8, w8, b8, gate, strict=True)]
            values = {GATE: gate, X: x8, PRODUCT: product}
            if cutlass.const_expr(self.spec.dropout):
                values[X] = [value * scale for value in x8]
            target = row_address(y, row) + Int64(vectors[index]) * 16
            for place, plane in enumerate(self.spec.planes):
                words = narrow_pairs(values[plane])
                if cutlass.const_expr(self.spec.dropout):
                    words = kept_pairs(words, masks[index], plane)
                store_words(target + place * (self.spec.columns * 2), words, 16, valid[index])

    def places(self, shared: Any, thread: Any, which: int) -> list[Any]:
        """Where this thread's vectors of an operand go."""
        numbers = range(which * self.plan.vectors, (which + 1) * self.plan.vectors)
        return [shared + self.copies + (number * self.groups.block + thread) * 16 for number in numbers]

    def gate(self, value: Any, scale: Any) -> Any:
        """The gate with dropout's scale, which then is the product's too; in SiLU it costs nothing."""
        if not self.spec.dropout:
            return silu(value) if self.spec.apply_u_silu else value
        return value * (sigmoid(value, scale) if self.spec.apply_u_silu else scale)


def _behind_copies(value: Int32, place: Any) -> Int32:
    """The value, by way of shared memory: what depends on it cannot start before the copies that were begun.

    The assembler would start them last, just before they are waited for.
    """
    code = "st.volatile.shared.b32 [$1], $2; ld.volatile.shared.b32 $0, [$1];"
    (same,) = assemble(code, [Int32], [place, value])
    return same


def _without_scalars(arguments: tuple[Any, ...], constants: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Tensors, and eps, scale, threshold and the seed's words: after the tensors, or by name as JAX gives them."""
    tensors, scalars = list(arguments), [constants.get(name) for name in _SCALARS]
    if not constants:
        tensors, scalars = tensors[: -len(_SCALARS)], tensors[-len(_SCALARS) :]
    return tensors, [kind(value) for kind, value in zip(_SCALARS.values(), scalars, strict=True)]


def launcher(spec: LmsdSpec) -> Any:
    """The host function ``launch(stream, x, u, weight, bias[, seed], y, mean, rstd[, mask], scalars...)`` of a spec."""
    return _Forward(spec)


def fake_arguments(spec: LmsdSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's arguments."""
    return (
        fake_tensor("bfloat16", 1, rank=2),
        fake_tensor("bfloat16", 1, rank=2),
        fake_tensor("bfloat16", 0, rank=1),
        fake_tensor("bfloat16", 0, rank=1),
        *((fake_tensor("int32", 0, rank=1, alignment=4),) if spec.seed_operand else ()),
        fake_tensor("bfloat16", 1, rank=2),
        fake_tensor("float32", 0, rank=1),
        fake_tensor("float32", 0, rank=1),
        *((fake_tensor("int8", 1, rank=2),) if spec.dropout else ()),
        Float32(1e-6),
        Float32(1.0),
        Int32(0),
        Int32(0),
        Int32(0),
    )
