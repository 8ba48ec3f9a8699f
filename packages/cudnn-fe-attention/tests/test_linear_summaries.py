"""What spans do to states and gradients: spans in a row give what the whole sequence gives, for every rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn.linear_attention.ops as vendor
from cudnn_fe import attention
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

RULES = ("gated_delta_net", "kimi_delta_attention", "gated_delta_net_v2", "gated_delta_product")
FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
T, CUT, K, V, HEADS = 14, 6, 8, 5, 2
OPTIONS: dict[str, Any] = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "safe_gate": True}
# The sums of the whole and of its spans are the same terms in another order, through float32 matrices.
BOUND = 2.0**-16


def function(name: str) -> Any:
    return getattr(attention, name)


def make(rule: str, heads: tuple[int, int, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Operands, and the gate's parameters."""
    h, hk, hv = heads
    updates = 3 if rule == "gated_delta_product" else 1
    by_channel = rule in ("kimi_delta_attention", "gated_delta_net_v2")
    shapes: dict[str, tuple[int, ...]] = {
        "q": (T, h, K),
        "k": (T * updates, hk, K),
        "v": (T * updates, hv, V),
        "g": (T, HEADS, K) if by_channel else (T, HEADS),
        "beta": (T, HEADS, K) if rule == "gated_delta_net_v2" else (T * updates, HEADS),
    }
    if rule == "gated_delta_net_v2":
        shapes["w"] = (T, HEADS, V)
    given = {n: normal(s, seed=i) for i, (n, s) in enumerate(shapes.items())}
    bias = (HEADS, K) if by_channel else (HEADS,)
    return given, {"a_log": normal((HEADS,), seed=20, scale=0.3), "dt_bias": normal(bias, seed=21)}


def part(x: Any, first: int, end: int) -> Any:
    each = x.shape[0] // T
    return x[first * each : end * each]


def updates_of(rule: str) -> list[int]:
    return [3] if rule == "gated_delta_product" else []


@pytest.mark.parametrize("heads", [(1, 2, 2), (2, 1, 1), (1, 1, 2)])
@pytest.mark.parametrize("rule", RULES)
def test_spans_in_a_row(rule: str, heads: tuple[int, int, int]) -> None:
    """Two ranks of 6 and 8 tokens: states go forward through their transitions, gradients back."""
    given, gate = make(rule, heads)
    state, do = normal((1, HEADS, V, K), seed=30), normal((T, HEADS, V), seed=31)
    by_final = normal(state.shape, seed=32)
    ends = np.asarray([0, T], np.int32)
    more, options = updates_of(rule), {**OPTIONS, **gate}
    whole = function(f"{rule}_forward")(
        *given.values(), ends, *more, initial_state=state, output_final_state=True, **options
    )
    grads = function(f"{rule}_backward")(*given.values(), ends, *more, do, by_final, state, **options)
    spans = [(0, CUT), (CUT, T)]
    forward, backward = function(f"{rule}_summary_forward"), function(f"{rule}_summary_backward")
    x = state
    for first, end in spans:
        tokens = [part(y, first, end) for n, y in given.items() if n != "q"]
        span_ends = np.asarray([0, end - first], np.int32)
        added, moved = forward(*tokens, span_ends, *more, **options)
        alone = forward(*tokens, span_ends, *more, initial_state=x, output_transition=False, **options)
        x = x @ moved + added
        assert_close(alone["final_state"], x, BOUND)
        assert alone["transition"].shape == (0,)
    assert_close(x, whole["final_state"], BOUND)
    d = by_final
    for first, end in reversed(spans):
        tokens = [part(given[n], first, end) for n in ("q", "k", "g", "beta")]
        arguments = (*tokens, do[first:end], np.asarray([0, end - first], np.int32), *more)
        added, moved = backward(*arguments, output_transition=True, **options)
        alone = backward(*arguments, d_final_state=d, **options)["d_initial_state"]
        d = d @ moved + added
        assert_close(alone, d, BOUND)
    assert_close(d, grads["d_initial_state"], BOUND)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("rule", RULES)
def test_frameworks_and_the_vendors_names(framework: Framework, rule: str) -> None:
    """Several spans at once, one of them empty; half precision goes in, float32 comes out."""
    given, _ = make(rule, (1, 1, 2))
    ends = np.asarray([0, 9, 9, T], np.int32)
    narrow = {n: x.astype(normal((1,), "bfloat16").dtype) if n in ("q", "k", "v") else x for n, x in given.items()}
    options = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
    exact = {n: x.astype(np.float64) for n, x in narrow.items()}
    more = updates_of(rule)
    gates = {n: -np.abs(x) if n == "g" else x for n, x in exact.items()}
    narrow["g"] = gates["g"].astype(np.float32)
    tokens = [n for n in given if n != "q"]
    summary = getattr(vendor, f"{rule}_summary")
    got = summary(*(convert(narrow[n], framework) for n in tokens), convert(ends, framework), *more, **options)
    wanted = summary(*(gates[n] for n in tokens), ends, *more, **options)
    for a, b in zip(got, wanted, strict=True):
        assert str(a.dtype).endswith("float32")
        assert_close(to_float64(a), b, 2 * 2.0**-9)  # keys are normalised and rounded to bfloat16
    np.testing.assert_array_equal(to_float64(got[1])[1], np.broadcast_to(np.eye(K), (HEADS, K, K)))
    assert not to_float64(got[0])[1].any()
    do = normal((T, HEADS, V), "bfloat16", seed=31)
    arrays = [convert(x, framework) for x in (narrow["q"], narrow["k"], narrow["g"], narrow["beta"], do, ends)]
    found = getattr(vendor, f"{rule}_summary_bwd")(*arrays, *more, **options)
    assert str(found.dtype).endswith("float32")
    assert found.shape == (3, HEADS, V, K)
    assert not to_float64(found)[1].any()


@pytest.mark.parametrize(
    ("rule", "change", "kind", "message"),
    [
        (
            "gated_delta_net",
            {"k": np.ones((T + 1, 2, K), np.float32)},
            ValueError,
            r"k: got \(15, 2, 8\), wanted \(T, HK, K\)",
        ),
        ("gated_delta_net", {"beta": np.ones((T, 1), np.float32)}, NotImplementedError, "beta: got"),
        (
            "gated_delta_net",
            {"initial_state": np.ones((1, HEADS, V, K), np.float16)},
            TypeError,
            "initial_state: got float16",
        ),
        ("gated_delta_net", {"initial_state": np.ones((2, HEADS, V, K), np.float32)}, ValueError, "initial_state: got"),
        ("gated_delta_net", {"output_transition": 1}, ValueError, "output_transition: got 1"),
        ("gated_delta_net_v2", {"w": np.ones((T, HEADS, K), np.float32)}, NotImplementedError, "w: got"),
        ("kimi_delta_attention", {"gate_lower_bound": -1.0}, NotImplementedError, "gate_lower_bound: got -1.0"),
        ("gated_delta_product", {"num_householder": 0}, ValueError, "num_householder: got 0"),
    ],
)
def test_refusals(rule: str, change: dict[str, Any], kind: type[Exception], message: str) -> None:
    given, _ = make(rule, (1, 2, 2))
    del given["q"]
    call = {**given, "cu_seqlens": np.asarray([0, T], np.int32)}
    call |= {"num_householder": 3} if rule == "gated_delta_product" else {}
    with pytest.raises((kind, TypeError) if kind is ValueError else kind, match=message):
        function(f"{rule}_summary_forward")(**{**call, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do": np.ones((T, 1, V), np.float32)}, r"do: got \(14, 1, 5\)"),
        ({"do": np.ones((T, HEADS, V), np.float16)}, "do: got float16"),
        ({"d_final_state": np.ones((1, HEADS, K, V), np.float32)}, "d_final_state: got"),
        ({"scale": float("nan")}, "scale: got nan"),
    ],
)
def test_backward_refusals(change: dict[str, Any], message: str) -> None:
    given, _ = make("gated_delta_net", (1, 2, 2))
    del given["v"]
    call = {**given, "cu_seqlens": np.asarray([0, T], np.int32), "do": np.ones((T, HEADS, V), np.float32)}
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=message):
        function("gated_delta_net_summary_backward")(**{**call, **change})
