"""What a caller declares beside the geometry: quantisation, and block-sparse attention.

The records check themselves, so that code which makes them fails where it did; a block that gets one that is not served
says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from cudnn_fe.core.codecs import packed_pairs
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, OptionTypeError
from cudnn_fe.core.require import require_finite_positive, require_one_of
from cudnn_fe.core.tensor import spec_of

if TYPE_CHECKING:
    from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry

__all__ = [
    "QSA_INDEX_LIST_FORMS",
    "QSA_INDEX_LIST_FORM_PER_ROW",
    "QSA_INDEX_LIST_FORM_SHARED",
    "Fp4Format",
    "GradientScaling",
    "MxQuantSpec",
    "QsaSpec",
    "QuantSpec",
    "factors_of",
    "formats_of",
    "fp4_pairs",
]

QSA_INDEX_LIST_FORM_SHARED, QSA_INDEX_LIST_FORM_PER_ROW = "shared", "per_row"
QSA_INDEX_LIST_FORMS = (None, QSA_INDEX_LIST_FORM_SHARED, QSA_INDEX_LIST_FORM_PER_ROW)
_BLOCK, _MOST = 4, 512
_PAIR = "float4_e2m1fn"


@dataclass(frozen=True)
class QsaSpec:
    """Block-sparse attention of a block.

    Attributes:
        block_size: Keys of a listed block: 4.
        top_k: Blocks of a list: a multiple of 4, up to 512.
        index_source: ``"caller"`` or ``"indexer"``.
        index_band: Whether the projection has the indexer's columns.
        index_heads: Query heads of the indexer.
        index_kv_heads: Its key heads: 1.
        index_head_dim: Channels of its heads: a multiple of 64.
        index_norm_eps: Added to the mean square under the root.
        index_cache_dtype: Type of its cached keys, with ``"indexer"``.
        index_list_form: How a paged step's lists are given.
    """

    block_size: int = _BLOCK
    top_k: int = _MOST
    index_source: str = "caller"
    index_band: bool = False
    index_heads: int = 4
    index_kv_heads: int = 1
    index_head_dim: int = 128
    index_norm_eps: float = 1e-6
    index_cache_dtype: Any = None
    index_list_form: str | None = None

    @property
    def identity_bound(self) -> int:
        """Visible tokens up to which a full list is dense causal attention."""
        return _BLOCK * self.top_k + _BLOCK - 1

    @property
    def index_band_cols(self) -> int:
        """Columns of the indexer in the projection."""
        return (self.index_heads + self.index_kv_heads) * self.index_head_dim

    def validate(self, geometry: GatedAttentionBlockGeometry) -> None:
        """Raises OptionError unless a block of that geometry may be sparse in this way."""
        require_one_of(self.block_size, "block_size", (_BLOCK,))
        require_one_of(self.index_source, "index_source", ("caller", "indexer"))
        require_one_of(self.index_kv_heads, "index_kv_heads", (1,))
        require_one_of(self.index_list_form, "index_list_form", QSA_INDEX_LIST_FORMS)
        rules = (
            (
                "top_k",
                self.top_k,
                _BLOCK <= self.top_k <= _MOST and self.top_k % _BLOCK == 0,
                "a multiple of 4, 4..512",
            ),
            ("index_head_dim", self.index_head_dim, self.index_head_dim % 64 == 0, "a multiple of 64"),
            ("index_band", self.index_band, self.index_band or self.index_source != "indexer", "True with an indexer"),
            (
                "index_cache_dtype",
                self.index_cache_dtype,
                self.index_cache_dtype is None or self.index_source == "indexer",
                "None without an indexer",
            ),
            ("is_causal", geometry.is_causal, geometry.is_causal, "True beside qsa"),
            ("window_left", geometry.window_left, geometry.window_left < 0, "-1 beside qsa"),
            ("window_right", geometry.window_right, geometry.window_right < 0, "-1 beside qsa"),
            ("rope_dim", geometry.rope_dim, geometry.rope_dim <= self.index_head_dim, "at most index_head_dim"),
        )
        for name, value, holds, wanted in rules:
            if not holds:
                raise OptionError(name, got=repr(value), wanted=wanted, remedy="correct the declaration")


def _require_e4m3(given: Any) -> None:
    if dtype(given).name != "float8_e4m3fn":
        raise NotYetSupportedError("dtype", got=str(given), wanted="float8_e4m3fn", remedy="leave it at its default")


@dataclass(frozen=True)
class QuantSpec:
    """FP8 with one factor per tensor.

    Attributes:
        descale_h: Factor of the codes of h.
        descale_w_qkvg: Factor of the codes of the first weight.
        descale_w_o: Factor of the codes of the last weight.
        scale_q: Factor of queries before they are encoded.
        scale_k: Likewise of keys.
        scale_v: Likewise of values.
        scale_o: Likewise of the gated output.
        dtype: Type of the codes.
    """

    descale_h: float
    descale_w_qkvg: float
    descale_w_o: float
    scale_q: float
    scale_k: float
    scale_v: float
    scale_o: float
    dtype: Any = "float8_e4m3fn"

    def __post_init__(self) -> None:
        for name in ("descale_h", "descale_w_qkvg", "descale_w_o", "scale_q", "scale_k", "scale_v", "scale_o"):
            require_finite_positive(getattr(self, name), name)
        _require_e4m3(self.dtype)


class Fp4Format(Enum):
    """FP4 formats of the gated output: a name and the elements per scale."""

    NVFP4 = ("nvfp4", 16)
    MXFP4 = ("mxfp4", 32)

    @property
    def fmt_name(self) -> str:
        """The format's name."""
        return self.value[0]

    @property
    def block_size(self) -> int:
        """Elements per scale."""
        return self.value[1]

    @property
    def sf_torch_dtype(self) -> Any:
        """torch's type of the scales."""
        import torch  # it is asked for its types

        return torch.float8_e4m3fn if self is Fp4Format.NVFP4 else torch.float8_e8m0fnu

    @property
    def sf_cudnn_dtype(self) -> str:
        """The scales' type by its name."""
        return "float8_e4m3fn" if self is Fp4Format.NVFP4 else "float8_e8m0fnu"


@dataclass(frozen=True)
class MxQuantSpec:
    """MXFP8, or MXFP4 weights, and FP4 outputs.

    Attributes:
        descale_w_o: Factor of the codes of the last weight.
        scale_o: Factor of the gated output before it is encoded.
        dtype: Type of the codes of h.
        block_size: Elements per scale: 32.
        w_qkvg_dtype: Type of the first weight's codes.
        o_fp4: Format of the gated output, or None for FP8.
    """

    descale_w_o: float
    scale_o: float = 1.0
    dtype: Any = "float8_e4m3fn"
    block_size: int = 32
    w_qkvg_dtype: Any = "float8_e4m3fn"
    o_fp4: Fp4Format | None = None

    def __post_init__(self) -> None:
        for name in ("descale_w_o", "scale_o"):
            require_finite_positive(getattr(self, name), name)
            if self.o_fp4 is not None and getattr(self, name) != 1.0:
                raise OptionError(
                    name, got=repr(getattr(self, name)), wanted="1.0 with o_fp4", remedy="scale W_o itself"
                )
        require_one_of(self.block_size, "block_size", (32,))
        _require_e4m3(self.dtype)
        given: object = self.o_fp4
        if given is not None and not isinstance(given, Fp4Format):
            got = type(given).__qualname__
            raise OptionTypeError("o_fp4", got=got, wanted="an Fp4Format or None", remedy="pass Fp4Format.NVFP4")
        if dtype(self.w_qkvg_dtype).name not in ("float8_e4m3fn", _PAIR):
            wanted = "float8_e4m3fn or float4_e2m1fn_x2"
            raise NotYetSupportedError("w_qkvg_dtype", got=str(self.w_qkvg_dtype), wanted=wanted, remedy="quantise it")


def factors_of(spec: QuantSpec | MxQuantSpec | None) -> tuple[float, ...]:
    """What codes are multiplied by and values before they are encoded; 1 where the block is not quantised.

    Raises:
        OptionTypeError: ``spec`` is no declaration.
    """
    if spec is None:
        return (1.0,) * 7
    if isinstance(spec, QuantSpec):
        in_factors, out_factors = (spec.descale_h, spec.descale_w_qkvg, spec.descale_w_o), (spec.scale_q, spec.scale_k)
        return (*in_factors, *out_factors, spec.scale_v, spec.scale_o)
    given: object = spec
    if not isinstance(given, MxQuantSpec):
        got = type(given).__qualname__
        raise OptionTypeError("quant", got=got, wanted="a QuantSpec, an MxQuantSpec or None", remedy="make one")
    return (1.0, 1.0, spec.descale_w_o, 1.0, 1.0, 1.0, spec.scale_o)


def formats_of(spec: QuantSpec | MxQuantSpec | None) -> tuple[tuple[str, Any], ...]:
    """The options of `Formats` that a declaration asks for."""
    if isinstance(spec, MxQuantSpec):
        fp4 = None if spec.o_fp4 is None else spec.o_fp4.fmt_name
        return ("quant", "mxfp8"), ("w_fp4", dtype(spec.w_qkvg_dtype).name == _PAIR), ("o_fp4", fp4)
    return ("quant", None if spec is None else "fp8"), ("w_fp4", False), ("o_fp4", None)


def fp4_pairs(x: Any, name: str) -> Any:
    """``x``, its FP4 as packed pairs whatever the framework; others as they are.

    Raises:
        OptionError: Bytes, which may be anything.
    """
    if x is not None and spec_of(x, name).dtype.name == "uint8":
        remedy = "view the pairs as float4_e2m1fn_x2"
        raise OptionError(name, got="uint8", wanted="a float8 or float4 type", remedy=remedy)
    return packed_pairs(x)


@dataclass(frozen=True, eq=False)
class GradientScaling:
    """How the gradients of a quantised block are scaled, and what its products read beside the record.

    Attributes:
        quant: The forward's declaration, or None.
        grad_scaling: ``"current"``, from the gradients' largest magnitudes, or ``"delayed"``, by the caller.
        grad_scale_margin_log2: How many powers of two current scales stay below the largest possible ones.
        scale_dp: Factor of dS, with FP8.
        scale_dy: Factor of dY, delayed.
        scale_do: Factor of dO, delayed.
        scale_dqkvg: Factor of the projection's gradient, delayed.
        h_t: h transposed and quantised along tokens, with MXFP8.
        h_t_sf: Its packed scales.
        w_qkvg_t: The first weight transposed and quantised along its rows, with MXFP8.
        w_qkvg_t_sf: Its packed scales.
        w_o_t: The last weight transposed and quantised along d_model, with FP4.
        w_o_t_sf: Its packed scales.
    """

    quant: QuantSpec | MxQuantSpec | None = None
    grad_scaling: str = "current"
    grad_scale_margin_log2: int = 0
    scale_dp: Any = None
    scale_dy: Any = None
    scale_do: Any = None
    scale_dqkvg: Any = None
    h_t: Any = None
    h_t_sf: Any = None
    w_qkvg_t: Any = None
    w_qkvg_t_sf: Any = None
    w_o_t: Any = None
    w_o_t_sf: Any = None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays, in the order of the op's operands."""
        scales = self.scale_dp, self.scale_dy, self.scale_do, self.scale_dqkvg
        turned = (
            *(self.h_t, self.h_t_sf),
            *(fp4_pairs(self.w_qkvg_t, "w_qkvg_t"), self.w_qkvg_t_sf),
            *(fp4_pairs(self.w_o_t, "w_o_t"), self.w_o_t_sf),
        )
        return (*scales, *turned)

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """The op's options."""
        require_one_of(self.grad_scaling, "grad_scaling", ("current", "delayed"))
        delayed = self.grad_scaling == "delayed"
        return (*formats_of(self.quant), ("delayed", delayed), ("margin", self.grad_scale_margin_log2))
