"""What holds for every test of the workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["cudnn_fe_testkit.gpu"]

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of a GPU that torch needs too


@pytest.hookimpl
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Worker processes: two on a CPU; none beside a GPU, whose memory the large tests want for themselves."""
    if Path("/dev/nvidiactl").exists():
        return 0
    return min(2, os.cpu_count() or 1)
