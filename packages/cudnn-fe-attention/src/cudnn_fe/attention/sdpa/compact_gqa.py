"""Gradients of causal attention of packed sequences whose lengths the host knows: a plan, and its function."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from array_api_compat import array_namespace

from cudnn_fe.attention.operands import deliver
from cudnn_fe.attention.sdpa import sdpa_backward
from cudnn_fe.core.errors import NotCompiledError, OptionError, OptionTypeError, ShapeError
from cudnn_fe.core.experimental import announce_experimental
from cudnn_fe.core.require import require_one_of, require_shape
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["CompactGqaBackward", "compact_gqa_backward"]

_NAMES = ("q", "k", "v", "o", "do", "lse")
_ROWS = 128


class CompactGqaBackward:
    """Gradients of causal attention of packed sequences; lengths are given to each call.

    Args:
        q: A tensor like the queries (T, Hq, D).
        k: One like the keys (T, Hkv, D).
        v: One like the values (T, Hkv, D).
        o: One like the forward's output (T, Hq, D).
        do: One like its gradient.
        lse: One like the log-sum-exp (T, Hq) or (T, Hq, 1), natural.
        max_seqlen: Hint: the longest sequence.
        query_rows: Hint, a multiple of 128.
        groups: Hint: 1, 2, 4 or 8.
        fast_store: Hint.
        ds_budget_bytes: Hint: bytes of scratch.
        packed: Hint.
    """

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        do: Any,
        lse: Any,
        *,
        max_seqlen: int | None = None,
        query_rows: int = 16384,
        groups: int = 4,
        fast_store: bool = True,
        ds_budget_bytes: int = 8 << 30,
        packed: bool = True,
    ) -> None:
        del fast_store, packed
        announce_experimental(type(self).__name__)
        require_one_of(groups, "groups", (1, 2, 4, 8))
        if query_rows < _ROWS or query_rows % _ROWS:
            raise OptionError("query_rows", got=str(query_rows), wanted="a multiple of 128", remedy="leave it unset")
        if ds_budget_bytes < 16 * _ROWS * _ROWS:
            wanted = f"at least {16 * _ROWS * _ROWS}"
            raise OptionError("ds_budget_bytes", got=str(ds_budget_bytes), wanted=wanted, remedy="leave it unset")
        _check_capacity(max_seqlen)
        self._specs = tuple(spec_of(x, name) for x, name in zip((q, k, v, o, do, lse), _NAMES, strict=True))
        self._compiled = False

    def check_support(self) -> bool:
        """Validate the samples.

        Returns:
            True.

        Raises:
            ShapeError: The samples do not fit one another.
        """
        q, k, v, o, do, lse = self._specs
        for spec in (q, k, v, o, do):
            spec.require_rank(3, "(T, H, D)")
        require_shape(k, (q.shape[0], k.shape[1], q.shape[2]), "(T, Hkv, D)")
        require_shape(v, (*k.shape[:2], v.shape[2]), "(T, Hkv, Dv)")
        for spec in (o, do):
            require_shape(spec, (*q.shape[:2], v.shape[2]), "(T, Hq, Dv)")
        require_shape(lse, (*q.shape[:2], 1) if lse.ndim == 3 else q.shape[:2], "(T, Hq)")
        return True

    def scratch_workspace_bytes(self, max_seqlen: int | None = None) -> int:
        """Bytes of the workspace for sequences of that length: none."""
        _check_capacity(max_seqlen)
        return 0

    def compile(self, current_stream: Any = None) -> CompactGqaBackward:
        """Make the plan ready; returns it."""
        del current_stream
        self.check_support()
        self._compiled = True
        return self

    def initialize_workspace(
        self, workspace: Any, current_stream: Any = None, *, max_seqlen: int | None = None
    ) -> None:
        """Compile; no workspace is needed, so any is taken."""
        del workspace
        _check_capacity(max_seqlen)
        self.compile(current_stream)

    def execute(
        self,
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        do: Any,
        lse: Any,
        dq: Any,
        dk: Any,
        dv: Any,
        workspace: Any,
        current_stream: Any = None,
        *,
        sequence_offsets: Sequence[int] | None = None,
        sequence_lengths: Sequence[int] | None = None,
    ) -> None:
        """Write the gradients into ``dq``, ``dk`` and ``dv``; rows past a sequence's length get 0.

        Args:
            q: Queries, and so on like the samples; only their number of tokens may differ.
            k: Keys.
            v: Values.
            o: The forward's output.
            do: Its gradient.
            lse: The log-sum-exp.
            dq: Gradient of Q.
            dk: Gradient of K.
            dv: Gradient of V.
            workspace: Not used.
            current_stream: Launch stream for CUDA tensors.
            sequence_offsets: First token of each sequence, and the number of all; host ints. None is one sequence.
            sequence_lengths: Tokens of each sequence where there are gaps after them.
        """
        del workspace
        grads = self._run((q, k, v, o, do, lse), current_stream, sequence_offsets, sequence_lengths)
        deliver(grads, (dq, dk, dv), ("dq", "dk", "dv"), stream=current_stream)

    def _run(self, arrays: tuple[Any, ...], stream: Any, offsets: Any, lengths: Any) -> tuple[Any, ...]:
        if not self._compiled:
            name = type(self).__name__
            raise NotCompiledError(name, got="execute before compile", wanted="a plan", remedy=f"call {name}.compile()")
        tokens = arrays[0].shape[0]
        for x, sample in zip(arrays, self._specs, strict=True):
            _check_like(spec_of(x, sample.name), sample, tokens)
        starts, counts = _packing(tokens, offsets, lengths)
        xp = array_namespace(arrays[0])
        place = {"device": arrays[0].device} if hasattr(arrays[0], "is_cuda") else {}
        first, length = (xp.asarray(x, dtype=xp.int32, **place) for x in (starts, counts))
        q, k, v, o, do = (xp.permute_dims(x, (1, 0, 2))[None] for x in arrays[:5])
        stats = xp.permute_dims(arrays[5][..., None] if arrays[5].ndim == 2 else arrays[5], (1, 0, 2))[None]
        options = {"is_causal": True, "deterministic": True, "seq_q_lens": length, "seq_kv_lens": length}
        grads = sdpa_backward(
            q, k, v, o, do, stats, cum_seqlen_q_tensor=first, cum_seqlen_k_tensor=first, stream=stream, **options
        )
        return tuple(xp.permute_dims(x[0], (1, 0, 2)) for x in grads)

    def close(self) -> None:
        """Give the plan back: it runs no more."""
        self._compiled = False


def _check_capacity(given: int | None) -> None:
    if given is not None and operator.index(given) < 1:
        raise OptionError("max_seqlen", got=str(given), wanted="at least 1", remedy="pass the longest sequence")


def _check_like(spec: TensorSpec, sample: TensorSpec, tokens: int) -> None:
    if spec.shape != (tokens, *sample.shape[1:]) or spec.dtype != sample.dtype or spec.device != sample.device:
        raise ShapeError(
            spec.name,
            got=f"{spec.shape} {spec.dtype} on {spec.device}",
            wanted=f"{(tokens, *sample.shape[1:])} {sample.dtype} on {sample.device}, as the sample",
            remedy="pass tensors like the samples, or make another plan",
        )


def _packing(tokens: int, offsets: Any, lengths: Any) -> tuple[list[int], list[int]]:
    for name, given in (("sequence_offsets", offsets), ("sequence_lengths", lengths)):
        if given is not None and (hasattr(given, "shape") or not all(hasattr(n, "__index__") for n in given)):
            raise OptionTypeError(
                name, got=repr(given), wanted="host ints", remedy="pass a list: it is read on the host"
            )
    starts = [0, tokens] if offsets is None else [operator.index(n) for n in offsets]
    spans = [b - a for a, b in pairwise(starts)]
    counts = spans if lengths is None else [operator.index(n) for n in lengths]
    if not spans or starts[0] != 0 or starts[-1] != tokens or len(counts) != len(spans):
        raise ShapeError(
            "sequence_offsets",
            got=f"{starts} and {len(counts)} lengths",
            wanted=f"offsets from 0 to {tokens}, one more than lengths",
            remedy="cover all tokens",
        )
    if any(n < 0 or n > span for n, span in zip(counts, spans, strict=True)):
        raise ShapeError(
            "sequence_lengths",
            got=str(counts),
            wanted=f"0 to {spans}",
            remedy="fit the sequences between their offsets",
        )
    return starts, counts


def compact_gqa_backward(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    do: Any,
    lse: Any,
    *,
    plan: CompactGqaBackward,
    workspace: Any,
    current_stream: Any = None,
    sequence_offsets: Sequence[int] | None = None,
    sequence_lengths: Sequence[int] | None = None,
) -> TupleDict:
    """Gradients of causal attention of packed sequences, with a plan.

    Args:
        q: Queries (T, Hq, D), and so on like the plan's samples.
        k: Keys (T, Hkv, D).
        v: Values.
        o: The forward's output (T, Hq, D).
        do: Its gradient.
        lse: The log-sum-exp (T, Hq).
        plan: A compiled `CompactGqaBackward`.
        workspace: Not used.
        current_stream: Launch stream for CUDA tensors.
        sequence_offsets: First token of each sequence, and the number of all; None is one sequence.
        sequence_lengths: Tokens of each sequence where there are gaps after them.

    Returns:
        ``dq``, ``dk`` and ``dv``.

    Raises:
        NotCompiledError, ShapeError, OptionTypeError: As the message says.
    """
    del workspace
    grads = plan._run((q, k, v, o, do, lse), current_stream, sequence_offsets, sequence_lengths)
    return TupleDict(zip(("dq", "dk", "dv"), grads, strict=True))
