"""The benchmark's cases of block-scaled grouped GEMMs, beside this project's bfloat16 one of the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cudnn_fe.core.bench import MemoryCase
from cudnn_fe.core.block_scale import BLOCK_FORMATS, block_scale_quantize
from cudnn_fe.core.torch_bench import Rival, normal, operand_case
from cudnn_fe.grouped.glu import grouped_gemm_glu_forward
from cudnn_fe.grouped.quant import grouped_gemm_quant_forward
from cudnn_fe.grouped.torch_bench import DOWN, GATE_AND_UP, SMALL, Layer
from cudnn_fe.grouped.unfused import grouped_gemm_forward

__all__ = ["glu", "quant"]

_FORMATS = ("mxfp8_e4m3", "nvfp4")
_FLIPS = 2.0**-4  # sums of another order round to another code, and now and then a block to the next scale
_MODEL = "DeepSeek-V3"


def quant(cuda: bool) -> list[MemoryCase]:
    """The product in bfloat16."""

    def ours(a: Tensor, b: Tensor, sfa: Tensor, sfb: Tensor, ends: Tensor, *factors: Tensor, **how: Any) -> Any:
        alpha, prob = factors
        return grouped_gemm_quant_forward(a, sfa, ends, alpha, b, sfb, prob_tensor=prob, generate_amax=False, **how)

    return _cases(DOWN if cuda else SMALL, ours)


def glu(cuda: bool) -> list[MemoryCase]:
    """SwiGLU, quantised by rows and by columns where rows are FP8."""

    def ours(a: Tensor, b: Tensor, sfa: Tensor, sfb: Tensor, ends: Tensor, *factors: Tensor, **how: Any) -> Any:
        alpha, prob = factors
        kind = "float8_e4m3fn" if how["sf_vec_size"] == 32 else "bfloat16"
        out = grouped_gemm_glu_forward(
            a, sfa, ends, alpha, b, sfb, prob_tensor=prob, norm_const_tensor=alpha[:1], d_dtype=kind, **how
        )
        return out["c_tensor"], out["d_tensor"]

    return _cases(GATE_AND_UP if cuda else SMALL, ours)


def _cases(layers: tuple[Layer, ...], ours: Callable[..., Any]) -> list[MemoryCase]:
    """Layers of one model with uneven routing, in each format."""

    def case(layer: Layer, name: str) -> MemoryCase:
        rows, n, k, experts = layer.rows, layer.n, layer.k, layer.experts

        def make(place: str) -> tuple[Any, ...]:
            wide = normal(place, rows, k), normal(place, experts, n, k) * k**-0.5
            narrow = [block_scale_quantize(one, name) for one in wide]
            ends = torch.tensor(layer.ends(even=False), dtype=torch.int32, device=place)
            factors = torch.ones(experts, device=place), torch.ones(rows, device=place)
            return *(x["row_codes"] for x in narrow), *(x["row_scales"] for x in narrow), ends, *factors, *wide

        def run(*operands: Any, backend: str | None) -> Any:
            return ours(*operands[:-2], sf_vec_size=BLOCK_FORMATS[name].block, backend=backend)

        def alone(*operands: Any, backend: str | None = None) -> Any:
            *_, ends, alpha, prob, a, b = operands
            return grouped_gemm_forward(a, ends, alpha, b, prob_tensor=prob, backend=backend)["d_tensor"]

        def defined(*operands: Any) -> Any:
            return alone(*operands, backend="reference")

        rival = Rival("cudnn-fe's bfloat16 grouped GEMM", alone, "GEMM alone", defined, cuda_only=False)
        nbytes = (rows + experts * n) * k * (BLOCK_FORMATS[name].element.bits + 8 / BLOCK_FORMATS[name].block) / 8
        nbytes += 2 * rows * n
        shape, flops = (rows, n, k, experts), 2 * rows * n * k
        return operand_case(f"{layer.name}, {name}", shape, nbytes, make, run, (rival,), allowed=_FLIPS, flops=flops)

    return [case(layer, name) for layer in layers for name in _FORMATS if layer in SMALL or _MODEL in layer.name]
