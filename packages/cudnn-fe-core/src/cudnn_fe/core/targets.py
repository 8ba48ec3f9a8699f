"""Where portable kernels run, whichever op they belong to: any GPU from SM80 up."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.device import Device

__all__ = ["PORTABLE_TARGETS", "portable_refusal"]

PORTABLE_TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


def portable_refusal(problem: Any, where: Device) -> str | None:
    """Why portable kernels cannot run on a device."""
    del problem  # they serve everything that the contracts accept
    return None if where.capability >= (8, 0) else "it needs compute capability 8.0 or newer"
