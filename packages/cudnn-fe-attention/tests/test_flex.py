"""Flex attention: against dense float64 attention, by finite differences, in every framework, at the edges."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention import MaskPlan
from cudnn_fe.attention.flex import legacy
from cudnn_fe_testkit.attention import attention_tolerance, dense, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, arrange, convert, normal

# Arguments are spread from lists and tables here, which the type checker cannot count.
create_mask_plan: Any = attention.create_mask_plan
flex_attention: Any = attention.flex_attention
flex_attention_backward: Any = attention.flex_attention_backward
flex_attention_forward: Any = attention.flex_attention_forward
FlexAttentionFwd: Any = legacy.FlexAttentionFwd
FlexAttentionBwd: Any = legacy.FlexAttentionBwd

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
BATCH, ROWS, KEYS, HEADS, KEY_HEADS, WIDTH, VALUE_WIDTH = 2, 11, 9, 4, 2, 8, 5
LENGTHS = ((7, 9), (0, 4), (5, 0), (1, 12), (9, 3))  # (queries, keys), with none of either


def random_ends(masks: int, count: int, limits: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """Sorted endpoints up to each query's number of keys; some queries see nothing, some everything."""
    rng = np.random.default_rng(seed)
    limits = np.asarray(limits)
    ends = np.sort(rng.integers(0, limits + 1, (masks, count, len(limits))), axis=1).astype(np.int32)
    ends[:, :, 3] = 0
    ends[:, 0, 4], ends[:, 1:, 4] = limits[4], limits[4]
    return ends


def sees(ends: Any, key: int) -> bool:
    """The definition, an interval at a time."""
    bounds = [0, *ends]
    return any(low <= key < high for low, high in zip(bounds[::2], bounds[1::2], strict=True))


def fixed_mask(ends: np.ndarray[Any, Any]) -> torch.Tensor:
    mask = torch.zeros(BATCH, HEADS, ROWS, KEYS, dtype=torch.bool)
    for b, h, i, j in np.ndindex(*mask.shape):
        mask[b, h, i, j] = sees(ends[h if len(ends) > 1 else 0, :, b * ROWS + i].tolist(), j)
    return mask


def fixed(kind: str = "float32") -> list[Any]:
    shapes = (BATCH, ROWS, HEADS, WIDTH), (BATCH, KEYS, KEY_HEADS, WIDTH), (BATCH, KEYS, KEY_HEADS, VALUE_WIDTH)
    return [normal(shape, kind, seed=seed) for seed, shape in enumerate(shapes)]


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
    o, lse = dense(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, scale)
    return o.transpose(1, 2), lse


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("masks", "count"), [(1, 1), (HEADS, 5)])
def test_forward_and_backward(framework: Framework, kind: str, masks: int, count: int) -> None:
    given = fixed(kind)
    ends = random_ends(masks, count, [KEYS] * (BATCH * ROWS))
    mask, scale = fixed_mask(ends), 0.4
    leaves = [double(x).requires_grad_() for x in given]
    q, k, v = leaves
    o, lse = exact(q, k, v, mask, scale)
    do, dlse = normal(o.shape, kind, seed=7), normal(lse.shape, seed=8)
    seen = mask.any(-1)
    torch.autograd.backward((o, lse.masked_fill(~seen, 0.0)), (double(do), double(dlse).masked_fill(~seen, 0.0)))
    arrays = [convert(x, framework) for x in given]
    plan = create_mask_plan(convert(ends, framework), *arrays, build_backward=True)
    got = flex_attention(*arrays, mask_plan=plan, softmax_scale=scale, return_lse=True, return_max_logit=True)
    assert_close(got[0], o.detach(), attention_tolerance(kind, 2, KEYS))
    assert_close(got[1], lse.detach(), attention_tolerance("float32", 1, WIDTH))
    s = torch.einsum("bihd,bjhd->bhij", leaves[0], leaves[1].repeat_interleave(2, 2)).detach() * scale
    assert_close(got[2], s.masked_fill(~mask, float("-inf")).amax((0, 2, 3)), attention_tolerance("float32", 1, WIDTH))
    assert not to_float64(got[0])[~seen.transpose(1, 2).numpy()].any()
    grads = flex_attention_backward(
        *(convert(x, framework) for x in (do,)), *arrays, got[0], got[1], plan, convert(dlse, framework),
        softmax_scale=scale, deterministic=True,
    )  # fmt: skip
    for name, grad, leaf in zip(grads.keys(), grads, leaves, strict=True):
        assert leaf.grad is not None
        assert_close(grad, leaf.grad, attention_tolerance(kind, 4, 2 * ROWS), name)
    assert not to_float64(grads["dq_tensor"])[~seen.transpose(1, 2).numpy()].any()


def packed_case(framework: Framework) -> tuple[list[Any], np.ndarray[Any, Any], tuple[Any, Any]]:
    rows, keys = (sum(side) for side in zip(*LENGTHS, strict=True))
    shapes = (rows, HEADS, WIDTH), (keys, KEY_HEADS, WIDTH), (keys, KEY_HEADS, VALUE_WIDTH)
    given = [normal(shape, seed=seed) for seed, shape in enumerate(shapes)]
    ends = random_ends(1, 3, [n for m, n in LENGTHS for _ in range(m)], seed=3)
    offsets = [np.cumsum([0, *(pair[side] for pair in LENGTHS)]).astype(np.int32) for side in range(2)]
    return given, ends, (convert(offsets[0], framework), convert(offsets[1], framework))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_packed_sequences(framework: Framework) -> None:
    given, ends, offsets = packed_case(framework)
    leaves = [double(x).requires_grad_() for x in given]
    parts, statistics, row, key = [], [], 0, 0
    for m, n in LENGTHS:
        q, k, v = leaves[0][row : row + m], leaves[1][key : key + n], leaves[2][key : key + n]
        mask = torch.tensor([[sees(ends[0, :, row + i].tolist(), j) for j in range(n)] for i in range(m)])
        row, key = row + m, key + n
        if m == 0:
            continue
        if n == 0:
            parts.append(q[..., :VALUE_WIDTH] * 0)
            statistics.append(torch.full((HEADS, m), float("-inf"), dtype=torch.float64))
            continue
        o, lse = exact(q[None], k[None], v[None], mask.expand(1, HEADS, m, n), WIDTH**-0.5)
        parts.append(o[0])
        statistics.append(lse[0])
    o, lse = torch.cat(parts), torch.cat(statistics, 1)
    do = normal(o.shape, seed=9)
    o.backward(double(do))
    arrays = [convert(x, framework) for x in given]
    plan = create_mask_plan(
        convert(ends, framework), *arrays, cu_seqlens_q=offsets[0], cu_seqlens_k=offsets[1], max_seqlen_q=9,
        max_seqlen_k=12, build_backward=True,
    )  # fmt: skip
    got = flex_attention(*arrays, mask_plan=plan, return_lse=True)
    assert_close(got[0], o.detach(), attention_tolerance("float32", 2, 12))
    assert_close(got[1], lse.detach(), attention_tolerance("float32", 1, WIDTH))
    grads = flex_attention_backward(convert(do, framework), *arrays, *got, plan)
    for name, grad, leaf in zip(grads.keys(), grads, leaves, strict=True):
        assert leaf.grad is not None
        assert_close(grad, leaf.grad, attention_tolerance("float32", 4, 20), name)


def test_finite_differences() -> None:
    leaves = [double(x).requires_grad_() for x in fixed()]
    ends = torch.from_numpy(random_ends(HEADS, 3, [KEYS] * (BATCH * ROWS)))
    plan = create_mask_plan(ends, *leaves)
    assert plan.metadata.has_backward

    def forward(*arrays: Any) -> Any:
        o, lse = flex_attention(*arrays, mask_plan=plan, return_lse=True)
        return o, lse.masked_fill(lse == float("-inf"), 0.0)

    assert torch.autograd.gradcheck(forward, leaves, fast_mode=True)


def test_torch_autograd() -> None:
    """Expanded gradients, unused results, and a statistic without a derivative."""
    given = [torch.from_numpy(x).requires_grad_() for x in fixed()]
    plan = create_mask_plan(torch.from_numpy(random_ends(1, 1, [KEYS] * (BATCH * ROWS))), *given)
    out, lse, top = flex_attention(*given, mask_plan=plan, return_lse=True, return_max_logit=True)
    assert not top.requires_grad
    out.sum().backward(retain_graph=True)
    wanted = flex_attention_backward(torch.ones_like(out), *(x.detach() for x in given), out.detach(), lse, plan)
    for x, grad in zip(given, wanted, strict=True):
        assert x.grad is not None
        assert torch.equal(x.grad, grad)
        x.grad = None
    lse[torch.isfinite(lse)].sum().backward()
    assert given[0].grad is not None
    assert given[0].grad.abs().sum() > 0
    assert given[2].grad is not None
    assert not given[2].grad.any()


def test_jax_under_jit_and_grad_with_the_plan_as_an_argument() -> None:
    import jax
    import jax.numpy as jnp

    given = fixed()
    ends = random_ends(1, 3, [KEYS] * (BATCH * ROWS))
    leaves = [double(x).requires_grad_() for x in given]
    q, k, v = leaves
    o, lse = exact(q, k, v, fixed_mask(ends), 0.4)
    (o.square().sum() + lse[torch.isfinite(lse)].sum()).backward()

    @jax.jit
    def gradients(plan: MaskPlan, *arrays: Any) -> Any:
        def loss(*arrays: Any) -> Any:
            o, lse = flex_attention(*arrays, mask_plan=plan, softmax_scale=0.4, return_lse=True)
            return jnp.square(o).sum() + jnp.where(jnp.isfinite(lse), lse, 0.0).sum()

        return jax.grad(loss, argnums=(0, 1, 2))(*arrays)

    arrays = [convert(x, "jax") for x in given]
    for got, leaf in zip(gradients(create_mask_plan(convert(ends, "jax"), *arrays), *arrays), leaves, strict=True):
        assert_close(got, leaf.grad, attention_tolerance("float32", 4, 20))


@pytest.mark.parametrize("scale", [0.0, -0.7])
def test_scales_that_are_not_positive(scale: float) -> None:
    given = fixed()
    ends = random_ends(1, 3, [KEYS] * (BATCH * ROWS))
    plan = create_mask_plan(ends, *given)
    got = flex_attention_forward(*given, plan, softmax_scale=scale)
    q, k, v = (double(x) for x in given)
    o, lse = exact(q, k, v, fixed_mask(ends), scale)
    assert_close(got["o_tensor"], o, attention_tolerance("float32", 2, KEYS))
    assert_close(got["lse_tensor"], lse, attention_tolerance("float32", 1, WIDTH))
    if scale == 0:
        assert (got["max_logit_tensor"] == 0).all()


def test_unseen_keys_may_hold_anything() -> None:
    given = fixed()
    ends = np.full((1, 1, BATCH * ROWS), 6, np.int32)
    plan = create_mask_plan(ends, *given)
    wanted = flex_attention_forward(*given, plan)
    for x in given[1:]:
        x[:, 6:] = np.nan
    for got, before in zip(flex_attention_forward(*given, plan), wanted, strict=True):
        np.testing.assert_array_equal(got, before)
    do = np.ones_like(wanted["o_tensor"])
    grads = flex_attention_backward(do, *given, wanted["o_tensor"], wanted["lse_tensor"], plan)
    assert all(np.isfinite(x).all() for x in grads)
    assert not grads["dk_tensor"][:, 6:].any()


@pytest.mark.parametrize(("rows", "keys"), [(0, 3), (3, 0), (1, 1)])
def test_zero_and_one_token(rows: int, keys: int) -> None:
    q, k = np.ones((2, rows, 2, 8), np.float32), np.full((2, keys, 1, 8), 3.0, np.float32)
    plan = create_mask_plan(np.full((1, 1, 2 * rows), keys, np.int32), q, k, k)
    o, lse, top = flex_attention(q, k, k, mask_plan=plan, return_lse=True, return_max_logit=True)
    grads = flex_attention_backward(np.ones_like(o), q, k, k, o, lse, plan)
    assert [x.shape for x in grads] == [q.shape, k.shape, k.shape]
    if rows and keys:
        assert (o == 3).all()
        np.testing.assert_allclose(lse, 24 / 8**0.5, rtol=1e-6)
        assert (grads["dv_tensor"] == 2).all()
    else:
        assert not o.any()
        assert (top == -np.inf).all()
        assert not any(x.any() for x in grads)


def test_a_plan_keeps_copies_and_does_not_change() -> None:
    given = [torch.from_numpy(x) for x in fixed()]
    ends = torch.from_numpy(random_ends(1, 3, [KEYS] * (BATCH * ROWS)))
    plan = create_mask_plan(ends, *given)
    assert not plan.metadata.has_backward
    wanted = flex_attention(*given, mask_plan=plan)
    ends.fill_(0)
    assert torch.equal(flex_attention(*given, mask_plan=plan), wanted)
    plan.debug_snapshot()["forward"]["mask_block_cnt"].fill_(9)
    assert int(plan.debug_snapshot()["forward"]["mask_block_cnt"].max()) == 1
    with pytest.raises(AttributeError, match="cannot be set"):
        plan.metadata = None
    with pytest.raises(TypeError, match="create_mask_plan"):
        MaskPlan()
    given[0].requires_grad_()
    with pytest.raises(ValueError, match=r"mask_plan: got a plan without a backward.*build_backward=True"):
        flex_attention(*given, mask_plan=plan)
    with torch.no_grad():
        flex_attention(*given, mask_plan=plan)


@pytest.mark.parametrize("pack", [None, False])
def test_lists_of_blocks(pack: bool | None) -> None:
    """Every tile of 128 queries and keys is listed as what its mask says, by query and by key."""
    lengths = ((300, 260), (0, 5), (129, 384))
    rows, keys = (sum(side) for side in zip(*lengths, strict=True))
    q, k = np.zeros((rows, 2, 8), np.float16), np.zeros((keys, 1, 8), np.float16)
    limits = np.concatenate([np.full(m, n) for m, n in lengths])
    place = np.concatenate([np.arange(m) for m, _ in lengths])
    ends = np.stack([np.where(place < 128, 128, 0), np.where(place < 128, 128, limits), limits])[None].astype(np.int32)
    offsets = [np.cumsum([0, *(pair[side] for pair in lengths)]).astype(np.int32) for side in range(2)]
    plan = create_mask_plan(
        ends, q, k, k, cu_seqlens_q=offsets[0], cu_seqlens_k=offsets[1], max_seqlen_q=300, max_seqlen_k=384,
        pack_gqa=pack,
    )  # fmt: skip
    assert plan.metadata.pack_gqa is (pack is None)
    snapshot = plan.debug_snapshot()
    group = 2 if pack is None else 1
    for kind, by_key in (("forward", False), ("backward", True)):
        found: list[Any] = []
        for sample, (m, n) in enumerate(lengths):
            first = offsets[0][sample]
            mask = np.zeros((m * group, n), bool) if not by_key else np.zeros((m, n), bool)
            times = 1 if by_key else group
            for i, j in np.ndindex(m, n):
                mask[i * times : (i + 1) * times, j] = sees(ends[0, :, first + i].tolist(), j)
            if by_key:
                mask = mask.T
            for r in range(-(-mask.shape[0] // 128)):
                row = mask[r * 128 : r * 128 + 128]
                tiles = [row[:, c * 128 : c * 128 + 128] for c in range(-(-row.shape[1] // 128))]
                whole = [c for c, t in enumerate(tiles) if t.shape == (128, 128) and t.all()]
                found.append((whole, [c for c, t in enumerate(tiles) if t.any() and c not in whole]))
        view = snapshot[kind]
        for position, name in enumerate(("full", "mask")):
            counts, starts, ids = (view[f"{name}_block_{part}"] for part in ("cnt", "offset", "idx"))
            assert counts.tolist() == [[len(pair[position]) for pair in found]]
            lists = [ids[a:b].tolist() for a, b in pairwise(starts)]
            assert lists == [pair[position] for pair in found]
        assert view["cu_total_m_blocks"][-1] == len(found)
        assert view["sequence_desc"].shape == (3, 8)
    assert sum(len(full) for full, _ in found) > 0


def test_classes() -> None:
    q, k, v = (torch.from_numpy(arrange(x, pad=3)) for x in fixed())
    ends = torch.from_numpy(random_ends(1, 3, [KEYS] * (BATCH * ROWS)))
    plan = create_mask_plan(ends, q, k, v, build_backward=True)
    wanted = flex_attention_forward(q, k, v, plan)
    o = torch.full_like(wanted["o_tensor"], float("nan"))
    lse, top = torch.full_like(wanted["lse_tensor"], float("nan")), torch.full((HEADS,), float("nan"))
    forward = FlexAttentionFwd(q, k, v, o, plan, lse, sample_max_logit=top)
    with pytest.raises(RuntimeError, match="execute before compile"):
        forward.execute(q, k, v, o, plan, lse, max_logit_tensor=top)
    assert forward.check_support()
    forward.compile()
    assert forward.workspace_size == 0
    forward.execute(q, k, v, o, plan, lse, max_logit_tensor=top)
    assert all(torch.equal(a, b) for a, b in zip((o, lse, top), wanted, strict=True))
    other = create_mask_plan(ends[:, :1], q, k, v, build_backward=True)  # another mask with fewer endpoints
    alone = torch.full_like(o, float("nan"))
    FlexAttentionFwd(q, k, v, alone, plan)(q, k, v, alone, other, softmax_scale=0.3)
    assert torch.equal(alone, flex_attention(q, k, v, mask_plan=other, softmax_scale=0.3))
    with pytest.raises(ValueError, match="max_logit_tensor: got None"):
        forward.execute(q, k, v, o, plan, lse)
    with pytest.raises(ValueError, match="o_tensor"):
        forward.execute(q, k, v, o[:, :-1], plan, lse, max_logit_tensor=top)
    with pytest.raises(TypeError, match="mask_plan: got NoneType"):
        forward.execute(q, k, v, o, None, lse, max_logit_tensor=top)
    do, dlse = torch.from_numpy(normal(o.shape, seed=5)), torch.from_numpy(normal(lse.shape, seed=6))
    grads = [torch.full(x.shape, float("nan")) for x in (q, k, v)]
    operands = (q, k, v, o, do, lse, *grads, plan, dlse)
    backward = FlexAttentionBwd(*operands, deterministic=True)
    backward.compile()
    backward.execute(*operands, workspace=None)
    expected = flex_attention_backward(do, q, k, v, o, lse, plan, dlse)
    assert all(torch.equal(a, b) for a, b in zip(grads, expected, strict=True))
    with pytest.raises(TypeError, match="sm90_use_smem_mask_pipeline: got 1"):
        FlexAttentionFwd(q, k, v, o, plan, sm90_use_smem_mask_pipeline=1)
    with pytest.raises(ValueError, match="without a backward"):
        FlexAttentionBwd(*operands[:9], create_mask_plan(ends, q, k, v)).check_support()


def test_gradients_of_many_tiles() -> None:
    """A window and a sink over 6000 tokens: tiles that are seen, hidden, and cut off."""
    tokens = 6000
    q, k, v, do = (normal((1, tokens, 1, 8), seed=seed) for seed in range(4))
    row = np.arange(tokens)
    low = np.maximum(row - 99, 1)
    ends = np.stack([np.ones_like(row), low, np.maximum(row + 1, 1)])[None].astype(np.int32)
    plan = create_mask_plan(ends, q, k, v)
    o, lse = flex_attention(q, k, v, mask_plan=plan, return_lse=True)
    dq = flex_attention_backward(do, q, k, v, o, lse, plan)["dq_tensor"]
    for i in (1, 1500, tokens - 1):
        seen = [0, *range(low[i], i + 1)]
        x = double(q[0, i, 0]).requires_grad_()
        p = torch.softmax(double(k[0, seen, 0]) @ x / 8**0.5, 0)
        (p @ double(v[0, seen, 0])).backward(double(do[0, i, 0]))
        assert x.grad is not None
        assert_close(dq[0, i, 0], x.grad, attention_tolerance("float32", 8, 100))
