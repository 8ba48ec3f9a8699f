"""On a GPU: quantised bytes and dequantised numbers are the definition's on a CPU, whatever the layout and extents."""

# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudnn_fe.core.block_scale import (
    BLOCK_FORMATS,
    block_format,
    block_scale_dequantize,
    block_scale_quantize,
    nvfp4_block_scale_dequantize,
    nvfp4_block_scale_quantize,
)

pytestmark = pytest.mark.gpu

FORMATS = {**BLOCK_FORMATS, "fp4_e8m0_16": block_format("uint8", "int8", 16)}
# Extents that no access, block, tile or atom divides; several tiles and atoms both ways.
SHAPES = [(2, 70, 90), (1, 258, 1000)]
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 3e38, -1e-45, 2.0**-127, 448 * 2.0**-127)


def source(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    x = x * torch.exp2(torch.randint(-30, 30, (*shape[:-1], 1), generator=generator).float())
    x[..., 1, :] = torch.round(torch.randn(shape[-1], generator=generator) * 8) / 4  # ties of FP4
    if x.numel() > 100:
        flat = x.view(-1)
        for index, value in enumerate(SPECIAL):
            flat[(index * 97 + 13) % flat.numel()] = value
    return x.to(dtype)


def raw(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8).cpu()


def poisoned() -> None:
    """Memory that the outputs are likely to get holds other bytes."""
    torch.empty(1 << 24, dtype=torch.uint8, device="cuda").fill_(0xAB)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("dtype", "packed", "norm", "kind"),
    [
        (torch.float32, False, 0.37, "float32"),
        (torch.bfloat16, True, None, "bfloat16"),
        (torch.float16, True, 0.37, "float16"),
    ],
)
def test_bytes(name: str, dtype: torch.dtype, packed: bool, norm: float | None, kind: str) -> None:
    format = FORMATS[name]
    for shape in SHAPES:
        x = source(shape, dtype)
        factor = None if norm is None else torch.tensor([norm])
        options: dict[str, Any] = {
            "direction": "both", "packed": packed, "amax": True, "column_recipe": "epilogue_columns",
        }  # fmt: skip
        wanted = block_scale_quantize(x, format, norm=factor, **options)
        poisoned()
        on_gpu = None if factor is None else factor.cuda()
        got = block_scale_quantize(x.cuda(), format, norm=on_gpu, backend="portable", **options)
        for key in ("row_codes", "row_scales", "column_codes", "column_scales"):
            assert torch.equal(raw(got[key]), raw(wanted[key])), (shape, key)
        assert torch.equal(got["amax"].cpu().nan_to_num(), wanted["amax"].nan_to_num())
        assert bool(got["amax"].isnan()) == bool(wanted["amax"].isnan())
        for prefix in ("row", "column"):
            codes, scales = wanted[f"{prefix}_codes"], wanted[f"{prefix}_scales"]
            how: dict[str, Any] = {"direction": f"{prefix}s", "packed": packed, "dtype": kind}
            numbers = block_scale_dequantize(codes, scales, format, **how)
            back = block_scale_dequantize(codes.cuda(), scales.cuda(), format, backend="portable", **how).cpu()
            nan = numbers.isnan()
            assert torch.equal(back.isnan(), nan)
            assert torch.equal(raw(back.masked_fill(nan, 0)), raw(numbers.masked_fill(nan, 0))), (shape, prefix)


@pytest.mark.parametrize("recipe", ["power_of_two", "converter"])
@pytest.mark.parametrize("direction", ["rows", "columns"])
def test_other_recipes(recipe: str, direction: str) -> None:
    for name in FORMATS:
        if recipe == "power_of_two" and name == "nvfp4":
            continue
        x = source((2, 70, 90), torch.bfloat16)
        norm = torch.tensor([2.0**100]) if recipe == "converter" else None
        wanted = block_scale_quantize(x, FORMATS[name], direction=direction, recipe=recipe, norm=norm)
        norm = None if norm is None else norm.cuda()
        got = block_scale_quantize(
            x.cuda(), FORMATS[name], direction=direction, recipe=recipe, norm=norm, backend="portable"
        )
        for key in ("codes", "scales"):
            assert torch.equal(raw(got[f"{direction[:-1]}_{key}"]), raw(wanted[f"{direction[:-1]}_{key}"])), name


def every_bfloat16(largest: torch.Tensor, block: int) -> torch.Tensor:
    """A row for each of ``largest``: every bfloat16 from its 64th part to itself, in blocks that hold ``largest``."""
    top = largest.to(torch.bfloat16).view(torch.int16).to(torch.int32)[:, None]
    bits = (top - torch.arange(6 * 128, dtype=torch.int32)).clamp_min(0)
    values = bits.to(torch.int16).view(torch.bfloat16)
    both = torch.stack((values, -values), -1).reshape(len(largest), -1)
    others = torch.nn.functional.pad(both, (0, -both.shape[1] % (block - 1))).view(len(largest), -1, block - 1)
    first = largest.to(torch.bfloat16)[:, None, None].expand(-1, others.shape[1], 1)
    rows = torch.cat((first, others), -1).flatten(1)
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % 32))


@pytest.mark.parametrize("direction", ["rows", "columns"])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "fp4_e8m0_16"])
def test_every_quotient_rounds_to_fp4_as_defined(name: str, direction: str) -> None:
    if name == "nvfp4":  # six times every scale, and what is too small for one
        scales = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        largest = torch.cat((scales[1:] * 6, 2.0 ** torch.arange(-133.0, -8.0)))
    else:
        largest = 1.5 * 2.0 ** torch.arange(-132.0, 127.0)
    x = every_bfloat16(largest, FORMATS[name].block)
    if direction == "columns":
        x = x.T.contiguous()
    wanted = block_scale_quantize(x, FORMATS[name], direction=direction, packed=False)
    got = block_scale_quantize(x.cuda(), FORMATS[name], direction=direction, packed=False, backend="portable")
    for key in (f"{direction[:-1]}_scales", f"{direction[:-1]}_codes"):
        assert torch.equal(raw(got[key]), raw(wanted[key])), key


@pytest.mark.parametrize("offset", [0, 1, 3, 4])
def test_any_alignment(offset: int) -> None:
    wide = torch.full((2, 66, 300), float("nan"), dtype=torch.bfloat16, device="cuda")
    x = wide[:, :, offset : offset + 256]
    x.copy_(source((2, 66, 256), torch.bfloat16))
    wanted = block_scale_quantize(x.cpu(), "mxfp8_e4m3", direction="both")
    got = block_scale_quantize(x, "mxfp8_e4m3", direction="both", backend="portable")
    codes = torch.zeros(2, 66, 300, dtype=torch.uint8, device="cuda")[:, :, offset : offset + 256]
    codes.copy_(wanted["row_codes"].view(torch.uint8))
    back = block_scale_dequantize(
        codes.view(torch.float8_e4m3fn), wanted["row_scales"].cuda(), "mxfp8_e4m3", backend="portable"
    )
    assert all(torch.equal(raw(a), raw(b)) for a, b in zip(list(got)[:4], list(wanted)[:4], strict=True))
    numbers = block_scale_dequantize(wanted["row_codes"], wanted["row_scales"], "mxfp8_e4m3")
    assert torch.equal(back.cpu().nan_to_num(), numbers.nan_to_num())


def test_converters() -> None:
    x = source((1, 256, 320), torch.bfloat16)
    encode, decode = torch.full((1, 1, 1), 3.7), torch.full((1, 1, 1), 1 / 3.7)
    wanted = nvfp4_block_scale_quantize(x, encode)
    got = nvfp4_block_scale_quantize(x.cuda(), encode.cuda(), backend="portable")
    assert all(torch.equal(raw(a), raw(b)) for a, b in zip(got, wanted, strict=True))
    back = nvfp4_block_scale_dequantize(*got, decode.cuda(), backend="portable")
    numbers = nvfp4_block_scale_dequantize(*wanted, decode)
    assert torch.equal(back.cpu().nan_to_num(), numbers.nan_to_num())


def test_on_a_side_stream_and_in_a_graph() -> None:
    x = source((1, 300, 1000), torch.bfloat16).cuda()

    def run() -> list[torch.Tensor]:
        out = block_scale_quantize(x, "mxfp8_e4m3", direction="both", amax=True, backend="portable")
        return list(out)

    wanted = run()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        aside = run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    graph.replay()
    torch.cuda.synchronize()
    for a, b, c in zip(wanted, aside, captured, strict=True):
        assert torch.equal(raw(a), raw(b))
        assert torch.equal(raw(a), raw(c))


def test_past_two_to_the_31_elements() -> None:
    x = torch.randn(1, 8192, device="cuda", dtype=torch.bfloat16).expand(262145, 8192).contiguous()
    x[-1] = torch.arange(8192, device="cuda").to(torch.bfloat16)
    got = block_scale_quantize(x, "mxfp8_e4m3", packed=False, backend="portable")
    last = block_scale_quantize(x[-1:].cpu(), "mxfp8_e4m3", packed=False)
    assert torch.equal(raw(got["row_codes"][-1:]), raw(last["row_codes"]))
    assert torch.equal(raw(got["row_scales"][-1:]), raw(last["row_scales"]))
    first = got["row_codes"][0].view(torch.uint8)
    assert bool((got["row_codes"][:-1].view(torch.uint8) == first).all())
