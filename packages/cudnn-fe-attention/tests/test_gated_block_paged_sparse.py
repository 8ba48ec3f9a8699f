"""The block-sparse gated attention block over pages: prompts, chunks and steps against whole sequences in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations, legacy_forward
from cudnn_fe_testkit.attention import attention_tolerance
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.gated_block import exact_masked_block, indexer_lists
from cudnn_fe_testkit.gated_block_served import CAPACITY, LENGTHS, NORMS, PAGES, RINGS, Server
from cudnn_fe_testkit.inputs import Framework

# Arguments are spread from lists and tables here, which the type checker cannot count.
served: Any = attention.gated_attention_block_paged_sparse_forward
sparse: Any = attention.gated_attention_block_sparse_forward
Geometry: Any = attention.GatedAttentionBlockGeometry
Fwd: Any = legacy_forward.GatedAttentionBlockFwd

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
G = Geometry(
    d_model=48, h_q=4, h_kv=2, d_head=32, rope_dim=12, causal_bottom_right=True, qsa=declarations.QsaSpec(top_k=4)
)
INDEXER = declarations.QsaSpec(top_k=4, index_source="indexer", index_band=True, index_heads=2, index_head_dim=64)
GI = replace(G, qsa=INDEXER)
BAND = replace(G, qsa=declarations.QsaSpec(top_k=4, index_band=True, index_heads=2, index_head_dim=64))
TOLERANCE = attention_tolerance("float32", 4, 4 * 128)


def mask_of(lists: dict[int, set[int]], shared: dict[int, int] | None = None) -> torch.Tensor:
    """What each token sees: listed blocks, and all from the open block of its own place or of its step's first."""
    mask = torch.zeros(sum(LENGTHS), sum(LENGTHS), dtype=torch.bool)
    for start, length in zip((0, LENGTHS[0]), LENGTHS, strict=True):
        for p in range(length):
            row = start + p
            tail = ((shared or {}).get(row, p) + 1) // 4 * 4
            for j in range(p + 1):
                mask[row, start + j] = j >= tail or j // 4 in lists[row]
    return mask


def random_lists() -> dict[int, list[int]]:
    rng = np.random.default_rng(5)
    return {row: rng.permutation(9)[:4].tolist() for row in range(sum(LENGTHS))}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_prompts_chunks_and_steps_with_lists_of_the_caller(framework: Framework) -> None:
    """A prompt as the sparse block has it, a chunk with a list per token, then steps of one list and of three."""
    server = Server(G, framework)
    lists = random_lists()
    prompt, chunk = [(0, 0, 20), (1, 0, 20)], [(0, 20, 27), (1, 20, 27)]
    one, each = [(0, 27, 30), (1, 27, 30)], [(0, 30, 33), (1, 30, 33)]
    # Tokens that share a list have that of the first one.
    shared = {row: first for b, first, end in one for row in server.rows([(b, first, end)])}
    for row, first in shared.items():
        lists[row] = lists[first + (LENGTHS[0] if row >= LENGTHS[0] else 0)]
    exact, lse = exact_masked_block(G, server.given, mask_of({r: set(x) for r, x in lists.items()}, shared))

    def ids(spans: list[tuple[int, int, int]], *, per_sequence: bool = False) -> Any:
        rows = [server.rows([span])[0] for span in spans] if per_sequence else server.rows(spans)
        return server.as_given(np.asarray([lists[row] for row in rows], np.int32))

    def check(result: Any, spans: list[tuple[int, int, int]]) -> None:
        rows = server.rows(spans)
        assert_close(to_float64(result["out"]).reshape(len(rows), -1), exact[rows], TOLERANCE)
        found = np.concatenate(list(to_float64(result["lse"])), axis=-1)
        np.testing.assert_allclose(found, lse[:, rows], rtol=1e-4, atol=1e-4)

    first = server.run(prompt, False, block_ids=ids(prompt))
    plain = sparse(*server.operands(server.rows(prompt), 2), G, block_ids=ids(prompt))
    np.testing.assert_array_equal(to_float64(first["out"]), to_float64(plain["out"]))
    check(first, prompt)
    check(server.run(chunk, True, block_ids=ids(chunk)), chunk)
    check(server.run(one, True, block_ids=ids(one, per_sequence=True)), one)
    server.g = replace(G, qsa=replace(G.qsa, index_list_form="per_row"))
    lengths = server.as_given(np.full(6, 4, np.int32))
    check(server.run(each, True, block_ids=ids(each), block_lens=lengths), each)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_steps_with_an_indexer(framework: Framework) -> None:
    """From empty caches: steps of five tokens, then of one, choose what the whole sequence's scores choose."""
    server = Server(GI, framework)
    spans = [(0, 33), (33, 78)]
    lists, compressed = indexer_lists(GI, server.given, NORMS, spans)
    exact, _ = exact_masked_block(GI, server.given, mask_of({row: set(x) for row, x in enumerate(lists)}))
    steps = [*range(0, 30, 5), *range(30, 34)]
    for first, end in pairwise(steps):
        part = [(0, first, end), (1, first, end)]
        rows = server.rows(part)
        result = server.run(part, True)
        for row, found, length in zip(
            rows, to_float64(result["block_ids_out"]), to_float64(result["block_lens_out"]), strict=True
        ):
            assert found.tolist() == sorted(lists[row], reverse=True) + [-1] * (4 - len(lists[row]))
            assert length == len(lists[row])
        assert_close(to_float64(result["out"]).reshape(len(rows), -1), exact[rows], TOLERANCE)
    kept = to_float64(server.caches["index_kv_cache"])[PAGES].reshape(2, 12, 64)
    for b in range(2):
        assert_close(kept[b, :8], compressed[b][:8], TOLERANCE)
        assert np.isnan(kept[b, 8:]).all()
    raw = server.given["h"].astype(np.float64) @ server.given["w_qkvg"][-64:].T.astype(np.float64)
    rings = to_float64(server.caches["index_state_cache"])[:, :, 0]
    for b, (start, _) in enumerate(spans):
        for place in range(33 - CAPACITY, 33):
            assert_close(rings[RINGS[b, 0], place % CAPACITY], raw[start + place], TOLERANCE)
    assert np.isnan(rings[1]).all()


def test_a_prompt_with_an_indexer() -> None:
    """What the sparse block gives, and keys and values in their pages."""
    server = Server(GI, "torch", "bfloat16")
    part = [(0, 0, 21), (1, 0, 21)]
    got = server.run(part, False)
    plain = sparse(*server.operands(server.rows(part), 2), GI, **server.more)
    for name in ("out", "lse", "index_k_raw", "index_k_compressed", "block_ids_out", "block_lens_out"):
        assert torch.equal(got[name], plain[name])
    assert got["index_kv_cache"] is None
    pages = server.caches["k_cache"].isfinite().all(-1).all(1).sum()
    assert pages == 42


def test_rotations_by_place_and_rows_of_rings() -> None:
    """Without cosines of the tokens, and with rows of the rings given: the same bits; -1 writes no row."""
    servers = [Server(GI, "torch", "bfloat16") for _ in range(3)]
    part = [(0, 0, 6), (1, 0, 6)]
    wanted = servers[0].run(part, True)
    operands = servers[1].operands
    servers[1].operands = lambda *a: [None if i in (4, 5) else x for i, x in enumerate(operands(*a))]  # type: ignore[method-assign]
    rows = torch.tensor([int(RINGS[b, 0]) * CAPACITY + i for b in range(2) for i in range(6)], dtype=torch.int32)
    got = servers[1].run(part, True, index_state_slot_mapping=rows)
    for name, x in wanted.items():
        assert (x is None and got[name] is None) or torch.equal(x.nan_to_num(7), got[name].nan_to_num(7))
    rows[3] = -1
    third = servers[2].run(part, True, index_state_slot_mapping=rows)
    assert torch.equal(third["out"], wanted["out"])
    assert third["index_state_cache"][2, 3].isnan().all()
    assert third["index_state_cache"][2, 2].isfinite().all()


def test_fp8_pools_are_read_as_their_products() -> None:
    """The bits of bfloat16 pools that hold the products."""
    server = Server(G, "torch", "bfloat16", ml_dtypes.float8_e4m3fn)
    scales = {"k_scale": torch.tensor([0.02]), "v_scale": torch.tensor([0.01])}
    prompt = torch.tensor([x for _, x in sorted(random_lists().items())], dtype=torch.int32)
    server.run([(0, 0, 20), (1, 0, 20)], False, block_ids=prompt[:40], **scales)
    part = [(0, 20, 24), (1, 20, 24)]
    lists = torch.tensor([[0, 2, 4, -1], [1, 3, 0, 2]], dtype=torch.int32)
    got = server.run(part, True, block_ids=lists, **scales)
    assert got["k_cache"] is server.caches["k_cache"]
    other = Server(G, "torch", "bfloat16")
    for name, scale in (("k_cache", 0.02), ("v_cache", 0.01)):
        other.caches[name] = (server.caches[name].float() * torch.tensor(scale)).bfloat16()
    other.slots = lambda spans: torch.full((8,), -1, dtype=torch.int32)  # type: ignore[method-assign]
    wanted = other.run(part, True, block_ids=lists)
    assert torch.equal(got["out"], wanted["out"])
    assert torch.equal(got["lse"], wanted["lse"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_fp8_keys_of_the_indexer(framework: Framework) -> None:
    """The saturated cast of what bfloat16 pages hold, and lists by the scores of these."""
    plain, small = Server(GI, framework, "bfloat16"), Server(GI, framework, "bfloat16")
    kind = ml_dtypes.float8_e4m3fn
    small.g = replace(GI, qsa=replace(INDEXER, index_cache_dtype="float8_e4m3fn"))
    small.caches["index_kv_cache"] = small.as_given(np.full((8, 4, 1, 64), np.nan, np.float32).astype(kind))
    part = [(0, 0, 8), (1, 0, 8)]
    wanted, got = plain.run(part, True), small.run(part, True)
    np.testing.assert_array_equal(
        to_float64(got["index_kv_cache"]),
        to_float64(to_float64(wanted["index_kv_cache"]).astype(np.float32).astype(kind)),
    )
    np.testing.assert_array_equal(to_float64(got["out"]), to_float64(wanted["out"]))  # two blocks: all are listed
    small.caches["index_state_cache"] = small.as_given(np.zeros((3, 28, 1, 64), ml_dtypes.bfloat16))
    small.run([(0, 8, 32), (1, 8, 32)], True)
    for name, cache in small.caches.items():
        plain.caches[name] = plain.as_given(to_float64(cache).astype(np.float32).astype(ml_dtypes.bfloat16))
    last = [(0, 32, 33), (1, 32, 33)]  # completes no block
    wanted, got = plain.run(last, True), small.run(last, True)
    for name in ("block_ids_out", "block_lens_out", "out"):
        np.testing.assert_array_equal(to_float64(got[name]), to_float64(wanted[name]))
    assert (to_float64(got["block_lens_out"]) == 4).all()


def test_sequences_without_keys_and_what_is_never_read() -> None:
    """No keys: 0 and -inf. Fewer than a step's tokens: the first ones are none. NaN that no token sees stays away."""
    server = Server(GI, "torch")
    part = [(0, 0, 4), (1, 0, 4)]
    got = server.run(part, True, kv_lens=torch.tensor([2, 0], dtype=torch.int32))
    assert not got["out"][1].any()
    assert not got["out"][0, :2].any()
    assert torch.isneginf(got["lse"][1]).all()
    assert torch.isneginf(got["lse"][0, :, :2]).all()
    assert torch.isfinite(got["out"]).all()
    assert got["out"][0, 2:].any()
    assert (got["block_lens_out"] == 0).all()
    assert (got["block_ids_out"] == -1).all()
    assert server.caches["index_kv_cache"].isnan().all()
    rings = server.caches["index_state_cache"]
    assert rings[2, :2].isfinite().all()
    assert rings[2, 2:].isnan().all()
    assert rings[0].isnan().all()


def test_pages_that_the_table_does_not_name() -> None:
    """Blocks past the table's pages, and pages that are none, hold nothing."""
    server = Server(G, "torch")
    lists = torch.zeros(40, 4, dtype=torch.int32)
    server.run([(0, 0, 20), (1, 0, 20)], False, block_ids=lists)
    part = [(0, 20, 21), (1, 20, 21)]
    given = {"block_ids": torch.tensor([[0, 2, -1, -1], [0, 2, -1, -1]], dtype=torch.int32)}
    wanted = server.run(part, True, **given)
    more = torch.tensor([[0, 2, 500, 12], [0, 2, -7, 2**29]], dtype=torch.int32)
    assert torch.equal(server.run(part, True, block_ids=more)["out"], wanted["out"])
    table = torch.from_numpy(PAGES).clone()
    table[:, 2] = torch.tensor([-1, 9])
    assert torch.equal(server.run(part, True, **given, block_table=table)["out"], wanted["out"])


def test_classes() -> None:
    server = Server(GI, "torch", "bfloat16")
    part = [(0, 0, 5), (1, 0, 5)]
    t = server.operands(server.rows(part), 2)
    table, keys = torch.from_numpy(PAGES), torch.tensor([5, 5], dtype=torch.int32)
    out = torch.empty_like(t[0])
    samples = {
        "sample_index_kv_cache": server.caches["index_kv_cache"],
        "sample_index_state_cache": server.caches["index_state_cache"],
        "sample_index_state_block_table": torch.from_numpy(RINGS),
    }
    paging: dict[str, Any] = {"paged_kv_page_size": 16, "kv_source": "paged", "sample_block_table": table}
    paging |= {f"sample_{n}": server.caches[n] for n in ("k_cache", "v_cache")}
    made = Fwd(*t, out, GI, **paging, **samples, return_lse=True, rope_position_tables_only=True)
    made.compile()
    caches = {n: x.clone() for n, x in server.caches.items()}
    given = {
        "slot_mapping": server.slots(part),
        "block_table": table,
        "kv_lens": keys,
        "index_state_block_table": torch.from_numpy(RINGS),
        **server.position_tables(),
        **server.more,
    }
    lse, ids = torch.empty(2, 4, 5), torch.empty(10, 4, dtype=torch.int32)
    by_place = [None if i in (4, 5) else x for i, x in enumerate(t)]
    workspace = torch.zeros(made.get_workspace_size(), dtype=torch.uint8)
    made.execute(*by_place, out, workspace, lse=lse, block_ids_out=ids, **caches, **given)
    wanted = server.run(part, True)
    assert torch.equal(out, wanted["out"])
    assert torch.equal(lse, wanted["lse"])
    assert torch.equal(ids, wanted["block_ids_out"])
    for name, cache in caches.items():
        assert torch.equal(cache.nan_to_num(7), wanted[name].nan_to_num(7))
    refused: tuple[tuple[dict[str, Any], Any, str], ...] = (
        ({"n_commit": keys}, ValueError, "n_commit: got a value"),
        ({"index_k_raw": torch.zeros(8, 16, 64).bfloat16()}, ValueError, "index_k_raw: got a tensor, wanted None"),
        ({"index_kv_cache": None}, ValueError, "index_kv_cache: got None"),
        ({"index_state_slot_mapping": given["slot_mapping"]}, ValueError, "index_state_slot_mapping: got the opposite"),
        ({"index_k_compressed": torch.zeros(2, 1, 64).bfloat16()}, ValueError, "index_k_compressed: got a tensor"),
    )
    for change, kind, message in refused:
        with pytest.raises(kind, match=message):
            made.execute(*by_place, out, workspace, lse=lse, **{**caches, **given, **change})
    with pytest.raises(ValueError, match="cos: got the opposite"):
        made.execute(*t, out, workspace, lse=lse, **caches, **given)
    declared: tuple[tuple[dict[str, Any], Any, str], ...] = (
        ({"index_commit_present": True}, NotImplementedError, "index_commit_present: got True"),
        ({"index_commit_present": 1}, TypeError, "index_commit_present: got"),
        ({"sample_index_kv_cache": None}, ValueError, "sample_index_kv_cache: got None"),
        ({"kv_source": "self"}, ValueError, "sample_index_kv_cache: got a value"),
        ({"thd": True, "num_sequences": 2, "max_seq_len": 5}, ValueError, "h: got"),
    )
    for change, kind, message in declared:
        with pytest.raises(kind, match=message):
            Fwd(*t, out, GI, **{**paging, **samples, **change}).check_support()


def test_classes_write_raw_keys_for_lists_of_the_caller() -> None:
    """A prompt with an indexer's columns and lists of the caller: pools of keys, of values and of raw keys."""
    server = Server(BAND, "torch", "bfloat16")
    part = [(0, 0, 20), (1, 0, 20)]
    t = server.operands(server.rows(part), 2)
    out, raw = torch.empty_like(t[0]), torch.full((8, 16, 64), 7.0).bfloat16()
    made = Fwd(*t, out, BAND, paged_kv_page_size=16)
    made.compile()
    slots, lists = server.slots(part), torch.zeros(40, 4, dtype=torch.int32)
    given = {**server.caches, "slot_mapping": slots, "block_ids": lists}
    made.execute(*t, out, None, index_k_raw=raw, **given)
    wanted = sparse(*t, BAND, block_ids=lists)
    assert torch.equal(out, wanted["out"])
    assert torch.equal(raw.reshape(128, 64)[slots.long()], wanted["index_k_raw"])
    assert (raw == 7).all(-1).sum() == 128 - 40
    with pytest.raises(ValueError, match=r"index_k_raw: got None, wanted \(8, 16, 64\)"):
        made.execute(*t, out, None, **given)
    with pytest.raises(TypeError, match="geometry: got type"):
        Fwd(*t, out, Geometry, paged_kv_page_size=16).check_support()
