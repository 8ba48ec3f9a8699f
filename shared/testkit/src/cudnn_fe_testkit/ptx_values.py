"""PTX's types as NumPy's, and conversions between them."""

from __future__ import annotations

import struct
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["BITS", "convert", "immediate", "kind_of", "permute_bytes", "unpacked"]

Array = np.ndarray[Any, Any]
_FLOATS = {"f16": "f2", "f32": "f4", "f64": "f8"}
_NARROW: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
_PACKED_BITS = {"bf16": 16, "bf16x2": 32, "f16x2": 32, "tf32": 32, "e4m3x2": 16, "e5m2x2": 16, "pred": 8}
BITS = {f"{letter}{bits}": bits for letter in "bsuf" for bits in (8, 16, 32, 64)} | _PACKED_BITS


def kind_of(name: str) -> np.dtype[Any]:
    """The NumPy type that holds a PTX type; packed and 16-bit brain floats are held as their bits."""
    return np.dtype(_FLOATS.get(name) or f"{'i' if name[0] == 's' else 'u'}{BITS[name] // 8}")


def immediate(text: str, kind: str) -> Any:
    """A number in the code as one of a PTX type."""
    if text[:2] in ("0f", "0d"):
        form, whole = (">f", ">I") if text[1] == "f" else (">d", ">Q")
        raw = bytes.fromhex(text[2:])
        if kind in _FLOATS:
            return kind_of(kind).type(struct.unpack(form, raw)[0])
        return kind_of(kind).type(struct.unpack(whole, raw)[0])
    value = int(text, 0)
    if kind == "pred":
        return bool(value)
    if kind in _FLOATS:
        return kind_of(kind).type(value)
    bits = BITS[kind]
    return np.array(value & ((1 << bits) - 1), f"u{bits // 8}").view(kind_of(kind))[()]


def convert(value: Array, source: str, to: str, words: tuple[str, ...] = ()) -> Array:
    """``cvt``: numbers of one PTX type as another's; packed ones come and go as (2, M), the lower half first."""
    if source.removesuffix("x2") in _NARROW and source != "f16":
        parts = unpacked(value, source.removesuffix("x2"))
        value, source = parts if source.endswith("x2") else parts[0], "f64"
    if to.removesuffix("x2") in _NARROW and to != "f16":
        return _packed(value, to, words)
    if to == "tf32":  # halves go away from zero
        return (value.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    if kind_of(to).kind in "iu" and kind_of(source).kind == "f":
        return _whole(value, to, words)
    if kind_of(to).kind == "f" and "rz" in words:
        return _toward_zero(value, kind_of(to))
    return value.astype(kind_of(to))


def _packed(value: Array, to: str, words: tuple[str, ...]) -> Array:
    name = to.removesuffix("x2")
    if "relu" in words:
        value = np.maximum(value, 0)
    if "satfinite" in words and name in _LARGEST:
        value = np.where(np.isnan(value), value, np.clip(value, -_LARGEST[name], _LARGEST[name]))
    narrow = _NARROW[name]
    raw = _toward_zero(value, np.dtype(narrow)) if "rz" in words else value.astype(narrow)
    size = np.dtype(narrow).itemsize
    codes = np.where(np.isnan(value), {"bf16": 0x7FFF, "f16": 0x7FFF}.get(name, 0x7F), raw.view(f"u{size}"))
    codes = codes.astype(f"u{size}")
    if name != to:
        wide = codes.astype(f"u{2 * size}")
        codes = wide[0] | wide[1] << (8 * size)
    return codes


def _toward_zero(value: Array, kind: np.dtype[Any]) -> Array:
    near = value.astype(kind)
    beyond = np.abs(near.astype(np.float64)) > np.abs(value.astype(np.float64))
    raw: Array = near.view(f"u{kind.itemsize}")
    cut: Array = (raw - beyond.astype(raw.dtype)).view(kind)
    return cut


def _whole(value: Array, to: str, words: tuple[str, ...]) -> Array:
    rules = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
    rule = next((rules[word] for word in words if word in rules), np.trunc)
    limits = np.iinfo(kind_of(to))
    wide = rule(np.where(np.isnan(value), 0, value).astype(np.longdouble))
    return np.clip(wide, limits.min, limits.max).astype(kind_of(to))


def unpacked(register: Array, kind: str) -> Array:
    """The elements of registers, lowest first along a new first dim, in float64; TF32 has lost its last bits."""
    if kind == "tf32":
        return (register & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)[None]
    narrow = np.dtype(_NARROW[kind])
    whole, bits = 8 * register.itemsize, 8 * narrow.itemsize
    parts = np.stack([register >> shift for shift in range(0, whole, bits)]).astype(f"u{narrow.itemsize}")
    numbers: Array = parts.view(narrow).astype(np.float64)
    return numbers


def permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    """``prmt``: each nibble of the selector names one of eight bytes, or its sign repeated."""
    both = b.astype(np.uint64) << np.uint64(32) | a.astype(np.uint64)
    found = np.zeros_like(both)
    for index in range(4):
        nibble = selector.astype(np.uint64) >> np.uint64(4 * index) & np.uint64(15)
        byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        signs = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        found |= np.where(nibble & np.uint64(8), signs, byte) << np.uint64(8 * index)
    return found.astype(np.uint32)
