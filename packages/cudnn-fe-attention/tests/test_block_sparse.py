"""Block-sparse attention: against dense float64, in every framework, at every edge, and by finite differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe_testkit.attention import attention_tolerance, block_mask, dense, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, arrange, convert, normal

# Arguments are spread from lists and tables here, which the type checker cannot count.
block_sparse_attention_backward: Any = attention.block_sparse_attention_backward
block_sparse_attention_forward: Any = attention.block_sparse_attention_forward
block_sparse_attention_jax: Any = attention.block_sparse_attention_jax
block_sparse_attention_jax_backward: Any = attention.block_sparse_attention_jax_backward
block_sparse_attention_jax_forward: Any = attention.block_sparse_attention_jax_forward

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
BLOCK = 64


@dataclass
class Case:
    q: Any
    k: Any
    v: Any
    lists: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any] | None
    sizes: np.ndarray[Any, Any] | None
    mask: torch.Tensor

    def arrays(self, framework: Framework) -> list[Any]:
        return [convert(x, framework) for x in (self.q, self.k, self.v)]

    def meta(self, framework: Framework) -> dict[str, Any]:
        given = {"q2k_block_index": self.lists, "q2k_block_nums": self.counts, "block_sizes": self.sizes}
        return {name: None if x is None else convert(x, framework) for name, x in given.items()}


def make(
    kind: str = "float32",
    *,
    heads: tuple[int, int] = (2, 2),
    queries: int = 130,
    keys: int = 200,
    d: int = 16,
    dv: int = 16,
    counted: bool = True,
    sizes: int = 0,
    block: int = BLOCK,
) -> Case:
    """Two sequences; lists in random order, of random lengths from 0, with garbage past their ends."""
    rng = np.random.default_rng(7)
    blocks, rows = -(-keys // block), -(-queries // block)
    shape = (2, heads[0], rows)
    lists = np.asarray([rng.permutation(blocks) for _ in range(2 * heads[0] * rows)], np.int32)
    lists = lists.reshape(*shape, blocks)
    counts = rng.integers(0, blocks + 1, shape).astype(np.int32) if counted else None
    if counts is not None:
        counts[0, 0, -1], counts[0, 0, 0] = blocks, 0
        lists[np.arange(blocks) >= counts[..., None]] = -(2**30)
    lengths = [(blocks,), (2, blocks), (2, heads[0], blocks)][sizes - 1] if sizes else None
    valid = None if lengths is None else rng.integers(1, block + 1, lengths).astype(np.int32)

    def size(b: int, h: int, j: int) -> int:
        return block if valid is None else int(valid[(b, h, j)[3 - valid.ndim :]])

    def index(b: int, h: int, j: int) -> int:
        return size(b, h, j) if valid is None or valid.ndim != 2 else int(valid[b, j])

    mask = block_mask(
        lists.tolist(),
        blocks if counts is None else counts.tolist(),
        index,
        block=block,
        queries=queries,
        keys=keys,
        heads=heads[0],
    )
    q = normal((2, heads[0], queries, d), kind, seed=1)
    k = normal((2, heads[1], keys, d), kind, seed=2)
    return Case(q, k, normal((2, heads[1], keys, dv), kind, seed=3), lists, counts, valid, mask)


def expected(case: Case, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    return dense(double(case.q), double(case.k), double(case.v), case.mask, scale)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_matches_float64(framework: Framework, kind: str) -> None:
    """Grouped heads, values of another width, extents that are no multiple of the block, lists of any length."""
    case = make(kind, heads=(4, 2), dv=24)
    out = block_sparse_attention_forward(*case.arrays(framework), **case.meta(framework), sparse_block_size=BLOCK)
    o, lse = expected(case, 0.25)
    assert_close(out["o_tensor"], o, attention_tolerance(kind, 2, 200), "O")
    assert_close(out["lse_tensor"], lse, attention_tolerance("float32", 0, 200), "LSE")
    assert (to_float64(out["o_tensor"])[0, 0, :BLOCK] == 0).all()
    assert (to_float64(out["lse_tensor"])[0, 0, :BLOCK] == -np.inf).all()


@pytest.mark.parametrize("sizes", [1, 2, 3])
@pytest.mark.parametrize("scale", [0.3, 0.0, -0.7])
def test_block_sizes_of_every_rank_and_scales_of_every_sign(sizes: int, scale: float) -> None:
    case = make(sizes=sizes, counted=False, heads=(4, 4))
    out = block_sparse_attention_forward(
        *case.arrays("numpy"), **case.meta("numpy"), sparse_block_size=BLOCK, softmax_scale=scale
    )
    o, lse = expected(case, scale)
    assert_close(out["o_tensor"], o, attention_tolerance("float32", 2, 200))
    assert_close(out["lse_tensor"], lse, attention_tolerance("float32", 0, 200))


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_backward_matches_float64(framework: Framework, kind: str) -> None:
    case = make(kind, heads=(4, 2), dv=24, sizes=2)
    do = normal((2, 4, 130, 24), kind, seed=9)
    arrays, meta = case.arrays(framework), case.meta(framework)
    out = block_sparse_attention_forward(*arrays, **meta, sparse_block_size=BLOCK)
    grads = block_sparse_attention_backward(convert(do, framework), *arrays, *out, **meta, sparse_block_size=BLOCK)
    leaves = [double(x).requires_grad_() for x in (case.q, case.k, case.v)]
    dense(leaves[0], leaves[1], leaves[2], case.mask, 0.25)[0].backward(double(do))
    for name, got, leaf in zip(grads.keys(), grads, leaves, strict=True):
        assert leaf.grad is not None
        assert_close(got, leaf.grad, attention_tolerance(kind, 4, 400), name)
        assert not to_float64(got)[leaf.grad.numpy() == 0].any()


def test_finite_differences_through_both_results() -> None:
    case = make(queries=5, keys=70, d=3, dv=2, sizes=1)
    leaves = [double(x).requires_grad_() for x in (case.q, case.k, case.v)]

    def run(q: Any, k: Any, v: Any) -> Any:
        out = block_sparse_attention_forward(q, k, v, **case.meta("torch"), sparse_block_size=BLOCK)
        return out["o_tensor"], torch.nan_to_num(out["lse_tensor"], neginf=0.0)

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_layouts_and_padding(framework: Framework) -> None:
    """(B, S, H, D) operands with NaN between rows give the bits of (B, H, S, D)."""
    case = make("float32", heads=(2, 1))
    plain = block_sparse_attention_forward(*case.arrays(framework), **case.meta(framework), sparse_block_size=BLOCK)
    turned = [convert(arrange(x.transpose(0, 2, 1, 3), pad=4), framework) for x in (case.q, case.k, case.v)]
    out = block_sparse_attention_forward(*turned, **case.meta(framework), sparse_block_size=BLOCK, layout="bshd")
    assert out["o_tensor"].shape == (2, 130, 2, 16)
    assert np.array_equal(to_float64(out["o_tensor"]).transpose(0, 2, 1, 3), to_float64(plain["o_tensor"]))
    assert np.array_equal(to_float64(out["lse_tensor"]), to_float64(plain["lse_tensor"]))


@pytest.mark.parametrize("sizes", [0, 1, 2, 3])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_packed_lists_of_grouped_heads(framework: Framework, sizes: int) -> None:
    """Lists per 128 rows of a group, query heads innermost, mean what the spelt-out mask says; one list is empty."""
    rng = np.random.default_rng(3)
    q, k = normal((1, 4, 100, 8), seed=1), normal((1, 2, 300, 8), seed=2)
    lists = np.asarray([[[rng.permutation(3)[:2] for _ in range(2)] for _ in range(2)]], np.int32)
    counts = np.asarray([[[2, 1], [0, 2]]], np.int32)
    shape = [(), (3,), (1, 3), (1, 2, 3)][sizes]
    valid = rng.integers(1, 129, shape).astype(np.int32) if sizes else None
    mask = torch.zeros(1, 4, 100, 300, dtype=torch.bool)
    for head in range(4):
        for i in range(100):
            row = 0, head // 2, (i * 2 + head % 2) // 128
            for j in lists[row][: counts[row]]:
                at = [(), (j,), (0, j), (0, head // 2, j)][sizes]
                length = 128 if valid is None else valid[at]
                mask[0, head, i, j * 128 : j * 128 + length] = True
    leaves = [double(x).requires_grad_() for x in (q, k)]
    o, lse = dense(leaves[0], leaves[1], leaves[1], mask, 8**-0.5)
    o.square().sum().backward()
    a, b = (convert(x, framework) for x in (q, k))
    meta = {"q2k_block_index": lists, "q2k_block_nums": counts, "block_sizes": valid}
    meta = {name: None if x is None else convert(x, framework) for name, x in meta.items()}
    for pack in (None, True):
        out = block_sparse_attention_forward(a, b, b, **meta, sparse_block_size=128, pack_gqa=pack)
        assert_close(out["o_tensor"], o.detach(), attention_tolerance("float32", 2, 300))
        assert_close(out["lse_tensor"], lse.detach(), attention_tolerance("float32", 0, 300))
    grads = block_sparse_attention_backward(2 * out["o_tensor"], a, b, b, *out, **meta, sparse_block_size=128)
    assert_close(grads["dq_tensor"], leaves[0].grad, attention_tolerance("float32", 4, 300))
    both = to_float64(grads["dk_tensor"]) + to_float64(grads["dv_tensor"])
    assert_close(both, leaves[1].grad, attention_tolerance("float32", 4, 300))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nan_and_infinity_reach_only_what_sees_them(framework: Framework) -> None:
    """Blocks that are not listed and tokens past a block's length may hold anything."""
    case = make(sizes=1, heads=(1, 1))
    clean = expected(case, 0.25)
    seen = case.mask.any(2)[:, 0]
    k, v = case.k.copy(), case.v.copy()
    k[:, 0][~seen.numpy()], v[:, 0][~seen.numpy()] = np.nan, np.inf
    meta = case.meta(framework)
    given = [convert(x, framework) for x in (case.q, k, v)]
    out = block_sparse_attention_forward(*given, **meta, sparse_block_size=BLOCK)
    assert_close(out["o_tensor"], clean[0], attention_tolerance("float32", 2, 200))
    key = int(np.flatnonzero(seen[0].numpy())[0])
    v = case.v.copy()
    v[0, 0, key, 3] = np.nan
    out = block_sparse_attention_forward(
        *given[:1], *(convert(x, framework) for x in (case.k, v)), **meta, sparse_block_size=BLOCK
    )
    hit = np.isnan(to_float64(out["o_tensor"]))
    wanted = np.zeros_like(hit)
    wanted[0, 0, case.mask[0, 0, :, key].numpy(), 3] = True
    assert np.array_equal(hit, wanted)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 5, 5), (1, 0, 5), (1, 5, 0), (1, 1, 1)])
def test_zero_and_one(framework: Framework, batch: int, queries: int, keys: int) -> None:
    q = convert(np.ones((batch, 2, queries, 4), np.float32), framework)
    k = convert(np.full((batch, 1, keys, 4), 2, np.float32), framework)
    lists = convert(np.zeros((batch, 2, -(-queries // 64), 1), np.int32), framework)
    out = block_sparse_attention_forward(q, k, k, lists, sparse_block_size=64)
    assert out["o_tensor"].shape == (batch, 2, queries, 4)
    assert (to_float64(out["o_tensor"]) == (2 if keys else 0)).all()
    assert (to_float64(out["lse_tensor"]) == (4 if keys else -np.inf)).all()
    grads = block_sparse_attention_backward(out["o_tensor"], q, k, k, *out, lists, sparse_block_size=64)
    assert [g.shape for g in grads] == [x.shape for x in (q, k, k)]
    assert not to_float64(grads["dq_tensor"]).any()
    assert (to_float64(grads["dv_tensor"]) == (4 if queries else 0)).all()  # two heads, each with a gradient of 2


@pytest.mark.parametrize("listed", [[1, 1], [1, -1], [-(2**31), 1, 2, 2**31 - 1]])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_block_counts_once_and_ids_of_none_count_nothing(framework: Framework, listed: list[int]) -> None:
    """Of blocks 0 and 1, however often and beside whatever they are listed."""
    x = convert(normal((1, 1, 100, 8)), framework)
    once, given = (
        convert(np.asarray(ids, np.int32).reshape(1, 1, 1, -1).repeat(2, 2), framework) for ids in ([1], listed)
    )
    wanted, got = (block_sparse_attention_forward(x, x, x, ids, sparse_block_size=64) for ids in (once, given))
    grads = [
        block_sparse_attention_backward(x, x, x, x, *result, ids, sparse_block_size=64)
        for result, ids in ((wanted, once), (got, given))
    ]
    for a, b in zip((*wanted, *grads[0]), (*got, *grads[1]), strict=True):
        assert np.array_equal(to_float64(a), to_float64(b))
    assert np.isfinite(to_float64(got["lse_tensor"])).all()


def test_jax_under_jit_and_grad() -> None:
    import jax
    import jax.numpy as jnp

    case = make("float32", heads=(2, 1), sizes=1)
    arrays, meta = case.arrays("jax"), case.meta("jax")

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.square(block_sparse_attention_jax(q, k, v, **meta, sparse_block_size=BLOCK)).sum()

    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*arrays)
    leaves = [double(x).requires_grad_() for x in (case.q, case.k, case.v)]
    dense(leaves[0], leaves[1], leaves[2], case.mask, 0.25)[0].square().sum().backward()
    for got, leaf in zip(grads, leaves, strict=True):
        assert_close(got, leaf.grad, attention_tolerance("float32", 4, 400))
    out = block_sparse_attention_jax_forward(*arrays, **meta, sparse_block_size=BLOCK)
    explicit = block_sparse_attention_jax_backward(2 * out["o_tensor"], *arrays, *out, **meta, sparse_block_size=BLOCK)
    for got, wanted in zip(explicit, grads, strict=True):
        assert_close(got, wanted, attention_tolerance("float32", 2, 400))


def test_torch_autograd_and_compile() -> None:
    case = make("float32", heads=(2, 1))
    meta = case.meta("torch")

    def layer(q: Any, k: Any, v: Any) -> Any:
        return block_sparse_attention_forward(q, k, v, **meta, sparse_block_size=BLOCK)["o_tensor"].sum()

    results = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        leaves = [x.requires_grad_() for x in case.arrays("torch")]
        leaves = [x.detach().clone().requires_grad_() for x in leaves]
        function(*leaves).backward()
        results.append([x.grad for x in leaves])
    for eager, compiled in zip(*results, strict=True):
        assert torch.equal(eager, compiled)


def test_buffers_receive_the_gradients() -> None:
    case = make("float32")
    arrays, meta = case.arrays("torch"), case.meta("torch")
    out = block_sparse_attention_forward(*arrays, **meta, sparse_block_size=BLOCK)
    fresh = block_sparse_attention_backward(out["o_tensor"], *arrays, *out, **meta, sparse_block_size=BLOCK)
    dk = torch.full((2, 2, 200, 20), float("nan"))[..., :16]
    grads = block_sparse_attention_backward(
        out["o_tensor"], *arrays, *out, **meta, sparse_block_size=BLOCK, dk_tensor=dk
    )
    assert grads["dk_tensor"] is dk
    assert torch.equal(dk, fresh["dk_tensor"])
    with pytest.raises(ValueError, match="dq_tensor: got"):
        block_sparse_attention_backward(
            out["o_tensor"], *arrays, *out, **meta, sparse_block_size=BLOCK, dq_tensor=torch.empty(3)
        )


def _good() -> dict[str, Any]:
    x = np.ones((1, 2, 64, 8), np.float32)
    return {
        "q_tensor": x,
        "k_tensor": x,
        "v_tensor": x,
        "q2k_block_index": np.zeros((1, 2, 1, 3), np.int32),
        "sparse_block_size": 64,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "sbhd"}, "layout: got 'sbhd'"),
        ({"q_tensor": np.ones((2, 64, 8), np.float32)}, "q_tensor: got shape"),
        ({"k_tensor": np.ones((1, 2, 64, 4), np.float32)}, "k_tensor: got"),
        ({"v_tensor": np.ones((1, 2, 63, 8), np.float32)}, "v_tensor: got"),
        ({"v_tensor": np.ones((1, 2, 64, 8), np.float16)}, "v_tensor: got float16, wanted float32"),
        ({"q_tensor": np.ones((1, 3, 64, 8), np.float32)}, "3 query heads and 2 key heads"),
        ({"q_tensor": np.ones((1, 2, 8, 64), np.float32).swapaxes(2, 3)}, "stride 1 along the last dim"),
        ({"sparse_block_size": 32}, "sparse_block_size: got 32"),
        ({"block_sparse_num": 4}, "block_sparse_num: got 4"),
        ({"block_sparse_num": 0}, "block_sparse_num: got 0"),
        ({"q2k_block_index": np.zeros((1, 2, 1, 3), np.int64)}, "q2k_block_index: got int64"),
        ({"q2k_block_index": np.zeros((1, 2, 2, 3), np.int32)}, "q2k_block_index: got"),
        ({"q2k_block_index": np.zeros((1, 2, 1, 0), np.int32)}, "q2k_block_index: got"),
        ({"q2k_block_nums": np.zeros((1, 2), np.int32)}, "q2k_block_nums: got"),
        ({"block_sizes": np.zeros((2,), np.int32)}, "block_sizes: got"),
        ({"kv_splits": 257}, "kv_splits: got 257"),
        ({"pack_gqa": 7}, "pack_gqa: got 7"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        block_sparse_attention_forward(**{**_good(), **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do_tensor": np.ones((1, 2, 63, 8), np.float32)}, "do_tensor: got"),
        ({"do_tensor": np.ones((1, 2, 64, 8), np.float16)}, "do_tensor: got float16"),
        ({"o_tensor": np.ones((1, 2, 64, 4), np.float32)}, "o_tensor: got"),
        ({"o_tensor": np.ones((1, 2, 8, 64), np.float32).swapaxes(2, 3)}, "o_tensor: got strides"),
        ({"lse_tensor": np.ones((1, 2, 64, 1), np.float32)}, "lse_tensor: got"),
        ({"lse_tensor": np.ones((1, 2, 64), np.float16)}, "lse_tensor: got float16"),
        ({"dlse_tensor": np.ones((1, 2, 63), np.float32)}, "dlse_tensor: got"),
        ({"bucket_size_blocks": 0}, "bucket_size_blocks: got 0"),
        ({"dk_tensor": np.ones((1, 2, 64, 8), np.float16)}, "dk_tensor: got float16"),
        ({"dv_tensor": np.ones((1, 2, 8, 64), np.float32).swapaxes(2, 3)}, "dv_tensor: got strides"),
        ({"q2k_block_index": np.zeros((1, 2, 2, 3), np.int32)}, "q2k_block_index: got"),
    ],
)
def test_backward_refusals(change: dict[str, Any], message: str) -> None:
    x = np.ones((1, 2, 64, 8), np.float32)
    more = {"do_tensor": x, "o_tensor": x, "lse_tensor": x[..., 0].copy()}
    with pytest.raises(ValueError, match=message):
        block_sparse_attention_backward(**{**_good(), **more, **change})


def test_packing_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="pack_gqa: got True"):
        block_sparse_attention_forward(**_good(), pack_gqa=True)
