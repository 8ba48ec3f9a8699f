"""GDN-2 and the gated delta product: against the recurrence in float64 under autograd, in every framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnn.linear_attention.ops
from cudnn_fe import attention
from cudnn_fe.core.dtypes import dtype
from cudnn_fe_testkit.attention import double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from tables here, which the type checker cannot count.
v2: Any = attention.gated_delta_net_v2_forward
v2_backward: Any = attention.gated_delta_net_v2_backward
product: Any = attention.gated_delta_product_forward
product_backward: Any = attention.gated_delta_product_backward
gdn: Any = attention.gated_delta_net_forward
gdn_backward: Any = attention.gated_delta_net_backward

LENGTHS = (5, 0, 1, 7)
T, N, K, V, HEADS = sum(LENGTHS), len(LENGTHS), 8, 6, 2
ENDS = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int32)
TOKENS = {"v2": ("q", "k", "v", "g", "beta", "w"), "product": ("q", "k", "v", "g", "beta")}
FUSED = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True}


def make(op: str, kind: str = "float32", updates: int = 1, spare: int = 2) -> dict[str, Any]:
    """Operands with rows of NaN past the last sequence, keys of unit length, gates that hold half the state."""
    rows = (T + spare) * updates
    q, k, v = normal((T + spare, 1, K), seed=0), normal((rows, HEADS, K), seed=1), normal((rows, HEADS, V), seed=2)
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    rng = np.random.default_rng(7)
    gate = (T + spare, HEADS, K) if op == "v2" else (T + spare, HEADS)
    strength = gate if op == "v2" else (rows, HEADS)
    given = {"q": q, "k": k, "v": v, "g": np.log(rng.uniform(0.5, 1, gate)), "beta": rng.uniform(0, 1, strength)}
    if op == "v2":
        given["w"] = rng.uniform(0, 1, (T + spare, HEADS, V))
    io = normal((1,), kind).dtype
    given = {n: x.astype(io if n in ("q", "k", "v", "w") else np.float32) for n, x in given.items()}
    for name, x in given.items():
        if spare:
            x[T * (updates if name in ("k", "v") or (name == "beta" and op == "product") else 1) :] = np.nan
    return given


def extras(op: str) -> dict[str, Any]:
    bias = (HEADS, K) if op == "v2" else (HEADS,)
    return {
        "initial_state": normal((N, HEADS, V, K), seed=11),
        "a_log": normal((HEADS,), seed=12, scale=0.3),
        "dt_bias": normal(bias, seed=13),
    }


def recurrence(op: str, x: dict[str, torch.Tensor], updates: int, flags: dict[str, Any]) -> tuple[Any, Any]:
    """The outputs and final states, an update and a head at a time."""
    q, k, v, g, beta = (x[n] for n in ("q", "k", "v", "g", "beta"))
    if flags.get("use_qk_l2norm_in_kernel"):
        q, k = (y / torch.sqrt((y * y).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    if flags.get("use_beta_sigmoid_in_kernel"):
        beta = torch.sigmoid(beta)
    if flags.get("safe_gate"):
        a, dt = x["a_log"].exp(), x["dt_bias"]
        if op == "v2":
            g = flags.get("gate_lower_bound", -5.0) * torch.sigmoid(a[:, None] * (g + dt))
        else:
            g = -a * torch.nn.functional.softplus(g + dt)
    rows: dict[tuple[int, int], torch.Tensor] = {}
    finals = []
    for n in range(N):
        heads = []
        for h in range(HEADS):
            s = x["initial_state"][n, h]
            for t in range(ENDS[n], ENDS[n + 1]):
                s = s * g[t, h].exp()
                for i in range(t * updates, (t + 1) * updates):
                    key, value = k[i, h], v[i, h]
                    erased = s @ (beta[i, h] * key)
                    written = x["w"][t, h] * value if op == "v2" else beta[i, h] * value
                    s = s + torch.outer(written - erased, key)
                rows[t, h] = K**-0.5 * (s @ q[t, 0])
            heads.append(s)
        finals.append(torch.stack(heads))
    return torch.stack([torch.stack([rows[t, h] for h in range(HEADS)]) for t in range(T)]), torch.stack(finals)


def tolerance(kind: str, steps: int) -> float:
    """A rounding of the result and one of what is normalised, and float32 states carried over ``steps`` updates."""
    return 3 * dtype(kind).unit_roundoff + 16 * 2.0**-24 * steps


def run(op: str, arrays: dict[str, Any], updates: int, more: dict[str, Any], *grads: Any) -> Any:
    tokens = [arrays[n] for n in TOKENS[op]]
    ends = convert(
        ENDS, "numpy" if isinstance(tokens[0], np.ndarray) else "torch" if hasattr(tokens[0], "detach") else "jax"
    )
    given = [*tokens, ends, *([updates] if op == "product" else [])]
    if grads:
        return (v2_backward if op == "v2" else product_backward)(*given, *grads, **more)
    return (v2 if op == "v2" else product)(*given, output_final_state=True, **more)


CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("v2", 1, {}),
    ("v2", 1, {**FUSED, "safe_gate": True, "gate_lower_bound": -2.0}),
    ("product", 2, {}),
    ("product", 3, {**FUSED, "safe_gate": True}),
]


@pytest.mark.parametrize(
    ("framework", "op", "updates", "flags"),
    [
        *(("numpy", *case) for case in CASES),
        *(("torch", *case) for case in CASES),
        *(("jax", *case) for case in CASES[1::2]),
    ],
)
def test_values_and_gradients(framework: Framework, op: str, updates: int, flags: dict[str, Any]) -> None:
    kind = "bfloat16" if framework == "torch" else "float32"
    given, extra = make(op, kind, updates), extras(op)
    chosen = extra if flags.get("safe_gate") else {"initial_state": extra["initial_state"]}
    live = {n: x[: T * (x.shape[0] // (T + 2))] for n, x in given.items()}
    leaves = {n: double(x).requires_grad_() for n, x in (live | chosen).items()}
    o, final = recurrence(op, leaves, updates, flags)
    do, by_final = normal((T + 2, HEADS, V), kind, seed=20), normal(final.shape, seed=21)
    ((o * double(do[:T])).sum() + (final * double(by_final)).sum()).backward()
    arrays = {n: convert(x, framework) for n, x in given.items()}
    more = {n: convert(x, framework) for n, x in chosen.items()} | flags
    got = run(op, arrays, updates, more)
    bound = tolerance(kind, 16 * updates)
    assert_close(got["o"][:T], o.detach(), bound)
    assert_close(got["final_state"], final.detach(), bound)
    assert not to_float64(got["o"][T:]).any()
    grads = run(op, arrays, updates, more, convert(do, framework), convert(by_final, framework))
    for name, leaf in leaves.items():
        grad = grads[f"d_{name}" if name in extra else f"d{name}"]
        # A gradient passes the roundings of the operands that it multiplies, and one of its own.
        assert_close(to_float64(grad)[: leaf.shape[0]], leaf.grad, 2 * bound, name)
    assert (grads["d_a_log"] is None) == ("a_log" not in chosen)


def test_torch_autograd_and_jit() -> None:
    import jax

    given, extra = make("v2", spare=0), extras("v2")
    leaves = {
        n: convert(x, "torch").requires_grad_() for n, x in (given | {"initial_state": extra["initial_state"]}).items()
    }
    tokens = [leaves[n] for n in TOKENS["v2"]]
    out = v2(*tokens, torch.from_numpy(ENDS), initial_state=leaves["initial_state"])["o"]
    out.sum().backward()
    plain = [x.detach() for x in tokens]
    wanted = v2_backward(
        *plain, torch.from_numpy(ENDS), torch.ones_like(out), initial_state=leaves["initial_state"].detach()
    )
    for name, leaf in leaves.items():
        assert torch.equal(leaf.grad, wanted["d_initial_state" if name == "initial_state" else f"d{name}"])
    arrays = [convert(given[n], "jax") for n in TOKENS["v2"]]
    loss = jax.jit(lambda *a: v2(*a, convert(ENDS, "jax"))["o"].sum())
    found = jax.grad(loss, argnums=tuple(range(6)))(*arrays)
    again = v2_backward(*[given[n] for n in TOKENS["v2"]], ENDS, np.ones(out.shape, np.float32))
    for name, grad in zip(TOKENS["v2"], found, strict=True):
        assert_close(grad, again[f"d{name}"], 2.0**-18, name)


@pytest.mark.parametrize("op", ["v2", "product"])
def test_finite_differences(op: str) -> None:
    """Along one direction through all operands, gate parameters and first states at once, in float64."""
    updates = 1 if op == "v2" else 2
    given = {n: x.astype(np.float64) for n, x in (make(op, updates=updates, spare=0) | extras(op)).items()}
    direction = {n: normal(x.shape, "float64", seed=60 + i) for i, (n, x) in enumerate(given.items())}
    flags = {**FUSED, "safe_gate": True}

    def loss(x: dict[str, Any]) -> float:
        return float(run(op, x, updates, {n: x[n] for n in extras(op)} | flags)["o"].sum())

    do = np.ones((T, HEADS, V))
    grads = run(op, given, updates, {n: given[n] for n in extras(op)} | flags, do)
    slope = sum(float((grads[f"d_{n}" if n in extras(op) else f"d{n}"] * direction[n]).sum()) for n in given)
    step = 1e-6
    ahead, behind = (loss({n: x + s * direction[n] for n, x in given.items()}) for s in (step, -step))
    assert slope == pytest.approx((ahead - behind) / (2 * step), rel=1e-5)


def test_special_cases() -> None:
    """One update is GDN; equal gates are KDA; cuDNN's names are these functions."""
    given, ends = make("product"), ENDS
    tokens = [given[n] for n in TOKENS["product"]]
    np.testing.assert_array_equal(product(*tokens, ends, 1)["o"], gdn(*tokens, ends)["o"])
    given = make("v2")
    beta = given["beta"][..., :1]
    same = given | {"beta": beta.repeat(K, -1), "w": beta.repeat(V, -1)}
    kda: Any = attention.kimi_delta_attention_forward
    o = kda(*[given[n] for n in ("q", "k", "v", "g")], np.ascontiguousarray(beta[..., 0]), ends)["o"]
    np.testing.assert_allclose(v2(*[same[n] for n in TOKENS["v2"]], ends)["o"], o, rtol=1e-5, atol=1e-6)
    assert cudnn.linear_attention.gated_delta_net_v2 is v2
    assert cudnn.linear_attention.ops.gated_delta_product is product


def test_checkpoints_and_pools_of_products() -> None:
    """States before every second of three updates a token, and states that come from and go to a pool."""
    given, extra = make("product", updates=3, spare=0), extras("product")
    tokens = [given[n] for n in TOKENS["product"]]
    result = product(
        *tokens, ENDS, 3, initial_state=extra["initial_state"], checkpoint_every_n_tokens=6, output_final_state=True
    )
    kept = result["checkpoints"]
    assert kept.shape == (T * 3 // 6 + N, HEADS, V, K)
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept[0], extra["initial_state"][0])
    first = [x[: 2 * (x.shape[0] // T)] for x in tokens]
    after_two = product(
        *first, np.asarray([0, 2], np.int32), 3, initial_state=extra["initial_state"][:1], output_final_state=True
    )
    np.testing.assert_array_equal(kept[1], after_two["final_state"][0])
    pool = normal((9, HEADS, V, K), seed=30)
    places = np.asarray([7, 0, 3, 4], np.int32)
    pool[places] = extra["initial_state"]
    before = pool.copy()
    returned = product(*tokens, ENDS, 3, initial_state=pool, state_indices=places, output_final_state=True)[
        "final_state"
    ]
    assert returned is pool
    np.testing.assert_array_equal(pool[places], result["final_state"])
    others = [i for i in range(9) if i not in places]
    np.testing.assert_array_equal(pool[others], before[others])


def guard(beta: Any, k: Any, g: Any) -> Any:
    """The guard as the docs say it, in float64, for a dtype that rounds nothing."""
    w, c2 = k * k, 1 / np.exp(2 * g.max(-1, keepdims=True))
    n, a = w.sum(-1, keepdims=True), (w * beta).sum(-1, keepdims=True)
    s = n * (w * beta * beta).sum(-1, keepdims=True) - a * a
    bound = np.maximum((c2 - 1) * (1 - (1 - a) ** 2 / c2), 0)
    share = np.sqrt(31 / 32 * bound / np.maximum(s, 1e-30)).clip(0, 1)
    return np.where(s > bound, a / n + share * (beta - a / n), beta)


def test_guard() -> None:
    """Rows beyond the bound are moved, others are not; a step then expands no state; gradients pass by."""
    given = make("v2", spare=0)
    given["k"] = given["k"] * 3  # normalised by the op
    given["g"] = given["g"] * np.where(np.arange(T) % 2 == 0, 0.02, 1.0).astype(np.float32)[:, None, None]
    tokens = [given[n] for n in TOKENS["v2"]]
    k = given["k"].astype(np.float64)
    k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    moved = guard(given["beta"].astype(np.float64), k, given["g"].astype(np.float64))
    touched = (moved != given["beta"]).any(-1)
    assert touched.any()
    assert not touched.all()
    for t, h in np.ndindex(T, HEADS):
        step = np.diag(np.exp(given["g"][t, h].astype(np.float64))) @ (
            np.eye(K) - np.outer(moved[t, h] * k[t, h], k[t, h])
        )
        assert np.linalg.norm(step, 2) <= 1 + 1e-6
    options = {"use_qk_l2norm_in_kernel": True}
    got = v2(*tokens, ENDS, beta_guard=True, **options)["o"]
    same = given | {"beta": moved.astype(np.float32)}
    wanted = v2(*[same[n] for n in TOKENS["v2"]], ENDS, **options)["o"]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(got - v2(*tokens, ENDS, **options)["o"]).max() > 1e-3
    do = normal(got.shape, seed=40)
    grads = v2_backward(*tokens, ENDS, do, beta_guard=True, **options)
    straight = v2_backward(*[same[n] for n in TOKENS["v2"]], ENDS, do, **options)
    np.testing.assert_allclose(grads["dbeta"], straight["dbeta"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("op", "change", "kind", "message"),
    [
        (
            "v2",
            {"w": np.ones((T, HEADS, K), np.float32)},
            NotImplementedError,
            r"w: got \(13, 2, 8\), wanted \(T, HO, V\)",
        ),
        ("v2", {"beta": np.ones((T, HEADS), np.float32)}, ValueError, "beta: got shape"),
        ("v2", {"w": np.ones((T, HEADS, V), np.float16)}, TypeError, "w: got float16"),
        ("v2", {"beta_guard": True}, ValueError, "beta_guard: got True without it, wanted use_qk_l2norm_in_kernel"),
        ("v2", {"beta_guard": 1}, ValueError, "beta_guard: got 1"),
        (
            "product",
            {"k": np.ones((T, HEADS, K), np.float32)},
            ValueError,
            r"k: got \(13, 2, 8\), wanted \(2 T, HK, K\)",
        ),
        (
            "product",
            {"beta": np.ones((T, HEADS), np.float32)},
            NotImplementedError,
            r"beta: got \(13, 2\), wanted \(2 T, HO\)",
        ),
        ("product", {"num_householder": 0}, ValueError, "num_householder: got 0, wanted an int above 0"),
        ("product", {"num_householder": True}, ValueError, "num_householder: got True"),
    ],
)
def test_refusals(op: str, change: dict[str, Any], kind: type[Exception], message: str) -> None:
    given: dict[str, Any] = make(op, updates=1 if op == "v2" else 2, spare=0)
    given |= {"cu_seqlens": ENDS} | ({} if op == "v2" else {"num_householder": 2})
    with pytest.raises(kind, match=message):
        (v2 if op == "v2" else product)(**{**given, **change})


@pytest.mark.parametrize("op", ["v2", "product"])
def test_no_tokens(op: str) -> None:
    given = {n: x[:0] for n, x in make(op, updates=1 if op == "v2" else 2, spare=0).items()}
    ends, state = np.zeros(3, np.int32), normal((2, HEADS, V, K))
    tokens = [given[n] for n in TOKENS[op]]
    more = [] if op == "v2" else [2]
    result = (v2 if op == "v2" else product)(*tokens, ends, *more, initial_state=state, output_final_state=True)
    assert result["o"].shape == (0, HEADS, V)
    np.testing.assert_array_equal(result["final_state"], state)
    run_back = v2_backward if op == "v2" else product_backward
    grads = run_back(*tokens, ends, *more, result["o"], state, initial_state=state)
    np.testing.assert_array_equal(grads["d_initial_state"], state)
    assert grads["dk"].shape == given["k"].shape
