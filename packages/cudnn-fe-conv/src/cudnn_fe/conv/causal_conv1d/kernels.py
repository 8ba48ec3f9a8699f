"""Which kernels serve the causal convolution, why they may refuse, and what they are compiled for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cudnn_fe.conv.causal_conv1d.chunks import chunk_count
from cudnn_fe.conv.causal_conv1d.kernel_spec import ConvSpec
from cudnn_fe.conv.operands import MOST_COUNTED, lie_whole, vector_length
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.powers import next_power_of_two
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

if TYPE_CHECKING:
    from cudnn_fe.conv.causal_conv1d.op import CausalConv1d, CausalConv1dBackward, Sequences

__all__ = ["BACKWARD_KERNELS", "FORWARD_KERNELS", "THREADS", "WIDEST"]

THREADS = 128
WIDEST = 8  # taps that stay in registers
_SHORTEST = 32  # tokens that a chunk of the backward should have
STARTS_PADDING = 3  # words of starts: no token before the first, and what is read past the last


@dataclass(frozen=True, slots=True)
class _Tuning:
    """Bytes of a vector, how many are loaded ahead, and a multiprocessor's blocks: at once, and the least in all."""

    vector_bytes: int
    unroll: int
    resident: int
    waves: int


_TUNING = {
    ("forward", "channels"): _Tuning(16, 4, 4, 8),
    ("forward", "time"): _Tuning(16, 2, 8, 8),
    ("backward", "channels"): _Tuning(8, 6, 3, 3),
    ("backward", "time"): _Tuning(16, 2, 7, 14),
}
# Edges of sequences anywhere in a vector need registers.
_PACKED_TUNING = {**_TUNING, ("backward", "time"): _Tuning(16, 1, 6, 24)}


def _refuse_wide(problem: Sequences, where: Device) -> str | None:
    if problem.width > WIDEST:
        return f"it keeps the taps in registers and serves W up to {WIDEST}, not {problem.width}"
    return _refuse(problem, where)


def _refuse(problem: Sequences, where: Device) -> str | None:
    batch, channels, time = problem.extents
    large = max(batch * channels, time) > MOST_COUNTED
    return portable_refusal(problem, where) or ("it counts rows and tokens in 32 bits" if large else None)


def _major(problem: Sequences) -> Literal["channels", "time"]:
    """The contiguous dim; channels where both or neither are."""
    _, channels, time = problem.extents
    strides = problem.x.strides
    along_time = time > 1 and strides[problem.time_dim] == 1
    along_channels = channels > 1 and strides[problem.channel_dim] == 1
    return "time" if along_time and not along_channels else "channels"


def _spec(problem: Sequences, where: Device, like_x: tuple[TensorSpec, ...], final: bool, backward: bool) -> ConvSpec:
    major = _major(problem)
    _, channels, time = problem.extents
    dim, extent = (problem.channel_dim, channels) if major == "channels" else (problem.time_dim, time)
    packed, initial = problem.cu_seqlens is not None, problem.initial_states is not None
    stateless = not initial and not (backward and final)
    marked = packed and stateless and major == "time" and problem.width <= WIDEST
    tuning = (_PACKED_TUNING if packed else _TUNING)["backward" if backward else "forward", major]
    itemsize = problem.x.dtype.itemsize
    vector = min(vector_length(dim, problem.x, *like_x, itemsize=itemsize), max(tuning.vector_bytes // itemsize, 1))
    if problem.width > WIDEST:
        vector = 1
    elif major == "channels" and problem.width > 4:
        vector = min(vector, 4)  # taps and samples of wider filters would not stay in registers
    return ConvSpec(
        x_dtype=problem.x.dtype.name,
        weight_dtype=problem.weight.dtype.name,
        bias_dtype=problem.bias.dtype.name if problem.bias is not None else None,
        silu=problem.activation == "silu",
        width=problem.width,
        packed=packed,
        marked=marked,
        initial=initial,
        final=final,
        layout=problem.layout,
        major=major,
        vector=vector,
        lanes=min(next_power_of_two(-(-extent // vector)), THREADS if major == "channels" else 32),
        whole_parameters=major == "channels" and lie_whole(vector, problem.weight, problem.bias),
        unroll=tuning.unroll,
        resident=tuning.resident,
        waves=tuning.waves,
        multiprocessors=where.multiprocessors,
    )


def _forward_spec(problem: CausalConv1d, where: Device) -> ConvSpec:
    return _spec(problem, where, problem.outputs[:1], problem.return_final_states, False)


def _backward_spec(problem: CausalConv1dBackward, where: Device) -> ConvSpec:
    like_x = (problem.dy, problem.outputs[0])
    return _spec(problem, where, like_x, problem.d_final_states is not None, True)


def _select(condition: bool, value: int, other: int) -> int:
    return value if condition else other


def _partial_sums(problem: CausalConv1dBackward, spec: ConvSpec) -> tuple[TensorSpec, ...]:
    """(batch * chunks, W+1, D): each chunk of time has sums of its own. The kernel takes the chunks from the shape."""
    batch, channels, time = problem.extents
    side_by_side = THREADS // spec.lanes
    if spec.major == "channels":
        blocks = -(-channels // (spec.vector * spec.lanes)) * batch
        chunks = chunk_count(spec, spec.waves, blocks, -(-time // side_by_side), spec.unroll, _select) * side_by_side
        chunks = min(chunks, -(-time // _SHORTEST))
    else:
        blocks = -(-batch * channels // side_by_side)
        chunks = chunk_count(spec, spec.waves, blocks, time, spec.vector * spec.lanes * spec.unroll, _select)
    shape = (batch * chunks, spec.width + 1, channels)
    kind = dtype("float64" if spec.x_dtype == "float64" else "float32")
    return (
        TensorSpec(shape, contiguous_strides(shape), kind, problem.device, 16, "partial_sums"),
        *_starts(problem, spec),
    )


def _starts(problem: Sequences, spec: ConvSpec) -> tuple[TensorSpec, ...]:
    """A bit for each token."""
    words = -(-problem.extents[2] // 32) + STARTS_PADDING
    mask = TensorSpec((words,), (1,), dtype("int32"), problem.device, 16, "starts")
    return (mask,) if spec.marked else ()


def _long_scratch(problem: CausalConv1dBackward, spec: ConvSpec) -> tuple[TensorSpec, ...]:
    """The partial sums, and dz laid out as dx."""
    dx, kind = problem.outputs[0], dtype("float64" if spec.x_dtype == "float64" else "float32")
    return (*_partial_sums(problem, spec), replace(dx, dtype=kind, name="dz"))


def _kernel(
    module: str,
    refuse: Callable[[Any, Device], str | None],
    specialise: Callable[[Any, Device], ConvSpec],
    scratch: Callable[[Any, Any], tuple[TensorSpec, ...]] | None = None,
) -> Kernel:
    path = f"cudnn_fe.conv.causal_conv1d.{module}"
    return Kernel("portable", path, refuse, specialise, PORTABLE_TARGETS, scratch, verified=("H200",))


FORWARD_KERNELS = (
    _kernel("portable", _refuse_wide, _forward_spec, _starts),
    _kernel("portable_long", _refuse, _forward_spec),
)
BACKWARD_KERNELS = (
    _kernel("portable_backward", _refuse_wide, _backward_spec, _partial_sums),
    _kernel("portable_backward_long", _refuse, _backward_spec, _long_scratch),
)
