"""The model in torch. Its two variants differ in one function: the first half of the MLP, or the experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from cudnn._cli.demo.config import BALANCE, DemoConfig
from cudnn._cli.demo.torch_mixture import experts_by_op, experts_by_torch, mixture
from cudnn._cli.demo.trainer import ADAM_BETAS, ADAM_EPSILON, Gradients, Routing
from cudnn._cli.demo.weights import Layer, MixtureLayer, Weights, flatten, unflatten
from cudnn_fe import gemm

__all__ = ["TorchTrainer"]


def _gated_by_op(x: Tensor, up_gate: Tensor) -> Tensor:
    """SwiGLU of ``x @ up_gate.T`` through this project's op: (rows, width), (2 * hidden, width) to (rows, hidden)."""
    result = gemm.gemm_swiglu_forward(x[:, :, None], up_gate[:, :, None], c_dtype=torch.bfloat16)
    activated: Tensor = result["c_tensor"]
    return activated[:, :, 0]


def _gated_by_torch(x: Tensor, up_gate: Tensor) -> Tensor:
    """The same in plain torch ops, rounded to bfloat16 at the same place."""
    value, gate = (x @ up_gate.T).float().view(x.shape[0], -1, 2, 32).unbind(2)
    activated: Tensor = value * F.silu(gate)
    return activated.flatten(1).to(torch.bfloat16)


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), gain, eps=1e-6)


@dataclass(frozen=True, slots=True)
class _Output:
    """Logits; what spreads bytes over experts, summed over the blocks; the experts of each byte, block by block."""

    logits: Tensor
    balance: Tensor
    routing: tuple[Tensor, ...]


def _forward(
    weights: Weights[Tensor],
    tokens: Tensor,
    config: DemoConfig,
    through_op: bool,
    given: tuple[Tensor, ...] | None = None,
) -> _Output:
    batch, context = tokens.shape
    compute = getattr(torch, config.compute_dtype)

    def linear(x: Tensor, weight: Tensor) -> Tensor:
        return x.to(compute) @ weight.to(compute).T

    def attention(x: Tensor, layer: Layer[Tensor] | MixtureLayer[Tensor]) -> Tensor:
        projected = linear(x, layer.query_key_value).view(batch, context, 3, config.heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return linear(mixed.transpose(1, 2).reshape(batch * context, -1), layer.attention_out)

    gated, experts = (_gated_by_op, experts_by_op) if through_op else (_gated_by_torch, experts_by_torch)
    before = F.pad(tokens[:, :-1], (1, 0))
    x = (weights.embedding[tokens] + weights.previous[before] + weights.position[:context]).flatten(0, 1)
    balance, routing = x.new_zeros(()), []
    for index, layer in enumerate(weights.layers):
        x = x + attention(_norm(x, layer.attention_norm), layer).float()
        inner = _norm(x, layer.mlp_norm)
        if isinstance(layer, MixtureLayer):
            y, loss, chosen = mixture(inner, layer, compute, experts, None if given is None else given[index])
            balance = balance + loss
            routing.append(chosen)
        else:
            y = linear(gated(inner.to(compute), layer.up_gate.to(compute)), layer.down).float()
        x = x + y
    logits = linear(_norm(x, weights.final_norm), weights.embedding).float()
    return _Output(logits, balance, tuple(routing))


class TorchTrainer:
    """Implements `Trainer` with torch's autograd and Adam."""

    def __init__(
        self, config: DemoConfig, initial: Weights[NDArray[np.float32]], device: str, *, through_op: bool
    ) -> None:
        self._config, self._device, self._through_op = config, torch.device(device), through_op
        leaves = [torch.tensor(array, device=device, requires_grad=True) for array in flatten(initial)]
        self._leaves, self._weights = leaves, unflatten(leaves, self._config)
        self._moments = [(torch.zeros_like(leaf), torch.zeros_like(leaf)) for leaf in self._leaves]
        self._steps = 0

    def _losses(
        self, weights: Weights[Tensor], tokens: NDArray[np.int32], routing: Routing | None = None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Nats per byte, what is minimised, and the routing."""
        on_device = torch.from_numpy(tokens).to(self._device).long()
        given = tuple(torch.from_numpy(x).to(self._device).long() for x in routing) if routing else None
        out = _forward(weights, on_device[:, :-1], self._config, self._through_op, given)
        loss = F.cross_entropy(out.logits, on_device[:, 1:].flatten())
        return loss, loss + BALANCE * out.balance, out.routing

    def weights(self) -> Weights[NDArray[np.float32]]:
        """A copy of the present weights."""
        return unflatten([leaf.detach().cpu().numpy().copy() for leaf in self._leaves], self._config)

    def gradients(
        self, weights: Weights[NDArray[np.float32]], tokens: NDArray[np.int32], routing: Routing | None = None
    ) -> Gradients:
        """Loss and gradients of a batch at ``weights``; changes nothing."""
        leaves = [torch.tensor(array, device=self._device, requires_grad=True) for array in flatten(weights)]
        loss, total, used = self._losses(unflatten(leaves, self._config), tokens, routing)
        values = unflatten([value.cpu().numpy() for value in torch.autograd.grad(total, leaves)], self._config)
        return Gradients(loss.item(), values, tuple(x.int().cpu().numpy() for x in used))

    def step(self, tokens: NDArray[np.int32], rate: float) -> float:
        """One Adam step; returns the loss before it, after the device has finished."""
        loss, total, _ = self._losses(self._weights, tokens)
        self._adam(torch.autograd.grad(total, self._leaves), rate)
        value = loss.item()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return value

    @torch.no_grad()
    def _adam(self, gradients: tuple[Tensor, ...], rate: float) -> None:
        """Written out: torch.optim imports torch's compiler, which takes seconds."""
        self._steps += 1
        beta1, beta2 = ADAM_BETAS
        for leaf, gradient, (first, second) in zip(self._leaves, gradients, self._moments, strict=True):
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            scale = (second / (1 - beta2**self._steps)).sqrt_().add_(ADAM_EPSILON)
            leaf.addcdiv_(first, scale, value=-rate / (1 - beta1**self._steps))

    def next_byte_logits(self, window: NDArray[np.int32], last: int) -> NDArray[np.float32]:
        """(256,) logits of the byte after position ``last``."""
        with torch.no_grad():
            on_device = torch.from_numpy(window).to(self._device).long()[None]
            out = _forward(self._weights, on_device, self._config, self._through_op)
            logits: NDArray[np.float32] = out.logits[last].cpu().numpy()
        return logits
