"""Every op's portable kernel, interpreted on a CPU, gives what the definition gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cudnn
from cudnn_fe_testkit.compare import assert_close
from cudnn_fe_testkit.inputs import convert
from cudnn_fe_testkit.interpreted import interpreted, missing_interpreter

pytestmark = pytest.mark.skipif(missing_interpreter() is not None, reason=f"not interpreted: {missing_interpreter()}")


def test_kernel(case: Any) -> None:
    """Bit for bit where the page fixes the rounding."""
    function = getattr(cudnn, case.function)

    def run() -> list[Any]:
        operands = {name: convert(x, "torch") for name, x in case.make().items()}
        found = function(**operands, **case.options)
        values = found.values() if isinstance(found, dict) else found if isinstance(found, tuple) else (found,)
        return [x for x in values if x is not None]

    wanted = run()
    with interpreted():
        got = run()
    for x, reference in zip(got, wanted, strict=True):
        assert x.dtype == reference.dtype
        assert_close(x, reference, case.unit)


@pytest.mark.parametrize("width", [1024, 8192, 12288, 16384, 32768, 65536, 262144])
def test_rows_of_every_plan(width: int) -> None:
    """By warps, by blocks, in clusters' registers, in one block's shared memory, in clusters' shared memory."""
    made = torch.Generator().manual_seed(width)
    x, weight = (torch.randn(shape, generator=made).bfloat16() for shape in ((3, width), (width,)))

    def run() -> list[torch.Tensor]:
        activated = cudnn.rmsnorm_silu_forward(x, weight, eps=1e-6).values()
        return [x for x in (*activated, *cudnn.rmsnorm_rht_amax_forward(x, weight, rows_per_cta=1)) if x is not None]

    wanted = run()
    with interpreted():
        got = run()
    for result, reference in zip(got, wanted, strict=True):
        assert_close(result, reference, 2.0**-8)
