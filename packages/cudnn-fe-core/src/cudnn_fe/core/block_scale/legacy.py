"""The converters' classes of cudnn-frontend 1.32; its functions have these names already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.block_scale.nvfp4_ops import FROM_NVFP4, TO_NVFP4
from cudnn_fe.core.legacy import LegacyClass, make_class
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["Nvfp4BlockScaleDequantizer", "Nvfp4BlockScaleQuantizer"]


def _class(name: str, op: Op, samples: Mapping[str, str]) -> Any:
    """A class whose constructor takes a sample, named by ``samples``, for each tensor of ``execute``."""
    inputs = op.problem.operands

    def bind(given: Mapping[str, Any]) -> tuple[Problem, tuple[TensorSpec, ...], tuple[float, ...]]:
        specs = {tensor: spec_of(given[sample], tensor) for tensor, sample in samples.items()}
        outputs = tuple(specs[tensor] for tensor in op.results)
        options = {"native": outputs[0].dtype.name != "uint8"} if op is TO_NVFP4 else {}
        problem = op.bind(*(specs[tensor] for tensor in inputs), **options)
        for position, sample in enumerate(outputs):
            problem.check_output(position, sample)
        return problem, outputs, ()

    return make_class(
        LegacyClass(
            name=name,
            op=op,
            parameters=", ".join(samples.values()),
            execute=", ".join((*samples, "current_stream=None")),
            inputs=inputs,
            outputs=op.results,
            scalars=(),
            absent=(),
            bind=bind,
        ),
        __name__,
    )


Nvfp4BlockScaleQuantizer = _class(
    "Nvfp4BlockScaleQuantizer",
    TO_NVFP4,
    {
        "input_tensor": "sample_input",
        "encode_scale": "sample_encode_scale",
        "packed_tensor": "sample_packed",
        "scale_tensor": "sample_scales",
    },
)
Nvfp4BlockScaleDequantizer = _class(
    "Nvfp4BlockScaleDequantizer",
    FROM_NVFP4,
    {
        "packed_tensor": "sample_packed",
        "scale_tensor": "sample_scales",
        "decode_scale": "sample_decode_scale",
        "output_tensor": "sample_output",
    },
)
