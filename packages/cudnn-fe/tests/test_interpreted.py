"""Every op that has cases for the benchmark: its portable kernel, interpreted on a CPU, computes the small ones."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn._cli.bench.torch_memory import objection_to
from cudnn_fe.core.op import Op, resolve
from cudnn_fe.core.registry import ops
from cudnn_fe_testkit.interpreted import interpreted, missing_interpreter

pytestmark = pytest.mark.skipif(missing_interpreter() is not None, reason=f"not interpreted: {missing_interpreter()}")
OPS = [op for op in ops(public=False) if op.memory_cases and any(kernel.backend == "portable" for kernel in op.kernels)]


def test_ops_with_cases_are_found() -> None:
    assert {op.package for op in OPS} == {
        *("cudnn-fe-core", "cudnn-fe-conv", "cudnn-fe-gemm", "cudnn-fe-grouped", "cudnn-fe-norm-rope"),
    }


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_kernel_computes_the_definition(op: Op) -> None:
    cases: Any = resolve(str(op.memory_cases))(False)
    for case in cases:
        with interpreted():
            ours = case.entrants("cpu", 1, None)[0]
            assert objection_to(ours, case.allowed) is None, case.name
