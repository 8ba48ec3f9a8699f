"""NVFP4 attention's gradients: the quantiser bit by bit, the gradients against float64 autograd, and the edges."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.fake_quant import nvfp4_values
from cudnn_fe.attention.nvfp4_qat import legacy
from cudnn_fe_testkit.attention import attention_tolerance, dense, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, arrange, convert, normal

# Arguments are spread from lists and tables here, which the type checker cannot count.
nvfp4_attention_qat_backward: Any = attention.nvfp4_attention_qat_backward
Nvfp4AttentionQatBackward: Any = legacy.Nvfp4AttentionQatBackward

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
GRID = np.asarray([0, 0.5, 1, 1.5, 2, 3, 4, 6])
SCALE = 0.3


def quantised(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The definition, a group and an element at a time; a tie goes to the code with an even number."""
    out = np.zeros(x.shape)
    for place in np.ndindex(*x.shape[:-1]):
        for start in range(0, x.shape[-1], 16):
            group = x[place][start : start + 16].astype(np.float32)
            wanted = max(np.float32(np.abs(group).max()) / np.float32(6), np.float32(2.0**-9))
            scale = np.float32(np.minimum(wanted, np.float32(448)).astype(ml_dtypes.float8_e4m3fn))
            for i, value in enumerate(group):
                y = float(np.float32(abs(value) / scale))
                distance = np.abs(GRID - y)
                nearest = np.flatnonzero(distance == distance.min())
                code = next((c for c in nearest if c % 2 == 0), nearest[0])
                out[place][start + i] = np.copysign(GRID[code] * scale, value)
    return out


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_quantiser_is_exact(framework: Framework) -> None:
    """Random groups, midpoints of neighbouring codes, scales at both ends, zeros, and a last group of 5."""
    rows = normal((40, 37), seed=1) * np.exp2(np.linspace(-14, 14, 40, dtype=np.float32))[:, None]
    midpoints = np.concatenate([(GRID[1:] + GRID[:-1]) / 2, -(GRID[1:] + GRID[:-1]) / 2, [6.0, 0.0]])
    for row, scale in enumerate((1.0, 15 / 32, 448.0, 2.0**-9)):
        rows[row, :16] = (midpoints * scale)[:16]
        rows[row, 0] = 6 * scale
    rows[4] = 0
    rows[5] = 1e6
    x = convert(rows, framework)
    import array_api_compat

    got = to_float64(nvfp4_values(array_api_compat.array_namespace(x), x))
    np.testing.assert_array_equal(got, quantised(rows))
    assert np.abs(got).max() == 6 * 448


def case(kind: str, rows: int, keys: int, *, causal: bool) -> tuple[list[Any], list[np.ndarray[Any, Any]]]:
    """Operands, and the gradients that float64 gives for quantised operands; dV with quantised probabilities."""
    q, do = normal((1, 2, rows, 32), kind, seed=0), normal((1, 2, rows, 32), kind, seed=3)
    k, v = (normal((1, 2, keys, 32), kind, seed=seed) for seed in (1, 2))
    leaves = [torch.from_numpy(quantised(x)).requires_grad_() for x in (q, k, v)]
    mask = torch.ones(1, 1, rows, keys, dtype=torch.bool)
    mask = mask.tril() if causal else mask
    o, lse = dense(leaves[0], leaves[1], leaves[2], mask.expand(1, 2, rows, keys), SCALE)
    o.backward(double(do))
    s = torch.einsum("bhid,bhjd->bhij", leaves[0], leaves[1]).detach() * SCALE
    p = (torch.exp(s - lse.detach()[..., None]) * mask).float().numpy()
    dv = np.einsum("bhij,bhid->bhjd", quantised(p), to_float64(do))
    stored = o.detach().float().numpy().astype(q.dtype)
    grads = [leaf.grad.numpy() for leaf in leaves[:2] if leaf.grad is not None]
    return [do, q, k, v, stored, lse.detach().float().numpy()], [*grads, dv]


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients(framework: Framework, kind: str) -> None:
    given, wanted = case(kind, 21, 37, causal=False)
    grads = nvfp4_attention_qat_backward(*(convert(x, framework) for x in given), softmax_scale=SCALE)
    for name, expected in zip(grads.keys(), wanted, strict=True):
        # A float32 P beside a rounding boundary may take the neighbouring code: one step of 2**-2 in few of the sums.
        tolerance = attention_tolerance(kind, 4, 37) + (2.0**-6 if name == "dv_tensor" else 0)
        assert_close(grads[name], expected, tolerance, name)


@pytest.mark.parametrize("rows", [1, 17, 33])
def test_causal_tails(rows: int) -> None:
    given, wanted = case("bfloat16", rows, rows, causal=True)
    grads = nvfp4_attention_qat_backward(*given, softmax_scale=SCALE, is_causal=True)
    for name, expected in zip(grads.keys(), wanted, strict=True):
        if rows > 1 or name == "dv_tensor":
            assert_close(grads[name], expected, attention_tolerance("bfloat16", 4, rows) + 2.0**-6, name)
        else:
            assert np.abs(to_float64(grads[name])).max() < 2.0**-5  # P is 1: dS is the rounding of O alone


def test_tiles_cut_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    given, _ = case("float32", 21, 70, causal=False)
    whole = nvfp4_attention_qat_backward(*given)
    monkeypatch.setattr("cudnn_fe.attention.tiles._ON_HOST", 600)
    for name, got in nvfp4_attention_qat_backward(*given).items():
        assert_close(got, whole[name], 2.0**-20, name)


def test_empty_sequences() -> None:
    none, x = np.zeros((1, 2, 0, 32), np.float32), np.ones((1, 2, 3, 32), np.float32)
    lse = np.full((1, 2, 3), -np.inf, np.float32)
    assert not any(g.any() for g in nvfp4_attention_qat_backward(x, x, none, none, x, lse))
    grads = nvfp4_attention_qat_backward(none, none, x, x, none, lse[..., :0])
    assert [g.shape for g in grads] == [none.shape, x.shape, x.shape]
    assert not grads["dv_tensor"].any()


def test_class_and_buffers() -> None:
    given, _ = case("bfloat16", 17, 17, causal=True)
    do, q, k, v, o, lse = (convert(x, "torch") for x in given)
    wanted = nvfp4_attention_qat_backward(do, q, k, v, o, lse, is_causal=True, head_chunk=2, backend="frost")
    grads = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    made = Nvfp4AttentionQatBackward(q, k, v, o, do, lse, is_causal=True, head_chunk=1)
    assert (made.selected_backend, made.selected_head_chunk, made.fallback_reason) == (None, 0, None)
    with pytest.raises(RuntimeError, match="execute before compile"):
        made.execute(q, k, v, o, do, lse, *grads, None)
    assert made.check_support()
    assert (made.selected_backend, made.selected_head_chunk) == ("reference", 1)
    made.compile()
    assert made.scratch_workspace_bytes() == 0
    made.execute(q, k, v, o, do, lse, *grads, None)
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))
    made.execute(q, k, v, o, do, lse, *grads, None, softmax_scale=0.5)
    other = nvfp4_attention_qat_backward(do, q, k, v, o, lse, is_causal=True, softmax_scale=0.5, dq_tensor=grads[0])
    assert other["dq_tensor"] is grads[0]
    assert torch.equal(grads[1], other["dk_tensor"])
    strided = [convert(arrange(x, (3, 1, 2, 0), pad=3), "torch") for x in given[:5]]
    again = nvfp4_attention_qat_backward(*strided, lse, is_causal=True)
    assert all(torch.equal(a, b) for a, b in zip(again, wanted, strict=True))


_X, _L = np.ones((1, 2, 4, 32), np.float32), np.zeros((1, 2, 4), np.float32)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"q_tensor": _X[0]}, ValueError, "q_tensor: got shape"),
        ({"k_tensor": _X[:, :1]}, ValueError, "k_tensor: got"),
        ({"v_tensor": _X[..., :16]}, ValueError, "v_tensor: got"),
        ({"do_tensor": _X[:, :, :3]}, ValueError, "do_tensor: got"),
        ({"high_precision_o_tensor": _X.astype(np.float16)}, TypeError, "high_precision_o_tensor: got float16"),
        ({"lse_tensor": _L.astype(np.float64)}, TypeError, "lse_tensor: got float64"),
        ({"lse_tensor": _L[0]}, ValueError, "lse_tensor: got"),
        ({"is_causal": 1}, TypeError, "is_causal: got 1"),
        (
            {"is_causal": True, "k_tensor": _X[:, :, :2], "v_tensor": _X[:, :, :2]},
            ValueError,
            "is_causal: got True with 4",
        ),
        ({"softmax_scale": 0.0}, ValueError, "softmax_scale: got 0.0"),
        ({"head_chunk": 3}, ValueError, "head_chunk: got 3, wanted 0, or a divisor of 2 heads"),
        ({"head_chunk": 1, "backend": "triton"}, ValueError, "head_chunk: got 1, wanted 0"),
        ({"workspace_limit_bytes": -1}, ValueError, "workspace_limit_bytes: got -1"),
    ],
)
def test_refusals(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    good = dict.fromkeys(("do_tensor", "q_tensor", "k_tensor", "v_tensor", "high_precision_o_tensor"), _X)
    with pytest.raises(kind, match=message):
        nvfp4_attention_qat_backward(**{**good, "lse_tensor": _L, **change})
