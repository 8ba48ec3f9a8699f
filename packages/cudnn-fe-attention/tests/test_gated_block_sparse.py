"""The block-sparse gated attention block: against dense float64 attention with the mask that the lists say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations, legacy_forward, record
from cudnn_fe_testkit.attention import attention_tolerance
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.gated_block import NAMES, block_operands, exact_masked_block, indexer_lists
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists and tables here, which the type checker cannot count.
sparse: Any = attention.gated_attention_block_sparse_forward
forward: Any = attention.gated_attention_block_forward
Geometry: Any = attention.GatedAttentionBlockGeometry
Fwd: Any = legacy_forward.GatedAttentionBlockFwd

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
CALLER = declarations.QsaSpec(top_k=4)
INDEXER = declarations.QsaSpec(top_k=4, index_source="indexer", index_band=True, index_heads=2, index_head_dim=64)
G = Geometry(d_model=48, h_q=4, h_kv=2, d_head=32, rope_dim=12, qsa=CALLER)
GI = replace(G, qsa=INDEXER)
TOLERANCE = attention_tolerance("float32", 4, 4 * 128)


def exact(g: Any, t: dict[str, Any], spans: list[tuple[int, int]], keys: list[int], lists: Any) -> tuple[Any, Any]:
    """``(out, lse)`` of tokens in one row (T, ...): a token's own span, its listed blocks and the open one."""
    mask = torch.zeros(len(t["h"]), len(t["h"]), dtype=torch.bool)
    for (start, end), count in zip(spans, keys, strict=True):
        for p in range(end - start):
            for j in range(min(p + 1, count)):
                mask[start + p, start + j] = j >= (p + 1) // 4 * 4 or j // 4 in lists[start + p]
    return exact_masked_block(g, t, mask)


def random_lists(spans: list[tuple[int, int]], tokens: int) -> tuple[Any, Any, list[set[int]]]:
    """Lists of up to four different blocks, what follows their length names others; and what counts."""
    rng = np.random.default_rng(3)
    ids, lengths = np.full((tokens, 4), 99, np.int32), np.zeros(tokens, np.int32)
    chosen: list[set[int]] = [set() for _ in range(tokens)]
    for start, end in spans:
        for t in range(start, end):
            blocks = rng.permutation(8)[:4]
            lengths[t] = rng.integers(0, 5)
            ids[t] = blocks
            chosen[t] = set(blocks[: lengths[t]].tolist())
    return ids, lengths, chosen


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_lists_of_the_caller(framework: Framework, packed: bool) -> None:
    """Two sequences of 23 tokens, of which 23 and 9 are keys, or packed ones of 14, 0 and 29 with 3 rows to spare."""
    spans = [(0, 14), (14, 14), (14, 43)] if packed else [(0, 23), (23, 46)]
    keys = [14, 0, 29] if packed else [23, 9]
    given = block_operands(G, lead=(46,))
    ids, lengths, chosen = random_lists(spans, 46)
    out, lse = exact(G, given, spans, keys, chosen)
    arrays = {
        n: convert(x.reshape(2, 23, -1) if not packed and n in ("h", "cos", "sin") else x, framework)
        for n, x in given.items()
    }
    counts = convert(np.asarray([14, 0, 29] if packed else keys, np.int32), framework)
    lists = {"block_ids": convert(ids, framework), "block_lens": convert(lengths, framework)}
    got = sparse(*(arrays[n] for n in NAMES), G, **lists, seq_lens=counts, thd=packed)
    live = 43 if packed else 46
    assert_close(to_float64(got["out"]).reshape(46, -1)[:live], out[:live], TOLERANCE)
    found = to_float64(got["lse"])
    found = found[0] if packed else np.concatenate(list(found), axis=-1)
    np.testing.assert_allclose(found[:, :live], lse[:, :live], rtol=1e-4, atol=1e-4)
    assert not to_float64(got["out"]).reshape(46, -1)[live:].any()
    # A list whose end is -1 needs no length, and a list may have its own dims.
    ended = np.where(np.arange(4) < lengths[:, None], ids, -1).astype(np.int32)
    ended = ended if packed else ended.reshape(2, 23, 4)
    again = sparse(*(arrays[n] for n in NAMES), G, block_ids=convert(ended, framework), seq_lens=counts, thd=packed)
    np.testing.assert_array_equal(to_float64(again["out"]), to_float64(got["out"]))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_indexer(framework: Framework, packed: bool) -> None:
    """Sequences of 30 tokens have seven blocks, of which four are chosen; the short one of 16 takes all that it has."""
    spans = [(0, 14), (14, 60)] if packed else [(0, 30), (30, 60)]
    given = block_operands(GI, lead=(60,))
    norms = normal((64,), seed=40), normal((64,), seed=41)
    lists, compressed = indexer_lists(GI, given, norms, spans)
    out, _ = exact(GI, given, spans, [b - a for a, b in spans], [set(x) for x in lists])
    arrays = {
        n: convert(x.reshape(2, 30, -1) if not packed and n in ("h", "cos", "sin") else x, framework)
        for n, x in given.items()
    }
    more = {"seq_lens": convert(np.asarray([14, 46], np.int32), framework), "thd": True} if packed else {}
    weights = {n: convert(x, framework) for n, x in zip(("w_iq_norm", "w_ik_norm"), norms, strict=True)}
    got = sparse(*(arrays[n] for n in NAMES), GI, **weights, **more)
    found = to_float64(got["block_ids_out"]).astype(int)
    lengths = to_float64(got["block_lens_out"]).astype(int)
    for row, wanted, length in zip(found, lists, lengths, strict=True):
        assert row.tolist() == wanted + [-1] * (4 - len(wanted))
        assert length == len(wanted)
    assert_close(to_float64(got["out"]).reshape(60, -1), out, TOLERANCE)
    raw = given["h"].astype(np.float64) @ given["w_qkvg"][-64:].T.astype(np.float64)
    assert_close(got["index_k_raw"], raw, TOLERANCE)
    if packed:
        assert got["index_k_compressed"].shape == (1, 0, 64)
    else:
        assert_close(got["index_k_compressed"], torch.stack(compressed), TOLERANCE)


def test_full_lists_are_dense_attention() -> None:
    """Up to 4 top_k + 3 tokens the indexer lists all that there is: the plain block's numbers."""
    given = block_operands(GI, lead=(2, 19))
    norms = normal((64,), seed=40), normal((64,), seed=41)
    got = sparse(*(given[n] for n in NAMES), GI, w_iq_norm=norms[0], w_ik_norm=norms[1])
    plain = given | {"w_qkvg": given["w_qkvg"][: -INDEXER.index_band_cols]}
    wanted = forward(*(plain[n] for n in NAMES), replace(GI, qsa=None), return_lse=True)
    assert INDEXER.identity_bound == 19
    assert_close(got["out"], to_float64(wanted["out"]), 2.0**-18)
    assert_close(got["lse"], to_float64(wanted["lse"]), 2.0**-18)


def test_classes() -> None:
    given = block_operands(GI, "bfloat16", lead=(2, 30))
    t = [convert(given[n], "torch") for n in NAMES]
    norms = [convert(normal((64,), "bfloat16", seed=s), "torch") for s in (40, 41)]
    out = torch.empty_like(t[0])
    made = Fwd(*t, out, GI, return_lse=True)
    made.compile()
    workspace = torch.zeros(made.get_workspace_size(), dtype=torch.uint8)
    assert made.get_workspace_size() >= 60 * 64 * 2
    lse, keys = torch.empty(2, 4, 30), torch.full((2, 9, 64), 7.0).bfloat16()
    ids, lengths = torch.empty(60, 4, dtype=torch.int32), torch.empty(60, dtype=torch.int32)
    buffers = {"index_k_compressed": keys, "block_ids_out": ids, "block_lens_out": lengths}
    made.execute(*t, out, workspace, lse=lse, w_iq_norm=norms[0], w_ik_norm=norms[1], **buffers)
    wanted = sparse(*t, GI, w_iq_norm=norms[0], w_ik_norm=norms[1])
    for buffer, name in ((out, "out"), (lse, "lse"), (ids, "block_ids_out"), (lengths, "block_lens_out")):
        assert torch.equal(buffer, wanted[name])
    assert torch.equal(keys[:, :7], wanted["index_k_compressed"])
    assert (keys[:, 7:] == 7).all()
    assert torch.equal(made.index_k_raw(workspace)[:, 0], wanted["index_k_raw"])
    slab = torch.zeros(60, GI.n_qkvg)
    slab[:, -64:] = wanted["index_k_raw"]
    assert torch.equal(record.index_k_raw_view(slab, GI, 2, 30).reshape(60, 64), slab[:, -64:])
    views = record.saved_slab_views(slab, GI, 2, 30)
    assert [x.shape[2] for x in views] == [4, 4, 2, 2]
    with pytest.raises(ValueError, match="qsa: got"):
        record.index_k_raw_view(slab, G, 2, 30)
    with pytest.raises(ValueError, match="workspace: got None"):
        made.execute(*t, out, None, lse=lse, w_iq_norm=norms[0], w_ik_norm=norms[1])
    with pytest.raises(NotImplementedError, match="save_for_backward"):
        Fwd(*t, out, GI, save_for_backward=True).check_support()
    plain = [x[: -INDEXER.index_band_cols] if i == 1 else x for i, x in enumerate(t)]
    mine = Fwd(*plain, out, G)
    mine.compile()
    lists = torch.zeros(60, 4, dtype=torch.int32)
    mine.execute(*plain, out, None, block_ids=lists)
    assert torch.equal(out, sparse(*plain, G, block_ids=lists)["out"])
    with pytest.raises(ValueError, match="block_ids_out: got a tensor, wanted None without an indexer"):
        mine.execute(*plain, out, None, block_ids=lists, block_ids_out=ids)
    with pytest.raises(ValueError, match="index_k_raw: got a call"):
        mine.index_k_raw(workspace)


@pytest.mark.parametrize("length", [0, 1])
def test_short_sequences(length: int) -> None:
    given = block_operands(G, lead=(2, length))
    got = sparse(*(given[n] for n in NAMES), G, block_ids=np.full((2 * length, 4), -1, np.int32))
    assert got["out"].shape == (2, length, 48)
    if length:
        wanted = forward(*(given[n] for n in NAMES), replace(G, qsa=None))["out"]
        assert_close(got["out"], to_float64(wanted), 2.0**-18)
    given = block_operands(GI, lead=(2, length))
    norms = normal((64,), seed=40), normal((64,), seed=41)
    got = sparse(*(given[n] for n in NAMES), GI, w_iq_norm=norms[0], w_ik_norm=norms[1])
    assert got["block_ids_out"].shape == (2 * length, 4)
    assert (got["block_ids_out"] == -1).all()


@pytest.mark.parametrize(
    ("geometry", "change", "kind", "message"),
    [
        (G, {}, ValueError, "block_ids: got None, wanted lists"),
        (G, {"block_ids": np.zeros((18, 3), np.int32)}, ValueError, r"block_ids: got \(18, 3\), wanted \(18, 4\)"),
        (G, {"block_ids": np.zeros((18, 4), np.int64)}, TypeError, "block_ids: got int64"),
        (
            G,
            {"block_ids": np.zeros((18, 4), np.int32), "block_lens": np.zeros(3, np.int32)},
            ValueError,
            "block_lens: got",
        ),
        (
            G,
            {"block_ids": np.zeros((18, 4), np.int32), "w_iq_norm": np.ones(64, np.float32)},
            ValueError,
            "w_iq_norm: got a tensor",
        ),
        (GI, {}, ValueError, "w_iq_norm: got None, wanted a weight"),
        (GI, {"w_iq_norm": np.ones(32, np.float32)}, ValueError, "w_iq_norm: got"),
        (GI, {"block_ids": np.zeros((18, 4), np.int32)}, ValueError, "block_ids: got a tensor, wanted None"),
        (replace(G, qsa=None), {}, NotImplementedError, "qsa: got None, wanted a QsaSpec"),
    ],
)
def test_refusals(geometry: Any, change: dict[str, Any], kind: type[Exception], message: str) -> None:
    given = block_operands(geometry)
    with pytest.raises(kind, match=message):
        sparse(*(given[n] for n in NAMES), geometry, **change)
