"""HSTU attention: against a float64 loop over sequences, by finite differences, in every framework, at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.hstu.legacy import HSTUBwd, HSTUBwdSm100, HSTUFwdSm100
from cudnn_fe_testkit.attention import attention_tolerance, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists and tables here, which the type checker cannot count.
hstu_attention_backward: Any = attention.hstu_attention_backward
hstu_attention_forward: Any = attention.hstu_attention_forward

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
LENGTHS = ((7, 9), (0, 4), (5, 0), (1, 12), (9, 3))  # (queries, keys), with none of either, and more queries than keys
ROWS, KEYS = (sum(side) for side in zip(*LENGTHS, strict=True))
ALPHA, SCALING = 0.7, 5.0


def offsets(side: int, framework: Framework) -> Any:
    return convert(np.concatenate([[0], np.cumsum([pair[side] for pair in LENGTHS])]).astype(np.int32), framework)


def visible(i: int, j: int, off: int, window: tuple[int, int]) -> bool:
    left, right = window
    if left in (-1, 12):
        return right in (-1, 12) or j <= i + off + right
    return i + off - left <= j and (right in (-1, 12) or j <= i + off + right)


def masks(window: tuple[int, int], func: Any = None) -> list[torch.Tensor]:
    found, row = [], 0
    for queries, keys in LENGTHS:
        mask = torch.zeros(queries, keys, dtype=torch.bool)
        for i in range(queries):
            for j in range(keys):
                if func is None:
                    mask[i, j] = visible(i, j, keys - queries, window)
                else:
                    f = func[0, :, row + i].tolist()
                    pairs = zip(f[1::2], f[2::2], strict=True)
                    mask[i, j] = j < f[0] or any(low <= j < high for low, high in pairs)
        found.append(mask)
        row += queries
    return found


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, found: list[torch.Tensor]) -> torch.Tensor:
    """The definition, one sequence at a time, in float64."""
    parts, row, key = [], 0, 0
    for (queries, keys), mask in zip(LENGTHS, found, strict=True):
        a, b = slice(row, row + queries), slice(key, key + keys)
        x = ALPHA * torch.einsum("ihd,jhd->hij", q[a], k[b])
        weights = torch.nn.functional.silu(x) * mask
        parts.append(torch.einsum("hij,jhd->ihd", weights, v[b]) / SCALING)
        row, key = row + queries, key + keys
    return torch.cat(parts)


def make(kind: str = "float32", spare: int = 2) -> list[Any]:
    """Q, K and V with rows of NaN past the last sequence."""
    given = [normal((rows + spare, 2, 8), kind, seed=seed) for seed, rows in enumerate((ROWS, KEYS, KEYS))]
    for x in given:
        x[len(x) - spare :] = np.nan
    return given


def run(given: list[Any], framework: Framework, window: tuple[int, int] = (-1, -1), **more: Any) -> Any:
    arrays = [convert(x, framework) for x in given]
    ends = offsets(0, framework), offsets(1, framework)
    return hstu_attention_forward(*arrays, *ends, 9, 12, window, ALPHA, SCALING, **more)["o_tensor"]


# Also at the edges of the longest sequence, of 12 keys.
WINDOWS = [(-1, -1), (-1, 0), (12, 0), (0, 0), (2, 0), (-1, 3), (1, -1), (3, 2), (11, 0), (11, 11), (0, 12), (12, 12)]


@pytest.mark.parametrize("window", WINDOWS)
def test_windows(window: tuple[int, int]) -> None:
    given = make()
    o = run(given, "numpy", window)
    wanted = exact(double(given[0][:ROWS]), double(given[1][:KEYS]), double(given[2][:KEYS]), found=masks(window))
    assert_close(o[:ROWS], wanted, attention_tolerance("float32", 2, 20))
    assert not o[ROWS:].any()


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_forward_and_backward(framework: Framework, kind: str) -> None:
    given, window = make(kind), (3, 2)
    do = normal((ROWS + 2, 2, 8), kind, seed=7)
    do[ROWS:] = np.nan
    leaves = [double(x[:n]).requires_grad_() for x, n in zip(given, (ROWS, KEYS, KEYS), strict=True)]
    wanted = exact(*leaves, found=masks(window))
    wanted.backward(double(do[:ROWS]))
    assert_close(run(given, framework, window)[:ROWS], wanted.detach(), attention_tolerance(kind, 2, 20))
    arrays = [convert(x, framework) for x in (do, *given)]
    ends = offsets(0, framework), offsets(1, framework)
    grads = hstu_attention_backward(*arrays, *ends, 9, 12, window, ALPHA, SCALING, deterministic=True)
    for name, got, leaf in zip(grads.keys(), grads, leaves, strict=True):
        assert leaf.grad is not None
        assert_close(got[: len(leaf)], leaf.grad, attention_tolerance(kind, 3, 20), name)
        assert not to_float64(got)[len(leaf) :].any()
        assert not to_float64(got)[: len(leaf)][leaf.grad.numpy() == 0].any()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_arbitrary_masks(framework: Framework) -> None:
    """Ends in any order, overlapping, negative and past the sequence."""
    func = np.random.default_rng(1).integers(-2, 14, (1, 5, ROWS + 4)).astype(np.int32)
    given = make()
    o = run(given, framework, func_tensor=convert(func, framework))
    found = masks((-1, -1), func)
    wanted = exact(double(given[0][:ROWS]), double(given[1][:KEYS]), double(given[2][:KEYS]), found=found)
    assert_close(o[:ROWS], wanted, attention_tolerance("float32", 2, 20))


@pytest.mark.parametrize(
    ("framework", "window"),
    [*((name, (-1, 0)) for name in FRAMEWORKS), ("numpy", (-1, -1)), ("torch", (3, 1)), ("numpy", (127, 0))],
)
def test_pages(framework: Framework, window: tuple[int, int]) -> None:
    """Sequences of 130, 0 and 5 keys on shuffled pages; slots past a sequence's end hold NaN."""
    lengths, pages = (130, 0, 5), {0: (4, 1), 2: (2,)}
    keys, values = (normal((135, 2, 8), seed=seed) for seed in (1, 2))
    paged = np.full((6, 2, 128, 2, 8), np.nan, np.float32)
    for page, start, count in ((4, 0, 128), (1, 128, 2), (2, 130, 5)):
        paged[page, 0, :count], paged[page, 1, :count] = keys[start : start + count], values[start : start + count]
    assert sum(map(len, pages.values())) == 3
    q = normal((6, 2, 8), seed=3)
    ends = np.asarray([0, 3, 3, 6], np.int32), np.asarray([0, *np.cumsum(lengths)], np.int32)
    lists = np.asarray([4, 1, 2], np.int32), np.asarray([0, 2, 2, 3], np.int32)
    poisoned = np.full_like(keys, np.nan)
    given = [convert(x, framework) for x in (q, poisoned, poisoned, *ends)]
    tables = [convert(x, framework) for x in (paged, *lists)]
    out = hstu_attention_forward(*given, 3, 130, window, 1.0, None, None, *tables)["o_tensor"]
    plain = hstu_attention_forward(q, keys, values, *ends, 3, 130, window)["o_tensor"]
    assert np.abs(plain).min() > 0
    assert_close(out, plain, attention_tolerance("float32", 0, 130))


def test_finite_differences() -> None:
    leaves = [double(x).requires_grad_() for x in make(spare=0)]

    def forward(q: Any, k: Any, v: Any) -> Any:
        ends = offsets(0, "torch"), offsets(1, "torch")
        return hstu_attention_forward(q, k, v, *ends, 9, 12, (2, 1), ALPHA, SCALING)["o_tensor"]

    assert torch.autograd.gradcheck(forward, leaves, fast_mode=True)


def test_jax_under_jit_and_grad() -> None:
    import jax
    import jax.numpy as jnp

    given = make(spare=0)
    leaves = [double(x).requires_grad_() for x in given]
    exact(*leaves, found=masks((-1, 0))).square().sum().backward()

    def loss(*arrays: Any) -> Any:
        ends = offsets(0, "jax"), offsets(1, "jax")
        return jnp.square(hstu_attention_forward(*arrays, *ends, 9, 12, (-1, 0), ALPHA, SCALING)["o_tensor"]).sum()

    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*(convert(x, "jax") for x in given))
    for got, leaf in zip(grads, leaves, strict=True):
        assert_close(got, leaf.grad, attention_tolerance("float32", 4, 20))


def test_zero_and_one_token() -> None:
    x, ends = np.full((1, 1, 8), 2.0, np.float32), np.asarray([0, 1], np.int32)
    wanted = 32 / (1 + np.exp(-32.0)) * 2
    assert (hstu_attention_forward(x, x, x, ends, ends, None, None)["o_tensor"] == np.float32(wanted)).all()
    none, nothing = np.zeros((0, 1, 8), np.float32), np.zeros(2, np.int32)
    assert hstu_attention_forward(none, x, x, nothing, ends, None, None)["o_tensor"].shape == (0, 1, 8)
    assert not hstu_attention_forward(x, none, none, ends, nothing, 1, 1)["o_tensor"].any()
    grads = hstu_attention_backward(none, none, x, x, nothing, ends, None, None)
    assert [g.shape for g in grads] == [(0, 1, 8), (1, 1, 8), (1, 1, 8)]
    assert not grads["dk_tensor"].any()


def test_classes_and_buffers() -> None:
    q, k, v = (torch.from_numpy(x) for x in make(spare=0))
    ends, do = (offsets(0, "torch"), offsets(1, "torch")), torch.from_numpy(normal((ROWS, 2, 8), seed=9))
    o = torch.full_like(q, float("nan"))
    forward = HSTUFwdSm100(q, k, v, o, *ends, 9, 12, (-1, 0), alpha=0.5)
    assert forward.check_support()
    forward.compile()
    forward.execute(q, k, v, o, *ends)
    assert torch.equal(o, hstu_attention_forward(q, k, v, *ends, 9, 12, (-1, 0), 0.5)["o_tensor"])
    packed = torch.full((KEYS, 2, 16), float("nan"))
    grads = torch.empty_like(q), packed[..., :8], packed[..., 8:]  # disjoint views of one buffer
    wanted = hstu_attention_backward(do, q, k, v, *ends, 9, 12, (-1, 0), 0.5)
    placed = hstu_attention_backward(do, q, k, v, *ends, 9, 12, (-1, 0), 0.5, dk_tensor=grads[1], dv_tensor=grads[2])
    assert placed["dk_tensor"] is grads[1]
    assert all(torch.equal(a, b) for a, b in zip(placed, wanted, strict=True))
    separate = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    HSTUBwdSm100(do, q, k, v, *separate, *ends, 9, 12, (-1, 0), 0.5)(do, q, k, v, *separate, *ends)
    assert all(torch.equal(a, b) for a, b in zip(separate, wanted, strict=True))
    assert HSTUBwd is HSTUBwdSm100


def test_pages_have_no_derivative() -> None:
    q, ends = torch.ones(2, 1, 8, requires_grad=True), torch.tensor([0, 2], dtype=torch.int32)
    paged, one = torch.ones(1, 2, 128, 1, 8), torch.zeros(1, dtype=torch.int32)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    out = hstu_attention_forward(q, q, q, ends, ends, 2, 2, (-1, 0), 1.0, None, None, paged, one, starts)
    with pytest.raises(NotImplementedError, match="paged_kv_tensor"):
        out["o_tensor"].sum().backward()


_X, _E = np.ones((4, 2, 8), np.float32), np.asarray([0, 4], np.int32)
_PAGES: dict[str, Any] = {
    "paged_kv_tensor": np.zeros((1, 2, 128, 2, 8), np.float32),
    "page_ids_tensor": np.zeros(1, np.int32),
    "page_indptrs_tensor": np.asarray([0, 1], np.int32),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_tensor": _X[0]}, "q_tensor: got shape"),
        ({"k_tensor": _X[:, :1]}, "k_tensor: got"),
        ({"v_tensor": _X[:2]}, "v_tensor: got"),
        ({"v_tensor": _X.astype(np.float16)}, "v_tensor: got float16"),
        ({"cu_seqlens_q_tensor": _E[:1]}, "cu_seqlens_q_tensor: got"),
        ({"cu_seqlens_k_tensor": _E.astype(np.int64)}, "cu_seqlens_k_tensor: got int64"),
        ({"cu_seqlens_k_tensor": np.zeros(3, np.int32)}, "cu_seqlens_k_tensor: got"),
        ({"max_seqlen_q": 5}, "max_seqlen_q: got 5, wanted at most max_seqlen_k = 4"),
        ({"max_seqlen_k": 0}, "max_seqlen_k: got 0"),
        ({"window_size": (5, 0)}, r"window_size: got \(5, 0\)"),
        ({"window_size": (-2, 0)}, "window_size: got"),
        ({"window_size": 3}, "window_size: got 3"),
        ({"window_size": (True, 0)}, r"window_size: got \(True, 0\)"),
        ({"max_seqlen_q": 0}, "max_seqlen_q: got 0, wanted an int above 0"),
        ({"max_seqlen_q": 4.0}, "max_seqlen_q: got 4.0"),
        ({"func_tensor": np.zeros((1, 1, 3), np.int32)}, r"func_tensor: got \(1, 1, 3\), wanted .* L >= 4"),
        ({"func_tensor": np.zeros((1, 1, 300), np.float32)}, "func_tensor: got float32"),
        ({**_PAGES, "paged_kv_tensor": np.zeros((1, 2, 64, 2, 8), np.float32)}, "paged_kv_tensor: got"),
        ({**_PAGES, "paged_kv_tensor": np.zeros((1, 2, 128, 2, 8), np.float16)}, "paged_kv_tensor: got float16"),
        ({**_PAGES, "page_ids_tensor": np.zeros(1, np.int64)}, "page_ids_tensor: got int64"),
        ({**_PAGES, "page_indptrs_tensor": _E[:1]}, "page_indptrs_tensor: got"),
        ({"alpha": float("inf")}, "alpha: got inf"),
        ({"scaling_seqlen": 0.0}, "scaling_seqlen: got 0.0"),
        ({"func_tensor": np.zeros((1, 2, 300), np.int32)}, "func_tensor: got"),
        ({"func_tensor": np.zeros((1, 1, 300), np.int32), "window_size": (-1, 0)}, "func_tensor: got a mask beside"),
        ({"paged_kv_tensor": np.zeros((1, 2, 128, 2, 8), np.float32)}, "page_ids_tensor: got None"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    good = {
        "q_tensor": _X,
        "k_tensor": _X,
        "v_tensor": _X,
        "cu_seqlens_q_tensor": _E,
        "cu_seqlens_k_tensor": _E,
        "max_seqlen_q": 4,
        "max_seqlen_k": 4,
    }
    with pytest.raises(ValueError, match=message):
        hstu_attention_forward(**{**good, **change})
