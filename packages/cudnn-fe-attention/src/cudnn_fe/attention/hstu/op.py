"""The contracts of HSTU attention: forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.hstu.docs import (
    BACKWARD_EXAMPLE,
    BACKWARD_NOTES,
    BACKWARD_TENSORS,
    FORWARD_EXAMPLE,
    FORWARD_NOTES,
    FORWARD_TENSORS,
    SOURCE,
)
from cudnn_fe.attention.hstu.operands import Window, bind_window, require_packed
from cudnn_fe.attention.operands import compact, require_flag, require_same_dtype
from cudnn_fe.core.errors import ShapeError
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BACKWARD", "FORWARD", "HstuAttention", "HstuAttentionBackward"]

_PAGES = ("paged_kv_tensor", "page_ids_tensor", "page_indptrs_tensor")
_PAGE = 128


def _check_pages(q: TensorSpec, offsets: TensorSpec, pages: tuple[TensorSpec | None, ...]) -> None:
    missing = [name for name, spec in zip(_PAGES, pages, strict=True) if spec is None]
    if len(missing) == len(pages):
        return
    paged, ids, starts = pages
    if paged is None or ids is None or starts is None:
        raise ShapeError(missing[0], got="None", wanted="all page tensors or none", remedy="pass the missing ones")
    paged.require_rank(5, "(pages, 2, 128, H, D)")
    require_shape(paged, (paged.shape[0], 2, _PAGE, *q.shape[1:]), "(pages, 2, 128, H, D)")
    require_same_dtype(q, paged)
    require_dtype(ids, "int32")
    ids.require_rank(1, "(P,)")
    require_dtype(starts, "int32")
    require_shape(starts, offsets.shape, "(B+1,)")
    require_same_device(q, *pages)


@dataclass(frozen=True)
class HstuAttention(Problem):
    """One forward call."""

    operands: ClassVar[tuple[str, ...]] = (
        "q_tensor",
        "k_tensor",
        "v_tensor",
        "cu_seqlens_q_tensor",
        "cu_seqlens_k_tensor",
        "func_tensor",
        *_PAGES,
    )
    optional: ClassVar[frozenset[str]] = frozenset({"func_tensor", *_PAGES})

    q_tensor: TensorSpec
    k_tensor: TensorSpec
    v_tensor: TensorSpec
    cu_seqlens_q_tensor: TensorSpec
    cu_seqlens_k_tensor: TensorSpec
    func_tensor: TensorSpec | None
    paged_kv_tensor: TensorSpec | None
    page_ids_tensor: TensorSpec | None
    page_indptrs_tensor: TensorSpec | None
    window: Window

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``max_seqlen_q``, ``max_seqlen_k`` and ``window_size``."""
        q, k, v, first, second, func, paged, ids, starts = operands
        assert q is not None
        assert k is not None
        assert v is not None
        assert first is not None
        assert second is not None
        require_packed(q, k, v, first, second)
        window = bind_window(q, k, func, options)
        _check_pages(q, first, (paged, ids, starts))
        return cls(q, k, v, first, second, func, paged, ids, starts, window)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """O (Tq, H, D)."""
        return (compact("o_tensor", self.q_tensor.shape, self.q_tensor.dtype, self.device),)

    @property
    def degenerate(self) -> bool:
        """No queries, keys, heads or channels, or no pages to read."""
        pages = self.paged_kv_tensor.shape if self.paged_kv_tensor is not None else ()
        ids = self.page_ids_tensor.shape if self.page_ids_tensor is not None else ()
        return 0 in (*self.q_tensor.shape, *self.k_tensor.shape, *pages, *ids)

    @property
    def flops(self) -> int:
        """4 D for every query and key, as if all were of one sequence without a mask."""
        return 4 * self.q_tensor.size * self.k_tensor.shape[0]


@dataclass(frozen=True)
class HstuAttentionBackward(Problem):
    """One backward call."""

    operands: ClassVar[tuple[str, ...]] = (
        "do_tensor",
        "q_tensor",
        "k_tensor",
        "v_tensor",
        "cu_seqlens_q_tensor",
        "cu_seqlens_k_tensor",
        "func_tensor",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"func_tensor"})
    output_count: ClassVar[int] = 3

    do_tensor: TensorSpec
    q_tensor: TensorSpec
    k_tensor: TensorSpec
    v_tensor: TensorSpec
    cu_seqlens_q_tensor: TensorSpec
    cu_seqlens_k_tensor: TensorSpec
    func_tensor: TensorSpec | None
    window: Window

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: those of the forward, and ``deterministic``."""
        do, q, k, v, first, second, func = operands
        assert do is not None
        assert q is not None
        assert k is not None
        assert v is not None
        assert first is not None
        assert second is not None
        require_packed(q, k, v, first, second)
        require_shape(do, q.shape, "(Tq, H, D)")
        require_same_dtype(q, do)
        require_same_device(q, do)
        require_flag(options["deterministic"], "deterministic")
        return cls(do, q, k, v, first, second, func, bind_window(q, k, func, options))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """dQ, dK and dV, compact."""
        pairs = (("dq_tensor", self.q_tensor), ("dk_tensor", self.k_tensor), ("dv_tensor", self.v_tensor))
        return tuple(compact(name, spec.shape, spec.dtype, self.device) for name, spec in pairs)

    @property
    def degenerate(self) -> bool:
        """No queries, keys, heads or channels."""
        return 0 in (*self.q_tensor.shape, *self.k_tensor.shape)

    @property
    def flops(self) -> int:
        """Five products where the forward has two."""
        return 10 * self.q_tensor.size * self.k_tensor.shape[0]


FORWARD = Op(
    name="hstu_attention_forward",
    package="cudnn-fe-attention",
    problem=HstuAttention,
    reference="cudnn_fe.attention.hstu.reference:forward",
    kernels=(),
    summary="Attention with the SiLU of the scores in place of a softmax, over packed sequences.",
    formula=r"O_i = \frac{1}{S} \sum_{j \in M(i)} \mathrm{silu}(\alpha\, q_i \cdot k_j)\, v_j, \qquad "
    r"\mathrm{silu}(x) = x\, \sigma(x)",
    tensors=FORWARD_TENSORS,
    example=FORWARD_EXAMPLE,
    source=SOURCE,
    notes=FORWARD_NOTES,
    scalars=("alpha", "scaling_seqlen"),
    results=("o_tensor",),
    gradient="cudnn_fe.attention.hstu.gradient:GRADIENT",
    reference_on_gpu=True,
)

BACKWARD = Op(
    name="hstu_attention_backward",
    package="cudnn-fe-attention",
    problem=HstuAttentionBackward,
    reference="cudnn_fe.attention.hstu.reference:backward",
    kernels=(),
    summary="Gradients of HSTU attention.",
    formula=r"dS_{ij} = (dO_i \cdot v_j)\, \mathrm{silu}'(x_{ij}), \qquad dQ = \tfrac{\alpha}{S}\, dS\, K, \; "
    r"dK = \tfrac{\alpha}{S}\, dS^\top Q, \; dV = \tfrac{1}{S}\, \mathrm{silu}(X)^\top dO",
    tensors=BACKWARD_TENSORS,
    example=BACKWARD_EXAMPLE,
    source=SOURCE,
    notes=BACKWARD_NOTES,
    scalars=("alpha", "scaling_seqlen"),
    results=("dq_tensor", "dk_tensor", "dv_tensor"),
    reference_on_gpu=True,
)
