"""What the squared-ReLU GEMM and its derivative have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cudnn_fe.core.block_scale import BlockFormat, block_format
from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError
from cudnn_fe.core.require import require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.gemm.hints import check_scaled_hints
from cudnn_fe.gemm.operands import major_of, matrix_output, require_dtype
from cudnn_fe.gemm.scaled import ScaledGemmProblem, is_fp4, require_float32, require_scaled, scale_output

__all__ = ["FLOATS", "RESULTS", "SreluProblem", "shared_fields"]

FLOATS = ("float32", "float16", "bfloat16")
RESULTS = (*FLOATS, "float8_e4m3fn", "float8_e5m2")
_TILE_NS = (64, 128, 192, 256)


@dataclass(frozen=True)
class SreluProblem(ScaledGemmProblem):
    """A quantised GEMM whose result D may be quantised again, with a factor for every row."""

    optional: ClassVar[frozenset[str]] = frozenset({"norm_const"})
    output_count: ClassVar[int] = 4

    prob: TensorSpec
    norm_const: TensorSpec | None
    major: Literal["m", "n"]
    d_dtype: DType
    sfd_atom: bool
    amax_shape: tuple[int, ...]

    @property
    def out_major(self) -> Literal["m", "n"]:
        """Contiguous dim of the results."""
        return self.major

    @property
    def d_format(self) -> BlockFormat | None:
        """How D is quantised, if it is."""
        if not self.d_dtype.is_fp8:
            return None
        return block_format(self.d_dtype.name, self.sfa.dtype.name, self.sf_vec_size)

    def matrix(self, name: str, kind: DType) -> TensorSpec:
        """A result (M, N, L)."""
        m, n, _, batch = self.extents
        return matrix_output(name, m, n, batch, major=self.major, dtype=kind, device=self.device)

    @property
    def amax_and_sfd(self) -> tuple[TensorSpec, TensorSpec]:
        """The last two results; without a quantised D its scales have no element."""
        m, n, _, batch = self.extents
        strides = contiguous_strides(self.amax_shape)
        amax = TensorSpec(self.amax_shape, strides, dtype("float32"), self.device, 16, "amax_tensor")
        kind = self.sfa.dtype
        if self.d_format is None:
            return amax, TensorSpec((0,), (1,), dtype("uint8"), self.device, 16, "sfd_tensor")
        columns = -(-n // self.sf_vec_size)
        return amax, scale_output("sfd_tensor", m, columns, batch, atom=self.sfd_atom, kind=kind, device=self.device)


def shared_fields(
    a: TensorSpec | None,
    b: TensorSpec | None,
    sfa: TensorSpec | None,
    sfb: TensorSpec | None,
    prob: TensorSpec | None,
    norm_const: TensorSpec | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Validate what both ops take and return the fields of `SreluProblem`."""
    assert a is not None
    assert b is not None
    assert sfa is not None
    assert sfb is not None
    assert prob is not None
    require_float32(options["acc_dtype"])
    m, _, _, batch = require_scaled(a, b, sfa, sfb, options["sf_vec_size"])
    check_scaled_hints(options["mma_tiler_mn"], options["cluster_shape_mn"], _TILE_NS, paired=True)
    require_shape(prob, (m, 1, batch), "(M, 1, L)")
    require_dtype(prob, ("float32",))
    require_same_device(a, prob, norm_const)
    d = dtype(options["d_dtype"], operand="d_dtype")
    if d.name not in RESULTS:
        wanted = f"one of {', '.join(RESULTS)}"
        raise DTypeError("d_dtype", got=str(d), wanted=wanted, remedy="choose a listed output dtype")
    if d.is_fp8 and is_fp4(a.dtype):
        raise DTypeError("d_dtype", got=str(d), wanted="no FP8 result of FP4 operands", remedy="ask for bfloat16")
    if d.is_fp8 and norm_const is None:
        raise OptionError(
            "norm_const_tensor", got="None", wanted=f"a factor for a {d} result", remedy="pass a float32 array of one 1"
        )
    if norm_const is not None:
        require_dtype(norm_const, ("float32",))
        if norm_const.size != 1:
            raise ShapeError(norm_const.name, got=str(norm_const.shape), wanted="(1,)", remedy="pass one factor")
    return {
        "a": a,
        "b": b,
        "sfa": sfa,
        "sfb": sfb,
        "sf_vec_size": options["sf_vec_size"],
        "prob": prob,
        "norm_const": norm_const,
        "major": major_of(options["major"], options["major_name"]),
        "d_dtype": d,
        "sfd_atom": options["sfd_atom"],
        "amax_shape": tuple(options.get("amax_shape", (1,))),
    }
