"""The benchmark's cases of quantising and dequantising: a prompt's activations and a decoding step's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from cudnn_fe.core.bench import MemoryCase
from cudnn_fe.core.block_scale.dequantizer import block_scale_dequantize
from cudnn_fe.core.block_scale.formats import BLOCK_FORMATS
from cudnn_fe.core.block_scale.quantizer import Direction, block_scale_quantize
from cudnn_fe.core.torch_bench import ONE_ROUNDING, Rival, compiled_and_eager, normal, operand_case, results_of

__all__ = ["dequantize", "quantize"]

Along = Literal["rows", "columns"]
_SHAPES = (("prefill", (16384, 8192)), ("decode", (256, 8192)))
_SMALL = (("small", (64, 128)),)
_EXACT = 0.0  # bit for bit


def quantize(cuda: bool) -> list[MemoryCase]:
    """Every format along rows, along columns, and along both."""
    cases = []
    for (label, shape), name, direction in product(_SHAPES if cuda else _SMALL, BLOCK_FORMATS, get_args(Direction)):

        def ours(x: Tensor, backend: str | None, name: str = name, direction: Direction = direction) -> Any:
            return block_scale_quantize(x, name, direction=direction, backend=backend)

        def make(place: str, shape: tuple[int, int] = shape) -> tuple[Tensor]:
            return (normal(place, *shape),)

        rivals: Sequence[Rival] = ()
        if (name, direction) == ("mxfp8_e4m3", "rows"):
            rivals = [
                Rival(one.who, one.run, "codes and plain scales", _plain, cuda_only=one.cuda_only)
                for one in compiled_and_eager(_by_torch)
            ]
        nbytes = 2 * shape[0] * shape[1] + (2 if direction == "both" else 1) * _codes_bytes(name, shape)
        cases.append(operand_case(f"{label}, {name} {direction}", shape, nbytes, make, ours, rivals, allowed=_EXACT))
    return cases


def dequantize(cuda: bool) -> list[MemoryCase]:
    """Every format along rows and along columns, to bfloat16."""
    cases = []
    for (label, shape), name, columns in product(_SHAPES if cuda else _SMALL, BLOCK_FORMATS, (False, True)):
        direction: Along = "columns" if columns else "rows"

        def ours(
            codes: Tensor, scales: Tensor, backend: str | None, name: str = name, direction: Along = direction
        ) -> Any:
            return block_scale_dequantize(codes, scales, name, direction=direction, dtype="bfloat16", backend=backend)

        def make(
            place: str, shape: tuple[int, int] = shape, name: str = name, direction: Along = direction
        ) -> tuple[Tensor, ...]:
            codes, scales = results_of(block_scale_quantize(normal(place, *shape), name, direction=direction))
            return codes, scales

        nbytes = 2 * shape[0] * shape[1] + _codes_bytes(name, shape)
        cases.append(operand_case(f"{label}, {name} {direction}", shape, nbytes, make, ours, (), allowed=ONE_ROUNDING))
    return cases


def _codes_bytes(name: str, shape: tuple[int, int]) -> int:
    """Of codes and scales."""
    format = BLOCK_FORMATS[name]
    elements = shape[0] * shape[1]
    return elements * format.element.bits // 8 + elements // format.block


def _by_torch(x: Tensor) -> tuple[Tensor, Tensor]:
    """MXFP8 of rows in torch's own operations, for numbers that are neither NaN, infinite nor tiny."""
    blocks = x.float().unflatten(1, (-1, 32))
    exponent = (blocks.abs().amax(-1) / 448).log2().ceil()
    codes = (blocks * (-exponent).exp2()[..., None]).flatten(1).to(torch.float8_e4m3fn)
    return codes, (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def _plain(x: Tensor) -> Sequence[Tensor]:
    return results_of(block_scale_quantize(x, packed=False, backend="reference"))
