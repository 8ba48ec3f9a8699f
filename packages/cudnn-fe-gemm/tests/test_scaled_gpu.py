"""On a GPU: block-scaled GEMMs against their definition on a CPU, on both main loops.

Operands are such that every sum is exact in float32, in whatever order: what the contracts fix must be bit-equal.
"""

# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import cudnn
import cudnn_fe.gemm
from cudnn_fe.core.block_scale import BLOCK_FORMATS, atom_view, dequantize, swizzle_scales, unswizzle_scales
from cudnn_fe.core.codecs import encode, pack_fp4
from cudnn_fe.core.settings import override
from cudnn_fe_testkit.scaled_gpu import both, cuda, differing, main_loops, to_cpu

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


backend = main_loops


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
    return {
        "a_tensor": a, "b_tensor": b, "sfa_tensor": sfa, "sfb_tensor": atom_view(sfb), "prob_tensor": prob,
        "c_tensor": upstream.permute(1, 2, 0),
    }  # fmt: skip


def given(shape: Shape, names: str = "") -> dict[str, Any]:
    """A, B, their scales, and the operands named."""
    every = operands(shape)
    return {name: every[name] for name in ("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", *names.split())}


def options_of(shape: Shape, result: str) -> dict[str, Any]:
    fp8 = shape.kind.startswith("mxfp8")
    return {
        "sf_vec_size": BLOCK_FORMATS[shape.kind].block,
        result: torch.float8_e4m3fn if fp8 else torch.bfloat16,
        **({"norm_const_tensor": torch.tensor([0.25])} if fp8 else {}),
    }


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_amax(backend: str, shape: Shape) -> None:
    major, size = "m" if shape.m_major else "n", BLOCK_FORMATS[shape.kind].block
    for c_dtype in ("float32", "uint8" if shape.kind.endswith("fp4") else "float8_e4m3fn"):
        got, wanted = both(gemm.gemm_amax_forward, **given(shape), c_major=major, c_dtype=c_dtype, sf_vec_size=size)
        assert differing(got, wanted) == [], c_dtype


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_srelu(backend: str, shape: Shape) -> None:
    options = {"alpha": -0.5, "c_dtype": "float16", "c_major": "m" if shape.m_major else "n"}
    operands = given(shape, "prob_tensor")
    got, wanted = both(gemm.gemm_srelu_forward, **operands, **options, **options_of(shape, "d_dtype"))
    assert differing(got, wanted) == []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dsrelu(backend: str, shape: Shape) -> None:
    options = {"alpha": 0.25, "d_major": "m" if shape.m_major else "n", **options_of(shape, "d_dtype")}
    operands = given(shape, "c_tensor prob_tensor")
    got, wanted = both(gemm.gemm_srelu_backward, **operands, **options)
    assert [key for key in differing(got, wanted) if not key.startswith("dprob")] == []
    # Sums of squares may need more bits than float32 has: N terms in another order.
    with override(backend="reference"):
        sizes = gemm.gemm_srelu_backward(**operands | {"c_tensor": operands["c_tensor"].abs()}, **options)
    error = (got["dprob_tensor"].cpu() - wanted["dprob_tensor"]).abs()
    assert bool((error <= shape.n * 2.0**-24 * sizes["dprob_tensor"]).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_swiglu(backend: str, shape: Shape) -> None:
    operands, options = given(shape), {"alpha": 0.125, "c_major": "m" if shape.m_major else "n"}
    size = BLOCK_FORMATS[shape.kind].block
    got, wanted = both(gemm.gemm_swiglu_scaled_forward, **operands, c_dtype="float32", sf_vec_size=size, **options)
    assert [key for key in differing(got, wanted) if key.startswith("ab12")] == []
    gates = wanted["ab12_tensor"].unflatten(1, (-1, 2, 32))[:, :, 1].flatten(1, 2).abs()
    # The exponential's argument is rounded, and its and the reciprocal's errors are a few units.
    bound = (8 + gates) * 2.0**-23 * wanted["c_tensor"].abs() + 1e-30
    assert bool(((got["c_tensor"].cpu() - wanted["c_tensor"]).abs() <= bound).all())
    got, wanted = both(gemm.gemm_swiglu_scaled_forward, **operands, **options, **options_of(shape, "c_dtype"))
    got = to_cpu(got)
    assert got["c_tensor"].stride() == wanted["c_tensor"].stride()
    if shape.kind.startswith("mxfp8"):
        columns = shape.n // 2
        numbers = []
        for out in (got, wanted):
            plain = unswizzle_scales(out["sfc_tensor"].view(torch.uint8), shape.m, columns // 32).permute(1, 2, 0)
            codes = out["c_tensor"].view(torch.uint8)
            numbers.append(dequantize(codes, plain, BLOCK_FORMATS["mxfp8_e4m3"], axis=1))
        # A code may be the neighbour, where a value lies between two.
        top = numbers[1].abs().unflatten(1, (-1, 32)).amax(2).repeat_interleave(32, 1)
        assert bool(((numbers[0] - numbers[1]).abs() <= 2.0**-3 * numbers[1].abs() + 2.0**-9 * top).all())
        assert (numbers[0] != numbers[1]).float().mean() < 0.01
    else:
        assert torch.allclose(got["c_tensor"].float(), wanted["c_tensor"].float(), rtol=2.0**-7, atol=0)
        assert float(got["amax_tensor"]) == pytest.approx(float(wanted["amax_tensor"]), rel=1e-5)


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
    names = ("x", "w", "cos", "sin", "x_scale", "w_scale")
    operands = dict(zip(names, (x.to(kind), w.to(kind), *tables, *scales), strict=True))
    for name in () if w_out_in else ("w", "w_scale"):
        operands[name] = None if operands[name] is None else operands[name].T.contiguous()
    got, wanted = both(gemm.gemm_proj_rope_mxfp8_forward, **operands, w_out_in=w_out_in)
    assert differing(got, wanted) == []


def test_classes_fold_into_their_buffers(backend: str) -> None:
    shape = Shape("mxfp4", 130, 128, 96, 2)
    a, b, sfa, sfb, prob, upstream = map(cuda, operands(shape).values())

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


def test_nan_reaches_what_depends_on_it(backend: str) -> None:
    placed = {name: cuda(x) for name, x in given(SHAPES[0], "c_tensor prob_tensor").items()}
    placed["a_tensor"].view(torch.uint8)[3, 5, 1] = 0x7F
    placed["sfa_tensor"].view(torch.uint8)[0, 0, 0, 7, 0, 0] = 0xFF  # row 7, first block, first batch
    bad = torch.zeros(SHAPES[0].m, 1, 2, dtype=torch.bool, device="cuda")
    bad[3, :, 1] = bad[7, :, 0] = True
    upstream = placed.pop("c_tensor")
    out = gemm.gemm_srelu_forward(**placed, sf_vec_size=32)
    back = gemm.gemm_srelu_backward(**placed, c_tensor=upstream, sf_vec_size=32)
    for x in (out["c_tensor"], out["d_tensor"], back["d_tensor"], back["dprob_tensor"]):
        assert torch.equal(x.isnan(), bad.expand(x.shape))
    del placed["prob_tensor"]
    assert gemm.gemm_amax_forward(**placed)["amax_tensor"].isnan().all()


@pytest.mark.parametrize(("m", "n", "k"), [(0, 64, 32), (5, 0, 32), (5, 64, 0)])
def test_empty(backend: str, m: int, n: int, k: int) -> None:
    shape = Shape("mxfp8_e4m3", m, n, k, 2)
    got, wanted = both(gemm.gemm_amax_forward, **given(shape))
    assert differing(got, wanted) == []
    got, wanted = both(gemm.gemm_srelu_backward, **given(shape, "c_tensor prob_tensor"), sf_vec_size=32)
    assert differing(got, wanted) == []


def test_on_a_side_stream_and_in_a_graph(backend: str) -> None:
    placed = {name: cuda(x) for name, x in given(SHAPES[0], "prob_tensor").items()}

    def forward(**more: Any) -> Any:
        return gemm.gemm_srelu_forward(**placed, sf_vec_size=32, **more)

    wanted = forward()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    aside = forward(stream=side)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = forward()
    graph.replay()
    torch.cuda.synchronize()
    assert differing(aside, wanted) == []
    assert differing(captured, wanted) == []
