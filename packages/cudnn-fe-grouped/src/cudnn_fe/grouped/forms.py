"""The documented forms of operands, brought to one without moving data: arrays and specs alike.

Rows come as (M, X) or (M, X, 1), per-row vectors as (M,) or (M, 1, 1), weights as (L, N, K), (L, K, N) or (N, K, L).
"""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.errors import FrameworkError, NotYetSupportedError, OptionError, ShapeError, StrideError
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = [
    "as_rows",
    "as_vector",
    "as_weights",
    "in_form",
    "is_narrow",
    "permuted",
    "refuse_discrete",
    "require_one_weight",
]


def permuted(x: Any, dims: tuple[int, ...]) -> Any:
    """``x`` with its dims in another order."""
    if hasattr(x, "permute"):  # a spec or a torch tensor
        return x.permute(dims)
    return x.transpose(dims)


def layout_of(x: Any, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides; of a torch tensor by means that torch.compile can trace."""
    if hasattr(x, "storage_offset"):
        return tuple(x.shape), tuple(x.stride())
    spec = spec_of(x, name)
    return spec.shape, spec.strides


def is_narrow(x: Any, name: str) -> bool:
    """Whether the elements have a byte or less, as those of the block-scaled modes."""
    kind = getattr(x, "dtype", None)
    width = getattr(kind, "itemsize", None)
    return bool((spec_of(x, name).dtype.itemsize if width is None else width) <= 1)


def _first(x: Any, kept: int) -> Any:
    """``x`` without the dims from ``kept`` on, whose extents are 1."""
    if isinstance(x, TensorSpec):
        return TensorSpec(x.shape[:kept], x.strides[:kept], x.dtype, x.device, x.alignment, x.name)
    return x[(..., *(0,) * (x.ndim - kept))]


def as_rows(x: Any, name: str) -> Any:
    """(M, X) of (M, X) or (M, X, 1)."""
    shape, _ = layout_of(x, name)
    if len(shape) == 3 and shape[2] == 1:
        return _first(x, 2)
    if len(shape) == 2:
        return x
    raise ShapeError(name, got=str(shape), wanted="(M, X) or (M, X, 1)", remedy="reshape the operand")


def as_vector(x: Any, name: str) -> Any:
    """(M,) of (M,) or (M, 1, 1)."""
    if x is None:
        return None
    shape, _ = layout_of(x, name)
    if len(shape) == 3 and shape[1:] == (1, 1):
        return _first(x, 1)
    if len(shape) == 1:
        return x
    raise ShapeError(name, got=str(shape), wanted="(M,) or (M, 1, 1)", remedy="reshape the operand")


def in_form(x: Any, rank: int) -> Any:
    """A result with unit dims added up to ``rank``, as the operand that decides had."""
    return x if x is None or x.ndim >= rank else x[(..., *(None,) * (rank - x.ndim))]


def as_weights(x: Any, b_major: Any, *, n_major: bool) -> Any:
    """(L, N, K) of the weights, whatever their form; ``n_major`` says whether (L, K, N) is served."""
    if b_major not in ("k", "n"):
        raise OptionError("b_major", got=repr(b_major), wanted='"k" or "n"', remedy="name the contiguous dim")
    shape, strides = layout_of(x, "b_tensor")
    if len(shape) != 3:
        raise ShapeError("b_tensor", got=str(shape), wanted="(L, N, K) or (N, K, L)", remedy="stack the weights")
    outer, middle, inner = strides
    canonical = _is_jax(x) or 0 in shape or (inner == 1 and middle != 1 and outer != 1)
    if b_major == "n" and not (canonical and n_major):
        raise OptionError(
            "b_major",
            got='"n"',
            wanted='"k"' + (", or contiguous (L, K, N) weights" if n_major else ""),
            remedy="pass contiguous (L, N, K) weights",
        )
    if canonical:
        return permuted(x, (0, 2, 1)) if b_major == "n" else x
    n, k, _ = shape
    expected = (k, 1, n * k)
    if any(s != e for s, e, extent in zip(strides, expected, shape, strict=True) if extent > 1):
        raise StrideError(
            "b_tensor",
            got=f"strides {strides} for shape {shape}",
            wanted=f"{expected} for (N, K, L), or contiguous (L, N, K)",
            remedy="allocate (L, N, K), and pass it as it is or permuted to (N, K, L)",
        )
    return permuted(x, (2, 0, 1))


def _is_jax(x: Any) -> bool:
    if hasattr(x, "storage_offset"):
        return False
    try:
        return framework_of(x) == "jax"
    except FrameworkError:
        return False


def require_one_weight(b_tensor: Any, b_ptrs: Any, n: Any, b_dtype: Any) -> None:
    """Raises OptionError unless exactly one of dense and discrete weights is given, with what belongs to it."""
    if (b_tensor is None) == (b_ptrs is None):
        raise OptionError(
            "b_tensor, b_ptrs",
            got="neither" if b_tensor is None else "both",
            wanted="one of the two",
            remedy="pass dense weights as b_tensor",
        )
    if b_tensor is not None and (n is not None or b_dtype is not None):
        raise OptionError("n, b_dtype", got="a value", wanted="None with b_tensor", remedy="leave them out")
    if b_ptrs is not None:
        if not isinstance(n, int) or n <= 0 or b_dtype is None:
            raise OptionError(
                "n, b_dtype", got=f"{n!r}, {b_dtype!r}", wanted="N > 0 and a dtype with b_ptrs", remedy="pass both"
            )
        refuse_discrete("b_ptrs", b_ptrs)


def refuse_discrete(name: str, pointers: Any) -> None:
    """Raises: ShapeError for what is no array of addresses, else NotYetSupportedError."""
    spec = spec_of(pointers, name)
    spec.require_rank(1, "(L,)")
    if spec.dtype.name not in ("int64", "uint8"):
        raise ShapeError(name, got=str(spec.dtype), wanted="(L,) int64 addresses", remedy="pass device addresses")
    raise NotYetSupportedError(
        name,
        got="an array of addresses",
        wanted="dense weights",
        remedy="stack the experts' matrices into one (L, N, K) tensor",
    )
