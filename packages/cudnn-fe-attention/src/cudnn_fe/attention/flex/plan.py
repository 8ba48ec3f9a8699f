"""Mask plans: which keys every query sees, checked once and used by any number of calls."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from array_api_compat import array_namespace

from cudnn_fe.attention.arrays import take
from cudnn_fe.attention.flex.blocks import Sample, view
from cudnn_fe.attention.operands import (
    FLOATS,
    require_flag,
    require_groups,
    require_offsets,
    require_streamable,
)
from cudnn_fe.attention.sequences import rows_of
from cudnn_fe.core.errors import DTypeError, OptionError, OptionTypeError, ShapeError
from cudnn_fe.core.frameworks import common_framework
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["MaskPlan", "MaskPlanMetadata", "create_mask_plan", "match_plan"]

_TILE = 128  # queries and keys of a block of the lists that a plan shows
_VARLEN = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


@dataclass(frozen=True)
class MaskPlanMetadata:
    """What the operands of a plan's calls look like.

    Attributes:
        mode: ``"fixed"`` for (B, S, H, D), ``"varlen"`` for packed (T, H, D).
        arch: The GPU's compute capability, 90 for 9.0; 0 elsewhere.
        device: Where they are.
        dtype: Their element type, as their framework names it.
        batch_size: Sequences.
        total_q: Queries of all sequences.
        total_k: Keys of all sequences.
        max_seqlen_q: Queries of the longest sequence.
        max_seqlen_k: Keys of the longest sequence.
        num_q_heads: Query heads.
        num_kv_heads: Key heads.
        head_dim: Channels of queries and keys.
        head_dim_v: Channels of values.
        hmask: 1, or the query heads where each has its own mask.
        nfunc: Endpoints of every query.
        pack_gqa: Whether a kernel puts the query heads of a group into one tile; no result depends on it.
        has_backward: Whether calls may be differentiated.
    """

    mode: Literal["fixed", "varlen"]
    arch: int
    device: Any
    dtype: Any
    batch_size: int
    total_q: int
    total_k: int
    max_seqlen_q: int
    max_seqlen_k: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    hmask: int
    nfunc: int
    pack_gqa: bool
    has_backward: bool


class MaskPlan:
    """A checked mask. `create_mask_plan` makes it; it does not change, and calls and threads may share it.

    Under JAX it is a pytree: it passes through ``jit`` and ``vmap`` as an argument.
    """

    __slots__ = ("_cu_seqlens_k", "_cu_seqlens_q", "_ends", "_metadata")
    _metadata: MaskPlanMetadata
    _ends: Any
    _cu_seqlens_q: Any
    _cu_seqlens_k: Any

    def __init__(self) -> None:
        raise OptionTypeError("MaskPlan", got="a call", wanted="a made plan", remedy="use create_mask_plan")

    @classmethod
    def _make(cls, metadata: MaskPlanMetadata, ends: Any, offsets: tuple[Any, Any]) -> MaskPlan:
        plan = object.__new__(cls)
        for name, value in zip(cls.__slots__, (offsets[1], offsets[0], ends, metadata), strict=True):
            object.__setattr__(plan, name, value)
        return plan

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"MaskPlan.{name} cannot be set: make another plan")

    @property
    def metadata(self) -> MaskPlanMetadata:
        """What the operands of its calls look like."""
        return self._metadata

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of Q, K and V."""
        m = self._metadata
        heads = (m.num_q_heads, m.head_dim), (m.num_kv_heads, m.head_dim), (m.num_kv_heads, m.head_dim_v)
        rows = m.max_seqlen_q, m.max_seqlen_k, m.max_seqlen_k
        totals = m.total_q, m.total_k, m.total_k
        lead = [(m.batch_size, n) for n in rows] if m.mode == "fixed" else [(n,) for n in totals]
        return tuple((*a, *b) for a, b in zip(lead, heads, strict=True))

    @property
    def tensors(self) -> tuple[Any, Any, Any]:
        """What the ops take: the endpoints and the cumulative lengths, None in fixed mode."""
        return self._ends, self._cu_seqlens_q, self._cu_seqlens_k

    def debug_snapshot(self) -> dict[str, Any]:
        """Copies of what the plan knows, and lists of the tiles of 128 queries and keys that are seen.

        Reads the mask on the host. Nothing that computes uses the lists.
        """
        m, xp = self._metadata, array_namespace(self._ends)
        samples = self._samples()
        group = m.num_q_heads // m.num_kv_heads if m.pack_gqa else 1

        def back(table: dict[str, Any] | None) -> dict[str, Any] | None:
            if table is None:
                return None
            place = {"device": m.device} if hasattr(self._ends, "is_cuda") else {}
            return {key: None if x is None else xp.asarray(x, **place) for key, x in table.items()}

        packed = [sample.repeated(group) for sample in samples]
        return {
            "metadata": m,
            "forward": back(view(packed, _TILE, by_key=False, varlen=m.mode == "varlen")),
            "backward": back(view(samples, _TILE, by_key=True, varlen=m.mode == "varlen") if m.has_backward else None),
            "dq": None,
            "cu_seqlens_q": None if self._cu_seqlens_q is None else xp.asarray(self._cu_seqlens_q, copy=True),
            "cu_seqlens_k": None if self._cu_seqlens_k is None else xp.asarray(self._cu_seqlens_k, copy=True),
        }

    def _samples(self) -> list[Sample]:
        import numpy as np

        m = self._metadata
        ends = _on_host(self._ends)
        if m.mode == "fixed":
            starts = np.arange(m.batch_size + 1) * m.max_seqlen_q, np.arange(m.batch_size + 1) * m.max_seqlen_k
        else:
            starts = _on_host(self._cu_seqlens_q), _on_host(self._cu_seqlens_k)
        rows = zip(starts[0][:-1], starts[0][1:], starts[1][:-1], starts[1][1:], strict=True)
        return [Sample(ends[:, :, a:b], int(a), int(c), int(d - c)) for a, b, c, d in rows]


def _on_host(x: Any) -> Any:
    import numpy as np

    return np.asarray(x.cpu() if hasattr(x, "cpu") else x)


def create_mask_plan(
    mask_func: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    pack_gqa: bool | None = None,
    build_backward: bool | None = None,
) -> MaskPlan:
    """A mask of key intervals for `flex_attention`, checked and kept.

    Row ``i`` with endpoints ``F`` sees the keys of ``[0, F[0])``, ``[F[1], F[2])``, ``[F[3], F[4])`` and so on, where
    ``0 <= F[0] <= F[1] <= ... <= keys``. Causal is ``F[0] = i + 1``, a window ``(0, low, high)``.

    Args:
        mask_func: int32 (1 or Hq, N, total_q), N odd: the endpoints of every query, counted in its own sequence's keys.
        q: Queries (B, Sq, Hq, D), or packed (Tq, Hq, D). Of Q, K and V only shape, dtype, place and whether they
            require gradients are used.
        k: Keys (B, Sk, Hkv, D) or (Tk, Hkv, D).
        v: Values (B, Sk, Hkv, Dv) or (Tk, Hkv, Dv).
        cu_seqlens_q: int32 (B+1,): first query of each packed sequence. All four of these or none.
        cu_seqlens_k: int32 (B+1,): first key of each packed sequence.
        max_seqlen_q: Queries of the longest sequence at most.
        max_seqlen_k: Keys of the longest sequence at most.
        pack_gqa: Hint for kernels; None chooses.
        build_backward: Whether calls may be differentiated; None is whether an operand requires a gradient now, and
            True for NumPy and JAX.

    Returns:
        The plan. It keeps copies: changing the arguments later changes nothing.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError, OptionTypeError: As the message says. Values are looked at,
            which waits for the device once; under a JAX transformation they are not known and not looked at.

    Example:
        >>> import numpy as np
        >>> x = np.zeros((1, 4, 2, 8), np.float32)
        >>> causal = np.arange(1, 5, dtype=np.int32).reshape(1, 1, 4)
        >>> create_mask_plan(causal, x, x, x).metadata.nfunc
        1
    """
    for name, flag in (("pack_gqa", pack_gqa), ("build_backward", build_backward)):
        if flag is not None:
            require_flag(flag, name)
    given = dict(zip(_VARLEN, (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), strict=True))
    absent = [name for name, value in given.items() if value is None]
    if absent and len(absent) < len(given):
        raise OptionError(
            absent[0], got="None", wanted="all four of " + ", ".join(given) + ", or none", remedy=f"pass {absent[0]}"
        )
    offsets = cu_seqlens_q, cu_seqlens_k
    arrays = (mask_func, q, k, v, *offsets)
    framework = common_framework(("mask_func", "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"), arrays)
    specs = tuple(spec_of(x, name) for x, name in ((mask_func, "mask_func"), (q, "q"), (k, "k"), (v, "v")))
    extents = _varlen(specs, given) if not absent else _fixed(specs)
    func, query, key, value = specs
    require_groups(query.shape[-2], key.shape[-2], "q")
    require_streamable(FLOATS, query, key, value)
    _require_mask(func, query, extents["total_q"])
    metadata = MaskPlanMetadata(
        **extents,
        arch=_arch(query.device),
        device=q.device if framework == "torch" else query.device,
        dtype=q.dtype,
        num_q_heads=query.shape[-2],
        num_kv_heads=key.shape[-2],
        head_dim=query.shape[-1],
        head_dim_v=value.shape[-1],
        hmask=func.shape[0],
        nfunc=func.shape[1],
        pack_gqa=_packs(query, key, func, pack_gqa),
        has_backward=_differentiated(q, k, v) if build_backward is None else build_backward,
    )
    if framework == "jax":
        _register_pytree()
    if not _traced(arrays):
        _check_values(metadata, mask_func, offsets)
    xp = array_namespace(mask_func)
    kept = [None if x is None else xp.asarray(x, copy=True) for x in (mask_func, *offsets)]
    return MaskPlan._make(metadata, kept[0], (kept[1], kept[2]))


def _fixed(specs: tuple[TensorSpec, ...]) -> dict[str, Any]:
    _, q, k, v = specs
    for spec in (q, k, v):
        spec.require_rank(4, "(B, S, H, D)")
    require_shape(k, (q.shape[0], *k.shape[1:3], q.shape[3]), "(B, Sk, Hkv, D)")
    require_shape(v, (*k.shape[:3], v.shape[3]), "(B, Sk, Hkv, Dv)")
    batch, rows, keys = q.shape[0], q.shape[1], k.shape[1]
    sizes = {"max_seqlen_q": rows, "max_seqlen_k": keys, "total_q": batch * rows, "total_k": batch * keys}
    return {"mode": "fixed", "batch_size": batch, **sizes}


def _varlen(specs: tuple[TensorSpec, ...], given: dict[str, Any]) -> dict[str, Any]:
    _, q, k, v = specs
    for spec in (q, k, v):
        spec.require_rank(3, "(T, H, D)")
    require_shape(k, (*k.shape[:2], q.shape[2]), "(Tk, Hkv, D)")
    require_shape(v, (*k.shape[:2], v.shape[2]), "(Tk, Hkv, Dv)")
    for name in _VARLEN[2:]:
        most = given[name]
        if isinstance(most, bool) or not isinstance(most, int):
            raise OptionTypeError(name, got=repr(most), wanted="an int", remedy="pass the longest sequence")
        if most < 0:
            raise OptionError(name, got=str(most), wanted="at least 0", remedy="pass the longest sequence")
    first, second = (spec_of(given[name], name) for name in _VARLEN[:2])
    for spec in (first, second):
        require_dtype(spec, "int32")
    batch = require_offsets(first)
    require_offsets(second, first)
    require_same_device(q, first, second)
    sizes = {name: given[name] for name in _VARLEN[2:]} | {"total_q": q.shape[0], "total_k": k.shape[0]}
    return {"mode": "varlen", "batch_size": batch, **sizes}


def _require_mask(func: TensorSpec, q: TensorSpec, total: int) -> None:
    require_dtype(func, "int32")
    func.require_rank(3, "(Hmask, N, total_q)")
    heads, count, rows = func.shape
    if heads not in (1, q.shape[-2]) or count % 2 == 0 or rows != total:
        raise ShapeError(
            "mask_func",
            got=str(func.shape),
            wanted=f"(1 or {q.shape[-2]}, N, {total}) with odd N",
            remedy="give every query the same odd number of endpoints; equal neighbours are an empty interval",
        )
    require_same_device(q, func)


def _packs(q: TensorSpec, k: TensorSpec, func: TensorSpec, asked: bool | None) -> bool:
    group = q.shape[-2] // max(k.shape[-2], 1)
    possible = func.shape[0] == 1 and group & (group - 1) == 0 and 0 < group <= _TILE
    if asked and not possible:
        raise OptionError(
            "pack_gqa",
            got=f"True with {func.shape[0]} masks and {group} query heads per key head",
            wanted=f"one mask, and a group of 1, 2, 4, ... or {_TILE} heads",
            remedy="leave pack_gqa unset: a hint",
        )
    return possible and group > 1 if asked is None else asked


def _arch(place: str) -> int:
    if not place.startswith("cuda"):
        return 0
    from cudnn_fe.core.device import device

    major, minor = device(place).capability
    return 10 * major + minor


def _differentiated(*arrays: Any) -> bool:
    if not hasattr(arrays[0], "requires_grad"):
        return True
    import torch  # they are its tensors

    return torch.is_grad_enabled() and any(x.requires_grad for x in arrays)


def _traced(arrays: tuple[Any, ...]) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and any(isinstance(x, jax.core.Tracer) for x in arrays)


def _check_values(metadata: MaskPlanMetadata, ends: Any, offsets: tuple[Any, Any]) -> None:
    """Raises OptionError for offsets or endpoints out of order or range; reads the device once."""
    xp, m = array_namespace(ends), metadata
    if m.mode == "fixed":
        lengths: Any = m.max_seqlen_k
        bad = [xp.any(ends < 0) & False, xp.any(ends < 0) & False]
    else:
        bad = [_bad_offsets(xp, *row) for row in zip(offsets, (m.total_q, m.total_k), _longest(m), strict=True)]
        rows = rows_of(xp, offsets[0], m.total_q)
        lengths = take(xp, offsets[1][1:] - offsets[1][:-1], rows.sequence, 0)
    steps = xp.any(ends[:, 1:] < ends[:, :-1])
    bad.append(xp.any(ends < 0) | steps | xp.any(ends > lengths))
    found = xp.stack(bad).tolist()
    for name, wrong, total, longest in zip(_VARLEN[:2], found, (m.total_q, m.total_k), _longest(m), strict=False):
        if wrong:
            raise OptionError(
                name,
                got="offsets that do not fit",
                wanted=f"non-decreasing ones from 0 to {total}, at most {longest} apart",
                remedy="pass the cumulative lengths",
            )
    if found[2]:
        raise OptionError(
            "mask_func",
            got="endpoints out of order or range",
            wanted="0 <= F[0] <= F[1] <= ... <= keys of the query's sequence",
            remedy="sort and clip them; equal neighbours are an empty interval",
        )


def _longest(m: MaskPlanMetadata) -> tuple[int, int]:
    return m.max_seqlen_q, m.max_seqlen_k


def _bad_offsets(xp: Any, offsets: Any, total: int, longest: int) -> Any:
    lengths = offsets[1:] - offsets[:-1]
    return (offsets[0] != 0) | (offsets[-1] != total) | xp.any(lengths < 0) | xp.any(lengths > longest)


@cache
def _register_pytree() -> None:
    import jax  # the plan holds its arrays

    jax.tree_util.register_pytree_node(
        MaskPlan,
        lambda plan: (plan.tensors, plan.metadata),
        lambda metadata, tensors: MaskPlan._make(metadata, tensors[0], (tensors[1], tensors[2])),
    )


def match_plan(plan: Any, q: Any, k: Any, v: Any) -> MaskPlanMetadata:
    """Raises unless ``plan`` was made for operands like these; looks at shapes and types alone.

    Raises:
        OptionTypeError: ``plan`` is no plan.
        ShapeError, DTypeError: An operand is unlike the plan's.
    """
    if not isinstance(plan, MaskPlan):
        raise OptionTypeError("mask_plan", got=type(plan).__qualname__, wanted="a MaskPlan", remedy="create_mask_plan")
    for name, x, wanted in zip("qkv", (q, k, v), plan.shapes, strict=True):
        if hasattr(x, "shape") and tuple(x.shape) != wanted:
            raise ShapeError(name, got=str(tuple(x.shape)), wanted=f"{wanted}, as in the plan", remedy="make a plan")
        if hasattr(x, "dtype") and x.dtype != plan.metadata.dtype:
            wanted_type = f"{plan.metadata.dtype}, as in the plan"
            raise DTypeError(name, got=str(x.dtype), wanted=wanted_type, remedy="cast it, or make a plan")
    return plan.metadata
