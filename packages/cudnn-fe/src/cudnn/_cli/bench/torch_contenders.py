"""Who takes part in a GEMM benchmark: this project, and every rival that is installed, each in its own best layout."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from cudnn._cli.bench.shapes import Shape
from cudnn_fe.core.dtypes import dtype

__all__ = ["Case", "Contender", "contenders"]

Computes = Literal["product", "activation"]


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to compute a case.

    Attributes:
        who: Its name in the table.
        run: Computes operand set ``index`` and returns the (M, N) product or the (M, N/2) activation.
        computes: Which of the two.
        ours: Whether it is this project's.
    """

    who: str
    run: Callable[[int], Tensor]
    computes: Computes
    ours: bool = False


class Case:
    """Operands of one shape, several sets of them.

    Args:
        shape: N and K.
        m: Rows.
        kind: Element type by name.
        where: ``"cuda"`` or ``"cpu"``.
        sets: How many sets.
    """

    def __init__(self, shape: Shape, m: int, kind: str, where: str, sets: int) -> None:
        self.shape, self.m, self.kind = shape, m, kind
        generator = torch.Generator(where).manual_seed(m * 31 + shape.n)

        def matrix(rows: int, columns: int, scale: float) -> Tensor:
            drawn = torch.randn(rows, columns, generator=generator, device=where) * scale
            return drawn.to(getattr(torch, dtype(kind).torch))

        self.a = [matrix(m, shape.k, 1.0) for _ in range(sets)]
        self.b = [matrix(shape.n, shape.k, shape.k**-0.5) for _ in range(sets)]

    @property
    def operand_bytes(self) -> int:
        """Bytes of one set."""
        return sum(x.numel() * x.element_size() for x in (self.a[0], self.b[0]))

    @cached_property
    def b_halves(self) -> list[Tensor]:
        """B with all value rows before all gate rows, as models store it."""
        return [b.view(-1, 2, 32, b.shape[1]).transpose(0, 1).flatten(0, 2).contiguous() for b in self.b]

    @cached_property
    def b_pairs(self) -> list[Tensor]:
        """B with gate and value rows alternating one by one."""
        return [b.view(-1, 2, 32, b.shape[1]).flip(1).transpose(1, 2).flatten(0, 2).contiguous() for b in self.b]


def _fused_plain(a: Tensor, b: Tensor) -> Tensor:
    value, gate = (a @ b.T).chunk(2, dim=1)
    return value * torch.nn.functional.silu(gate)


@cache
def _compiled_plain() -> Callable[[Tensor, Tensor], Tensor]:
    """Compiled once: its product is cuBLAS's whatever the shape, and what follows is bound by memory."""
    return torch.compile(_fused_plain, dynamic=True)


def contenders(op: str, case: Case, backend: str | None) -> list[Contender]:
    """Everyone who can compute ``op`` on ``case`` here; this project first."""
    cuda = case.a[0].is_cuda
    library = "cuBLAS" if cuda else "torch matmul"
    product = Contender(library, lambda i: case.a[i] @ case.b[i].T, "product")
    if op == "matmul":
        return [_our_product(case, backend), product, *_quack(case, "product")]
    found = [_our_activation(case, backend), _our_product(case, backend), product]
    found.append(Contender("torch eager", lambda i: _fused_plain(case.a[i], case.b_halves[i]), "activation"))
    if cuda:  # on a CPU it needs a C++ compiler, and minutes
        fused = _compiled_plain()
        found.append(Contender("torch.compile", lambda i: fused(case.a[i], case.b_halves[i]), "activation"))
    return [*found, *_quack(case, "activation")]


def _our_activation(case: Case, backend: str | None) -> Contender:
    from cudnn_fe.gemm import gemm_swiglu_forward

    out = "bfloat16" if case.kind == "float32" else case.kind
    a, b = [x[:, :, None] for x in case.a], [x[:, :, None] for x in case.b]

    def run(index: int) -> Tensor:
        result = gemm_swiglu_forward(a[index], b[index], ab12_dtype=case.kind, c_dtype=out, backend=backend)
        activated: Tensor = result["c_tensor"]
        return activated[:, :, 0]

    return Contender("cudnn-fe", run, "activation", ours=True)


def _our_product(case: Case, backend: str | None) -> Contender:
    from cudnn_fe.gemm.matmul import matmul

    a, b = [x[:, :, None] for x in case.a], [x[:, :, None] for x in case.b]

    def run(index: int) -> Tensor:
        product: Tensor = matmul(a[index], b[index], d_dtype=case.kind, backend=backend)
        return product[:, :, 0]

    return Contender("cudnn-fe GEMM", run, "product", ours=True)


def _quack(case: Case, computes: Computes) -> list[Contender]:
    if not case.a[0].is_cuda or importlib.util.find_spec("quack") is None:
        return []
    interface: Any = importlib.import_module("quack.gemm_interface")
    if computes == "product":
        return [Contender("QuACK", lambda i: interface.gemm(case.a[i], case.b[i].T), "product")]

    def run(index: int) -> Tensor:
        activated: Tensor = interface.gemm_gated(case.a[index], case.b_pairs[index].T, activation="swiglu")[1]
        return activated

    return [Contender("QuACK", run, "activation")]
