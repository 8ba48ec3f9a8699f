"""What the kernel of the hyper-connections' gradients is compiled for: plain data, no kernel, no framework."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MhcSpec"]


@dataclass(frozen=True, slots=True)
class MhcSpec:
    """Everything that the compiled code depends on; extents and strides are met at run time.

    Attributes:
        blocks: Blocks of 8 projections that one CTA works on, at most 4.
        chunked: Whether there are more projections than that.
        access: Elements of a row of x, and of dx, that may be accessed at once.
        projection_access: Elements of a row of grad_proj that may be read at once, 4 or 1.
        multiprocessors: Of the device, among which the work is shared out.
        arch: The target that the kernel is compiled for.
    """

    blocks: int
    chunked: bool
    access: int
    projection_access: int
    multiprocessors: int
    arch: str
