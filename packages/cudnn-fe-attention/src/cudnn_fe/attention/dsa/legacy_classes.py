"""DSA's classes whose `execute` takes more than the samples say: offsets, optional results, padded buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.attention.called import CalledClass, given_of
from cudnn_fe.attention.dsa.dense_scores import dsa_dense_attn_score_forward, dsa_dense_indexer_score_forward
from cudnn_fe.attention.dsa.dense_scores.op import ATTENTION, INDEXER
from cudnn_fe.attention.dsa.indexer import dsa_indexer_forward
from cudnn_fe.attention.dsa.indexer.op import FORWARD as SCORES
from cudnn_fe.attention.dsa.indexer.operands import check_tiles
from cudnn_fe.attention.dsa.sparse_attention import dsa_sparse_attention_forward
from cudnn_fe.attention.dsa.sparse_attention.op import FORWARD
from cudnn_fe.attention.operands import check_samples, deliver
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides, spec_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["DenseAttnScoreRecompute", "DenseIndexerScoreRecompute", "IndexerForward", "SparseAttentionForward"]

Bound = tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]


def _spec(given: Mapping[str, Any], name: str) -> TensorSpec | None:
    sample = given[f"sample_{name}"]
    return None if sample is None else spec_of(sample, name)


class IndexerForward(CalledClass):
    """Class API of `dsa_indexer_forward` for padded plain operands, into a buffer whose rows may be longer."""

    op = SCORES

    def __init__(
        self,
        sample_q: Any,
        sample_k: Any,
        sample_w: Any,
        sample_out: Any,
        ratio: int = 4,
        qhead_per_kv_head: int | None = None,
        m_block_size: int = 128,
        n_block_size: int = 128,
        q_stage: int = 2,
        kv_stage: int = 4,
        sm_scale: float = 1.0,
    ) -> None:
        self._ratio, self._sm_scale = ratio, sm_scale
        self._set_up(given_of(locals()))

    @staticmethod
    def _bind(given: Mapping[str, Any]) -> Bound:  # type: ignore[override]
        check_tiles(*(given[name] for name in ("m_block_size", "n_block_size", "q_stage", "kv_stage")))
        problem = SCORES.bind(
            *(_spec(given, name) for name in ("q", "k", "w")),
            *[None] * 7,
            ratio=given["ratio"],
            qhead_per_kv_head=given["qhead_per_kv_head"],
            max_seqlen_q=None,
            max_seqlen_k=None,
            precision="bf16",
            sf_vec_size=32,
            return_lse=False,
        )
        out, wanted = spec_of(given["sample_out"], "out"), problem.outputs[0]
        if out.ndim != 3 or out.shape[:2] != wanted.shape[:2] or out.shape[2] < wanted.shape[2]:
            raise ShapeError(
                "out",
                got=str(out.shape),
                wanted=f"{wanted.shape[:2]} and at least {wanted.shape[2]} columns",
                remedy="allocate (B, Sq, Sk rounded up to a multiple of 4)",
            )
        seen = TensorSpec(wanted.shape, out.strides, out.dtype, out.device, out.alignment, "out")
        return problem, check_samples(problem, (seen,)), (float(given["sm_scale"]),)

    def execute(self, q: Any, k: Any, w: Any, out: Any, current_stream: Any = None) -> None:
        """Write the scores into the first Sk columns of ``out``; those after them are not touched."""
        self._require_compiled()
        dsa_indexer_forward(
            q, k, w, self._ratio, sm_scale=self._sm_scale, out=out[..., : k.shape[1]], stream=current_stream
        )


def _bind_dense(op: Op, third: str, scalar: str, given: Mapping[str, Any]) -> Bound:
    q, k, w, out, denom = (_spec(given, name) for name in ("q", "k", third, "out", "denom_out"))
    assert q is not None
    assert out is not None
    packed = given["is_thd"]
    offsets = [None, None]
    width = out.shape[-1] if given["max_seqlen_k"] is None else given["max_seqlen_k"]
    if packed:
        if given["max_seqlen_q"] is None:
            raise OptionError("max_seqlen_q", got="None", wanted="the longest sequence", remedy="pass it with is_thd")
        if width != out.shape[-1]:
            raise OptionError(
                "max_seqlen_k", got=str(width), wanted=f"{out.shape[-1]}, the columns of out", remedy="leave it unset"
            )
        place = TensorSpec((2,), contiguous_strides((2,)), dtype("int32"), q.device, 16, "cu_seqlens_q")
        offsets = [place, place]  # type: ignore[list-item]
    elif given["max_seqlen_q"] is not None or given["max_seqlen_k"] is not None:
        raise OptionError(
            "max_seqlen_q, max_seqlen_k", got="a length", wanted="None without is_thd", remedy="leave them unset"
        )
    problem = op.bind(
        q,
        k,
        w,
        None,
        None,
        *offsets,
        None,
        None,
        None,
        ratio=given["ratio"],
        qhead_per_kv_head=given["qhead_per_kv_head"],
        max_seqlen_q=given["max_seqlen_q"],
        max_seqlen_k=width,
        precision="bf16",
        sf_vec_size=32,
    )
    return problem, check_samples(problem, (out, denom)), (float(given[scalar]),)


def _matching(name: str, given: Any, made: Any) -> Any:
    if given is not None and made is not None and given != made:
        raise OptionError(name, got=str(given), wanted=f"{made}, as the object was made", remedy="leave it unset")
    return made if given is None else given


class DenseIndexerScoreRecompute(CalledClass):
    """Class API of `dsa_dense_indexer_score_forward` for plain operands."""

    op = INDEXER

    def __init__(
        self,
        sample_q: Any,
        sample_k: Any,
        sample_weights: Any,
        sample_out: Any,
        sample_denom_out: Any,
        qhead_per_kv_head: int | None = None,
        sm_scale: float = 1.0,
        ratio: int = 1,
        is_thd: bool = False,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
    ) -> None:
        self._made = sm_scale, ratio, max_seqlen_q, max_seqlen_k
        self._set_up(given_of(locals()))

    @staticmethod
    def _bind(given: Mapping[str, Any]) -> Bound:  # type: ignore[override]
        return _bind_dense(INDEXER, "weights", "sm_scale", given)

    def execute(
        self,
        q: Any,
        k: Any,
        weights: Any,
        out: Any,
        denom_out: Any,
        sm_scale: float | None = None,
        ratio: int | None = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        q_causal_offsets: Any = None,
        current_stream: Any = None,
    ) -> None:
        """Write the scores and their log-sum-exp into the given buffers."""
        self._require_compiled()
        scale, step, queries, keys = self._made
        dsa_dense_indexer_score_forward(
            q,
            k,
            weights,
            out=out,
            denom_out=denom_out,
            sm_scale=scale if sm_scale is None else sm_scale,
            ratio=step if ratio is None else ratio,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=_matching("max_seqlen_q", max_seqlen_q, queries),
            max_seqlen_k=_matching("max_seqlen_k", max_seqlen_k, keys or out.shape[-1]),
            q_causal_offsets=q_causal_offsets,
            stream=current_stream,
        )


class DenseAttnScoreRecompute(CalledClass):
    """Class API of `dsa_dense_attn_score_forward` for plain operands."""

    op = ATTENTION

    def __init__(
        self,
        sample_q: Any,
        sample_k: Any,
        sample_lse: Any,
        sample_out: Any,
        sample_denom_out: Any,
        softmax_scale: float,
        qhead_per_kv_head: int | None = None,
        ratio: int = 1,
        is_thd: bool = False,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
    ) -> None:
        self._made = softmax_scale, ratio, max_seqlen_q, max_seqlen_k
        self._set_up(given_of(locals()))

    @staticmethod
    def _bind(given: Mapping[str, Any]) -> Bound:  # type: ignore[override]
        return _bind_dense(ATTENTION, "lse", "softmax_scale", given)

    def execute(
        self,
        q: Any,
        k: Any,
        lse: Any,
        out: Any,
        denom_out: Any,
        softmax_scale: float | None = None,
        ratio: int | None = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        q_causal_offsets: Any = None,
        current_stream: Any = None,
    ) -> None:
        """Write the probabilities and their sums into the given buffers."""
        self._require_compiled()
        scale, step, queries, keys = self._made
        dsa_dense_attn_score_forward(
            q,
            k,
            lse,
            scale if softmax_scale is None else softmax_scale,
            out=out,
            denom_out=denom_out,
            ratio=step if ratio is None else ratio,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=_matching("max_seqlen_q", max_seqlen_q, queries),
            max_seqlen_k=_matching("max_seqlen_k", max_seqlen_k, keys or out.shape[-1]),
            q_causal_offsets=q_causal_offsets,
            stream=current_stream,
        )


class SparseAttentionForward(CalledClass):
    """Class API of `dsa_sparse_attention_forward`; results without a buffer are allocated."""

    op = FORWARD

    def __init__(
        self,
        sample_q: Any,
        sample_kv: Any,
        sample_topk_idxs: Any,
        sample_attn_sink: Any = None,
        sample_topk_length: Any = None,
        softmax_scale: float | None = None,
        indexer_topk: int = 0,
    ) -> None:
        self._softmax_scale, self._indexer_topk = softmax_scale, indexer_topk
        self._set_up(given_of(locals()))

    @staticmethod
    def _bind(given: Mapping[str, Any]) -> Bound:  # type: ignore[override]
        specs = (_spec(given, name) for name in FORWARD.problem.operands)
        problem = FORWARD.bind(*specs, indexer_topk=given["indexer_topk"])
        return problem, problem.outputs, ()

    def execute(  # type: ignore[override]
        self,
        q: Any,
        kv: Any,
        topk_idxs: Any,
        *,
        attn_sink: Any = None,
        topk_length: Any = None,
        softmax_scale: float | None = None,
        out: Any = None,
        max_logits: Any = None,
        lse: Any = None,
        lse_indexer: Any = None,
        current_stream: Any = None,
    ) -> TupleDict:
        """Attend, into the given buffers, and return them with fresh results for those that are None."""
        self._require_compiled()
        if lse_indexer is not None and not self._indexer_topk:
            raise OptionError("lse_indexer", got="a buffer", wanted="None with indexer_topk=0", remedy="leave it out")
        results = dsa_sparse_attention_forward(
            q,
            kv,
            topk_idxs,
            attn_sink=attn_sink,
            topk_length=topk_length,
            softmax_scale=self._softmax_scale if softmax_scale is None else softmax_scale,
            indexer_topk=self._indexer_topk,
            stream=current_stream,
        )
        names = tuple(name for name, result in results.items() if result is not None)
        buffers = {"out": out, "max_logits": max_logits, "lse": lse, "lse_indexer": lse_indexer}
        placed = deliver(
            tuple(results[name] for name in names),
            tuple(buffers[name] for name in names),
            names,
            stream=current_stream,
        )
        return TupleDict({**dict.fromkeys(buffers), **dict(zip(names, placed, strict=True))})
