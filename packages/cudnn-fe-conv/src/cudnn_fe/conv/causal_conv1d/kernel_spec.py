"""What the kernels of the causal convolution are compiled for: plain data, no kernel, no framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ConvSpec"]


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """Everything that one compiled kernel depends on; extents and strides are met at run time.

    Attributes:
        x_dtype: Element type of x, y and the states.
        weight_dtype: Element type of the taps.
        bias_dtype: Element type of the bias, None without one.
        silu: Whether SiLU follows.
        width: Number of taps W.
        packed: Whether offsets of packed sequences come along.
        marked: Whether bits say where they start, which serves vectors along time, but no states.
        initial: Whether initial states come along.
        final: Whether the final states (forward), or their gradient (backward), come along.
        layout: Order of x's dims.
        major: The dim that threads read vectors along: ``"channels"`` or ``"time"``.
        vector: Elements of x that one thread reads at once.
        lanes: Threads of a block side by side along that dim, a power of two.
        whole_parameters: Whether the taps of a vector of channels lie in one aligned piece, and their bias too.
        unroll: Tokens (along channels) or vectors (along time) of a thread whose loads are in flight together.
        resident: Blocks that a multiprocessor should hold at once, which bounds a thread's registers.
        waves: Blocks for each multiprocessor that the grid should have at least, by splitting time.
        multiprocessors: Of the chip.
    """

    x_dtype: str
    weight_dtype: str
    bias_dtype: str | None
    silu: bool
    width: int
    packed: bool
    marked: bool
    initial: bool
    final: bool
    layout: Literal["BDT", "BTD"]
    major: Literal["channels", "time"]
    vector: int
    lanes: int
    whole_parameters: bool
    unroll: int
    resident: int
    waves: int
    multiprocessors: int
