"""Lists of key ids: made global, and made compact."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.dsa.indices.op import COMPACTIFY, LOCAL_TO_GLOBAL
from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["dsa_compactify_forward", "dsa_local_to_global_forward"]


def dsa_local_to_global_forward(
    local_indices: Any,
    seqlen_k: int,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    stream: Any = None,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Ids of keys within a sequence, as ids among all keys; negative ones become -1.

    Args:
        local_indices: int32 or int64 (B, Sq, K), or (Tq, K) of packed sequences.
        seqlen_k: Keys per batch; not used for packed sequences.
        cu_seqlens_q: int32 (B+1,): first query of each packed sequence.
        cu_seqlens_k: int32 (B+1,): first key of each packed sequence.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``indices``, int32, of the same shape.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError: As the message says.
    """
    operands = (local_indices, cu_seqlens_q, cu_seqlens_k)
    options = (("seqlen_k", seqlen_k),)
    return TupleDict(indices=call(LOCAL_TO_GLOBAL, operands, options, backend=backend, stream=stream)[0])


def dsa_compactify_forward(indices: Any, stream: Any = None, *, backend: str | None = None) -> TupleDict:
    """Lists of ids with those that count in front, in their order, and how many there are.

    Args:
        indices: int32 (M, K) or (B, S, K); negative ids are no slots.
        stream: Launch stream for CUDA tensors.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``indices`` (M, K), -1 behind the last that counts, and ``topk_length`` (M,), with M = B S for 3-D lists.

    Raises:
        ShapeError, DTypeError: As the message says.
    """
    ids, lengths = call(COMPACTIFY, (indices,), (), backend=backend, stream=stream)
    return TupleDict(indices=ids, topk_length=lengths)
