"""The contract of the block-sparse gated attention block: each token attends to listed blocks of four tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.gated_block.declarations import QsaSpec
from cudnn_fe.attention.gated_block.docs import INPUT_TENSORS, SOURCE, SPARSE_EXAMPLE, SPARSE_NOTES, SPARSE_TENSORS
from cudnn_fe.attention.gated_block.op import BlockProblem, thawed
from cudnn_fe.attention.gated_block.operands import INPUTS, NORMS, Formats, require_block
from cudnn_fe.attention.operands import compact, require_same_dtype, statistics_dtype
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.op import Op
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = [
    "INDEXER",
    "LISTS",
    "SPARSE",
    "GatedAttentionBlockSparse",
    "SparseProblem",
    "require_indexer",
    "require_lists",
]

LISTS, INDEXER = ("block_ids", "block_lens"), ("w_iq_norm", "w_ik_norm")


def require_lists(named: dict[str, TensorSpec | None], rows: tuple[tuple[int, ...], ...], top_k: int) -> None:
    """Validates the caller's lists, whose leading dims are one of ``rows``."""
    h, ids, lengths = (named[name] for name in ("h", *LISTS))
    assert h is not None
    if ids is None:
        raise OptionError("block_ids", got="None", wanted="lists with index_source 'caller'", remedy="pass them")
    for spec, extents in ((ids, (top_k,)), (lengths, ())):
        if spec is None:
            continue
        require_dtype(spec, "int32")
        if spec.shape not in tuple((*lead, *extents) for lead in rows):
            wanted = f"{(*rows[0], *extents)}, a row per token"
            raise ShapeError(spec.name, got=str(spec.shape), wanted=wanted, remedy="list blocks of every token")
        require_same_device(h, spec)


def require_indexer(named: dict[str, TensorSpec | None], qsa: QsaSpec) -> None:
    """Validates the weights of the indexer's norms."""
    h = named["h"]
    assert h is not None
    for name in INDEXER:
        spec = named[name]
        if spec is None:
            raise OptionError(name, got="None", wanted="a weight with index_source 'indexer'", remedy="pass it")
        require_shape(spec, (qsa.index_head_dim,), "(index_head_dim,)")
        require_same_dtype(h, spec)
        require_same_device(h, spec)


class SparseProblem(BlockProblem):
    """What the contracts of block-sparse blocks share."""

    @property
    def qsa(self) -> QsaSpec:
        """The block's sparsity."""
        qsa = self.geometry.qsa
        assert qsa is not None
        return qsa


@dataclass(frozen=True)
class GatedAttentionBlockSparse(SparseProblem):
    """One block-sparse forward call."""

    operands: ClassVar[tuple[str, ...]] = (*INPUTS, "seq_lens", *LISTS, *INDEXER)
    optional: ClassVar[frozenset[str]] = frozenset({*NORMS, "seq_lens", *LISTS, *INDEXER})
    output_count: ClassVar[int] = 0

    h: TensorSpec
    w_qkvg: TensorSpec
    w_q_norm: TensorSpec | None
    w_k_norm: TensorSpec | None
    cos: TensorSpec
    sin: TensorSpec
    w_o: TensorSpec
    seq_lens: TensorSpec | None
    block_ids: TensorSpec | None
    block_lens: TensorSpec | None
    w_iq_norm: TensorSpec | None
    w_ik_norm: TensorSpec | None
    shape: tuple[Any, ...]
    form: str | None

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``shape`` and ``form``."""
        g, form = thawed(tuple(options["shape"])), options["form"]
        assert g.qsa is not None
        named = dict(zip(cls.operands, operands, strict=True))
        batch, tokens = require_block(g, form, named["seq_lens"], named, Formats(None, False, None))
        caller = g.qsa.index_source == "caller"
        for name in INDEXER if caller else LISTS:
            if named[name] is not None:
                wanted = f"None with index_source {g.qsa.index_source!r}"
                raise OptionError(name, got="a tensor", wanted=wanted, remedy="leave it out")
        if caller:
            require_lists(named, ((batch * tokens,), (batch, tokens)), g.qsa.top_k)
        else:
            require_indexer(named, g.qsa)
        bound: dict[str, Any] = dict(named)
        return cls(**bound, shape=tuple(options["shape"]), form=form)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The output and the log-sum-exp; with an indexer its keys, raw and compressed, and the lists that it made."""
        g, qsa, (batch, tokens) = self.geometry, self.qsa, self.extents
        rows: list[tuple[str, tuple[int, ...], Any]] = [
            ("out", self.h.shape, self.h.dtype),
            ("lse", (batch, g.h_q, tokens), statistics_dtype(self.h)),
        ]
        if g.index_band:
            rows.append(("index_k_raw", (batch * tokens, qsa.index_head_dim), self.h.dtype))
        if qsa.index_source == "indexer":
            blocks = tokens // qsa.block_size if self.form is None else 0
            rows.append(("index_k_compressed", (batch, blocks, qsa.index_head_dim), self.h.dtype))
            rows.append(("block_ids_out", (batch * tokens, qsa.top_k), dtype("int32")))
            rows.append(("block_lens_out", (batch * tokens,), dtype("int32")))
        return tuple(compact(name, shape, kind, self.device) for name, shape, kind in rows)

    @property
    def flops(self) -> int:
        """Both projections, and attention to full lists."""
        g, (batch, tokens) = self.geometry, self.extents
        keys = min(tokens, self.qsa.identity_bound)
        projections = 2 * g.d_model * (g.n_qkvg + g.h_q * g.d_head)
        return batch * tokens * (projections + 4 * keys * g.h_q * g.d_head)


SPARSE = Op(
    name="gated_attention_block_sparse_forward",
    package="cudnn-fe-attention",
    problem=GatedAttentionBlockSparse,
    reference="cudnn_fe.attention.gated_block.sparse_reference:forward",
    kernels=(),
    summary="The gated attention block with attention to listed blocks of four tokens, the caller's or an indexer's.",
    formula=r"O_t = \mathrm{softmax}(\alpha\, Q_t K_{L_t}^\top)\, V_{L_t}, \qquad "
    r"L_t = \{j \le t : \lfloor j/4 \rfloor \in \mathrm{list}_t \text{ or } j \ge 4 \lfloor (t+1)/4 \rfloor\}",
    tensors=(*INPUT_TENSORS, *SPARSE_TENSORS),
    example=SPARSE_EXAMPLE,
    source=SOURCE,
    notes=SPARSE_NOTES,
    results=("out", "lse", "index_k_raw", "index_k_compressed", "block_ids_out", "block_lens_out"),
    reference_on_gpu=True,
)
