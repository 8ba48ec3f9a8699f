"""What the tests of the causal convolution share: its float64 definition, written apart from the reference, its cases
and its tolerances."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cudnn_fe.core.dtypes import dtype

__all__ = ["DTYPES", "LENGTHS", "Case", "exact", "exact_step", "make_case", "sum_tolerance", "tolerance"]

DTYPES = ("bfloat16", "float16", "float32", "float64")
# Packed lengths around a width of 4: empty, one token, shorter than the history, at it, and longer than a vector.
LENGTHS = (0, 1, 3, 0, 2, 4, 17, 1, 8, 33, 0)


def exact(x: Any, weight: Any, bias: Any, silu: bool, offsets: Any = None, initial: Any = None) -> tuple[Any, Any]:
    """(y, final states) of float64 torch tensors: each sequence behind its history, tap by tap. Differentiable.

    Args:
        x: (B, D, T).
        weight: (D, W).
        bias: (D,) or None.
        silu: Whether SiLU follows.
        offsets: Python ints, or None for a batch.
        initial: (S, D, W-1) or None.
    """
    import torch

    width = weight.shape[1]
    parts = [x[0, :, first:last] for first, last in pairwise(offsets)] if offsets is not None else list(x.unbind(0))
    outputs, finals = [], []
    for index, part in enumerate(parts):
        before = part.new_zeros(part.shape[0], width - 1) if initial is None else initial[index]
        samples = torch.cat([before, part], dim=1)
        length = part.shape[1]
        z = sum(weight[:, tap, None] * samples[:, tap : tap + length] for tap in range(width))
        if bias is not None:
            z = z + bias[:, None]
        outputs.append(z / (1 + torch.exp(-z)) if silu else z)
        finals.append(samples[:, length:])
    y = torch.stack(outputs) if offsets is None else torch.cat(outputs, dim=1)[None]
    return y, torch.stack(finals)


def exact_step(x: Any, history: Any, weight: Any, bias: Any, silu: bool) -> Any:
    """One step of float64 torch tensors: x (N, D) after its last W-1 samples (N, D, W-1)."""
    import torch

    samples = torch.cat([history, x[:, :, None]], dim=2)
    z = (samples * weight).sum(2) + (0 if bias is None else bias)
    return z / (1 + torch.exp(-z)) if silu else z


@dataclass
class Case:
    """Operands of one call as torch tensors, and the offsets as Python ints."""

    x: Any
    weight: Any
    bias: Any
    cu_seqlens: Any
    initial: Any
    offsets: list[int] | None

    def wide(self) -> tuple[Any, ...]:
        """x, weight, bias, initial states in float64."""
        tensors = (self.x, self.weight, self.bias, self.initial)
        return tuple(None if t is None else t.detach().double() for t in tensors)


def make_case(
    batch: int,
    channels: int,
    time: int,
    width: int,
    kind: str = "float32",
    *,
    channels_last: bool = False,
    lengths: tuple[int, ...] | None = None,
    bias: bool = True,
    initial: bool = False,
    parameters: str | None = None,
    pad: int = 0,
    device: str = "cpu",
    seed: int = 0,
) -> Case:
    """Normal operands; x lies in memory as asked, with ``pad`` NaN elements after each row.

    Args:
        batch: B; 1 with lengths.
        channels: D.
        time: T; the sum of the lengths replaces it.
        width: W.
        kind: Element type of x and the states.
        channels_last: Whether channels are contiguous.
        lengths: Lengths of packed sequences.
        bias: Whether there is one.
        initial: Whether there are initial states.
        parameters: Element type of weight and bias, x's unless given.
        pad: Elements between rows.
        device: A torch device.
        seed: Of the random numbers.
    """
    import torch

    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, of: str = kind, scale: float = 1.0) -> Any:
        values = torch.randn(shape, generator=generator, device=device, dtype=torch.float32) * scale
        return values.to(getattr(torch, of))

    offsets = None
    if lengths is not None:
        offsets = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
        time = offsets[-1]
    inner, outer = (channels, time) if channels_last else (time, channels)
    memory = torch.full((batch, outer, inner + pad), float("nan"), device=device).to(getattr(torch, kind))
    memory[..., :inner] = normal(batch, outer, inner)
    x = memory[..., :inner]
    count = batch if lengths is None else len(lengths)
    parameters = parameters or kind
    return Case(
        x.transpose(1, 2) if channels_last else x,
        normal(channels, width, of=parameters, scale=width**-0.5),
        normal(channels, of=parameters) if bias else None,
        None if offsets is None else torch.tensor(offsets, dtype=torch.int32, device=device),
        normal(count, channels, width - 1) if initial else None,
        offsets,
    )


def _arithmetic(kind: str) -> tuple[float, float]:
    """Unit roundoff of the sums, and what the approximate exponential and reciprocal of the kernels add."""
    return (2.0**-53, 2.0**-50) if kind == "float64" else (2.0**-24, 2.0**-20)


def tolerance(width: int, kind: str) -> float:
    """Bound of `rel_rms` of y or dx: W roundings of a sum, which SiLU's slope (at most 1.1) and its factor z carry on
    2.3 times, and one rounding to the element type."""
    unit, special = _arithmetic(kind)
    return dtype(kind).unit_roundoff + 2.3 * unit * (width + 2) + special


def sum_tolerance(count: int, width: int, kind: str, stored: str) -> float:
    """Bound of `rel_rms` of dweight or dbias: ``count`` terms of either sign, each as exact as dx's sums."""
    unit, special = _arithmetic(kind)
    return dtype(stored).unit_roundoff + unit * float(count**0.5) + 2.3 * unit * (width + 2) + special
