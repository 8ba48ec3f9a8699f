"""On a GPU: the hyper-connections' gradients, bit for bit where every sum is exact, else against float64."""

# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnn
from cudnn_fe.gemm import mhc_projection_backward
from cudnn_fe_testkit.hyper_connections import NAMES, case, exact, tensor
from cudnn_fe_testkit.on_gpu import poison

pytestmark = pytest.mark.gpu

# The profile that it is named for; extents that no tile, vector or part of the rows divides; many projections.
SHAPES = ((4096, 20480, 24), (1, 1, 1), (31, 63, 3), (513, 98, 24), (1100, 260, 32), (130, 95, 33), (70, 264, 70))


def cuda(given: dict[str, Any]) -> list[torch.Tensor]:
    """Operands on the GPU."""
    return [tensor(given[name]).cuda() for name in NAMES]


def run(operands: list[torch.Tensor], backend: str = "portable") -> tuple[torch.Tensor, torch.Tensor]:
    poison()
    dx, dweight = mhc_projection_backward(*operands, allow_tf32=True, backend=backend)
    return dx, dweight


def whole(m: int, k: int, n: int, pad: int = 0) -> list[torch.Tensor]:
    """Operands with exact products and sums in float32, made on the GPU; NaN between rows and where nothing is read."""
    generator = torch.Generator("cuda").manual_seed(0)

    def integers(most: int, rows: int, columns: int, kind: torch.dtype = torch.float32, read: int = 0) -> torch.Tensor:
        memory = torch.full((rows, columns + pad), torch.nan, dtype=kind, device="cuda")
        extents = (rows, read or columns)
        values = torch.randint(-most, most + 1, extents, generator=generator, device="cuda", dtype=torch.int8)
        memory[:, : extents[1]] = values
        return memory[:, :columns]

    r = integers(1, m, 1)
    r[:] = 2 / torch.tensor(float(k))
    assert bool((r * float(k) == 2).all())
    return [
        integers(3, m, k, torch.bfloat16), integers(3, n, k), integers(3, m, max(n + 8, 32), read=n),
        integers(8, m, 1), r,
    ]  # fmt: skip


@pytest.mark.parametrize(("shape", "pad"), [*((shape, 0) for shape in SHAPES), (SHAPES[4], 5)], ids=str)
def test_exact_sums(shape: tuple[int, int, int], pad: int) -> None:
    operands = whole(*shape, pad)
    dx, dweight = run(operands)
    x, weight, p, grad_r = (operand.double() for operand in operands[:4])
    p = p[:, : shape[2]]
    assert torch.equal(dx, (grad_r / 2 * x + p @ weight).to(torch.bfloat16))
    assert torch.equal(dweight, (p.T @ x).float())


@pytest.mark.parametrize("shape", [(4096, 512, 24), (300, 97, 5), (200, 64, 40)], ids=str)
def test_against_float64(shape: tuple[int, int, int]) -> None:
    m, _, n = shape
    given = case(*shape)
    operands = cuda(given)
    dx, dweight = run(operands)
    again = run(operands)
    assert torch.equal(dx, again[0])
    assert torch.equal(dweight, again[1])
    wanted_dx, wanted_dw, dx_size, dw_size = exact(given)
    # TF32 rounds each factor by 2**-11 of it; float32 sums of n or M terms, which tensor cores cut off instead of
    # rounding them; dx is rounded once to bfloat16.
    dx_bound = (2 * 2.0**-11 + (n + 4) * 2.0**-23) * dx_size
    got = dx.double().cpu().numpy()
    assert (np.abs(got - wanted_dx) <= dx_bound + 2.0**-8 * np.abs(wanted_dx)).all()
    assert (np.abs(dweight.double().cpu().numpy() - wanted_dw) <= (2.0**-11 + m * 2.0**-23) * dw_size).all()
    # The documented criterion.
    for found, wanted in ((got, wanted_dx), (dweight.double().cpu().numpy(), wanted_dw)):
        assert np.linalg.norm(found - wanted) <= 0.003 * np.linalg.norm(wanted)


def test_factors_are_rounded_to_tf32() -> None:
    operands = whole(1, 8, 1)
    for operand, value in zip(operands, (1, 1 + 2.0**-11, 1 + 2.0**-11, 0), strict=False):
        operand[:] = value  # halfway, where it has more bits: away from zero
    dx, dweight = run(operands)
    assert dweight.tolist() == [[1 + 2.0**-10] * 8]
    assert dx.tolist() == [[1.0] * 8]  # (1 + 2**-10)**2, rounded to bfloat16


def test_not_a_number_goes_where_it_must() -> None:
    operands = whole(70, 130, 9)
    operands[0][40, 70] = torch.nan
    dx, dweight = run(operands)
    lost = torch.zeros(70, 130, dtype=torch.bool, device="cuda")
    lost[40, 70] = True
    assert torch.equal(dx.isnan(), lost)
    assert torch.equal(dweight.isnan(), lost[40].expand(9, -1))
    operands = whole(70, 130, 9)
    operands[4][40] = 0  # no epsilon: infinity, and NaN of x = 0
    dx, _ = run(operands)
    assert dx[40].isfinite().sum() == 0
    assert dx[:40].isfinite().all()
    assert dx[41:].isfinite().all()


def test_more_elements_than_32_bits_count() -> None:
    m, k, n = 110_000, 20480, 8
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GiB")
    rows = 64
    small = whole(rows, k, n)
    x = torch.zeros(m, k, dtype=torch.bfloat16, device="cuda")
    p, grad_r, r = (torch.zeros(m, t.shape[1], device="cuda") for t in small[2:])
    r.fill_(1.0)
    for whole_one, part in zip((x, p, grad_r, r), (small[0], *small[2:]), strict=True):
        whole_one[-rows:] = part
    dx, dweight = run([x, small[1], p, grad_r, r])
    wanted = run(small)
    assert torch.equal(dx[-rows:], wanted[0])
    assert not dx[:-rows].any()
    assert torch.equal(dweight, wanted[1])


def test_in_a_graph_and_on_a_side_stream() -> None:
    operands = whole(130, 96, 24)
    wanted = run(operands)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    aside = mhc_projection_backward(*operands, allow_tf32=True, backend="portable", current_stream=side)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = mhc_projection_backward(*operands, allow_tf32=True, backend="portable")
    graph.replay()
    torch.cuda.synchronize()
    for results in (aside, captured):
        assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))


def test_class() -> None:
    operands = whole(4096, 2048, 24)
    outs = [torch.empty(4096, 2048, dtype=torch.bfloat16, device="cuda"), torch.empty(24, 2048, device="cuda")]
    op: Any = cudnn.MhcProjectionBackward(*operands, *outs, allow_tf32=True)
    op.compile()
    workspace = torch.empty(op.scratch_workspace_bytes(), dtype=torch.uint8, device="cuda")
    op.execute(*operands, *outs, workspace)
    wanted = run(operands)
    assert all(torch.equal(a, b) for a, b in zip(outs, wanted, strict=True))
