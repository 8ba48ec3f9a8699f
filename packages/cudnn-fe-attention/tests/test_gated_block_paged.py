"""The gated attention block over pages: what is stored, and steps and chunks against whole sequences in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations, legacy_forward, serving
from cudnn_fe_testkit.attention import attention_tolerance
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.gated_block import NAMES, block_operands, exact_block
from cudnn_fe_testkit.inputs import Framework, convert

# Arguments are spread from lists and tables here, which the type checker cannot count.
forward: Any = attention.gated_attention_block_forward
paged: Any = attention.gated_attention_block_paged_forward
Geometry: Any = attention.GatedAttentionBlockGeometry
Fwd: Any = legacy_forward.GatedAttentionBlockFwd

G = Geometry(d_model=48, h_q=4, h_kv=2, d_head=32, rope_dim=12, causal_bottom_right=True)
FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
LENGTHS = (21, 37)  # of two sequences: one page and a part, two pages and a part, of 16
PAGES = np.asarray([[3, 1, 7], [0, 5, 6]], np.int32)  # in no order; the last of the first sequence is spare


def whole() -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """The tokens of both sequences, packed, and where each lies."""
    given = block_operands(G, "bfloat16", (sum(LENGTHS),))
    return given, [(0, LENGTHS[0]), (LENGTHS[0], sum(LENGTHS))]


def slot(sequence: int, place: int) -> int:
    return int(PAGES[sequence, place // 16]) * 16 + place % 16


def pools(kind: Any = ml_dtypes.bfloat16) -> list[Any]:
    """Pools full of NaN, which no result may show."""
    return [np.full((8, G.h_kv, 16, G.d_head), np.nan, np.float32).astype(kind) for _ in range(2)]


def exact(given: dict[str, Any], spans: list[tuple[int, int]], g: Any = G) -> Any:
    values = {n: torch.from_numpy(x.astype(np.float64)) for n, x in given.items()}
    return exact_block(g, values, packed=spans)[0].numpy()


def stored_rows(given: dict[str, Any]) -> tuple[Any, Any]:
    """Keys and values of every token (T, Hkv, D): those of a block of one token each, whose record holds them."""
    g = replace(G, causal_bottom_right=False)
    arrays = [convert(given[n], "torch") for n in NAMES]
    saved = forward(
        *arrays, g, seq_lens=torch.tensor([len(given["h"])], dtype=torch.int32), thd=True, save_for_backward=True
    )["saved"]
    x, weight = saved.k_pre[0].double(), arrays[3].double()
    x = x / (x.square().mean(-1, keepdim=True) + G.qk_norm_eps).sqrt() * weight
    half, (cos, sin) = G.rope_dim // 2, (arrays[4].double()[:, None], arrays[5].double()[:, None])
    turned = torch.cat([-x[..., half : G.rope_dim], x[..., :half]], -1)
    keys = torch.cat([x[..., : G.rope_dim] * cos + turned * sin, x[..., G.rope_dim :]], -1)
    values = saved.proj_slab.reshape(len(x), -1)[:, -G.h_kv * G.d_head :].reshape(len(x), G.h_kv, G.d_head)
    return keys, values


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_written_through(framework: Framework) -> None:
    """The output is the plain block's bits; each token's key and value lie in its slot, and nothing else changes."""
    given, _ = whole()
    arrays = [convert(given[n], framework) for n in NAMES]
    caches = [convert(x, framework) for x in pools()]
    slots = np.asarray([slot(0, i) for i in range(21)] + [-1] * 30 + [8 * 16 + i for i in range(7)], np.int64)
    lengths = convert(np.asarray(LENGTHS, np.int32), framework)
    result = paged(
        *arrays,
        G,
        *caches,
        convert(slots if framework != "jax" else slots.astype(np.int32), framework),
        seq_lens=lengths,
        thd=True,
    )
    plain = forward(*arrays, G, seq_lens=lengths, thd=True, return_lse=True)
    for name in ("out", "lse"):
        np.testing.assert_array_equal(to_float64(result[name]), to_float64(plain[name]))
    if framework != "jax":
        assert result["k_cache"] is caches[0]
    keys, values = stored_rows(given)
    k_cache, v_cache = (to_float64(result[name]) for name in ("k_cache", "v_cache"))
    filled = np.zeros((8, 16), bool)
    for place in range(21):
        page, row = divmod(slot(0, place), 16)
        filled[page, row] = True
        np.testing.assert_array_equal(v_cache[page, :, row], to_float64(values[place]))
        np.testing.assert_allclose(k_cache[page, :, row], to_float64(keys[place]), rtol=2.0**-7, atol=2.0**-7)
    assert np.isnan(k_cache.transpose(0, 2, 1, 3)[~filled]).all()
    assert not np.isnan(v_cache.transpose(0, 2, 1, 3)[filled]).any()


@pytest.mark.parametrize("window", [-1, 5])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_chunks_and_steps(framework: Framework, window: int) -> None:
    """Prompts, then a chunk of one sequence and two of the other, then a step of both: as the whole says."""
    g = replace(G, window_left=window)
    given, spans = whole()
    wanted = exact(given, spans, g)
    caches: list[Any] = [convert(x, framework) for x in pools()]
    bound = attention_tolerance("bfloat16", 4, 4 * 128)

    def rows(places: list[tuple[int, int, int]]) -> Any:
        return np.concatenate([np.arange(first, end) + spans[b][0] for b, first, end in places])

    def run(places: list[tuple[int, int, int]], **options: Any) -> None:
        nonlocal caches
        chosen = rows(places)
        arrays = [convert(given[n][chosen] if n in ("h", "cos", "sin") else given[n], framework) for n in NAMES]
        if not options:
            arrays = [
                x.reshape(len(places), -1, x.shape[-1]) if n in ("h", "cos", "sin") else x
                for n, x in zip(NAMES, arrays, strict=True)
            ]
        slots = [slot(b, i) for b, first, end in places for i in range(first, end)]
        more = {n: convert(np.asarray(x, np.int32), framework) for n, x in options.items()}
        ends = convert(np.asarray([end for _, _, end in places], np.int32), framework)
        result = paged(
            *(*arrays, g, *caches, convert(np.asarray(slots, np.int32), framework)),
            kv_source="paged",
            block_table=convert(PAGES, framework),
            kv_lens=ends,
            thd=bool(options),
            **more,
        )
        caches = [result["k_cache"], result["v_cache"]]
        assert_close(to_float64(result["out"]).reshape(len(chosen), -1), wanted[chosen], bound)

    run([(0, 0, 9), (1, 0, 30)], seq_lens=[9, 30])
    run([(0, 9, 17), (1, 30, 31)], seq_lens=[8, 1])
    run([(0, 17, 21), (1, 31, 35)])  # a step of four tokens each
    run([(0, 20, 21), (1, 34, 35)])  # again the last one: its slot is written once more


def test_a_sequence_without_keys_and_layouts_of_pools() -> None:
    """kv_lens of 0 gives 0; pools may lie token by token; a token may be left out of them."""
    given, _ = whole()
    arrays = [convert(given[n][:2].reshape(2, 1, -1) if n in ("h", "cos", "sin") else given[n], "torch") for n in NAMES]
    by_token = [torch.full((8, 16, G.h_kv, G.d_head), float("nan")).bfloat16().transpose(1, 2) for _ in range(2)]
    compact = [x.contiguous() for x in by_token]
    table, lengths = torch.from_numpy(PAGES), torch.tensor([1, 0], dtype=torch.int32)
    slots = torch.tensor([slot(0, 0), -1], dtype=torch.int32)
    results = [
        paged(*arrays, G, *x, slots, kv_source="paged", block_table=table, kv_lens=lengths) for x in (by_token, compact)
    ]
    assert not results[0]["out"][1].any()
    assert torch.isneginf(results[0]["lse"][1]).all()
    assert torch.isfinite(results[0]["out"]).all()
    assert torch.equal(results[0]["out"], results[1]["out"])
    assert torch.equal(by_token[0].nan_to_num(0), compact[0].nan_to_num(0))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_fp8_pools(framework: Framework) -> None:
    """Codes of ``row / scale``, saturating."""
    given, _ = whole()
    arrays = [convert(given[n], framework) for n in NAMES]
    kind = ml_dtypes.float8_e4m3fn
    caches = [convert(np.zeros((8, G.h_kv, 16, G.d_head), np.float32).astype(kind), framework) for _ in range(2)]
    scales = [convert(np.asarray([x], np.float32), framework) for x in (0.004, 0.5)]
    slots = convert(np.arange(sum(LENGTHS), dtype=np.int32), framework)
    lengths = convert(np.asarray(LENGTHS, np.int32), framework)
    result = paged(*arrays, G, *caches, slots, seq_lens=lengths, thd=True, k_scale=scales[0], v_scale=scales[1])
    _, values = stored_rows(given)
    codes = np.clip(to_float64(values) * 2, -448, 448).astype(np.float32).astype(kind).astype(np.float64)
    found = to_float64(result["v_cache"]).transpose(0, 2, 1, 3).reshape(-1, G.h_kv, G.d_head)
    np.testing.assert_array_equal(found[: len(codes)], codes)
    assert not found[len(codes) :].any()
    assert np.abs(to_float64(result["k_cache"])).max() == 448


def test_classes() -> None:
    given, _ = whole()
    t = [convert(given[n], "torch") for n in NAMES]
    lengths, slots = torch.tensor(LENGTHS, dtype=torch.int32), torch.arange(sum(LENGTHS), dtype=torch.int32)
    caches = [convert(x, "torch") for x in pools()]
    out = torch.empty_like(t[0])
    packing = {"thd": True, "num_sequences": 2, "max_seq_len": 37}
    made = Fwd(
        *t,
        out,
        G,
        **packing,
        paged_kv_page_size=16,
        return_lse=True,
        sample_k_cache=caches[0],
        sample_v_cache=caches[1],
    )
    made.compile()
    lse = torch.empty(1, G.h_q, sum(LENGTHS))
    made.execute(*t, out, None, lengths, lse, k_cache=caches[0], v_cache=caches[1], slot_mapping=slots)
    plain = forward(*t, G, seq_lens=lengths, thd=True, return_lse=True)
    assert torch.equal(out, plain["out"])
    assert torch.equal(lse, plain["lse"])
    with pytest.raises(ValueError, match=r"k_cache: got None, wanted \(pages, Hkv, 16, D\)"):
        made.execute(*t, out, None, lengths, lse, v_cache=caches[1], slot_mapping=slots)
    step = [x[: 2 if i in (0, 4, 5) else None] for i, x in enumerate(t)]
    step = [x.reshape(2, 1, -1) if i in (0, 4, 5) else x for i, x in enumerate(step)]
    table, keys = torch.from_numpy(PAGES), torch.tensor([4, 3], dtype=torch.int32)
    decode = Fwd(*step, torch.empty_like(step[0]), G, paged_kv_page_size=16, kv_source="paged", decode_split_kv=4)
    decode.compile()
    result = torch.empty_like(step[0])
    pages = {
        "k_cache": caches[0],
        "v_cache": caches[1],
        "slot_mapping": slots[:2],
        "block_table": table,
        "kv_lens": keys,
    }
    mine = [x.clone() for x in caches]
    decode.execute(*step, result, None, **{**pages, "k_cache": mine[0], "v_cache": mine[1]})
    wanted = paged(*step, G, *caches, slots[:2], kv_source="paged", block_table=table, kv_lens=keys)
    assert torch.equal(result, wanted["out"])
    assert torch.equal(mine[0].nan_to_num(0), caches[0].nan_to_num(0))


def test_live_tokens() -> None:
    """Of 58 tokens 40 are used, with tensors of all rows or of these alone; the rest of the output stays."""
    given, _ = whole()
    t = [convert(given[n], "torch") for n in NAMES]
    lengths = torch.tensor([21, 19], dtype=torch.int32)
    out = torch.empty_like(t[0])
    made = Fwd(*t, out, G, thd=True, num_sequences=2, max_seq_len=37, token_capacity=58)
    made.compile()
    few = [x[:40] if i in (0, 4, 5) else x for i, x in enumerate(t)]
    wanted = forward(*few, G, seq_lens=lengths, thd=True)["out"]
    for operands in (t, few):
        buffer = torch.full_like(t[0], 7.0)
        made.execute(*operands, buffer, None, lengths, num_tokens_live=40)
        assert torch.equal(buffer[:40], wanted)
        assert (buffer[40:] == 7).all()
    made.execute(*t, out, None, lengths)
    assert torch.equal(out[:40], wanted)
    assert torch.isfinite(out).all()
    for live, message in ((59, "got 59, wanted an int of 1..58"), (0, "got 0"), (True, "got True")):
        with pytest.raises(ValueError, match=f"num_tokens_live: {message}"):
            made.execute(*t, out, None, lengths, num_tokens_live=live)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"paged_kv_page_size": 24}, ValueError, "paged_kv_page_size: got 24, wanted a multiple of 16"),
        ({"kv_source": "paged"}, ValueError, "paged_kv_page_size: got 0, wanted pages"),
        ({"kv_source": "pool"}, ValueError, "kv_source: got 'pool'"),
        ({"sample_k_cache": torch.zeros(1)}, ValueError, "sample_k_cache: got a tensor"),
        ({"paged_kv_page_size": 16, "save_for_backward": True}, NotImplementedError, "save_for_backward: got a value"),
        (
            {"paged_kv_page_size": 16, "quant": declarations.QuantSpec(*[1.0] * 7)},
            NotImplementedError,
            "quant: got a value",
        ),
        ({"token_capacity": 9}, ValueError, "token_capacity: got 9, wanted None but of packed"),
        ({"decode_route_policy": "best"}, ValueError, "decode_route_policy: got 'best'"),
        ({"block_ids": torch.zeros(1)}, TypeError, "unexpected|block_ids"),
    ],
)
def test_declarations_that_are_refused(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    given = block_operands(G)
    t = [convert(given[n], "torch") for n in NAMES]
    with pytest.raises((kind, NotImplementedError), match=message):
        Fwd(*t, torch.empty_like(t[0]), G, **options)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"k_cache": np.zeros((8, 2, 24, 32), np.float32)}, ValueError, "k_cache: got 24 tokens a page"),
        ({"v_cache": np.zeros((4, 2, 16, 32), np.float32)}, ValueError, "v_cache: got"),
        ({"k_cache": np.zeros((8, 2, 16, 32), np.float16)}, TypeError, "k_cache: got float16"),
        ({"slot_mapping": np.zeros(3, np.int32)}, ValueError, "slot_mapping: got"),
        ({"slot_mapping": np.zeros(18, np.float32)}, TypeError, "slot_mapping: got float32"),
        ({"k_scale": np.ones(1, np.float32)}, ValueError, "k_scale: got a tensor, wanted None"),
        ({"block_table": None}, ValueError, "block_table: got None"),
        ({"kv_lens": np.zeros(3, np.int32)}, ValueError, "kv_lens: got"),
        ({"block_table": np.zeros((2, 1), np.int64)}, TypeError, "block_table: got int64"),
        ({"kv_source": "self"}, ValueError, "block_table: got a tensor, wanted None with kv_source 'self'"),
        ({"seq_lens": np.zeros(2, np.int32)}, ValueError, "seq_lens: got a tensor, wanted None: kv_lens"),
        ({"geometry": replace(G, causal_bottom_right=False)}, ValueError, "causal_bottom_right: got False"),
        ({"h": np.zeros((2, 33, 48), np.float32)}, NotImplementedError, "h: got 33 tokens, wanted at most 32"),
    ],
)
def test_calls_that_are_refused(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    given: dict[str, Any] = block_operands(G)
    if "h" in change:
        given |= {n: np.zeros((2, 33, 12), np.float32) for n in ("cos", "sin")}
    caches = {n: np.zeros((8, 2, 16, 32), np.float32) for n in ("k_cache", "v_cache")}
    tokens = 66 if "h" in change else 18
    pages = {"slot_mapping": np.zeros(tokens, np.int32), "block_table": PAGES, "kv_lens": np.full(2, 9, np.int32)}
    call = {**given, "geometry": G, **caches, **pages, "kv_source": "paged", **change}
    with pytest.raises(kind, match=message):
        paged(**call)
    fp8 = np.zeros((8, 2, 16, 32), ml_dtypes.float8_e4m3fn)
    if change.get("block_table", 0) is None:
        scales = {"k_scale": np.ones(1, np.float32), "v_scale": np.ones(1, np.float32)}
        with pytest.raises(NotImplementedError, match="kv_cache_dtype: got float8_e4m3fn, wanted float32"):
            paged(**{**call, "block_table": PAGES, "k_cache": fp8, "v_cache": fp8, **scales})


def test_envelopes_and_routes() -> None:
    envelope = Fwd.serving_envelope(G, torch.bfloat16, "cuda")
    assert envelope.served
    assert (envelope.write_through, envelope.extend.served, envelope.decode.max_s_q) == (True, True, 32)
    assert len(envelope.decode.routes) == 32
    assert not Fwd.serving_envelope(G, "float8_e4m3fn", "cuda").served
    assert not Fwd.serving_envelope(replace(G, causal_bottom_right=False), torch.float16, "cuda").decode.served
    route = serving.decode_route(G, 4)
    assert (route.rows, route.route, route.q_tile, route.units) == (8, serving.DECODE_ROUTE_SINGLE_UNIT, 8, 1)
    assert serving.decode_route(G, 4, max_q_tile=3).route == serving.DECODE_ROUTE_TOKEN_UNITS
    assert serving.decode_route(G, 4, serving.DECODE_ROUTE_TOKEN_UNITS).units == 4
    for arguments, message in (
        ((0,), "s_q: got 0"),
        ((33,), "s_q: got 33"),
        ((1, "best"), "policy: got 'best'"),
        ((1, None, 0), "max_q_tile: got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            serving.decode_route(G, *arguments)
