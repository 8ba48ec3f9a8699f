"""What holds for every test of the workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["cudnn_fe_testkit.gpu"]


@pytest.hookimpl
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Worker processes: two on a CPU; none beside a GPU, whose memory the large tests want for themselves."""
    if Path("/dev/nvidiactl").exists():
        return 0
    return min(2, os.cpu_count() or 1)
