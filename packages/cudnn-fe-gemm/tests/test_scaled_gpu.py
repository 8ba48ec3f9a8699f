"""On a GPU: block-scaled GEMMs against their definition on a CPU, on both main loops.

Operands are such that every sum is exact in float32, in whatever order: what the contracts fix must be bit-equal.
"""

# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import cudnn
import cudnn_fe.gemm
from cudnn_fe.core.block_scale import BLOCK_FORMATS, atom_view, dequantize, swizzle_scales, unswizzle_scales
from cudnn_fe.core.codecs import encode, pack_fp4
from cudnn_fe.core.settings import override

pytestmark = pytest.mark.gpu

gemm: Any = cudnn_fe.gemm  # operands are handed over as lists


@dataclass(frozen=True)
class Shape:
    """Extents that no tile, atom or block divides, except the first's K; N is whole pairs for SwiGLU."""

    kind: str
    m: int
    n: int
    k: int
    batch: int
    m_major: bool = False  # A contiguous along M, and results too


SHAPES = (
    Shape("mxfp8_e4m3", 130, 192, 96, 2),
    Shape("mxfp8_e5m2", 257, 128, 1000, 2, m_major=True),
    Shape("nvfp4", 257, 64, 80, 1),
)


@pytest.fixture(params=["sm90", "portable"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "sm90" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    with override(backend=request.param):
        yield request.param


def operand(generator: torch.Generator, rows: int, shape: Shape, m_major: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of small integers and scales of powers of two, NaN where no scale is read."""
    format = BLOCK_FORMATS[shape.kind]
    values = torch.randint(-2, 3, (shape.batch, rows, shape.k), generator=generator).float()
    codes = encode(values, format.element)
    if format.element.bits == 4:
        codes = pack_fp4(codes).view(torch.float4_e2m1fn_x2)
    else:
        codes = codes.view(getattr(torch, format.element.name))
    if m_major:
        codes = codes.transpose(1, 2).contiguous().transpose(1, 2)
    count = -(-shape.k // format.block)
    exponents = torch.randint(-1, 2, (shape.batch, rows, count), generator=generator)
    scales = encode(torch.exp2(exponents.float()), format.scale)
    packed = swizzle_scales(scales)
    packed[swizzle_scales(torch.ones_like(scales)) == 0] = 0x7F if format.scale.mantissa_bits else 0xFF
    return codes.permute(1, 2, 0), packed.view(getattr(torch, format.scale.name))


def operands(shape: Shape) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    a, sfa = operand(generator, shape.m, shape, shape.m_major)
    b, sfb = operand(generator, shape.n, shape, False)
    prob = torch.randint(-3, 4, (shape.m, 1, shape.batch), generator=generator).float() / 4
    upstream = torch.randint(-4, 5, (shape.batch, shape.m, shape.n), generator=generator).to(torch.bfloat16)
    upstream = upstream.transpose(1, 2).contiguous().transpose(1, 2) if shape.m_major else upstream
    return {"a": a, "b": b, "sfa": sfa, "sfb": atom_view(sfb), "prob": prob, "c": upstream.permute(1, 2, 0)}


def cuda(x: Any) -> Any:
    if x is None:
        return None
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda").copy_(x)


def same(got: Any, wanted: Any) -> bool:
    if got is None or wanted is None:
        return got is None and wanted is None
    return got.stride() == wanted.stride() and torch.equal(
        got.cpu().contiguous().view(-1).view(torch.uint8), wanted.contiguous().view(-1).view(torch.uint8)
    )


def run(function: Any, given: dict[str, Any], names: str, place: Any, **options: Any) -> Any:
    torch.empty(1 << 24, dtype=torch.uint8, device="cuda").fill_(0xFF)  # what the outputs are likely to get
    norm = options.pop("norm_const_tensor", None)
    more = {} if norm is None else {"norm_const_tensor": place(norm)}
    return function(*(place(given[name]) for name in names.split()), **options, **more)


def both(function: Any, given: dict[str, Any], names: str, **options: Any) -> tuple[Any, Any]:
    with override(backend="reference"):
        wanted = run(function, given, names, lambda x: x, **options)
    got = run(function, given, names, cuda, **options)
    again = run(function, given, names, cuda, **options)
    assert all(same(x, None if y is None else y.cpu()) for x, y in zip(got, again, strict=True))
    return got, wanted


def options_of(shape: Shape, result: str) -> dict[str, Any]:
    fp8 = shape.kind.startswith("mxfp8")
    return {
        "sf_vec_size": BLOCK_FORMATS[shape.kind].block,
        result: torch.float8_e4m3fn if fp8 else torch.bfloat16,
        **({"norm_const_tensor": torch.tensor([0.25])} if fp8 else {}),
    }


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_amax(backend: str, shape: Shape) -> None:
    given, major = operands(shape), "m" if shape.m_major else "n"
    size = BLOCK_FORMATS[shape.kind].block
    for c_dtype in ("float32", "uint8" if shape.kind.endswith("fp4") else "float8_e4m3fn"):
        got, wanted = both(
            gemm.gemm_amax_forward, given, "a b sfa sfb", c_major=major, c_dtype=c_dtype, sf_vec_size=size
        )
        assert same(got[0], wanted[0]), c_dtype
        assert same(got[1], wanted[1]), c_dtype


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_srelu(backend: str, shape: Shape) -> None:
    given, major = operands(shape), "m" if shape.m_major else "n"
    options = options_of(shape, "d_dtype")
    got, wanted = both(
        gemm.gemm_srelu_forward, given, "a b sfa sfb prob", alpha=-0.5, c_dtype="float16", c_major=major, **options
    )
    assert [same(x, y) for x, y in zip(got, wanted, strict=True)] == [True] * 4


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dsrelu(backend: str, shape: Shape) -> None:
    given, major = operands(shape), "m" if shape.m_major else "n"
    options = options_of(shape, "d_dtype")
    got, wanted = both(gemm.gemm_srelu_backward, given, "a b c sfa sfb prob", alpha=0.25, d_major=major, **options)
    assert [same(got[i], wanted[i]) for i in (0, 2, 3)] == [True] * 3
    # Sums of squares may need more bits than float32 has: N terms in another order.
    with override(backend="reference"):
        magnitude = run(gemm.gemm_srelu_backward, {**given, "c": given["c"].abs()}, "a b c sfa sfb prob",
                        lambda x: x, alpha=0.25, d_major=major, **options)[1]  # fmt: skip
    assert bool(((got[1].cpu() - wanted[1]).abs() <= shape.n * 2.0**-24 * magnitude).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_swiglu(backend: str, shape: Shape) -> None:
    given, major = operands(shape), "m" if shape.m_major else "n"
    names, options = "a b sfa sfb", {"alpha": 0.125, "c_major": major}
    size = BLOCK_FORMATS[shape.kind].block
    got, wanted = both(gemm.gemm_swiglu_scaled_forward, given, names, c_dtype="float32", sf_vec_size=size, **options)
    assert same(got[0], wanted[0])
    gates = wanted[0].unflatten(1, (-1, 2, 32))[:, :, 1].flatten(1, 2).abs()
    # The exponential's argument is rounded, and its and the reciprocal's errors are a few units.
    bound = (8 + gates) * 2.0**-23 * wanted[1].abs() + 1e-30
    assert bool(((got[1].cpu() - wanted[1]).abs() <= bound).all())
    got, wanted = both(gemm.gemm_swiglu_scaled_forward, given, names, **options, **options_of(shape, "c_dtype"))
    assert got[1].stride() == wanted[1].stride()
    if shape.kind.startswith("mxfp8"):
        columns = shape.n // 2
        numbers = []
        for codes, scales in ((got[1].cpu(), got[2].cpu()), (wanted[1], wanted[2])):
            plain = unswizzle_scales(scales.view(torch.uint8), shape.m, columns // 32).permute(1, 2, 0)
            numbers.append(dequantize(codes.view(torch.uint8), plain, BLOCK_FORMATS["mxfp8_e4m3"], axis=1))
        # A code may be the neighbour, where a value lies between two.
        top = numbers[1].abs().unflatten(1, (-1, 32)).amax(2).repeat_interleave(32, 1)
        assert bool(((numbers[0] - numbers[1]).abs() <= 2.0**-3 * numbers[1].abs() + 2.0**-9 * top).all())
        assert (numbers[0] != numbers[1]).float().mean() < 0.01
    else:
        assert torch.allclose(got[1].cpu().float(), wanted[1].float(), rtol=2.0**-7, atol=0)
        assert float(got[3]) == pytest.approx(float(wanted[3]), rel=1e-5)


@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "mxfp8"])
@pytest.mark.parametrize("w_out_in", [True, False])
def test_proj_rope(backend: str, scaled: bool, w_out_in: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens, k, heads = 257, 96, 3
    x, w = (torch.randint(-3, 4, (rows, k), generator=generator).float() for rows in (tokens, 192 * heads))
    angle = torch.rand(tokens, 64, generator=generator) * 6
    tables = [angle.cos().bfloat16(), angle.sin().bfloat16()]
    kind = torch.float8_e4m3fn if scaled else torch.bfloat16
    scales: list[Any] = [None, None]
    if scaled:
        scales = [torch.randint(125, 130, (rows, k // 32), generator=generator).to(torch.uint8)
                  for rows in (tokens, 192 * heads)]  # fmt: skip
    given = [x.to(kind), w.to(kind), *tables, *scales]
    if not w_out_in:
        given[1] = given[1].T.contiguous()
        given[5] = None if given[5] is None else given[5].T.contiguous()
    with override(backend="reference"):
        wanted = gemm.gemm_proj_rope_mxfp8_forward(*given, w_out_in=w_out_in)
    torch.empty(1 << 24, dtype=torch.uint8, device="cuda").fill_(0xFF)
    got = gemm.gemm_proj_rope_mxfp8_forward(*map(cuda, given), w_out_in=w_out_in)
    assert [same(a, b) for a, b in zip(got, wanted, strict=True)] == [True] * 4


def test_classes_fold_into_their_buffers(backend: str) -> None:
    shape = Shape("mxfp4", 130, 128, 96, 2)
    given = {name: cuda(x) for name, x in operands(shape).items()}
    a, b, sfa, sfb, prob, upstream = (given[name] for name in ("a", "b", "sfa", "sfb", "prob", "c"))

    def matrix(kind: torch.dtype) -> torch.Tensor:
        return torch.zeros(2, 130, 128, dtype=kind, device="cuda").permute(1, 2, 0)

    c, amax = matrix(torch.float32), torch.full((1,), -torch.inf, device="cuda")
    op = cudnn.GemmAmaxSm100(a, b, sfa, sfb, c, amax)
    op.compile()
    op.execute(a, b, sfa, sfb, c, amax)
    wanted = gemm.gemm_amax_forward(a, b, sfa, sfb)
    assert torch.equal(c, wanted[0])
    assert amax.item() == wanted[1].item()
    op.execute(a, b, sfa, sfb, c, amax.fill_(1e9))
    assert amax.item() == 1e9
    d, dprob = matrix(torch.bfloat16), torch.ones(130, 1, 2, device="cuda")
    back = cudnn.GemmDsreluSm100(a, b, upstream, d, dprob, sfa, sfb, prob, sf_vec_size=32)
    back.compile()
    back.execute(a, b, upstream, d, dprob, sfa, sfb, prob)
    wanted = gemm.gemm_srelu_backward(a, b, upstream, sfa, sfb, prob, sf_vec_size=32)
    assert torch.equal(d, wanted[0])
    assert torch.equal(dprob, 1 + wanted[1])


def test_in_a_graph(backend: str) -> None:
    shape = SHAPES[0]
    given = {name: cuda(x) for name, x in operands(shape).items()}

    def forward() -> Any:
        return gemm.gemm_srelu_forward(*(given[name] for name in ("a", "b", "sfa", "sfb", "prob")), sf_vec_size=32)

    wanted = forward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = forward()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured["d_tensor"], wanted["d_tensor"])
