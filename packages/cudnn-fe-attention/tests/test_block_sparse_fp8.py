"""Block-sparse attention in FP8: against the recipe written out with torch's own types, and against exact attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe_testkit.attention import block_mask, dense, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists here, which the type checker cannot count.
block_sparse_attention_fp8_forward: Any = attention.block_sparse_attention_fp8_forward

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
LISTS = np.asarray([[[[1, 2, 9], [0, -5, -5], [7, 7, 7]]] * 2], np.int32)  # (1, 2, 3, 3)
COUNTS = np.asarray([[[2, 1, 0]] * 2], np.int32)
SIZES = np.asarray([64, 64, 20], np.int32)


def case() -> tuple[list[Any], torch.Tensor]:
    """130 queries and 150 keys: tails of blocks and of groups of 16, an empty list; a mean that is not zero."""
    q, k, v = (normal((1, 2, rows, 128), "float32", seed=s, scale=0.5) for s, rows in enumerate((130, 150, 150)))
    k[:, 0] += 3
    k[:, 1, 16:32] = k[:, 1, :1]  # a group of equal tokens
    v[:, 1, :, 5] = 0  # a channel of zeros: the least scale
    import ml_dtypes

    given = [x.astype(ml_dtypes.bfloat16) for x in (q, k, v)]
    mask = block_mask(
        LISTS.tolist(), COUNTS.tolist(), lambda b, h, j: int(SIZES[j]), block=64, queries=130, keys=150, heads=2
    )
    return given, mask


def e4m3(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def recipe(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
    """The recipe in float32, groups by a loop, with torch's casts."""
    qs = q.abs().amax(-1, keepdim=True).clamp_min(1e-3) / 448
    q8 = e4m3((q * (1 / qs.bfloat16().float()).bfloat16().float()).bfloat16().float())
    kc, ks = k - k.mean(2, keepdim=True), torch.empty(k.shape[:3])
    for start in range(0, k.shape[2], 16):
        group = kc[:, :, start : start + 16]
        ks[:, :, start : start + 16] = (group.abs().amax((2, 3)).clamp_min(1e-3) / 448)[..., None]
    k8 = e4m3(kc / ks[..., None])
    vs = v.abs().amax((0, 2)).clamp_min(1e-3) / 448
    v8 = e4m3(v * (1 / vs)[:, None])
    x = (q8 @ k8.mT) * qs * ks[:, :, None] * 128**-0.5 * 1.4426950408889634
    x = x.masked_fill(~mask, float("-inf"))
    top = x.amax(-1, keepdim=True)
    p = torch.exp2(x - top.masked_fill(top.isinf(), 0) + 8)
    return (e4m3(p) @ v8 / p.sum(-1, keepdim=True) * vs[:, None]).nan_to_num(0)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_recipe(framework: Framework) -> None:
    """But for P, whose rounding turns on the last bit of an exponential, nothing but the bfloat16 output is rounded."""
    given, mask = case()
    meta = [convert(x, framework) for x in (LISTS, COUNTS, SIZES)]
    out = block_sparse_attention_fp8_forward(
        *(convert(x, framework) for x in given), meta[0], q2k_block_nums=meta[1], block_sizes=meta[2]
    )["o_tensor"]
    wanted = recipe(*(double(x).float() for x in given), mask=mask)
    assert_close(out, wanted, 2 * 2.0**-9)
    assert not to_float64(out)[:, :, 128:].any()
    assert not to_float64(out)[:, 1, :, 5].any()


def test_close_to_exact_attention() -> None:
    """The published bound of the recipe: a mean error of 4 percent."""
    given, mask = case()
    out = block_sparse_attention_fp8_forward(*given, LISTS, q2k_block_nums=COUNTS, block_sizes=SIZES)["o_tensor"]
    o = dense(double(given[0]), double(given[1]), double(given[2]), mask, 128**-0.5)[0].numpy()
    error = np.abs(to_float64(out) - o)
    assert error.max() < 0.2
    assert error.mean() < 0.04 * np.abs(o).mean()


def test_zero_extents() -> None:
    import ml_dtypes

    x, none = (np.ones((1, 1, n, 16), ml_dtypes.bfloat16) for n in (3, 0))
    lists = np.zeros((1, 1, 1, 1), np.int32)
    assert not block_sparse_attention_fp8_forward(x, none, none, lists)["o_tensor"].any()
    assert block_sparse_attention_fp8_forward(none, x, x, lists[:, :, :0])["o_tensor"].shape == (1, 1, 0, 16)
    assert (block_sparse_attention_fp8_forward(x, x, x, lists)["o_tensor"] == 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"softmax_scale": 0.0}, "softmax_scale: got 0.0"),
        ({"softmax_scale": float("nan")}, "softmax_scale: got nan"),
        ({"kv_splits": "auto"}, "kv_splits: got 'auto'"),
        ({"sparse_block_size": 96}, "sparse_block_size: got 96"),
        ({"block_sparse_num": 9}, "block_sparse_num: got 9"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    import ml_dtypes

    x = np.ones((1, 1, 64, 16), ml_dtypes.bfloat16)
    with pytest.raises(ValueError, match=message):
        block_sparse_attention_fp8_forward(x, x, x, np.zeros((1, 1, 1, 1), np.int32), **change)


def test_other_dtypes_are_refused() -> None:
    x = np.ones((1, 1, 64, 16), np.float32)
    with pytest.raises(ValueError, match="q_tensor: got float32, wanted bfloat16"):
        block_sparse_attention_fp8_forward(x, x, x, np.zeros((1, 1, 1, 1), np.int32))
