"""The FP4 grouped GEMM with an activation that measures its Hadamard transform: the transform reads D once more."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.cute.amax import clear_amax
from cudnn_fe.core.cute.block_tiles import LanePlace
from cudnn_fe.grouped.scaled.forward_spec import ForwardSpec
from cudnn_fe.grouped.scaled.portable_forward import Forward, fake_arguments
from cudnn_fe.grouped.scaled.portable_results import TileResults
from cudnn_fe.grouped.scaled.portable_row_blocks import TransformAmax

__all__ = ["fake_arguments", "launcher"]


class _Hadamard(Forward):
    def begin(self, stream: Any, outputs: Any) -> None:
        for amax in outputs[2:]:
            clear_amax(stream, amax)

    def store(
        self, results: TileResults, values: Any, place: LanePlace, outputs: Any, scratch: Any, numbers: Any
    ) -> None:
        del scratch, numbers
        results.finish(values, place, self.spec.result_access, outputs[1], None, outputs[2], ())

    def end(self, stream: Any, ends: Any, rows: Any, matrix: Any, outputs: Any, scratch: Any, numbers: Any) -> None:
        del rows, scratch, numbers
        TransformAmax(min(self.spec.result_access, 2)).launch(stream, outputs[1], ends, (matrix, outputs[3]))


def launcher(spec: ForwardSpec) -> Any:
    """The host function ``launch(stream, *operands, *outputs, *scratch, *numbers)`` of a spec, to be compiled."""
    return _Hadamard(spec)
