"""The benchmark's cases: both memory layouts of sequences, and decoding steps, beside torch and fla."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
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
_STEPS = ((1, 4096), (64, 4096), (256, 8192))


def _operands(place: str, batch: int, channels: int, time: int, last: bool) -> tuple[Tensor, ...]:
    shape = (batch, time, channels) if last else (batch, channels, time)
    x = normal(place, *shape)
    return x.transpose(1, 2) if last else x, normal(place, channels, _WIDTH), normal(place, channels)


def _torch(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    z = torch.nn.functional.conv1d(x, weight[:, None], bias, padding=_WIDTH - 1, groups=x.shape[1])
    return torch.nn.functional.silu(z[..., : x.shape[2]])


def _fla(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    function = importlib.import_module("fla.modules.convolution").causal_conv1d
    found = function(x.transpose(1, 2), weight=weight, bias=bias, activation="silu")
    y: Tensor = found[0] if isinstance(found, tuple) else found
    return y.transpose(1, 2)


def _gradients(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """The backward alone: autograd's graph is made at the first call with an operand set."""
    graphs: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def run(dy: Tensor, *operands: Tensor) -> Any:
        if id(dy) not in graphs:
            leaves = [x.detach().requires_grad_() for x in operands]
            graphs[id(dy)] = function(*leaves), leaves
        y, leaves = graphs[id(dy)]
        return torch.autograd.grad(y, leaves, dy, retain_graph=True)

    return run


def _sequences(cuda: bool) -> list[tuple[str, int, int, int, bool]]:
    shapes = _SEQUENCES if cuda else (("small", 2, 64, 64),)
    layouts = ((True, "channels-last"), (False, "channels-first"))
    return [(f"{name}, {layout}", *extents, last) for name, *extents in shapes for last, layout in layouts]  # type: ignore[misc]


def forward(cuda: bool) -> list[MemoryCase]:
    """Bias and SiLU, four taps."""
    cases = []
    for name, *extents, last in _sequences(cuda):

        def ours(x: Tensor, weight: Tensor, bias: Tensor, backend: str | None) -> Any:
            return causal_conv1d(x, weight, bias, "silu", backend=backend)

        make = partial(_operands, batch=extents[0], channels=extents[1], time=extents[2], last=last)
        # fla takes channels-last memory alone.
        rivals = ((Rival("fla", _fla, module="fla"),) if last else ()) + compiled_and_eager(_torch)
        nbytes = 4 * torch.Size(extents).numel() + 2 * (_WIDTH + 1) * extents[1]
        cases.append(operand_case(name, tuple(extents), nbytes, make, ours, rivals))
    return cases


def backward(cuda: bool) -> list[MemoryCase]:
    """Gradients of x, taps and bias."""
    cases = []
    for name, *extents, last in _sequences(cuda):

        def ours(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, backend: str | None) -> Any:
            return causal_conv1d_backward(dy, x, weight, bias, "silu", backend=backend)

        def make(place: str, extents: list[int] = extents, last: bool = last) -> tuple[Tensor, ...]:
            batch, channels, time = extents
            x, weight, bias = _operands(place, batch, channels, time, last)
            return torch.empty_like(x).normal_(), x, weight, bias

        rivals = (Rival("fla", _gradients(_fla), module="fla"),) if last else ()
        eager = Rival("torch eager", _gradients(_torch), cuda_only=False)
        nbytes = 6 * torch.Size(extents).numel() + 4 * (_WIDTH + 1) * extents[1]
        cases.append(operand_case(name, tuple(extents), nbytes, make, ours, (*rivals, eager)))
    return cases


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
