"""Which implementation of an op would serve a typical call on a device, and why each other one would not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cudnn_fe.core.choose import REFERENCE
from cudnn_fe.core.device import Device, cuda_device_count, device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.op import Kernel, Op, Problem
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.core.toolchain import missing_toolchain

__all__ = ["Serving", "devices", "sample_problem", "serving"]


@dataclass(frozen=True, slots=True)
class Serving:
    """What one op runs on one device.

    Attributes:
        op: Name of the op.
        place: ``"cpu"`` or ``"cuda:<index>"``.
        backend: What a call without ``backend`` gets; ``"none"`` if it gets an error.
        others: Every other implementation with its reason.
    """

    op: str
    place: str
    backend: str
    others: tuple[tuple[str, str], ...]


def devices() -> tuple[Device, ...]:
    """The CPU and every GPU that this process can use."""
    return (device("cpu"), *(device(f"cuda:{index}") for index in range(cuda_device_count())))


def _matrix(name: str, rows: int, columns: int, kind: str, place: str) -> TensorSpec:
    shape = (rows, columns, 1)
    return TensorSpec(shape, contiguous_strides(shape), dtype(kind), place, name=name)


def _product(op: Op, m: int, n: int, k: int, kind: str, place: str, **options: Any) -> Problem:
    return op.bind(_matrix("a", m, k, kind, place), _matrix("b", n, k, kind, place), **options)


def _swiglu(op: Op, m: int, n: int, k: int, kind: str, place: str) -> Problem:
    options: dict[str, Any] = {
        "c_major": "n",
        "ab12_dtype": "float32",
        "c_dtype": "bfloat16",
        "acc_dtype": "float32",
        "mma_tiler_mn": (128, 128),
        "cluster_shape_mn": None,
        "sf_vec_size": 16,
        "ab12_stages": 4,
    }
    return _product(op, m, n, k, kind, place, **options)


def _matmul(op: Op, m: int, n: int, k: int, kind: str, place: str) -> Problem:
    return _product(op, m, n, k, kind, place, d_dtype=kind, d_major="n")


def _dswiglu(op: Op, m: int, n: int, k: int, kind: str, place: str) -> Problem:
    del k  # it has no sum
    return op.bind(
        _matrix("ab12", m, n, "float32", place), _matrix("dc", m, n // 2, "bfloat16", place), None, dtype=kind
    )


def _tensors(place: str) -> Callable[..., TensorSpec]:
    """Makes descriptions of row-major tensors."""

    def tensor(*shape: int, of: str = "float32") -> TensorSpec:
        return TensorSpec(shape, contiguous_strides(shape), dtype(of), place)

    return tensor


def _grouped(op: Op, m: int, n: int, k: int, kind: str, place: str) -> Problem:
    """Eight experts."""
    tensor = _tensors(place)
    options: dict[str, Any] = {"d_dtype": kind, "c_dtype": kind, "generate_c": False}
    if op.name == "grouped_gemm_glu_forward":
        options["act_func"] = "swiglu"
    shared = tensor(8, of="int32"), tensor(8), tensor(m)
    return op.bind(tensor(m, k, of=kind), tensor(8, n, k, of=kind), *shared, None, **options)


def _grouped_backward(op: Op, m: int, n: int, k: int, kind: str, place: str) -> Problem:
    tensor = _tensors(place)
    wanted = dict.fromkeys(("generate_dbias", "generate_activation", "round_dgrad"), False)
    rows = tensor(m, k, of=kind), tensor(m, 2 * n, of=kind), tensor(8, n, k, of=kind), tensor(8, of="int32")
    return op.bind(*rows, tensor(8), tensor(8), tensor(m), act_func="dswiglu", d_dtype=kind, **wanted)


def _grouped_sums(op: Op, m: int, n: int, k: int, kind: str, place: str) -> Problem:
    tensor = _tensors(place)
    operands = tensor(m, n, of=kind).permute((1, 0)), tensor(m, k, of=kind), tensor(8, of="int32"), None, None
    return op.bind(*operands, wgrad_dtype=kind, ragged=False)


_SAMPLES: dict[str, Callable[[Op, int, int, int, str, str], Problem]] = {
    "gemm_swiglu_forward": _swiglu,
    "matmul": _matmul,
    "dswiglu": _dswiglu,
    "grouped_gemm_forward": _grouped,
    "grouped_gemm_glu_forward": _grouped,
    "grouped_gemm_glu_backward": _grouped_backward,
    "grouped_gemm_wgrad_forward": _grouped_sums,
}


def sample_problem(
    op: Op, place: str, *, m: int = 4096, n: int = 4096, k: int = 4096, kind: str = "bfloat16"
) -> Problem | None:
    """A call of ordinary shape and layout, or None for an op without one in the table."""
    make = _SAMPLES.get(op.name)
    return None if make is None else make(op, m, n, k, kind, place)


def serving(op: Op, where: Device, problem: Problem | None) -> Serving:
    """Ask every implementation of ``op`` about ``problem`` on ``where``."""
    reasons = {kernel.backend: _refusal(kernel, where, problem) for kernel in op.kernels}
    willing = [kernel.backend for kernel in op.kernels if reasons[kernel.backend] is None and not kernel.opt_in]
    if where.place == "cpu":
        backend = REFERENCE
    elif problem is None:
        backend = "depends on the call"
    else:
        backend = willing[0] if willing else "none"
    others = [
        (name, reason or "serves too; a better one comes first") for name, reason in reasons.items() if name != backend
    ]
    if backend != REFERENCE:
        others.append((REFERENCE, 'only when asked for: backend="reference"'))
    return Serving(op.name, where.place, backend, tuple(others))


def _refusal(kernel: Kernel, where: Device, problem: Problem | None) -> str | None:
    if where.place == "cpu":
        return "runs on GPUs"
    return missing_toolchain() or (None if problem is None else kernel.refuse(problem, where))
