"""The gated attention block by its module path in cudnn-frontend 1.32."""

from cudnn_fe.attention.gated_block import gated_attention_block_backward, gated_attention_block_forward
from cudnn_fe.attention.gated_block.declarations import (
    QSA_INDEX_LIST_FORM_PER_ROW,
    QSA_INDEX_LIST_FORM_SHARED,
    QSA_INDEX_LIST_FORMS,
    Fp4Format,
    MxQuantSpec,
    QsaSpec,
    QuantSpec,
)
from cudnn_fe.attention.gated_block.geometry import QKVG_TILE_ALIGN, GatedAttentionBlockGeometry, ProjBlock
from cudnn_fe.attention.gated_block.legacy_backward import GatedAttentionBlockBwd
from cudnn_fe.attention.gated_block.legacy_forward import GatedAttentionBlockFwd
from cudnn_fe.attention.gated_block.paged_op import KV_SOURCE_PAGED, KV_SOURCE_SELF
from cudnn_fe.attention.gated_block.record import (
    RecomputePolicy,
    SavedForBackward,
    index_k_raw_view,
    saved_slab_views,
)
from cudnn_fe.attention.gated_block.serving import (
    CACHE_WRITE_SMALL_M_DEFAULT_MAX_ROWS,
    DECODE_CLAIMED_MAX_N_Q,
    DECODE_CLAIMED_MAX_S_Q,
    DECODE_MAX_ROWS,
    DECODE_MAX_S_Q,
    DECODE_PDL_DEFAULT_CCS,
    DECODE_PREFILL_ROUTE_MIN_CTAS,
    DECODE_PREFILL_TILE_ROWS,
    DECODE_ROUTE_POLICIES,
    DECODE_ROUTE_SINGLE_UNIT,
    DECODE_ROUTE_TOKEN_UNITS,
    SERVING_PAGE_SIZES,
    SERVING_POOL_LAYOUTS,
    DecodeEnvelope,
    DecodeRoute,
    ExtendEnvelope,
    ServingEnvelope,
    decode_route,
)
from cudnn_fe.attention.gated_block.weights import build_fused_qkvg_weight, qkvg_from_hf, qkvg_from_vllm

__all__ = [
    "CACHE_WRITE_SMALL_M_DEFAULT_MAX_ROWS",
    "DECODE_CLAIMED_MAX_N_Q",
    "DECODE_CLAIMED_MAX_S_Q",
    "DECODE_MAX_ROWS",
    "DECODE_MAX_S_Q",
    "DECODE_PDL_DEFAULT_CCS",
    "DECODE_PREFILL_ROUTE_MIN_CTAS",
    "DECODE_PREFILL_TILE_ROWS",
    "DECODE_ROUTE_POLICIES",
    "DECODE_ROUTE_SINGLE_UNIT",
    "DECODE_ROUTE_TOKEN_UNITS",
    "KV_SOURCE_PAGED",
    "KV_SOURCE_SELF",
    "QKVG_TILE_ALIGN",
    "QSA_INDEX_LIST_FORMS",
    "QSA_INDEX_LIST_FORM_PER_ROW",
    "QSA_INDEX_LIST_FORM_SHARED",
    "SERVING_PAGE_SIZES",
    "SERVING_POOL_LAYOUTS",
    "DecodeEnvelope",
    "DecodeRoute",
    "ExtendEnvelope",
    "Fp4Format",
    "GatedAttentionBlockBwd",
    "GatedAttentionBlockFwd",
    "GatedAttentionBlockGeometry",
    "MxQuantSpec",
    "ProjBlock",
    "QsaSpec",
    "QuantSpec",
    "RecomputePolicy",
    "SavedForBackward",
    "ServingEnvelope",
    "build_fused_qkvg_weight",
    "decode_route",
    "gated_attention_block_backward",
    "gated_attention_block_forward",
    "index_k_raw_view",
    "qkvg_from_hf",
    "qkvg_from_vllm",
    "saved_slab_views",
]
