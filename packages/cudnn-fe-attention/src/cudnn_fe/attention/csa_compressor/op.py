"""The contracts of the CSA compressor: forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.operands import FLOATS, compact, require_offsets, require_positive, require_same_dtype
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_one_of, require_rows, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BACKWARD", "FORWARD", "CsaCompressor", "CsaCompressorBackward"]


@dataclass(frozen=True)
class CsaCompressor(Problem):
    """One forward call."""

    operands: ClassVar[tuple[str, ...]] = ("kv", "score", "ape", "cu_seqlens", "cu_seqlens_comp")

    kv: TensorSpec
    score: TensorSpec
    ape: TensorSpec
    cu_seqlens: TensorSpec
    cu_seqlens_comp: TensorSpec
    ratio: int
    coff: int
    total_comp: int

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``ratio``, ``coff``, ``head_dim`` and ``total_comp``."""
        kv, score, ape, first, second = operands
        assert kv is not None
        assert score is not None
        assert ape is not None
        assert first is not None
        assert second is not None
        _check_tokens(kv, score, ape, first, second, options)
        total = options["total_comp"]
        if total != 0:
            require_positive(total, "total_comp")
        if total and kv.shape[0] < options["ratio"]:
            raise OptionError(
                "total_comp",
                got=f"{total} rows of {kv.shape[0]} tokens",
                wanted=f"0 with fewer than ratio = {options['ratio']} tokens",
                remedy="count seqlen // ratio rows per segment",
            )
        return cls(kv, score, ape, first, second, options["ratio"], options["coff"], total)

    @property
    def channels(self) -> int:
        """Width of an output row."""
        return self.kv.shape[1] // self.coff

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The compressed rows."""
        return (compact("out", (self.total_comp, self.channels), self.kv.dtype, self.device),)

    @property
    def degenerate(self) -> bool:
        """No tokens, no rows, or no channels."""
        return 0 in (*self.kv.shape, self.total_comp)

    @property
    def flops(self) -> int:
        """None that a tensor core does."""
        return 0


@dataclass(frozen=True)
class CsaCompressorBackward(Problem):
    """One backward call."""

    operands: ClassVar[tuple[str, ...]] = ("kv", "score", "ape", "cu_seqlens", "cu_seqlens_comp", "grad_out")
    output_count: ClassVar[int] = 3

    kv: TensorSpec
    score: TensorSpec
    ape: TensorSpec
    cu_seqlens: TensorSpec
    cu_seqlens_comp: TensorSpec
    grad_out: TensorSpec
    ratio: int
    coff: int

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``ratio``, ``coff`` and ``head_dim``."""
        kv, score, ape, first, second, grad = operands
        assert kv is not None
        assert score is not None
        assert ape is not None
        assert first is not None
        assert second is not None
        assert grad is not None
        _check_tokens(kv, score, ape, first, second, options)
        grad.require_rank(2, "(total_comp, d)")
        require_shape(grad, (grad.shape[0], kv.shape[1] // options["coff"]), "(total_comp, d)")
        require_same_dtype(kv, grad)
        require_same_device(kv, grad)
        require_rows(grad)
        return cls(kv, score, ape, first, second, grad, options["ratio"], options["coff"])

    @property
    def channels(self) -> int:
        """Width of an output row."""
        return self.kv.shape[1] // self.coff

    @property
    def total_comp(self) -> int:
        """Output rows."""
        return self.grad_out.shape[0]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Gradients of kv, score and ape."""
        pairs = (("grad_kv", self.kv), ("grad_score", self.score), ("grad_ape", self.ape))
        return tuple(compact(name, spec.shape, spec.dtype, self.device) for name, spec in pairs)

    @property
    def degenerate(self) -> bool:
        """No tokens, no rows, or no channels."""
        return 0 in (*self.kv.shape, self.total_comp)

    @property
    def flops(self) -> int:
        """None that a tensor core does."""
        return 0


def _check_tokens(
    kv: TensorSpec, score: TensorSpec, ape: TensorSpec, first: TensorSpec, second: TensorSpec, options: dict[str, Any]
) -> None:
    require_one_of(options["ratio"], "ratio", (2, 4, 128))
    require_one_of(options["coff"], "coff", (1, 2))
    kv.require_rank(2, "(T, coff d)")
    head_dim = options["head_dim"]
    if kv.shape[1] % options["coff"] or head_dim not in (None, kv.shape[1] // options["coff"]):
        wanted = f"coff * head_dim = {options['coff']} * {'d' if head_dim is None else head_dim}"
        raise ShapeError(kv.name, got=f"{kv.shape[1]} columns", wanted=wanted, remedy="fit head_dim and coff to kv")
    require_shape(score, kv.shape, "(T, coff d)")
    require_shape(ape, (options["ratio"], kv.shape[1]), "(ratio, coff d)")
    require_dtype(kv, *FLOATS)
    require_same_dtype(kv, score)
    require_dtype(ape, "float64" if kv.dtype == dtype("float64") else "float32")
    require_same_device(kv, score, ape, first, second)
    for spec in (kv, score, ape):
        require_rows(spec)
    for spec in (first, second):
        require_dtype(spec, "int32")
    require_offsets(first)
    require_offsets(second, first)


_ROWS = "channels contiguous"
_TOKENS = (
    TensorRule(
        "kv", "(T, coff d)", _ROWS, FLOATS, "packed tokens; with coff 2: as part of the block before, and as own"
    ),
    TensorRule("score", "(T, coff d)", _ROWS, FLOATS, "their scores, likewise"),
    TensorRule("ape", "(ratio, coff d)", _ROWS, ("float32", "float64"), "bias of the scores by place in the block"),
    TensorRule("cu_seqlens", "(B+1,)", "any strides", ("int32",), "first token of each segment"),
    TensorRule("cu_seqlens_comp", "(B+1,)", "any strides", ("int32",), "first output row of each segment"),
)
_SOURCE = (
    "The key-value compressor of DeepSeek's compressed sparse attention; conventions of cudnn-frontend 1.32's CSA."
)
_INPUTS = """\
import numpy as np
from cudnn_fe.attention import csa_compressor_backward, csa_compressor_forward

rng = np.random.default_rng(0)
kv, score = (rng.standard_normal((9, 16), dtype=np.float32) for _ in range(2))  # 9 tokens, two halves of 8 channels
ape, tokens, rows = np.zeros((4, 16), np.float32), np.asarray([0, 9], np.int32), np.asarray([0, 2], np.int32)
out = csa_compressor_forward(kv, score, ape, tokens, rows)["out"]
"""

FORWARD = Op(
    name="csa_compressor_forward",
    package="cudnn-fe-attention",
    autocast=False,
    problem=CsaCompressor,
    reference="cudnn_fe.attention.csa_compressor.reference:forward",
    kernels=(),
    summary="Compresses every `ratio` tokens of a segment to one row by a softmax per channel.",
    formula=r"\mathrm{out}_{oj} = \sum_k p_{okj}\, \mathrm{kv}_{t(o,k),\,c(k,j)}, \qquad "
    r"p_{okj} = \mathrm{softmax}_k\big(\mathrm{score}_{t(o,k),\,c(k,j)} + \mathrm{ape}_{k \bmod r,\,c(k,j)}\big)",
    tensors=(*_TOKENS, TensorRule("out", "(total_comp, d)", "compact", FLOATS, "compressed rows")),
    example=_INPUTS
    + """\
p = np.exp(score[:4, 8:])  # the first block has none before it, and reads the second half of the channels
np.testing.assert_allclose(out[0], (p * kv[:4, 8:]).sum(0) / p.sum(0), rtol=1e-5, atol=1e-6)
""",
    source=_SOURCE,
    notes=(
        "With `coff=2` a row sees its own block through the second half of the columns and the block before through "
        "the first half. A segment's first row has no block before it. Tail tokens are ignored.",
        "A NaN among a row's scores makes the channel NaN, and so do scores of minus infinity alone.",
        "Rows from `cu_seqlens_comp[B]` on are padding: zeros. `total_comp=None` reads that offset on the host.",
        "Sums run over the slots in order in float32, and the result is rounded once.",
        "Accepted beyond the vendor: any width with ratio 128, float32 and float64, CPU, NumPy and JAX.",
    ),
    results=("out",),
    legacy=("csa_compressor_forward_wrapper", "CSACompressorForward"),
    gradient="cudnn_fe.attention.csa_compressor.gradient:GRADIENT",
    reference_on_gpu=True,
)

BACKWARD = Op(
    name="csa_compressor_backward",
    package="cudnn-fe-attention",
    autocast=False,
    problem=CsaCompressorBackward,
    reference="cudnn_fe.attention.csa_compressor.reference:backward",
    kernels=(),
    summary="Gradients of the CSA compressor.",
    formula=r"d\mathrm{kv} = g\, p_k, \qquad d\mathrm{score} = p_k \Big( g\, \mathrm{kv}_k - "
    r"\sum_l g\, \mathrm{kv}_l\, p_l \Big), \qquad d\mathrm{ape} = \sum_o d\mathrm{score}",
    tensors=(
        *_TOKENS,
        TensorRule("grad_out", "(total_comp, d)", _ROWS, FLOATS, "gradient of the rows"),
        TensorRule("grad_kv", "(T, coff d)", "compact", FLOATS, "gradient of kv"),
        TensorRule("grad_score", "(T, coff d)", "compact", FLOATS, "gradient of score"),
        TensorRule("grad_ape", "(ratio, coff d)", "compact", ("float32", "float64"), "gradient of ape"),
    ),
    example=_INPUTS
    + """\
grads = csa_compressor_backward(kv, score, ape, tokens, rows, np.ones_like(out))
assert not grads["grad_kv"][8].any()  # the ninth token is in no block
np.testing.assert_allclose(grads["grad_kv"].sum(), out.size, rtol=1e-5)  # every row's weights sum to 1
""",
    source=_SOURCE,
    notes=(
        "Token columns that no row reads get exactly 0: tail tokens, tokens of no segment, segments shorter than "
        "`ratio`, and with `coff=2` the first half of each segment's last full block. Padding rows of `grad_out` are "
        "not read.",
        "The gradient of the bias is summed from unrounded float32 values, bit-equal from run to run, whether "
        "`deterministic` or not; the class needs no workspace and no buffer of zeros.",
    ),
    results=("grad_kv", "grad_score", "grad_ape"),
    legacy=("csa_compressor_backward_wrapper", "CSACompressorBackward"),
    reference_on_gpu=True,
)
