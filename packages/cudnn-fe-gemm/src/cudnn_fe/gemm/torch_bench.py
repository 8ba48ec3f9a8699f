"""The benchmark's cases of block-scaled GEMMs, each beside this project's bfloat16 GEMM of the same extents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cudnn_fe.core.bench import MemoryCase
from cudnn_fe.core.block_scale import BLOCK_FORMATS, block_scale_quantize
from cudnn_fe.core.torch_bench import Rival, compiled_and_eager, normal, operand_case
from cudnn_fe.gemm.amax import gemm_amax_forward
from cudnn_fe.gemm.dsrelu import gemm_srelu_backward
from cudnn_fe.gemm.matmul import matmul
from cudnn_fe.gemm.mhc_projection import mhc_projection_backward
from cudnn_fe.gemm.proj_rope import gemm_proj_rope_mxfp8_forward
from cudnn_fe.gemm.srelu import gemm_srelu_forward
from cudnn_fe.gemm.swiglu_scaled import gemm_swiglu_scaled_forward

__all__ = ["amax", "dsrelu", "mhc", "proj_rope", "srelu", "swiglu_scaled"]

_FORMATS = ("mxfp8_e4m3", "nvfp4")
_SIZE, _SMALL = 8192, 128
_FLIPS = 2.0**-4  # sums of another order round to another bfloat16, and now and then a block to the next scale


def amax(cuda: bool) -> list[MemoryCase]:
    """The product and its largest magnitude."""

    def ours(a: Tensor, b: Tensor, sfa: Tensor, sfb: Tensor, **how: Any) -> Any:
        return gemm_amax_forward(a, b, sfa, sfb, c_dtype="bfloat16", **how)

    return _scaled_cases(cuda, ours)


def srelu(cuda: bool) -> list[MemoryCase]:
    """Squared ReLU."""
    return _scaled_cases(cuda, gemm_srelu_forward, _row_factors)


def dsrelu(cuda: bool) -> list[MemoryCase]:
    """Its derivative."""

    def ours(a: Tensor, b: Tensor, sfa: Tensor, sfb: Tensor, upstream: Tensor, prob: Tensor, **how: Any) -> Any:
        return gemm_srelu_backward(a, b, upstream, sfa, sfb, prob, **how)

    return _scaled_cases(cuda, ours, _gradients, _row_factors)


def swiglu_scaled(cuda: bool) -> list[MemoryCase]:
    """SwiGLU of pairs of 32 columns."""

    def ours(a: Tensor, b: Tensor, sfa: Tensor, sfb: Tensor, **how: Any) -> Any:
        return gemm_swiglu_scaled_forward(a, b, sfa, sfb, ab12_dtype="bfloat16", c_dtype="bfloat16", **how)

    return _scaled_cases(cuda, ours)


def proj_rope(cuda: bool) -> list[MemoryCase]:
    """Queries of DeepSeek-V3: 128 heads from a latent of 1536."""
    tokens, heads, k = (4096, 128, 1536) if cuda else (64, 2, 64)
    n = 192 * heads

    def make(place: str) -> tuple[Any, ...]:
        x, w = normal(place, tokens, k), normal(place, n, k)
        return x, w, normal(place, tokens, 64), normal(place, tokens, 64), x[..., None], w[..., None]

    def ours(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor, *_: Tensor, backend: str | None) -> Any:
        return gemm_proj_rope_mxfp8_forward(x, w, cos, sin, backend=backend)

    nbytes = 2 * (tokens + n) * k + 2 * tokens * n
    name = "DeepSeek-V3 queries" if cuda else "small"
    flops = 2 * tokens * n * k
    return [operand_case(name, (tokens, n, k), nbytes, make, ours, (_plain_gemm(),), allowed=_FLIPS, flops=flops)]


def mhc(cuda: bool) -> list[MemoryCase]:
    """Four streams of 5120 channels on 4096 tokens, bound by memory; beside what torch makes of the formula."""
    m, k, n = (4096, 20480, 24) if cuda else (64, 96, 24)

    def make(place: str) -> tuple[Any, ...]:
        wide = torch.float32
        of_r = normal(place, m, 1, kind=wide), torch.rand(m, 1, device=place) + 0.5
        return normal(place, m, k), normal(place, n, k, kind=wide), normal(place, m, 32, kind=wide), *of_r

    def ours(*operands: Tensor, backend: str | None) -> Any:
        return mhc_projection_backward(*operands, allow_tf32=True, backend=backend)

    def formula(x: Tensor, weight: Tensor, grad_proj: Tensor, grad_r: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        p, wide = grad_proj[:, :n], x.float()
        return (grad_r / (r * k) * wide + p @ weight).to(x.dtype), p.T @ wide

    name = "4 streams of 5120" if cuda else "small"
    return [operand_case(name, (m, k, n), 4 * m * k + 8 * n * k, make, ours, compiled_and_eager(formula))]


def _row_factors(place: str, rows: int, columns: int) -> Tensor:
    del columns
    return torch.rand(rows, 1, 1, device=place)


def _gradients(place: str, rows: int, columns: int) -> Tensor:
    return normal(place, 1, rows, columns).permute(1, 2, 0)


def _scaled_cases(cuda: bool, ours: Callable[..., Any], *extra: Callable[[str, int, int], Tensor]) -> list[MemoryCase]:
    """A square product in each format.

    Args:
        cuda: Whether for a GPU.
        ours: Takes A, B, their scales, what ``extra`` makes, the size of blocks and a backend.
        extra: Make further operands of a device, rows and columns.
    """
    size = _SIZE if cuda else _SMALL

    def case(name: str) -> MemoryCase:
        def make(place: str) -> tuple[Any, ...]:
            wide = [normal(place, 1, size, size) for _ in range(2)]
            narrow = [block_scale_quantize(one, name) for one in wide]
            codes = [one["row_codes"].permute(1, 2, 0) for one in narrow]
            more = [one(place, size, size) for one in extra]
            return *codes, *(one["row_scales"] for one in narrow), *more, *(one.permute(1, 2, 0) for one in wide)

        def run(*operands: Any, backend: str | None) -> Any:
            return ours(*operands[:-2], sf_vec_size=BLOCK_FORMATS[name].block, backend=backend)

        nbytes = 2 * size * size * (BLOCK_FORMATS[name].element.bits + 8) // 8
        flops = 2 * size**3
        return operand_case(f"{size} cubed, {name}", (size,) * 3, nbytes, make, run, (_plain_gemm(),), flops=flops)

    return [case(name) for name in _FORMATS]


def _plain_gemm() -> Rival:
    """This project's bfloat16 GEMM of a case's last two operands."""

    def run(*operands: Any, backend: str | None = None) -> Any:
        a, b = operands[-2:]
        return matmul(a, b, 1.0, d_dtype="bfloat16", backend=backend)

    def defined(*operands: Any) -> Any:
        return run(*operands, backend="reference")

    return Rival("cudnn-fe's bfloat16 GEMM", run, "GEMM alone", defined, cuda_only=False)
