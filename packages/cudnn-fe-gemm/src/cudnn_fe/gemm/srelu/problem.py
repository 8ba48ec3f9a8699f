"""What the squared-ReLU GEMM and its derivative have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.gemm.hints import check_scaled_hints
from cudnn_fe.gemm.scaled import QuantisingProblem, quantising_fields

__all__ = ["SreluProblem", "shared_fields"]

_TILE_NS = (64, 128, 192, 256)


@dataclass(frozen=True)
class SreluProblem(QuantisingProblem):
    """A quantised GEMM whose result D may be quantised again, with a factor for every row."""

    output_count = 4

    prob: TensorSpec


def shared_fields(
    operands: tuple[TensorSpec | None, ...],
    prob: TensorSpec | None,
    norm_const: TensorSpec | None,
    options: dict[str, Any],
    major_name: str,
) -> dict[str, Any]:
    """Validate what both ops take and return the fields of `SreluProblem`."""
    fields = quantising_fields(operands, norm_const, options, (major_name, "d_dtype"))
    a = fields["a"]
    assert prob is not None
    check_scaled_hints(options["mma_tiler_mn"], options["cluster_shape_mn"], _TILE_NS, paired=True)
    require_shape(prob, (a.shape[0], 1, a.shape[2]), "(M, 1, L)")
    require_dtype(prob, "float32")
    require_same_device(a, prob)
    return {**fields, "prob": prob}
