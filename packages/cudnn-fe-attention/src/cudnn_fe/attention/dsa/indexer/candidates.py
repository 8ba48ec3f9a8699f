"""The fused top-k's launches and scratch as cudnn-frontend 1.32 counts them: checked, and of no effect here."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.operands import require_positive
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.require import require_contiguous, require_dtype
from cudnn_fe.core.tensor import spec_of

__all__ = [
    "check_candidates",
    "check_window",
    "compress_topk_cand_buffer_size",
    "compress_topk_cand_buffer_size_thd",
]

_LONG = 32768  # queries from which on they are split over launches


def _visible_before(n: int, ratio: int) -> int:
    """``sum_{m=0..n} m // ratio``."""
    whole, rest = divmod(n, ratio)
    return ratio * whole * (whole - 1) // 2 + whole * (rest + 1)


def _window(given: int, batch: int, rows: int, ratio: int) -> int:
    """Queries of a launch, 0 for all."""
    if given >= 0:
        return given if given < rows else 0
    if rows < _LONG or rows % ratio:
        return 0
    size = 2048 if batch >= 8 else 4096 if batch >= 4 else 8192
    return size // ratio * ratio


def _numbers(x: Any) -> list[int]:
    """Offsets on the host, wherever they are."""
    return [int(value) for value in (x.tolist() if hasattr(x, "tolist") else x)]


def compress_topk_cand_buffer_size(
    bs: int,
    seqlen_q: int,
    seqlen_k: int,
    ratio: int,
    microbatch_rows: int = -1,
    return_lse: bool = False,
    q_causal_offsets: Any = None,
    precision: str = "bf16",
) -> int:
    """float32 elements of ``cand_buffer`` for padded operands; reads ``q_causal_offsets`` on the host.

    Args:
        bs: Batches.
        seqlen_q: Queries of each.
        seqlen_k: Keys of each.
        ratio: Tokens that a key stands for.
        microbatch_rows: Queries of a launch; -1 chooses, 0 is all.
        return_lse: Whether the log-sum-exp is asked for.
        q_causal_offsets: The token that each batch's first query stands at, or None.
        precision: Of the operands.

    Returns:
        The count: of all visible pairs of a launch.

    Raises:
        OptionError, NotYetSupportedError: As the message says.

    Example:
        >>> compress_topk_cand_buffer_size(2, 8, 2, 4)  # tokens 3..6 see one key, token 7 two
        12
    """
    del seqlen_k
    check_window(microbatch_rows, seqlen_q, ratio, False, precision, return_lse, q_causal_offsets)
    plain = not return_lse and precision.lower() == "bf16" and q_causal_offsets is None
    size = _window(microbatch_rows, bs, seqlen_q, ratio) if plain else 0
    if size:
        starts = range(0, seqlen_q, size)
        ends = (min(start + size, seqlen_q) for start in starts)
        pairs = (_visible_before(e, ratio) - _visible_before(s, ratio) for s, e in zip(starts, ends, strict=True))
        return bs * max(pairs, default=0)
    offsets = [0] * bs if q_causal_offsets is None else _numbers(q_causal_offsets)
    return sum(_visible_before(o + seqlen_q, ratio) - _visible_before(o, ratio) for o in offsets)


def compress_topk_cand_buffer_size_thd(
    cu_seqlens_q: Any, cu_seqlens_k: Any, ratio: int, q_causal_offsets: Any = None
) -> tuple[Any, int]:
    """Offsets into ``cand_buffer`` of packed sequences, and its float32 elements; reads the offsets on the host.

    Args:
        cu_seqlens_q: int32 (B+1,): first query of each sequence.
        cu_seqlens_k: int32 (B+1,): first key of each sequence.
        ratio: Tokens that a key stands for.
        q_causal_offsets: The token that each sequence's first query stands at, or None.

    Returns:
        int64 (B+1,) in the framework and on the device of ``cu_seqlens_q``, and the count.
    """
    require_positive(ratio, "ratio")
    del cu_seqlens_k
    ends = _numbers(cu_seqlens_q)
    offsets = [0] * (len(ends) - 1) if q_causal_offsets is None else _numbers(q_causal_offsets)
    counts = [0]
    for first, last, offset in zip(ends[:-1], ends[1:], offsets, strict=True):
        pairs = _visible_before(offset + last - first, ratio) - _visible_before(offset, ratio)
        counts.append(counts[-1] + pairs)
    return _like(cu_seqlens_q, counts), counts[-1]


def _like(x: Any, values: list[int]) -> Any:
    import array_api_compat

    xp = array_api_compat.array_namespace(x)
    return xp.asarray(values, dtype=xp.int64, device=array_api_compat.device(x))


def check_window(
    given: Any, rows: int, ratio: Any, packed: bool, precision: Any, return_lse: bool, causal: Any
) -> None:
    """Raises unless ``microbatch_rows`` goes with the call."""
    require_positive(ratio, "ratio")
    if isinstance(given, bool) or not isinstance(given, int) or given < -1:
        raise OptionError("microbatch_rows", got=repr(given), wanted="-1, 0 or more", remedy="leave it at -1: a hint")
    if given <= 0:
        return
    plain = isinstance(precision, str) and precision.lower() == "bf16"
    if packed or return_lse or causal is not None or not plain:
        raise NotYetSupportedError(
            "microbatch_rows",
            got=f"{given} with packed sequences, a log-sum-exp, offsets or scales",
            wanted="-1 or 0 there",
            remedy="leave it at -1: a hint",
        )
    if given < rows and (given % ratio or rows % ratio):
        raise OptionError(
            "microbatch_rows",
            got=f"{given} of {rows} queries",
            wanted=f"multiples of ratio = {ratio}",
            remedy="leave it at -1: a hint",
        )


def check_candidates(
    buffer: Any,
    offsets: Any,
    q: Any,
    k: Any,
    ratio: int,
    microbatch_rows: int,
    return_lse: bool,
    causal: Any,
    precision: str,
    packed: bool,
) -> None:
    """Raises unless scratch that is passed is what the helpers count."""
    if offsets is not None:
        if not packed:
            raise OptionError(
                "cand_batch_offsets", got="a tensor", wanted="None for padded operands", remedy="leave it out"
            )
        spec = spec_of(offsets, "cand_batch_offsets")
        require_dtype(spec, "int64")
        spec.require_rank(1, "(B+1,)")
        require_contiguous(spec)
    if buffer is None:
        return
    spec = spec_of(buffer, "cand_buffer")
    require_dtype(spec, "float32")
    require_contiguous(spec)
    if packed or causal is not None:
        return
    wanted = compress_topk_cand_buffer_size(
        q.shape[0], q.shape[1], k.shape[1], ratio, microbatch_rows, return_lse, None, precision
    )
    if spec.size < wanted:
        raise ShapeError(
            "cand_buffer",
            got=f"{spec.size} elements",
            wanted=f"{wanted}",
            remedy="allocate compress_topk_cand_buffer_size elements, or pass None",
        )
