"""The contracts of two small ops on lists of key ids: made global, and made compact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.dsa.operands import SOURCE
from cudnn_fe.attention.operands import compact, require_offsets
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_same_device
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["COMPACTIFY", "LOCAL_TO_GLOBAL", "Compactify", "LocalToGlobal"]

_LOCAL = ("int32", "int64")
_INDICES = ("int32",)


@dataclass(frozen=True)
class LocalToGlobal(Problem):
    """One conversion."""

    operands: ClassVar[tuple[str, ...]] = ("local_indices", "cu_seqlens_q", "cu_seqlens_k")
    optional: ClassVar[frozenset[str]] = frozenset({"cu_seqlens_q", "cu_seqlens_k"})

    local_indices: TensorSpec
    cu_seqlens_q: TensorSpec | None
    cu_seqlens_k: TensorSpec | None
    seqlen_k: int

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Option: ``seqlen_k``."""
        ids, first, second = operands
        assert ids is not None
        require_dtype(ids, *_LOCAL)
        if (first is None) != (second is None):
            missing = "cu_seqlens_q" if first is None else "cu_seqlens_k"
            raise ShapeError(missing, got="None", wanted="both offsets, or neither", remedy="pass cu_seqlens_q and _k")
        if first is None or second is None:
            ids.require_rank(3, "(B, Sq, K)")
        else:
            ids.require_rank(2, "(Tq, K)")
            for spec in (first, second):
                require_dtype(spec, *_INDICES)
            require_offsets(first)
            require_offsets(second, first)
            require_same_device(ids, first, second)
        length = options["seqlen_k"]
        if isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise OptionError(
                "seqlen_k", got=repr(length), wanted="an int, 0 or more", remedy="pass the keys per batch"
            )
        return cls(ids, first, second, length)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The ids in int32."""
        return (compact("indices", self.local_indices.shape, dtype("int32"), self.device),)

    @property
    def degenerate(self) -> bool:
        """No ids."""
        return 0 in self.local_indices.shape

    @property
    def flops(self) -> int:
        """None."""
        return 0


@dataclass(frozen=True)
class Compactify(Problem):
    """One partition."""

    operands: ClassVar[tuple[str, ...]] = ("indices",)
    output_count: ClassVar[int] = 2

    indices: TensorSpec

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call."""
        del options
        (ids,) = operands
        assert ids is not None
        require_dtype(ids, *_INDICES)
        if ids.ndim not in (2, 3):
            raise ShapeError(ids.name, got=str(ids.shape), wanted="(M, K) or (B, S, K)", remedy="reshape the lists")
        return cls(ids)

    @property
    def rows(self) -> int:
        """Lists."""
        count = 1
        for extent in self.indices.shape[:-1]:
            count *= extent
        return count

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The lists, flattened, and their lengths."""
        kind = dtype("int32")
        return (
            compact("indices", (self.rows, self.indices.shape[-1]), kind, self.device),
            compact("topk_length", (self.rows,), kind, self.device),
        )

    @property
    def degenerate(self) -> bool:
        """No slots."""
        return 0 in self.indices.shape

    @property
    def flops(self) -> int:
        """None."""
        return 0


_OFFSETS = (
    TensorRule("cu_seqlens_q", "(B+1,)", "any strides", _INDICES, "first query of each sequence, or None if padded"),
    TensorRule("cu_seqlens_k", "(B+1,)", "any strides", _INDICES, "first key of each sequence, or None"),
)

LOCAL_TO_GLOBAL = Op(
    name="dsa_local_to_global_forward",
    package="cudnn-fe-attention",
    autocast=False,
    problem=LocalToGlobal,
    reference="cudnn_fe.attention.dsa.indices.reference:local_to_global",
    kernels=(),
    summary="Ids of keys within a sequence, as ids among all keys.",
    formula=r"\mathrm{out} = \begin{cases} -1 & i < 0 \\ i + \mathrm{first}(b) & \text{else} \end{cases}",
    tensors=(
        TensorRule("local_indices", "(B, Sq, K) or (Tq, K)", "any strides", _LOCAL, "ids; negative ones are no slots"),
        *_OFFSETS,
        TensorRule("indices", "that of local_indices", "compact", _INDICES, "ids among all keys, or -1"),
    ),
    example="""\
import numpy as np
from cudnn_fe.attention import dsa_local_to_global_forward

ids = np.asarray([[[0, -5]], [[2, 1]]], np.int32)  # two batches, one query each
assert dsa_local_to_global_forward(ids, 10)["indices"].tolist() == [[[0, -1]], [[12, 11]]]
""",
    source=SOURCE,
    notes=(
        "The first key is `b * seqlen_k` for padded lists and `cu_seqlens_k[b]` for packed ones, whose sequence "
        "`cu_seqlens_q` tells; rows of no sequence give -1. Ids are not checked against the number of keys.",
    ),
    results=("indices",),
    reference_on_gpu=True,
)

COMPACTIFY = Op(
    name="dsa_compactify_forward",
    package="cudnn-fe-attention",
    autocast=False,
    problem=Compactify,
    reference="cudnn_fe.attention.dsa.indices.reference:compactify",
    kernels=(),
    summary="Lists of ids with those that count in front, in their order, and how many there are.",
    formula=r"\mathrm{indices} = (i_j : i_j \ge 0) \parallel (-1, \ldots), \qquad "
    r"\mathrm{length} = |\{ j : i_j \ge 0 \}|",
    tensors=(
        TensorRule("indices", "(M, K) or (B, S, K)", "any strides", _INDICES, "ids; negative ones are no slots"),
        TensorRule("topk_length", "(M,)", "compact", _INDICES, "ids that count, per list"),
    ),
    example="""\
import numpy as np
from cudnn_fe.attention import dsa_compactify_forward

ids, lengths = dsa_compactify_forward(np.asarray([[-1, 7, -3, 2], [-1, -1, -1, -1]], np.int32))
assert ids.tolist() == [[7, 2, -1, -1], [-1, -1, -1, -1]] and lengths.tolist() == [2, 0]
""",
    source=SOURCE,
    notes=("Lists (B, S, K) come back flattened to (B S, K). Ids are not checked against the number of keys.",),
    results=("indices", "topk_length"),
    reference_on_gpu=True,
)
