"""What the gradients of softmax attention refuse, and what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_fe import attention
from cudnn_fe.attention.sdpa import legacy

# Arguments are spread from tables here, which the type checker cannot count.
sdpa_backward: Any = attention.sdpa_backward
sdpa_bwd_wrapper_sm80: Any = legacy.sdpa_bwd_wrapper_sm80

_X, _S = np.ones((2, 2, 4, 8), np.float32), np.zeros((2, 2, 4, 1), np.float32)
_L, _E = np.full(2, 4, np.int32), np.asarray([0, 4], np.int32)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"q_tensor": _X[0]}, ValueError, "q_tensor: got shape"),
        ({"k_tensor": _X[:1]}, ValueError, "k_tensor: got"),
        ({"v_tensor": _X[:, :, :2]}, ValueError, "v_tensor: got"),
        ({"o_tensor": _X[..., :4]}, ValueError, "o_tensor: got"),
        ({"do_tensor": _X.astype(np.float16)}, TypeError, "do_tensor: got float16"),
        ({"stats_tensor": _S[..., 0]}, ValueError, "stats_tensor: got"),
        ({"stats_tensor": _S.astype(np.float16)}, TypeError, "stats_tensor: got float16"),
        ({"is_causal": 1}, TypeError, "is_causal: got 1"),
        ({"causal_bottom_right": True}, ValueError, "causal_bottom_right: got True, wanted is_causal=True"),
        ({"window_size_right": 3}, ValueError, "window_size_right: got 3, wanted is_causal=True"),
        ({"window_size_left": -1}, ValueError, "window_size_left: got -1"),
        ({"window_size_left": True}, ValueError, "window_size_left: got True"),
        ({"scale_softmax": float("inf")}, ValueError, "scale_softmax: got inf"),
        ({"seq_q_lens": _L}, ValueError, "seq_kv_lens: got None"),
        ({"seq_kv_lens": _L[:1]}, ValueError, "seq_kv_lens: got"),
        ({"seq_kv_lens": _L.astype(np.int64)}, TypeError, "seq_kv_lens: got int64"),
        ({"sink_token": np.zeros((2, 1, 1), np.float32)}, ValueError, "sink_token: got"),
        ({"bias_tensor": np.zeros((2, 2, 4, 5), np.float32)}, ValueError, "bias_tensor: got"),
        ({"bias_tensor": np.zeros((2, 2, 4, 4), np.float16)}, TypeError, "bias_tensor: got float16"),
        ({"cum_seqlen_q_tensor": _E}, ValueError, "cum_seqlen_k_tensor: got None"),
        ({"cum_seqlen_q_tensor": _E, "cum_seqlen_k_tensor": _E}, ValueError, r"q_tensor: got.*packed"),
    ],
)
def test_refusals(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    good = dict.fromkeys(("q_tensor", "k_tensor", "v_tensor", "o_tensor", "do_tensor"), _X)
    with pytest.raises(kind, match=message):
        sdpa_backward(**{**good, "stats_tensor": _S, **change})


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"rope_freqs": _X}, NotImplementedError, "rope_freqs: got rotary"),
        ({"max_s_q": 3}, ValueError, "max_s_q: got 3, wanted None without"),
        ({"cum_seqlen_q_tensor": _E, "seq_len_q": _L}, NotImplementedError, "seq_len_q: got lengths"),
        (
            {"cum_seqlen_q_tensor": _E, "cum_seqlen_k_tensor": _E, "bias_tensor": np.zeros((1, 2, 4, 4), np.float32)},
            NotImplementedError,
            "bias_tensor: got a bias of packed",
        ),
    ],
)
def test_sibling_refuses(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    x = _X[:1] if "cum_seqlen_q_tensor" not in change else _X[:1].swapaxes(1, 2)
    with pytest.raises(kind, match=message):
        sdpa_bwd_wrapper_sm80(x, x, x, x, x, _S[:1], **change)
