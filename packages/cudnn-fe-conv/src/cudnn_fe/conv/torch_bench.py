"""The benchmark's cases: both memory layouts of sequences, and decoding steps, beside torch and fla."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cudnn_fe.conv import causal_conv1d, causal_conv1d_backward, causal_conv1d_update
from cudnn_fe.core.bench import MemoryCase
from cudnn_fe.core.torch_bench import Rival, compiled_and_eager, normal, operand_case

__all__ = ["backward", "forward", "update"]

_WIDTH = 4
_SEQUENCES = (
    ("a long training batch", 4, 4096, 8192),
    ("a batch of 8", 8, 2048, 4096),
    ("one long sequence", 1, 5120, 32768),
    ("a short batch", 2, 8192, 2048),
)
_PACKED = (4096, 32768)  # channels and tokens
_COUNTS = (16, 512)  # sequences in them, of random lengths
_STEPS = ((1, 4096), (64, 4096), (256, 8192))


def _operands(place: str, batch: int, channels: int, time: int, last: bool) -> tuple[Tensor, ...]:
    shape = (batch, time, channels) if last else (batch, channels, time)
    x = normal(place, *shape)
    return x.transpose(1, 2) if last else x, normal(place, channels, _WIDTH), normal(place, channels)


def _offsets(place: str, tokens: int, count: int) -> Tensor:
    """Sequences' starts, the first 0, and the end of the last: int32 (count + 1,)."""
    inner = torch.randint(0, tokens + 1, (count - 1,), generator=torch.Generator().manual_seed(count)).sort().values
    return torch.cat([torch.tensor([0]), inner, torch.tensor([tokens])]).to(torch.int32).to(place)


def _torch(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    z = torch.nn.functional.conv1d(x, weight[:, None], bias, padding=_WIDTH - 1, groups=x.shape[1])
    return torch.nn.functional.silu(z[..., : x.shape[2]])


def _fla(x: Tensor, weight: Tensor, bias: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
    function = importlib.import_module("fla.modules.convolution").causal_conv1d
    found = function(x.transpose(1, 2), weight=weight, bias=bias, activation="silu", cu_seqlens=cu_seqlens)
    y: Tensor = found[0] if isinstance(found, tuple) else found
    return y.transpose(1, 2)


def _gradients(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """The backward alone: autograd's graph is made at the first call with an operand set."""
    graphs: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def run(dy: Tensor, *operands: Tensor) -> Any:
        if id(dy) not in graphs:
            leaves = [x.detach().requires_grad_() for x in operands[:3]]
            graphs[id(dy)] = function(*leaves, *operands[3:]), leaves
        y, leaves = graphs[id(dy)]
        return torch.autograd.grad(y, leaves, dy, retain_graph=True)

    return run


@dataclass(frozen=True, slots=True)
class _Case:
    """Sequences in one memory layout: a batch of equal ones, or ``packed`` ones along the time of a batch of one."""

    name: str
    extents: tuple[int, int, int]
    last: bool
    packed: int | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.extents)

    def operands(self, place: str) -> tuple[Tensor, ...]:
        found = _operands(place, *self.extents, self.last)
        return found if self.packed is None else (*found, _offsets(place, self.extents[2], self.packed))

    def rivals(self, fla: Callable[..., Any], others: Sequence[Rival]) -> tuple[Rival, ...]:
        # fla takes channels-last memory alone; torch's convolution does not know of packed sequences.
        return ((Rival("fla", fla, module="fla"),) if self.last else ()) + (() if self.packed else tuple(others))


def _cases(cuda: bool) -> list[_Case]:
    shapes = _SEQUENCES if cuda else (("small", 2, 64, 64),)
    (channels, time), counts = (_PACKED, _COUNTS) if cuda else ((64, 128), (5,))
    equal = [(name, (batch, *rest), None) for name, batch, *rest in shapes]
    packed = [(f"{count} packed sequences", (1, channels, time), count) for count in counts]
    layouts = ((True, "channels-last"), (False, "channels-first"))
    return [
        _Case(f"{name}, {layout}", extents, last, count)  # type: ignore[arg-type]
        for name, extents, count in equal + packed
        for last, layout in layouts
    ]


def forward(cuda: bool) -> list[MemoryCase]:
    """Bias and SiLU, four taps."""

    def ours(x: Tensor, weight: Tensor, bias: Tensor, offsets: Tensor | None = None, *, backend: str | None) -> Any:
        return causal_conv1d(x, weight, bias, "silu", cu_seqlens=offsets, backend=backend)

    def measured(case: _Case) -> MemoryCase:
        nbytes = 4 * case.elements + 2 * (_WIDTH + 1) * case.extents[1]
        rivals = case.rivals(_fla, compiled_and_eager(_torch))
        return operand_case(case.name, case.extents, nbytes, case.operands, ours, rivals)

    return [measured(case) for case in _cases(cuda)]


def backward(cuda: bool) -> list[MemoryCase]:
    """Gradients of x, taps and bias."""

    def ours(
        dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, offsets: Tensor | None = None, *, backend: str | None
    ) -> Any:
        return causal_conv1d_backward(dy, x, weight, bias, "silu", cu_seqlens=offsets, backend=backend)

    def measured(case: _Case) -> MemoryCase:
        def make(place: str) -> tuple[Tensor, ...]:
            x, *rest = case.operands(place)
            return torch.empty_like(x).normal_(), x, *rest

        nbytes = 6 * case.elements + 4 * (_WIDTH + 1) * case.extents[1]
        eager = Rival("torch eager", _gradients(_torch), cuda_only=False)
        return operand_case(case.name, case.extents, nbytes, make, ours, case.rivals(_gradients(_fla), [eager]))

    return [measured(case) for case in _cases(cuda)]


def _torch_step(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    history = torch.cat([state[..., 1:], x[..., None]], dim=-1)
    state.copy_(history)
    return torch.nn.functional.silu((history * weight).sum(-1) + bias)


def _fla_step(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    function = importlib.import_module("fla.modules.convolution").causal_conv1d_update
    y: Tensor = function(x, state, weight=weight, bias=bias, activation="silu")[0]
    return y


def update(cuda: bool) -> list[MemoryCase]:
    """One token of each row, on a cache of four samples."""
    cases = []
    for rows, channels in _STEPS if cuda else ((2, 64),):

        def make(place: str, rows: int = rows, channels: int = channels) -> tuple[Tensor, ...]:
            state = normal(place, rows, channels, _WIDTH)
            return normal(place, rows, channels), state, normal(place, channels, _WIDTH), normal(place, channels)

        def ours(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor, backend: str | None) -> Any:
            return causal_conv1d_update(x, state, weight, bias, "silu", backend=backend)

        nbytes = 2 * channels * (rows * (2 + 2 * _WIDTH) + _WIDTH + 1)
        name = f"{rows} rows of {channels} channels"
        rivals = (Rival("fla", _fla_step, module="fla"), *compiled_and_eager(_torch_step))
        cases.append(operand_case(name, (rows, channels), nbytes, make, ours, rivals))
    return cases
