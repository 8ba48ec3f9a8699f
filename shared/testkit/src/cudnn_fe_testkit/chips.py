"""The GPUs that kernels are compiled for where there is none, and operands on them."""

from __future__ import annotations

import pytest

from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.core.toolchain import missing_toolchain

__all__ = ["CHIPS", "needs_compiler", "tensor"]

CHIPS = {
    "sm_80": Device("cuda:0", (8, 0), 108, "A100"),
    "sm_90a": Device("cuda:0", (9, 0), 132, "H200"),
    "sm_100a": Device("cuda:0", (10, 0), 148, "B200"),
    "sm_120a": Device("cuda:0", (12, 0), 170, "RTX 5090"),
}
needs_compiler = pytest.mark.skipif(
    missing_toolchain() is not None, reason=f"no kernel compiler: {missing_toolchain()}"
)


def tensor(shape: tuple[int, ...], kind: str = "float32", order: tuple[int, ...] | None = None) -> TensorSpec:
    """A compact tensor; ``order`` lists the dims, the contiguous one first, by default the last."""
    return TensorSpec(shape, contiguous_strides(shape, order), dtype(kind), "cuda:0", 16, "tensor")
