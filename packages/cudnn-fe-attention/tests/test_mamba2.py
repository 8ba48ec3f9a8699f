"""Mamba-2's layer: against the recurrence in float64 under autograd, by finite differences, in every framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnn.linear_attention as vendor
from cudnn_fe import attention
from cudnn_fe.core.dtypes import dtype
from cudnn_fe_testkit.attention import double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from tables here, which the type checker cannot count.
mamba2: Any = vendor.mamba2
forward: Any = attention.mamba2_forward
backward: Any = attention.mamba2_backward

NAMES = ("x", "dt", "A", "B", "C", "D", "dt_bias", "z", "initial_state")
GRADS = ("dx", "ddt", "dA", "dB", "dC", "dD", "d_dt_bias", "dz", "d_initial_state")
BATCH, LENGTH, HEADS, GROUPS, P, N = 2, 11, 4, 2, 6, 5


def operands(kind: str = "float32", length: int = LENGTH, absent: tuple[str, ...] = ()) -> dict[str, Any]:
    shapes: dict[str, tuple[int, ...]] = {
        "x": (BATCH, length, HEADS, P),
        "dt": (BATCH, length, HEADS),
        "A": (HEADS,),
        "B": (BATCH, length, GROUPS, N),
        "C": (BATCH, length, GROUPS, N),
        "D": (HEADS,),
        "dt_bias": (HEADS,),
        "z": (BATCH, length, HEADS, P),
        "initial_state": (BATCH, HEADS, P, N),
    }
    wide = "float64" if kind == "float64" else "float32"
    kinds = {n: wide if n in ("A", "D", "dt_bias", "initial_state") else kind for n in NAMES}
    made = {n: normal(s, kinds[n], seed=i) for i, (n, s) in enumerate(shapes.items())}
    made["A"] = -np.exp(made["A"])
    return {n: None if n in absent else x for n, x in made.items()}


def exact(t: dict[str, Any]) -> tuple[Any, Any]:
    """A token and a head at a time."""
    step = torch.nn.functional.softplus(t["dt"] + (0 if t["dt_bias"] is None else t["dt_bias"]))
    outs, finals = [], []
    for b in range(BATCH):
        rows = []
        states = list(
            torch.zeros(HEADS, P, N, dtype=torch.float64) if t["initial_state"] is None else t["initial_state"][b]
        )
        for i in range(t["x"].shape[1]):
            heads = []
            for h in range(HEADS):
                x, group = t["x"][b, i, h], h * GROUPS // HEADS
                states[h] = (t["A"][h] * step[b, i, h]).exp() * states[h] + step[b, i, h] * torch.outer(
                    x, t["B"][b, i, group]
                )
                y = states[h] @ t["C"][b, i, group]
                y = y if t["D"] is None else y + t["D"][h] * x
                heads.append(y if t["z"] is None else y * torch.nn.functional.silu(t["z"][b, i, h]))
            rows.append(torch.stack(heads))
        outs.append(torch.stack(rows))
        finals.append(torch.stack(states))
    return torch.stack(outs), torch.stack(finals)


def tolerance(kind: str) -> float:
    """One rounding of the result, and float32 states carried over the tokens."""
    unit = 2.0**-53 if kind == "float64" else 2.0**-24
    return 2 * dtype(kind).unit_roundoff + 32 * unit * LENGTH


@pytest.mark.parametrize("absent", [(), ("D", "dt_bias", "z", "initial_state")])
@pytest.mark.parametrize(
    ("framework", "kind"), [("numpy", "float64"), ("numpy", "float16"), ("torch", "bfloat16"), ("jax", "float32")]
)
def test_values_and_gradients(framework: Framework, kind: str, absent: tuple[str, ...]) -> None:
    given = operands(kind, absent=absent)
    leaves = {n: None if x is None else double(x).requires_grad_() for n, x in given.items()}
    out, final = exact(leaves)
    dout, by_final = (
        normal(out.shape, kind, seed=20),
        normal(final.shape, "float64" if kind == "float64" else "float32", seed=21),
    )
    ((out * double(dout)).sum() + (final * double(by_final)).sum()).backward()
    arrays = [None if given[n] is None else convert(given[n], framework) for n in NAMES]
    got = forward(*arrays, return_final_state=True)
    assert_close(got["out"], out.detach(), tolerance(kind))
    assert_close(got["final_state"], final.detach(), tolerance(kind))
    grads = backward(convert(dout, framework), *arrays, d_final_state=convert(by_final, framework))
    for name, grad in zip(NAMES, GRADS, strict=True):
        leaf = leaves[name]
        if leaf is None:
            assert grads[grad] is None
        else:
            assert leaf.grad is not None
            assert_close(grads[grad], leaf.grad, 2 * tolerance(kind), grad)


def test_torch_autograd_jit_and_the_vendors_name() -> None:
    import jax

    given = operands()
    leaves = [convert(given[n], "torch").requires_grad_() for n in NAMES]
    out, _ = mamba2(*leaves, return_final_state=True)
    out.sum().backward()
    plain = [x.detach() for x in leaves]
    assert torch.equal(mamba2(*plain), out.detach())
    wanted = backward(torch.ones_like(out), *plain)
    for leaf, name in zip(leaves, GRADS, strict=True):
        assert torch.equal(leaf.grad, wanted[name])
    arrays = [convert(given[n], "jax") for n in NAMES]
    found = jax.grad(jax.jit(lambda *a: forward(*a)["out"].sum()), argnums=tuple(range(9)))(*arrays)
    for grad, name in zip(found, GRADS, strict=True):
        assert_close(grad, to_float64(wanted[name]), 2.0**-18, name)
    with pytest.raises(ValueError, match="intermediate_dtype: got 'float16'"):
        mamba2(*plain, intermediate_dtype="float16")


def test_finite_differences() -> None:
    given = operands("float64", 4)
    direction = {n: normal(x.shape, "float64", seed=40 + i) for i, (n, x) in enumerate(given.items())}
    out = forward(**given)["out"]
    grads = backward(np.ones_like(out), *(given[n] for n in NAMES))
    step = 1e-6
    ahead, behind = (forward(**{n: x + s * direction[n] for n, x in given.items()})["out"].sum() for s in (step, -step))
    slope = sum(float((grads[g] * direction[n]).sum()) for n, g in zip(NAMES, GRADS, strict=True))
    assert slope == pytest.approx((ahead - behind) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("length", [0, 1])
def test_short_sequences(length: int) -> None:
    given = operands(length=length)
    out, final = forward(**given, return_final_state=True)
    assert out.shape == given["x"].shape
    if length == 0:
        np.testing.assert_array_equal(final, given["initial_state"])
        grads = backward(out, *(given[n] for n in NAMES), d_final_state=final)
        np.testing.assert_array_equal(grads["d_initial_state"], final)
        assert not grads["dA"].any()
    assert forward(**given)["final_state"].shape == (0,)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"x": np.zeros((2, 11, 4), np.float32)}, ValueError, "x: got shape"),
        ({"x": np.zeros((2, 11, 4, 6), np.int32)}, TypeError, "x: got int32"),
        ({"dt": np.zeros((2, 11, 3), np.float32)}, ValueError, "dt: got"),
        ({"A": np.zeros(4, np.float16)}, TypeError, "A: got float16, wanted float32"),
        ({"B": np.zeros((2, 11, 3, 5), np.float32)}, ValueError, "B: got 3 groups, wanted a divisor of 4 heads"),
        ({"C": np.zeros((2, 11, 2, 4), np.float32)}, ValueError, "C: got"),
        ({"z": np.zeros((2, 11, 4, 6), np.float16)}, TypeError, "z: got float16"),
        ({"initial_state": np.zeros((2, 4, 5, 6), np.float32)}, ValueError, "initial_state: got"),
        ({"return_final_state": 1}, TypeError, "return_final_state: got 1"),
    ],
)
def test_refusals(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        forward(**{**operands(), **change})


def test_refusals_of_the_backward() -> None:
    given = [operands()[n] for n in NAMES]
    dout = np.ones_like(given[0])
    with pytest.raises(ValueError, match="dout: got"):
        backward(dout[:, :3], *given)
    with pytest.raises(TypeError, match="dout: got float16"):
        backward(dout.astype(np.float16), *given)
    with pytest.raises(ValueError, match="d_final_state: got"):
        backward(dout, *given, d_final_state=np.zeros((2, 4, 5, 6), np.float32))
    with pytest.raises(TypeError, match="d_final_state: got float16, wanted float32"):
        backward(dout, *given, d_final_state=np.zeros((2, 4, 6, 5), np.float16))
