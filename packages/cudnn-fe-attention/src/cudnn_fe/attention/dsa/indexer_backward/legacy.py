"""The indexer's gradients under the names of cudnn-frontend 1.32, which write the scores' gradient over the scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from cudnn_fe.attention.called import CalledClass, given_of
from cudnn_fe.attention.dsa.dense import longest_of
from cudnn_fe.attention.dsa.indexer_backward import dsa_dense_indexer_backward, dsa_indexer_backward
from cudnn_fe.attention.dsa.indexer_backward.op import DENSE, SPARSE
from cudnn_fe.attention.operands import check_samples, require_flag, require_positive
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.legacy import LegacyFunction, make_function
from cudnn_fe.core.op import Problem
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides, spec_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = [
    "DenseIndexerBackward",
    "IndexerBackward",
    "dense_indexer_backward_wrapper",
    "indexer_backward_wrapper",
]

Bound = tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]


def _buffer(score: Any) -> Any:
    """The scores to write over; None where arrays do not change."""
    return score if framework_of(score) in ("torch", "numpy") else None


def _check_hints(block: Any, backend: Any = "default", deterministic: Any = False, planes: Any = 96) -> None:
    require_positive(block, "block_I")
    require_one_of(backend, "backend", ("default", "sm100_v2"))
    require_flag(deterministic, "deterministic")
    require_one_of(planes, "deterministic_dk_planes", (96, 128, 148))
    if planes != 96 and not deterministic:
        raise OptionError(
            "deterministic_dk_planes", got=repr(planes), wanted="96 unless deterministic", remedy="leave it at 96"
        )


def _overwriting(function: Callable[..., TupleDict], score: str) -> Callable[..., TupleDict]:
    """``function`` with cudnn-frontend 1.32's hints, which writes the scores' gradient over the operand ``score``."""

    @wraps(function)
    def run(
        *,
        block_I: Any,
        workspace: Any,
        backend: Any = "default",
        deterministic: Any = False,
        deterministic_dk_planes: Any = 96,
        **given: Any,
    ) -> TupleDict:
        del workspace  # none is needed
        _check_hints(block_I, backend, deterministic, deterministic_dk_planes)
        results = function(**given, d_score=_buffer(given[score]))
        return TupleDict({name: results[name] for name in ("d_index_q", "d_weights", "d_index_k")})

    return run


indexer_backward_wrapper = make_function(
    LegacyFunction(
        "indexer_backward_wrapper",
        _overwriting(dsa_indexer_backward, "attn_score"),
        """index_q, weights, index_k, attn_score, index_score, topk_indices, grad_loss, sm_scale=1.0, loss_coeff=1.0,
        block_I=128, topk_indices_global=False, d_index_q=None, d_weights=None, d_index_k=None, stream=None, *,
        backend="default", workspace=None, deterministic=False, deterministic_dk_planes=96""",
    ),
    __name__,
)
dense_indexer_backward_wrapper = make_function(
    LegacyFunction(
        "dense_indexer_backward_wrapper",
        _overwriting(dsa_dense_indexer_backward, "index_score"),
        """index_q, weights, index_k, attn_score, attn_l1norm, index_score, index_lse, grad_loss, sm_scale=1.0,
        loss_coeff=1.0, block_I=128, ratio=1, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None,
        max_seqlen_k=None, q_causal_offsets=None, d_index_q=None, d_weights=None, d_index_k=None, stream=None,
        workspace=None""",
    ),
    __name__,
)


def _sample(given: Mapping[str, Any], name: str) -> TensorSpec:
    return spec_of(given[f"sample_{name}"], name)


def _one(name: str, like: TensorSpec, kind: str, count: int = 1) -> TensorSpec:
    return TensorSpec((count,), contiguous_strides((count,)), dtype(kind), like.device, 16, name)


class IndexerBackward(CalledClass):
    """Class API of `dsa_indexer_backward`: ``check_support``, ``compile``, then ``execute`` into buffers."""

    op = SPARSE

    def __init__(
        self,
        sample_index_q: Any,
        sample_weights: Any,
        sample_index_k: Any,
        sample_d_index_q: Any,
        sample_d_weights: Any,
        sample_d_index_k: Any,
        sample_attn_score: Any,
        sample_index_score: Any,
        sample_topk_indices: Any,
        sm_scale: float = 1.0,
        block_I: int = 128,
        topk_indices_global: bool = False,
        backend: str = "default",
        deterministic: bool = False,
        deterministic_dk_planes: int = 96,
    ) -> None:
        given = given_of(locals())
        self._sm_scale, self._global = sm_scale, topk_indices_global
        self._set_up(given)

    @staticmethod
    def _bind(given: Mapping[str, Any]) -> Bound:  # type: ignore[override]
        names = ("block_I", "backend", "deterministic", "deterministic_dk_planes")
        _check_hints(*(given[name] for name in names))
        inputs = [_sample(given, name) for name in SPARSE.problem.operands[:6]]
        gradients = tuple(_sample(given, name) for name in ("d_index_q", "d_weights", "d_index_k"))
        loss = _one("grad_loss", inputs[0], inputs[3].dtype.name)
        options = {"topk_indices_global": given["topk_indices_global"], "dk_dtype": gradients[2].dtype}
        problem = SPARSE.bind(*inputs, loss, **options)
        return problem, check_samples(problem, (*gradients, None)), (float(given["sm_scale"]), 1.0)

    def execute(
        self,
        index_q: Any,
        weights: Any,
        index_k: Any,
        d_index_q: Any,
        d_weights: Any,
        d_index_k: Any,
        attn_score: Any,
        index_score: Any,
        topk_indices: Any,
        grad_loss: Any,
        loss_coeff: float = 1.0,
        current_stream: Any = None,
        workspace: Any = None,
    ) -> None:
        """Write the gradients into the given buffers, and the scores' gradient over ``attn_score``."""
        self._require_compiled()
        self._check_workspace(workspace)
        dsa_indexer_backward(
            index_q,
            weights,
            index_k,
            attn_score,
            index_score,
            topk_indices,
            grad_loss,
            self._sm_scale,
            loss_coeff,
            self._global,
            d_index_q,
            d_weights,
            d_index_k,
            attn_score,
            current_stream,
        )


class DenseIndexerBackward(CalledClass):
    """Class API of `dsa_dense_indexer_backward`: ``check_support``, ``compile``, then ``execute`` into buffers."""

    op = DENSE

    def __init__(
        self,
        sample_index_q: Any,
        sample_weights: Any,
        sample_index_k: Any,
        sample_d_index_q: Any,
        sample_d_weights: Any,
        sample_d_index_k: Any,
        sample_attn_score: Any,
        sample_attn_l1norm: Any,
        sample_index_score: Any,
        sample_index_lse: Any,
        sm_scale: float = 1.0,
        block_I: int = 128,
        ratio: int = 1,
        is_thd: bool = False,
        batch: int | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        has_q_causal_offsets: bool = False,
    ) -> None:
        given = given_of(locals())
        self._sm_scale, self._ratio, self._longest = sm_scale, ratio, (max_seqlen_q, max_seqlen_k)
        self._set_up(given)

    @staticmethod
    def _bind(given: Mapping[str, Any]) -> Bound:  # type: ignore[override]
        _check_hints(given["block_I"])
        inputs = [_sample(given, name) for name in DENSE.problem.operands[:7]]
        gradients = tuple(_sample(given, name) for name in ("d_index_q", "d_weights", "d_index_k"))
        batch = given["batch"] or (1 if given["is_thd"] else inputs[0].shape[0])
        offsets: list[TensorSpec | None] = [None, None, None]
        if given["is_thd"]:
            offsets[:2] = (_one(name, inputs[0], "int32", batch + 1) for name in ("cu_seqlens_q", "cu_seqlens_k"))
        if given["has_q_causal_offsets"]:
            offsets[2] = _one("q_causal_offsets", inputs[0], "int32", batch)
        width = inputs[5].shape[-1]
        problem = DENSE.bind(
            *inputs,
            _one("grad_loss", inputs[0], inputs[3].dtype.name),
            *offsets,
            ratio=given["ratio"],
            max_seqlen_q=inputs[0].shape[0] if given["max_seqlen_q"] is None else given["max_seqlen_q"],
            max_seqlen_k=width if given["max_seqlen_k"] is None else given["max_seqlen_k"],
            dk_dtype=gradients[2].dtype,
        )
        return problem, check_samples(problem, (*gradients, None)), (float(given["sm_scale"]), 1.0)

    def execute(
        self,
        index_q: Any,
        weights: Any,
        index_k: Any,
        d_index_q: Any,
        d_weights: Any,
        d_index_k: Any,
        attn_score: Any,
        attn_l1norm: Any,
        index_score: Any,
        index_lse: Any,
        grad_loss: Any,
        loss_coeff: float = 1.0,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        q_causal_offsets: Any = None,
        current_stream: Any = None,
        workspace: Any = None,
    ) -> None:
        """Write the gradients into the given buffers, and the scores' gradient over ``index_score``."""
        self._require_compiled()
        self._check_workspace(workspace)
        queries, keys = self._longest
        packed = cu_seqlens_q is not None
        dsa_dense_indexer_backward(
            index_q,
            weights,
            index_k,
            attn_score,
            attn_l1norm,
            index_score,
            index_lse,
            grad_loss,
            self._sm_scale,
            loss_coeff,
            self._ratio,
            cu_seqlens_q,
            cu_seqlens_k,
            longest_of(cu_seqlens_q, queries if packed else None, "max_seqlen_q"),
            index_score.shape[-1] if keys is None else keys,
            q_causal_offsets,
            d_index_q,
            d_weights,
            d_index_k,
            index_score,
            current_stream,
        )
