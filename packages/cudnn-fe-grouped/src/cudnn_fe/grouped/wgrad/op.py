"""The contract of the grouped weight gradient: operand rules, outputs, work, and documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.errors import DTypeError, ShapeError, StrideError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_same_device
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.kernels import WGRAD_KERNELS
from cudnn_fe.grouped.operands import (
    FLOATS,
    GROUP_NOTES,
    output,
    output_dtype,
    require_addresses,
    require_experts,
    require_rows,
)

__all__ = ["WGRAD", "GroupedWgrad", "nothing_to_sum", "require_compact", "wgrad_outputs"]


def require_compact(spec: TensorSpec) -> None:
    """Raises StrideError unless a matrix is compact along one of its dims."""
    rows, columns = spec.shape
    allowed = ((columns, 1), (1, rows))
    if spec.size and not any(
        all(s == w or extent == 1 for s, w, extent in zip(spec.strides, wanted, spec.shape, strict=True))
        for wanted in allowed
    ):
        raise StrideError(
            spec.name, got=f"strides {spec.strides}", wanted=" or ".join(map(str, allowed)), remedy="make it contiguous"
        )


@dataclass(frozen=True)
class GroupedWgrad(Problem):
    """One call: for each expert, A's columns times B's rows that are its own."""

    operands: ClassVar[tuple[str, ...]] = ("a_tensor", "b_tensor", "offsets_tensor", "wgrad_tensor", "wgrad_ptrs")
    optional: ClassVar[frozenset[str]] = frozenset({"wgrad_tensor", "wgrad_ptrs"})
    kept: ClassVar[frozenset[str]] = frozenset({"wgrad_tensor"})
    in_place: ClassVar[Mapping[int, str]] = MappingProxyType({0: "wgrad_tensor"})

    a_tensor: TensorSpec
    b_tensor: TensorSpec
    offsets_tensor: TensorSpec
    wgrad_tensor: TensorSpec | None
    wgrad_ptrs: TensorSpec | None
    wgrad_dtype: DType
    ragged: bool
    accumulate: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``wgrad_dtype``, ``ragged``, and ``accumulate``, for results behind addresses."""
        a, b, offsets, old, pointers = operands
        assert a is not None
        assert b is not None
        assert offsets is not None
        a.require_rank(2, "(h, t)")
        b.require_rank(2, "(t, i)")
        require_dtype(a, *FLOATS)
        require_dtype(b, *FLOATS)
        if a.dtype != b.dtype:
            raise DTypeError(
                b.name, got=str(b.dtype), wanted=f"{a.dtype}, the dtype of {a.name}", remedy="cast one of the operands"
            )
        (h, t), i = a.shape, b.shape[1]
        if b.shape[0] != t:
            raise ShapeError(b.name, got=str(b.shape), wanted=f"(t, i) with t = {t}", remedy="pass matching operands")
        count = require_experts(offsets)
        require_compact(a)
        require_compact(b)
        kind = output_dtype(options["wgrad_dtype"], "wgrad_dtype")
        if old is not None:
            require_rows(old, (count, h, i), "(E, h, i)", kind.name)
        if pointers is not None:
            require_addresses(pointers, count, "wgrad_ptrs")
        require_same_device(a, b, offsets, old, pointers)
        accumulate = bool(options.get("accumulate")) and pointers is not None
        return cls(a, b, offsets, old, pointers, kind, bool(options["ragged"]), accumulate)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """W (E, h, i); where addresses name its place, one zero that exists once all is written."""
        return wgrad_outputs(self)

    @property
    def degenerate(self) -> bool:
        """Nothing to sum."""
        return nothing_to_sum(self)

    @property
    def flops(self) -> int:
        """2 h i t, as if the groups filled the buffer."""
        h, t = self.a_tensor.shape
        return 2 * h * self.b_tensor.shape[1] * t


def nothing_to_sum(problem: Any) -> bool:
    """Whether no kernel is needed; behind addresses one writes the zeros of empty sums."""
    (h, t), i = problem.a_tensor.shape, problem.b_tensor.shape[1]
    return 0 in (h, i) or (t == 0 and problem.wgrad_ptrs is None)


def wgrad_outputs(problem: Any) -> tuple[TensorSpec, ...]:
    """The result of a weight gradient, of scaled operands or not."""
    if problem.wgrad_ptrs is not None:
        return (output("token", (1,), "float32", problem.device),)
    shape = (problem.offsets_tensor.shape[0], problem.a_tensor.shape[0], problem.b_tensor.shape[1])
    return (output("wgrad_tensor", shape, problem.wgrad_dtype, problem.device),)


EXAMPLE = """\
import numpy as np
from cudnn_fe.grouped import grouped_gemm_wgrad_forward

rng = np.random.default_rng(0)
dy = rng.standard_normal((7, 32), dtype=np.float32)  # gradient of each row's result
x = rng.standard_normal((7, 16), dtype=np.float32)
ends = np.array([3, 3, 6], np.int32)
(w,) = grouped_gemm_wgrad_forward(dy.T, x, None, None, ends, wgrad_dtype="float32")
np.testing.assert_allclose(w[2], dy[3:6].T @ x[3:6], rtol=1e-5, atol=1e-5)
assert not w[1].any()  # an expert without rows
"""

WGRAD = Op(
    name="grouped_gemm_wgrad_forward",
    package="cudnn-fe-grouped",
    problem=GroupedWgrad,
    reference="cudnn_fe.grouped.wgrad.reference:grouped_wgrad",
    kernels=WGRAD_KERNELS,
    summary="The weight gradient of each expert, summed over its own rows.",
    formula=r"W_{ghi} = \sum_{t \in g} A_{ht} B_{ti}",
    tensors=(
        TensorRule("a_tensor", "(h, t)", "compact, either dim contiguous", FLOATS, "gradient of the results"),
        TensorRule("b_tensor", "(t, i)", "compact, either dim contiguous", FLOATS, "inputs"),
        TensorRule("offsets_tensor", "(E,)", "contiguous", ("int32",), "end of each expert's rows"),
        TensorRule("wgrad_tensor", "(E, h, i)", "contiguous", FLOATS, "the gradients; zero for an empty expert"),
    ),
    example=EXAMPLE,
    source="Names and layouts of cudnn-frontend 1.32's grouped_gemm_wgrad.",
    notes=(
        *GROUP_NOTES[:2],
        "`accumulate_on_output` rounds the sum to the output's dtype, adds it to what the buffer holds, and rounds "
        "once more.",
        "`wgrad_ptrs` names (h, i) matrices that are written to, or added to, where they are, in device memory "
        "for CUDA tensors and in host memory for others. The caller keeps them alive. JAX gets a zero matrix that "
        "exists once they are written. `output_mode='discrete'` without pointers is served as dense.",
        "Accepted beyond the vendor: any t, float16 and float32 operands, accumulation and ragged order in JAX, NumPy.",
    ),
    results=("wgrad_tensor",),
    legacy=("grouped_gemm_wgrad_wrapper_sm100", "GroupedGemmWgradSm100", "grouped_gemm_wgrad_jax_sm100"),
    jax_name="grouped_gemm_wgrad_jax_forward",
    memory_cases="cudnn_fe.grouped.torch_bench:wgrad",
)
