"""The best rate that the device reaches in this run: what percentages refer to."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

from cudnn._cli.bench.timing import microseconds_between, record_event
from cudnn_fe.core.dtypes import dtype

__all__ = ["gemm_ceiling"]

_WARM_UP, _TIMED = 4, 20


def gemm_ceiling(kind: str, cuda: bool) -> tuple[float, str]:
    """TFLOP/s of the framework's own GEMM at a size that suits it best, and what was run."""
    size = 8192 if cuda else 1024
    element = getattr(torch, dtype(kind).torch)
    a, b = (torch.randn(size, size, device="cuda" if cuda else "cpu").to(element) for _ in range(2))

    def on_gpu() -> float:
        begin = record_event()
        a @ b.T
        return microseconds_between(begin, record_event()) * 1e-6

    def on_host() -> float:
        began = perf_counter()
        a @ b.T
        return perf_counter() - began

    seconds = [on_gpu() if cuda else on_host() for _ in range(_WARM_UP + _TIMED)]
    return 2 * size**3 / median(seconds[_WARM_UP:]) / 1e12, f"torch's {kind} GEMM of {size} cubed"
