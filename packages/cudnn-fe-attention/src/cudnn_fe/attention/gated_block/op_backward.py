"""The contract of the gated attention block's gradients."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.gated_block.docs import BACKWARD_EXAMPLE, BACKWARD_NOTES, BACKWARD_TENSORS, SOURCE
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.op import FACTORS, BlockProblem
from cudnn_fe.attention.gated_block.operands import (
    CODES,
    E2M1,
    E8M0,
    INPUTS,
    NORMS,
    Formats,
    packed_shape,
    require_blobs,
    require_block,
    require_elements,
    scale_count,
)
from cudnn_fe.attention.operands import compact, require_flag, require_same_dtype, statistics_dtype
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.op import Op
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BACKWARD", "SCALARS", "UNSCALED", "GatedAttentionBlockBackward", "beside"]

_RECORD = ("proj_slab", "o", "lse", "rstd_q", "rstd_k")
_SCALARS = ("scale_dp", "scale_dy", "scale_do", "scale_dqkvg")
_TURNED = ("h_t", "h_t_sf", "w_qkvg_t", "w_qkvg_t_sf", "w_o_t", "w_o_t_sf")
UNSCALED = (("delayed", False), ("margin", 0))  # options of the gradients of blocks that are not quantised
_MOST_MARGIN = 8
SCALARS = (
    *("amax_dy", "amax_do", "amax_dqkvg", "amax_dp"),
    *(f"{kind}_{name}" for name in ("dy", "do", "dqkvg") for kind in ("scale", "descale")),
    *("alpha_b1", "alpha_b2", "alpha_b7", "alpha_b8", "descale_dp"),
    *(f"{kind}_{name}" for kind in ("scale", "descale") for name in "qkvo"),
    *("descale_w_o", "descale_h", "descale_w_qkvg", "scale_s", "descale_s", "scale_dqkv"),
)


def _require_record(
    g: GatedAttentionBlockGeometry, named: dict[str, TensorSpec | None], batch: int, tokens: int, formats: Formats
) -> None:
    h, dy, slab, o, lse, cos = (named[name] for name in ("h", "dy", "proj_slab", "o", "lse", "cos"))
    assert h is not None
    assert dy is not None
    assert o is not None
    assert lse is not None
    assert cos is not None
    if formats.quant is not None and dy.dtype.name != "bfloat16":
        raise NotYetSupportedError("dy", got=str(dy.dtype), wanted="bfloat16 with quant", remedy="cast it")
    if formats.quant is not None and slab is None:
        raise NotYetSupportedError("proj_slab", got="None", wanted="the projection with quant", remedy="save it")
    require_shape(dy, h.shape, "the shape of h")
    if slab is not None and slab.shape != (batch, tokens, g.n_qkvg):
        require_shape(slab, (batch * tokens, g.n_qkvg), "(B S, n_qkvg)")
    require_shape(o, (batch, tokens, g.h_q, g.d_head), "(B, S, Hq, D)")
    require_same_dtype(cos, *(spec for spec in (dy, slab, o) if spec is not None))
    statistics = [(lse, (batch, g.h_q, tokens), "(B, Hq, S)")]
    for name, heads in (("rstd_q", g.h_q), ("rstd_k", g.h_kv)):
        spec = named[name]
        if (spec is None) == g.qk_norm:
            got, wanted = ("None", "(B, S, heads)") if g.qk_norm else ("a tensor", "None without qk_norm")
            raise ShapeError(name, got=got, wanted=wanted, remedy="pass the forward's record")
        if spec is not None:
            statistics.append((spec, (batch, tokens, heads), "(B, S, heads)"))
    for spec, shape, words in statistics:
        require_dtype(spec, statistics_dtype(cos).name)
        require_shape(spec, shape, words)
    require_same_device(h, dy, slab, o, lse, named["rstd_q"], named["rstd_k"])


def _require_scaling(formats: Formats, delayed: Any, margin: Any) -> None:
    require_flag(delayed, "delayed")
    if isinstance(margin, bool) or not isinstance(margin, int) or not 0 <= margin <= _MOST_MARGIN:
        wanted = f"an int of 0..{_MOST_MARGIN}"
        raise OptionError("grad_scale_margin_log2", got=repr(margin), wanted=wanted, remedy="leave it at 0")
    if margin and (formats.quant is None or delayed):
        wanted = "0 but with quant and current scaling"
        raise OptionError("grad_scale_margin_log2", got=repr(margin), wanted=wanted, remedy="leave it out")
    if delayed and formats.quant is None:
        raise OptionError("grad_scaling", got="'delayed'", wanted="'current' without quant", remedy="leave it out")


def _scalars(formats: Formats, delayed: bool) -> dict[str, bool]:
    """Which scales of gradients the caller passes: that of dS always with FP8, the others where they are delayed."""
    fp8 = formats.quant == "fp8"
    return {"scale_dp": fp8, "scale_dy": delayed, "scale_do": delayed and fp8, "scale_dqkvg": delayed and fp8}


def _require_scalars(named: dict[str, TensorSpec | None], formats: Formats, delayed: bool) -> None:
    dy = named["dy"]
    assert dy is not None
    for name, needed in _scalars(formats, delayed).items():
        spec = named[name]
        if (spec is not None) != needed:
            got, words = ("None", "one float32 number") if needed else ("a tensor", "None in this format and scaling")
            raise OptionError(name, got=got, wanted=words, remedy="fit it to quant and grad_scaling")
        if spec is not None:
            require_dtype(spec, "float32")
            if spec.size != 1:
                raise ShapeError(name, got=str(spec.shape), wanted="one number", remedy="pass a tensor of one element")
            require_same_device(dy, spec)


@dataclass(frozen=True)
class _Turned:
    """An operand that is quantised along the axis that its gradient's product sums over.

    Attributes:
        name: Its name; its packed scales' is that and ``_sf``.
        taken: Whether blocks of these formats take it.
        shape: Its shape, FP4 unpacked.
        element: The type of its codes.
        block: Elements per scale.
        scales: Types that its scales may have.
    """

    name: str
    taken: bool
    shape: tuple[int, int]
    element: str
    block: int
    scales: tuple[str, ...]

    def blob(self, there: bool) -> tuple[str, bool, int, int, tuple[str, ...]]:
        """The row of `require_blobs`."""
        return f"{self.name}_sf", there, self.shape[0], -(-self.shape[1] // self.block), self.scales


def _turned(g: GatedAttentionBlockGeometry, tokens: int, formats: Formats) -> tuple[_Turned, ...]:
    mx = formats.quant == "mxfp8"
    wide = E2M1 if formats.w_fp4 else CODES
    last = (g.h_q * g.d_head, g.d_model), E2M1, formats.o_block, formats.o_scales
    return (
        _Turned("h_t", mx, (g.d_model, tokens), CODES, 32, E8M0),
        _Turned("w_qkvg_t", mx, (g.d_model, g.n_qkvg), wide, 32, E8M0),
        _Turned("w_o_t", formats.o_fp4 is not None, *last),
    )


def _require_turned(
    g: GatedAttentionBlockGeometry,
    named: dict[str, TensorSpec | None],
    tokens: int,
    formats: Formats,
    needs: tuple[bool, bool, bool, bool],
) -> None:
    h = named["h"]
    assert h is not None
    blobs = []
    for row in _turned(g, tokens, formats):
        spec, stored = named[row.name], packed_shape(row.shape, row.element)
        blobs.append(row.blob(spec is not None))
        # A caller may have both, whichever gradient it wants.
        needed = row.taken and {"h_t": needs[1], "w_qkvg_t": needs[0]}.get(row.name, True)
        if spec is None and needed:
            wanted = f"{stored} of {row.element}"
            raise ShapeError(row.name, got="None", wanted=wanted, remedy="quantise the operand along that axis")
        if spec is None:
            continue
        if not row.taken:
            raise OptionError(row.name, got="a tensor", wanted="None in this format", remedy="fit it to quant")
        require_elements(spec, row.element)
        require_shape(spec, stored, "the turned operand's shape")
        require_same_device(h, spec)
    require_blobs(named, blobs)


def beside(
    g: GatedAttentionBlockGeometry, tokens: int, formats: Formats, delayed: bool, device: str
) -> tuple[TensorSpec | None, ...]:
    """Specs of the scales and turned operands that a call takes, to bind its problem before there are any."""
    scalars = (
        compact(name, (1,), dtype("float32"), device) if there else None
        for name, there in _scalars(formats, delayed).items()
    )
    turned: list[TensorSpec | None] = []
    for row in _turned(g, tokens, formats):
        name, _, high, wide, kinds = row.blob(True)
        stored = compact(row.name, packed_shape(row.shape, row.element), dtype(row.element), device)
        blob = compact(name, (scale_count(high, wide),), dtype(kinds[0]), device)
        turned += [stored, blob] if row.taken else [None, None]
    return (*scalars, *turned)


@dataclass(frozen=True)
class GatedAttentionBlockBackward(BlockProblem):
    """One backward call."""

    operands: ClassVar[tuple[str, ...]] = ("dy", *INPUTS, *_RECORD, "seq_lens", *_SCALARS, *_TURNED)
    optional: ClassVar[frozenset[str]] = frozenset(
        {*NORMS, "proj_slab", "rstd_q", "rstd_k", "seq_lens", *_SCALARS, *_TURNED}
    )
    kept: ClassVar[frozenset[str]] = frozenset({"lse", "rstd_q", "rstd_k", *_SCALARS})
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
    scale_dp: TensorSpec | None
    scale_dy: TensorSpec | None
    scale_do: TensorSpec | None
    scale_dqkvg: TensorSpec | None
    h_t: TensorSpec | None
    h_t_sf: TensorSpec | None
    w_qkvg_t: TensorSpec | None
    w_qkvg_t_sf: TensorSpec | None
    w_o_t: TensorSpec | None
    w_o_t_sf: TensorSpec | None
    shape: tuple[Any, ...]
    form: str | None
    needs: tuple[bool, bool, bool, bool]
    quant: str | None
    w_fp4: bool
    o_fp4: str | None
    delayed: bool
    margin: int

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call.

        Options: ``shape``, ``form``, ``needs`` (of h, w_qkvg, w_o and the norms' weights), those of `Formats`, and
        ``delayed`` and ``margin``: whether scales of gradients are the caller's, and how far below the largest
        possible one they stay otherwise.
        """
        g = GatedAttentionBlockGeometry(*options["shape"])
        named = dict(zip(cls.operands, operands, strict=True))
        formats = Formats(options["quant"], options["w_fp4"], options["o_fp4"])
        batch, tokens = require_block(g, options["form"], named["seq_lens"], named, formats)
        _require_record(g, named, batch, tokens, formats)
        needs: Any = tuple(options["needs"])
        if not any(needs):
            raise OptionError("needs", got="no gradient", wanted="at least one", remedy="ask for one, or do not call")
        if needs[3] and not g.qk_norm:
            raise OptionError("need_dw_norms", got="True", wanted="False without qk_norm", remedy="leave it out")
        delayed, margin = options["delayed"], options["margin"]
        _require_scaling(formats, delayed, margin)
        _require_scalars(named, formats, delayed)
        _require_turned(g, named, batch * tokens, formats, needs)
        bound: dict[str, Any] = {**named, **asdict(formats), "delayed": delayed, "margin": margin}
        return cls(**bound, shape=tuple(options["shape"]), form=options["form"], needs=needs)

    @property
    def formats(self) -> Formats:
        """How the operands are quantised."""
        return Formats(self.quant, self.w_fp4, self.o_fp4)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The gradients that are needed, compact, and of quantised blocks the numbers of `SCALARS`."""
        g, kind, statistics = self.geometry, self.dy.dtype, statistics_dtype(self.dy)
        rows = (
            ("dh", self.h.shape, kind, self.needs[0]),
            ("dw_qkvg", (g.n_qkvg, g.d_model), kind, self.needs[1]),
            ("dw_o", (g.d_model, g.h_q * g.d_head), kind, self.needs[2]),
            ("dw_q_norm", (g.d_head,), statistics, self.needs[3]),
            ("dw_k_norm", (g.d_head,), statistics, self.needs[3]),
            ("quant_scalars", (len(SCALARS),), statistics, self.quant is not None),
        )
        return tuple(compact(name, shape, of, self.device) for name, shape, of, needed in rows if needed)

    @property
    def flops(self) -> int:
        """Two products per projection, and five of attention as if all saw all."""
        g, tokens = self.geometry, self.h.shape[-2]
        rows = self.h.size // g.d_model
        return rows * (4 * g.d_model * (g.n_qkvg + g.h_q * g.d_head) + 10 * tokens * g.h_q * g.d_head)


BACKWARD = Op(
    name="gated_attention_block_backward",
    package="cudnn-fe-attention",
    problem=GatedAttentionBlockBackward,
    reference="cudnn_fe.attention.gated_block.reference_backward:backward",
    kernels=(),
    summary="Gradients of the gated attention block from the forward's record.",
    formula=r"dO = (dY\, W_o) \odot \sigma(G), \; dG = (dY\, W_o) \odot O \odot \sigma'(G), \; "
    r"dW_o = dY^\top (O \odot \sigma(G)), \; dW_{qkvg} = [dQ, dG, dK, dV]^\top h, \; dh = [dQ, dG, dK, dV]\, W_{qkvg}",
    tensors=BACKWARD_TENSORS,
    example=BACKWARD_EXAMPLE,
    source=SOURCE,
    notes=BACKWARD_NOTES,
    scalars=FACTORS,
    results=("dh", "dw_qkvg", "dw_o", "dw_q_norm", "dw_k_norm", "quant_scalars"),
    reference_on_gpu=True,
)
