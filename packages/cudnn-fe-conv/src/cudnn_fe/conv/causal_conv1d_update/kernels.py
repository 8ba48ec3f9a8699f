"""Which kernels serve the decoding step, and what they are compiled for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn_fe.conv.causal_conv1d_update.kernel_spec import UpdateSpec
from cudnn_fe.conv.operands import MOST_COUNTED, lie_whole, vector_length
from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal

if TYPE_CHECKING:
    from cudnn_fe.conv.causal_conv1d_update.op import CausalConv1dUpdate

__all__ = ["KERNELS"]

_FEW_LANES = 16  # beyond these, a thread would not keep a vector's history in registers


def _refuse(problem: CausalConv1dUpdate, where: Device) -> str | None:
    rows, channels, slots, _ = problem.extents
    large = max(rows, slots) * channels > MOST_COUNTED
    return portable_refusal(problem, where) or (
        "it counts channels of all rows and slots in 32 bits" if large else None
    )


def _power_below(count: int) -> int:
    return 1 << max(count, 1).bit_length() - 1


def _specialise(problem: CausalConv1dUpdate, where: Device) -> UpdateSpec:
    del where
    _, _, _, lanes = problem.extents
    itemsize, few = problem.x.dtype.itemsize, max(lanes, problem.width) <= _FEW_LANES
    samples, ring = (problem.x, problem.outputs[0]), problem.cache_seqlens is not None
    # One 16-byte piece of states for each thread: more would lie too far apart for threads side by side.
    pieces = min(vector_length(1, *samples, itemsize=itemsize), _power_below(16 // (max(lanes, 1) * itemsize)))
    whole_states = few and not ring and lanes > 0 and lie_whole(pieces, problem.conv_state)
    # Eight bytes: a step is as long as its threads' own work, of which twice as many have half.
    apart = min(vector_length(1, *samples, problem.conv_state, itemsize=itemsize), max(8 // itemsize, 1))
    vector = 1 if not few else pieces if whole_states else apart
    return UpdateSpec(
        x_dtype=problem.x.dtype.name,
        weight_dtype=problem.weight.dtype.name,
        bias_dtype=problem.bias.dtype.name if problem.bias is not None else None,
        silu=problem.activation == "silu",
        width=problem.width,
        lanes=lanes,
        ring=ring,
        indexed=problem.conv_state_indices is not None,
        vector=vector,
        whole_parameters=few and lie_whole(vector, problem.weight, problem.bias),
        whole_states=whole_states,
    )


KERNELS = (
    Kernel(
        backend="portable",
        module="cudnn_fe.conv.causal_conv1d_update.portable",
        refuse=_refuse,
        specialise=_specialise,
        targets=PORTABLE_TARGETS,
        verified=("H200",),
    ),
)
