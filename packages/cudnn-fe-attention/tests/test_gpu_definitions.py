"""Definitions on a GPU: what a CPU gives, the same bits again, and no host reads, so that graphs hold them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations, legacy_forward
from cudnn_fe_testkit.attention_cases import CASES, create_mask_plan, normal
from cudnn_fe_testkit.compare import rel_rms, to_float64
from cudnn_fe_testkit.gated_block_quantised import QuantisedOperands
from cudnn_fe_testkit.inputs import convert

Fwd: Any = legacy_forward.GatedAttentionBlockFwd

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


def moved(x: Any) -> Any:
    if isinstance(x, attention.MaskPlan):
        like = (torch.empty(shape, device="cuda") for shape in x.shapes)
        lengths = {"cu_seqlens_q": x.tensors[1].cuda(), "cu_seqlens_k": x.tensors[2].cuda()}
        most = {"max_seqlen_q": x.metadata.max_seqlen_q, "max_seqlen_k": x.metadata.max_seqlen_k}
        return create_mask_plan(x.tensors[0].cuda(), *like, **lengths, **most, build_backward=True)
    if isinstance(x, attention.SavedForBackward):
        return replace(x, **{row.name: moved(getattr(x, row.name)) for row in fields(x)})
    return x.cuda().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


# The summaries of these rules are those of the others with fewer gates.
AS_OTHERS = ("gated_delta_net_summary", "kimi_delta_attention_summary")


@pytest.mark.parametrize("name", [name for name, _, _ in CASES if not name.startswith(AS_OTHERS)])
@torch.no_grad()
def test_definition(name: str) -> None:
    operands, options = next((operands, options) for known, operands, options in CASES if known == name)
    function = getattr(attention, name)
    wanted = [x for x in function(*operands, **options) if x is not None]
    on_gpu = tuple(map(moved, operands)), {key: moved(value) for key, value in options.items()}

    def run() -> list[torch.Tensor]:
        return [x for x in function(*on_gpu[0], **on_gpu[1]) if x is not None]

    first, again = run(), run()
    for got, same, reference in zip(first, again, wanted, strict=True):
        assert got.is_cuda
        assert torch.equal(torch.nan_to_num(got), torch.nan_to_num(same))
        if got.dtype == torch.int32:
            assert torch.equal(got.cpu(), reference)
        else:
            # Both are float32 sums of at most a few thousand terms, taken in another order. One beside the middle of
            # two numbers of a narrow type then falls to the other side.
            bound = 2.0**-8 if reference.dtype == torch.bfloat16 else 64 * 2.0**-24
            assert not got.numel() or rel_rms(to_float64(got), to_float64(reference)) <= bound
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for x in captured:
        x.zero_()
    graph.replay()
    assert all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(captured, first, strict=True))


@pytest.mark.parametrize("kind", ["fp8", "mxfp8", "nvfp4", "mxfp4"])
def test_quantised_gated_blocks(kind: str) -> None:
    """Forward and gradients of quantised blocks: near a CPU's, and the same bits again."""
    geometry = attention.GatedAttentionBlockGeometry(128, 2, 1, 128, 16)
    fp4 = {"nvfp4": declarations.Fp4Format.NVFP4, "mxfp4": declarations.Fp4Format.MXFP4}.get(kind)
    spec: Any = declarations.MxQuantSpec(0.001 if fp4 is None else 1.0, 100.0 if fp4 is None else 1.0, o_fp4=fp4)
    if kind == "fp8":
        spec = declarations.QuantSpec(0.02, 0.002, 0.001, 40.0, 30.0, 50.0, 100.0)
    given = QuantisedOperands(geometry, spec, (2, 40))
    dy = normal(2, 40, 128).bfloat16()

    def run(device: str) -> list[torch.Tensor]:
        operands: Any = [convert(x, "torch", device) for x in given.arrays]
        blobs: dict[str, Any] = {n: None if x is None else convert(x, "torch", device) for n, x in given.blobs.items()}
        turned = {n: convert(x, "torch", device) for n, x in given.turned.items()}
        more: Any = {f"sample_{n}": x for n, x in blobs.items()}
        out = torch.empty(2, 40, 128, dtype=torch.bfloat16, device=device)
        made = Fwd(*operands, out, geometry, quant=spec, save_for_backward=True, **more)
        made.compile()
        shapes = {"o": (2, 40, 2, 128), "lse": (2, 2, 40), "rstd_q": (2, 40, 2), "rstd_k": (2, 40, 1)}
        shapes["proj_slab"] = (2, 40, geometry.n_qkvg)
        kinds = {"o": torch.bfloat16, "proj_slab": torch.bfloat16}
        buffers: Any = {n: torch.empty(s, dtype=kinds.get(n, torch.float32), device=device) for n, s in shapes.items()}
        saved = attention.SavedForBackward(h=operands[0], gate=None, **buffers)
        made.execute(*operands, out, None, saved=saved, **blobs)
        leaves = [x.detach().requires_grad_() for x in operands]
        scales: Any = {"scale_dp": torch.full((1,), 64.0, device=device)} if kind == "fp8" else turned
        backward: Any = attention.gated_attention_block_backward
        record = replace(saved, h=leaves[0])
        return [out, *backward(dy.to(device), record, *leaves[1:], geometry, quant=spec, **scales)]

    wanted, first, again = run("cpu"), run("cuda"), run("cuda")
    for got, same, reference in zip(first, again, wanted, strict=True):
        assert torch.equal(got, same)
        # Where a sum lies beside the middle of two codes, another order of it gives the other one.
        assert rel_rms(to_float64(got), to_float64(reference)) < 2.0**-5


def test_32k_tokens_take_no_square_of_memory() -> None:
    """Scores of eight heads of 32,768 tokens are 32 GiB in float32; a tile has 64 MiB."""
    tokens = 1 << 15
    q = torch.randn(1, tokens, 8, 64, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, tokens, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    causal = torch.arange(1, tokens + 1, device="cuda", dtype=torch.int32)[None, None]
    plan = create_mask_plan(causal, q, k, v, build_backward=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o, lse = attention.flex_attention(q, k, v, mask_plan=plan, return_lse=True)
    grads = attention.flex_attention_backward(torch.ones_like(o), q, k, v, o, lse, plan)
    assert torch.cuda.max_memory_allocated() - before < 3 << 30
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # Both round P, and O once more, to bfloat16.
    assert rel_rms(to_float64(o), to_float64(wanted.transpose(1, 2))) < 3 * 2.0**-8
    assert all(torch.isfinite(x).all() for x in grads)
