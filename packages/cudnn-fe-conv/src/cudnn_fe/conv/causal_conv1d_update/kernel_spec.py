"""What the decoding step's kernel is compiled for: plain data, no kernel, no framework."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["UpdateSpec"]


@dataclass(frozen=True, slots=True)
class UpdateSpec:
    """Everything that one compiled kernel depends on; extents and strides are met at run time.

    Attributes:
        x_dtype: Element type of x, the states and the output.
        weight_dtype: Element type of the taps.
        bias_dtype: Element type of the bias, None without one.
        silu: Whether SiLU follows.
        width: Number of taps W.
        lanes: Samples L that a slot holds.
        ring: Whether slots are rings, and the samples seen come along.
        indexed: Whether slots are named by indices.
        vector: Channels that one thread takes; x and output hold them side by side.
        whole_parameters: Whether a thread's taps lie in one aligned piece, and its bias too.
        whole_states: Whether its states do, which are then shifted in registers; else lanes hold channels side by side.
    """

    x_dtype: str
    weight_dtype: str
    bias_dtype: str | None
    silu: bool
    width: int
    lanes: int
    ring: bool
    indexed: bool
    vector: int
    whole_parameters: bool
    whole_states: bool
