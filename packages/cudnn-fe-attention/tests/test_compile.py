"""Attention under torch.compile, without graph breaks, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudnn_fe import attention
from cudnn_fe_testkit.attention import attention_tolerance
from cudnn_fe_testkit.compare import assert_close

GEOMETRY = attention.GatedAttentionBlockGeometry(d_model=16, h_q=2, h_kv=1, d_head=64, rope_dim=8)


def random(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=made, requires_grad=True) for shape in shapes]


def flex() -> tuple[Any, list[torch.Tensor]]:
    operands = random(*[(1, 8, 2, 16)] * 3)
    ends = torch.arange(1, 9, dtype=torch.int32)[None, None]
    q, k, v = operands
    plan = attention.create_mask_plan(ends, q, k, v)

    def loss(q: Any, k: Any, v: Any) -> Any:
        out, lse, _ = attention.flex_attention(q, k, v, mask_plan=plan, return_lse=True, return_max_logit=True)
        return out.square().sum() + lse.sum()

    return loss, operands


def gated() -> tuple[Any, list[torch.Tensor]]:
    tables = [x.detach() for x in random((2, 12, 8), (2, 12, 8))]

    def loss(h: Any, w_qkvg: Any, w_q: Any, w_k: Any, w_o: Any) -> Any:
        cos, sin = tables
        block = attention.gated_attention_block_forward
        return block(h, w_qkvg / 4, w_q, w_k, cos, sin, w_o / 8, GEOMETRY)["out"].square().sum()

    return loss, random((2, 12, 16), (384, 16), (64,), (64,), (16, 128))


@pytest.mark.parametrize("make", [flex, gated])
def test_compiled_gradients(make: Any) -> None:
    loss, operands = make()
    wanted = torch.autograd.grad(loss(*operands), operands)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for got, expected in zip(torch.autograd.grad(compiled(*operands), operands), wanted, strict=True):
        assert_close(got, expected, attention_tolerance("float32", 4, 64))
