"""A first call must not wait for imports that it does not need: some of torch's own take seconds."""

from __future__ import annotations

import subprocess
import sys

CALL = """
import sys
import torch
before = set(sys.modules)
from cudnn_fe.gemm import gemm_swiglu_forward
gemm_swiglu_forward(torch.zeros(2, 8, 1), torch.zeros(64, 8, 1))
from cudnn_fe.core.compile import cache_key
cache_key("cudnn_fe.gemm.swiglu.sm90", "spec", "sm_90a")
print(*sorted(set(sys.modules) - before))
"""


def test_an_eager_call_imports_neither_the_compiler_nor_torchs() -> None:
    done = subprocess.run([sys.executable, "-c", CALL], capture_output=True, text=True, check=True)
    new = set(done.stdout.split())
    assert "cudnn_fe.core.torch" in new
    heavy = {
        name for name in new if name.split(".")[0] in ("cutlass", "jax", "sympy", "tvm_ffi") or name == "torch._dynamo"
    }
    assert not heavy
