"""The contract of the gradients of the hyper-connections' projection and root mean square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.errors import NotYetSupportedError, ShapeError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_rows, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.gemm.mhc_projection.kernels import KERNELS

__all__ = ["BACKWARD", "MhcProjection"]


@dataclass(frozen=True)
class MhcProjection(Problem):
    """One call: the gradients of ``x @ weight^T`` and ``sqrt(mean(x**2))`` with respect to x and weight."""

    operands: ClassVar[tuple[str, ...]] = ("x", "weight", "grad_proj", "grad_r", "r")
    kept: ClassVar[frozenset[str]] = frozenset(operands)
    output_count: ClassVar[int] = 2

    x: TensorSpec
    weight: TensorSpec
    grad_proj: TensorSpec
    grad_r: TensorSpec
    r: TensorSpec

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Option: ``allow_tf32``."""
        if options["allow_tf32"] is not True:
            raise NotYetSupportedError(
                "allow_tf32",
                got=repr(options["allow_tf32"]),
                wanted="True: weight and grad_proj are multiplied as TF32",
                remedy="pass allow_tf32=True where ten bits of significand are enough",
            )
        x, weight, grad_proj, grad_r, r = (spec for spec in operands if spec is not None)
        x.require_rank(2, "(M, K)")
        weight.require_rank(2, "(n, K)")
        grad_proj.require_rank(2, "(M, at least n)")
        (m, k), n = x.shape, weight.shape[0]
        require_shape(weight, (n, k), "(n, K)")
        if grad_proj.shape[0] != m or grad_proj.shape[1] < n:
            raise ShapeError(
                grad_proj.name,
                got=str(grad_proj.shape),
                wanted=f"{m} rows of at least {n} columns, those of {weight.name} and padding",
                remedy="pass matching operands",
            )
        for column in (grad_r, r):
            require_shape(column, (m, 1), "(M, 1)")
        require_dtype(x, "bfloat16")
        for spec in (weight, grad_proj, grad_r, r):
            require_dtype(spec, "float32")
        for spec in (x, weight, grad_proj):
            require_rows(spec)
        require_same_device(x, weight, grad_proj, grad_r, r)
        return cls(x, weight, grad_proj, grad_r, r)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """dx as x and dweight as weight, contiguous."""
        pairs = (("dx", self.x), ("dweight", self.weight))
        return tuple(
            TensorSpec(like.shape, contiguous_strides(like.shape), like.dtype, self.device, 16, name)
            for name, like in pairs
        )

    @property
    def degenerate(self) -> bool:
        """No rows, no columns, or no projection."""
        return 0 in self.x.shape or self.weight.shape[0] == 0

    @property
    def flops(self) -> int:
        """Two products of M n K."""
        (m, k), n = self.x.shape, self.weight.shape[0]
        return 4 * m * n * k


EXAMPLE = """\
import ml_dtypes
import numpy as np
from cudnn_fe.gemm import mhc_projection_backward

rng = np.random.default_rng(0)
x = rng.standard_normal((64, 96)).astype(ml_dtypes.bfloat16)
weight = rng.standard_normal((24, 96)).astype(np.float32)
grad_proj = rng.standard_normal((64, 32)).astype(np.float32)  # 24 columns and padding
grad_r = rng.standard_normal((64, 1)).astype(np.float32)
r = np.sqrt((x.astype(np.float32) ** 2).mean(1, keepdims=True))
dx, dweight = mhc_projection_backward(x, weight, grad_proj, grad_r, r, allow_tf32=True)
wanted = grad_r * x.astype(np.float32) / (96 * r) + grad_proj[:, :24] @ weight
assert np.abs(dx.astype(np.float32) - wanted).max() < 0.2
"""

BACKWARD = Op(
    name="mhc_projection_backward",
    package="cudnn-fe-gemm",
    problem=MhcProjection,
    reference="cudnn_fe.gemm.mhc_projection.reference:mhc_projection",
    kernels=KERNELS,
    summary="Gradients of the projection and the root mean square of manifold-constrained hyper-connections.",
    formula=r"dX_{mk} = \frac{dr_m}{r_m K} x_{mk} + \sum_n P_{mn} W_{nk}, \qquad dW_{nk} = \sum_m P_{mn} x_{mk}",
    tensors=(
        TensorRule("x", "(M, K)", "rows contiguous", ("bfloat16",), "the forward's input"),
        TensorRule("weight", "(n, K)", "rows contiguous", ("float32",), "the projection's weight"),
        TensorRule(
            "grad_proj", "(M, C), C at least n", "rows contiguous", ("float32",), "P; columns from n on are unread"
        ),
        TensorRule("grad_r", "(M, 1)", "any strides", ("float32",), "gradient of the root mean square"),
        TensorRule("r", "(M, 1)", "any strides", ("float32",), "the root mean square, positive"),
        TensorRule("dx", "(M, K)", "contiguous", ("bfloat16",), "gradient of x"),
        TensorRule("dweight", "(n, K)", "contiguous", ("float32",), "gradient of weight"),
    ),
    example=EXAMPLE,
    source="Derivative of proj = x W^T and r = sqrt(mean(x^2)); names of cudnn-frontend 1.32.",
    notes=(
        "P and W are rounded to TF32, to nearest with ties away from zero; their products, and those with x, are exact "
        "in float32, and so are sums up to float32's rounding. r = 0 gives infinities or NaN.",
        "Bit-equal from run to run on one device: no atomics.",
        "Accepted beyond the vendor, whose shapes are M = 4096, K = 20480, n = 24 and 32 columns of grad_proj: any "
        "extents from 0, rows any distance apart, NumPy and JAX arrays.",
        "One kernel reads x once for both gradients and sums dweight over up to 8 parts of the rows, which a second "
        "one adds in their order.",
        "The class takes the vendor's workspace, 8 n K float32, and has no use for it: kernels get theirs from the "
        "framework.",
    ),
    results=("dx", "dweight"),
    autocast=False,
    legacy=("MhcProjectionBackward",),
    jax_name="mhc_projection_jax_backward",
    memory_cases="cudnn_fe.gemm.torch_bench:mhc",
)
