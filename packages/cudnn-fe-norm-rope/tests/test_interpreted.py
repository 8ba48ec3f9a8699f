"""Every op's portable kernel, interpreted on a CPU, gives what the definition gives."""

from __future__ import annotations

from typing import Any

import pytest

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
