"""The contract of aligned HCA's gradients: a window of tokens and compressed keys, laid out for context parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.operands import FLOATS, STATISTICS, compact, require_same_dtype, require_statistic
from cudnn_fe.core.errors import NotYetSupportedError, OptionError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_one_of, require_rows, require_same_device
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BACKWARD", "CP_SIZES", "GROUP", "AlignedHcaBackward"]

GROUP = 128  # tokens of a window, and tokens that a compressed key stands for
CP_SIZES = (4, 8, 16)


def _require(spec: TensorSpec, shape: tuple[int, ...], words: str) -> None:
    if spec.shape != shape:
        raise NotYetSupportedError(
            spec.name, got=str(spec.shape), wanted=f"{words} = {shape}", remedy="lay the operand out as documented"
        )


@dataclass(frozen=True)
class AlignedHcaBackward(Problem):
    """One call."""

    operands: ClassVar[tuple[str, ...]] = ("q", "kv", "out", "dout", "lse", "attn_sink")
    kept: ClassVar[frozenset[str]] = frozenset({"lse", "attn_sink"})
    output_count: ClassVar[int] = 3

    q: TensorSpec
    kv: TensorSpec
    out: TensorSpec
    dout: TensorSpec
    lse: TensorSpec
    attn_sink: TensorSpec
    cp_rank: int
    cp_size: int

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``cp_rank`` and ``cp_size``."""
        q, kv, out, dout, lse, sink = operands
        assert q is not None
        assert kv is not None
        assert out is not None
        assert dout is not None
        assert lse is not None
        assert sink is not None
        size, rank = options["cp_size"], options["cp_rank"]
        require_one_of(size, "cp_size", CP_SIZES)
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < size:
            raise OptionError("cp_rank", got=repr(rank), wanted=f"an int in 0..{size - 1}", remedy="pass this rank")
        if q.ndim != 3 or q.shape[0] % GROUP:
            raise NotYetSupportedError(
                "q", got=str(q.shape), wanted=f"(L, H, D), L a multiple of {GROUP}", remedy="pad the chunk"
            )
        tokens, heads, channels = q.shape
        rows = tokens + GROUP + size * (tokens // GROUP + 1)
        _require(kv, (rows, channels), "(L + 128 + cp_size * (L / 128 + 1), D)")
        for spec in (out, dout):
            _require(spec, q.shape, "(L, H, D)")
        require_dtype(q, *FLOATS)
        require_same_dtype(q, kv, out, dout)
        require_same_device(q, kv, out, dout)
        for spec in (q, kv, out, dout):
            require_rows(spec)
        _require(lse, (tokens, heads), "(L, H)")
        _require(sink, (heads,), "(H,)")
        for spec in (lse, sink):
            require_statistic(spec, spec.shape, "", q)
        return cls(q, kv, out, dout, lse, sink, rank, size)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Gradients of the queries, the rows and the sinks."""
        return (
            compact("dq", self.q.shape, self.q.dtype, self.device),
            compact("dkv", self.kv.shape, self.q.dtype, self.device),
            compact("d_sink", self.attn_sink.shape, self.attn_sink.dtype, self.device),
        )

    @property
    def degenerate(self) -> bool:
        """No tokens, heads or channels."""
        return 0 in self.q.shape

    @property
    def flops(self) -> int:
        """Five products over the window, and over half of the compressed keys."""
        tokens, heads, channels = self.q.shape
        compressed = self.cp_size * (tokens // GROUP)
        return 10 * tokens * heads * channels * (GROUP + compressed // 2)


_ROWS, _ANY = "channels contiguous", "any strides"

BACKWARD = Op(
    name="aligned_hca_backward",
    package="cudnn-fe-attention",
    problem=AlignedHcaBackward,
    reference="cudnn_fe.attention.hca.reference:backward",
    kernels=(),
    summary="Gradients of attention over a window of 128 tokens and every 128 tokens' compressed key before it.",
    formula=r"P = e^{\alpha q \cdot k - L}, \; L = \ln(e^{\mathrm{LSE}} + e^{\sigma}), \qquad "
    r"dS = \alpha P (dO \cdot v - O \cdot dO), \qquad "
    r"dQ = dS\, K, \; dKV = dS^\top Q + P^\top dO, \; d\sigma_h = -\sum_t (O \cdot dO)_{th}\, e^{\sigma_h - L}",
    tensors=(
        TensorRule("q", "(L, H, D)", _ROWS, FLOATS, "queries of this rank's chunk"),
        TensorRule("kv", "(L + 128 + cp_size (L / 128 + 1), D)", _ROWS, FLOATS, "rows: keys and values at once"),
        TensorRule("out", "(L, H, D)", _ROWS, FLOATS, "the forward's output"),
        TensorRule("dout", "(L, H, D)", _ROWS, FLOATS, "its gradient"),
        TensorRule("lse", "(L, H)", _ANY, STATISTICS, "natural log-sum-exp of the forward, without the sink"),
        TensorRule("attn_sink", "(H,)", _ANY, STATISTICS, "a score that takes weight and gives no value"),
        TensorRule("dq", "(L, H, D)", "compact", FLOATS, "gradient of the queries"),
        TensorRule("dkv", "that of kv", "compact", FLOATS, "gradient of the rows; 0 where none is seen"),
        TensorRule("d_sink", "(H,)", "compact", STATISTICS, "gradient of the sinks"),
    ),
    example="""\
import numpy as np
from cudnn_fe.attention import aligned_hca_backward

rng = np.random.default_rng(0)
q, out, dout = (rng.standard_normal((128, 1, 8), dtype=np.float32) for _ in range(3))
kv = rng.standard_normal((128 + 128 + 4 * 2, 8), dtype=np.float32)
kv[:128] = np.nan  # rank 0 has no tokens before its own
lse, sink = np.full((128, 1), 5, np.float32), np.zeros(1, np.float32)
grads = aligned_hca_backward(q, kv, out, dout, lse, sink, cp_rank=0, cp_size=4, softmax_scale=0.1)
assert not grads["dkv"][:128].any() and grads["dkv"][256].any()  # the last token sees the first compressed key
""",
    source="DeepSeek's hybrid compressed attention in a fixed layout for context parallelism; conventions of "
    "cudnn-frontend 1.32's aligned HCA.",
    notes=(
        "Rows of `kv`: the 128 tokens before the chunk, its L tokens, and the compressed keys of all ranks. Group c of "
        "rank `o = c // G`, with `G = L / 128`, stands at `L + 128 + o (G + 1) + c % G + (o > 0)`. Slot G of rank 0 "
        "and slot 0 of the others are not used.",
        "The query at token p sees tokens p-127..p, those that there are, and compressed keys `c < (p + 1) // 128`.",
        "Rows that no query sees are not read and get 0. A sink of plus infinity takes all weight.",
        "P and dS are rounded to the dtype of Q before they multiply; sums are float32 and cast once. Bit-equal from "
        "run to run.",
        "Accepted beyond the vendor: any number of heads and channels, any multiple of 128 tokens, float16, float32 "
        "and float64, strides of rows, CPU, NumPy and JAX; no warm-up is needed before a graph is captured.",
    ),
    scalars=("softmax_scale",),
    results=("dq", "dkv", "d_sink"),
    legacy=("aligned_hca_backward_wrapper", "AlignedHCABackward"),
    reference_on_gpu=True,
)
