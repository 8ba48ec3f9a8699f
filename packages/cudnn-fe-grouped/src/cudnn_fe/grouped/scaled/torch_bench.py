"""The benchmark's cases of block-scaled grouped GEMMs, beside this project's bfloat16 one of the same extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cudnn_fe.core.bench import MemoryCase
from cudnn_fe.core.block_scale import BLOCK_FORMATS, block_scale_quantize
from cudnn_fe.core.torch_bench import Rival, normal, operand_case
from cudnn_fe.grouped.dglu import grouped_gemm_glu_backward
from cudnn_fe.grouped.dsrelu import grouped_gemm_srelu_backward
from cudnn_fe.grouped.dswiglu import grouped_gemm_swiglu_backward
from cudnn_fe.grouped.glu import grouped_gemm_glu_forward
from cudnn_fe.grouped.glu_hadamard import grouped_gemm_glu_hadamard_forward
from cudnn_fe.grouped.glu_hadamard_quant import grouped_gemm_glu_hadamard_quant_forward
from cudnn_fe.grouped.quant import grouped_gemm_quant_forward
from cudnn_fe.grouped.srelu import grouped_gemm_srelu_forward
from cudnn_fe.grouped.swiglu import grouped_gemm_swiglu_forward
from cudnn_fe.grouped.torch_bench import DOWN, GATE_AND_UP, SMALL, Layer
from cudnn_fe.grouped.unfused import grouped_gemm_forward
from cudnn_fe.grouped.wgrad import grouped_gemm_wgrad_forward

__all__ = [
    "dglu",
    "dsrelu",
    "dswiglu",
    "glu",
    "hadamard",
    "hadamard_quant",
    "quant",
    "srelu",
    "swiglu",
    "wgrad",
]

_FORMATS = ("mxfp8_e4m3", "nvfp4")
_FLIPS = 2.0**-4  # sums of another order round to another code, and now and then a block to the next scale
_MODEL = "DeepSeek-V3"
_WHO = "cudnn-fe's bfloat16 grouped GEMM"


def quant(cuda: bool) -> list[MemoryCase]:
    """The product in bfloat16."""

    def ours(v: dict[str, Any], **how: Any) -> Any:
        return grouped_gemm_quant_forward(**v, generate_amax=False, **how)

    return _cases(_layers(cuda, DOWN), ours)


def glu(cuda: bool) -> list[MemoryCase]:
    """SwiGLU, quantised by rows and by columns where rows are FP8."""
    return _activated(cuda, grouped_gemm_glu_forward)


def swiglu(cuda: bool) -> list[MemoryCase]:
    """The same by its older function."""
    return _activated(cuda, grouped_gemm_swiglu_forward)


def srelu(cuda: bool) -> list[MemoryCase]:
    """Squared ReLU, quantised likewise."""
    return _activated(cuda, grouped_gemm_srelu_forward)


def hadamard(cuda: bool) -> list[MemoryCase]:
    """SwiGLU and the largest magnitudes before and after a transform."""

    def ours(v: dict[str, Any], **how: Any) -> Any:
        return grouped_gemm_glu_hadamard_forward(**v, **how)

    return _cases(_layers(cuda, GATE_AND_UP), ours, formats=("nvfp4",))


def hadamard_quant(cuda: bool) -> list[MemoryCase]:
    """SwiGLU in NVFP4, and transformed along tokens in NVFP4."""
    fp4 = torch.float4_e2m1fn_x2

    def ours(v: dict[str, Any], **how: Any) -> Any:
        out = grouped_gemm_glu_hadamard_quant_forward(**v, d_dtype=fp4, rht_colwise_dtype=fp4, **how)
        return out["c_tensor"], out["d_tensor"].view(torch.uint8), out["rht_colwise_tensor"].view(torch.uint8)

    layers = _layers(cuda, GATE_AND_UP)
    return _cases(layers if cuda else [replace(layer, n=256) for layer in layers], ours, formats=("nvfp4",))


def dglu(cuda: bool) -> list[MemoryCase]:
    """SwiGLU's derivative, with that of the rows' factors."""

    def ours(v: dict[str, Any], **how: Any) -> Any:
        dprob = torch.zeros_like(v["prob_tensor"])
        return grouped_gemm_glu_backward(**v, beta_tensor=v["alpha_tensor"], dprob_tensor=dprob, **how)

    return _derived(cuda, ours, 2)


def dswiglu(cuda: bool) -> list[MemoryCase]:
    """The same by its older function."""

    def ours(v: dict[str, Any], **how: Any) -> Any:
        return grouped_gemm_swiglu_backward(**v, beta_tensor=v["alpha_tensor"], **how)

    return _derived(cuda, ours, 2)


def dsrelu(cuda: bool) -> list[MemoryCase]:
    """The derivative of squared ReLU, which is quantised beside it."""

    def ours(v: dict[str, Any], **how: Any) -> Any:
        return grouped_gemm_srelu_backward(**v, **how)

    return _derived(cuda, ours, 1)


def _layers(cuda: bool, of_models: Sequence[Layer]) -> list[Layer]:
    """Layers of one model; on a CPU a small one."""
    return [layer for layer in of_models if _MODEL in layer.name] if cuda else list(SMALL)


def _result_kind(how: dict[str, Any]) -> str:
    """FP8 of FP8 rows, which have blocks of 32."""
    return "float8_e4m3fn" if how["sf_vec_size"] == 32 else "bfloat16"


def _activated(cuda: bool, function: Callable[..., Any]) -> list[MemoryCase]:
    def ours(v: dict[str, Any], **how: Any) -> Any:
        out = function(**v, norm_const_tensor=v["alpha_tensor"][:1], d_dtype=_result_kind(how), **how)
        return out["c_tensor"], out["d_tensor"]

    return _cases(_layers(cuda, GATE_AND_UP), ours)


def _derived(cuda: bool, call: Callable[..., Any], width: int) -> list[MemoryCase]:
    """A derivative: the second layer's weights, ``width`` columns for each of theirs."""

    def ours(v: dict[str, Any], **how: Any) -> Any:
        out = call(v, norm_const_tensor=v["alpha_tensor"][:1], d_dtype=_result_kind(how), **how)
        return out["d_row_tensor"], out["dprob_tensor"]

    def kept(place: str, layer: Layer) -> Tensor:
        return normal(place, layer.rows, width * layer.n)

    layers = [replace(layer, n=layer.n // 2) for layer in _layers(cuda, GATE_AND_UP)]
    return _cases(layers, ours, {"c_tensor": kept})


_NAMES = ("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "padded_offsets", "alpha_tensor", "prob_tensor")
_NO_EXTRA: dict[str, Callable[[str, Layer], Tensor]] = {}


def _cases(
    layers: Sequence[Layer],
    ours: Callable[..., Any],
    extra: dict[str, Callable[[str, Layer], Tensor]] = _NO_EXTRA,
    formats: tuple[str, ...] = _FORMATS,
) -> list[MemoryCase]:
    """Layers with uneven routing, in each format.

    Args:
        layers: The weights.
        ours: Takes the operands by name, the size of blocks and a backend.
        extra: Make further operands, by name, of a device and a layer.
        formats: Of rows and weights.
    """
    names = (*_NAMES, *extra)

    def case(layer: Layer, name: str) -> MemoryCase:
        rows, n, k, experts = layer.rows, layer.n, layer.k, layer.experts

        def make(place: str) -> tuple[Any, ...]:
            wide = normal(place, rows, k), normal(place, experts, n, k) * k**-0.5
            narrow = [block_scale_quantize(one, name) for one in wide]
            ends = torch.tensor(layer.ends(even=False), dtype=torch.int32, device=place)
            factors = torch.ones(experts, device=place), torch.ones(rows, device=place)
            more = [one(place, layer) for one in extra.values()]
            return *(x["row_codes"] for x in narrow), *(x["row_scales"] for x in narrow), ends, *factors, *more, *wide

        def run(*operands: Any, backend: str | None) -> Any:
            given = dict(zip(names, operands[:-2], strict=True))
            return ours(given, sf_vec_size=BLOCK_FORMATS[name].block, backend=backend)

        def alone(*operands: Any, backend: str | None = None) -> Any:
            a, b = operands[-2:]
            ends, alpha, prob = operands[4:7]
            return grouped_gemm_forward(a, ends, alpha, b, prob_tensor=prob, backend=backend)["d_tensor"]

        return _case(f"{layer.name}, {name}", layer, BLOCK_FORMATS[name].element.bits, make, run, alone)

    return [case(layer, name) for layer in layers for name in formats]


def wgrad(cuda: bool) -> list[MemoryCase]:
    """The weight gradient; experts' rows are whole atoms of scales."""

    def case(layer: Layer, name: str) -> MemoryCase:
        rows, block = -(-layer.rows // 128) * 128, BLOCK_FORMATS[name].block

        def make(place: str) -> tuple[Any, ...]:
            wide = normal(place, layer.n, rows) * rows**-0.5, normal(place, layer.k, rows)
            narrow = [block_scale_quantize(one, name) for one in wide]
            ends = torch.tensor(layer.ends(even=False), device=place)
            whole = ((ends + 64) // 128 * 128).to(torch.int32)
            scales = [x["row_scales"].flatten() for x in narrow]
            tokens_first = [one.T.contiguous() for one in wide]
            factors = torch.ones(layer.experts, device=place)
            return *(x["row_codes"] for x in narrow), *scales, whole, factors, *tokens_first

        def run(a: Tensor, b: Tensor, sfa: Tensor, sfb: Tensor, ends: Tensor, one: Tensor, *_: Any, **how: Any) -> Any:
            factor = one if BLOCK_FORMATS[name].scale.mantissa_bits else None
            return grouped_gemm_wgrad_forward(
                a, b.T, sfa, sfb, ends, global_scale_a=factor, global_scale_b=factor, sf_vec_size=block, **how
            )

        def alone(*operands: Any, backend: str | None = None) -> Any:
            a, b = operands[-2:]
            return grouped_gemm_wgrad_forward(a.T, b, None, None, operands[4], backend=backend)

        return _case(f"{layer.name}, {name}", layer, BLOCK_FORMATS[name].element.bits, make, run, alone)

    return [case(layer, name) for layer in _layers(cuda, GATE_AND_UP) for name in _FORMATS]


def _case(
    name: str,
    layer: Layer,
    bits: int,
    make: Callable[[str], tuple[Any, ...]],
    run: Callable[..., Any],
    alone: Callable[..., Any],
) -> MemoryCase:
    """One case, rated by its product's work; ``alone`` is the bfloat16 product of its last two operands."""

    def defined(*operands: Any) -> Any:
        return alone(*operands, backend="reference")

    rival = Rival(_WHO, alone, "GEMM alone", defined, cuda_only=False)
    rows, n, k, experts = layer.rows, layer.n, layer.k, layer.experts
    nbytes = (rows + experts * n) * k * bits / 8 + 2 * rows * n
    return operand_case(
        name, (rows, n, k, experts), nbytes, make, run, (rival,), allowed=_FLIPS, flops=2 * rows * n * k
    )
