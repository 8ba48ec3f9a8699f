"""Measures what a call costs the host: import, first call from a warm disk cache, warm calls against a bare one.

    uv run python tools/host_time.py [--json FILE]

Needs a CUDA GPU for all but the import. The bars are those of docs/correctness-and-speed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUNS, CALLS = 9, 2000


def per_call(call: Callable[[], Any]) -> float:
    """Microseconds of one call on the host: the median over runs, the device drained between them."""
    import torch

    samples = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        samples.append((time.perf_counter() - start) / CALLS * 1e6)
    torch.cuda.synchronize()
    return statistics.median(samples)


def import_ms() -> dict[str, float]:
    """Milliseconds that ``import cudnn`` adds to a bare interpreter, the fastest of many."""

    def best(code: str) -> float:
        times = []
        for _ in range(15):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append(time.perf_counter() - start)
        return min(times) * 1e3

    return {"import_cudnn_ms": best("import cudnn") - best("pass")}


FIRST_CALL = """
import time, torch
a = torch.zeros(128, 256, 1, device="cuda", dtype=torch.bfloat16)
b = torch.zeros(128, 256, 1, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
start = time.perf_counter()
from cudnn import gemm_swiglu_forward
gemm_swiglu_forward(a, b)
torch.cuda.synchronize()
print(time.perf_counter() - start)
from cudnn_fe.core.compile import compile_counts
print(compile_counts.compiled, compile_counts.loaded)
"""


def first_call_seconds() -> dict[str, Any]:
    """Seconds of the first call beyond torch's import: compiling, then in a new process from the disk cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CUDNN_FRONTEND_COMPILED_CACHE": folder}

        def run() -> tuple[float, str]:
            done = subprocess.run(
                [sys.executable, "-c", FIRST_CALL], env=environment, check=True, capture_output=True, text=True
            )
            seconds, counts = done.stdout.split("\n")[:2]
            return float(seconds), counts

        (cold, cold_counts), warm = run(), [run() for _ in range(3)]
        assert cold_counts == "1 0", cold_counts
        assert all(counts == "0 1" for _, counts in warm), warm
        return {"first_call_compiling_s": cold, "first_call_warm_cache_s": min(seconds for seconds, _ in warm)}


def warm_calls() -> dict[str, float]:
    """Host time of warm calls of GEMM + SwiGLU on a shape whose kernel is shorter than the call."""
    import torch

    from cudnn_fe.core.torch import torch_op
    from cudnn_fe.gemm import gemm_swiglu_forward
    from cudnn_fe.gemm.legacy import GemmSwigluSm100
    from cudnn_fe.gemm.swiglu.op import FORWARD

    a = torch.randn(64, 64, 1, device="cuda").bfloat16()
    b = torch.randn(64, 64, 1, device="cuda").bfloat16()
    out = gemm_swiglu_forward(a, b, c_dtype=torch.bfloat16)
    ab12, c = out["ab12_tensor"], out["c_tensor"]
    op = GemmSwigluSm100(a, b, ab12, c)
    op.compile()
    plan = next(iter(torch_op(FORWARD)._plans.values()))
    bare = plan.function
    assert bare is not None
    shapes = [(x.shape, x.dtype) for x in (ab12, c)]

    def empties() -> None:
        for shape, kind in shapes:
            torch.empty(shape, dtype=kind, device="cuda")

    result = {
        "bare_call_us": per_call(lambda: bare(a, b, ab12, c, 1.0)),
        "two_empties_us": per_call(empties),
        "class_execute_us": per_call(lambda: op.execute(a, b, ab12, c)),
        "wrapper_us": per_call(lambda: gemm_swiglu_forward(a, b, c_dtype=torch.bfloat16)),
    }
    a.requires_grad_()
    result["wrapper_recording_gradients_us"] = per_call(lambda: gemm_swiglu_forward(a, b, c_dtype=torch.bfloat16))
    result["execute_over_bare"] = result["class_execute_us"] / result["bare_call_us"]
    result["wrapper_over_bare_and_empties"] = result["wrapper_us"] / (result["bare_call_us"] + result["two_empties_us"])
    return result


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the record here")
    arguments = parser.parse_args()
    record: dict[str, Any] = import_ms()
    from cudnn_fe.core.device import cuda_device_count, device

    if cuda_device_count():
        import torch

        record |= {"device": device("cuda:0").name, "torch": torch.__version__, **first_call_seconds(), **warm_calls()}
    else:
        print("no CUDA GPU: the import alone is measured")
    for name, value in record.items():
        print(f"{name:32} {value:.3f}" if isinstance(value, float) else f"{name:32} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
