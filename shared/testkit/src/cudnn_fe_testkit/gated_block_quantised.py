"""Quantised gated attention blocks in float64, every rounding written out, one sequence after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch

from cudnn_fe.core.block_scale import swizzle_scales
from cudnn_fe_testkit.gated_block import NAMES, block_operands, rotate

__all__ = ["Oracle", "QuantisedOperands", "bf16", "e4m3", "power_of_two_below"]

_SIXTH = float(np.float32(1 / 6))


def _rounded(x: Any, kind: Any, most: float) -> Any:
    return np.clip(x, -most, most).astype(np.float32).astype(kind).astype(np.float64)


def e4m3(x: Any) -> Any:
    """Rounded to the nearest E4M3 number, saturating."""
    return _rounded(x, ml_dtypes.float8_e4m3fn, 448)


def e2m1(x: Any) -> Any:
    """Rounded to the nearest E2M1 number, saturating."""
    return _rounded(x, ml_dtypes.float4_e2m1fn, 6)


def bf16(x: Any) -> Any:
    """Rounded to the nearest bfloat16."""
    return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def power_of_two_below(amax: float, margin: int = 0) -> float:
    """The largest power of two that keeps ``amax`` within E4M3, less a margin; 1 for 0."""
    return 1.0 if amax == 0 else float(2.0 ** (np.floor(np.log2(448 / amax)) - margin))


def _groups(x: Any, block: int, axis: int) -> tuple[Any, Any]:
    moved = np.moveaxis(x, axis, -1)
    count = moved.shape[-1]
    padded = np.concatenate([moved, np.zeros((*moved.shape[:-1], -count % block))], -1)

    def back(y: Any) -> Any:
        return np.moveaxis(y.reshape(padded.shape)[..., :count], -1, axis)

    return padded.reshape(*padded.shape[:-1], -1, block), back


def mx(x: Any, axis: int, pairs: bool = False) -> tuple[Any, Any]:
    """MXFP8 codes, or MXFP4's, with a power of two per 32, as float64, the scales repeated to the shape of ``x``."""
    groups, back = _groups(x, 32, axis)
    amax = np.abs(groups).max(-1, keepdims=True)
    limit = _SIXTH if pairs else float(np.float32(1 / 448))
    exponent = np.ceil(np.log2(np.maximum(amax, 2.0**-100) * limit))
    scales = np.where(amax > 0, np.exp2(np.maximum(exponent, -127)), 2.0**-127)
    return back((e2m1 if pairs else e4m3)(groups / scales)), back(np.broadcast_to(scales, groups.shape))


def mx_values(x: Any, axis: int, pairs: bool = False) -> Any:
    """The values of `mx`."""
    codes, scales = mx(x, axis, pairs)
    return codes * scales


def nvfp4(x: Any) -> tuple[Any, Any]:
    """NVFP4 codes and scales along the last axis, as `mx` gives them."""
    groups, back = _groups(x, 16, -1)
    amax = np.float32(np.abs(groups).max(-1, keepdims=True)) * np.float32(_SIXTH)
    scales = e4m3(np.maximum(amax, 2.0**-9))
    return back(e2m1(groups / scales)), back(np.broadcast_to(scales, groups.shape))


def packed(scales: Any, block: int, kind: Any) -> Any:
    """Scales repeated to a matrix's shape as packed bytes."""
    codes = scales[:, ::block].astype(np.float32).astype(kind).view(np.uint8)
    return swizzle_scales(codes[None]).reshape(-1)


def _stored(codes: Any, pairs: bool) -> Any:
    return codes.astype(np.float32).astype(ml_dtypes.float4_e2m1fn if pairs else ml_dtypes.float8_e4m3fn)


@dataclass
class QuantisedOperands:
    """Random operands of a block, as a caller has them and as what they are worth.

    Attributes:
        g: The geometry.
        spec: The declaration.
        lead: Leading extents of h.
        arrays: The operands of a call, in the order of `NAMES`.
        blobs: ``h_sf``, ``w_qkvg_sf`` and ``w_o_sf``, each an array or None.
        turned: Operands of the backward, likewise.
        values: What all operands are worth, float64.
    """

    g: Any
    spec: Any
    lead: tuple[int, ...]
    arrays: list[Any] = field(default_factory=list)
    blobs: dict[str, Any] = field(default_factory=dict)
    turned: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def scaled_by_block(self) -> bool:
        """Whether it is MXFP8."""
        return hasattr(self.spec, "o_fp4")

    def __post_init__(self) -> None:
        given = {n: x.astype(np.float64) for n, x in block_operands(self.g, "bfloat16", self.lead).items()}
        self.values = dict(given)
        stored = {n: x.astype(ml_dtypes.bfloat16) for n, x in given.items()}
        self.blobs = dict.fromkeys(("h_sf", "w_qkvg_sf", "w_o_sf"))
        if not self.scaled_by_block:
            factors = {"h": self.spec.descale_h, "w_qkvg": self.spec.descale_w_qkvg, "w_o": self.spec.descale_w_o}
            for name, factor in factors.items():
                self.values[name] = e4m3(given[name] / factor)
                stored[name] = _stored(self.values[name], False)
            self.arrays = [stored[n] for n in NAMES]
            return
        w_fp4 = "float4" in str(self.spec.w_qkvg_dtype)
        for name, pairs in (("h", False), ("w_qkvg", w_fp4)):
            codes, scales = mx(given[name], -1, pairs)
            stored[name], self.values[name] = _stored(codes, pairs), codes * scales
            self.blobs[f"{name}_sf"] = packed(scales.reshape(-1, self.g.d_model), 32, ml_dtypes.float8_e8m0fnu)
            turned = given[name].reshape(-1, self.g.d_model).T
            codes, scales = mx(turned, -1, pairs)
            self._turn(name, codes, scales, pairs, 32, ml_dtypes.float8_e8m0fnu)
        self._last_weight(given["w_o"], stored)
        self.arrays = [stored[n] for n in NAMES]

    def _turn(self, name: str, codes: Any, scales: Any, pairs: bool, block: int, kind: Any) -> None:
        self.turned |= {f"{name}_t": _stored(codes, pairs), f"{name}_t_sf": packed(scales, block, kind)}
        self.values[f"{name}_t"] = codes * scales

    def _last_weight(self, w_o: Any, stored: dict[str, Any]) -> None:
        fp4 = self.spec.o_fp4
        if fp4 is None:
            self.values["w_o"] = e4m3(w_o / self.spec.descale_w_o)
            stored["w_o"] = _stored(self.values["w_o"], False)
            return
        nv = fp4.fmt_name == "nvfp4"
        block, kind = (16, ml_dtypes.float8_e4m3fn) if nv else (32, ml_dtypes.float8_e8m0fnu)
        codes, scales = nvfp4(w_o) if nv else mx(w_o, -1, True)
        stored["w_o"], self.values["w_o"] = _stored(codes, True), codes * scales
        self.blobs["w_o_sf"] = packed(scales, block, kind)
        codes, scales = nvfp4(w_o.T) if nv else mx(w_o.T, -1, True)
        self._turn("w_o", codes, scales, True, block, kind)


@dataclass
class Oracle:
    """The page's steps in float64.

    Attributes:
        given: The operands.
        segments: Of each sequence: its batch, its first token, its end, and how many keys it has.
    """

    given: QuantisedOperands
    segments: list[tuple[int, int, int, int]]

    def _bands(self, slab: Any) -> list[Any]:
        g = self.given.g
        cuts = np.cumsum([g.h_q * g.d_head, g.h_q * g.d_head, g.h_kv * g.d_head])
        return [x.reshape(*x.shape[:2], -1, g.d_head) for x in np.split(slab, cuts, -1)]

    def _three(self, x: Any) -> Any:
        return x if x.ndim == 3 else x[None]

    def _prepare(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        g, v = self.given.g, self.given.values
        cos, sin = (torch.from_numpy(self._three(v[n])) for n in ("cos", "sin"))
        x = x / (x.square().mean(-1, keepdim=True) + g.qk_norm_eps).sqrt() * weight
        return rotate(x, cos, sin, g.rope_dim)

    def _prepared(self, x: Any, name: str) -> Any:
        weight = torch.from_numpy(self.given.values[name])
        return bf16(self._prepare(torch.from_numpy(x), weight).numpy())

    def _mask(self, tokens: int, keys: int) -> Any:
        return np.tri(tokens, dtype=bool) & (np.arange(tokens) < keys)

    def forward(self) -> Any:
        """The output."""
        given, spec, g = self.given, self.given.spec, self.given.g
        v = given.values
        mxf = given.scaled_by_block
        alpha = 1.0 if mxf else spec.descale_h * spec.descale_w_qkvg
        q, gate, k, value = self._bands(bf16(self._three(v["h"]) @ v["w_qkvg"].T * alpha))
        q, k = self._prepared(q, "w_q_norm"), self._prepared(k, "w_k_norm")
        out = np.zeros_like(gate)
        for b, start, end, keys in self.segments:
            qs, ks, vs = (x[b, start:end] for x in (q, k, value))
            if mxf:
                there = np.arange(end - start)[:, None, None] < keys
                qs, ks, vs, by_value, lift = mx_values(qs, -1), mx_values(ks, -1), mx_values(vs * there, 0), 1.0, 1.0
                by_score = 1.0
            else:
                qs, ks, vs = (e4m3(x * f) for x, f in ((qs, spec.scale_q), (ks, spec.scale_k), (vs, spec.scale_v)))
                by_score, by_value, lift = spec.scale_q * spec.scale_k, spec.scale_v, 256.0
            ks, vs = (x.repeat(g.h_q // g.h_kv, 1) for x in (ks, vs))
            s = np.einsum("ihd,jhd->hij", qs, ks) * g.d_head**-0.5 / by_score
            s[np.broadcast_to(~self._mask(end - start, keys), s.shape)] = -np.inf
            p = np.exp(s - s.max(-1, keepdims=True))
            o = np.einsum("hij,jhd->ihd", e4m3(lift * p), vs) / lift / p.sum(-1).T[..., None]
            out[b, start:end] = o / by_value
        gated = bf16(bf16(out) / (1 + np.exp(-gate))).reshape(*gate.shape[:2], -1)
        fp4 = spec.o_fp4 if mxf else None
        if fp4 is None:
            return e4m3(gated * spec.scale_o) @ v["w_o"].T * (spec.descale_w_o / spec.scale_o)
        codes, scales = nvfp4(gated) if fp4.fmt_name == "nvfp4" else mx(gated, -1, True)
        return codes * scales @ v["w_o"].T

    def backward(
        self, dy: Any, slab: Any, o: Any, lse: Any, scales: dict[str, float] | None, margin: int
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """Gradients and the numbers of a block, from the forward's record.

        Args:
            dy: Gradient of the output.
            slab: The projection (B, S, n_qkvg).
            o: Attention before the gate (B, S, Hq, D).
            lse: Log-sum-exp (B, Hq, S).
            scales: ``dp``, and ``dy``, ``do`` and ``dqkvg`` where they are the caller's.
            margin: Of scales that are not.
        """
        given, spec, g = self.given, self.given.spec, self.given.g
        mxf, v, scales = given.scaled_by_block, given.values, scales or {}
        numbers: dict[str, float] = {}

        def scale_of(x: Any, name: str) -> float:
            numbers[f"amax_{name}"] = float(np.abs(x).max())
            numbers[f"scale_{name}"] = scales.get(name) or power_of_two_below(numbers[f"amax_{name}"], margin)
            return numbers[f"scale_{name}"]

        dy = self._three(dy)
        of_dy = scale_of(dy, "dy")
        codes_dy = e4m3(dy * of_dy) / of_dy
        fp4 = spec.o_fp4 if mxf else None
        if fp4 is None:
            d_gated = codes_dy @ v["w_o"] * spec.descale_w_o
        elif fp4.fmt_name == "nvfp4":
            d_gated = np.prod(nvfp4(dy * of_dy), axis=0) @ v["w_o_t"].T / of_dy
        else:
            d_gated = mx_values(dy, -1) @ v["w_o_t"].T
        q_pre, gate, k_pre, value = self._bands(slab)
        d_gated, s = d_gated.reshape(gate.shape), 1 / (1 + np.exp(-gate))
        gated, do, dg = bf16(o * s), bf16(d_gated * s), d_gated * o * s * (1 - s)
        delta = (o * do).sum(-1)
        q, k = self._prepared(q_pre, "w_q_norm"), self._prepared(k_pre, "w_k_norm")
        of_do = 1.0 if mxf else scale_of(do, "do")
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(value)
        numbers["amax_dp"] = 0.0
        for b, start, end, keys in self.segments:
            cut = slice(start, end)
            rows = (do[b, cut], q[b, cut], k[b, cut], value[b, cut])
            if mxf:
                there = np.arange(end - start)[:, None, None] < keys
                rows = (rows[0], rows[1], rows[2] * there, rows[3] * there)
                dos, qs, ks, vs = (mx_values(x, -1) for x in rows)
                dot, qt, kt = (mx_values(x, 0) for x in rows[:3])
            else:
                factors = (of_do, spec.scale_q, spec.scale_k, spec.scale_v)
                dos, qs, ks, vs = (e4m3(x * f) / f for x, f in zip(rows, factors, strict=True))
                dot, qt, kt = dos, qs, ks
            group = g.h_q // g.h_kv
            ks, kt, vs = (x.repeat(group, 1) for x in (ks, kt, vs))
            score = np.einsum("ihd,jhd->hij", qs, ks) * g.d_head**-0.5
            p = np.exp(score - lse[b, :, cut][..., None]) * self._mask(end - start, keys)
            dp = np.einsum("ihd,jhd->hij", dos, vs)
            ds = p * (dp - delta[b, cut].T[..., None])
            numbers["amax_dp"] = max(numbers["amax_dp"], float(np.abs(ds).max()))
            ds = bf16(ds) if mxf else e4m3(ds * scales["dp"]) / scales["dp"]
            p = e4m3(256 * p) / 256
            dq[b, cut] = np.einsum("hij,jhd->ihd", ds, kt) * g.d_head**-0.5
            shape = (end - start, g.h_kv, group, g.d_head)
            dk[b, cut] = np.einsum("hij,ihd->jhd", ds, qt).reshape(shape).sum(2) * g.d_head**-0.5
            dv[b, cut] = np.einsum("hij,ihd->jhd", p, dot).reshape(shape).sum(2)
        grads: dict[str, Any] = {}
        pulled = []
        for x, grad, name in ((q_pre, dq, "w_q_norm"), (k_pre, dk, "w_k_norm")):
            leaf, weight = torch.tensor(x, requires_grad=True), torch.tensor(v[name], requires_grad=True)
            self._prepare(leaf, weight).backward(torch.from_numpy(bf16(grad)))
            assert leaf.grad is not None
            assert weight.grad is not None
            pulled.append(leaf.grad.numpy())
            grads[f"d{name}"] = weight.grad.numpy()
        parts = (pulled[0], dg, pulled[1], bf16(dv))
        projected = bf16(np.concatenate([x.reshape(*x.shape[:2], -1) for x in parts], -1)).reshape(-1, g.n_qkvg)
        tokens = codes_dy.reshape(-1, g.d_model)
        of_o = spec.scale_o
        grads["dw_o"] = tokens.T @ e4m3(gated.reshape(len(tokens), -1) * of_o) / of_o
        if mxf:
            grads["dh"] = mx_values(projected, -1) @ v["w_qkvg_t"].T
            grads["dw_qkvg"] = mx_values(projected, 0).T @ v["h_t"].T
        else:
            of_p = scale_of(projected, "dqkvg")
            codes = e4m3(projected * of_p) / of_p
            grads["dh"] = codes @ v["w_qkvg"] * spec.descale_w_qkvg
            grads["dw_qkvg"] = codes.T @ v["h"].reshape(-1, g.d_model) * spec.descale_h
        grads["dh"] = grads["dh"].reshape(v["h"].shape)
        return grads, numbers
