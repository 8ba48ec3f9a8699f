"""What a caller declares beside the geometry: quantisation, and block-sparse attention, which is not served yet.

The records check themselves, so that code which makes them fails where it did; a block that gets one that is not served
says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, OptionTypeError
from cudnn_fe.core.require import require_finite_positive, require_one_of

if TYPE_CHECKING:
    from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry

__all__ = [
    "QSA_INDEX_LIST_FORMS",
    "QSA_INDEX_LIST_FORM_PER_ROW",
    "QSA_INDEX_LIST_FORM_SHARED",
    "Fp4Format",
    "MxQuantSpec",
    "QsaSpec",
    "QuantSpec",
    "factors_of",
]

QSA_INDEX_LIST_FORM_SHARED, QSA_INDEX_LIST_FORM_PER_ROW = "shared", "per_row"
QSA_INDEX_LIST_FORMS = (None, QSA_INDEX_LIST_FORM_SHARED, QSA_INDEX_LIST_FORM_PER_ROW)
_BLOCK, _MOST = 4, 512


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


def factors_of(spec: QuantSpec | MxQuantSpec | None) -> tuple[float, ...]:
    """What codes are multiplied by and values before they are encoded; 1 where the block is not quantised.

    Raises:
        OptionTypeError: ``spec`` is no declaration.
        NotYetSupportedError: It is of FP4.
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
    if spec.o_fp4 is not None or dtype(spec.w_qkvg_dtype).name != "float8_e4m3fn":
        raise NotYetSupportedError("quant", got="FP4", wanted="E4M3", remedy="quantise to MXFP8")
    return (1.0, 1.0, spec.descale_w_o, 1.0, 1.0, 1.0, spec.scale_o)
