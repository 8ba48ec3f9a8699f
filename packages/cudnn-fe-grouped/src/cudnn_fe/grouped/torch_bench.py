"""The benchmark's cases: experts of known models with even and uneven routing, and who computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cudnn_fe.core.bench import Entrant, MemoryCase
from cudnn_fe.core.pairs import PAIR_BLOCK
from cudnn_fe.grouped.dglu import grouped_gemm_glu_backward
from cudnn_fe.grouped.glu import grouped_gemm_glu_forward
from cudnn_fe.grouped.unfused import grouped_gemm_forward
from cudnn_fe.grouped.wgrad import grouped_gemm_wgrad_forward

__all__ = ["DOWN", "GATE_AND_UP", "SMALL", "Layer", "dglu", "glu", "unfused", "wgrad"]

ROUNDINGS = 2.0**-7  # of bfloat16: of the result, and of what a rival keeps on the way


class Way(NamedTuple):
    """Who computes a case, what part of it, and how; the rest as in `Entrant`."""

    who: str
    does: str
    run: Callable[..., Sequence[Tensor]]
    ours: bool = False
    on_host: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One weight of a model's experts that live on one card; JAX is timed on some: it compiles each shape anew."""

    name: str
    experts: int
    rows: int
    k: int
    n: int
    in_jax: bool = False

    def ends(self, *, even: bool) -> list[int]:
        """Ends of the experts' rows; uneven: by Zipf's law, the experts in a fixed random order."""
        weights = torch.ones(self.experts, dtype=torch.float64)
        if not even:
            order = torch.randperm(self.experts, generator=torch.Generator().manual_seed(1))
            weights = (1 / torch.arange(1, self.experts + 1, dtype=torch.float64))[order]
        found: list[int] = (weights.cumsum(0) / weights.sum() * self.rows).round().int().tolist()
        return found


GATE_AND_UP = (
    Layer("64 experts of 2816", 64, 16384, 2048, 2816, in_jax=True),
    Layer("8 experts of 14336", 8, 16384, 4096, 14336),
    Layer("DeepSeek-V3 gate and up", 32, 16384, 7168, 4096),
    Layer("Qwen3-30B gate and up", 128, 65536, 2048, 1536),
    Layer("Mixtral 8x7B gate and up", 8, 8192, 4096, 28672, in_jax=True),
)
DOWN = (
    Layer("DeepSeek-V3 down", 32, 16384, 2048, 7168, in_jax=True),
    Layer("Qwen3-30B down", 128, 65536, 768, 2048),
    Layer("Mixtral 8x7B down", 8, 8192, 14336, 4096),
)
_DECODING = (Layer("DeepSeek-V3 gate and up, 16 rows an expert", 32, 512, 7168, 4096),)
SMALL = (Layer("small", 4, 96, 64, 128, in_jax=True),)


def _cases(
    layers: Sequence[Layer],
    make: Callable[[Layer, str, Tensor], tuple[Any, ...]],
    ours: Callable[..., Sequence[Tensor]],
    ways: Callable[[Layer, str, list[int], str | None], Sequence[Way]],
    written: Callable[[Layer], int],
) -> list[MemoryCase]:
    """Each layer with even and uneven routing.

    Args:
        layers: The weights.
        make: A set of operands of a layer on a device, with given ends.
        ours: This project's call on them, by a backend.
        ways: The others on a device, this project's by a backend; a host may know the ends.
        written: Elements of the results, and of operands besides rows and weights.
    """

    def case(layer: Layer, *, even: bool) -> MemoryCase:
        ends = layer.ends(even=even)

        def entrants(place: str, sets: int, backend: str | None) -> list[Entrant]:
            torch.manual_seed(layer.n)
            operands = [make(layer, place, torch.tensor(ends, dtype=torch.int32, device=place)) for _ in range(sets)]

            @cache
            def exact() -> Sequence[Tensor]:
                return ours(*operands[0], "reference")

            def entrant(way: Way) -> Entrant:
                defined = exact if way.does == "op" else lambda: way.run(*operands[0])
                run = way.run
                return Entrant(way.who, lambda index: run(*operands[index]), defined, way.does, way.ours, way.on_host)

            first = Entrant("cudnn-fe", lambda index: ours(*operands[index], backend), exact, ours=True)
            return [first, *map(entrant, ways(layer, place, ends, backend))]

        elements = layer.rows * layer.k + layer.experts * layer.n * layer.k + written(layer)
        flops = 2 * layer.rows * layer.n * layer.k
        shape = (layer.rows, layer.n, layer.k, layer.experts)
        name = f"{layer.name}, {'even' if even else 'Zipf'}"
        return MemoryCase(name, shape, "bfloat16", 2 * elements, ROUNDINGS, entrants, flops)

    return [case(layer, even=even) for layer in layers for even in (True, False)]


def _normal(place: str, *shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=place) * scale).bfloat16()


def _rows(layer: Layer, place: str, ends: Tensor) -> tuple[Any, ...]:
    """A, ends, alpha, B and prob."""
    weights = _normal(place, layer.experts, layer.n, layer.k, scale=layer.k**-0.5)
    ones = torch.ones(layer.experts, device=place), torch.ones(layer.rows, device=place)
    return _normal(place, layer.rows, layer.k), ends, ones[0], weights, ones[1]


def _torch_product(place: str, host_ends: list[int]) -> tuple[str, Callable[..., Tensor]]:
    """The framework's grouped product of A and B; on a CPU one product an expert."""

    def product(a: Tensor, ends: Tensor, b: Tensor) -> Tensor:
        found: Tensor = torch._grouped_mm(a, b.transpose(1, 2), offs=ends)
        return found

    def loop(a: Tensor, ends: Tensor, b: Tensor) -> Tensor:
        begins = [0, *host_ends[:-1]]
        return torch.cat([a[i:j] @ w.T for i, j, w in zip(begins, host_ends, b, strict=True)])

    return ("torch._grouped_mm", product) if place == "cuda" else ("torch, expert by expert", loop)


def unfused(cuda: bool) -> list[MemoryCase]:
    """The grouped GEMM alone."""

    def ours(a: Tensor, ends: Tensor, alpha: Tensor, b: Tensor, prob: Tensor, backend: str | None) -> Sequence[Tensor]:
        return (grouped_gemm_forward(a, ends, alpha, b, prob_tensor=prob, backend=backend)["d_tensor"],)

    def ways(layer: Layer, place: str, ends: list[int], backend: str | None) -> list[Way]:
        who, product = _torch_product(place, ends)
        found = [Way(who, "op", lambda a, ends, alpha, b, prob: (product(a, ends, b),))]
        if not layer.in_jax or find_spec("jax") is None:
            return found
        from cudnn_fe.grouped.jax_bench import products  # JAX is installed

        in_jax, ragged_dot = products(backend)
        found.append(Way("cudnn-fe in JAX", "op", in_jax, ours=True, on_host=True))
        return [*found, Way("jax.lax.ragged_dot", "op", ragged_dot, on_host=True)]

    layers = (*GATE_AND_UP, *DOWN, *_DECODING) if cuda else SMALL
    return _cases(layers, _rows, ours, ways, lambda layer: layer.rows * layer.n)


def _swiglu(c: Tensor) -> Tensor:
    gate, up = c.view(c.shape[0], -1, 2, PAIR_BLOCK).unbind(2)
    return (torch.nn.functional.silu(gate) * up).flatten(1)


def _swiglu_gradient(product: Tensor, c: Tensor, prob: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = c.float().view(c.shape[0], -1, 2, PAIR_BLOCK).unbind(2)
    product = product.float().view(gate.shape)
    sigmoid = gate.sigmoid()
    silu, weighted = gate * sigmoid, product * prob[:, None, None]
    of_gate = weighted * up * (sigmoid + silu * (1 - sigmoid))
    d = torch.stack((of_gate, weighted * silu), 2).flatten(1).to(c.dtype)
    return d, (product * silu * up).sum((1, 2))


@cache
def _compiled(function: Callable[..., Any], place: str) -> Callable[..., Any]:
    """Compiled for any extents; on a CPU it would need a C++ compiler, and minutes."""
    return torch.compile(function, dynamic=True) if place == "cuda" else function


def glu(cuda: bool) -> list[MemoryCase]:
    """The grouped GEMM with SwiGLU."""

    def ours(a: Tensor, ends: Tensor, alpha: Tensor, b: Tensor, prob: Tensor, backend: str | None) -> Sequence[Tensor]:
        return (grouped_gemm_glu_forward(a, None, ends, alpha, b, prob_tensor=prob, backend=backend)["d_tensor"],)

    def alone(a: Tensor, ends: Tensor, alpha: Tensor, b: Tensor, prob: Tensor) -> Sequence[Tensor]:
        return (grouped_gemm_forward(a, ends, alpha, b, prob_tensor=prob)["d_tensor"],)

    def ways(_: Layer, place: str, ends: list[int], backend: str | None) -> list[Way]:
        del backend
        who, product = _torch_product(place, ends)
        activate = _compiled(_swiglu, place)
        found = [Way(f"{who} + SwiGLU", "op", lambda a, ends, alpha, b, prob: (activate(product(a, ends, b)),))]
        if place == "cuda":
            found.append(Way(who, "GEMM alone", lambda a, ends, alpha, b, prob: (product(a, ends, b),)))
            found.append(Way("cudnn-fe unfused", "GEMM alone", alone))
        return found

    layers = (*GATE_AND_UP, *_DECODING) if cuda else SMALL
    return _cases(layers, _rows, ours, ways, lambda layer: layer.rows * layer.n // 2)


def dglu(cuda: bool) -> list[MemoryCase]:
    """SwiGLU's gradient: the next layer's weights, as its forward holds them, and what the forward kept."""

    def make(layer: Layer, place: str, ends: Tensor) -> tuple[Any, ...]:
        columns = _normal(place, layer.experts, layer.k, layer.n, scale=layer.k**-0.5)
        kept, prob = _normal(place, layer.rows, 2 * layer.n), torch.rand(layer.rows, device=place)
        return _normal(place, layer.rows, layer.k), kept, ends, torch.ones(layer.experts, device=place), prob, columns

    def ours(
        dy: Tensor, c: Tensor, ends: Tensor, one: Tensor, prob: Tensor, b: Tensor, backend: str | None
    ) -> Sequence[Tensor]:
        dprob = torch.zeros_like(prob)
        out = grouped_gemm_glu_backward(
            dy, c, None, ends, one, one, prob, dprob, b, b_major="n", d_dtype=c.dtype, backend=backend
        )
        return out["d_row_tensor"], dprob

    def alone(dy: Tensor, c: Tensor, ends: Tensor, one: Tensor, prob: Tensor, b: Tensor) -> Sequence[Tensor]:
        del c
        return (grouped_gemm_forward(dy, ends, one, b, b_major="n", prob_tensor=prob)["d_tensor"],)

    def ways(_: Layer, place: str, ends: list[int], backend: str | None) -> list[Way]:
        del backend
        who, product = _torch_product(place, ends)
        derive = _compiled(_swiglu_gradient, place)

        def unfused(dy: Tensor, c: Tensor, ends: Tensor, one: Tensor, prob: Tensor, b: Tensor) -> Sequence[Tensor]:
            del one
            found: Sequence[Tensor] = derive(product(dy, ends, b.transpose(1, 2)), c, prob)
            return found

        def rival(dy: Tensor, c: Tensor, ends: Tensor, one: Tensor, prob: Tensor, b: Tensor) -> Sequence[Tensor]:
            del c, one, prob
            return (product(dy, ends, b.transpose(1, 2)),)

        found = [Way(f"{who} + its gradient", "op", unfused)]
        return [*found, Way(who, "GEMM alone", rival), Way("cudnn-fe unfused", "GEMM alone", alone)]

    layers = [replace(layer, n=layer.n // 2) for layer in GATE_AND_UP] if cuda else SMALL
    return _cases(layers, make, ours, ways, lambda layer: 4 * layer.rows * layer.n)


def wgrad(cuda: bool) -> list[MemoryCase]:
    """The weight gradients."""

    def make(layer: Layer, place: str, ends: Tensor) -> tuple[Any, ...]:
        gradient = _normal(place, layer.rows, layer.n, scale=layer.rows**-0.5)
        return gradient, _normal(place, layer.rows, layer.k), ends

    def ours(dy: Tensor, x: Tensor, ends: Tensor, backend: str | None) -> Sequence[Tensor]:
        return (grouped_gemm_wgrad_forward(dy.T, x, None, None, ends, backend=backend)["wgrad_tensor"],)

    def product(dy: Tensor, x: Tensor, ends: Tensor) -> Sequence[Tensor]:
        return (torch._grouped_mm(dy.T, x, offs=ends),)

    def ways(_: Layer, place: str, ends: list[int], backend: str | None) -> list[Way]:
        del backend

        def loop(dy: Tensor, x: Tensor, _: Tensor) -> Sequence[Tensor]:
            begins = [0, *ends[:-1]]
            return (torch.stack([dy[i:j].T @ x[i:j] for i, j in zip(begins, ends, strict=True)]),)

        if place == "cuda":
            return [Way("torch._grouped_mm", "op", product)]
        return [Way("torch, expert by expert", "op", loop)]

    layers = (*GATE_AND_UP, *DOWN) if cuda else SMALL
    return _cases(layers, make, ours, ways, lambda layer: layer.rows * layer.n)
