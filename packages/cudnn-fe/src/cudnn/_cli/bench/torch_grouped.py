"""Who takes part in a benchmark of grouped GEMMs, and their operands."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cudnn._cli.bench.shapes import Shape
from cudnn._cli.bench.torch_contenders import Computes, Contender
from cudnn_fe.core.dtypes import dtype

__all__ = ["GroupedCase", "grouped_contenders", "jax_contenders", "rows_of_experts"]

_CHECKED = 64  # rows of a product, or rows of each expert's gradient: float64 products of all would take too long


def rows_of_experts(routing: str, m: int, experts: int) -> list[int]:
    """How many of ``m`` rows each expert gets: ``"even"``, or ``"Zipf"`` with shares of 1 / (i + 1) in some order."""
    share = np.ones(experts) if routing == "even" else 1.0 / np.arange(1, experts + 1)
    counts = np.floor(m * share / share.sum()).astype(int)
    counts[: m - counts.sum()] += 1
    return [int(count) for count in np.random.default_rng(0).permutation(counts)]


class GroupedCase:
    """Operands of one shape and routing, several sets of them.

    Args:
        shape: Of an expert's weights, and how many there are.
        m: Rows of all experts.
        routing: How they are spread.
        kind: Element type by name.
        where: ``"cuda"`` or ``"cpu"``.
        sets: How many sets.
    """

    def __init__(self, shape: Shape, m: int, routing: str, kind: str, where: str, sets: int) -> None:
        self.shape, self.m, self.routing, self.kind = shape, m, routing, kind
        self.counts = rows_of_experts(routing, m, shape.experts)
        generator = torch.Generator(where).manual_seed(m * 31 + shape.n)

        def tensor(*extents: int, scale: float = 1.0) -> Tensor:
            drawn = torch.empty(extents, device=where, dtype=getattr(torch, dtype(kind).torch))
            return drawn.normal_(0.0, scale, generator=generator)

        self.a = [tensor(m, shape.k) for _ in range(sets)]
        self.b = [tensor(shape.experts, shape.n, shape.k, scale=shape.k**-0.5) for _ in range(sets)]
        self.dy = [tensor(m, shape.n) for _ in range(sets)]
        self.ends = torch.tensor(np.cumsum(self.counts), dtype=torch.int32, device=where)
        self.one, self.ones = (torch.ones(extent, device=where) for extent in (shape.experts, m))

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.shape.name}, {self.routing}, M {self.m}"

    def checked(self, result: Tensor, computes: Computes) -> Tensor:
        """The part of a result that is compared."""
        return result[:, :_CHECKED] if computes == "gradient" else result[self._rows()]

    def exact(self, computes: Computes) -> Tensor:
        """The same part of the first operand set's result, in float64."""
        rows = self.a[0].split(self.counts)
        if computes == "gradient":
            pairs = zip(self.dy[0][:, :_CHECKED].split(self.counts), rows, strict=True)
            return torch.stack([dy.double().T @ a.double() for dy, a in pairs])
        owner = torch.searchsorted(self.ends, self._rows().int(), right=True)
        picked = self.a[0][self._rows()].double()
        product = torch.cat([picked[owner == e] @ w.double().T for e, w in enumerate(self.b[0]) if (owner == e).any()])
        return product if computes == "product" else _activated(product)

    def _rows(self) -> Tensor:
        return torch.linspace(0, self.m - 1, min(self.m, _CHECKED), device=self.ends.device).long()


def _activated(product: Tensor) -> Tensor:
    gate, up = product.unflatten(1, (-1, 2, 32)).unbind(2)
    activated: Tensor = (torch.nn.functional.silu(gate) * up).flatten(1)
    return activated


def grouped_contenders(op: str, case: GroupedCase, backend: str | None) -> list[Contender]:
    """Everyone who can compute ``op`` on ``case`` here; this project first."""
    if op == "grouped_gemm_wgrad_forward":
        return [_our_gradient(case, backend), *_torch(case, "gradient")]
    found = [_our_product(case, backend), *_torch(case, "product")]
    if op == "grouped_gemm_glu_forward":
        return [_our_activation(case, backend), *found, *_torch(case, "activation")]
    return [*found, *jax_contenders(case, backend)] if case.ends.is_cuda else found  # on a CPU it compiles for long


def _our_product(case: GroupedCase, backend: str | None) -> Contender:
    from cudnn_fe.grouped import grouped_gemm_forward

    def run(index: int) -> Tensor:
        named: dict[str, Any] = {"prob_tensor": case.ones, "d_dtype": case.kind, "backend": backend}
        product: Tensor = grouped_gemm_forward(case.a[index], case.ends, case.one, case.b[index], **named)[0]
        return product

    return Contender("cudnn-fe GEMM", run, "product", ours=True)


def _our_activation(case: GroupedCase, backend: str | None) -> Contender:
    from cudnn_fe.grouped import grouped_gemm_glu_forward

    def run(index: int) -> Tensor:
        named: dict[str, Any] = {"prob_tensor": case.ones, "d_dtype": case.kind, "backend": backend}
        result = grouped_gemm_glu_forward(case.a[index], None, case.ends, case.one, case.b[index], **named)
        activated: Tensor = result["d_tensor"]
        return activated

    return Contender("cudnn-fe", run, "activation", ours=True)


def _our_gradient(case: GroupedCase, backend: str | None) -> Contender:
    from cudnn_fe.grouped import grouped_gemm_wgrad_forward

    def run(index: int) -> Tensor:
        named: dict[str, Any] = {"wgrad_dtype": case.kind, "backend": backend}
        result = grouped_gemm_wgrad_forward(case.dy[index].T, case.a[index], None, None, case.ends, **named)
        gradient: Tensor = result["wgrad_tensor"]
        return gradient

    return Contender("cudnn-fe", run, "gradient", ours=True)


def _torch(case: GroupedCase, computes: Computes) -> list[Contender]:
    """torch's own grouped GEMM, which takes bfloat16 on a GPU alone; elsewhere a loop over the experts."""
    if not (case.ends.is_cuda and case.kind == "bfloat16"):
        who = "torch eager" if computes == "activation" else "torch loop"
        return [Contender(who, lambda index: _loop(case, index, computes), computes)]
    grouped: Any = torch._grouped_mm

    def product(index: int) -> Tensor:
        found: Tensor = grouped(case.a[index], case.b[index].transpose(1, 2), offs=case.ends)
        return found

    def gradient(index: int) -> Tensor:
        found: Tensor = grouped(case.dy[index].T, case.a[index], offs=case.ends)
        return found

    if computes == "gradient":
        return [Contender("torch._grouped_mm", gradient, computes)]
    if computes == "product":
        return [Contender("torch._grouped_mm", product, computes)]
    fused = _compiled_activation()
    return [Contender("torch.compile", lambda index: fused(product(index)), computes)]


@cache
def _compiled_activation() -> Callable[[Tensor], Tensor]:
    """Compiled once: it is bound by memory whatever the shape."""
    return torch.compile(_activated, dynamic=True)


def _loop(case: GroupedCase, index: int, computes: Computes) -> Tensor:
    rows = case.a[index].split(case.counts)
    if computes == "gradient":
        return torch.stack([dy.T @ a for dy, a in zip(case.dy[index].split(case.counts), rows, strict=True)])
    product = torch.cat([a @ w.T for a, w in zip(rows, case.b[index], strict=True)])
    return product if computes == "product" else _activated(product)


def jax_contenders(case: GroupedCase, backend: str | None) -> list[Contender]:
    """In JAX, each call waited for: this project's entry and JAX's own op."""
    if importlib.util.find_spec("jax") is None:
        return []
    import jax
    import jax.numpy as jnp

    from cudnn_fe.grouped import grouped_gemm_jax_forward

    shared = [jnp.from_dlpack(tensor) for tensor in (case.ends, case.one, case.ones)]
    sets = [(jnp.from_dlpack(a), jnp.from_dlpack(b)) for a, b in zip(case.a, case.b, strict=True)]

    @jax.jit
    def ours(a: Any, b: Any, ends: Any, one: Any, ones: Any) -> Any:
        named: dict[str, Any] = {"b_tensor": b, "prob_tensor": ones, "d_dtype": case.kind, "backend": backend}
        return grouped_gemm_jax_forward(a, ends, one, **named)[0]

    @jax.jit
    def plain(a: Any, b: Any, ends: Any, one: Any, ones: Any) -> Any:
        del one, ones
        return jax.lax.ragged_dot(a, b.transpose(0, 2, 1), jnp.diff(ends, prepend=0))

    def contender(who: str, function: Any, *, ours: bool) -> Contender:
        def run(index: int) -> Tensor:
            return torch.from_dlpack(jax.block_until_ready(function(*sets[index], *shared)))

        return Contender(who, run, "product", ours=ours, on_host=True)

    return [
        contender("cudnn-fe in JAX", ours, ours=True),
        contender("jax.lax.ragged_dot", plain, ours=False),
    ]
