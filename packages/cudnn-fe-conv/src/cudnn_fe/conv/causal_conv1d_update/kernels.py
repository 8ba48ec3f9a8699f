"""Which kernels serve the decoding step, and what they are compiled for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn_fe.conv.causal_conv1d_update.kernel_spec import UpdateSpec
from cudnn_fe.conv.operands import vector_length
from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal

if TYPE_CHECKING:
    from cudnn_fe.conv.causal_conv1d_update.op import CausalConv1dUpdate

__all__ = ["KERNELS"]

_FEW_LANES = 16  # beyond these, a thread would not keep a vector's history in registers


def _refuse(problem: CausalConv1dUpdate, where: Device) -> str | None:
    rows, channels, slots, _ = problem.extents
    large = max(rows * channels, slots * channels) >= 2**31
    return portable_refusal(problem, where) or (
        "it counts channels of all rows and slots in 32 bits" if large else None
    )


def _specialise(problem: CausalConv1dUpdate, where: Device) -> UpdateSpec:
    del where
    _, _, _, lanes = problem.extents
    wanted = (problem.x, problem.conv_state, problem.outputs[0])
    vector = vector_length(1, *wanted, itemsize=problem.x.dtype.itemsize)
    if max(lanes, problem.width) > _FEW_LANES:
        vector = 1
    weight = problem.weight
    piece = vector * problem.width * weight.dtype.itemsize
    compact = weight.strides[1] == 1 and weight.strides[0] == problem.width
    return UpdateSpec(
        x_dtype=problem.x.dtype.name,
        weight_dtype=weight.dtype.name,
        bias_dtype=problem.bias.dtype.name if problem.bias is not None else None,
        silu=problem.activation == "silu",
        width=problem.width,
        lanes=lanes,
        ring=problem.cache_seqlens is not None,
        indexed=problem.conv_state_indices is not None,
        vector=vector,
        whole_taps=compact and weight.alignment >= min(piece & -piece, 16) and problem.width <= _FEW_LANES,
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
