"""Quantisers and dequantisers against a device copy of as many bytes, as JSON rows.

python benchmarks/block_scale.py benchmarks/results/h200_block_scale.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

import torch

from cudnn._cli.bench.timing import time_alternating
from cudnn_fe.core.block_scale import BLOCK_FORMATS, block_scale_dequantize, block_scale_quantize

SHAPES = {"prefill": (16384, 8192), "decode": (256, 8192)}
ROUNDS = 11
SETS = 2


def cases(shape: tuple[int, int]) -> Iterator[tuple[str, Callable[[int], Any], int]]:
    """Name, call and bytes moved of each contender."""
    sources = [torch.randn(shape, device="cuda").to(torch.bfloat16) for _ in range(SETS)]

    def moved(*tensors: Any) -> int:
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)

    for name, direction in product(BLOCK_FORMATS, ("rows", "columns", "both")):
        how: Any = {"format": name, "direction": direction, "backend": "portable"}
        results = [block_scale_quantize(x, **how) for x in sources]

        def quantise(index: int, how: Any = how) -> Any:
            return block_scale_quantize(sources[index], **how)

        yield f"quantize {name} {direction}", quantise, moved(sources[0], *results[0])
        if direction == "both":
            continue
        prefix = direction[:-1]
        given = [(out[f"{prefix}_codes"], out[f"{prefix}_scales"]) for out in results]
        back: Any = {**how, "dtype": "bfloat16"}

        def dequantise(index: int, given: Any = given, back: Any = back) -> Any:
            return block_scale_dequantize(*given[index], **back)

        yield f"dequantize {name} {direction}", dequantise, moved(sources[0], *given[0])


def measure(labels: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each case of the shapes called ``labels``."""
    versions = []
    for package in ("torch", "nvidia-cutlass-dsl", "apache-tvm-ffi"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    for label in labels:
        shape = SHAPES[label]
        for name, call, nbytes in cases(shape):
            halves = [torch.empty(nbytes // 2, dtype=torch.uint8, device="cuda") for _ in range(SETS + 1)]

            def copy(index: int, halves: Any = halves) -> Any:
                return halves[SETS].copy_(halves[index])

            ours, ceiling = time_alternating([call, copy], SETS, rounds=ROUNDS, cuda=True)
            ratio = ceiling.microseconds / ours.microseconds
            yield {
                "op": name,
                "shape_name": label,
                "shape": list(shape),
                "dtype": "bfloat16",
                "who": "cudnn-fe (portable)",
                "microseconds": round(ours.microseconds, 2),
                "rate": round(nbytes / ours.microseconds * 1e-6, 3),
                "rate_unit": "TB/s",
                "percent_of_ceiling": round(100 * ratio, 1),
                "ceiling": f"{nbytes / ceiling.microseconds * 1e-6:.2f} TB/s: a device copy of as many bytes in turn",
                "sm_clock_mhz": ours.clock_mhz,
                "method": ours.method,
                "rounds": ours.rounds,
                "device": torch.cuda.get_device_name(),
                "versions": versions,
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
            }


def main() -> None:
    """Write the rows and print the two numbers that matter of each."""
    rows = []
    for row in measure(sys.argv[2:] or list(SHAPES)):
        rows.append(row)
        print(f"{row['shape_name']:8} {row['op']:36} {row['rate']:6.2f} TB/s {row['percent_of_ceiling']:6.1f} %")
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
