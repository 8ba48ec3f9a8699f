"""FP8 and MXFP8 blocks: against a float64 formulation with every rounding of the definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations, legacy_forward
from cudnn_fe.core.block_scale import swizzle_scales
from cudnn_fe_testkit.attention import attention_tolerance
from cudnn_fe_testkit.compare import assert_close, rel_rms
from cudnn_fe_testkit.gated_block import NAMES, block_operands, exact_block, rotate
from cudnn_fe_testkit.inputs import Framework, convert

# Arguments are spread from lists and tables here, which the type checker cannot count.
Geometry: Any = attention.GatedAttentionBlockGeometry
Fwd: Any = legacy_forward.GatedAttentionBlockFwd


def e4m3(x: Any) -> Any:
    """Rounded to the nearest E4M3 number, saturating."""
    return np.clip(x, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def bf16(x: Any) -> Any:
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def mxfp8(x: Any, axis: int) -> tuple[Any, Any]:
    """Codes with a power of two per 32, both as float64, the scales repeated to the shape of ``x``."""
    moved = np.moveaxis(x, axis, -1)
    count = moved.shape[-1]
    padded = np.concatenate([moved, np.zeros((*moved.shape[:-1], -count % 32))], -1)
    groups = padded.reshape(*padded.shape[:-1], -1, 32)
    amax = np.abs(groups).max(-1, keepdims=True)
    exponent = np.ceil(np.log2(np.maximum(amax, 2.0**-100) * float(np.float32(1 / 448))))
    scales = np.where(amax > 0, np.exp2(np.maximum(exponent, -127)), 2.0**-127)
    codes = e4m3(groups / scales)

    def back(y: Any) -> Any:
        return np.moveaxis(y.reshape(padded.shape)[..., :count], -1, axis)

    return back(codes), back(np.broadcast_to(scales, groups.shape))


def quantised_oracle(g: Any, t: dict[str, Any], spec: Any, lengths: Any) -> Any:
    """The page's steps with every rounding, in float64."""
    batch, tokens, _ = t["h"].shape
    mx = isinstance(spec, declarations.MxQuantSpec)
    alpha = 1.0 if mx else spec.descale_h * spec.descale_w_qkvg
    projected = bf16(t["h"] @ t["w_qkvg"].T * alpha)
    widths = np.cumsum([g.h_q * g.d_head, g.h_q * g.d_head, g.h_kv * g.d_head])
    q, gate, k, v = (x.reshape(batch, tokens, -1, g.d_head) for x in np.split(projected, widths, -1))
    q, k = (
        x / np.sqrt(np.square(x).mean(-1, keepdims=True) + g.qk_norm_eps) * t[n]
        for x, n in ((q, "w_q_norm"), (k, "w_k_norm"))
    )
    cos, sin = (torch.from_numpy(t[n]) for n in ("cos", "sin"))
    q, k = (bf16(rotate(torch.from_numpy(x), cos, sin, g.rope_dim).numpy()) for x in (q, k))
    there = np.arange(tokens)[None, :] < np.asarray(lengths)[:, None]
    if mx:
        q, k = (np.prod(mxfp8(x, -1), axis=0) for x in (q, k))
        v = np.prod(mxfp8(v * there[:, :, None, None], 1), axis=0)
        by_score, by_value, lift = 1.0, 1.0, 1.0
    else:
        q, k, v = (e4m3(x * f) for x, f in ((q, spec.scale_q), (k, spec.scale_k), (v, spec.scale_v)))
        by_score, by_value, lift = spec.scale_q * spec.scale_k, spec.scale_v, 256.0
    k, v = (x.repeat(g.h_q // g.h_kv, 2) for x in (k, v))
    s = np.einsum("bihd,bjhd->bhij", q, k) * g.d_head**-0.5 / by_score
    s[np.broadcast_to(~np.tri(tokens, dtype=bool) | ~there[:, None, None, :], s.shape)] = -np.inf
    p = np.exp(s - s.max(-1, keepdims=True))
    o = np.einsum("bhij,bjhd->bihd", e4m3(lift * p), v) / lift / p.sum(-1).transpose(0, 2, 1)[..., None]
    gated = e4m3(bf16(bf16(o / by_value) / (1 + np.exp(-gate))) * spec.scale_o)
    return gated.reshape(batch, tokens, -1) @ t["w_o"].T * (spec.descale_w_o / spec.scale_o)


def packed_scales(scales: Any) -> Any:
    """Scales (rows, K) as packed E8M0 bytes."""
    codes = (np.log2(scales[:, ::32]) + 127).astype(np.uint8)
    return swizzle_scales(codes[None]).reshape(-1)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ["fp8", "mxfp8"])
def test_quantised_blocks(kind: str, framework: Framework) -> None:
    """Every rounding of the page, sequences of 50 and 33 keys of 50 tokens, blocks of 32 that a length cuts."""
    g = Geometry(d_model=128, h_q=4, h_kv=2, d_head=32, rope_dim=12)
    given = {n: x.astype(np.float64) for n, x in block_operands(g, "bfloat16", lead=(2, 50)).items()}
    blobs: dict[str, Any] = {"h_sf": None, "w_qkvg_sf": None}
    codes, values = {}, dict(given)
    if kind == "fp8":
        spec: Any = declarations.QuantSpec(0.02, 0.002, 0.001, 40.0, 30.0, 50.0, 100.0)
        factors = {"h": spec.descale_h, "w_qkvg": spec.descale_w_qkvg, "w_o": spec.descale_w_o}
    else:
        spec = declarations.MxQuantSpec(0.001, 100.0)
        factors = {"w_o": spec.descale_w_o}
    for name, factor in factors.items():
        codes[name] = values[name] = e4m3(given[name] / factor)
    if kind == "mxfp8":
        for name in ("h", "w_qkvg"):
            codes[name], scales = mxfp8(given[name], -1)
            values[name] = codes[name] * scales
            blobs[f"{name}_sf"] = convert(packed_scales(scales.reshape(-1, 128)), framework)
    lengths = np.asarray([50, 33], np.int32)
    arrays = []
    for name in NAMES:
        stored = (
            codes[name].astype(ml_dtypes.float8_e4m3fn) if name in codes else given[name].astype(ml_dtypes.bfloat16)
        )
        arrays.append(convert(stored, framework))
    out = convert(np.zeros((2, 50, 128), ml_dtypes.bfloat16), framework)
    samples = {f"sample_{name}": blob for name, blob in blobs.items()}
    made = Fwd(*arrays, out, g, quant=spec, seq_lens_present=True, **samples)
    made.compile()
    made.execute(*arrays, out, None, convert(lengths, framework), **blobs)
    wanted = quantised_oracle(g, values, spec, lengths)
    # A sum beside the middle of two E4M3 numbers may fall to either side: one step of 2**-3 in one of many.
    assert_close(out, wanted, attention_tolerance("bfloat16", 3) + 2.0**-7)
    plain, _ = exact_block(g, {n: torch.from_numpy(x) for n, x in given.items()}, lengths)
    assert 2.0**-6 < rel_rms(out, plain) < 2.0**-3  # E4M3 was there, and no more than it
    changed = replace(spec, scale_o=50.0)
    made.update_quant_scales(changed)
    made.execute(*arrays, out, None, convert(lengths, framework), **blobs)
    assert_close(out, quantised_oracle(g, values, changed, lengths), attention_tolerance("bfloat16", 3) + 2.0**-7)
    with pytest.raises(TypeError, match="spec: got str"):
        made.update_quant_scales("fp8")


def test_quantised_blocks_refuse() -> None:
    g = Geometry(d_model=128, h_q=4, h_kv=2, d_head=32, rope_dim=12)
    made = block_operands(g, "bfloat16")
    wide = [convert(made[n], "torch") for n in NAMES]
    codes = [x.to(torch.float8_e4m3fn) if i in (0, 1, 6) else x for i, x in enumerate(wide)]
    out, fp8 = torch.empty_like(wide[0]), declarations.QuantSpec(*[1.0] * 7)
    mx, blob = declarations.MxQuantSpec(1.0), torch.zeros(128 * 4, dtype=torch.uint8)
    scales = {"sample_h_sf": blob, "sample_w_qkvg_sf": torch.zeros(384 * 4, dtype=torch.uint8)}
    Fwd(*codes, out, g, quant=mx, **scales).check_support()
    for arrays, options, kind, message in (
        (wide, {"quant": fp8}, TypeError, "h: got bfloat16, wanted float8_e4m3fn"),
        (codes, {}, TypeError, "h: got float8_e4m3fn"),
        ([*codes[:4], codes[4].float(), *codes[5:]], {"quant": fp8}, TypeError, "cos: got float32"),
        (codes, {"quant": mx}, ValueError, "h_sf: got None, wanted 512 scales"),
        (codes, {"quant": fp8, **scales}, ValueError, "h_sf: got scales, wanted None"),
        (codes, {"quant": mx, **scales, "sample_h_sf": blob[:-1]}, ValueError, "h_sf: got"),
        (codes, {"quant": mx, **scales, "sample_h_sf": blob.int()}, TypeError, "h_sf: got int32"),
    ):
        with pytest.raises(kind, match=message):
            Fwd(*arrays, out, g, **options).check_support()
    block = Fwd(*codes, out, g, quant=fp8)
    with pytest.raises(RuntimeError, match="a call before compile"):
        block.update_quant_scales(fp8)
    with pytest.raises(ValueError, match="spec: got QuantSpec, wanted a quantised block"):
        Fwd(*wide, out, g).update_quant_scales(fp8)
    small = [x[..., :64] if i in (0, 1) else x[:64] if i == 6 else x for i, x in enumerate(codes)]
    with pytest.raises(NotImplementedError, match="d_model: got 64"):
        Fwd(*small, out[..., :64], replace(g, d_model=64), quant=mx, **scales).check_support()
