"""The first weight of the gated attention block from a checkpoint's matrices."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

from array_api_compat import array_namespace

from cudnn_fe.attention.arrays import narrow, wide
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tensor import spec_of

__all__ = ["build_fused_qkvg_weight", "qkvg_from_hf", "qkvg_from_vllm"]


def build_fused_qkvg_weight(
    w_q_gate: Any,
    w_k: Any,
    w_v: Any,
    geometry: GatedAttentionBlockGeometry,
    *,
    q_gate_layout: str | None = None,
    index_qk_proj_weight: Any = None,
) -> Any:
    """The first weight (n_qkvg, d_model).

    Args:
        w_q_gate: Rows of queries and gates (2 Hq D, d_model).
        w_k: Rows of keys (Hkv D, d_model).
        w_v: Rows of values (Hkv D, d_model).
        geometry: The block's geometry.
        q_gate_layout: ``"flat"``: all queries, then all gates; ``"per_head"``: each head's query, then its gate.
            None is flat, with a FutureWarning: a wrong guess gives wrong gates without an error.
        index_qk_proj_weight: Rows of the indexer, where the geometry has its columns.

    Raises:
        ShapeError, DTypeError, OptionError: As the message says.
    """
    geometry.validate()
    if q_gate_layout is None:
        warnings.warn("q_gate_layout is not given: flat is taken; name it", FutureWarning, stacklevel=2)
        q_gate_layout = "flat"
    require_one_of(q_gate_layout, "q_gate_layout", ("flat", "per_head"))
    if (index_qk_proj_weight is not None) != geometry.index_band:
        wanted = "the indexer's rows" if geometry.index_band else "None without an indexer's columns"
        raise OptionError("index_qk_proj_weight", got="the opposite", wanted=wanted, remedy="fit it to geometry.qsa")
    g, width = geometry, geometry.d_head
    rows = {"w_q_gate": (w_q_gate, 2 * g.h_q * width), "w_k": (w_k, g.h_kv * width), "w_v": (w_v, g.h_kv * width)}
    if g.qsa is not None and g.index_band:
        rows["index_qk_proj_weight"] = (index_qk_proj_weight, g.qsa.index_band_cols)
    kind = spec_of(w_q_gate, "w_q_gate").dtype
    for name, (weight, count) in rows.items():
        spec = spec_of(weight, name)
        if spec.shape != (count, g.d_model):
            raise ShapeError(name, got=str(spec.shape), wanted=str((count, g.d_model)), remedy="fit the geometry")
        if spec.dtype != kind:
            raise DTypeError(name, got=str(spec.dtype), wanted=f"{kind}, as w_q_gate", remedy="cast it")
    xp = array_namespace(w_q_gate)
    if q_gate_layout == "per_head":
        w_q_gate = xp.permute_dims(xp.reshape(w_q_gate, (g.h_q, 2, width, g.d_model)), (1, 0, 2, 3))
    w_q_gate = xp.reshape(w_q_gate, (2 * g.h_q * width, g.d_model))
    return xp.concat([w_q_gate, *(weight for name, (weight, _) in rows.items() if name != "w_q_gate")], axis=0)


def _norm(weight: Any, act_dtype: Any) -> Any:
    """``1 + w``, formed in float32 and rounded once."""
    kind = "bfloat16" if act_dtype is None else dtype(act_dtype, operand="act_dtype").name
    return None if weight is None else narrow(wide(weight) + 1, kind)


def qkvg_from_hf(
    q_proj_weight: Any,
    k_proj_weight: Any,
    v_proj_weight: Any,
    q_norm_weight: Any,
    k_norm_weight: Any,
    geometry: GatedAttentionBlockGeometry,
    *,
    index_qk_proj_weight: Any = None,
    act_dtype: Any = None,
) -> tuple[Any, Any, Any]:
    """``(w_qkvg, w_q_norm, w_k_norm)`` from a checkpoint of Hugging Face's, whose norms are centred at zero.

    Args:
        q_proj_weight: Each head's query, then its gate (2 Hq D, d_model).
        k_proj_weight: Keys.
        v_proj_weight: Values.
        q_norm_weight: Weight of the queries' norm less 1 (D,).
        k_norm_weight: Weight of the keys' norm less 1.
        geometry: The block's geometry.
        index_qk_proj_weight: Rows of the indexer, where there is one.
        act_dtype: Type of the norms' weights; None is bfloat16.
    """
    fused = build_fused_qkvg_weight(
        q_proj_weight,
        k_proj_weight,
        v_proj_weight,
        geometry,
        q_gate_layout="per_head",
        index_qk_proj_weight=index_qk_proj_weight,
    )
    return fused, _norm(q_norm_weight, act_dtype), _norm(k_norm_weight, act_dtype)


def qkvg_from_vllm(
    qkv_proj_weight: Any,
    q_norm_weight: Any,
    k_norm_weight: Any,
    geometry: GatedAttentionBlockGeometry,
    *,
    act_dtype: Any = None,
    index_qk_proj_weight: Any = None,
) -> tuple[Any, Any, Any]:
    """`qkvg_from_hf` from vLLM's merged matrix of one rank.

    Args:
        qkv_proj_weight: Rows of the three projections one after the other, and the indexer's where there is one.
        q_norm_weight: Weight of the queries' norm less 1 (D,).
        k_norm_weight: Weight of the keys' norm less 1.
        geometry: The rank's geometry.
        act_dtype: Type of the norms' weights; None is bfloat16.
        index_qk_proj_weight: Rows of the indexer, where they are apart.
    """
    geometry.validate()
    ends = [0, 2 * geometry.h_q * geometry.d_head]
    ends += [ends[1] + geometry.h_kv * geometry.d_head * n for n in (1, 2)]
    merged = geometry.index_band and index_qk_proj_weight is None
    total = geometry.n_qkvg if merged else ends[3]
    shape = spec_of(qkv_proj_weight, "qkv_proj_weight").shape
    if shape != (total, geometry.d_model):
        wanted = str((total, geometry.d_model))
        raise ShapeError("qkv_proj_weight", got=str(shape), wanted=wanted, remedy="pass one rank's rows")
    q, k, v = (qkv_proj_weight[a:b] for a, b in pairwise(ends))
    index = qkv_proj_weight[ends[3] :] if merged else index_qk_proj_weight
    return qkvg_from_hf(
        q, k, v, q_norm_weight, k_norm_weight, geometry, index_qk_proj_weight=index, act_dtype=act_dtype
    )
