"""Each row times its expert's weights, with bias or a factor for each row, on any GPU from SM80 up."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, cute

from cudnn_fe.core.cute.arguments import named
from cudnn_fe.core.cute.loaders_plain import THREADS
from cudnn_fe.core.cute.store_plain import StagedTile, store_tile
from cudnn_fe.grouped.kernel_spec import RowsSpec
from cudnn_fe.grouped.portable_parts import Factors, PortableRows, fake_rows, fake_typed, output_part, store_zeros

__all__ = ["fake_arguments", "launcher"]


class _GroupedGemm(PortableRows):
    @cute.jit
    def __call__(self, stream: cuda.CUstream, *tensors: Any) -> None:
        names = [(name, True) for name in ("a", "b", "offsets")]
        names += [
            ("alpha", self.spec.alpha),
            ("prob", self.spec.prob),
            ("bias", self.spec.bias_dtype is not None),
            ("d", True),
            ("c", True),
        ]
        t = named(names, tensors)
        grid = (self.row_tiles(t.offsets, t.d.shape).total(), 1, 1)
        kernel = self.kernel(t.a, t.b, t.offsets, t.alpha, t.prob, t.bias, t.d, t.c)
        kernel.launch(grid=grid, block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        offsets: cute.Tensor,
        alpha: Any,
        prob: Any,
        bias: Any,
        d: cute.Tensor,
        c: cute.Tensor,
    ) -> None:
        tile, rows = self.place(offsets, d.shape)
        outputs = [d, c] if "c" in self.spec.wanted else [d]
        if rows.rows > 0:
            if rows.expert < offsets.shape[0]:
                scale = Float32(1.0) if alpha is None else alpha[rows.expert]
                staged, factors = self.staged_rows(a, b, scale, prob, bias, Int32(d.shape[1]), tile, rows)
                for output, weighted in zip(outputs, (True, False), strict=False):
                    elements = _elements(factors, bias is not None, weighted)
                    store_tile(staged, output.element_type, output_part(output, rows, tile), elements=elements)
            elif cutlass.const_expr(self.spec.zero_tail):
                for output in outputs:
                    store_zeros(output, rows, tile)


def _elements(factors: Factors, biased: bool, weighted: bool) -> Any:
    """Elements of a result: with a bias prob scales it alone; without one it scales the product, but not in C."""

    def elements(staged: StagedTile, line: Any, inner: Any, count: int) -> list[Float32]:
        sums, prob = staged.read(line, inner, count), factors.prob(line)
        if biased:
            return [x + prob * y for x, y in zip(sums, factors.bias(inner, count), strict=True)]
        return [x * prob for x in sums] if weighted else sums

    return elements


def launcher(spec: RowsSpec) -> Any:
    """The host function ``launch(stream, a, b, offsets[, alpha][, prob][, bias], d, c)`` of a spec, to be compiled.

    Args:
        spec: What to compile for.
    """
    return _GroupedGemm(spec)


def fake_arguments(spec: RowsSpec) -> tuple[Any, ...]:
    """Symbolic stand-ins for the launcher's tensors."""
    prob = [fake_typed("float32", 1)] if spec.prob else []
    bias = [fake_typed(spec.bias_dtype, 2)] if spec.bias_dtype is not None else []
    return (*fake_rows(spec), *prob, *bias, *(fake_typed(name, 2) for name in spec.gemm.out_dtypes))
