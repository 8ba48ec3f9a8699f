"""The classes of the gated attention block: the functions' results in the caller's buffers, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations, legacy_backward, legacy_forward, record
from cudnn_fe_testkit.gated_block import NAMES, block_operands
from cudnn_fe_testkit.inputs import convert

# Arguments are spread from lists and tables here, which the type checker cannot count.
forward: Any = attention.gated_attention_block_forward
backward: Any = attention.gated_attention_block_backward
Geometry: Any = attention.GatedAttentionBlockGeometry
Fwd: Any = legacy_forward.GatedAttentionBlockFwd
Bwd: Any = legacy_backward.GatedAttentionBlockBwd

GQA = Geometry(d_model=48, h_q=4, h_kv=2, d_head=32, rope_dim=12)


@pytest.mark.parametrize("copies", [False, True])
def test_classes(copies: bool) -> None:
    given = block_operands(GQA, "bfloat16")
    t = [convert(given[n], "torch") for n in NAMES]
    wanted = forward(*t, GQA, return_lse=True, save_for_backward=True)
    s = wanted["saved"]
    out = torch.full_like(wanted["out"], float("nan"))
    made = Fwd(*t, out, GQA, save_for_backward=True, saved_gate_copy=copies, fuse_gate=False)
    with pytest.raises(RuntimeError, match="a call before compile"):
        made.get_workspace_size()
    assert made.check_support()
    made.compile()
    assert made.get_workspace_size() == 0
    buffers: dict[str, Any] = {
        n: torch.full_like(getattr(s, n), float("nan")) for n in ("o", "lse", "rstd_q", "rstd_k")
    }
    if copies:
        buffers |= {n: torch.full(getattr(s, n).shape, float("nan"), dtype=out.dtype) for n in ("gate", "q_pre")}
    else:
        buffers |= {"gate": None, "proj_slab": torch.full_like(s.proj_slab, float("nan")).reshape(2, 9, -1)}
    mine = record.SavedForBackward(h=t[0], **buffers)
    made.execute(*t, out, None, saved=mine)
    assert torch.equal(out, wanted["out"])
    for name, buffer in buffers.items():
        assert buffer is None or torch.equal(buffer.reshape(getattr(s, name).shape), getattr(s, name))
    plain = Fwd(*t, out, GQA, return_lse=True)
    plain.compile()
    lse = torch.empty_like(s.lse)
    plain.execute(*t, out, None, lse=lse)
    assert torch.equal(lse, s.lse)
    for x in t:
        x.requires_grad_()
    dy = torch.ones_like(out)
    expected = backward(dy, replace(s, h=t[0]), *t[1:], GQA)
    for x in t:
        x.requires_grad_(False)
    grads = [torch.full_like(x, float("nan")) for x in expected]
    back = Bwd(dy, mine, *t[1:], GQA)
    back.compile()
    assert back.get_workspace_size() == 0
    back.execute(dy, mine, *t[1:], *grads)
    assert all(torch.equal(a, b) for a, b in zip(grads, expected, strict=True))
    fewer = Bwd(dy, mine, *t[1:], GQA, need_dw_qkvg=False, need_dw_norms=False)
    fewer.compile()
    with pytest.raises(ValueError, match="dw_qkvg: got the opposite, wanted None"):
        fewer.execute(dy, mine, *t[1:], *grads)
    again = torch.empty_like(grads[0])
    fewer.execute(dy, mine, *t[1:], dh=again, dw_o=grads[2])
    assert torch.equal(again, expected["dh"])


def test_classes_of_packed_sequences() -> None:
    given = block_operands(GQA, lead=(13,))
    t = [convert(given[n], "torch") for n in NAMES]
    lengths = torch.tensor([6, 7], dtype=torch.int32)
    out = torch.empty_like(t[0])
    made = Fwd(*t, out, GQA, thd=True, num_sequences=2, max_seq_len=7)
    made.compile()
    made.execute(*t, out, None, lengths)
    wanted = forward(*t, GQA, seq_lens=lengths, thd=True, save_for_backward=True)
    assert torch.equal(out, wanted["out"])
    back = Bwd(out, wanted["saved"], *t[1:], GQA, thd=True, num_sequences=2, max_seq_len=7, need_dh=False)
    assert back.check_support()
    for options, message in (
        ({"num_sequences": 0}, "num_sequences: got 0"),
        ({"max_seq_len": 1}, "max_seq_len: got 1"),
        ({"max_seq_len": 6}, "max_seq_len: got 6 of 2 sequences"),
        ({"max_seq_len": 14}, "max_seq_len: got 14"),
    ):
        with pytest.raises(ValueError, match=message):
            Fwd(*t, out, GQA, **{"thd": True, "num_sequences": 2, "max_seq_len": 7, **options}).check_support()
    with pytest.raises(ValueError, match="seq_lens: got the opposite, wanted lengths"):
        made.execute(*t, out, None)


def class_samples() -> tuple[list[Any], Any]:
    given = block_operands(GQA)
    t = [convert(given[n], "torch") for n in NAMES]
    return t, torch.empty_like(t[0])


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"inplace_qkv": True, "save_for_backward": True}, ValueError, "inplace_qkv: got True"),
        ({"fuse_norm_rope": True, "save_for_backward": True}, ValueError, "fuse_norm_rope: got True"),
        ({"fuse_gate": True, "save_for_backward": True}, ValueError, "fuse_gate: got True"),
        ({"fuse_norm_rope": True, "inplace_qkv": False}, ValueError, "fuse_norm_rope: got True"),
        ({"saved_gate_copy": True}, ValueError, "saved_gate_copy: got True"),
        ({"seq_lens_present": True, "thd": True}, ValueError, "seq_lens_present: got True"),
        ({"return_lse": 1}, TypeError, "return_lse: got 1"),
        ({"quant": object()}, TypeError, "quant: got object, wanted a QuantSpec"),
        (
            {"quant": declarations.QuantSpec(*[1.0] * 7), "fuse_gate": True},
            NotImplementedError,
            "fuse_gate: got True with quant, wanted both of fuse_norm_rope and fuse_gate",
        ),
        (
            {"quant": declarations.MxQuantSpec(1.0, 2.0), "fuse_gate": True, "fuse_norm_rope": True},
            NotImplementedError,
            "scale_o: got 2.0 with a fused gate",
        ),
        ({"no_such": None}, TypeError, "unexpected keyword argument 'no_such'"),
    ],
)
def test_class_refuses(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    t, out = class_samples()
    with pytest.raises(kind, match=message):
        Fwd(*t, out, GQA, **options)


def test_class_checks_its_record() -> None:
    t, out = class_samples()
    with pytest.raises(ValueError, match="out: got"):
        Fwd(*t, out[:, :3], GQA).check_support()
    made = Fwd(*t, out, GQA, save_for_backward=True)
    made.compile()
    good = forward(*t, GQA, save_for_backward=True)["saved"]
    for change, kind, message in (
        (None, ValueError, "saved: got the opposite, wanted a record"),
        (good.h, TypeError, "saved: got Tensor"),
        (replace(good, h=t[0].clone()), ValueError, "saved.h: got something else"),
        (replace(good, proj_slab=None), ValueError, "saved.proj_slab"),
        (replace(good, rstd_q=None), ValueError, "saved.rstd_q"),
        (replace(good, seq_lens_form="prefix"), ValueError, "saved.seq_lens_form"),
        (replace(good, o=good.o[:1]), ValueError, "saved.o: got"),
    ):
        with pytest.raises(kind, match=message):
            made.execute(*t, out, None, saved=change)
    with pytest.raises(ValueError, match="lse: got"):
        made.execute(*t, out, None, lse=torch.empty_like(good.lse), saved=good)
    with pytest.raises(ValueError, match="k_cache: got a tensor, wanted None without paged_kv_page_size"):
        made.execute(*t, out, None, saved=good, k_cache=out)
    with pytest.raises(ValueError, match="w_o: got"):
        made.execute(*t[:6], t[6][:, :64], out, None, saved=good)
    for call in (made.update_quant_scales, made.index_k_raw):
        with pytest.raises((ValueError, NotImplementedError), match=r"quantised block|an indexer"):
            call(None)
    with pytest.raises(ValueError, match="block_ids: got a tensor, wanted None without qsa"):
        made.execute(*t, out, None, saved=good, block_ids=out)
    with pytest.raises(ValueError, match="index_kv_cache: got a tensor, wanted None"):
        made.execute(*t, out, None, saved=good, index_kv_cache=out)
    with pytest.raises(NotImplementedError, match="RECOMPUTE_GATE"):
        Bwd(out, good, *t[1:], GQA, recompute=record.RecomputePolicy.RECOMPUTE_GATE)
    with pytest.raises(ValueError, match="sample_saved: got lengths None, absent"):
        Bwd(out, good, *t[1:], GQA, thd=True)
