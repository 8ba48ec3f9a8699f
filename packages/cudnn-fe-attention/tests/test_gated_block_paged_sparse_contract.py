"""What the block-sparse gated attention block over pages refuses, and what it says it serves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations, legacy_forward
from cudnn_fe_testkit.gated_block import NAMES
from cudnn_fe_testkit.gated_block_served import BY_TOKEN, PAGES, RINGS, Server

# Arguments are spread from lists and tables here, which the type checker cannot count.
served: Any = attention.gated_attention_block_paged_sparse_forward
Geometry: Any = attention.GatedAttentionBlockGeometry
Fwd: Any = legacy_forward.GatedAttentionBlockFwd

G = Geometry(
    d_model=48, h_q=4, h_kv=2, d_head=32, rope_dim=12, causal_bottom_right=True, qsa=declarations.QsaSpec(top_k=4)
)
INDEXER = declarations.QsaSpec(top_k=4, index_source="indexer", index_band=True, index_heads=2, index_head_dim=64)
GI = replace(G, qsa=INDEXER)
CALLER: dict[str, Any] = {"block_ids": np.zeros((2, 4), np.int32)}
STEPS = [(0, 0, 3), (1, 0, 3)]


@pytest.mark.parametrize(
    ("geometry", "change", "kind", "message"),
    [
        (G, {}, ValueError, "block_ids: got None, wanted lists"),
        (G, {"block_ids": np.zeros((6, 4), np.int32)}, ValueError, r"block_ids: got \(6, 4\), wanted \(2, 4\)"),
        (G, {**CALLER, "block_lens": np.zeros(6, np.int32)}, ValueError, "block_lens: got"),
        (G, {**CALLER, "block_table": None}, ValueError, "block_table: got None"),
        (G, {**CALLER, "kv_source": "pool"}, ValueError, "kv_source: got 'pool'"),
        (G, {**CALLER, "seq_lens": np.zeros(2, np.int32)}, ValueError, "seq_lens: got a tensor"),
        (
            G,
            {**CALLER, "index_kv_cache": np.zeros((8, 4, 1, 64), np.float32)},
            ValueError,
            "index_kv_cache: got a tensor",
        ),
        (G, {**CALLER, "w_iq_norm": np.zeros(64, np.float32)}, ValueError, "w_iq_norm: got a tensor"),
        (G, {**CALLER, "cos": None}, ValueError, "sin: got one of cos and sin"),
        (G, {**CALLER, "cos": None, "sin": None}, ValueError, "cos_pos: got None"),
        (G, {**CALLER, "cos_pos": np.zeros((1, 47, 12), np.float32)}, ValueError, r"cos_pos: got \(1, 47, 12\)"),
        (G, {**CALLER, "cos_pos": np.zeros((1, 48, 12), np.float16)}, TypeError, "cos_pos: got float16"),
        (replace(G, causal_bottom_right=False), CALLER, ValueError, "causal_bottom_right: got False"),
        (replace(G, qsa=None), CALLER, NotImplementedError, "qsa: got None"),
        (
            replace(G, qsa=replace(G.qsa, index_list_form="per_row")),
            CALLER,
            ValueError,
            r"block_ids: got \(2, 4\), wanted \(6, 4\)",
        ),
        (GI, {"block_ids": np.zeros((2, 4), np.int32)}, ValueError, "block_ids: got a tensor"),
        (GI, {"index_kv_cache": None}, ValueError, "index_kv_cache: got None"),
        (GI, {"index_kv_cache": np.zeros((8, 16, 1, 64), np.float32)}, ValueError, "index_kv_cache: got"),
        (GI, {"index_kv_cache": np.zeros((8, 4, 1, 64), np.float16)}, TypeError, "index_kv_cache: got float16"),
        (GI, {"index_state_cache": np.zeros((3, 5, 1, 64), np.float32)}, ValueError, r"index_state_cache: got \(3, 5,"),
        (GI, {"index_state_cache": np.zeros((3, 9, 1, 64), np.float16)}, TypeError, "index_state_cache: got float16"),
        (GI, {"index_state_block_table": np.zeros((2, 2), np.int32)}, ValueError, "index_state_block_table: got"),
        (GI, {"index_state_slot_mapping": np.zeros(6, np.int64)}, TypeError, "index_state_slot_mapping: got int64"),
        (GI, {"index_state_slot_mapping": np.zeros(5, np.int32)}, ValueError, "index_state_slot_mapping: got"),
        (GI, {"sin_pos": None}, ValueError, "sin_pos: got None"),
        (GI, {"w_ik_norm": None}, ValueError, "w_ik_norm: got None"),
        (replace(GI, qsa=replace(INDEXER, index_list_form="shared")), {}, NotImplementedError, "index_list_form: got"),
        (GI, {"kv_source": "self"}, ValueError, "block_table: got a tensor, wanted None with kv_source 'self'"),
    ],
)
def test_refusals(geometry: Any, change: dict[str, Any], kind: type[Exception], message: str) -> None:
    server = Server(GI if geometry.qsa is not None and geometry.qsa.index_band else G, "numpy")
    server.g = geometry if geometry.qsa is not None else G
    call: dict[str, Any] = dict(zip(NAMES, server.operands(server.rows(STEPS), 2), strict=True))
    call |= {**server.caches, **server.more, "slot_mapping": server.slots(STEPS), "kv_source": "paged"}
    call |= {"block_table": PAGES, "kv_lens": np.full(2, 3, np.int32)}
    if server.more:
        call |= {"index_state_block_table": RINGS, **server.position_tables()}
    with pytest.raises(kind, match=message):
        served(**{**call, "geometry": geometry, **change})


@pytest.mark.parametrize(
    ("steps", "geometry", "kind"),
    [(5, G, "float32"), (5, G, "bfloat16"), (3, G, "float32"), (3, GI, "bfloat16")],
)
def test_fp8_pools_that_are_refused(steps: int, geometry: Any, kind: str) -> None:
    server = Server(geometry, "numpy", kind, ml_dtypes.float8_e4m3fn)
    part = [(0, 0, steps), (1, 0, steps)]
    lists = {} if geometry is GI else {"block_ids": np.zeros((2 if steps < 5 else 2 * steps, 4), np.int32)}
    scale = np.ones(1, np.float32)
    with pytest.raises(NotImplementedError, match="kv_cache_dtype: got float8_e4m3fn"):
        server.run(part, True, k_scale=scale, v_scale=scale, **lists)


def test_packed_steps_and_long_shared_lists_are_refused() -> None:
    server = Server(G, "numpy")
    rows = server.rows(STEPS)
    operands = [x.reshape(6, -1) if n in BY_TOKEN else x for n, x in zip(NAMES, server.operands(rows, 2), strict=True)]
    given = {**server.caches, "slot_mapping": server.slots(STEPS), "block_table": PAGES}
    lengths = np.full(2, 3, np.int32)
    with pytest.raises(NotImplementedError, match="h: got packed tokens"):
        served(*operands, G, **given, kv_lens=lengths, seq_lens=lengths, thd=True, kv_source="paged", **CALLER)
    server.g = replace(G, qsa=replace(G.qsa, index_list_form="shared"))
    with pytest.raises(NotImplementedError, match="index_list_form: got 'shared' of 5 tokens"):
        server.run([(0, 0, 5), (1, 0, 5)], True, **CALLER)


def test_envelopes() -> None:
    envelope = Fwd.serving_envelope(G, torch.bfloat16, "cuda")
    assert envelope.served
    assert envelope.decode.served
    assert not envelope.extend.served
