"""Which kernels serve the grouped GEMMs, and what they are compiled for."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.device import Device
from cudnn_fe.core.gemm_spec import GemmSpec, Major, operand_alignment
from cudnn_fe.core.op import Kernel
from cudnn_fe.core.targets import PORTABLE_TARGETS, portable_refusal
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.hopper import dglu_sm90, rows_sm90, wgrad_sm90
from cudnn_fe.grouped.kernel_spec import RowsSpec, WgradSpec
from cudnn_fe.grouped.operands import output

__all__ = ["DGLU_KERNELS", "WGRAD_KERNELS", "rows_kernels"]

TILE = 128  # rows and columns of the portable kernels' tiles


def _dense(spec: TensorSpec) -> int:
    """The contiguous dim of an operand whose last dim counts K; the last where both are."""
    return spec.ndim - 1 if spec.dense_in(spec.ndim - 1) else spec.ndim - 2


def _gemm(problem: Any, where: Device) -> GemmSpec:
    """Types, layouts and alignment of rows and weights, and the results' types."""
    a, b, (_, n, k, _) = problem.a_tensor, problem.b_tensor, problem.extents
    if problem.discrete:  # compact matrices, whose addresses are multiples of 16
        b = output(b.name, (k, n) if problem.n_major else (n, k), a.dtype, a.device)
        b = b.permute((1, 0)) if problem.n_major else b
    dense = _dense(b)
    return GemmSpec(
        a.dtype.name,
        b.dtype.name,
        tuple(spec.dtype.name for spec in problem.outputs),
        b_major="k" if dense == b.ndim - 1 else "mn",
        tile=None,
        arch=where.arch,
        alignment=min(operand_alignment(a, 1), operand_alignment(b, dense)),
    )


def _addresses(spec: TensorSpec | None) -> str | None:
    return None if spec is None else spec.dtype.name


def rows_spec(problem: Any, where: Device) -> RowsSpec:
    """What the portable kernel of a forward is compiled for."""
    bias = problem.bias_tensor
    return RowsSpec(
        _gemm(problem, where),
        getattr(problem, "act_func", "none"),
        prob=problem.prob_tensor is not None,
        bias_dtype=None if bias is None else bias.dtype.name,
        wanted=frozenset({"c"} if problem.generate_c else ()),
        zero_tail=problem.zero_tail,
        addresses=_addresses(problem.b_tensor if problem.discrete else None),
    )


def dglu_spec(problem: Any, where: Device) -> RowsSpec:
    """What the portable kernel of the backward is compiled for."""
    wanted = {"dbias": problem.generate_dbias, "activation": problem.generate_activation}
    return RowsSpec(
        _gemm(problem, where),
        problem.act_func,
        c_dtype=problem.c_tensor.dtype.name,
        wanted=frozenset(name for name, given in wanted.items() if given),
        round_product=problem.round_dgrad,
        zero_tail=problem.zero_tail,
        addresses=_addresses(problem.b_tensor if problem.discrete else None),
    )


def _dglu_scratch(problem: Any, spec: Any) -> tuple[TensorSpec, ...]:
    """Parts of dprob (column tiles, M), and of dbias (slots, 2N), which has no rows where it is not wanted."""
    del spec
    (m, wide), experts = problem.c_tensor.shape, problem.padded_offsets.shape[0]
    slots = m // TILE + experts + 1 if problem.generate_dbias else 0
    shapes = (-(-wide // (2 * TILE)), m), (slots, wide)
    return tuple(output("scratch", shape, "float32", problem.device) for shape in shapes)


def rows_kernels(folder: str) -> tuple[Kernel, ...]:
    """The kernels of the forward in ``cudnn_fe.grouped.<folder>``, best first."""
    return (
        rows_sm90(folder, rows_spec),
        Kernel(
            backend="portable",
            module=f"cudnn_fe.grouped.{folder}.portable",
            refuse=portable_refusal,
            specialise=rows_spec,
            targets=PORTABLE_TARGETS,
            verified=("H200",),
        ),
    )


def wgrad_spec(problem: Any, where: Device) -> WgradSpec:
    """What the portable kernel of the weight gradient is compiled for."""
    a, b = problem.a_tensor, problem.b_tensor
    majors: list[Major] = ["mn" if spec.dense_in(dim) else "k" for spec, dim in ((a, 0), (b, 1))]
    # Where K is contiguous an expert's part begins at any element.
    alignments = [
        operand_alignment(spec, dim) if major == "mn" else spec.dtype.itemsize
        for spec, dim, major in zip((a, b), (0, 1), majors, strict=True)
    ]
    gemm = GemmSpec(
        a.dtype.name,
        b.dtype.name,
        (problem.wgrad_dtype.name,),
        majors[0],
        majors[1],
        tile=None,
        arch=where.arch,
        alignment=min(alignments),
    )
    adds = problem.wgrad_tensor is not None or problem.accumulate
    return WgradSpec(gemm, adds, ragged=problem.ragged, addresses=_addresses(problem.wgrad_ptrs))


DGLU_KERNELS = (
    dglu_sm90(dglu_spec),
    Kernel(
        backend="portable",
        module="cudnn_fe.grouped.dglu.portable",
        refuse=portable_refusal,
        specialise=dglu_spec,
        targets=PORTABLE_TARGETS,
        scratch=_dglu_scratch,
        verified=("H200",),
    ),
)
WGRAD_KERNELS = (
    wgrad_sm90(wgrad_spec),
    Kernel(
        backend="portable",
        module="cudnn_fe.grouped.wgrad.portable",
        refuse=portable_refusal,
        specialise=wgrad_spec,
        targets=PORTABLE_TARGETS,
        verified=("H200",),
    ),
)
