"""The gated MLP of flash-linear-attention, served by ``cudnn.gemm.ops.swiglu_mlp`` where its package is there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from cudnn_fe.attention.fla.calls import Path, served
from cudnn_fe.attention.fla.elsewhere import exported
from cudnn_fe.attention.fla.versions import fla_version
from cudnn_fe.core.frameworks import torch_is_tracing
from cudnn_fe.core.registry import find_op

__all__ = ["VERSION", "last_path", "make_gated_mlp_forward", "refuse", "replacement"]

VERSION = "0.5.2"  # the only release whose module is known in every detail that is checked here
_path = Path()
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def last_path() -> str | None:
    """How the latest call went: ``"native"``, ``"fallback:<reason>"`` or ``"error:<type>"``; None before any."""
    return _path.last()


def refuse(module: Any, original: Any) -> str | None:
    """Why ``original`` is not flash-linear-attention's own method, or None."""
    if getattr(original, "__qualname__", "") != "GatedMLP.forward" or original.__module__ != module.__name__:
        return "GatedMLP.forward is not the class's own method"
    if hasattr(original, "__wrapped__"):
        return "GatedMLP.forward is wrapped"
    return None if hasattr(module, "SwiGLULinear") else "the module has no SwiGLULinear"


def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
    """`make_gated_mlp_forward` for the classes beside ``original``."""
    module = sys.modules[original.__module__]
    return make_gated_mlp_forward(original, module.GatedMLP, module.SwiGLULinear)


def make_gated_mlp_forward(
    real_forward: Callable[..., Any], gated_mlp_cls: type, swiglu_linear_cls: type
) -> Callable[..., Any]:
    """``GatedMLP.forward`` that serves what it can and hands the rest to ``real_forward``.

    Args:
        real_forward: The method of flash-linear-attention.
        gated_mlp_cls: Its class; subclasses go on to the original.
        swiglu_linear_cls: The class of its fused last step.

    Returns:
        A method with its signature and result.
    """

    @wraps(real_forward)
    def forward(self: Any, x: Any, **kwargs: Any) -> Any:
        reason = _refusal(self, x, gated_mlp_cls, swiglu_linear_cls)
        if reason is None:
            # Said before the call: activation checkpointing ends a recomputation by an exception through here.
            _path.latest = "native"
            try:
                run = exported("gemm.ops.swiglu_mlp", "cudnn-fe-gemm")
                return run(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)
            except (ImportError, NotImplementedError) as error:
                reason = type(error).__name__
            except (RuntimeError, ValueError) as error:
                _path.latest = f"error:{type(error).__name__}"
                raise
        _path.latest = f"fallback:{reason}"
        return real_forward(self, x, **kwargs)

    return forward


def _hooked(module: Any) -> bool:
    return any(getattr(module, name, None) for name in _HOOKS)


def _globally_hooked() -> bool:
    from torch.nn.modules import module  # the caller's modules are torch's

    return any(getattr(module, f"_global{name}", None) for name in _HOOKS)


def _refusal(mlp: Any, x: Any, gated_mlp_cls: Any, swiglu_linear_cls: Any) -> str | None:
    """The first documented reason that keeps a call from being served, or None."""
    import torch  # the operands are its tensors

    if torch_is_tracing() or torch._C._get_tracing_state() is not None:
        return "compile"
    if torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") != torch.bfloat16:
        return "autocast"
    if fla_version() != VERSION:
        return "fla-version"
    if type(mlp) is not gated_mlp_cls or "forward" in vars(mlp):
        return "custom-gated-mlp"
    if _hooked(mlp) or _globally_hooked() or hasattr(mlp, "parametrizations"):
        return "hooks-or-parametrization"
    if mlp.hidden_act != "swish" or mlp.fuse_swiglu is not True:
        return "variant"
    projections = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    for part, kind in (*((p, torch.nn.Linear) for p in projections), (mlp.swiglu_linear, swiglu_linear_cls)):
        reason = _part_refusal(part, kind)
        if reason is not None:
            return reason
    if any(p.bias is not None for p in projections):
        return "bias"
    return _input_refusal(x) or _weights_refusal(projections, x)


def _part_refusal(part: Any, kind: type) -> str | None:
    if hasattr(part, "parametrizations"):
        return "parametrized"
    if type(part) is not kind:
        return "custom-module"
    if "forward" in vars(part):
        return "custom-forward"
    return "hooks" if _hooked(part) else None


def _input_refusal(x: Any) -> str | None:
    import torch  # the operands are its tensors

    if type(x) is not torch.Tensor:
        return "tensor-subclass"
    if x.dtype != torch.bfloat16:
        return "non-bf16"
    if x.device.type not in ("cuda", "cpu"):
        return "non-cuda"
    if x.ndim < 2 or x.numel() == 0 or not x.is_contiguous():
        return "shape-or-layout"
    if x._backward_hooks:
        return "hooks"
    op = find_op("swiglu_mlp_forward")
    return None if op is None else served(op, x)  # a package that is not installed says so when it is called


def _weights_refusal(projections: tuple[Any, ...], x: Any) -> str | None:
    import torch  # the operands are its tensors

    gate, up, down = projections
    inner, hidden = gate.weight.shape
    if hidden % 8 or inner % 8 or x.shape[-1] != hidden:
        return "shape"
    for part, shape in ((gate, (inner, hidden)), (up, (inner, hidden)), (down, (hidden, inner))):
        weight = part.weight
        for reason, bad in (
            ("tensor-subclass", type(weight) is not torch.nn.Parameter),
            ("non-bf16", weight.dtype != torch.bfloat16),
            ("nonlocal-device", weight.device != x.device),
            ("shape", tuple(weight.shape) != shape),
            ("noncontiguous", not weight.is_contiguous()),
            ("nonlocal-parameter", part._parameters.get("weight") is not weight),
            ("hooks", bool(weight._backward_hooks)),
        ):
            if bad:
                return reason
    return None
