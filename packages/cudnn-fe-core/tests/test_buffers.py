"""Results in a caller's buffers: replaced, added up, or only where they lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import array_api_compat.numpy
import array_api_compat.torch
import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe.core.buffers import settled

SPACES: dict[str, Any] = {
    "numpy": (array_api_compat.numpy, np.asarray, ml_dtypes.float8_e4m3fn),
    "torch": (array_api_compat.torch, torch.tensor, torch.float8_e4m3fn),
}


@pytest.mark.parametrize("framework", sorted(SPACES))
def test_each_kind_of_result(framework: str) -> None:
    xp, make, fp8 = SPACES[framework]
    inside = make([[True], [False]])
    problem: Any = SimpleNamespace(
        accumulates={1: "sum", 2: "maximum"}, written=lambda xp, operands: {0: inside, 1: inside, 4: inside}
    )
    old, new = make([[1.0, 2.0], [3.0, 4.0]]), make([[10.0, 1.0], [10.0, 1.0]])
    bytes_old, bytes_new = (make(x).view(fp8) for x in (np.full((2, 1), 7, np.uint8), np.full((2, 1), 9, np.uint8)))
    got = settled(problem, xp, (), (new, new, new, new, bytes_new), (old, old, old, None, bytes_old))
    assert got[0].tolist() == [[10, 1], [3, 4]]
    assert got[1].tolist() == [[11, 3], [3, 4]]
    assert got[2].tolist() == [[10, 2], [10, 4]]
    assert got[3] is new
    assert got[4].view(xp.uint8).tolist() == [[9], [7]]
