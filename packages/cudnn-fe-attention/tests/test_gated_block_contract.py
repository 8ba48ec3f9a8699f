"""The gated attention block's declarations, weights and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations, geometry
from cudnn_fe_testkit.compare import to_float64
from cudnn_fe_testkit.gated_block import NAMES, block_operands
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists and tables here, which the type checker cannot count.
forward: Any = attention.gated_attention_block_forward
backward: Any = attention.gated_attention_block_backward
qkvg_from_hf: Any = attention.qkvg_from_hf
qkvg_from_vllm: Any = attention.qkvg_from_vllm
build_fused_qkvg_weight: Any = attention.build_fused_qkvg_weight
Geometry: Any = attention.GatedAttentionBlockGeometry

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
GQA = Geometry(d_model=48, h_q=4, h_kv=2, d_head=32, rope_dim=12)


def test_weights_of_checkpoints() -> None:
    """The query and gate of every head, and values, end where the projection's bands say."""
    g = GQA
    q, gate = normal((4, 32, 48), seed=0), normal((4, 32, 48), seed=1)
    k, v = normal((64, 48), seed=2), normal((64, 48), seed=3)
    norms = normal((32,), "bfloat16", seed=4, scale=0.1), normal((32,), "bfloat16", seed=5, scale=0.1)
    wanted = np.concatenate([q.reshape(-1, 48), gate.reshape(-1, 48), k, v])
    interleaved = np.stack([q, gate], 1).reshape(-1, 48)
    flat = np.concatenate([q.reshape(-1, 48), gate.reshape(-1, 48)])
    for framework in FRAMEWORKS:
        pieces = [convert(x, framework) for x in (interleaved, k, v, *norms)]
        fused, w_q, w_k = qkvg_from_hf(*pieces, g)
        np.testing.assert_array_equal(to_float64(fused), wanted)
        np.testing.assert_array_equal(to_float64(w_q), (1 + norms[0].astype(np.float32)).astype(norms[0].dtype))
        merged = convert(np.concatenate([interleaved, k, v]), framework)
        again = qkvg_from_vllm(merged, *pieces[3:], g)
        for a, b in zip(again, (fused, w_q, w_k), strict=True):
            np.testing.assert_array_equal(to_float64(a), to_float64(b))
    np.testing.assert_array_equal(build_fused_qkvg_weight(flat, k, v, g, q_gate_layout="flat"), wanted)
    with pytest.warns(FutureWarning, match="q_gate_layout"):
        build_fused_qkvg_weight(flat, k, v, g)
    for arguments, options, kind, message in (
        ((flat[:-1], k, v), {}, ValueError, "w_q_gate: got"),
        ((flat, k[:, :8], v), {}, ValueError, "w_k: got"),
        ((flat, k, v.astype(np.float16)), {}, TypeError, "w_v: got float16"),
        ((flat, k, v), {"index_qk_proj_weight": k}, ValueError, "index_qk_proj_weight: got"),
        ((flat, k, v), {"q_gate_layout": "by_head"}, ValueError, "q_gate_layout: got 'by_head'"),
    ):
        with pytest.raises(kind, match=message):
            build_fused_qkvg_weight(*arguments, g, **{"q_gate_layout": "flat", **options})
    with pytest.raises(ValueError, match="qkv_proj_weight: got"):
        qkvg_from_vllm(flat, *norms, g)


def test_columns_of_the_projection() -> None:
    block = geometry.ProjBlock
    assert (GQA.n_qkv, GQA.n_qkvg, GQA.gqa_ratio) == (256, 384, 2)
    assert GQA.qkvg_offsets == (0, 128, 256, 320)
    assert GQA.block_for_column(0) == (block.Q, 0, 0)
    assert GQA.block_for_column(128 + 33) == (block.GATE, 1, 1)
    assert GQA.block_for_column(383) == (block.V, 1, 31)
    assert GQA.qkvg_tile_plan(64) == (block.Q, block.Q, block.GATE, block.GATE, block.K, block.V)
    sparse = replace(GQA, qsa=declarations.QsaSpec(index_band=True, index_head_dim=64))
    assert sparse.n_qkvg == 384 + 5 * 64
    assert sparse.block_for_column(384 + 65) == (block.INDEX, 1, 1)
    for call, message in (
        (lambda: GQA.block_for_column(384), "c: got 384"),
        (lambda: GQA.qkvg_tile_plan(0), "tile_n: got 0"),
        (lambda: GQA.qkvg_tile_plan(96), "tile_n: got 96: a tile of GATE and Q"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        *(({name: 0}, ValueError, f"{name}: got 0") for name in ("d_model", "h_q", "h_kv", "d_head")),
        ({"h_kv": 3}, ValueError, "h_q: got 4, wanted a multiple of h_kv = 3"),
        ({"rope_dim": 34}, ValueError, r"rope_dim: got 34, wanted 0..32"),
        ({"rope_dim": 3}, ValueError, "rope_dim: got 3, wanted an even"),
        ({"qk_norm_eps": 0.0}, ValueError, "qk_norm_eps: got 0.0"),
        ({"attn_scale": -1.0}, ValueError, "attn_scale: got -1.0"),
        ({"qk_norm": False, "rope_dim": 0}, ValueError, "qk_norm: got False"),
        ({"window_left": -2}, ValueError, "window_left: got -2"),
        ({"window_right": -2}, ValueError, "window_right: got -2"),
        ({"rope_dim": -2}, ValueError, "rope_dim: got -2"),
        ({"window_right": 1, "is_causal": False}, ValueError, "window_right: got 1"),
        ({"causal_bottom_right": True, "is_causal": False}, ValueError, "causal_bottom_right: got True"),
        ({"h_kv": 1}, ValueError, "d_head: got 32 columns of K"),
        ({"qsa": 4}, TypeError, "qsa: got int"),
        ({"qsa": declarations.QsaSpec(top_k=6)}, ValueError, "top_k: got 6"),
        ({"qsa": declarations.QsaSpec(index_source="indexer")}, ValueError, "index_band: got False"),
        ({"qsa": declarations.QsaSpec(block_size=8)}, ValueError, "block_size: got 8"),
        ({"qsa": declarations.QsaSpec()}, NotImplementedError, "qsa: got a QsaSpec"),
    ],
)
def test_geometries_that_are_refused(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    given = block_operands(GQA)
    with pytest.raises(kind, match=message):
        forward(*(given[n] for n in NAMES), replace(GQA, **change))


def test_declarations_of_quantised_blocks() -> None:
    scales = dict.fromkeys(
        ("descale_h", "descale_w_qkvg", "descale_w_o", "scale_q", "scale_k", "scale_v", "scale_o"), 1.0
    )
    assert declarations.QuantSpec(**scales).dtype == "float8_e4m3fn"
    with pytest.raises(ValueError, match="scale_k: got 0"):
        declarations.QuantSpec(**{**scales, "scale_k": 0.0})
    with pytest.raises(NotImplementedError, match="dtype: got float8_e5m2"):
        declarations.QuantSpec(**scales, dtype="float8_e5m2")
    nvfp4 = declarations.Fp4Format.NVFP4
    assert (nvfp4.fmt_name, nvfp4.block_size, nvfp4.sf_torch_dtype) == ("nvfp4", 16, torch.float8_e4m3fn)
    assert declarations.Fp4Format.MXFP4.sf_cudnn_dtype == "float8_e8m0fnu"
    with pytest.raises(ValueError, match=r"scale_o: got 2.0, wanted 1.0 with o_fp4"):
        declarations.MxQuantSpec(1.0, 2.0, o_fp4=nvfp4)
    with pytest.raises(ValueError, match="block_size: got 16"):
        declarations.MxQuantSpec(1.0, block_size=16)
    with pytest.raises(NotImplementedError, match="w_qkvg_dtype: got float8_e5m2"):
        declarations.MxQuantSpec(1.0, w_qkvg_dtype="float8_e5m2")
    with pytest.raises(TypeError, match="o_fp4: got str, wanted an Fp4Format"):
        declarations.MxQuantSpec(1.0, o_fp4="nvfp4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"h": np.zeros((2, 9), np.float32)}, ValueError, "h: got shape"),
        ({"h": np.zeros((2, 9, 40), np.float32)}, ValueError, "h: got"),
        ({"h": np.zeros((2, 9, 48), np.int32)}, TypeError, "h: got int32"),
        ({"w_qkvg": np.zeros((100, 48), np.float32)}, ValueError, "w_qkvg: got"),
        ({"w_o": np.zeros((48, 128), np.float16)}, TypeError, "w_o: got float16"),
        ({"w_q_norm": None}, ValueError, "w_q_norm: got None"),
        ({"w_k_norm": None}, ValueError, "w_k_norm: got None"),
        ({"w_k_norm": np.zeros(16, np.float32)}, ValueError, "w_k_norm: got"),
        ({"w_k_norm": np.zeros(32, np.float16)}, TypeError, "w_k_norm: got float16"),
        ({"geometry": replace(GQA, qk_norm=False)}, ValueError, "w_q_norm: got a weight, wanted None without qk_norm"),
        ({"sin": np.zeros((2, 9, 12), np.float16)}, TypeError, "sin: got float16"),
        ({"w_o": None}, ValueError, "w_o: got None"),
        ({"cos": np.zeros((2, 9, 8), np.float32)}, ValueError, "cos: got"),
        ({"geometry": 3}, TypeError, "geometry: got int"),
        ({"seq_lens": np.zeros(3, np.int32)}, ValueError, "seq_lens: got"),
        ({"seq_lens": np.zeros(2, np.int64)}, TypeError, "seq_lens: got int64"),
        ({"thd": True}, ValueError, r"h: got \(2, 9, 48\), wanted \(T, d_model\)"),
        ({"save_for_backward": 1}, TypeError, "save_for_backward: got 1"),
    ],
)
def test_calls_that_are_refused(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        forward(**{**block_operands(GQA), "geometry": GQA, **change})


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"saved": None}, TypeError, "saved: got NoneType"),
        ({"geometry": None}, TypeError, "geometry: got NoneType, wanted a GatedAttentionBlockGeometry"),
        ({"w_o": np.zeros((48, 64), np.float32)}, ValueError, "w_o: got"),
        ({"w_qkvg": None}, ValueError, "w_qkvg: got None"),
        ({"dy": np.zeros((2, 8, 48), np.float32)}, ValueError, "dy: got"),
        ({"recompute": "save_all"}, TypeError, "recompute: got str"),
        ({"thd": True}, ValueError, "thd: got True"),
        ({"seq_lens": np.zeros(2, np.int32)}, ValueError, "seq_lens: got another array"),
        ({"quant": object()}, TypeError, "quant: got object, wanted a QuantSpec"),
        ({"scale_dp": np.ones(1, np.float32)}, ValueError, "scale_dp: got a tensor, wanted None"),
        ({"grad_scaling": "delayed"}, ValueError, "grad_scaling: got 'delayed'"),
        ({"grad_scaling": "sometimes"}, ValueError, "grad_scaling: got 'sometimes'"),
        ({"grad_scale_margin_log2": 9}, ValueError, "grad_scale_margin_log2: got 9, wanted an int of 0..8"),
        ({"grad_scale_margin_log2": 1}, ValueError, "grad_scale_margin_log2: got 1, wanted 0 but with quant"),
    ],
)
def test_gradients_that_are_refused(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    given = block_operands(GQA)
    saved = forward(**given, geometry=GQA, save_for_backward=True)["saved"]
    good = {**given, "dy": given.pop("h"), "saved": saved, "geometry": GQA}
    good.pop("h", None)
    with pytest.raises(kind, match=message):
        backward(**{**good, **change})
