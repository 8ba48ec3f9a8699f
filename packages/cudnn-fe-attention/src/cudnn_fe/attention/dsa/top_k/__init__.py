"""The top-k of rows of scores."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.dsa.top_k.op import FORWARD
from cudnn_fe.core.call import call
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["dsa_indexer_top_k_forward"]


def dsa_indexer_top_k_forward(
    input_values: Any,
    seq_lens: Any,
    top_k: int,
    next_n: int = 1,
    return_val: bool = True,
    num_copy_bits: int = 256,
    stream: Any = None,
    tie_break: int = 0,
    deterministic: bool = False,
    *,
    backend: str | None = None,
) -> TupleDict:
    """The columns of the largest scores of every row, as far as the row's length goes.

    Args:
        input_values: Scores (rows, columns): float16, bfloat16, float32 or float64.
        seq_lens: int32 (batch,), with ``rows = batch * next_n``: row r counts
            ``seq_lens[r // next_n] - next_n + r % next_n + 1`` columns.
        top_k: Columns to return, 1..2048.
        next_n: Rows of a sequence.
        return_val: Whether the scores come too.
        num_copy_bits: Hint without effect on results.
        stream: Launch stream for CUDA tensors.
        tie_break: Which of equal scores is taken: 1 the smaller column, 2 the larger; 0 leaves it open.
        deterministic: Whether results must be bit-equal from run to run; they are in either case.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``indices`` int32 (rows, top_k), ascending, -1 where there are fewer, and ``values`` of the scores' dtype,
        minus infinity there, or None without ``return_val``.

    Raises:
        ShapeError, DTypeError, DeviceError, OptionError: As the message says.
    """
    options = (
        ("top_k", top_k),
        ("next_n", next_n),
        ("return_val", return_val),
        ("num_copy_bits", num_copy_bits),
        ("tie_break", tie_break),
        ("deterministic", deterministic),
    )
    indices, *values = call(FORWARD, (input_values, seq_lens), options, backend=backend, stream=stream)
    return TupleDict(indices=indices, values=values[0] if values else None)
