"""Skips of tests that need GPUs, as a pytest plugin: ``@pytest.mark.gpu`` and ``@pytest.mark.multigpu``."""

from __future__ import annotations

import pytest

from cudnn_fe.core.device import cuda_device_count

__all__ = ["missing_gpus", "pytest_runtest_setup"]


def missing_gpus(needed: int = 1) -> str | None:
    """Why a test that needs that many CUDA GPUs cannot run here, or None."""
    found = cuda_device_count()
    if found >= needed:
        return None
    return "no CUDA GPU is present" if not found else f"needs {needed} CUDA GPUs, found {found}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a marked test, with the reason, where its GPUs are missing."""
    for mark, needed in (("gpu", 1), ("multigpu", 2)):
        if item.get_closest_marker(mark) and (reason := missing_gpus(needed)):
            pytest.skip(reason)
