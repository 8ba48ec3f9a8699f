"""Gated delta rules: against autograd of the recurrence in float64, by finite differences, in every framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.core.dtypes import dtype
from cudnn_fe_testkit.attention import double
from cudnn_fe_testkit.compare import assert_close, rel_rms, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from tables here, which the type checker cannot count.
FORWARD: dict[str, Any] = {"gdn": attention.gated_delta_net_forward, "kda": attention.kimi_delta_attention_forward}
BACKWARD: dict[str, Any] = {"gdn": attention.gated_delta_net_backward, "kda": attention.kimi_delta_attention_backward}

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
LENGTHS = (5, 0, 1, 11)
T, N, K, V = sum(LENGTHS), len(LENGTHS), 8, 6
ENDS = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int32)
FUSED = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True}


def tolerance(kind: str, steps: int = 16) -> float:
    """One rounding of the result, one of what is normalised, and float32 states carried over ``steps`` tokens.

    Each token multiplies the state's error by at most 1 and adds a few roundings.
    """
    return 3 * dtype(kind).unit_roundoff + 16 * 2.0**-24 * steps


def make(op: str, kind: str = "float32", heads: tuple[int, int, int] = (1, 2, 2), spare: int = 2) -> dict[str, Any]:
    """Operands with rows of NaN past the last sequence: q and k of unit length, gates that hold half the state."""
    h, hk, hv = heads
    out = max(h, hv)
    q, k, v = (normal((T + spare, n, d), "float32", seed=i) for i, (n, d) in enumerate(((h, K), (hk, K), (hv, V))))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    rng = np.random.default_rng(7)
    gate = (T + spare, out, K) if op == "kda" else (T + spare, out)
    g, beta = np.log(rng.uniform(0.5, 1, gate)).astype(np.float32), rng.uniform(0, 1, gate[:2]).astype(np.float32)
    given = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    for name in ("q", "k", "v"):
        given[name] = given[name].astype(normal((1,), kind).dtype)
    for x in given.values():
        if spare:
            x[T:] = np.nan
    return given


def states(op: str, heads: int = 2) -> dict[str, Any]:
    shape = (heads, K) if op == "kda" else (heads,)
    return {
        "initial_state": normal((N, heads, V, K), seed=11),
        "a_log": normal((heads,), seed=12, scale=0.3),
        "dt_bias": normal(shape, seed=13),
    }


def recurrence(op: str, x: dict[str, torch.Tensor], flags: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs and final states, a token and a head at a time; S is (K, V)."""
    q, k, v, g, beta = (x[name] for name in ("q", "k", "v", "g", "beta"))
    out = max(q.shape[1], v.shape[1])
    if flags.get("use_qk_l2norm_in_kernel"):
        q, k = (y / torch.sqrt((y * y).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    if flags.get("use_beta_sigmoid_in_kernel"):
        beta = torch.sigmoid(beta) * (2 if flags.get("allow_neg_eigval") else 1)
    if flags.get("safe_gate"):
        a, dt = x["a_log"], x["dt_bias"]
        if op == "gdn":
            g = -a.exp() * torch.nn.functional.softplus(g + dt)
        else:
            g = flags.get("gate_lower_bound", -5.0) * torch.sigmoid(a.exp()[:, None] * (g + dt))
    alpha = g + 1e-10 if flags.get("gate_domain") == "linear" else g.exp()
    rows, finals = [], []
    for n in range(N):
        heads = []
        for h in range(out):
            s = x["initial_state"][n, h].T if "initial_state" in x else torch.zeros(K, V, dtype=torch.float64)
            for t in range(ENDS[n], ENDS[n + 1]):
                read = [y[t, h // (out // y.shape[1])] for y in (q, k, v)]
                decayed = alpha[t, h].reshape(-1, 1) * s
                s = decayed + beta[t, h] * torch.outer(read[1], read[2] - decayed.T @ read[1])
                rows.append((t, h, K**-0.5 * (s.T @ read[0])))
            heads.append(s.T)
        finals.append(torch.stack(heads))
    order = {(t, h): o for t, h, o in rows}
    o = torch.stack([torch.stack([order[t, h] for h in range(out)]) for t in range(T)])
    return o, torch.stack(finals)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("gdn", {}),
    ("kda", {}),
    ("gdn", {**FUSED, "safe_gate": True}),
    ("kda", {**FUSED, "safe_gate": True, "allow_neg_eigval": True, "gate_lower_bound": -2.0}),
    ("gdn", {"gate_domain": "linear"}),
    ("kda", {"gate_domain": "linear"}),
]


def leaves_of(op: str, given: dict[str, Any], extra: dict[str, Any], flags: dict[str, Any]) -> dict[str, torch.Tensor]:
    chosen = dict(given) | {"initial_state": extra["initial_state"]}
    if flags.get("safe_gate"):
        chosen |= {name: extra[name] for name in ("a_log", "dt_bias")}
    return {name: double(x if name in extra else x[:T]).requires_grad_() for name, x in chosen.items()}


@pytest.mark.parametrize(
    ("framework", "op", "flags"),
    [
        *(("numpy", *case) for case in CASES),
        *(("torch", *case) for case in CASES),
        *(("jax", *case) for case in CASES[2:4]),  # a compilation takes seconds
    ],
)
def test_forward_and_backward(framework: Framework, op: str, flags: dict[str, Any]) -> None:
    kind = "bfloat16" if framework == "torch" else "float32"
    given, extra = make(op, kind), states(op)
    if flags.get("gate_domain") == "linear":
        given["g"] = np.exp(given["g"])
    leaves = leaves_of(op, given, extra, flags)
    o, final = recurrence(op, leaves, flags)
    arrays = {name: convert(x, framework) for name, x in given.items()}
    more = {name: convert(x, framework) for name, x in extra.items() if name in leaves}
    ends = convert(ENDS, framework)
    result = FORWARD[op](**arrays, cu_seqlens=ends, output_final_state=True, **more, **flags)
    assert_close(result["o"][:T], o.detach(), tolerance(kind))
    assert not to_float64(result["o"])[T:].any()
    assert_close(result["final_state"], final.detach(), tolerance(kind), "final state")
    do, by_final = normal((T + 2, 2, V), kind, seed=20), normal((N, 2, V, K), seed=21)
    do[T:] = np.nan
    torch.autograd.backward((o, final), (double(do[:T]), double(by_final)))
    grads = BACKWARD[op](
        **arrays,
        cu_seqlens=ends,
        do=convert(do, framework),
        d_final_state=convert(by_final, framework),
        **more,
        **flags,
    )
    assert list(grads.keys()) == ["dq", "dk", "dv", "dg", "dbeta", "d_initial_state", "d_a_log", "d_dt_bias"]
    for name, leaf in leaves.items():
        got = grads[f"d{'_' if name in extra else ''}{name}"]
        assert leaf.grad is not None
        rows = slice(None) if name in extra else slice(T)
        assert_close(to_float64(got)[rows], leaf.grad, 4 * tolerance(kind), name)
        assert not to_float64(got)[len(leaf) :].any()
    absent = {"d_a_log", "d_dt_bias"} if "safe_gate" not in flags else set()
    assert {name for name, x in grads.items() if x is None} == absent


@pytest.mark.parametrize("heads", [(2, 2, 2), (2, 2, 4), (1, 1, 3), (4, 4, 2), (2, 6, 6), (4, 2, 2)])
@pytest.mark.parametrize("op", ["gdn", "kda"])
def test_heads(op: str, heads: tuple[int, int, int]) -> None:
    given = make(op, heads=heads, spare=0)
    leaves = {name: double(x).requires_grad_() for name, x in given.items()}
    o, _ = recurrence(op, leaves, {})
    result = FORWARD[op](**given, cu_seqlens=ENDS)
    assert result["final_state"].shape == (0,)
    assert_close(result["o"], o.detach(), tolerance("float32"))
    do = normal(o.shape, seed=3)
    o.backward(double(do))
    grads = BACKWARD[op](**given, cu_seqlens=ENDS, do=do)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        assert_close(grads[f"d{name}"], leaf.grad, 4 * tolerance("float32"), name)


@pytest.mark.parametrize(("op", "flags"), CASES[2:4])
def test_autograd_and_finite_differences(op: str, flags: dict[str, Any]) -> None:
    given, extra = make(op, spare=0), states(op)
    names = [*given, *extra]
    leaves = [double({**given, **extra}[name]).requires_grad_() for name in names]
    ends = torch.from_numpy(ENDS)

    def run(*x: Any) -> Any:
        result = FORWARD[op](**dict(zip(names, x, strict=True)), cu_seqlens=ends, output_final_state=True, **flags)
        return result["o"], result["final_state"]

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
    only = FORWARD[op](**dict(zip(names, leaves, strict=True)), cu_seqlens=ends, **flags)["o"]
    only.sum().backward()
    assert leaves[-1].grad is not None
    assert leaves[-1].grad.shape == extra["dt_bias"].shape


def test_torch_compile_takes_it_whole() -> None:
    given = {name: torch.from_numpy(x) for name, x in make("kda", spare=0).items()}
    ends = torch.from_numpy(ENDS)

    def layer(*x: torch.Tensor) -> torch.Tensor:
        result = FORWARD["kda"](*x, ends, output_final_state=True, use_qk_l2norm_in_kernel=True)
        return result["o"].sum() + result["final_state"].sin().sum()

    grads = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        leaves = [x.clone().requires_grad_() for x in given.values()]
        function(*leaves).backward()
        grads.append([x.grad for x in leaves])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_jax_entries() -> None:
    import jax

    from cudnn_fe.attention.linear import jax as entries

    flags = CASES[3][1]
    given, extra = make("kda", spare=0), states("kda")
    leaves = leaves_of("kda", given, extra, flags)
    o, final = recurrence("kda", leaves, flags)
    by_o, by_final = normal(o.shape, seed=3), normal(final.shape, seed=4)
    torch.autograd.backward((o, final), (double(by_o), double(by_final)))
    arrays = {name: convert(x, "jax") for name, x in given.items()}
    more = {name: convert(x, "jax") for name, x in extra.items()}
    ends = convert(ENDS, "jax")

    @jax.jit
    def pair(arrays: Any, more: Any) -> Any:
        out, state, residual = entries.kimi_delta_attention_forward_jax(
            **arrays, cu_seqlens=ends, output_final_state=True, **more, **flags
        )
        return out, state, entries.kimi_delta_attention_backward_jax(residual, by_o, d_final_state=by_final)

    out, state, grads = pair(arrays, more)
    assert_close(out, o.detach(), tolerance("float32"))
    assert_close(state, final.detach(), tolerance("float32"))

    def loss(arrays: Any, more: Any) -> Any:
        out, state = entries.kimi_delta_attention(**arrays, cu_seqlens=ends, output_final_state=True, **more, **flags)
        return (out * by_o).sum() + (state * by_final).sum()

    by_vjp = jax.grad(loss, argnums=(0, 1))(arrays, more)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        field = f"d_{name}" if name in extra else f"d{name}"
        assert_close(getattr(grads, field), leaf.grad, 4 * tolerance("float32"), name)
        assert_close({**by_vjp[0], **by_vjp[1]}[name], leaf.grad, 4 * tolerance("float32"), name)
    _, _, residual = entries.kimi_delta_attention_forward_jax(**arrays, cu_seqlens=ends)
    with pytest.raises(ValueError, match="d_final_state: got an array, wanted None"):
        entries.kimi_delta_attention_backward_jax(residual, by_o, d_final_state=by_final)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_checkpoints(framework: Framework) -> None:
    """States before every 4th token, from calls that stop there."""
    given, extra = make("gdn", spare=0), states("gdn")
    arrays = {name: convert(x, framework) for name, x in given.items()}
    state = convert(extra["initial_state"], framework)
    _, _, kept = FORWARD["gdn"](
        **arrays, cu_seqlens=convert(ENDS, framework), initial_state=state, checkpoint_every_n_tokens=4
    )
    assert kept.shape == (T // 4 + N, 2, V, K)
    row = 0
    for n, length in enumerate(LENGTHS):
        for start in range(0, length, 4):
            part = {name: x[ENDS[n] : ENDS[n] + start] for name, x in given.items()}
            ends = np.asarray([0, start], np.int32)
            before = FORWARD["gdn"](
                **part, cu_seqlens=ends, initial_state=extra["initial_state"][n : n + 1], output_final_state=True
            )
            assert_close(kept[row], before["final_state"][0], tolerance("float32"))
            row += 1
    assert row == 6


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_pools_and_buffers(framework: Framework) -> None:
    given, extra = make("kda", spare=0), states("kda")
    arrays = {name: convert(x, framework) for name, x in given.items()}
    ends = convert(ENDS, framework)
    wanted = FORWARD["kda"](
        **arrays, cu_seqlens=ends, initial_state=convert(extra["initial_state"], framework), output_final_state=True
    )
    slots = np.asarray([5, 0, 6, 3], np.int32)
    pool = normal((8, 2, V, K), seed=30)
    pool[slots] = extra["initial_state"]
    held, before = convert(pool.copy(), framework), pool.copy()
    result = FORWARD["kda"](**arrays, cu_seqlens=ends, initial_state=held, state_indices=convert(slots, framework))
    assert np.array_equal(to_float64(result["o"]), to_float64(wanted["o"]))
    assert result["final_state"].shape == (0,)
    assert np.array_equal(to_float64(held), before)
    result = FORWARD["kda"](
        **arrays, cu_seqlens=ends, initial_state=held, state_indices=convert(slots, framework), output_final_state=True
    )
    before[slots] = to_float64(wanted["final_state"])
    assert np.array_equal(to_float64(result["final_state"]), before)
    assert (result["final_state"] is held) == (framework != "jax")
    buffer = convert(extra["initial_state"].copy(), framework)
    result = FORWARD["kda"](**arrays, cu_seqlens=ends, initial_state=buffer, overwrite_initial_state=True)
    assert (result["final_state"] is buffer) == (framework != "jax")
    assert np.array_equal(to_float64(result["final_state"]), to_float64(wanted["final_state"]))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("op", ["gdn", "kda"])
def test_no_tokens(framework: Framework, op: str) -> None:
    given = {name: convert(x[:0], framework) for name, x in make(op).items()}
    ends, state = convert(np.zeros(3, np.int32), framework), convert(normal((2, 2, V, K)), framework)
    result = FORWARD[op](**given, cu_seqlens=ends, initial_state=state, output_final_state=True)
    assert result["o"].shape == (0, 2, V)
    assert np.array_equal(to_float64(result["final_state"]), to_float64(state))
    grads = BACKWARD[op](**given, cu_seqlens=ends, do=given["v"], d_final_state=state, initial_state=state)
    assert np.array_equal(to_float64(grads["d_initial_state"]), to_float64(state))
    assert grads["dk"].shape == (0, 2, K)


@pytest.mark.parametrize("framework", ["numpy", "torch"])  # JAX has no float64 unless asked for
@pytest.mark.parametrize("op", ["gdn", "kda"])
def test_gates_and_states_wider_than_the_tokens(framework: Framework, op: str) -> None:
    """They are rounded to the type of the sums; their gradients come in their own types."""
    given, extra = make(op, spare=0), states(op)
    wide = {"g": given["g"], **extra}
    flags: dict[str, Any] = {"safe_gate": True}
    do, ends = convert(normal((T, 2, V), seed=3), framework), convert(ENDS, framework)
    found = []
    for kind in (np.float32, np.float64):
        operands = {**given, **{name: x.astype(kind) for name, x in wide.items()}}
        arrays = {name: convert(x, framework) for name, x in operands.items()}
        result = FORWARD[op](**arrays, cu_seqlens=ends, output_final_state=True, **flags)
        grads = BACKWARD[op](**arrays, cu_seqlens=ends, do=do, **flags)
        found.append([to_float64(x) for x in (*result, *grads)])
        own = [grads[name] for name in ("dg", "d_initial_state", "d_a_log", "d_dt_bias")]
        assert {str(x.dtype).removeprefix("torch.") for x in own} == {np.dtype(kind).name}
    for narrow, other in zip(*found, strict=True):
        # The gradients that float64 holds unrounded differ by that rounding.
        assert_close(other, narrow, 2.0**-23)


def test_one_sequence_does_not_touch_another() -> None:
    """Batch invariance, bit by bit; a NaN stays in its sequence."""
    given = make("gdn", spare=0)
    whole = FORWARD["gdn"](**given, cu_seqlens=ENDS, batch_invariant=True)["o"]
    part = {name: x[6:] for name, x in given.items()}
    alone = FORWARD["gdn"](**part, cu_seqlens=np.asarray([0, 11], np.int32))["o"]
    assert np.array_equal(whole[6:], alone)
    given["v"] = given["v"].copy()
    given["v"][2, 0, 1] = np.nan
    hit = FORWARD["gdn"](**given, cu_seqlens=ENDS)["o"]
    assert np.array_equal(hit[5:], whole[5:])
    assert np.isnan(hit[2:5, 0, 1]).all()
    assert np.isfinite(hit[:, 1]).all()
    assert rel_rms(hit[:2], whole[:2]) == 0


def test_steep_decays() -> None:
    """exp(-5) per token over 64 tokens: no intermediate overflows or loses what is left."""
    tokens = 64
    q, k, v = (normal((tokens, 1, 8), seed=i) for i in range(3))
    g, beta, ends = (
        np.full((tokens, 1, 8), -5, np.float32),
        np.ones((tokens, 1), np.float32),
        np.asarray([0, tokens], np.int32),
    )
    o = FORWARD["kda"](q, k, v, g, beta, ends, use_qk_l2norm_in_kernel=True)["o"]
    assert np.isfinite(o).all()
    last = (v[-1, 0] * (k[-1, 0] @ q[-1, 0])) / np.linalg.norm(k[-1]) / np.linalg.norm(q[-1]) / 8**0.5
    np.testing.assert_allclose(o[-1, 0], last, rtol=0.1)  # what came before has decayed by e^-5
    grads = BACKWARD["kda"](q, k, v, g, beta, ends, np.ones_like(v), use_qk_l2norm_in_kernel=True)
    assert all(np.isfinite(x).all() for x in grads if x is not None)


def test_what_has_no_derivative_says_so() -> None:
    given = {name: torch.from_numpy(x) for name, x in make("gdn", spare=0).items()}
    given["v"].requires_grad_()
    ends, pool = torch.from_numpy(ENDS), torch.zeros(8, 2, V, K)
    slots = torch.arange(N, dtype=torch.int32)
    result = FORWARD["gdn"](**given, cu_seqlens=ends, initial_state=pool, state_indices=slots)
    with pytest.raises(NotImplementedError, match="state_indices: got a call that is differentiated"):
        result["o"].sum().backward()
    kept = FORWARD["gdn"](**given, cu_seqlens=ends, checkpoint_every_n_tokens=4)["checkpoints"]
    with pytest.raises(NotImplementedError, match="checkpoints: got a call that is differentiated"):
        kept.sum().backward()
    buffer = torch.zeros(N, 2, V, K)
    result = FORWARD["gdn"](**given, cu_seqlens=ends, initial_state=buffer, overwrite_initial_state=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # torch's own word for it
        result["o"].sum().backward()
