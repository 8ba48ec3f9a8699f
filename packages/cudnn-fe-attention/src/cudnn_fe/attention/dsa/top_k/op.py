"""The contract of the top-k of rows of scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.dsa.operands import SOURCE
from cudnn_fe.attention.operands import FLOATS, compact, require_flag, require_positive
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError, ShapeError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_one_of, require_same_device
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["FORWARD", "IndexerTopK", "require_top_k"]

_MOST = 2048


def require_top_k(value: Any) -> None:
    """Raises OptionError unless ``top_k`` is an int in 1..2048."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MOST:
        raise OptionError("top_k", got=repr(value), wanted=f"an int in 1..{_MOST}", remedy="choose fewer keys")


@dataclass(frozen=True)
class IndexerTopK(Problem):
    """One call."""

    operands: ClassVar[tuple[str, ...]] = ("input_values", "seq_lens")
    output_count: ClassVar[int] = 0

    input_values: TensorSpec
    seq_lens: TensorSpec
    top_k: int
    next_n: int
    return_val: bool
    tie_break: int

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Options: ``top_k``, ``next_n``, ``return_val``, ``tie_break``, and two hints."""
        scores, lengths = operands
        assert scores is not None
        assert lengths is not None
        require_dtype(scores, *FLOATS)
        require_dtype(lengths, "int32")
        scores.require_rank(2, "(rows, columns)")
        lengths.require_rank(1, "(batch,)")
        require_top_k(options["top_k"])
        require_positive(options["next_n"], "next_n")
        require_one_of(options["tie_break"], "tie_break", (0, 1, 2))
        for name in ("return_val", "deterministic"):
            require_flag(options[name], name)
        require_positive(options["num_copy_bits"], "num_copy_bits")
        if scores.shape[0] != lengths.shape[0] * options["next_n"]:
            raise ShapeError(
                scores.name,
                got=f"{scores.shape[0]} rows",
                wanted=f"batch * next_n = {lengths.shape[0]} * {options['next_n']}",
                remedy="give every sequence next_n rows",
            )
        require_same_device(scores, lengths)
        return cls(scores, lengths, options["top_k"], options["next_n"], options["return_val"], options["tie_break"])

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The columns, and their scores where asked for."""
        shape = (self.input_values.shape[0], self.top_k)
        columns = compact("indices", shape, dtype("int32"), self.device)
        if not self.return_val:
            return (columns,)
        return columns, compact("values", shape, self.input_values.dtype, self.device)

    @property
    def degenerate(self) -> bool:
        """No rows or no columns."""
        return 0 in self.input_values.shape

    @property
    def flops(self) -> int:
        """None that a tensor core does."""
        return 0


FORWARD = Op(
    name="dsa_indexer_top_k_forward",
    package="cudnn-fe-attention",
    autocast=False,
    problem=IndexerTopK,
    reference="cudnn_fe.attention.dsa.top_k.reference:top_k",
    kernels=(),
    summary="The columns of the largest scores of every row, as far as the row's length goes.",
    formula=r"I_r = \operatorname{top}_k \{ x_{rc} : c < \ell_r \}, \qquad "
    r"\ell_r = \mathrm{len}_{\lfloor r / n \rfloor} - n + (r \bmod n) + 1",
    tensors=(
        TensorRule("input_values", "(rows, columns)", "any strides", FLOATS, "the scores"),
        TensorRule("seq_lens", "(batch,)", "any strides", ("int32",), "length of every `next_n` rows"),
        TensorRule("indices", "(rows, top_k)", "compact", ("int32",), "columns, ascending; -1 where there are fewer"),
        TensorRule("values", "(rows, top_k)", "compact", FLOATS, "their scores; minus infinity where there are fewer"),
    ),
    example="""\
import numpy as np
from cudnn_fe.attention import dsa_indexer_top_k_forward

scores = np.asarray([[0.5, 2.0, 1.0, 9.0]], np.float32)
indices, values = dsa_indexer_top_k_forward(scores, np.asarray([3], np.int32), 2)
assert indices.tolist() == [[1, 2]] and values.tolist() == [[2.0, 1.0]]
""",
    source=SOURCE,
    notes=(
        "Scores are compared as floats, +0 above -0; a NaN counts as beyond the infinity of its sign. Among equals the "
        "smaller column is taken, with `tie_break=2` the larger one.",
        "Columns come ascending, whether `deterministic` or not, and results are bit-equal from run to run.",
        "Columns at and beyond the row's length are not read. Lengths below 1 give an empty row.",
        "Accepted beyond the vendor: no rows or columns, any strides, float64, CPU, NumPy and JAX.",
    ),
    results=("indices", "values"),
    reference_on_gpu=True,
)
