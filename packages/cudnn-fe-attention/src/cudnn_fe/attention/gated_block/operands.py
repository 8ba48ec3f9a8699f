"""Rules that both directions of the gated attention block share: shapes, element types, scales of quantised ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.operands import FLOATS, require_same_dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.require import require_dtype, require_one_of, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = [
    "CODES",
    "E2M1",
    "E8M0",
    "INPUTS",
    "NORMS",
    "Formats",
    "packed_shape",
    "require_blobs",
    "require_block",
    "require_elements",
    "scale_count",
]

INPUTS = ("h", "w_qkvg", "w_q_norm", "w_k_norm", "cos", "sin", "w_o")
NORMS = ("w_q_norm", "w_k_norm")
CODES, E2M1 = "float8_e4m3fn", "float4_e2m1fn"
E8M0 = ("uint8", "float8_e8m0fnu")
_E4M3 = ("uint8", CODES)
_ROWS, _COLUMNS = 128, 4  # a tile of packed scales
_BLOCK = 32  # elements per scale of MX formats


@dataclass(frozen=True)
class Formats:
    """How the operands of a block are quantised.

    Attributes:
        quant: None, ``"fp8"`` with a factor per tensor, or ``"mxfp8"`` with a scale per 32 elements.
        w_fp4: Whether the first weight is MXFP4.
        o_fp4: None, ``"nvfp4"`` or ``"mxfp4"``: the format of the gated output and of the last weight.
    """

    quant: str | None
    w_fp4: bool
    o_fp4: str | None

    def __post_init__(self) -> None:
        require_one_of(self.quant, "quant", (None, "fp8", "mxfp8"))
        require_one_of(self.o_fp4, "o_fp4", (None, "nvfp4", "mxfp4"))

    @property
    def o_block(self) -> int:
        """Elements per scale of an FP4 gated output."""
        return 16 if self.o_fp4 == "nvfp4" else _BLOCK

    @property
    def o_scales(self) -> tuple[str, ...]:
        """Types that its scales may have."""
        return _E4M3 if self.o_fp4 == "nvfp4" else E8M0

    def element(self, name: str) -> str | None:
        """The type of an operand's codes; None for those that are not quantised."""
        if self.quant is None or name not in ("h", "w_qkvg", "w_o"):
            return None
        fp4 = {"w_qkvg": self.w_fp4, "w_o": self.o_fp4 is not None}.get(name, False)
        return E2M1 if fp4 else CODES

    def require(self, geometry: GatedAttentionBlockGeometry) -> None:
        """Raises NotYetSupportedError unless blocks of scales fit the geometry."""
        least = _COLUMNS * _BLOCK
        if self.quant == "mxfp8" and geometry.d_model % least:
            got, wanted = str(geometry.d_model), f"a multiple of {least} for MXFP8"
            raise NotYetSupportedError("d_model", got=got, wanted=wanted, remedy="use FP8 with a factor per tensor")
        if self.o_fp4 is not None and geometry.d_head % (_COLUMNS * self.o_block):
            wanted = f"a multiple of {_COLUMNS * self.o_block} for {self.o_fp4}"
            raise NotYetSupportedError("d_head", got=str(geometry.d_head), wanted=wanted, remedy="leave o_fp4 out")


def require_elements(spec: TensorSpec, element: str) -> None:
    """Raises unless an operand holds codes of that type; FP4 pairs of NumPy and JAX come as bytes."""
    require_dtype(spec, *((E2M1, "uint8") if element == E2M1 else (element,)))


def packed_shape(shape: tuple[int, ...], element: str | None) -> tuple[int, ...]:
    """The stored shape of an operand: FP4 is packed in pairs along the last dim."""
    return (*shape[:-1], shape[-1] // 2) if element == E2M1 else shape


def require_block(
    g: GatedAttentionBlockGeometry,
    form: str | None,
    seq_lens: TensorSpec | None,
    operands: dict[str, TensorSpec | None],
    formats: Formats,
) -> tuple[int, int]:
    """Validates what forward and backward share; returns batches and tokens."""
    h = operands["h"]
    assert h is not None
    formats.require(g)
    require_dtype(h, *((CODES,) if formats.quant else FLOATS))
    if form is None:
        h.require_rank(3, "(B, S, d_model)")
        batch, tokens = h.shape[:2]
    else:
        if h.ndim not in (2, 3) or (h.ndim == 3 and h.shape[0] != 1):
            raise ShapeError(
                "h", got=str(h.shape), wanted="(T, d_model) or (1, T, d_model)", remedy="pack the sequences"
            )
        batch, tokens = 1, h.shape[-2]
    for name in NORMS:
        if (operands[name] is None) == g.qk_norm:
            got, wanted = ("None", f"(D,), ({g.d_head},)") if g.qk_norm else ("a weight", "None without qk_norm")
            raise ShapeError(name, got=got, wanted=wanted, remedy="fit the weights to geometry.qk_norm")
    lead = h.shape[:-1]
    shapes = {
        "h": (*lead, g.d_model),
        "w_qkvg": (g.n_qkvg, g.d_model),
        "w_q_norm": (g.d_head,),
        "w_k_norm": (g.d_head,),
        "cos": (*lead, g.rope_dim),
        "sin": (*lead, g.rope_dim),
        "w_o": (g.d_model, g.h_q * g.d_head),
    }
    for name, shape in shapes.items():
        spec = operands[name]
        if spec is None:
            continue
        element = formats.element(name)
        require_shape(spec, packed_shape(shape, element), "the geometry's shape")
        if element is not None:
            require_elements(spec, element)
        elif formats.quant is not None:
            require_dtype(spec, "bfloat16")
        else:
            require_same_dtype(h, spec)
        require_same_device(h, spec)
    _require_lengths(seq_lens, form, batch, h)
    return batch, tokens


def scale_count(rows: int, columns: int) -> int:
    """Bytes of packed scales."""
    return -(-rows // _ROWS) * _ROWS * (-(-columns // _COLUMNS) * _COLUMNS)


# Of a blob of packed scales: name, whether the call takes it, rows and columns of scales, element types.
Blob = tuple[str, bool, int, int, tuple[str, ...]]


def require_blobs(operands: dict[str, TensorSpec | None], rows: Iterable[Blob]) -> None:
    """Validates packed scales, which are there exactly where the formats ask for them."""
    h = operands["h"]
    assert h is not None
    for name, needed, high, wide, kinds in rows:
        spec = operands[name]
        count = scale_count(high, wide)
        if (spec is not None) != needed:
            got, wanted = ("None", f"{count} scales") if needed else ("scales", "None in this format")
            raise ShapeError(name, got=got, wanted=wanted, remedy="fit it to quant")
        if spec is not None:
            require_dtype(spec, *kinds)
            require_shape(spec, (count,), "bytes of packed scales")
            require_same_device(h, spec)


def _require_lengths(seq_lens: TensorSpec | None, form: str | None, batch: int, h: TensorSpec) -> None:
    require_one_of(form, "seq_lens_form", (None, "lengths", "prefix"))
    if seq_lens is None:
        if form is not None:
            raise OptionError("seq_lens", got="None", wanted=f"{form} of packed sequences", remedy="pass the lengths")
        return
    require_dtype(seq_lens, "int32")
    seq_lens.require_rank(1, "(B,)" if form != "prefix" else "(B+1,)")
    if form is None:
        require_shape(seq_lens, (batch,), "(B,)")
    elif form == "prefix" and seq_lens.shape[0] < 2:
        raise ShapeError("seq_lens", got=str(seq_lens.shape), wanted="(B+1,)", remedy="pass B+1 offsets from 0")
    require_same_device(h, seq_lens)
