"""What the GPU tests of block-scaled GEMMs share: both main loops, operands moved there, results bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cudnn_fe.core.settings import override
from cudnn_fe_testkit.on_gpu import poison

__all__ = ["both", "cuda", "differing", "main_loops", "raw", "to_cpu"]


@pytest.fixture(name="backend", params=["sm90", "portable"])
def main_loops(request: pytest.FixtureRequest) -> Iterator[str]:
    """The backend that calls use, each that this GPU has; memory shows what nobody wrote."""
    if request.param == "sm90" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    poison()
    with override(backend=request.param):
        yield request.param


def cuda(x: Any) -> Any:
    """A tensor on the GPU, with its strides; anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda").copy_(x)


def raw(x: torch.Tensor) -> torch.Tensor:
    """Its bytes, on the CPU."""
    return x.cpu().contiguous().view(-1).view(torch.uint8)


def differing(got: Any, wanted: Any) -> list[str]:
    """Results that are not the same bits."""
    assert list(got.keys()) == list(wanted.keys())
    found = []
    for key, x in wanted.items():
        y = got[key]
        assert (x is None) == (y is None), key
        if x is not None and not (x.stride() == y.stride() and torch.equal(raw(y), raw(x))):
            found.append(f"{key}: {int((raw(y) != raw(x)).sum())} bytes of {raw(x).numel()}")
    return found


def both(function: Any, **given: Any) -> tuple[Any, Any]:
    """The results on a GPU, the same from two calls, and the definition's."""
    with override(backend="reference"):
        wanted = function(**given)
    placed = {name: cuda(x) for name, x in given.items()}
    got, again = function(**placed), function(**placed)
    assert differing(got, again) == []
    return got, wanted


def to_cpu(out: Any) -> Any:
    """Results on the CPU, by name."""
    return {key: None if x is None else x.cpu() for key, x in out.items()}
