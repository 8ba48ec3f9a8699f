"""Ops in torch's eager autograd: the derivative rule is the op's own, and second derivatives raise."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from cudnn_fe.core.errors import NotYetSupportedError

if TYPE_CHECKING:
    from cudnn_fe.core.call import Options
    from cudnn_fe.core.torch import TorchOp

__all__ = ["apply_rule", "autocast_off", "differentiable", "transformed", "underivable"]

Tensors = tuple[torch.Tensor | None, ...]


def differentiable(
    runner: TorchOp, operands: Tensors, options: Options, scalars: tuple[float, ...], backend: str | None, stream: Any
) -> tuple[torch.Tensor, ...]:
    """Run an op that has a derivative rule, recording it."""
    assert runner.gradient is not None
    runner.gradient.check(t.dtype for t in operands if t is not None and t.requires_grad)
    return tuple(_Differentiable.apply(runner, options, scalars, backend, stream, *operands))


def transformed(
    runner: TorchOp, operands: Tensors, options: Options, scalars: tuple[float, ...], backend: str | None
) -> tuple[torch.Tensor, ...]:
    """`differentiable` inside torch.func's transforms, which want forward and bookkeeping apart."""
    assert runner.gradient is not None
    runner.gradient.check(t.dtype for t in operands if t is not None and t.requires_grad)
    return tuple(_Transformed.apply(runner, options, scalars, backend, *operands))


def underivable(name: str, results: tuple[Any, ...], sources: Tensors) -> tuple[Any, ...]:
    """``results``, whose derivative raises instead of being silently zero; None among them stays None."""
    given = [result for result in results if result is not None]
    if not given:
        return results
    marked = iter(_Underivable.apply(name, len(given), *given, *sources))
    return tuple(None if result is None else next(marked) for result in results)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, runner: TorchOp, options: Options, scalars: Any, backend: Any, stream: Any, *operands: Any
    ) -> Any:
        outputs = runner.eager(operands, options, scalars, backend, stream)
        rule = runner.gradient
        assert rule is not None
        ctx.save_for_backward(*rule.save(operands, outputs))
        ctx.set_materialize_grads(False)
        ctx.call = runner, options, scalars, backend, stream is not None, tuple(t.stride() for t in outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        runner, options, scalars, backend, side_stream, strides = ctx.call
        saved = ctx.saved_tensors
        if side_stream:
            # Autograd launches gradients on the stream that was current in the forward and orders the rest of the
            # graph around that one; the memory belongs to the stream that the forward was given.
            for tensor in saved:
                if tensor is not None and tensor.is_cuda:
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
        grads = apply_rule(runner, saved, cotangents, scalars, ctx.needs_input_grad[5:], backend, strides, options)
        return (None,) * 5 + grads


class _Transformed(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(runner: TorchOp, options: Options, scalars: Any, backend: Any, *operands: Any) -> Any:
        from cudnn_fe.core.torch_library import call_library  # it imports this module

        return call_library(runner.op, operands, options, scalars, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        runner, options, scalars, backend, *operands = inputs
        ctx.save_for_backward(*runner.gradient.save(tuple(operands), output))
        ctx.set_materialize_grads(False)
        ctx.call = runner, options, scalars, backend, tuple(t.stride() for t in output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        runner, options, scalars, backend, strides = ctx.call
        needed = tuple(ctx.needs_input_grad[4:])
        saved = ctx.saved_tensors
        return (None,) * 4 + apply_rule(runner, saved, cotangents, scalars, needed, backend, strides, options)


def apply_rule(
    runner: TorchOp,
    saved: Tensors,
    cotangents: Tensors,
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
    strides: tuple[tuple[int, ...], ...],
    options: Options,
) -> tuple[torch.Tensor | None, ...]:
    """The op's gradients; with ``create_graph=True`` they refuse to be differentiated once more.

    Autocast is off: the rule names the type of every step, and casting float32 ones would lose what it keeps.
    """
    rule = runner.gradient
    assert rule is not None
    if all(cotangent is None for cotangent in cotangents):
        return (None,) * len(needed)
    kind = next(t.device.type for t in saved if t is not None)
    with torch.no_grad(), autocast_off(kind):
        dense = tuple(map(_dense, cotangents, strides))
        grads = rule.pull_back(saved, dense, scalars, needed, backend, options)
    grads = tuple(grad if wanted else None for grad, wanted in zip(grads, needed, strict=True))
    if torch.is_grad_enabled():
        return underivable(f"the gradient of {runner.op.name}", grads, (*saved, *cotangents))
    return grads


def autocast_off(kind: str) -> AbstractContextManager[Any]:
    """No autocast on devices of ``kind``: definitions and derivative rules name the type of every step themselves."""
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):  # meta and the like have no autocast
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def _dense(cotangent: torch.Tensor | None, strides: tuple[int, ...]) -> torch.Tensor | None:
    """A gradient that kernels can read: autograd may hand over broadcast views (``sum().backward()``), which are
    written out in the layout of the output that they belong to."""
    if cotangent is None or any(s == 1 and n > 1 for s, n in zip(cotangent.stride(), cotangent.shape, strict=True)):
        return cotangent
    fresh = torch.empty_strided(cotangent.shape, strides, dtype=cotangent.dtype, device=cotangent.device)
    return fresh.copy_(cotangent)


class _Underivable(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, count: int, *tensors: Any) -> Any:
        del name
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise NotYetSupportedError(
            ctx.name,
            got="a request for its derivative",
            wanted="derivatives of ops that have a rule, taken once",
            remedy="detach the result, or differentiate the reference, which is made of the framework's own operations",
        )
