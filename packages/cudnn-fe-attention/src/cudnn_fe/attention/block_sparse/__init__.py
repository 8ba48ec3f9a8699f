"""Block-sparse attention: every block of queries attends an explicit list of blocks of keys."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.block_sparse.op import BACKWARD, FORWARD
from cudnn_fe.attention.operands import default_scale, deliver
from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = [
    "block_sparse_attention_backward",
    "block_sparse_attention_forward",
    "block_sparse_attention_jax",
    "block_sparse_attention_jax_backward",
    "block_sparse_attention_jax_forward",
]

_GRADIENTS = ("dq_tensor", "dk_tensor", "dv_tensor")


def _scale(q: Any, softmax_scale: float | None) -> float:
    return default_scale(q) if softmax_scale is None else softmax_scale


def block_sparse_attention_forward(
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    q2k_block_index: Any,
    block_sparse_num: int | None = None,
    block_sizes: Any = None,
    q2k_block_nums: Any = None,
    *,
    sparse_block_size: int | None = None,
    allow_empty_block_nums: bool = False,
    softmax_scale: float | None = None,
    pack_gqa: bool | None = None,
    layout: str = "bhsd",
    kv_splits: int | str = 1,
    use_clc: bool | None = None,
    backend: str | None = None,
    stream: Any = None,
) -> TupleDict:
    """Softmax attention in which every block of queries sees the listed blocks of keys.

    Differentiable in Q, K and V under torch autograd and JAX, also through the log-sum-exp.

    Args:
        q_tensor: Queries (B, Hq, Sq, D): float16, bfloat16, float32 or float64, channels contiguous.
        k_tensor: Keys (B, Hkv, Sk, D) of the same dtype; query head h reads key head ``h // (Hq / Hkv)``.
        v_tensor: Values (B, Hkv, Sk, Dv).
        q2k_block_index: int32 (B, Hq, ceil(Sq / block), C): key blocks of every query block, in any order.
        block_sparse_num: Entries of every list, 1..C; None is C. Ignored where ``q2k_block_nums`` is given.
        block_sizes: int32 (Nkv,), (B, Nkv) or (B, Hq, Nkv): valid tokens of every key block; None is all.
        q2k_block_nums: int32 (B, Hq, ceil(Sq / block)): entries of each list; the rest is not read.
        sparse_block_size: Tokens of a block, 64 or 128; None is the device's usual one.
        allow_empty_block_nums: Whether the caller means empty lists; they are served in either case.
        softmax_scale: Factor of the scores; None is ``D ** -0.5``.
        pack_gqa: Whether lists are packed over a group's heads; None sees it from the shape.
        layout: ``"bhsd"``, or ``"bshd"`` for (B, S, H, D) operands and output.
        kv_splits: Hint without effect on results.
        use_clc: Hint without effect on results.
        backend: ``None``, or the name of the one to use.
        stream: Launch stream for CUDA tensors; None is torch's current one.

    Returns:
        ``o_tensor`` in the layout and dtype of Q with Dv channels, ``lse_tensor`` (B, Hq, Sq), natural, float32.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.

    Example:
        >>> import numpy as np
        >>> x = np.ones((1, 1, 64, 8), np.float32)
        >>> out = block_sparse_attention_forward(x, x, x, np.zeros((1, 1, 1, 1), np.int32), sparse_block_size=64)
        >>> float(out["o_tensor"][0, 0, 5, 3])
        1.0
    """
    options = (
        ("layout", layout),
        ("sparse_block_size", sparse_block_size),
        ("block_sparse_num", block_sparse_num),
        ("allow_empty_block_nums", allow_empty_block_nums),
        ("pack_gqa", pack_gqa),
        ("kv_splits", kv_splits),
        ("use_clc", use_clc),
    )
    operands = (q_tensor, k_tensor, v_tensor, q2k_block_index, q2k_block_nums, block_sizes)
    o, lse = call(FORWARD, operands, options, (_scale(q_tensor, softmax_scale),), backend=backend, stream=stream)
    return TupleDict(o_tensor=o, lse_tensor=lse)


def block_sparse_attention_backward(
    do_tensor: Any,
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    o_tensor: Any,
    lse_tensor: Any,
    q2k_block_index: Any,
    block_sparse_num: int | None = None,
    block_sizes: Any = None,
    q2k_block_nums: Any = None,
    *,
    softmax_scale: float | None = None,
    dq_tensor: Any = None,
    dk_tensor: Any = None,
    dv_tensor: Any = None,
    bucket_size_blocks: int | None = None,
    sparse_block_size: int | None = None,
    layout: str = "bhsd",
    dlse_tensor: Any = None,
    backend: str | None = None,
    stream: Any = None,
) -> TupleDict:
    """Gradients of `block_sparse_attention_forward`.

    Args:
        do_tensor: Gradient of the output, of its shape and dtype.
        q_tensor: As in the forward, and so are all arguments that both have.
        k_tensor: Keys.
        v_tensor: Values.
        o_tensor: The forward's output.
        lse_tensor: The forward's log-sum-exp.
        q2k_block_index: Lists of key blocks.
        block_sparse_num: Entries of every list.
        block_sizes: Valid tokens of every key block.
        q2k_block_nums: Entries of each list.
        softmax_scale: Factor of the scores.
        dq_tensor: Buffer for the gradient of Q, which is then returned; None allocates. JAX takes none.
        dk_tensor: Likewise for K.
        dv_tensor: Likewise for V.
        bucket_size_blocks: Hint without effect on results.
        sparse_block_size: Tokens of a block.
        layout: ``"bhsd"`` or ``"bshd"``.
        dlse_tensor: Gradient of the log-sum-exp (B, Hq, Sq), or None for zero.
        backend: ``None``, or the name of the one to use.
        stream: Launch stream for CUDA tensors.

    Returns:
        ``dq_tensor``, ``dk_tensor`` and ``dv_tensor``, of the shapes and dtype of Q, K and V.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: As the message says.
    """
    options = (
        ("layout", layout),
        ("sparse_block_size", sparse_block_size),
        ("block_sparse_num", block_sparse_num),
        ("bucket_size_blocks", bucket_size_blocks),
    )
    operands = (
        do_tensor,
        q_tensor,
        k_tensor,
        v_tensor,
        o_tensor,
        lse_tensor,
        q2k_block_index,
        q2k_block_nums,
        block_sizes,
        dlse_tensor,
    )
    grads = call(BACKWARD, operands, options, (_scale(q_tensor, softmax_scale),), backend=backend, stream=stream)
    placed = deliver(grads, (dq_tensor, dk_tensor, dv_tensor), _GRADIENTS, stream=stream)
    return TupleDict(zip(_GRADIENTS, placed, strict=True))


def block_sparse_attention_jax_forward(
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    q2k_block_index: Any,
    block_sparse_num: int | None = None,
    block_sizes: Any = None,
    q2k_block_nums: Any = None,
    *,
    sparse_block_size: int = 128,
    layout: str = "bhsd",
    softmax_scale: float | None = None,
    allow_empty_block_nums: bool = False,
    backend: str | None = None,
) -> TupleDict:
    """`block_sparse_attention_forward` for JAX: usable under ``jit``, ``grad`` and ``vmap``.

    Args:
        q_tensor: Queries; all arguments are those of `block_sparse_attention_forward`.
        k_tensor: Keys.
        v_tensor: Values.
        q2k_block_index: Lists of key blocks.
        block_sparse_num: Entries of every list; static, as all that is not an array.
        block_sizes: Valid tokens of every key block.
        q2k_block_nums: Entries of each list.
        sparse_block_size: Tokens of a block.
        layout: ``"bhsd"`` or ``"bshd"``.
        softmax_scale: Factor of the scores.
        allow_empty_block_nums: Whether the caller means empty lists.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``o_tensor`` and ``lse_tensor``, a pytree.
    """
    arrays = _as_jax(
        q_tensor=q_tensor,
        k_tensor=k_tensor,
        v_tensor=v_tensor,
        q2k_block_index=q2k_block_index,
        block_sizes=block_sizes,
        q2k_block_nums=q2k_block_nums,
    )
    return block_sparse_attention_forward(
        **arrays,
        block_sparse_num=block_sparse_num,
        sparse_block_size=sparse_block_size,
        layout=layout,
        softmax_scale=softmax_scale,
        allow_empty_block_nums=allow_empty_block_nums,
        backend=backend,
    )


def block_sparse_attention_jax_backward(
    do_tensor: Any,
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    o_tensor: Any,
    lse_tensor: Any,
    q2k_block_index: Any,
    block_sparse_num: int | None = None,
    block_sizes: Any = None,
    q2k_block_nums: Any = None,
    *,
    sparse_block_size: int = 128,
    layout: str = "bhsd",
    softmax_scale: float | None = None,
    allow_empty_block_nums: bool = False,
    bucket_size_blocks: int | None = None,
    backend: str | None = None,
) -> TupleDict:
    """`block_sparse_attention_backward` for JAX, usable under ``jit``.

    Args:
        do_tensor: Gradient of the output; all arguments are those of `block_sparse_attention_backward`.
        q_tensor: Queries.
        k_tensor: Keys.
        v_tensor: Values.
        o_tensor: The forward's output.
        lse_tensor: The forward's log-sum-exp.
        q2k_block_index: Lists of key blocks.
        block_sparse_num: Entries of every list.
        block_sizes: Valid tokens of every key block.
        q2k_block_nums: Entries of each list.
        sparse_block_size: Tokens of a block.
        layout: ``"bhsd"`` or ``"bshd"``.
        softmax_scale: Factor of the scores.
        allow_empty_block_nums: Whether the caller means empty lists; they are served in either case.
        bucket_size_blocks: Hint without effect on results.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dq_tensor``, ``dk_tensor`` and ``dv_tensor``, a pytree.
    """
    del allow_empty_block_nums  # nothing in the backward depends on it
    arrays = _as_jax(
        do_tensor=do_tensor,
        q_tensor=q_tensor,
        k_tensor=k_tensor,
        v_tensor=v_tensor,
        o_tensor=o_tensor,
        lse_tensor=lse_tensor,
        q2k_block_index=q2k_block_index,
        block_sizes=block_sizes,
        q2k_block_nums=q2k_block_nums,
    )
    return block_sparse_attention_backward(
        **arrays,
        block_sparse_num=block_sparse_num,
        sparse_block_size=sparse_block_size,
        layout=layout,
        softmax_scale=softmax_scale,
        bucket_size_blocks=bucket_size_blocks,
        backend=backend,
    )


def block_sparse_attention_jax(
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    q2k_block_index: Any,
    block_sparse_num: int | None = None,
    block_sizes: Any = None,
    q2k_block_nums: Any = None,
    *,
    sparse_block_size: int = 128,
    layout: str = "bhsd",
    softmax_scale: float | None = None,
    allow_empty_block_nums: bool = False,
    bucket_size_blocks: int | None = None,
    backend: str | None = None,
) -> Any:
    """The output of `block_sparse_attention_jax_forward` alone, differentiable in Q, K and V.

    Args:
        q_tensor: Queries; all arguments are those of `block_sparse_attention_jax_forward`.
        k_tensor: Keys.
        v_tensor: Values.
        q2k_block_index: Lists of key blocks.
        block_sparse_num: Entries of every list.
        block_sizes: Valid tokens of every key block.
        q2k_block_nums: Entries of each list.
        sparse_block_size: Tokens of a block.
        layout: ``"bhsd"`` or ``"bshd"``.
        softmax_scale: Factor of the scores.
        allow_empty_block_nums: Whether the caller means empty lists.
        bucket_size_blocks: Hint of the backward, without effect on results.
        backend: ``None``, or the name of the one to use.

    Returns:
        The output.
    """
    del bucket_size_blocks
    return block_sparse_attention_jax_forward(
        q_tensor,
        k_tensor,
        v_tensor,
        q2k_block_index,
        block_sparse_num,
        block_sizes,
        q2k_block_nums,
        sparse_block_size=sparse_block_size,
        layout=layout,
        softmax_scale=softmax_scale,
        allow_empty_block_nums=allow_empty_block_nums,
        backend=backend,
    )["o_tensor"]


def _as_jax(**arrays: Any) -> dict[str, Any]:
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    return {name: None if array is None else as_jax(name, array) for name, array in arrays.items()}
