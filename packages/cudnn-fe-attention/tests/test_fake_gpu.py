"""Definitions on tensors that only pretend to be on a GPU: nothing is made elsewhere, and no value is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cudnn_fe import attention
from cudnn_fe.core.op import Op
from cudnn_fe_testkit.attention_cases import CASES


def pretended(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")


@pytest.mark.parametrize("name", [name for name, _, _ in CASES])
@torch.no_grad()
def test_definition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's tensors meet no CPU's, and a graph can hold the call."""
    original = Op.run_reference
    found: list[torch.Tensor] = []

    def run(self: Op, problem: Any, xp: Any, *arguments: Any) -> Any:
        if self.name == name:
            with FakeTensorMode():
                found.extend(original(self, problem, xp, *map(pretended, arguments)))
        return original(self, problem, xp, *arguments)

    monkeypatch.setattr(Op, "run_reference", run)
    operands, options = next((operands, options) for known, operands, options in CASES if known == name)
    results = getattr(attention, name)(*operands, **options)
    assert found
    assert all(x.device.type == "cuda" for x in found)
    wanted = [x for x in results if x is not None]
    assert [tuple(x.shape) for x in found[: len(wanted)]] == [tuple(x.shape) for x in wanted]
