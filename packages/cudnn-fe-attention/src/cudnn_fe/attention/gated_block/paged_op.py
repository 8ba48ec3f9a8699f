"""The contract of the gated attention block that writes its keys and values to pages, and may read them there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.gated_block.docs import INPUT_TENSORS, PAGED_EXAMPLE, PAGED_NOTES, PAGED_TENSORS, SOURCE
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.op import BlockProblem
from cudnn_fe.attention.gated_block.operands import INPUTS, NORMS, Formats, require_block
from cudnn_fe.attention.operands import compact, statistics_dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.op import Op
from cudnn_fe.core.require import require_dtype, require_one_of, require_rows, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = [
    "KEYS",
    "KV_SOURCE_PAGED",
    "KV_SOURCE_SELF",
    "MOST_STEPS",
    "PAGED",
    "PAGES",
    "SCALES",
    "GatedAttentionBlockPaged",
    "require_keys",
    "require_pools",
]

KV_SOURCE_SELF, KV_SOURCE_PAGED = "self", "paged"
MOST_STEPS = 32  # tokens of a decoding step
PAGES = ("k_cache", "v_cache", "slot_mapping")
KEYS = ("block_table", "kv_lens")
SCALES = ("k_scale", "v_scale")
_PAGE = 16  # pages are a multiple of so many tokens


def require_pools(g: GatedAttentionBlockGeometry, named: dict[str, TensorSpec | None], tokens: int) -> None:
    """Validates what blocks take that write to pages."""
    h, k_cache, v_cache, slots = (named[name] for name in ("h", *PAGES))
    assert h is not None
    assert k_cache is not None
    assert v_cache is not None
    assert slots is not None
    for spec in (k_cache, v_cache):
        spec.require_rank(4, "(pages, Hkv, P, D)")
        pages, _, size, _ = spec.shape
        if size < 1 or size % _PAGE:
            wanted = f"pages of a multiple of {_PAGE} tokens"
            raise OptionError(spec.name, got=f"{size} tokens a page", wanted=wanted, remedy="use SERVING_PAGE_SIZES")
        require_shape(spec, (pages, g.h_kv, size, g.d_head), "(pages, Hkv, P, D)")
        require_rows(spec)
        require_dtype(spec, h.dtype.name, "float8_e4m3fn")
        require_same_device(h, spec)
    if v_cache.shape != k_cache.shape or v_cache.dtype != k_cache.dtype:
        got, wanted = f"{v_cache.shape} {v_cache.dtype}", f"{k_cache.shape} {k_cache.dtype}, as k_cache"
        raise ShapeError("v_cache", got=got, wanted=wanted, remedy="allocate both alike")
    require_dtype(slots, "int32", "int64")
    require_shape(slots, (tokens,), "(T,)")
    require_same_device(h, slots)
    fp8 = k_cache.dtype.is_fp8
    for name in SCALES:
        factor = named[name]
        if (factor is not None) != fp8:
            got, wanted = (
                ("None", "one float32 number") if fp8 else ("a tensor", f"None for a cache of {k_cache.dtype}")
            )
            raise OptionError(name, got=got, wanted=wanted, remedy="fit it to the cache's dtype")
        if factor is not None:
            require_dtype(factor, "float32")
            if factor.size != 1:
                raise ShapeError(
                    name, got=str(factor.shape), wanted="one number", remedy="pass a tensor of one element"
                )
            require_same_device(h, factor)


def require_keys(g: GatedAttentionBlockGeometry, named: dict[str, TensorSpec | None], form: str | None) -> None:
    """Validates what attention over pages takes: their table and the sequences' keys."""
    h, table, lengths, pool = (named[name] for name in ("h", *KEYS, "k_cache"))
    assert h is not None
    assert pool is not None
    for name in KEYS:
        if named[name] is None:
            raise OptionError(name, got="None", wanted="a tensor with kv_source 'paged'", remedy="pass it")
    assert table is not None
    assert lengths is not None
    if not g.causal_bottom_right:
        got, wanted = "False", "True with kv_source 'paged'"
        raise OptionError("causal_bottom_right", got=got, wanted=wanted, remedy="declare it")
    lengths.require_rank(1, "(B,)")
    count = h.shape[0]
    if form is not None:
        spec = named["seq_lens"]
        assert spec is not None
        count = spec.shape[0] - (form == "prefix")
    elif named["seq_lens"] is not None:
        wanted = "None: kv_lens say how many keys there are"
        raise OptionError("seq_lens", got="a tensor", wanted=wanted, remedy="leave it out")
    require_dtype(table, "int32")
    require_dtype(lengths, "int32")
    table.require_rank(2, "(B, pages)")
    require_shape(table, (count, table.shape[1]), "(B, pages)")
    require_shape(lengths, (count,), "(B,)")
    require_same_device(h, table, lengths)


def _require_served(named: dict[str, TensorSpec | None], form: str | None) -> None:
    h, pool = named["h"], named["k_cache"]
    assert h is not None
    assert pool is not None
    if pool.dtype.is_fp8:
        raise NotYetSupportedError("kv_cache_dtype", got=str(pool.dtype), wanted=str(h.dtype), remedy="keep keys as h")
    if form is None and h.shape[1] > MOST_STEPS:
        wanted = f"at most {MOST_STEPS} tokens a step"
        raise NotYetSupportedError("h", got=f"{h.shape[1]} tokens", wanted=wanted, remedy="pack them: thd=True")


@dataclass(frozen=True)
class GatedAttentionBlockPaged(BlockProblem):
    """One forward call over pages."""

    operands: ClassVar[tuple[str, ...]] = (*INPUTS, "seq_lens", *PAGES, *KEYS, *SCALES)
    optional: ClassVar[frozenset[str]] = frozenset({*NORMS, "seq_lens", *KEYS, *SCALES})
    kept: ClassVar[frozenset[str]] = frozenset(SCALES)
    output_count: ClassVar[int] = 4

    h: TensorSpec
    w_qkvg: TensorSpec
    w_q_norm: TensorSpec | None
    w_k_norm: TensorSpec | None
    cos: TensorSpec
    sin: TensorSpec
    w_o: TensorSpec
    seq_lens: TensorSpec | None
    k_cache: TensorSpec
    v_cache: TensorSpec
    slot_mapping: TensorSpec
    block_table: TensorSpec | None
    kv_lens: TensorSpec | None
    k_scale: TensorSpec | None
    v_scale: TensorSpec | None
    shape: tuple[Any, ...]
    form: str | None
    source: str

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``shape``, ``form`` of the lengths, and ``source`` of the keys."""
        g, form, source = GatedAttentionBlockGeometry(*options["shape"]), options["form"], options["source"]
        require_one_of(source, "kv_source", (KV_SOURCE_SELF, KV_SOURCE_PAGED))
        named = dict(zip(cls.operands, operands, strict=True))
        batch, tokens = require_block(g, form, named["seq_lens"], named, Formats(None, False, None))
        require_pools(g, named, batch * tokens)
        if source == KV_SOURCE_PAGED:
            require_keys(g, named, form)
            _require_served(named, form)
        else:
            for name in KEYS:
                if named[name] is not None:
                    raise OptionError(name, got="a tensor", wanted="None with kv_source 'self'", remedy="leave it out")
        bound: dict[str, Any] = dict(named)
        return cls(**bound, shape=tuple(options["shape"]), form=form, source=source)

    @property
    def quant(self) -> str | None:
        """None: the operands are not quantised."""
        return None

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The output, the log-sum-exp, and the pools with the new rows."""
        batch, tokens = self.extents
        lse = (batch, self.geometry.h_q, tokens)
        return (
            compact("out", self.h.shape, self.h.dtype, self.device),
            compact("lse", lse, statistics_dtype(self.h), self.device),
            *(compact(x.name, x.shape, x.dtype, self.device) for x in (self.k_cache, self.v_cache)),
        )

    @property
    def flops(self) -> int:
        """Both projections, and attention as if all saw all keys that there may be."""
        g, (batch, tokens) = self.geometry, self.extents
        keys = tokens if self.block_table is None else self.block_table.shape[1] * self.k_cache.shape[2]
        projections = 2 * g.d_model * (g.n_qkvg + g.h_q * g.d_head)
        return batch * tokens * (projections + 4 * keys * g.h_q * g.d_head)


PAGED = Op(
    name="gated_attention_block_paged_forward",
    package="cudnn-fe-attention",
    problem=GatedAttentionBlockPaged,
    reference="cudnn_fe.attention.gated_block.paged_reference:forward",
    kernels=(),
    summary="The gated attention block in serving: keys and values go to pages of a cache, and may be read from there.",
    formula=r"K_{\mathrm{cache}}[\mathrm{slot}_t] = K_t, \quad V_{\mathrm{cache}}[\mathrm{slot}_t] = V_t, \quad "
    r"O_b = \mathrm{softmax}(\alpha\, Q_b K_{\mathrm{cache}}[\mathrm{table}_b]^\top)\, "
    r"V_{\mathrm{cache}}[\mathrm{table}_b]",
    tensors=(*INPUT_TENSORS, *PAGED_TENSORS),
    example=PAGED_EXAMPLE,
    source=SOURCE,
    notes=PAGED_NOTES,
    results=("out", "lse", "k_cache", "v_cache"),
    reference_on_gpu=True,
)
