"""Gradients of softmax attention: against autograd of dense float64 attention, by finite differences, at the edges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.sdpa import legacy
from cudnn_fe_testkit.attention import assert_slopes, attention_tolerance, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, arrange, convert, normal

# Arguments are spread from lists and tables here, which the type checker cannot count.
sdpa_backward: Any = attention.sdpa_backward
compact_gqa_backward: Any = attention.compact_gqa_backward
CompactGqaBackward: Any = attention.CompactGqaBackward
SdpaBackward: Any = legacy.SdpaBackward
SdpaBwdDslSm80: Any = legacy.SdpaBwdDslSm80
sdpa_bwd_wrapper_sm80: Any = legacy.sdpa_bwd_wrapper_sm80

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
BATCH, HEADS, KEY_HEADS, ROWS, KEYS, WIDTH, VALUE_WIDTH = 2, 4, 2, 9, 7, 8, 5


@dataclass
class Case:
    """Operands of one call, and what float64 autograd says of them."""

    arrays: dict[str, Any]
    options: dict[str, Any]
    hidden: Any  # (B, 1, Sq, Skv)
    wanted: dict[str, torch.Tensor] = field(default_factory=dict)


def hides(i: int, j: int, queries: int, keys: int, options: dict[str, Any]) -> bool:
    """The mask of the page, a pair at a time."""
    diagonal = keys - queries if options.get("causal_bottom_right") else 0
    left, right = options.get("window_size_left"), options.get("window_size_right") or 0
    if i >= queries or j >= keys or (options.get("is_causal") and j > i + diagonal + right):
        return True
    return left is not None and j < i + diagonal - left


def make(kind: str = "float32", bias: int = 0, sink: bool = False, lengths: Any = None, **options: Any) -> Case:
    """A forward in float64 on operands of ``kind``, and its gradients by autograd; padding holds NaN."""
    shapes = {
        "q_tensor": (BATCH, HEADS, ROWS, WIDTH),
        "k_tensor": (BATCH, KEY_HEADS, KEYS, WIDTH),
        "v_tensor": (BATCH, KEY_HEADS, KEYS, VALUE_WIDTH),
    }
    arrays: dict[str, Any] = {name: normal(shape, kind, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    if bias:
        arrays["bias_tensor"] = normal((bias, HEADS, ROWS, KEYS), seed=5)
    if sink:
        arrays["sink_token"] = normal((1, HEADS, 1, 1), seed=6)
    leaves = {name: double(x).requires_grad_() for name, x in arrays.items()}
    scale = options.get("scale_softmax", WIDTH**-0.5)
    mask = torch.zeros(BATCH, 1, ROWS, KEYS, dtype=torch.bool)
    extents = lengths or [(ROWS, KEYS)] * BATCH
    for b, _, i, j in np.ndindex(*mask.shape):
        queries, keys = extents[b]
        mask[b, 0, i, j] = hides(i, j, queries, keys, options)
    k, v = (leaves[name].repeat_interleave(HEADS // KEY_HEADS, 1) for name in ("k_tensor", "v_tensor"))
    s = torch.einsum("bhid,bhjd->bhij", leaves["q_tensor"], k) * scale + leaves.get("bias_tensor", 0.0)
    s = s.masked_fill(mask, float("-inf"))
    if sink:
        s = torch.cat([s, leaves["sink_token"].expand(BATCH, HEADS, ROWS, 1)], -1)
    lse = torch.logsumexp(s, -1, keepdim=True)
    alive = lse > float("-inf")
    for b, (queries, _) in enumerate(extents):
        alive[b, :, queries:] = False
    p = torch.exp(s - torch.where(alive, lse, 0.0))[..., :KEYS]
    o = torch.einsum("bhij,bhjd->bhid", torch.where(alive, p, 0.0), v)
    do = normal(o.shape, kind, seed=4)
    o.backward(double(do))
    case = Case(arrays, dict(options), mask.numpy())
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        case.wanted[name.replace("token", "tensor")] = leaf.grad
    arrays["o_tensor"] = o.detach().to(getattr(torch, kind)).float().numpy().astype(arrays["q_tensor"].dtype)
    arrays["do_tensor"], arrays["stats_tensor"] = do, lse.detach().float().numpy()
    if lengths:
        for name, side in (("seq_q_lens", 0), ("seq_kv_lens", 1)):
            arrays[name] = np.asarray([pair[side] for pair in lengths], np.int32)
        for b, (queries, keys) in enumerate(lengths):
            for name in ("q_tensor", "o_tensor", "do_tensor", "stats_tensor"):
                arrays[name][b, :, queries:] = np.nan
            for name in ("k_tensor", "v_tensor"):
                arrays[name][b, :, keys:] = np.nan
    return case


def check(case: Case, framework: Framework = "numpy", kind: str = "float32") -> Any:
    results = sdpa_backward(**{n: convert(x, framework) for n, x in case.arrays.items()}, **case.options)
    assert [f"d{name}" for name in case.wanted if name in ("bias_tensor", "sink_tensor")] == list(results.keys())[3:]
    for name, wanted in case.wanted.items():
        got = to_float64(results[f"d{name}"])
        # What P, dS and O are rounded to, and the sums over queries of a group.
        assert_close(got, wanted, attention_tolerance(kind, 5, HEADS * ROWS), name)
    hidden = {"dq_tensor": case.hidden.all(3), "dk_tensor": case.hidden.all(2), "dv_tensor": case.hidden.all(2)}
    for name, dead in hidden.items():
        assert not to_float64(results[name])[np.broadcast_to(dead, results[name].shape[:3])].any()
    return results


MASKS: list[dict[str, Any]] = [
    {},
    {"is_causal": True},
    {"is_causal": True, "causal_bottom_right": True},
    {"is_causal": True, "window_size_left": 0, "window_size_right": 1},
    {"is_causal": True, "window_size_right": 2, "window_size_left": 3},
    {"window_size_left": 2},
    *({"window_size_left": left} for left in (0, KEYS - 1, KEYS, ROWS - 1, ROWS, 100)),
    *({"is_causal": True, "window_size_right": right} for right in (0, KEYS - 1, KEYS, 100)),
    {"is_causal": True, "causal_bottom_right": True, "window_size_left": 0, "window_size_right": 1},
    {"scale_softmax": -0.4},
    {"scale_softmax": 0.0},
]


@pytest.mark.parametrize("options", MASKS, ids=str)
@pytest.mark.parametrize("lengths", [None, [(5, 3), (9, 7)], [(0, 4), (4, 0)]])
def test_masks_and_lengths(options: dict[str, Any], lengths: Any) -> None:
    check(make(lengths=lengths, **options))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bias_sink_and_lengths(framework: Framework, kind: str) -> None:
    check(make(kind, bias=BATCH, sink=True, lengths=[(5, 6), (9, 7)], is_causal=True), framework, kind)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_bias_that_batches_share(framework: Framework) -> None:
    check(make(bias=1, deterministic=True), framework)


def test_tiles_of_the_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(bias=1, lengths=[(5, 6), (9, 7)], is_causal=True)
    monkeypatch.setattr("cudnn_fe.attention.tiles._ON_HOST", 40)
    check(case)


@pytest.mark.parametrize("lengths", [None, [(5, 6), (9, 0)]])
def test_finite_differences(lengths: Any) -> None:
    """Of a forward that is written out here, with a bias that batches share, a sink, a window and a GQA group of 2."""
    options: dict[str, Any] = {"is_causal": True, "window_size_left": 3, "window_size_right": 1}
    case = make("float64", bias=1, sink=True, lengths=lengths, **options)
    names = ("q_tensor", "k_tensor", "v_tensor", "bias_tensor", "sink_token")
    at = {name: double(case.arrays[name]).nan_to_num(0) for name in names}
    do, mask = double(case.arrays["do_tensor"]).nan_to_num(0), torch.from_numpy(case.hidden)

    def forward(x: dict[str, torch.Tensor]) -> Any:
        k, v = (x[name].repeat_interleave(HEADS // KEY_HEADS, 1) for name in ("k_tensor", "v_tensor"))
        e = torch.exp(x["q_tensor"] @ k.mT / WIDTH**0.5 + x["bias_tensor"]).masked_fill(mask, 0)
        total = e.sum(-1, keepdim=True) + x["sink_token"].exp()
        return e @ v / total, total.log()

    o, lse = forward(at)
    given = {**{name: x.numpy() for name, x in at.items()}, "o_tensor": o.numpy(), "stats_tensor": lse.numpy()}
    for name in ("seq_q_lens", "seq_kv_lens"):
        if lengths:
            given[name] = case.arrays[name]
    got = sdpa_backward(**given, do_tensor=do.numpy(), **options)
    grads = {name: got["d" + name.replace("token", "tensor")] for name in names}
    assert_slopes(lambda x: (forward(x)[0] * do).sum(), at, grads)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_infinite_sinks(framework: Framework) -> None:
    """A sink of plus infinity leaves nothing to the keys; one of minus infinity takes nothing."""
    case = make(is_causal=True)
    plain = sdpa_backward(**case.arrays, is_causal=True)
    sink = np.asarray([np.inf, -np.inf, np.inf, -np.inf], np.float32).reshape(1, HEADS, 1, 1)
    arrays = {**case.arrays, "stats_tensor": np.maximum(case.arrays["stats_tensor"], sink), "sink_token": sink}
    arrays["o_tensor"] = np.where(sink > 0, 0, arrays["o_tensor"])
    got = sdpa_backward(**{name: convert(x, framework) for name, x in arrays.items()}, is_causal=True)
    assert not to_float64(got["dsink_tensor"]).any()
    dq = to_float64(got["dq_tensor"])
    assert not dq[:, ::2].any()
    assert_close(dq[:, 1::2], plain["dq_tensor"][:, 1::2], 2.0**-20)
    assert np.isfinite(to_float64(got["dk_tensor"])).all()


def packed_case() -> tuple[list[Any], Any, list[slice]]:
    """Two sequences, of 3 and 5 tokens, with rows of NaN after each of them."""
    case = make(lengths=[(3, 3), (5, 5)], is_causal=True)
    spans = [slice(0, 3), slice(4, 9)]
    packed = []
    for name in ("q_tensor", "k_tensor", "v_tensor", "o_tensor", "do_tensor", "stats_tensor"):
        x = case.arrays[name]
        flat = np.full((1, x.shape[1], 10, x.shape[3]), np.nan, x.dtype)
        for b, span in enumerate(spans):
            flat[0, :, span] = x[b, :, : span.stop - span.start]
        packed.append(flat)
    return packed, case, spans


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_packed_sequences_with_gaps(framework: Framework) -> None:
    packed, case, spans = packed_case()
    starts, lengths = np.asarray([0, 4, 10], np.int32), np.asarray([3, 5], np.int32)
    arrays = [convert(x, framework) for x in packed]
    first, count = convert(starts, framework), convert(lengths, framework)
    results = sdpa_backward(
        *arrays, is_causal=True, seq_q_lens=count, seq_kv_lens=count, cum_seqlen_q_tensor=first,
        cum_seqlen_k_tensor=first,
    )  # fmt: skip
    for name, wanted in case.wanted.items():
        got = to_float64(results[f"d{name}"])
        for b, span in enumerate(spans):
            rows = span.stop - span.start
            assert_close(got[0, :, span], wanted[b, :, :rows], attention_tolerance("float32", 5, 20), name)
        assert not got[0, :, [3, 9]].any()


def test_compact_gqa() -> None:
    packed, _, _ = packed_case()
    arrays = [torch.from_numpy(x[0].swapaxes(0, 1).copy()) for x in packed]
    arrays[5] = arrays[5][..., 0]
    plan = CompactGqaBackward(*arrays, max_seqlen=6)
    with pytest.raises(RuntimeError, match="execute before compile"):
        compact_gqa_backward(*arrays, plan=plan, workspace=None)
    assert plan.scratch_workspace_bytes(99) == 0
    plan.initialize_workspace(None)
    got = compact_gqa_backward(*arrays, plan=plan, workspace=None, sequence_offsets=[0, 4, 10], sequence_lengths=(3, 5))
    ends, lengths = torch.tensor([0, 4, 10], dtype=torch.int32), torch.tensor([3, 5], dtype=torch.int32)
    given = [torch.from_numpy(x) for x in packed]
    wanted = sdpa_backward(
        *given, is_causal=True, seq_q_lens=lengths, seq_kv_lens=lengths, cum_seqlen_q_tensor=ends,
        cum_seqlen_k_tensor=ends,
    )  # fmt: skip
    placed = [torch.full_like(x, float("nan")) for x in got]
    plan.execute(*arrays, *placed, None, sequence_offsets=[0, 4, 10], sequence_lengths=[3, 5])
    for a, b, c in zip(got, wanted, placed, strict=True):
        assert torch.equal(a, b[0].transpose(0, 1))
        assert torch.equal(a, c)
    assert list(got.keys()) == ["dq", "dk", "dv"]
    for change, kind, message in (
        ({"sequence_offsets": ends}, TypeError, "sequence_offsets: got tensor"),
        ({"sequence_lengths": [1.0, 2.0]}, TypeError, "sequence_lengths: got"),
        ({"sequence_offsets": [0, 4]}, ValueError, "sequence_offsets: got"),
        ({"sequence_offsets": [0, 4, 10], "sequence_lengths": [5, 1]}, ValueError, "sequence_lengths: got"),
    ):
        with pytest.raises(kind, match=message):
            compact_gqa_backward(*arrays, plan=plan, workspace=None, **change)
    with pytest.raises(ValueError, match="v: got"):
        compact_gqa_backward(*arrays[:2], arrays[2][..., :2], *arrays[3:], plan=plan, workspace=None)
    plan.close()
    with pytest.raises(RuntimeError, match="execute before compile"):
        plan.execute(*arrays, *placed, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 3}, "groups: got 3"),
        ({"query_rows": 100}, "query_rows: got 100"),
        ({"ds_budget_bytes": 9}, "ds_budget_bytes: got 9"),
        ({"max_seqlen": 0}, "max_seqlen: got 0"),
    ],
)
def test_compact_gqa_refuses(options: dict[str, Any], message: str) -> None:
    x = torch.zeros(4, 1, 8)
    with pytest.raises(ValueError, match=message):
        CompactGqaBackward(x, x, x, x, x, torch.zeros(4, 1), **options)
    with pytest.raises(ValueError, match="lse: got"):
        CompactGqaBackward(x, x, x, x, x, torch.zeros(4, 2)).check_support()


def test_names_of_siblings() -> None:
    case = make(bias=1, sink=True, lengths=[(5, 6), (9, 7)], is_causal=True, window_size_left=3)
    wanted = sdpa_backward(**case.arrays, **case.options)
    a = dict(case.arrays)
    given = [a[n] for n in ("q_tensor", "k_tensor", "v_tensor", "o_tensor", "do_tensor", "stats_tensor")]
    more = [a[n] for n in ("seq_q_lens", "seq_kv_lens", "sink_token", "bias_tensor")]
    plain = legacy.sdpa_bwd_wrapper_dsl_sm120(*given, True, False, 3, None, False, None, *more)
    old = sdpa_bwd_wrapper_sm80(
        *given[:5], given[5][..., 0], True, (3, -1), seq_kv_lens=more[1], seq_len_q=more[0], bias_tensor=more[3],
        sinks=more[2].reshape(-1),
    )  # fmt: skip
    assert list(old.keys()) == list(wanted.keys()) == list(plain.keys())
    for name, x in wanted.items():
        np.testing.assert_array_equal(plain[name], x)
        np.testing.assert_array_equal(old[name], x.reshape(old[name].shape))
    assert old["dsink_tensor"].shape == (HEADS,)
    packed, _, _ = packed_case()
    ends = np.asarray([0, 4, 10], np.int32)
    turned = [x.swapaxes(1, 2) for x in packed[:5]]
    clean = [np.nan_to_num(x) for x in turned]
    back = sdpa_bwd_wrapper_sm80(
        *clean, np.nan_to_num(packed[5][..., 0]), True, cum_seqlen_q_tensor=ends, cum_seqlen_k_tensor=ends, max_s_q=9
    )
    other = sdpa_backward(*map(np.nan_to_num, packed), True, cum_seqlen_q_tensor=ends, cum_seqlen_k_tensor=ends)
    for name, x in other.items():
        np.testing.assert_array_equal(back[name], x.swapaxes(1, 2))


@pytest.mark.parametrize(("kind", "make_class"), [("float32", SdpaBackward), ("bfloat16", SdpaBwdDslSm80)])
def test_classes(kind: str, make_class: Any) -> None:
    case = make(kind, bias=1, sink=True, lengths=[(5, 6), (9, 7)], is_causal=True)
    t = {name: convert(x, "torch") for name, x in case.arrays.items()}
    wanted = sdpa_backward(**t, **case.options)
    given = [t[n] for n in ("q_tensor", "k_tensor", "v_tensor", "o_tensor", "do_tensor", "stats_tensor")]
    dtype = t["q_tensor"].dtype
    outs = [
        convert(arrange(np.full(x.shape, np.nan, np.float32), (3, 1, 2, 0), pad=2), "torch").to(x.dtype)
        for x in given[:3]
    ]
    dbias, dsink = torch.empty(t["bias_tensor"].shape, dtype=dtype), torch.empty_like(t["sink_token"])
    made = make_class(
        *given, *outs, t["sink_token"], dsink, t["bias_tensor"], dbias, True, seq_kv_lens_present=True,
        seq_q_lens_present=True, tile_m=64, tile_n=128,
    )  # fmt: skip
    assert made.check_support()
    made.compile()
    assert made.scratch_workspace_bytes() == 0
    lens = t["seq_q_lens"], t["seq_kv_lens"]
    made.execute(*given, *outs, None, None, None, *lens, t["sink_token"], dsink, t["bias_tensor"], dbias)
    for got, expected in zip((*outs, dbias, dsink), wanted, strict=True):
        assert torch.equal(got, expected.to(got.dtype))
    made.execute(*given, *outs, 0.2, None, None, *lens, t["sink_token"], dsink, t["bias_tensor"], dbias)
    assert torch.equal(outs[2], sdpa_backward(**t, **case.options, scale_softmax=0.2)["dv_tensor"])


def test_classes_refuse() -> None:
    x, stats = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 1)
    samples = (x, x, x, x, x, stats, x, x, x)
    with pytest.raises(TypeError, match="abstract"):
        legacy.SdpaBwdDsl(*samples)  # type: ignore[abstract]
    assert issubclass(legacy.SdpaBwdDslSm120, legacy.SdpaBwdDsl)
    for options, kind, message in (
        ({"tile_m": 48}, ValueError, "tile_m: got 48"),
        ({"tile_n": 32}, ValueError, "tile_n: got 32"),
        ({"thd": True}, NotImplementedError, "thd: got True"),
        ({"sample_sink": torch.zeros(1, 1, 1, 1)}, ValueError, "dsink_tensor: got None"),
        ({"sample_dbias": torch.zeros(1, 1, 4, 4)}, ValueError, "bias_tensor: got None"),
        ({"window_size_right": 1}, ValueError, "window_size_right: got 1, wanted is_causal"),
    ):
        with pytest.raises(kind, match=message):
            SdpaBackward(*samples, **options).check_support()
    with pytest.raises(NotImplementedError, match="rope_freqs"):
        SdpaBwdDslSm80(*samples, has_rope=True)
    with pytest.raises(NotImplementedError, match="FP8 operands"):
        legacy.SdpaBwdDslSm107Fp8(*samples)
    with pytest.raises(NotImplementedError, match="SdpaBwdDslSm107Mxfp8: got FP8 operands"):
        legacy.SdpaBwdDslSm107Mxfp8(*samples)


def test_zero_and_one_token() -> None:
    one, none = np.full((1, 2, 1, 8), 2.0, np.float32), np.zeros((1, 2, 0, 8), np.float32)
    lse = np.full((1, 2, 1, 1), 32 / 8**0.5, np.float32)
    grads = sdpa_backward(one, one, one, one, one, lse)
    np.testing.assert_allclose(grads["dv_tensor"], 2, rtol=1e-6)
    np.testing.assert_allclose(grads["dq_tensor"], 0, atol=1e-4)
    dead = np.full((1, 2, 1, 1), -np.inf, np.float32)
    assert not any(x.any() for x in sdpa_backward(one, none, none, one, one, dead))
    bias = np.zeros((1, 2, 0, 1), np.float32)
    empty = sdpa_backward(none, one, one, none, none, np.zeros((1, 2, 0, 1), np.float32), bias_tensor=bias)
    assert [x.shape for x in empty] == [none.shape, one.shape, one.shape, bias.shape]
    assert not empty["dk_tensor"].any()
