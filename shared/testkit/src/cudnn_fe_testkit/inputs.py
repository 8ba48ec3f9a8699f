"""Operands for tests: random values that the element type holds exactly, laid out as asked, in any framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np

from cudnn_fe.core.codecs import packed_pairs
from cudnn_fe.core.dtypes import dtype

__all__ = ["Framework", "arrange", "convert", "normal", "poison"]

Framework = Literal["torch", "jax", "numpy"]


def normal(shape: Sequence[int], kind: Any = "float32", *, seed: int = 0, scale: float = 1.0) -> np.ndarray[Any, Any]:
    """Standard normal values times ``scale``, rounded to ``kind``: a row-major NumPy array (ml_dtypes where needed)."""
    values = np.random.default_rng(seed).standard_normal(tuple(shape), dtype=np.float32) * np.float32(scale)
    name = dtype(kind).name
    return values.astype(getattr(ml_dtypes, name, name))


def arrange(x: np.ndarray[Any, Any], order: Sequence[int] | None = None, *, pad: int = 0) -> np.ndarray[Any, Any]:
    """The same values with another memory layout; what lies between rows is NaN where the type has one.

    Args:
        x: The values.
        order: Dims from the innermost to the outermost in memory; row-major when None.
        pad: Elements left between rows of the innermost dim.
    """
    dims = tuple(order) if order is not None else tuple(reversed(range(x.ndim)))
    outermost_first = tuple(reversed(dims))
    shape = [x.shape[dim] for dim in outermost_first]
    stored = [*shape[:-1], shape[-1] + pad]
    memory = np.full(stored, np.nan if np.dtype(x.dtype).kind in "fV" else 0, dtype=x.dtype)
    view = memory[..., : shape[-1]]
    view[...] = x.transpose(outermost_first)
    return view.transpose(np.argsort(outermost_first))


def convert(x: np.ndarray[Any, Any], framework: Framework, device: str = "cpu") -> Any:
    """The array in a framework, values and (but for JAX, which knows one, and FP4 of torch) strides unchanged.

    Args:
        x: A NumPy array, of an ml_dtypes type too.
        framework: ``"torch"``, ``"jax"`` or ``"numpy"``.
        device: A torch device; ignored by the others.
    """
    if framework == "numpy":
        return x
    if framework == "jax":
        import jax.numpy as jnp

        return jnp.asarray(x)
    import torch

    kind = dtype(x.dtype)
    if kind.name == "float4_e2m1fn":  # torch's holds two elements a byte
        return torch.from_numpy(packed_pairs(x)).to(device).view(getattr(torch, kind.torch))
    carrier = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[x.dtype.itemsize]
    # torch takes NumPy's own types only, and would copy a padded layout compactly to the device.
    strides = tuple(step // x.dtype.itemsize for step in x.strides)
    wanted = getattr(torch, kind.torch)
    host = torch.from_numpy(x.view(carrier)).view(wanted)
    if device == "cpu":
        return host
    return torch.empty_strided(x.shape, strides, dtype=wanted, device=device).copy_(host)


def poison(x: Any) -> Any:
    """Fills a torch tensor or NumPy array in place with NaN, or all-ones bytes for integers, and returns it."""
    if hasattr(x, "fill_"):
        import torch

        if x.dtype.is_floating_point:
            return x.fill_(float("nan"))
        return x.fill_(-1 if x.dtype != torch.uint8 else 255)
    x[...] = np.nan if np.dtype(x.dtype).kind in "fV" else np.iinfo(x.dtype).max
    return x
