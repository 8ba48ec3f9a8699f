"""LayerNorm-Multiply-SiLU-Dropout: up to 64 threads share a row, which stays in their registers."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from cudnn_fe.core.cute.activations import sigmoid, silu
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.bfloat16_pairs import narrow_pairs, widen_pairs
from cudnn_fe.core.cute.exact import divide, square_root
from cudnn_fe.core.cute.ptx_base import load_global
from cudnn_fe.core.cute.row_reduce import RowGroups
from cudnn_fe.core.cute.row_vectors import VECTOR, load_vectors, row_address, store_global, store_words
from cudnn_fe.core.cute.small_floats import as_bits
from cudnn_fe.norm_rope.hstu_lmsd.dropout import GATE, PRODUCT, X
from cudnn_fe.norm_rope.hstu_lmsd.kept import kept_pairs, mask_words
from cudnn_fe.norm_rope.hstu_lmsd.op import LmsdSpec

__all__ = ["fake_arguments", "launcher"]

_BLOCKS = 8  # on one multiprocessor: the random words are integer arithmetic, which more warps keep busy

_SCALARS = {"eps": Float32, "scale": Float32, "threshold": Int32, "seed_low": Int32, "seed_high": Int32}


class _Forward:
    def __init__(self, spec: LmsdSpec) -> None:
        self.spec, self.plan = spec, spec.plan
        self.per_row = spec.columns // VECTOR
        self.groups = RowGroups(spec.plan.threads, spec.plan.groups)

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
            min_blocks_per_mp=_BLOCKS,
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
        shared = SmemAllocator().allocate(4 * self.groups.shared_words(2), 16).toint()
        group, lane = self.groups.place()
        row = Int64(cute.arch.block_idx()[0]) * self.plan.groups + group
        inside = row < Int64(x.shape[0])
        limit = cutlass.select_(inside, Int32(self.per_row), Int32(0))
        xs, us, ws, bs = (cute.make_rmem_tensor(4 * self.plan.vectors, Int32) for _ in range(4))
        load_vectors(xs, row_address(x, row), lane, self.plan.threads, limit, 16)
        load_vectors(us, row_address(u, row), lane, self.plan.threads, limit, 16)
        load_vectors(ws, weight.iterator.toint(), lane, self.plan.threads, self.per_row, 16)
        load_vectors(bs, bias.iterator.toint(), lane, self.plan.threads, self.per_row, 16)
        if cutlass.const_expr(self.spec.seed_operand):
            words = load_global(seed.iterator.toint(), 4, 1) + load_global(seed.iterator.toint() + 4, 4, 1)
            low, high = words[0], words[1]
        vectors = [lane + index * self.plan.threads for index in range(self.plan.vectors)]
        valid = [Int32(vector < limit) for vector in vectors]
        masks = []
        if cutlass.const_expr(self.spec.dropout):
            # Before anything waits for the loads: the random words need none of them.
            for index in cutlass.range_constexpr(self.plan.vectors):
                masks.append(mask_words((Int32(row), vectors[index]), self.spec.planes, threshold, (low, high)))
                at = mask.iterator.toint() + row * self.spec.columns + Int64(vectors[index]) * VECTOR
                store_global(at, masks[index], 8, valid[index])
        total, squares = Float32(0.0), Float32(0.0)
        for value in widen_pairs([xs[index] for index in range(4 * self.plan.vectors)]):
            total += value
            squares += value * value
        total, squares = self.groups.sum([total, squares], shared, Int32(0))
        share = Float32(1.0 / self.spec.columns)
        centre = total * share
        variance = squares * share - centre * centre
        # NaN stays: only a negative variance is clamped.
        variance = cutlass.select_(variance < Float32(0.0), Float32(0.0), variance)
        spread = divide(1.0, square_root(variance + eps))
        first = Int32(inside) * Int32(lane == 0)
        for statistic, value in ((mean, centre), (rstd, spread)):
            store_global(statistic.iterator.toint() + row * 4, [as_bits(value)], 4, first)
        for index in cutlass.range_constexpr(self.plan.vectors):
            x8, u8, w8, b8 = (widen_pairs([part[index * 4 + word] for word in range(4)]) for part in (xs, us, ws, bs))
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

    def gate(self, value: Any, scale: Any) -> Any:
        """The gate with dropout's scale, which then is the product's too; in SiLU it costs nothing."""
        if not self.spec.dropout:
            return silu(value) if self.spec.apply_u_silu else value
        return value * (sigmoid(value, scale) if self.spec.apply_u_silu else scale)


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
