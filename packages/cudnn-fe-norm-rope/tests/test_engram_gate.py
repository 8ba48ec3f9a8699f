"""The engram gate against float64, its gradients against torch's autograd of the definition, and its rules."""

# Operands are spread from made cases, whose number a type checker cannot know.
# mypy: disable-error-code="call-arg"

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import cudnn
from cudnn_fe.core.errors import OptionError, ShapeError, StrideError
from cudnn_fe.norm_rope import (
    engram_gate_saved_backward,
    engram_gate_saved_forward,
    engram_gate_saved_jax_backward,
    engram_gate_saved_jax_forward,
)

D = 5120


def tensors(tokens: int, scale: float = 1.0) -> Any:
    torch.manual_seed(tokens)
    x, kv = ((torch.randn(tokens, n) * scale).to(torch.bfloat16) for n in (4 * D, 5 * D))
    mask = torch.arange(tokens) % 3 != 1
    return x.view(tokens, 4, D), kv, torch.randn(4, D), mask


def definition(x: Any, kv: Any, weight: Any, mask: Any, eps: float = 1e-20) -> Any:
    """The page's formulas, differentiable, in whatever precision the arguments have."""
    keys, value = kv.view(-1, 5, D).split([4, 1], dim=1)
    rx, rk = (torch.rsqrt(t.square().mean(-1) + eps) for t in (x, keys))
    dot = (x * weight * keys).sum(-1) * rx * rk * D**-0.5
    gate = torch.sigmoid(torch.sign(dot) * dot.abs().clamp_min(1e-6).sqrt()) * mask[:, None]
    return x + gate[..., None] * value, torch.stack((gate, dot, rx, rk), -1)


# The peer's low-norm case as well: eps must not matter there.
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_forward_against_float64(scale: float) -> None:
    x, kv, weight, mask = tensors(5, scale)
    out, saved = engram_gate_saved_forward(x, kv, weight, mask)
    wanted, scalars = definition(x.double(), kv.double(), weight.double(), mask)
    error = (out.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert error <= 2.0**-8 / 3**0.5  # one rounding to bfloat16, uniform in half a unit
    # Sums of 5120 products of both signs in float32; a gate's root doubles the digits that a small dot lost.
    torch.testing.assert_close(saved.double(), scalars, rtol=1e-4, atol=1e-4)
    assert torch.equal(out[~mask], x[~mask])
    assert not saved[~mask, :, 0].any()


def test_gradients_against_autograd_in_float64() -> None:
    x, kv, weight, mask = tensors(6)
    _, saved = engram_gate_saved_forward(x, kv, weight, mask)
    grad_out = torch.randn(6, 4, D).to(torch.bfloat16)
    wide: Any = [t.double().requires_grad_() for t in (x, kv, weight)]
    definition(*wide, mask)[0].backward(grad_out.double())
    got = engram_gate_saved_backward(x, kv, weight, saved, grad_out)
    for grad, source, unit in zip(got, wide, (2.0**-8, 2.0**-8, 1e-4), strict=True):
        wanted = source.grad
        assert ((grad.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()) <= unit
    assert torch.equal(got["grad_x"][~mask], grad_out[~mask])
    assert not got["grad_kv"][~mask].any()


def test_a_masked_token_may_hold_anything() -> None:
    x, kv, weight, mask = tensors(3)
    kv[~mask] = float("nan")
    out, saved = engram_gate_saved_forward(x, kv, weight, mask)
    assert torch.equal(out[~mask], x[~mask])
    grad_out = torch.randn(3, 4, D).to(torch.bfloat16)
    grads = engram_gate_saved_backward(x, kv, weight, saved, grad_out)
    assert torch.equal(grads["grad_x"][~mask], grad_out[~mask])
    assert torch.isfinite(grads["grad_weight"]).all()


def test_nan_stays_in_its_row() -> None:
    x, kv, weight, _ = tensors(2)
    x[0, 2, 7] = float("nan")
    out, _ = engram_gate_saved_forward(x, kv, weight, torch.ones(2, dtype=torch.bool))
    assert torch.isnan(out).all(-1).tolist() == [[False, False, True, False], [False] * 4]
    assert torch.isnan(out).any(-1).tolist() == [[False, False, True, False], [False] * 4]


def test_the_slope_starts_at_the_least_dot() -> None:
    """From |dot| = 1e-6 in float32 on, of either sign; below, the root that the gate took does not depend on it."""
    x, kv, weight, _ = tensors(1)
    least = torch.tensor(1e-6)
    below = torch.nextafter(least, torch.tensor(0.0))
    saved = torch.ones(1, 4, 4) / 2
    saved[0, :, 1] = torch.stack([least, below, -least, -below])
    grad_out = torch.randn(1, 4, D).to(torch.bfloat16)
    operands = [jnp.asarray(t.float().numpy()).astype(str(t.dtype).removeprefix("torch.")) for t in (x, kv, weight)]
    others = [jnp.asarray(saved.numpy()), jnp.asarray(grad_out.float().numpy()).astype(jnp.bfloat16)]
    for grads in (
        engram_gate_saved_backward(x, kv, weight, saved, grad_out).values(),
        engram_gate_saved_jax_backward(*operands, *others),
    ):
        of_weight = torch.tensor(jnp.asarray(list(grads)[2]).tolist())
        assert of_weight.any(1).tolist() == [True, False, True, False]


def test_rows_of_zeros() -> None:
    """The mean square is eps alone, the dot +0, whose root is that of the least."""
    x, kv, weight, _ = tensors(1)
    out, saved = engram_gate_saved_forward(x * 0, kv, weight, torch.ones(1, dtype=torch.bool), eps=1e-20)
    gate = torch.sigmoid(torch.tensor(1e-6).sqrt())
    torch.testing.assert_close(saved[0, :, 0], gate.expand(4), rtol=2.0**-22, atol=0)
    torch.testing.assert_close(saved[0, :, 2], torch.full((4,), 1e10), rtol=2.0**-22, atol=0)
    assert torch.equal(out, (saved[..., :1] * kv[:, None, 4 * D :].float()).to(torch.bfloat16))


def test_autograd_is_the_explicit_backward() -> None:
    x, kv, weight, mask = tensors(4)
    leaves: Any = [t.clone().requires_grad_() for t in (x, kv, weight)]
    out, saved = engram_gate_saved_forward(*leaves, mask)
    grad_out = torch.randn(4, 4, D).to(torch.bfloat16)
    out.backward(grad_out)
    wanted = engram_gate_saved_backward(x, kv, weight, saved.detach(), grad_out)
    assert all(torch.equal(leaf.grad, grad) for leaf, grad in zip(leaves, wanted, strict=True))


def test_jax_grad() -> None:
    x, kv, weight, mask = tensors(2)
    arrays = [jnp.asarray(t.float().numpy()) for t in (x, kv, weight)]
    arrays = [arrays[0].astype(jnp.bfloat16), arrays[1].astype(jnp.bfloat16), arrays[2]]

    def loss(x: Any, kv: Any, weight: Any) -> Any:
        return engram_gate_saved_jax_forward(x, kv, weight, jnp.asarray(mask.numpy()))[0].sum().astype(jnp.float32)

    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*arrays)
    _, saved = engram_gate_saved_forward(x, kv, weight, mask)
    wanted = engram_gate_saved_backward(x, kv, weight, saved, torch.ones_like(x))
    for got, grad in zip(grads, wanted, strict=True):
        difference = torch.tensor(jnp.asarray(got, jnp.float32).tolist()) - grad.float()
        assert difference.norm() / grad.float().norm() <= 2.0**-8


def test_refusals() -> None:
    x, kv, weight, mask = tensors(2)
    with pytest.raises(ShapeError, match="kv"):
        engram_gate_saved_forward(x, kv[:, :D], weight, mask)
    with pytest.raises(StrideError, match="weight"):
        engram_gate_saved_forward(x, kv, torch.randn(D, 4).t(), mask)
    with pytest.raises(OptionError, match="eps"):
        engram_gate_saved_forward(x, kv, weight, mask, eps=0.0)
    with pytest.raises(ValueError, match="token_mask"):
        engram_gate_saved_forward(x, kv, weight, mask.to(torch.uint8))


def test_classes() -> None:
    x, kv, weight, mask = tensors(2)
    forward = cudnn.EngramGateSavedForward(x, kv, weight, mask)
    forward.compile()
    out, saved = torch.full_like(x, float("nan")), torch.full((2, 4, 4), float("nan"))
    result = forward.execute(x, kv, weight, mask, out, saved)
    assert result["out"] is out
    assert torch.equal(out, engram_gate_saved_forward(x, kv, weight, mask)["out"])
    backward = cudnn.EngramGateSavedBackward(x, kv, weight, saved, x)
    backward.compile()
    grads = [torch.full_like(t, float("nan")) for t in (x, kv, weight)]
    with pytest.raises(ValueError, match="workspace"):
        backward.execute(x, kv, weight, saved, x, *grads, None)
    with pytest.raises(ValueError, match="workspace"):
        backward.execute(x, kv, weight, saved, x, *grads, torch.empty(64, dtype=torch.uint8))
    backward.execute(x, kv, weight, saved, x, *grads, backward.allocate_workspace())
    wanted = engram_gate_saved_backward(x, kv, weight, saved, x)
    assert all(torch.equal(got, grad) for got, grad in zip(grads, wanted, strict=True))
