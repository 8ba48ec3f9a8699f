"""Block-scaled GEMMs against this project's own bfloat16 GEMM of the same extents, as JSON rows.

python benchmarks/scaled_gemm.py benchmarks/results/h200_scaled_gemm.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cudnn._cli.bench.timing import time_alternating
from cudnn_fe.core.block_scale import BLOCK_FORMATS, block_scale_quantize
from cudnn_fe.gemm import (
    gemm_amax_forward,
    gemm_proj_rope_mxfp8_forward,
    gemm_srelu_backward,
    gemm_srelu_forward,
    gemm_swiglu_scaled_forward,
)
from cudnn_fe.gemm.matmul import matmul

SIZE = 8192
ROUNDS = 7


def quantised(rows: int, k: int, name: str) -> tuple[Any, Any]:
    """An operand (rows, k, 1) and its packed scales."""
    out = block_scale_quantize(torch.randn(1, rows, k, device="cuda").to(torch.bfloat16), name)
    return out["row_codes"].permute(1, 2, 0), out["row_scales"]


def cases() -> Iterator[tuple[str, str, Callable[[int], Any], tuple[int, int, int]]]:
    """Name, format, call and extents of each contender."""
    for name in ("mxfp8_e4m3", "nvfp4"):
        (a, sfa), (b, sfb) = (quantised(SIZE, SIZE, name) for _ in range(2))
        prob = torch.rand(SIZE, 1, 1, device="cuda")
        upstream = torch.randn(1, SIZE, SIZE, device="cuda").to(torch.bfloat16).permute(1, 2, 0)
        how: Any = {"sf_vec_size": BLOCK_FORMATS[name].block, "backend": "sm90"}
        halves: Any = {"ab12_dtype": "bfloat16", "c_dtype": "bfloat16", **how}
        calls: Any = {
            "gemm_amax": (gemm_amax_forward, (a, b, sfa, sfb), {"c_dtype": "bfloat16", **how}),
            "gemm_srelu": (gemm_srelu_forward, (a, b, sfa, sfb, prob), how),
            "gemm_dsrelu": (gemm_srelu_backward, (a, b, upstream, sfa, sfb, prob), how),
            "gemm_swiglu": (gemm_swiglu_scaled_forward, (a, b, sfa, sfb), halves),
        }
        for op, call in calls.items():
            yield op, name, partial(timed, *call), (SIZE, SIZE, SIZE)
    tokens, heads, k = 4096, 128, 1536
    x, w = (torch.randn(rows, k, device="cuda").to(torch.bfloat16) for rows in (tokens, 192 * heads))
    cos, sin = (torch.randn(tokens, 64, device="cuda").to(torch.bfloat16) for _ in range(2))
    rope = partial(timed, gemm_proj_rope_mxfp8_forward, (x, w, cos, sin), {"backend": "sm90"})
    yield "gemm_proj_rope", "bfloat16", rope, (tokens, 192 * heads, k)


def timed(function: Any, operands: tuple[Any, ...], options: dict[str, Any], index: int) -> Any:
    """One call; there is one set of operands, larger than L2."""
    del index
    return function(*operands, **options)


def main() -> None:
    """Write the rows and print what matters of each."""
    rows = []
    for op, format, call, (m, n, k) in cases():
        a, b = (torch.randn(1, size, k, device="cuda").to(torch.bfloat16).permute(1, 2, 0) for size in (m, n))

        def plain(_: int, a: Any = a, b: Any = b) -> Any:
            return matmul(a, b, 1.0, d_dtype="bfloat16", backend="sm90")

        ours, rival = time_alternating([call, plain], 2, rounds=ROUNDS, cuda=True)
        rows.append(
            {
                "op": op,
                "format": format,
                "shape": [m, n, k],
                "who": "cudnn-fe (sm90, operands dequantised first, results from a float32 product in memory)",
                "microseconds": round(ours.microseconds, 1),
                "rate": round(2e-6 * m * n * k / ours.microseconds, 1),
                "rate_unit": "TFLOP/s",
                "rival": "cudnn-fe's bfloat16 GEMM (sm90)",
                "ratio_to_rival": round(rival.microseconds / ours.microseconds, 3),
                "sm_clock_mhz": ours.clock_mhz,
                "method": ours.method,
                "rounds": ours.rounds,
                "device": torch.cuda.get_device_name(),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
            }
        )
        row = rows[-1]
        print(f"{op:16} {format:12} {row['microseconds']:8.1f} us {row['rate']:6.1f} TFLOP/s {row['ratio_to_rival']}")
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
