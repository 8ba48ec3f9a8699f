"""The typed record of one measurement, and its JSON form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["BenchRow", "load_rows", "save_rows"]


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One contender on one shape.

    Attributes:
        op: Name of the op.
        shape_name: Model and layer, e.g. ``"Llama-3 8B"``.
        shape: (M, N, K, L) of a matrix product; the extents of an op that memory bounds.
        dtype: Element type of the operands.
        who: ``"cudnn-fe (sm90)"``, ``"cuBLAS"``, ``"torch.compile"``, ...
        does: What it computes: ``"op"``, or ``"GEMM alone"`` and the like for a part of it.
        microseconds: Median time of a call.
        rate: Work per second, in ``rate_unit``.
        rate_unit: ``"TFLOP/s"`` or ``"TB/s"``.
        percent_of_ceiling: Of the best rate of the same device in the same run.
        ceiling: That rate, and what reached it.
        rival: The rival that ``ratio_to_rival`` refers to; empty where none was timed.
        ratio_to_rival: The rival's time over this one's: above 1 is faster than the rival.
        sm_clock_mhz: Median clock of the multiprocessors while it was timed; None off the GPU.
        method: How it was timed.
        rounds: How many timings the median is of.
        device: Name of the device.
        versions: ``"package version"`` of all that matters.
        date: ISO date and time, UTC.
    """

    op: str
    shape_name: str
    shape: tuple[int, ...]
    dtype: str
    who: str
    does: str
    microseconds: float
    rate: float
    rate_unit: str
    percent_of_ceiling: float
    ceiling: str
    rival: str
    ratio_to_rival: float | None
    sm_clock_mhz: int | None
    method: str
    rounds: int
    device: str
    versions: tuple[str, ...]
    date: str


def save_rows(path: Path, rows: Iterable[BenchRow]) -> None:
    """Write rows as a JSON list, one object and one line each."""
    path.write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n")


def load_rows(path: Path) -> list[BenchRow]:
    """Read what `save_rows` wrote."""
    rows = json.loads(path.read_text())
    return [BenchRow(**{**row, "shape": tuple(row["shape"]), "versions": tuple(row["versions"])}) for row in rows]
