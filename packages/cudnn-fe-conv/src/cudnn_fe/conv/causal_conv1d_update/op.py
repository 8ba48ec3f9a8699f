"""The contract of one decoding step of the causal convolution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from cudnn_fe.conv.causal_conv1d_update.kernels import KERNELS
from cudnn_fe.conv.operands import (
    ANY_LAYOUT,
    FLOATS,
    canonical_activation,
    require_index,
    require_parameter,
)
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = ["UPDATE", "CausalConv1dUpdate"]


@dataclass(frozen=True)
class CausalConv1dUpdate(Problem):
    """One call: a sample for each row, shifted or written into the row's slot of the state cache."""

    operands: ClassVar[tuple[str, ...]] = (
        "x",
        "conv_state",
        "weight",
        "bias",
        "cache_seqlens",
        "conv_state_indices",
    )
    optional: ClassVar[frozenset[str]] = frozenset({"bias", "cache_seqlens", "conv_state_indices"})
    output_count: ClassVar[int] = 2
    in_place: ClassVar[Mapping[int, str]] = {1: "conv_state"}

    x: TensorSpec
    conv_state: TensorSpec
    weight: TensorSpec
    bias: TensorSpec | None
    cache_seqlens: TensorSpec | None
    conv_state_indices: TensorSpec | None
    activation: str

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Option: ``activation``."""
        x, state, weight, bias, seqlens, indices = operands
        assert x is not None
        assert state is not None
        assert weight is not None
        given = options["activation"]
        activation = canonical_activation(given) if given is None or isinstance(given, str) else None
        if activation is None:
            raise OptionError(
                "activation",
                got=repr(given),
                wanted='None, "identity", "silu" or "swish"',
                remedy="apply it afterwards",
            )
        x.require_rank(2, "(N, D)")
        state.require_rank(3, "(S, D, L)")
        weight.require_rank(2, "(D, W)")
        require_dtype(x, *FLOATS)
        (rows, channels), width, (slots, _, lanes) = x.shape, weight.shape[1], state.shape
        require_shape(weight, (channels, width), "(D, W)")
        require_shape(state, (slots, channels, lanes), "(S, D, L)")
        require_dtype(state, x.dtype.name)
        require_parameter(weight, x)
        if not 1 <= width <= 256 or lanes < width - 1:
            raise ShapeError(
                state.name,
                got=f"L = {lanes} beside W = {width}",
                wanted="1 to 256 taps and L at least W - 1",
                remedy="keep the last W - 1 samples of each sequence",
            )
        if bias is not None:
            require_shape(bias, (channels,), "(D,)")
            require_parameter(bias, x)
        for spec in (seqlens, indices):
            if spec is not None:
                require_index(spec, (rows,), "(N,)")
        if indices is None and slots < rows:
            raise ShapeError(
                state.name,
                got=f"S = {slots} slots for N = {rows} rows",
                wanted="a slot for each row without conv_state_indices",
                remedy="pass conv_state_indices or a larger cache",
            )
        if seqlens is not None and lanes < 1:
            raise ShapeError(
                state.name, got="L = 0", wanted="a buffer to write to beside cache_seqlens", remedy="leave it out"
            )
        require_same_device(x, state, weight, bias, seqlens, indices)
        return cls(x, state, weight, bias, seqlens, indices, activation)

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """(N, D, S, L)."""
        return (*self.x.shape, self.conv_state.shape[0], self.conv_state.shape[2])  # type: ignore[return-value]

    @property
    def width(self) -> int:
        """Number of taps W."""
        return self.weight.shape[1]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The filtered sample (N, D), and the cache after the step."""
        out = replace(self.x, strides=contiguous_strides(self.x.shape), alignment=16, name="output")
        return out, self.conv_state

    @property
    def degenerate(self) -> bool:
        """No rows or channels."""
        return 0 in self.x.shape

    @property
    def flops(self) -> int:
        """2 N D W."""
        return 2 * self.x.size * self.width


EXAMPLE = """\
import numpy as np
from cudnn_fe.conv import causal_conv1d, causal_conv1d_update

rng = np.random.default_rng(0)
x = rng.standard_normal((3, 8, 20), dtype=np.float32)  # (B, D, T)
weight = rng.standard_normal((8, 4), dtype=np.float32)
whole = causal_conv1d(x, weight, activation="silu")

_, states = causal_conv1d(x[..., :15], weight, activation="silu", return_final_states=True)
cache = np.zeros((10, 8, 3), np.float32)  # ten slots, of which these sequences hold three
slots = np.array([7, 2, 4], np.int32)
cache[slots] = states
for t in range(15, 20):
    step = causal_conv1d_update(x[..., t], cache, weight, activation="silu", conv_state_indices=slots)
    np.testing.assert_array_equal(step, whole[..., t])
"""

UPDATE = Op(
    name="causal_conv1d_update",
    package="cudnn-fe-conv",
    problem=CausalConv1dUpdate,
    reference="cudnn_fe.conv.causal_conv1d_update.reference:causal_conv1d_update",
    kernels=KERNELS,
    summary="One decoding step of the causal convolution, on a cache of states that it updates in place.",
    formula=r"h = (s_{n,d,\cdot},\, x_{nd}), \qquad "
    r"y_{nd} = \phi\!\left(\beta_d + \sum_{j=0}^{W-1} w_{dj}\, h_{L-W+1+j}\right), \qquad "
    r"s_{n,d,\cdot} \leftarrow h_{1..L}",
    tensors=(
        TensorRule("x", "(N, D)", ANY_LAYOUT, FLOATS, "one sample of each row"),
        TensorRule("conv_state", "(S, D, L), L >= W - 1", ANY_LAYOUT, FLOATS, "cache, changed in place; x's dtype"),
        TensorRule("weight", "(D, W), W in 1..256", ANY_LAYOUT, FLOATS, "taps, the newest sample's last"),
        TensorRule("bias", "(D,)", ANY_LAYOUT, FLOATS, "added before the activation"),
        TensorRule("cache_seqlens", "(N,)", "contiguous", ("int32",), "samples seen so far: the cache is circular"),
        TensorRule("conv_state_indices", "(N,)", "contiguous", ("int32",), "slot of each row; -1 leaves a row out"),
        TensorRule("output", "(N, D)", "contiguous", FLOATS, "x's dtype"),
    ),
    example=EXAMPLE,
    source="Gu and Dao, Mamba (2023), the recurrent form of the convolution; names and signature of cudnn-frontend "
    "1.32's cudnn.ops.causal_conv1d_update, the circular buffer as in the causal-conv1d package.",
    notes=(
        "Without `cache_seqlens` the slot shifts by one and the new sample is its last lane. With them it is a ring: "
        "the new sample goes to lane `cache_seqlens % L`, and nothing else moves.",
        "States are copied bit for bit. Sums as in `causal_conv1d`: one kernel, no atomics, no host synchronisation.",
        "A row whose index is -1 gives zeros and touches no state. Indices below -1 or from S on, and one slot named "
        "twice, raise on the CPU; on a GPU they trap, which ends the process's use of the device, and no other slot is "
        "touched.",
        "JAX arrays do not change: there the call returns `(output, conv_state)`. JAX reads no values: on a CPU, a row "
        "without a slot is left out there, and of rows that name one slot the first one's state is kept.",
        "No derivative: operands that require a gradient raise unless gradients are off.",
        "Accepted beyond the vendor: every float dtype, widths and lanes of any size, circular caches, any strides, "
        "CPU tensors, JAX and NumPy arrays.",
    ),
    results=("output", "conv_state"),
    jax_name="causal_conv1d_update",
    memory_cases="cudnn_fe.conv.torch_bench:update",
)
