"""The contract of RMSNorm + Hadamard + amax: operand rules, outputs, documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.op import Kernel, Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_rows, require_same_device
from cudnn_fe.core.row_plan import RowPlan, access_bytes, row_plan
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = ["BLOCK", "FORWARD", "RmsNormRhtAmax", "RowSpec", "best_num_threads", "pick_rows_per_cta"]

BLOCK = 16  # channels of one Hadamard transform
_TUNED_THREADS = {2048: 128, 4096: 256, 7168: 128, 8192: 512, 16384: 1024, 32768: 512}


def best_num_threads(n: int) -> int | None:
    """The default of ``num_threads`` for rows of ``n`` channels in cudnn-frontend 1.32; None where it has none."""
    if n in _TUNED_THREADS:
        return _TUNED_THREADS[n]
    return next((t for t in (1024, 512, 256, 128, 64) if n % t == 0 and n // t >= 8 and n // t % 8 == 0), None)


def pick_rows_per_cta(m: int) -> int:
    """The default of ``rows_per_cta``: the largest of 8, 4 and 2 that divides ``m`` into 148 groups or more, else 2."""
    return next((r for r in (8, 4, 2) if m % r == 0 and m // r >= 148), 2)


@dataclass(frozen=True, slots=True)
class RowSpec:
    """What the kernel is compiled for; the number of rows, their distance and the rows per amax are met at run time.

    Attributes:
        columns: Channels of a row.
        width: Bytes of one access.
        x_rank: Dims of x and o, 3 with a last dim of one element.
        w_rank: Dims of the weight, likewise.
        plan: Threads and registers.
        arch: The compiler's target.
    """

    columns: int
    width: int
    x_rank: int
    w_rank: int
    plan: RowPlan
    arch: str


def _squeezed(spec: TensorSpec, rank: int, layout: str) -> tuple[int, ...]:
    shape = spec.shape[:-1] if len(spec.shape) == rank + 1 and spec.shape[-1] == 1 else spec.shape
    if len(shape) != rank:
        raise ShapeError(spec.name, got=f"shape {spec.shape}", wanted=layout, remedy="reshape the operand")
    return shape


@dataclass(frozen=True)
class RmsNormRhtAmax(Problem):
    """One call: normalised, transformed rows and the largest magnitude of every ``rows_per_cta`` of them."""

    operands: ClassVar[tuple[str, ...]] = ("x_tensor", "w_tensor")
    output_count: ClassVar[int] = 2

    x_tensor: TensorSpec
    w_tensor: TensorSpec
    rows_per_cta: int

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``rows_per_cta`` and ``num_threads``."""
        x, w = operands
        assert x is not None
        assert w is not None
        m, n = _squeezed(x, 2, "(M, N) or (M, N, 1)")
        if n % BLOCK or not n:
            raise ShapeError(x.name, got=f"N = {n}", wanted=f"a multiple of {BLOCK}", remedy="pad the channels")
        if _squeezed(w, 1, "(N,) or (N, 1)") != (n,):
            raise ShapeError(w.name, got=str(w.shape), wanted=f"({n},)", remedy="pass one weight per channel")
        for spec in (x, w):
            require_dtype(spec, "bfloat16")
            require_rows(spec if spec.shape[-1] != 1 or spec.ndim == 1 else _without_last(spec))
        require_same_device(x, w)
        _check_threads(options.get("num_threads"), n)
        rows = options.get("rows_per_cta")
        rows = pick_rows_per_cta(m) if rows is None else rows
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise OptionError("rows_per_cta", got=repr(rows), wanted="a positive int", remedy="leave it unset")
        if m % rows:
            raise ShapeError(
                x.name,
                got=f"M = {m}",
                wanted=f"a multiple of rows_per_cta = {rows}",
                remedy="pass a rows_per_cta that divides M, e.g. 1",
            )
        return cls(x, w, rows)

    @property
    def extents(self) -> tuple[int, int]:
        """(M, N)."""
        return self.x_tensor.shape[0], self.x_tensor.shape[1]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """o, shaped as x and compact, and amax (M / rows_per_cta,)."""
        shape, place = self.x_tensor.shape, self.device
        groups = (shape[0] // self.rows_per_cta,)
        return (
            TensorSpec(shape, contiguous_strides(shape), self.x_tensor.dtype, place, 16, "o_tensor"),
            TensorSpec(groups, (1,), dtype("float32"), place, 4, "amax_tensor"),
        )

    @property
    def degenerate(self) -> bool:
        """No rows."""
        return self.x_tensor.shape[0] == 0

    @property
    def flops(self) -> int:
        """None worth counting: the op is bound by memory."""
        return 0


def _without_last(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape[:-1], spec.strides[:-1], spec.dtype, spec.device, spec.alignment, spec.name)


def _check_threads(threads: Any, n: int) -> None:
    if threads is None:
        return
    fits = isinstance(threads, int) and threads > 0 and threads % 32 == 0 and threads <= 1024
    if not fits or n % threads or n // threads < 8 or n // threads % 8:
        raise OptionError(
            "num_threads",
            got=repr(threads),
            wanted=f"a multiple of 32 up to 1024 that leaves each thread a multiple of 8 of the {n} channels",
            remedy="leave it unset: it has no effect on results",
        )


def _specialise(problem: RmsNormRhtAmax, where: Device) -> RowSpec:
    _, n = problem.extents
    width = access_bytes(problem.x_tensor, problem.w_tensor)
    plan = row_plan(n, kept_vectors=4, least_threads=2, clusters=where.capability >= (9, 0))
    return RowSpec(n, width, problem.x_tensor.ndim, problem.w_tensor.ndim, plan, where.arch)


def _maxima(problem: RmsNormRhtAmax, spec: RowSpec) -> tuple[TensorSpec, ...]:
    return (TensorSpec((problem.extents[0] * spec.plan.parts,), (1,), dtype("float32"), problem.device, 16, "maxima"),)


FORWARD = Op(
    name="rmsnorm_rht_amax_forward",
    memory_cases="cudnn_fe.norm_rope.torch_bench:rht_amax",
    package="cudnn-fe-norm-rope",
    problem=RmsNormRhtAmax,
    reference="cudnn_fe.norm_rope.rmsnorm_rht_amax.reference:rmsnorm_rht_amax",
    kernels=(
        Kernel(
            backend="portable",
            module="cudnn_fe.norm_rope.rmsnorm_rht_amax.portable",
            refuse=portable_refusal,
            specialise=_specialise,
            targets=PORTABLE_TARGETS,
            scratch=_maxima,
            verified=("H200",),
        ),
    ),
    summary="RMSNorm, a 16-point Hadamard transform of every 16 channels, and the largest magnitude of groups of rows.",
    formula=r"z_{m} = \tfrac{1}{4} H_{16} \left( \frac{x_m}{\sqrt{\tfrac1N \sum_n x_{mn}^2 + \epsilon}} \odot w \right)"
    r", \qquad a_c = \max_{m \in c,\, n} |z_{mn}|",
    tensors=(
        TensorRule("x_tensor", "(M, N) or (M, N, 1)", "rows contiguous, any distance apart", ("bfloat16",), "input"),
        TensorRule("w_tensor", "(N,) or (N, 1)", "contiguous", ("bfloat16",), "weight"),
        TensorRule("o_tensor", "as x", "compact", ("bfloat16",), "z, rounded once"),
        TensorRule("amax_tensor", "(M / rows_per_cta,)", "contiguous", ("float32",), "largest |z| before rounding"),
    ),
    example="""
import numpy as np
import ml_dtypes

from cudnn_fe.norm_rope import rmsnorm_rht_amax_forward

x = np.ones((4, 16), ml_dtypes.bfloat16)
o, amax = rmsnorm_rht_amax_forward(x, np.ones(16, ml_dtypes.bfloat16), eps=0.0, rows_per_cta=2)

assert o[0].astype(float).tolist() == [4.0] + [0.0] * 15  # the transform of a constant
assert amax.tolist() == [4.0, 4.0]
""",
    source="RMSNorm: Zhang and Sennrich, arXiv:1910.07467; the transform is Sylvester's Hadamard matrix over 4.",
    notes=(
        "The normalised value is not rounded before the transform. The transform has no random signs.",
        "NaN in a row makes the whole row NaN and is left out of amax.",
        "Deterministic: every sum and maximum is taken in a fixed order, without atomics.",
    ),
    results=("o_tensor", "amax_tensor"),
    autocast=False,
    scalars=("eps",),
    legacy=("rmsnorm_rht_amax_wrapper_sm100", "RmsNormRhtAmaxSm100"),
    jax_name="rmsnorm_rht_amax_jax_forward",
)
