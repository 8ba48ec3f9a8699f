"""The gated MLP: against float64 under autograd, by finite differences, in every framework, at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnn
from cudnn_fe import gemm
from cudnn_fe.core.dtypes import dtype
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists here, which the type checker cannot count.
forward: Any = gemm.swiglu_mlp_forward
backward: Any = gemm.swiglu_mlp_backward
HIDDEN, INNER = 24, 40


def operands(kind: str, lead: tuple[int, ...] = (2, 7)) -> list[Any]:
    weights = [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
    shapes = [(*lead, HIDDEN), *weights]
    return [normal(s, kind, seed=i, scale=1.0 if i == 0 else s[1] ** -0.5) for i, s in enumerate(shapes)]


def exact(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    gate = x @ w_gate.T
    return (gate * torch.sigmoid(gate) * (x @ w_up.T)) @ w_down.T


def tolerance(kind: str, roundings: int) -> float:
    return roundings * dtype(kind).unit_roundoff + 4 * (2.0**-53 if kind == "float64" else 2.0**-24) * INNER**0.5


@pytest.mark.parametrize("kind", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_values_and_gradients(framework: Framework, kind: str) -> None:
    if framework == "jax" and kind == "float64":
        pytest.skip("JAX keeps float64 to those who ask for it")
    given = operands(kind)
    leaves = [torch.from_numpy(to_float64(x).copy()).requires_grad_() for x in given]
    wanted = exact(*leaves)
    dout = normal(wanted.shape, kind, seed=9)
    wanted.backward(torch.from_numpy(to_float64(dout).copy()))
    arrays = [convert(x, framework) for x in given]
    out, gate, up = forward(*arrays)
    assert_close(out, wanted.detach(), tolerance(kind, 4))  # both projections, what they make, the result
    grads = backward(convert(dout, framework), *arrays, gate, up)
    for got, leaf, name in zip(grads, leaves, ("dx", "dw_gate", "dw_up", "dw_down"), strict=True):
        assert_close(got, leaf.grad, tolerance(kind, 6), name)


def test_torch_autograd_and_the_vendors_name() -> None:
    arrays = [convert(x, "torch") for x in operands("float32", (5,))]
    arrays[0].requires_grad_()
    arrays[2].requires_grad_()
    out = cudnn.gemm.ops.swiglu_mlp(*arrays)
    assert cudnn.gemm.swiglu_mlp is cudnn.gemm.ops.swiglu_mlp
    out.backward(torch.ones_like(out))
    plain = [x.detach() for x in arrays]
    _, gate, up = forward(*plain)
    expected = backward(torch.ones_like(out), *plain, gate, up)
    assert torch.equal(arrays[0].grad, expected["dx"])
    assert torch.equal(arrays[2].grad, expected["dw_up"])
    assert arrays[1].grad is None


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_on_a_gpu() -> None:
    """The definition on the GPU: a CPU's numbers, and the same bits again."""
    given = operands("bfloat16")
    here, there = ([convert(x, "torch", device) for x in given] for device in ("cpu", "cuda"))
    results = [forward(*x) for x in (here, there, there)]
    grads = [backward(x[0], *arrays, *tuple(x)[1:]) for x, arrays in zip(results, (here, there, there), strict=True)]
    for wanted, got, again in zip(
        *([*result, *grad] for result, grad in zip(results, grads, strict=True)), strict=True
    ):
        assert got.is_cuda
        assert torch.equal(got, again)
        assert_close(got, to_float64(wanted), 2.0**-8)


def test_jax_under_jit_and_grad() -> None:
    import jax

    arrays = [convert(x, "jax") for x in operands("float32", (3,))]
    loss = jax.jit(lambda *a: forward(*a)["out"].sum())
    grads = jax.grad(loss, argnums=(0, 1, 2, 3))(*arrays)
    out, gate, up = forward(*arrays)
    for got, wanted in zip(grads, backward(out * 0 + 1, *arrays, gate, up), strict=True):
        assert_close(got, to_float64(wanted), 2.0**-20)


def test_finite_differences() -> None:
    given = operands("float64", (3,))
    direction = [normal(x.shape, "float64", seed=20 + i) for i, x in enumerate(given)]
    out, gate, up = forward(*given)
    grads = backward(np.ones_like(out), *given, gate, up)
    step = 1e-6
    ahead, behind = (
        forward(*[x + s * d for x, d in zip(given, direction, strict=True)])["out"].sum() for s in (step, -step)
    )
    slope = sum(float((g * d).sum()) for g, d in zip(grads, direction, strict=True))
    assert slope == pytest.approx((ahead - behind) / (2 * step), rel=1e-6)


@pytest.mark.parametrize(("lead", "inner"), [((0,), 40), ((2, 0, 3), 40), ((), 40), ((4,), 0)])
def test_no_rows_and_empty_sums(lead: tuple[int, ...], inner: int) -> None:
    x = normal((*lead, HIDDEN))
    w_gate, w_up, w_down = normal((inner, HIDDEN)), normal((inner, HIDDEN)), normal((HIDDEN, inner))
    out, gate, up = forward(x, w_gate, w_up, w_down)
    assert out.shape == x.shape
    assert gate.shape == up.shape == (*lead, inner)
    assert inner or not out.any()
    grads = backward(np.ones_like(out), x, w_gate, w_up, w_down, gate, up)
    assert x.size or not any(g.any() for g in grads)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({0: np.zeros((3, HIDDEN), np.int32)}, TypeError, "x: got int32"),
        ({0: np.zeros((), np.float32)}, ValueError, r"x: got \(\)"),
        ({1: np.zeros((INNER, 8), np.float32)}, ValueError, "w_gate: got"),
        ({2: np.zeros((8, HIDDEN), np.float32)}, ValueError, "w_up: got"),
        ({3: np.zeros((INNER, HIDDEN), np.float32)}, ValueError, "w_down: got"),
        ({3: np.zeros((HIDDEN, INNER), np.float16)}, TypeError, "w_down: got float16, wanted float32, the dtype of x"),
    ],
)
def test_refusals(change: dict[int, Any], kind: type[Exception], message: str) -> None:
    given = [change.get(i, x) for i, x in enumerate(operands("float32", (3,)))]
    with pytest.raises(kind, match=message):
        forward(*given)


def test_refusals_of_the_backward() -> None:
    given = operands("float32", (3,))
    out, gate, up = forward(*given)
    for change, message in (
        ((out[:2], gate, up), "dout: got"),
        ((out, gate[:, :3], up), "gate: got"),
        ((out, gate, up[:1]), "up: got"),
    ):
        with pytest.raises(ValueError, match=message):
            backward(change[0], *given, *change[1:])
    with pytest.raises(TypeError, match="dout: got float64, wanted float32"):
        backward(out.astype(np.float64), *given, gate, up)
