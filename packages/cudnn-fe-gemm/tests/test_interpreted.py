"""The portable kernels of SwiGLU and of plain products, interpreted on a CPU, against the definition."""

from __future__ import annotations

import pytest
import torch

from cudnn_fe.gemm import gemm_swiglu_backward, gemm_swiglu_forward
from cudnn_fe.gemm.matmul import matmul
from cudnn_fe_testkit.compare import assert_close, gemm_tolerance
from cudnn_fe_testkit.interpreted import interpreted, missing_interpreter

pytestmark = pytest.mark.skipif(missing_interpreter() is not None, reason=f"not interpreted: {missing_interpreter()}")


def operands(m: int, n: int, k: int, kind: torch.dtype, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    a, b = (torch.randn(batch, rows, k, generator=made).to(kind).permute(1, 2, 0) for rows in (m, n))
    return a, b


@pytest.mark.parametrize(
    ("kind", "m", "k", "batch"),
    [(torch.bfloat16, 40, 64, 2), (torch.float16, 130, 32, 1), (torch.float32, 17, 48, 1), (torch.bfloat16, 33, 71, 1)],
)
def test_swiglu(kind: torch.dtype, m: int, k: int, batch: int) -> None:
    """Whole vectors and rows that none divides; several batches; forward and the gradients of both operands."""
    a, b = operands(m, 64, k, kind, batch)
    wanted = gemm_swiglu_forward(a, b)
    with interpreted():
        got = gemm_swiglu_forward(a, b)
    bound = gemm_tolerance(k, a.dtype, a.dtype)
    for name in ("ab12_tensor", "c_tensor"):
        assert_close(got[name], wanted[name], 4 * bound, name)
    dc = torch.randn_like(wanted["c_tensor"].float()).to(wanted["c_tensor"].dtype)
    given = (a, b, wanted["ab12_tensor"], dc)
    gradients = gemm_swiglu_backward(*given)
    with interpreted():
        found = gemm_swiglu_backward(*given)
    for got_gradient, reference in zip(found.values(), gradients.values(), strict=True):
        if reference is not None:
            assert_close(got_gradient, reference, 4 * bound)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e4m3fn])
def test_products(kind: torch.dtype) -> None:
    a, b = operands(70, 48, 96, torch.bfloat16)
    a, b = a.to(kind), b.to(kind)
    wanted = matmul(a, b)
    with interpreted():
        got = matmul(a, b)
    assert_close(got, wanted, gemm_tolerance(96, a.dtype, wanted.dtype))
