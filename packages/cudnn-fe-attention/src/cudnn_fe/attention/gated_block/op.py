"""The contracts of the gated attention block: forward and backward."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.gated_block.docs import (
    BACKWARD_EXAMPLE,
    BACKWARD_NOTES,
    BACKWARD_TENSORS,
    FORWARD_EXAMPLE,
    FORWARD_NOTES,
    FORWARD_TENSORS,
    SOURCE,
)
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.operands import FLOATS, compact, require_flag, require_same_dtype, statistics_dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, OptionTypeError, ShapeError
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_dtype, require_one_of, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BACKWARD", "FACTORS", "FORWARD", "GatedAttentionBlock", "GatedAttentionBlockBackward", "frozen"]

_INPUTS = ("h", "w_qkvg", "w_q_norm", "w_k_norm", "cos", "sin", "w_o")
_NORMS = ("w_q_norm", "w_k_norm")
_SCALES = ("h_sf", "w_qkvg_sf")
_CODES, _QUANTISED = "float8_e4m3fn", ("h", "w_qkvg", "w_o")
_ROWS, _COLUMNS, _BLOCK = 128, 4, 32  # a tile of packed scales, and the elements of each
FACTORS = ("descale_h", "descale_w_qkvg", "descale_w_o", "scale_q", "scale_k", "scale_v", "scale_o")


def frozen(geometry: Any) -> tuple[Any, ...]:
    """A geometry as the plain values that an op takes; raises unless a block of it is served."""
    if not isinstance(geometry, GatedAttentionBlockGeometry):
        got = type(geometry).__qualname__
        raise OptionTypeError("geometry", got=got, wanted="a GatedAttentionBlockGeometry", remedy="make one")
    geometry.validate()
    if geometry.qsa is not None:
        raise NotYetSupportedError("qsa", got="a QsaSpec", wanted="None", remedy="use dense attention")
    return astuple(geometry)


def _require_block(
    g: GatedAttentionBlockGeometry,
    form: str | None,
    seq_lens: TensorSpec | None,
    operands: dict[str, TensorSpec | None],
    *,
    quantised: bool = False,
) -> tuple[int, int]:
    """Validates what forward and backward share; returns batches and tokens."""
    h = operands["h"]
    assert h is not None
    require_dtype(h, *((_CODES,) if quantised else FLOATS))
    if form is None:
        h.require_rank(3, "(B, S, d_model)")
        batch, tokens = h.shape[:2]
    else:
        if h.ndim not in (2, 3) or (h.ndim == 3 and h.shape[0] != 1):
            raise ShapeError(
                "h", got=str(h.shape), wanted="(T, d_model) or (1, T, d_model)", remedy="pack the sequences"
            )
        batch, tokens = 1, h.shape[-2]
    for name in _NORMS:
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
        if spec is not None:
            require_shape(spec, shape, "the geometry's shape")
            if quantised and name not in _QUANTISED:
                require_dtype(spec, "bfloat16")
            else:
                require_same_dtype(h, spec)
            require_same_device(h, spec)
    _require_lengths(seq_lens, form, batch, h)
    return batch, tokens


def _require_scales(
    g: GatedAttentionBlockGeometry, operands: dict[str, TensorSpec | None], quant: str | None, form: str | None
) -> None:
    """Validates the packed scales of MXFP8 operands, which no other block takes."""
    h = operands["h"]
    assert h is not None
    if quant == "mxfp8" and g.d_model % (_COLUMNS * _BLOCK):
        got, wanted = str(g.d_model), f"a multiple of {_COLUMNS * _BLOCK} for MXFP8"
        raise NotYetSupportedError("d_model", got=got, wanted=wanted, remedy="use FP8 with a factor per tensor")
    if quant == "mxfp8" and form is not None:
        raise NotYetSupportedError("thd", got="True with MXFP8", wanted="padded sequences", remedy="pad them")
    for name, rows in zip(_SCALES, (h.size // g.d_model, g.n_qkvg), strict=True):
        spec = operands[name]
        count = -(-rows // _ROWS) * _ROWS * (g.d_model // _BLOCK)
        if (spec is None) == (quant == "mxfp8"):
            got, wanted = ("None", f"{count} scales") if spec is None else ("scales", "None but for MXFP8")
            raise ShapeError(name, got=got, wanted=wanted, remedy="fit it to quant")
        if spec is not None:
            require_dtype(spec, "uint8", "float8_e8m0fnu")
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


@dataclass(frozen=True)
class GatedAttentionBlock(Problem):
    """One forward call."""

    operands: ClassVar[tuple[str, ...]] = (*_INPUTS, "seq_lens", *_SCALES)
    optional: ClassVar[frozenset[str]] = frozenset({*_NORMS, "seq_lens", *_SCALES})
    output_count: ClassVar[int] = 0

    h: TensorSpec
    w_qkvg: TensorSpec
    w_q_norm: TensorSpec | None
    w_k_norm: TensorSpec | None
    cos: TensorSpec
    sin: TensorSpec
    w_o: TensorSpec
    seq_lens: TensorSpec | None
    h_sf: TensorSpec | None
    w_qkvg_sf: TensorSpec | None
    shape: tuple[Any, ...]
    form: str | None
    training: bool
    quant: str | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call.

        Options: ``shape`` (see `frozen`), ``form`` of the lengths, ``training``, and ``quant``: None, ``"fp8"`` or
        ``"mxfp8"``.
        """
        require_flag(options["training"], "save_for_backward")
        quant, form = options["quant"], options["form"]
        require_one_of(quant, "quant", (None, "fp8", "mxfp8"))
        geometry = GatedAttentionBlockGeometry(*options["shape"])
        named = dict(zip(cls.operands, operands, strict=True))
        _require_block(geometry, form, named["seq_lens"], named, quantised=quant is not None)
        _require_scales(geometry, named, quant, form)
        bound: dict[str, Any] = dict(named)
        return cls(**bound, shape=tuple(options["shape"]), form=form, training=options["training"], quant=quant)

    @property
    def geometry(self) -> GatedAttentionBlockGeometry:
        """The block's geometry."""
        return GatedAttentionBlockGeometry(*self.shape)

    @property
    def extents(self) -> tuple[int, int]:
        """Batches and tokens of each."""
        return self.h.shape[0] if self.form is None else 1, self.h.shape[-2]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The output and the log-sum-exp; in training the projection, O and the norms' reciprocal roots."""
        g, kind, statistics = self.geometry, self.cos.dtype, statistics_dtype(self.cos)
        batch, tokens = self.extents
        rows = [
            ("out", self.h.shape, kind),
            ("lse", (batch, g.h_q, tokens), statistics),
            ("proj_slab", (batch * tokens, g.n_qkvg), kind),
            ("o", (batch, tokens, g.h_q, g.d_head), kind),
            ("rstd_q", (batch, tokens, g.h_q), statistics),
            ("rstd_k", (batch, tokens, g.h_kv), statistics),
        ]
        count = (6 if g.qk_norm else 4) if self.training else 2
        return tuple(compact(name, shape, dtype, self.device) for name, shape, dtype in rows[:count])

    @property
    def degenerate(self) -> bool:
        """No tokens."""
        return self.h.size == 0

    @property
    def flops(self) -> int:
        """Both projections, and attention as if all saw all."""
        g, (batch, tokens) = self.geometry, self.extents
        projections = 2 * g.d_model * (g.n_qkvg + g.h_q * g.d_head)
        return batch * tokens * (projections + 4 * tokens * g.h_q * g.d_head)


@dataclass(frozen=True)
class GatedAttentionBlockBackward(Problem):
    """One backward call."""

    operands: ClassVar[tuple[str, ...]] = ("dy", *_INPUTS, "proj_slab", "o", "lse", "rstd_q", "rstd_k", "seq_lens")
    optional: ClassVar[frozenset[str]] = frozenset({*_NORMS, "proj_slab", "rstd_q", "rstd_k", "seq_lens"})
    kept: ClassVar[frozenset[str]] = frozenset({"lse", "rstd_q", "rstd_k"})
    output_count: ClassVar[int] = 0

    dy: TensorSpec
    h: TensorSpec
    w_qkvg: TensorSpec
    w_q_norm: TensorSpec | None
    w_k_norm: TensorSpec | None
    cos: TensorSpec
    sin: TensorSpec
    w_o: TensorSpec
    proj_slab: TensorSpec | None
    o: TensorSpec
    lse: TensorSpec
    rstd_q: TensorSpec | None
    rstd_k: TensorSpec | None
    seq_lens: TensorSpec | None
    shape: tuple[Any, ...]
    form: str | None
    needs: tuple[bool, bool, bool, bool]

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``shape``, ``form``, and ``needs``: of h, w_qkvg, w_o and the norms' weights."""
        g = GatedAttentionBlockGeometry(*options["shape"])
        named = dict(zip(cls.operands, operands, strict=True))
        batch, tokens = _require_block(g, options["form"], named["seq_lens"], named)
        h, dy, slab, o, lse = (named[name] for name in ("h", "dy", "proj_slab", "o", "lse"))
        assert h is not None
        assert dy is not None
        assert o is not None
        assert lse is not None
        require_shape(dy, h.shape, "the shape of h")
        if slab is not None and slab.shape != (batch, tokens, g.n_qkvg):
            require_shape(slab, (batch * tokens, g.n_qkvg), "(B S, n_qkvg)")
        require_shape(o, (batch, tokens, g.h_q, g.d_head), "(B, S, Hq, D)")
        require_same_dtype(h, *(spec for spec in (dy, slab, o) if spec is not None))
        statistics = [(lse, (batch, g.h_q, tokens), "(B, Hq, S)")]
        for name, heads in (("rstd_q", g.h_q), ("rstd_k", g.h_kv)):
            spec = named[name]
            if (spec is None) == g.qk_norm:
                got, wanted = ("None", "(B, S, heads)") if g.qk_norm else ("a tensor", "None without qk_norm")
                raise ShapeError(name, got=got, wanted=wanted, remedy="pass the forward's record")
            if spec is not None:
                statistics.append((spec, (batch, tokens, heads), "(B, S, heads)"))
        for spec, shape, words in statistics:
            require_dtype(spec, statistics_dtype(h).name)
            require_shape(spec, shape, words)
        require_same_device(h, dy, slab, o, lse, named["rstd_q"], named["rstd_k"])
        needs: Any = tuple(options["needs"])
        if not any(needs):
            raise OptionError("needs", got="no gradient", wanted="at least one", remedy="ask for one, or do not call")
        if needs[3] and not g.qk_norm:
            raise OptionError("need_dw_norms", got="True", wanted="False without qk_norm", remedy="leave it out")
        bound: dict[str, Any] = dict(named)
        return cls(**bound, shape=tuple(options["shape"]), form=options["form"], needs=needs)

    @property
    def geometry(self) -> GatedAttentionBlockGeometry:
        """The block's geometry."""
        return GatedAttentionBlockGeometry(*self.shape)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The gradients that are needed, compact."""
        g, kind, statistics = self.geometry, self.h.dtype, statistics_dtype(self.h)
        rows = (
            ("dh", self.h.shape, kind, self.needs[0]),
            ("dw_qkvg", (g.n_qkvg, g.d_model), kind, self.needs[1]),
            ("dw_o", (g.d_model, g.h_q * g.d_head), kind, self.needs[2]),
            ("dw_q_norm", (g.d_head,), statistics, self.needs[3]),
            ("dw_k_norm", (g.d_head,), statistics, self.needs[3]),
        )
        return tuple(compact(name, shape, dtype, self.device) for name, shape, dtype, needed in rows if needed)

    @property
    def degenerate(self) -> bool:
        """No tokens."""
        return self.h.size == 0

    @property
    def flops(self) -> int:
        """Two products per projection, and five of attention as if all saw all."""
        g, tokens = self.geometry, self.h.shape[-2]
        rows = self.h.size // g.d_model
        return rows * (4 * g.d_model * (g.n_qkvg + g.h_q * g.d_head) + 10 * tokens * g.h_q * g.d_head)


FORWARD = Op(
    name="gated_attention_block_forward",
    package="cudnn-fe-attention",
    problem=GatedAttentionBlock,
    reference="cudnn_fe.attention.gated_block.reference:forward",
    kernels=(),
    summary="A whole attention block: projection, norms, partial RoPE, attention, sigmoid gate, output projection.",
    formula=r"[Q, G, K, V] = h\, W_{qkvg}^\top, \qquad Q, K \leftarrow \mathrm{RoPE}(\mathrm{RMSNorm}(Q, K)), \qquad "
    r"O = \mathrm{softmax}(\alpha\, Q K^\top)\, V, \qquad \mathrm{out} = (O \odot \sigma(G))\, W_o^\top",
    tensors=FORWARD_TENSORS,
    example=FORWARD_EXAMPLE,
    source=SOURCE,
    notes=FORWARD_NOTES,
    scalars=FACTORS,
    results=("out", "lse", "proj_slab", "o", "rstd_q", "rstd_k"),
    gradient="cudnn_fe.attention.gated_block.gradient:GRADIENT",
    reference_on_gpu=True,
)

BACKWARD = Op(
    name="gated_attention_block_backward",
    package="cudnn-fe-attention",
    problem=GatedAttentionBlockBackward,
    reference="cudnn_fe.attention.gated_block.reference:backward",
    kernels=(),
    summary="Gradients of the gated attention block from the forward's record.",
    formula=r"dO = (dY\, W_o) \odot \sigma(G), \; dG = (dY\, W_o) \odot O \odot \sigma'(G), \; "
    r"dW_o = dY^\top (O \odot \sigma(G)), \; dW_{qkvg} = [dQ, dG, dK, dV]^\top h, \; dh = [dQ, dG, dK, dV]\, W_{qkvg}",
    tensors=BACKWARD_TENSORS,
    example=BACKWARD_EXAMPLE,
    source=SOURCE,
    notes=BACKWARD_NOTES,
    results=("dh", "dw_qkvg", "dw_o", "dw_q_norm", "dw_k_norm"),
    reference_on_gpu=True,
)
