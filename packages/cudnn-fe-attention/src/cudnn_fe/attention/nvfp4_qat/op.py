"""The contract of the gradients of attention trained with NVFP4 operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cudnn_fe.attention.operands import compact, require_flag, require_streamable
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.op import Op, Problem, TensorRule
from cudnn_fe.core.require import require_dtype, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BACKWARD", "Nvfp4AttentionQat"]

_KINDS = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Nvfp4AttentionQat(Problem):
    """One call."""

    operands: ClassVar[tuple[str, ...]] = (
        "do_tensor",
        "q_tensor",
        "k_tensor",
        "v_tensor",
        "high_precision_o_tensor",
        "lse_tensor",
    )
    kept: ClassVar[frozenset[str]] = frozenset({"lse_tensor"})
    output_count: ClassVar[int] = 3

    do_tensor: TensorSpec
    q_tensor: TensorSpec
    k_tensor: TensorSpec
    v_tensor: TensorSpec
    high_precision_o_tensor: TensorSpec
    lse_tensor: TensorSpec
    is_causal: bool

    @classmethod
    def bind(cls, *operands: TensorSpec | None, **options: Any) -> Self:
        """Validate a call. Option: ``is_causal``."""
        do, q, k, v, o, lse = operands
        assert do is not None
        assert q is not None
        assert k is not None
        assert v is not None
        assert o is not None
        assert lse is not None
        q.require_rank(4, "(B, H, Sq, D)")
        k.require_rank(4, "(B, H, Skv, D)")
        require_shape(k, (*q.shape[:2], k.shape[2], q.shape[3]), "(B, H, Skv, D)")
        require_shape(v, k.shape, "(B, H, Skv, D)")
        for spec in (do, o):
            require_shape(spec, q.shape, "(B, H, Sq, D)")
        require_streamable(_KINDS, q, k, v, o, do)
        require_dtype(lse, "float32")
        require_shape(lse, q.shape[:3], "(B, H, Sq)")
        require_same_device(q, lse)
        require_flag(options["is_causal"], "is_causal")
        if options["is_causal"] and q.shape[2] != k.shape[2]:
            raise OptionError(
                "is_causal",
                got=f"True with {q.shape[2]} queries and {k.shape[2]} keys",
                wanted="as many queries as keys",
                remedy="pad the sequences, or leave it False",
            )
        return cls(do, q, k, v, o, lse, options["is_causal"])

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """dQ, dK and dV, compact."""
        pairs = (("dq_tensor", self.q_tensor), ("dk_tensor", self.k_tensor), ("dv_tensor", self.v_tensor))
        return tuple(compact(name, spec.shape, spec.dtype, self.device) for name, spec in pairs)

    @property
    def degenerate(self) -> bool:
        """No queries, keys, heads or channels."""
        return 0 in (*self.q_tensor.shape, *self.k_tensor.shape)

    @property
    def flops(self) -> int:
        """Five products for every query and key."""
        return 10 * self.q_tensor.size * self.k_tensor.shape[2]


_ROWS = "channels contiguous, any other strides"
EXAMPLE = """\
import numpy as np
from cudnn_fe.attention import nvfp4_attention_qat_backward

rng = np.random.default_rng(0)
do, q, k, v = (rng.standard_normal((1, 1, 1, 16), dtype=np.float32) for _ in range(4))
# One token: its probability is 1, which NVFP4 rounds to 6 times 0.171875, the E4M3 number next to 1/6.
v[...] = 3.0
lse = np.zeros((1, 1, 1), np.float32)  # with Q = 0 the only score is 0
grads = nvfp4_attention_qat_backward(do, np.zeros_like(q), k, v, v, lse)
np.testing.assert_allclose(grads["dv_tensor"], 6 * 0.171875 * do, rtol=1e-6)
"""
BACKWARD = Op(
    name="nvfp4_attention_qat_backward",
    package="cudnn-fe-attention",
    problem=Nvfp4AttentionQat,
    reference="cudnn_fe.attention.nvfp4_qat.reference:backward",
    kernels=(),
    summary="Straight-through gradients of attention whose Q, K, V and probabilities are rounded to NVFP4.",
    formula=r"P_{ij} = e^{\alpha\, \hat q_i \cdot \hat k_j - \mathrm{LSE}_i}, \qquad "
    r"dS_{ij} = P_{ij} \left( dO_i \cdot \hat v_j - O_i \cdot dO_i \right), \qquad "
    r"dQ = \alpha\, dS\, \hat K, \; dK = \alpha\, dS^\top \hat Q, \; dV = \hat P^\top dO, \qquad "
    r"\hat x = \mathrm{nvfp4}(x)",
    tensors=(
        TensorRule("do_tensor", "(B, H, Sq, D)", _ROWS, _KINDS, "gradient of the output"),
        TensorRule("q_tensor", "(B, H, Sq, D)", _ROWS, _KINDS, "queries, not quantised"),
        TensorRule("k_tensor", "(B, H, Skv, D)", _ROWS, _KINDS, "keys, not quantised"),
        TensorRule("v_tensor", "(B, H, Skv, D)", _ROWS, _KINDS, "values, not quantised"),
        TensorRule(
            "high_precision_o_tensor",
            "(B, H, Sq, D)",
            _ROWS,
            _KINDS,
            "attention of the quantised Q, K and V, before its probabilities are quantised",
        ),
        TensorRule("lse_tensor", "(B, H, Sq)", "any strides", ("float32",), "its natural log-sum-exp"),
        TensorRule("dq_tensor", "(B, H, Sq, D)", "compact", _KINDS, "gradient of Q"),
        TensorRule("dk_tensor", "(B, H, Skv, D)", "compact", _KINDS, "gradient of K"),
        TensorRule("dv_tensor", "(B, H, Skv, D)", "compact", _KINDS, "gradient of V"),
    ),
    example=EXAMPLE,
    source=(
        "Straight-through estimation of Bengio et al., Estimating or Propagating Gradients Through Stochastic Neurons "
        "(2013), arXiv 1308.3432, with NVFP4's format; names of cudnn-frontend 1.32's SDPA backward."
    ),
    notes=(
        "In `cudnn`: `nvfp4_attention_qat_backward` and the class `Nvfp4AttentionQatBackward`, also in "
        "`cudnn.sdpa.bwd` and `cudnn.sdpa.bwd.qat`. `backend`, `head_chunk` and `workspace_limit_bytes` are hints; no "
        "workspace is needed.",
        "NVFP4: groups of 16 along the channels, of P along the keys of each query. The scale is `max|x| / 6` and at "
        "least 2^-9, in E4M3, rounded to nearest even and saturating; codes are `x / scale` in E2M1, ties to even. "
        "There is no global scale.",
        "Hidden keys count as zeros in their group. dS is rounded to the dtype of Q; its factor comes after the sums.",
        "Accepted beyond the vendor: any head size, float16 and float32, any strides with contiguous channels, empty "
        "sequences, CPU, NumPy and JAX.",
    ),
    scalars=("softmax_scale",),
    results=("dq_tensor", "dk_tensor", "dv_tensor"),
    reference_on_gpu=True,
)
