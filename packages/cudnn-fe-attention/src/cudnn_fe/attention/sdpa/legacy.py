"""The gradients of softmax attention under the names of cudnn-frontend 1.32."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

from array_api_compat import array_namespace

from cudnn_fe.attention.operands import check_samples, softmax_factor
from cudnn_fe.attention.sdpa import sdpa_backward
from cudnn_fe.attention.sdpa.op import BACKWARD
from cudnn_fe.core.class_api import OpClass
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotYetSupportedError, OptionError
from cudnn_fe.core.legacy import LegacyFunction, make_function
from cudnn_fe.core.op import Op, Problem
from cudnn_fe.core.require import require_one_of
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = [
    "SdpaBackward",
    "SdpaBwdDsl",
    "SdpaBwdDslSm80",
    "SdpaBwdDslSm100D256",
    "SdpaBwdDslSm107",
    "SdpaBwdDslSm107Fp8",
    "SdpaBwdDslSm107Mxfp8",
    "SdpaBwdDslSm120",
    "sdpa_bwd_wrapper_dsl_sm120",
    "sdpa_bwd_wrapper_sm80",
]

Bound = tuple[Problem, tuple[TensorSpec | None, ...], tuple[float, ...]]

# Samples by the names that messages use.
_INPUTS = {"q": "q_tensor", "k": "k_tensor", "v": "v_tensor", "o": "o_tensor", "do": "do_tensor"}
_MORE = {"stats": "stats_tensor", "sink": "sink_token", "bias": "bias_tensor"}
_GRADIENTS = {"dq": "dq_tensor", "dk": "dk_tensor", "dv": "dv_tensor", "dbias": "dbias_tensor", "dsink": "dsink_tensor"}
_BAND = ("is_causal", "causal_bottom_right", "window_size_left", "window_size_right", "deterministic")


def _bound(op: Op, given: Mapping[str, Any]) -> Bound:
    samples = {
        name: None if given[f"sample_{short}"] is None else spec_of(given[f"sample_{short}"], name)
        for short, name in {**_INPUTS, **_MORE, **_GRADIENTS}.items()
    }
    for sink, gradient in (("sink_token", "dsink_tensor"), ("bias_tensor", "dbias_tensor")):
        if (samples[sink] is None) != (samples[gradient] is None):
            missing, other = (gradient, sink) if samples[gradient] is None else (sink, gradient)
            raise OptionError(missing, got="None", wanted=f"a sample beside that of {other}", remedy="pass both")
    if given["thd"]:
        raise NotYetSupportedError(
            "thd", got="True", wanted="padded sequences", remedy="use sdpa_backward with cumulative lengths"
        )
    q = samples["q_tensor"]
    assert q is not None
    for name in ("seq_q_lens", "seq_kv_lens"):
        present = given[f"{name}_present"]
        samples[name] = TensorSpec(q.shape[:1], (1,), dtype("int32"), q.device, 16, name) if present else None
    operands = (samples.get(name) for name in op.problem.operands)
    bias = samples["dbias_tensor"]
    options = {name: given[name] for name in _BAND} | {"dbias_dtype": None if bias is None else bias.dtype.name}
    problem = op.bind(*operands, **options)
    outputs = tuple(samples[spec.name] for spec in problem.outputs)
    return (
        problem,
        check_samples(problem, outputs),
        (softmax_factor(given["sample_q"], given["scale_softmax"], "scale_softmax"),),
    )


class SdpaBwdDsl(OpClass, ABC):
    """What the classes of all architectures share: the constructor, and how ``execute`` is called.

    Args:
        sample_q: A tensor like the queries (B, Hq, Sq, D); the others likewise.
        sample_k: Keys.
        sample_v: Values.
        sample_o: The forward's output.
        sample_do: Its gradient.
        sample_stats: The log-sum-exp (B, Hq, Sq, 1).
        sample_dq: Gradient of Q, in any layout with contiguous channels.
        sample_dk: Gradient of K.
        sample_dv: Gradient of V.
        sample_sink: The sink (1, Hq, 1, 1), where there is one.
        sample_dsink: Its gradient.
        sample_bias: The bias, where there is one.
        sample_dbias: Its gradient, in the dtype of Q or float32.
        is_causal: As in `sdpa_backward`, and so are the next six.
        causal_bottom_right: Where the diagonal ends.
        window_size_left: Keys before the diagonal.
        window_size_right: Keys after it.
        deterministic: Whether results must be bit-equal from run to run.
        scale_softmax: Factor of the scores.
        tile_m: Hint: queries per tile, 32, 64 or 128.
        tile_n: Hint: keys per tile, 64 or 128.
        seq_kv_lens_present: Whether ``execute`` gets lengths of keys.
        seq_q_lens_present: Whether it gets lengths of queries.
        thd: Must be False: packed sequences are served by the function.
        max_total_seq_len_q: Of packed sequences alone.
        max_total_seq_len_kv: Of packed sequences alone.
        thd_stats_token_major: Of packed sequences alone.
        thd_stats_head_stride: Of packed sequences alone.
    """

    op = BACKWARD
    _counts = 12, 5
    _bind = staticmethod(partial(_bound, BACKWARD))

    def __init__(
        self,
        sample_q: Any,
        sample_k: Any,
        sample_v: Any,
        sample_o: Any,
        sample_do: Any,
        sample_stats: Any,
        sample_dq: Any,
        sample_dk: Any,
        sample_dv: Any,
        sample_sink: Any = None,
        sample_dsink: Any = None,
        sample_bias: Any = None,
        sample_dbias: Any = None,
        is_causal: bool = False,
        causal_bottom_right: bool = False,
        window_size_left: int | None = None,
        window_size_right: int | None = None,
        deterministic: bool = False,
        scale_softmax: float | None = None,
        tile_m: int | None = None,
        tile_n: int | None = None,
        seq_kv_lens_present: bool = False,
        seq_q_lens_present: bool = False,
        thd: bool = False,
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
        thd_stats_token_major: bool = False,
        thd_stats_head_stride: int | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        require_one_of(tile_m, "tile_m", (None, 0, 32, 64, 128))
        require_one_of(tile_n, "tile_n", (None, 0, 64, 128))
        self._set_up(given)

    @abstractmethod
    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Launch into the caller's buffers."""


class SdpaBackward(SdpaBwdDsl):
    """Class API of `sdpa_backward`: samples in, then ``check_support``, ``compile``, ``execute``."""

    def execute(
        self,
        q_tensor: Any,
        k_tensor: Any,
        v_tensor: Any,
        o_tensor: Any,
        do_tensor: Any,
        stats_tensor: Any,
        dq_tensor: Any,
        dk_tensor: Any,
        dv_tensor: Any,
        scale_softmax: float | None = None,
        workspace: Any = None,
        current_stream: Any = None,
        seq_q_lens: Any = None,
        seq_kv_lens: Any = None,
        sink_tensor: Any = None,
        dsink_tensor: Any = None,
        bias_tensor: Any = None,
        dbias_tensor: Any = None,
    ) -> None:
        """Launch into the given outputs on ``current_stream``; a scale of None is the constructor's."""
        run = self._run or self._require_compiled()
        self._check_workspace(workspace)
        scale = self._scalars[0] if scale_softmax is None else softmax_factor(q_tensor, scale_softmax, "scale_softmax")
        operands = q_tensor, k_tensor, v_tensor, o_tensor, do_tensor, stats_tensor
        inputs = (*operands, seq_q_lens, seq_kv_lens, sink_tensor, bias_tensor, None, None)
        run(*inputs, dq_tensor, dk_tensor, dv_tensor, dbias_tensor, dsink_tensor, scale, current_stream)


SdpaBwdDslSm120 = SdpaBwdDslSm107 = SdpaBwdDslSm100D256 = SdpaBackward


class SdpaBwdDslSm80(SdpaBackward):
    """`SdpaBackward` with the further parameters of the vendor's class for SM80.

    Args:
        args: As in `SdpaBackward`.
        has_bias: Hint: the samples say it.
        bias_is_fp32: Likewise.
        bias_batch: Likewise.
        has_rope: Must be False.
        rope_max_s: Rows of the rotary table, without effect.
        thd_ragged_offsets: Must be None.
        kwargs: As in `SdpaBackward`.
    """

    def __init__(
        self,
        *args: Any,
        has_bias: bool = False,
        bias_is_fp32: bool = True,
        bias_batch: int = 1,
        has_rope: bool = False,
        rope_max_s: int = 0,
        thd_ragged_offsets: Any = None,
        **kwargs: Any,
    ) -> None:
        del has_bias, bias_is_fp32, bias_batch, rope_max_s
        _refuse_rope(has_rope or None)
        if thd_ragged_offsets:
            raise NotYetSupportedError(
                "thd_ragged_offsets", got="offsets", wanted="None", remedy="use sdpa_backward with cumulative lengths"
            )
        super().__init__(*args, **kwargs)


class SdpaBwdDslSm107Fp8(SdpaBwdDsl):
    """The vendor's FP8 gradients, which are not served: making one says so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotYetSupportedError(
            type(self).__name__,
            got="FP8 operands",
            wanted="float16 or bfloat16",
            remedy="dequantise, use SdpaBackward",
        )

    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Nothing gets here: there are no objects of this class."""


class SdpaBwdDslSm107Mxfp8(SdpaBwdDslSm107Fp8):
    """Likewise with scales of blocks."""


def _refuse_rope(given: Any) -> None:
    if given is not None:
        raise NotYetSupportedError(
            "rope_freqs",
            got="rotary embeddings inside the kernel",
            wanted="None",
            remedy="rotate Q and K before the forward, and turn their gradients back",
        )


sdpa_bwd_wrapper_dsl_sm120 = make_function(
    LegacyFunction(
        "sdpa_bwd_wrapper_dsl_sm120",
        sdpa_backward,
        """q_tensor, k_tensor, v_tensor, o_tensor, do_tensor, stats_tensor, is_causal=False, causal_bottom_right=False,
        window_size_left=None, window_size_right=None, deterministic=False, scale_softmax=None, seq_q_lens=None,
        seq_kv_lens=None, sink_token=None, bias_tensor=None""",
    ),
    __name__,
)


def sdpa_bwd_wrapper_sm80(
    q_tensor: Any,
    k_tensor: Any,
    v_tensor: Any,
    o_tensor: Any,
    do_tensor: Any,
    lse_tensor: Any,
    is_causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    scale_softmax: float | None = None,
    causal_bottom_right: bool = False,
    current_stream: Any = None,
    seq_kv_lens: Any = None,
    seq_len_q: Any = None,
    bias_tensor: Any = None,
    sinks: Any = None,
    rope_freqs: Any = None,
    cum_seqlen_q_tensor: Any = None,
    cum_seqlen_k_tensor: Any = None,
    deterministic: bool = False,
    max_s_kv: int | None = None,
    max_s_q: int | None = None,
) -> TupleDict:
    """`sdpa_backward` with the parameters of the vendor's function for SM80.

    Args:
        q_tensor: Queries (B, Hq, Sq, D), or packed (1, T, Hq, D) with cumulative lengths; the others likewise.
        k_tensor: Keys.
        v_tensor: Values.
        o_tensor: The forward's output.
        do_tensor: Its gradient.
        lse_tensor: The log-sum-exp (B, Hq, Sq) or (B, Hq, Sq, 1), packed (1, Hq, T).
        is_causal: Whether queries see keys up to the diagonal only.
        window_size: Keys before and after the diagonal; -1 is no bound.
        scale_softmax: Factor of the scores.
        causal_bottom_right: Where the diagonal ends.
        current_stream: Launch stream for CUDA tensors.
        seq_kv_lens: Keys of each sequence.
        seq_len_q: Queries of each sequence.
        bias_tensor: Added to the scaled scores.
        sinks: Logits (Hq,).
        rope_freqs: Must be None.
        cum_seqlen_q_tensor: First query of each packed sequence.
        cum_seqlen_k_tensor: First key of each packed sequence.
        deterministic: Whether results must be bit-equal from run to run.
        max_s_kv: Hint, of packed sequences alone.
        max_s_q: Hint, of packed sequences alone.

    Returns:
        ``dq_tensor``, ``dk_tensor`` and ``dv_tensor`` like the operands; then ``dbias_tensor`` and ``dsink_tensor``
        (Hq,) where there are such operands.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError, NotYetSupportedError: As the message says.
    """
    _refuse_rope(rope_freqs)
    packed = cum_seqlen_q_tensor is not None
    for name, hint in (("max_s_kv", max_s_kv), ("max_s_q", max_s_q)):
        if hint is not None and not packed:
            raise OptionError(name, got=repr(hint), wanted="None without cumulative lengths", remedy="leave it out")
    for name, given in (("seq_kv_lens", seq_kv_lens), ("seq_len_q", seq_len_q)):
        if packed and given is not None:
            raise NotYetSupportedError(name, got="lengths of packed sequences", wanted="None", remedy="leave it out")
    left, right = (None if bound is None or bound < 0 else bound for bound in window_size)
    q, k, v, o, do = (_turned(x) if packed else x for x in (q_tensor, k_tensor, v_tensor, o_tensor, do_tensor))
    results = sdpa_backward(
        q,
        k,
        v,
        o,
        do,
        lse_tensor if lse_tensor.ndim == 4 else lse_tensor[..., None],
        is_causal=is_causal or right is not None,
        causal_bottom_right=causal_bottom_right,
        window_size_left=left,
        window_size_right=right,
        deterministic=deterministic,
        scale_softmax=scale_softmax,
        seq_q_lens=seq_len_q,
        seq_kv_lens=seq_kv_lens,
        sink_token=None if sinks is None else sinks.reshape(1, -1, 1, 1),
        bias_tensor=bias_tensor,
        cum_seqlen_q_tensor=cum_seqlen_q_tensor,
        cum_seqlen_k_tensor=cum_seqlen_k_tensor,
        stream=current_stream,
    )
    if packed:
        results = TupleDict(
            {name: _turned(x) if x.ndim == 4 and name != "dsink_tensor" else x for name, x in results.items()}
        )
    if sinks is not None:
        results = TupleDict({**dict(results.items()), "dsink_tensor": results["dsink_tensor"].reshape(-1)})
    return results


def _turned(x: Any) -> Any:
    """(1, T, H, D) as (1, H, T, D), and back, without moving data."""
    return array_namespace(x).permute_dims(x, (0, 2, 1, 3))
