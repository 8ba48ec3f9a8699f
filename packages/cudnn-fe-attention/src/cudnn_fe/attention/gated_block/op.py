"""The contract of the gated attention block; that of its gradients is in `op_backward`."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, replace
from typing import Any, ClassVar, Self

from cudnn_fe.attention.gated_block.declarations import QsaSpec
from cudnn_fe.attention.gated_block.docs import FORWARD_EXAMPLE, FORWARD_NOTES, FORWARD_TENSORS, SOURCE
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.operands import E8M0, INPUTS, NORMS, Formats, require_blobs, require_block
from cudnn_fe.attention.operands import compact, require_flag, statistics_dtype
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionTypeError
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["FACTORS", "FORWARD", "PLAIN", "BlockProblem", "GatedAttentionBlock", "frozen", "thawed"]

_SCALES = ("h_sf", "w_qkvg_sf", "w_o_sf")
FACTORS = ("descale_h", "descale_w_qkvg", "descale_w_o", "scale_q", "scale_k", "scale_v", "scale_o")
_OTHER = {
    False: "leave it out, or call gated_attention_block_sparse_forward",
    True: "call gated_attention_block_forward",
}
PLAIN = (("quant", None), ("w_fp4", False), ("o_fp4", None))  # options of blocks that are not quantised


def frozen(geometry: Any, *, sparse: bool = False) -> tuple[Any, ...]:
    """A geometry as the plain values that an op takes; raises unless it is valid, and of a sparse block or not."""
    if not isinstance(geometry, GatedAttentionBlockGeometry):
        got = type(geometry).__qualname__
        raise OptionTypeError("geometry", got=got, wanted="a GatedAttentionBlockGeometry", remedy="make one")
    geometry.validate()
    if (geometry.qsa is not None) != sparse:
        got, wanted = ("a QsaSpec", "None") if geometry.qsa is not None else ("None", "a QsaSpec")
        raise NotYetSupportedError("qsa", got=got, wanted=wanted, remedy=_OTHER[sparse])
    if geometry.qsa is None:
        return astuple(geometry)
    kind = geometry.qsa.index_cache_dtype
    plain = replace(geometry.qsa, index_cache_dtype=None if kind is None else dtype(kind).name)
    return astuple(replace(geometry, qsa=plain))


def thawed(shape: tuple[Any, ...]) -> GatedAttentionBlockGeometry:
    """The geometry that `frozen` made plain values of."""
    *dense, qsa = shape
    return replace(GatedAttentionBlockGeometry(*dense), qsa=None if qsa is None else QsaSpec(*qsa))


class BlockProblem(Problem):
    """What the contracts of all forms of the block share."""

    h: TensorSpec
    shape: tuple[Any, ...]
    form: str | None

    @property
    def geometry(self) -> GatedAttentionBlockGeometry:
        """The block's geometry."""
        return thawed(self.shape)

    @property
    def extents(self) -> tuple[int, int]:
        """Batches and tokens of each."""
        return self.h.shape[0] if self.form is None else 1, self.h.shape[-2]

    @property
    def degenerate(self) -> bool:
        """No tokens."""
        return self.h.size == 0


@dataclass(frozen=True)
class GatedAttentionBlock(BlockProblem):
    """One forward call."""

    operands: ClassVar[tuple[str, ...]] = (*INPUTS, "seq_lens", *_SCALES)
    optional: ClassVar[frozenset[str]] = frozenset({*NORMS, "seq_lens", *_SCALES})
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
    w_o_sf: TensorSpec | None
    shape: tuple[Any, ...]
    form: str | None
    training: bool
    quant: str | None
    w_fp4: bool
    o_fp4: str | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call.

        Options: ``shape`` (see `frozen`), ``form`` of the lengths, ``training``, and those of `Formats`.
        """
        require_flag(options["training"], "save_for_backward")
        formats = Formats(options["quant"], options["w_fp4"], options["o_fp4"])
        g, form = GatedAttentionBlockGeometry(*options["shape"]), options["form"]
        named = dict(zip(cls.operands, operands, strict=True))
        require_block(g, form, named["seq_lens"], named, formats)
        h, mx, inner = named["h"], formats.quant == "mxfp8", g.h_q * g.d_head
        assert h is not None
        blobs = (
            ("h_sf", mx, h.size // g.d_model, g.d_model // 32, E8M0),
            ("w_qkvg_sf", mx, g.n_qkvg, g.d_model // 32, E8M0),
            ("w_o_sf", formats.o_fp4 is not None, g.d_model, inner // formats.o_block, formats.o_scales),
        )
        require_blobs(named, blobs)
        fields: dict[str, Any] = {**named, **asdict(formats)}
        return cls(**fields, shape=tuple(options["shape"]), form=form, training=options["training"])

    @property
    def formats(self) -> Formats:
        """How the operands are quantised."""
        return Formats(self.quant, self.w_fp4, self.o_fp4)

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
    def flops(self) -> int:
        """Both projections, and attention as if all saw all."""
        g, (batch, tokens) = self.geometry, self.extents
        projections = 2 * g.d_model * (g.n_qkvg + g.h_q * g.d_head)
        return batch * tokens * (projections + 4 * tokens * g.h_q * g.d_head)


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
