"""On a GPU: the codecs give what the hardware's own conversions give, for every float32 there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cudnn_fe.core.codecs import E4M3, E5M2, decode, encode, round_to_tf32, to_bfloat16, to_float16

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)),
        reason="needs a GPU with FP8 conversions (SM89 or newer)",
    ),
]

_FP8 = (
    "{{ .reg .b16 pair; .reg .f32 zero; .reg .f32 x; mov.f32 zero, 0f00000000; mov.b32 x, $1; "
    "{cvt}; cvt.u32.u16 $0, pair; }}"
)
_HALF = "{{ .reg .b16 half; .reg .f32 x; mov.b32 x, $1; {cvt}; cvt.u32.u16 $0, half; }}"
INSTRUCTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "e4m3": (
        _FP8.format(cvt="cvt.rn.satfinite.e4m3x2.f32 pair, zero, x"),
        lambda x: encode(x, E4M3).to(torch.int32),
    ),
    "e5m2": (
        _FP8.format(cvt="cvt.rn.satfinite.e5m2x2.f32 pair, zero, x"),
        lambda x: encode(x, E5M2).to(torch.int32),
    ),
    "bfloat16": (
        _HALF.format(cvt="cvt.rn.bf16.f32 half, x"),
        lambda x: to_bfloat16(x).view(torch.int16).to(torch.int32) & 0xFFFF,
    ),
    "float16": (
        _HALF.format(cvt="cvt.rn.f16.f32 half, x"),
        lambda x: to_float16(x).view(torch.int16).to(torch.int32) & 0xFFFF,
    ),
    "tf32": (
        "{ .reg .f32 x; mov.b32 x, $1; cvt.rna.tf32.f32 $0, x; }",
        lambda x: round_to_tf32(x).view(torch.int32),
    ),
}
CHUNK = 2**26


@triton.jit
def _convert(source, target, instruction: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def, name-defined]
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    bits = tl.load(source + offsets)
    tl.store(target + offsets, tl.inline_asm_elementwise(instruction, "=r,r", [bits], tl.int32, True, 1))


def _every_float32() -> Iterator[Any]:
    steps = torch.arange(CHUNK, dtype=torch.int32, device="cuda")
    for start in range(-(2**31), 2**31, CHUNK):
        yield steps + start


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_every_float32_converts_as_the_hardware_does(name: str) -> None:
    instruction, ours = INSTRUCTIONS[name]
    for bits in _every_float32():
        hardware = torch.empty_like(bits)
        _convert[(CHUNK // 1024,)](bits, hardware, instruction, 1024)
        x = bits.view(torch.float32)
        got = ours(x)
        if name == "tf32":  # NaN stays NaN here; the instruction cuts its low bits off, which may leave infinity
            assert torch.equal(got.view(torch.float32).isnan(), x.isnan())
            hardware = torch.where(x.isnan(), got, hardware)
        wrong = (got != hardware).nonzero()[:1]
        assert wrong.numel() == 0, [hex(int(t[wrong[0]]) & 0xFFFFFFFF) for t in (bits, got, hardware)]


@pytest.mark.parametrize("row", [E4M3, E5M2], ids=lambda row: row.name)
def test_gpu_decodes_as_the_cpu(row: Any) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(decode(codes.cuda(), row).cpu().view(torch.int32), decode(codes, row).view(torch.int32))


def test_encode_and_decode_are_captured_in_a_graph() -> None:
    x = torch.randn(1024, device="cuda")
    decode(encode(x, E4M3), E4M3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codes = encode(x, E4M3)
        values = decode(codes, E4M3)
    x.copy_(torch.randn(1024, device="cuda") * 100)
    graph.replay()
    assert torch.equal(codes.cpu(), encode(x.cpu(), E4M3))
    assert torch.equal(values.cpu(), decode(encode(x.cpu(), E4M3), E4M3))
