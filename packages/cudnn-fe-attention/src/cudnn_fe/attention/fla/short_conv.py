"""One step of flash-linear-attention's short convolution, served by `causal_conv1d_update`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from cudnn_fe.attention.fla.calls import Path
from cudnn_fe.attention.fla.elsewhere import exported
from cudnn_fe.core.frameworks import torch_is_tracing

__all__ = ["last_path", "make_causal_conv1d_update", "refuse"]

_path = Path()
_WIDTH = 4


def last_path() -> str | None:
    """How the latest call went: ``"native"``, ``"fallback:<reason>"`` or ``"error:<type>"``; None before any."""
    return _path.last()


def refuse(module: Any, original: Any) -> str | None:
    """Why ``original`` is not flash-linear-attention's own function, or None."""
    own = getattr(original, "__wrapped__", original)
    if getattr(own, "__module__", None) != module.__name__ or hasattr(own, "__wrapped__"):
        return "causal_conv1d_update is not the module's own function"
    return None


def make_causal_conv1d_update(real_fn: Callable[..., Any]) -> Callable[..., Any]:
    """``causal_conv1d_update`` that serves what it can and hands the rest to ``real_fn``.

    Args:
        real_fn: The function of flash-linear-attention.

    Returns:
        A function with its signature and results.
    """

    @wraps(real_fn)
    def causal_conv1d_update(
        x: Any, cache: Any, residual: Any = None, weight: Any = None, bias: Any = None, activation: Any = None
    ) -> Any:
        reason = _refusal(x, cache, residual, weight, bias, activation)
        if reason is None:
            try:
                result = _native(x, cache, weight)
            except (ImportError, NotImplementedError) as error:
                reason = type(error).__name__
            except Exception as error:
                _path.latest = f"error:{type(error).__name__}"
                raise
            else:
                _path.latest = "native"
                return result
        _path.latest = f"fallback:{reason}"
        return real_fn(x, cache, residual, weight, bias, activation)

    return causal_conv1d_update


def _refusal(x: Any, cache: Any, residual: Any, weight: Any, bias: Any, activation: Any) -> str | None:
    """The first documented reason that keeps a call from being served, or None."""
    import torch  # the operands are its tensors

    if residual is not None:
        return "residual"
    if weight is None:
        return "weight"
    if bias is not None:
        return "bias"
    if activation not in ("silu", "swish"):
        return "activation"
    tensors = (x, cache, weight)
    if any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in tensors):
        return "tensor-subclass"
    if torch_is_tracing():
        return "compile"
    if any(t.dtype != torch.bfloat16 for t in tensors):
        return "non-bf16"
    if any(t.device.type not in ("cuda", "cpu") for t in tensors):
        return "non-cuda"
    if any(t.device != x.device for t in tensors):
        return "device"
    return _layout_refusal(x, cache, weight)


def _rows_of(x: Any, count: int) -> Any:
    """x as (N, D) without moving data, by whichever of its layouts fits, or None."""
    if x.ndim == 2:
        return x if x.shape[0] == count else None
    if x.ndim != 3:
        return None
    if x.shape[1] == 1 and x.shape[0] == count:
        return x[:, 0]
    return x[0] if x.shape[0] == 1 and x.shape[1] == count else None


def _layout_refusal(x: Any, cache: Any, weight: Any) -> str | None:
    import torch  # the operands are its tensors

    if not cache.is_contiguous() or not weight.is_contiguous() or x.stride(-1) != 1:
        return "noncontiguous"
    channels = x.shape[-1]
    rows = _rows_of(x, cache.shape[0]) if cache.ndim == 3 else None
    fits = cache.ndim == 3 and cache.shape[1:] == (channels, _WIDTH)
    if rows is None or not fits or weight.numel() != channels * _WIDTH or weight.shape[-1] != _WIDTH:
        return "shape"
    stride = rows.stride(0)
    if (stride > channels and stride % 8) or any(t.data_ptr() % 16 for t in (x, cache, weight)):
        return "alignment"
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, cache, weight)):
        return "autograd"
    return None


def _native(x: Any, cache: Any, weight: Any) -> tuple[Any, Any]:
    update = exported("ops.causal_conv1d_update", "cudnn-fe-conv")
    rows = _rows_of(x, cache.shape[0])
    return update(rows, cache, weight.reshape(-1, _WIDTH), activation="silu").reshape(x.shape), cache
