"""HSTU attention: SiLU of the scores in place of a softmax, over packed sequences."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.hstu.op import BACKWARD, FORWARD
from cudnn_fe.attention.hstu.operands import check_factors, divisor_of
from cudnn_fe.attention.operands import deliver
from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["hstu_attention_backward", "hstu_attention_forward"]

_GRADIENTS = ("dq_tensor", "dk_tensor", "dv_tensor")


def _scalars(q: Any, alpha: float, scaling: float | None, max_seqlen_q: int | None) -> tuple[float, float]:
    divisor = divisor_of(q, scaling, max_seqlen_q)
    check_factors(alpha, divisor)
    return alpha, divisor


def hstu_attention_forward(
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    cu_seqlens_q_tensor: Any,
    cu_seqlens_k_tensor: Any,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    window_size: tuple[int, int] = (-1, -1),
    alpha: float = 1.0,
    scaling_seqlen: float | None = None,
    func_tensor: Any = None,
    paged_kv_tensor: Any = None,
    page_ids_tensor: Any = None,
    page_indptrs_tensor: Any = None,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Attention with the SiLU of the scores in place of a softmax, over packed sequences.

    Differentiable in Q, K and V under torch autograd and JAX.

    Args:
        q_tensor: Packed queries (Tq, H, D): float16, bfloat16, float32 or float64.
        k_tensor: Packed keys (Tk, H, D) of the same dtype.
        v_tensor: Packed values (Tk, H, D).
        cu_seqlens_q_tensor: int32 (B+1,): first query of each sequence.
        cu_seqlens_k_tensor: int32 (B+1,): first key of each sequence.
        max_seqlen_q: The longest sequence of queries; None is Tq.
        max_seqlen_k: The longest sequence of keys; None is Tk.
        window_size: Keys before and after the diagonal, which ends in the last query and key; -1 is unlimited.
        alpha: Factor of the scores.
        scaling_seqlen: Divisor of the output; None is ``max_seqlen_q``.
        func_tensor: int32 (1, N, L): for every query an end and then N // 2 ranges of visible keys.
        paged_kv_tensor: (pages, 2, 128, H, D): keys and values by pages, which stand for ``k_tensor`` and ``v_tensor``.
        page_ids_tensor: int32 (P,): pages in the order of the sequences.
        page_indptrs_tensor: int32 (B+1,): first page of each sequence in that list.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``o_tensor`` (Tq, H, D).

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError: As the message says.
    """
    options = (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k), ("window_size", window_size))
    operands = (
        q_tensor,
        k_tensor,
        v_tensor,
        cu_seqlens_q_tensor,
        cu_seqlens_k_tensor,
        func_tensor,
        paged_kv_tensor,
        page_ids_tensor,
        page_indptrs_tensor,
    )
    scalars = _scalars(q_tensor, alpha, scaling_seqlen, max_seqlen_q)
    return TupleDict(o_tensor=call(FORWARD, operands, options, scalars, backend=backend, stream=stream)[0])


def hstu_attention_backward(
    do_tensor: Any,
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    cu_seqlens_q_tensor: Any,
    cu_seqlens_k_tensor: Any,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    window_size: tuple[int, int] = (-1, -1),
    alpha: float = 1.0,
    scaling_seqlen: float | None = None,
    func_tensor: Any = None,
    deterministic: bool = False,
    stream: Any = None,
    dq_tensor: Any = None,
    dk_tensor: Any = None,
    dv_tensor: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `hstu_attention_forward`.

    Args:
        do_tensor: Gradient of the output (Tq, H, D).
        q_tensor: As in the forward, and so are all arguments that both have.
        k_tensor: Packed keys.
        v_tensor: Packed values.
        cu_seqlens_q_tensor: First query of each sequence.
        cu_seqlens_k_tensor: First key of each sequence.
        max_seqlen_q: The longest sequence of queries.
        max_seqlen_k: The longest sequence of keys.
        window_size: Keys before and after the diagonal.
        alpha: Factor of the scores.
        scaling_seqlen: Divisor of the output.
        func_tensor: Ends of the visible ranges.
        deterministic: Whether results must be bit-equal from run to run.
        stream: Launch stream for CUDA tensors.
        dq_tensor: Buffer for the gradient of Q, which is then returned; None allocates. JAX takes none.
        dk_tensor: Likewise for K.
        dv_tensor: Likewise for V.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dq_tensor``, ``dk_tensor`` and ``dv_tensor``.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError: As the message says.
    """
    options = (
        ("max_seqlen_q", max_seqlen_q),
        ("max_seqlen_k", max_seqlen_k),
        ("window_size", window_size),
        ("deterministic", deterministic),
    )
    operands = (do_tensor, q_tensor, k_tensor, v_tensor, cu_seqlens_q_tensor, cu_seqlens_k_tensor, func_tensor)
    scalars = _scalars(q_tensor, alpha, scaling_seqlen, max_seqlen_q)
    grads = call(BACKWARD, operands, options, scalars, backend=backend, stream=stream)
    placed = deliver(grads, (dq_tensor, dk_tensor, dv_tensor), _GRADIENTS, stream=stream)
    return TupleDict(zip(_GRADIENTS, placed, strict=True))
