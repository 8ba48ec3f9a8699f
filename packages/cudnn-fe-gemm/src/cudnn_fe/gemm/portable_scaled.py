"""The first kernels of the block-scaled GEMMs: operands to bfloat16, a main loop of core's, then the op's results.

MXFP4 and NVFP4 values are exact in bfloat16, MXFP8 values wherever their scale is not among the smallest few: see
`cudnn_fe.core.block_scale.dequantizer`. So products are exact and sums are float32, as the definition's.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, cute

import cudnn_fe.gemm.matmul.portable as matmul_portable
import cudnn_fe.gemm.matmul.sm90 as matmul_sm90
from cudnn_fe.core.cute.arguments import fake_tensor
from cudnn_fe.core.cute.block_dequantize import DequantizeTiles
from cudnn_fe.core.cute.block_tiles import ScalePlace
from cudnn_fe.core.cute.small_floats import has_fp8
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.gemm.portable_finish import Finish
from cudnn_fe.gemm.scaled_spec import OperandSpec, ScaledSpec

__all__ = ["fake_arguments", "launcher"]

_SIDE = 8


class _Scaled:
    def __init__(self, spec: ScaledSpec) -> None:
        self.spec = spec
        self.product = (matmul_sm90 if spec.backend == "sm90" else matmul_portable).launcher(spec.gemm)
        self.finish = Finish(spec.finish)
        self.scaled = spec.scale is not None

    def order(self) -> tuple[list[str], int]:
        """Names of the operands in the op's order, and how many outputs follow."""
        extra = list(self.spec.finish.inputs)
        if self.spec.finish.kind == "proj_rope":
            return ["a", "b", *extra, *(["sfa", "sfb"] if self.scaled else [])], len(self.spec.finish.out_dtypes)
        return ["a", "b", "sfa", "sfb", *extra], len(self.spec.finish.out_dtypes)

    @cute.jit
    def __call__(self, stream: cuda.CUstream, *arguments: Any, **constants: Any) -> None:
        names, outputs = self.order()
        given = dict(zip(names, arguments, strict=False))
        results = arguments[len(names) : len(names) + outputs]
        scratch = list(arguments[len(names) + outputs :])
        factor = Float32(1.0)
        if cutlass.const_expr(self.spec.finish.kind not in ("amax", "proj_rope")):
            # JAX gives alpha by name.
            by_name = cutlass.const_expr("alpha" in constants)
            factor = Float32(constants["alpha"]) if by_name else scratch.pop()
        wide = []
        for name in ("a", "b"):
            operand = self.spec.a if name == "a" else self.spec.b
            if cutlass.const_expr(self.scaled):
                target = scratch.pop(0)
                self.dequantize(operand, stream, given[name], given[f"sf{name}"], target)
                wide.append(target)
            else:
                wide.append(_as_operand(given[name], operand.transposed))
        product = scratch.pop(0)
        partials = scratch.pop(0) if cutlass.const_expr(self.spec.finish.kind == "dsrelu") else None
        self.product(stream, wide[0], wide[1], product, factor)
        extents = (_rows(given["a"], self.spec.a), _rows(given["b"], self.spec.b), _batches(given["a"]))
        inputs = tuple([given[name] for name in self.spec.finish.inputs])
        self.finish.launch(stream, product, extents, inputs, tuple(results), partials)

    def dequantize(self, operand: OperandSpec, stream: Any, codes: Any, scales: Any, target: Any) -> None:
        """An operand to bfloat16 (rows, K, L), contiguous along the dim that its codes are contiguous along."""
        spec = self.spec
        along_k = operand.major == "k"
        place = ScalePlace(columns=not along_k, block=spec.block, packed=operand.packed)
        # Dim 0 is the rows and dim 1 is K, unless a matrix of two dims is stored the other way.
        source = (2, 1, 0) if along_k == operand.transposed else (2, 0, 1)
        wide = (2, 0, 1) if along_k else (2, 1, 0)
        native = has_fp8(spec.finish.arch)
        tiles = DequantizeTiles(spec.element, place, spec.scale or "", operand.access, _SIDE, source, wide, native)
        tiles.launch(stream, codes, scales, None, target)


def _as_operand(tensor: Any, transposed: bool) -> Any:
    """A matrix (rows, K), or (K, rows), as (rows, K, 1)."""
    first, second = (1, 0) if transposed else (0, 1)
    shape = (tensor.shape[first], tensor.shape[second], 1)
    stride = (tensor.stride[first], tensor.stride[second], 0)
    return cute.make_tensor(tensor.iterator, cute.make_layout(shape, stride=stride))


def _rows(tensor: Any, operand: OperandSpec) -> Int32:
    return Int32(tensor.shape[1 if operand.transposed else 0])


def _batches(tensor: Any) -> Int32:
    return Int32(tensor.shape[2]) if len(tensor.shape) == 3 else Int32(1)


def launcher(spec: ScaledSpec) -> Any:
    """The host function ``launch(stream, *operands, *outputs, *scratch, [alpha])`` of a spec, to be compiled."""
    return _Scaled(spec)


def fake_arguments(spec: ScaledSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins in the launcher's order."""
    finish = spec.finish
    scaled = spec.scale is not None

    def unit(operand: OperandSpec) -> int:
        return 1 if (operand.major == "k") != operand.transposed else 0

    given: dict[str, Any] = {}
    for name, operand in (("a", spec.a), ("b", spec.b)):
        contiguous = -1 if scaled else unit(operand)
        alignment = max(operand.access * dtype(operand.codes_dtype).bits // 8, 1) if scaled else spec.gemm.alignment
        given[name] = fake_tensor(operand.codes_dtype, contiguous, rank=operand.rank, alignment=min(alignment, 16))
        if operand.scales_dtype is not None:
            rank = 6 if operand.packed else 2
            given[f"sf{name}"] = fake_tensor(operand.scales_dtype, -1, rank=rank, alignment=1)
    for name, kind, rank in zip(finish.inputs, finish.input_dtypes, finish.input_ranks, strict=True):
        wide = finish.input_access if name in ("c", "cos", "sin") else 1
        given[name] = fake_tensor(kind, -1, rank=rank, alignment=min(wide * dtype(kind).itemsize, 16))
    names, _ = _Scaled(spec).order()
    outputs = [fake_tensor(kind, -1, rank=rank) for kind, rank in zip(finish.out_dtypes, finish.out_ranks, strict=True)]
    scratch = []
    if scaled:
        scratch += [fake_tensor("bfloat16", 1 if o.major == "k" else 0) for o in (spec.a, spec.b)]
    scratch.append(fake_tensor("float32", 1))
    if finish.kind == "dsrelu":
        scratch.append(fake_tensor("float32", -1))
    alpha = () if finish.kind in ("amax", "proj_rope") else (Float32(1.0),)
    return (*(given[name] for name in names), *outputs, *scratch, *alpha)
