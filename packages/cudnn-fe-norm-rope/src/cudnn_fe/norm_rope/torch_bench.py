"""The benchmark's cases of every op: extents, bytes, operands, and who computes them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cudnn_fe.core.bench import MemoryCase
from cudnn_fe.core.torch_bench import ONE_ROUNDING, Rival, compiled_and_eager, normal, operand_case, results_of
from cudnn_fe.norm_rope import (
    engram_gate_saved_backward,
    engram_gate_saved_forward,
    hstu_lmsd_backward,
    hstu_lmsd_forward,
    rmsnorm_rht_amax_forward,
    rmsnorm_silu_forward,
    rope_qdq_inplace_forward,
    tail_rope_forward,
    torch_rivals,
    vision_rope_backward,
)

__all__ = [
    "engram_backward",
    "engram_forward",
    "lmsd_backward",
    "lmsd_forward",
    "rht_amax",
    "rms_silu",
    "rope_qdq",
    "tail_rope",
    "vision_rope",
]

Operands = tuple[Any, ...]
Make = Callable[[str], Operands]
EPS = 1e-6
_SMALL = 64  # rows on a CPU


def _case(
    name: str,
    shape: tuple[int, ...],
    nbytes: float,
    make: Make,
    ours: Callable[..., Any],
    rival: Callable[..., Any] | None,
    *others: Rival,
    allowed: float = ONE_ROUNDING,
) -> MemoryCase:
    """A case of operands ``make(place)``, which ``ours(*operands, backend=...)`` and ``rival(*operands)`` take."""
    rivals = (() if rival is None else compiled_and_eager(rival)) + others
    return operand_case(name, shape, nbytes, make, ours, rivals, allowed=allowed)


def _norm_alone() -> tuple[Rival, Rival]:
    """RMSNorm without what follows it, by those who have only that."""

    def quack(x: Tensor, w: Tensor) -> Any:
        return importlib.import_module("quack.rmsnorm").rmsnorm(x, w, eps=EPS)

    def liger(x: Tensor, w: Tensor) -> Any:
        module = importlib.import_module("liger_kernel.ops.rms_norm")
        return module.LigerRMSNormFunction.apply(x, w, EPS, 0.0, "gemma", False)

    def defined(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x.float(), x.shape[1:], w.float(), EPS)

    return _alone("RMSNorm alone", quack, liger, defined)


def _layer_norm_alone() -> tuple[Rival, Rival]:
    def quack(x: Tensor, u: Tensor, w: Tensor, b: Tensor) -> Any:
        return importlib.import_module("quack.rmsnorm").layernorm_fwd(x, w.float(), b.float(), EPS)

    def liger(x: Tensor, u: Tensor, w: Tensor, b: Tensor) -> Any:
        return importlib.import_module("liger_kernel.ops.layer_norm").LigerLayerNormFunction.apply(x, w, b, EPS)

    def defined(x: Tensor, u: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x.float(), x.shape[1:], w.float(), b.float(), EPS)

    return _alone("LayerNorm alone", quack, liger, defined)


def _alone(
    does: str, quack: Callable[..., Any], liger: Callable[..., Any], defined: Callable[..., Any]
) -> tuple[Rival, Rival]:
    return Rival("QuACK", quack, does, defined, "quack"), Rival("Liger", liger, does, defined, "liger_kernel")


_ROWS = (
    ("Llama-3 8B", 32768, 4096),
    ("DeepSeek-V3", 18720, 7168),
    ("Llama-3 70B", 16384, 8192),
    ("Llama-3 405B", 8192, 16384),
    ("2048 wide", 65536, 2048),
    ("32k wide", 4096, 32768),
    ("64k wide", 2048, 65536),
    ("256k wide", 512, 262144),
)
_DECODER = (("VAE decoder 128", 1048576, 128), ("VAE decoder 512", 262144, 512), ("VAE decoder 1024", 131072, 1024))


def rht_amax(cuda: bool) -> list[MemoryCase]:
    """RMSNorm + Hadamard + amax of eight rows."""
    cases = []
    for name, rows, columns in _ROWS if cuda else (("small", _SMALL, 1024),):

        def ours(x: Tensor, w: Tensor, backend: str | None) -> Any:
            return rmsnorm_rht_amax_forward(x, w, EPS, rows_per_cta=8, backend=backend)

        def rival(x: Tensor, w: Tensor) -> Any:
            return torch_rivals.rht_amax(x, w, EPS, 8)

        def make(place: str, rows: int = rows, columns: int = columns) -> Operands:
            return normal(place, rows, columns), normal(place, columns)

        cases.append(_case(name, (rows, columns), 4 * rows * columns, make, ours, rival, *_norm_alone()))
    return cases


def rms_silu(cuda: bool) -> list[MemoryCase]:
    """RMSNorm + SiLU in three formats."""
    cases = []
    rows_of: tuple[tuple[str, int, int], ...] = (*_DECODER, *_ROWS) if cuda else (("small", _SMALL, 1024),)
    formats = (("bfloat16", 2.0, ONE_ROUNDING), ("float8_e4m3fn", 1.0, 2.0**-6), ("float4_e2m1fn", 9 / 16, 2.0**-4))
    for kind, result, allowed in formats:
        for name, rows, columns in rows_of if kind == "bfloat16" else rows_of[1:4]:

            def ours(x: Tensor, w: Tensor, backend: str | None, kind: str = kind) -> Any:
                return rmsnorm_silu_forward(x, w, EPS, out_dtype=kind, backend=backend)

            def make(place: str, rows: int = rows, columns: int = columns) -> Operands:
                return normal(place, rows, columns), normal(place, columns)

            full = f"{name}, {kind}"
            rival = partial(torch_rivals.rms_silu, eps=EPS, kind=kind)
            size = rows * columns * (2 + result)
            cases.append(_case(full, (rows, columns), size, make, ours, rival, *_norm_alone(), allowed=allowed))
    return cases


def tail_rope(cuda: bool) -> list[MemoryCase]:
    """The last 64 channels of heads and latents."""
    shapes = (
        ("DeepSeek-V3.2 queries", (4096, 64, 512)),
        ("DeepSeek-V3.2 latents", (262144, 512)),
        ("32 heads of 128", (32768, 32, 128)),
    )
    cases = []
    for name, shape in shapes if cuda else (("small", (_SMALL, 4, 128)),):

        def make(place: str, shape: tuple[int, ...] = shape) -> Operands:
            angles = torch.randn(shape[0], 32, device=place)
            return normal(place, *shape), angles.cos(), angles.sin()

        nbytes = 4 * torch.Size(shape).numel() + 256 * shape[0]
        cases.append(_case(name, shape, nbytes, make, tail_rope_forward, torch_rivals.tail))
    return cases


def rope_qdq(cuda: bool) -> list[MemoryCase]:
    """Indexer heads and latents through FP4 and FP8, in place."""
    shapes = (
        ("indexer, MXFP4", (65536, 16, 128), "fp4", 32, "ue8m0"),
        ("indexer of a short prompt, MXFP4", (8192, 16, 128), "fp4", 32, "ue8m0"),
        ("latents, MXFP8", (262144, 512), "fp8", 32, "ue8m0"),
        ("latents, NVFP4", (262144, 512), "fp4", 16, "e4m3"),
    )
    cases = []
    for name, extents, kind, group, scale in shapes:
        shape = extents if cuda else (_SMALL, *extents[1:])

        def ours(
            x: Tensor, table: Tensor, positions: Tensor, backend: str | None, how: Any = (kind, group, scale)
        ) -> Any:
            quantization, group_size, scale_format = how
            return rope_qdq_inplace_forward(
                x,
                table,
                positions,
                quantization=quantization,
                backend=backend,
                group_size=group_size,
                scale_format=scale_format,
            )

        def make(place: str, shape: tuple[int, ...] = shape) -> Operands:
            angles = torch.randn(8192, 32, device=place)
            positions = torch.randint(0, 8192, (shape[0],), device=place, dtype=torch.int32)
            return normal(place, *shape), torch.cat((angles.cos(), angles.sin()), 1), positions

        nbytes = 4 * torch.Size(shape).numel() + 4 * shape[0]
        rival = partial(torch_rivals.qdq, kind=kind, group=group, scale_format=scale)
        # torch's steps tie on the grid where a correctly rounded quotient does not, and the other way round.
        cases.append(_case(name, shape, nbytes, make, ours, rival, allowed=2.0**-5))
    return cases


def vision_rope(cuda: bool) -> list[MemoryCase]:
    """Image tokens of a vision encoder."""
    cases = []
    for tokens in (8192, 8649, 65536) if cuda else (_SMALL,):

        def make(place: str, tokens: int = tokens) -> Operands:
            q, v, k = (normal(place, *shape) for shape in ((16, tokens, 64), (16, tokens, 64), (16, 64, tokens)))
            angles = torch.randn(tokens, 1, 32, device=place)
            return q.permute(1, 0, 2), k.permute(2, 0, 1), v.permute(1, 0, 2), angles.cos(), angles.sin()

        nbytes = tokens * (6 * 16 * 64 * 2 + 256)
        shape = (tokens, 16, 64)
        rival = torch_rivals.vision_backward
        cases.append(_case(f"{tokens} tokens", shape, nbytes, make, vision_rope_backward, rival))
    return cases


def _gate_operands(place: str, tokens: int) -> Operands:
    weight = torch.randn(4, 5120, device=place)
    return normal(place, tokens, 4, 5120), normal(place, tokens, 25600), weight


def engram_forward(cuda: bool) -> list[MemoryCase]:
    """The gate of a training batch."""
    tokens = 8192 if cuda else 4

    def make(place: str) -> Operands:
        return *_gate_operands(place, tokens), torch.ones(tokens, dtype=torch.bool, device=place)

    nbytes = tokens * (2 * (2 * 20480 + 25600) + 64)
    rival = partial(torch_rivals.engram_forward, eps=1e-20)
    return [_case("Engram", (tokens, 4, 5120), nbytes, make, engram_gate_saved_forward, rival)]


def engram_backward(cuda: bool) -> list[MemoryCase]:
    """Its gradients."""
    tokens = 8192 if cuda else 4

    def make(place: str) -> Operands:
        x, kv, weight = _gate_operands(place, tokens)
        mask = torch.ones(tokens, dtype=torch.bool, device=place)
        saved = engram_gate_saved_forward(x, kv, weight, mask)["saved"]
        return x, kv, weight, saved, normal(place, tokens, 4, 5120)

    nbytes = tokens * (2 * (3 * 20480 + 2 * 25600) + 64)
    rival = torch_rivals.engram_backward
    return [_case("Engram", (tokens, 4, 5120), nbytes, make, engram_gate_saved_backward, rival)]


_HSTU = (("HSTU 256", 262144, 256), ("HSTU 512", 131072, 512), ("HSTU 1016", 66048, 1016))


def _lmsd_operands(place: str, rows: int, columns: int) -> Operands:
    return tuple(normal(place, *shape) for shape in ((rows, columns), (rows, columns), (columns,), (columns,)))


def lmsd_forward(cuda: bool) -> list[MemoryCase]:
    """With dropout, which nobody else draws alike, and without."""
    cases = []
    for name, rows, columns in _HSTU if cuda else (("small", _SMALL, 256),):
        for ratio in (0.1, 0.0):

            def ours(x: Tensor, u: Tensor, w: Tensor, b: Tensor, backend: str | None, ratio: float = ratio) -> Any:
                return hstu_lmsd_forward(x, u, w, b, EPS, ratio, 7, backend=backend)

            make = partial(_lmsd_operands, rows=rows, columns=columns)
            nbytes = rows * (columns * (10 + (ratio > 0)) + 8)
            rival = None if ratio else partial(torch_rivals.lmsd_forward, eps=EPS)
            others = () if ratio else _layer_norm_alone()
            cases.append(_case(f"{name}, dropout {ratio}", (rows, columns), nbytes, make, ours, rival, *others))
    return cases


def lmsd_backward(cuda: bool) -> list[MemoryCase]:
    """Its gradients."""
    call: Callable[..., Any] = hstu_lmsd_backward
    cases = []
    for name, rows, columns in _HSTU if cuda else (("small", _SMALL, 256),):
        for ratio in (0.1, 0.0):

            def ours(*given: Any, backend: str | None, ratio: float = ratio) -> Any:
                dy, x, u, w, b, mean, rstd, *mask = given
                saved = (mean, rstd, mask[0] if mask else None)
                flags = {"apply_u_silu": True, "concat_u": True, "concat_x": True, "backend": backend}
                return call(dy, x, u, w, b, *saved, ratio, **flags)

            def make(place: str, rows: int = rows, columns: int = columns, ratio: float = ratio) -> Operands:
                given = _lmsd_operands(place, rows, columns)
                x, u, w, b = given
                _, *saved = results_of(hstu_lmsd_forward(x, u, w, b, EPS, ratio, 7))
                return normal(place, rows, 3 * columns), *given, *saved

            nbytes = rows * (columns * (14 + (ratio > 0)) + 8)
            rival = None if ratio else torch_rivals.lmsd_backward
            full = f"{name}, dropout {ratio}"
            cases.append(_case(full, (rows, columns), nbytes, make, ours, rival, allowed=2 * ONE_ROUNDING))
    return cases
