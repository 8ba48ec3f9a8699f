"""What native sparse attention's four ops refuse, and what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_fe import attention

# Arguments are spread and of every type here, which the type checker cannot follow.
nsa_compression_attention_forward: Any = attention.nsa_compression_attention_forward
nsa_selection_attention_forward: Any = attention.nsa_selection_attention_forward
nsa_sliding_window_attention_forward: Any = attention.nsa_sliding_window_attention_forward
nsa_topk_reduction_forward: Any = attention.nsa_topk_reduction_forward

_X = np.ones((1, 2, 8, 8), np.float32)
_P = np.ones((8, 2, 8), np.float32)
_I, _C = np.zeros((8, 2, 1), np.int32), np.ones((8, 2), np.int32)
_E = np.asarray([0, 8], np.int32)
_T = np.ones((1, 3, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nsa_compression_attention_forward(_X[0, 0], _X, _X), ValueError, "q_tensor: got"),
        (lambda: nsa_compression_attention_forward(_X, _X[:, :, :, :4], _X), ValueError, "k_tensor: got"),
        (lambda: nsa_compression_attention_forward(_P, _P, _P), ValueError, "cum_seqlen_q_tensor: got None"),
        (lambda: nsa_compression_attention_forward(_X, _X, _X, qk_acc_dtype="float16"), ValueError, "qk_acc_dtype"),
        (lambda: nsa_compression_attention_forward(_X, _X, _X, o_dtype="int32"), ValueError, "o_dtype: got 'int32'"),
        (lambda: nsa_compression_attention_forward(_P, _P, _P, _E, _E[:1]), ValueError, "cum_seqlen_k_tensor: got"),
        (lambda: nsa_selection_attention_forward(_X, _X, _X, _I, _C, _E), NotImplementedError, "pack the sequences"),
        (lambda: nsa_selection_attention_forward(_P, _P, _P, _I, _C), ValueError, "cum_seqlen_q_tensor: got None"),
        (lambda: nsa_selection_attention_forward(_P, _P, _P, _I, _C, _E, block_size=48), ValueError, "block_size"),
        (lambda: nsa_selection_attention_forward(_P, _P, _P, _I, _C[:4], _E), ValueError, "block_counts_tensor"),
        (lambda: nsa_selection_attention_forward(_P, _P, _P, _I, _C, _E, is_causal=1), ValueError, "is_causal: got 1"),
        (
            lambda: nsa_selection_attention_forward(_P, _P, _P, _I, _C, _E, max_s_q=8, max_s_k=4),
            NotImplementedError,
            "max_s_k: got 4",
        ),
        (lambda: nsa_sliding_window_attention_forward(_P, _P, _P), ValueError, "seq_len_q_tensor: got None"),
        (lambda: nsa_sliding_window_attention_forward(_X, _X, _X, _E, _E), ValueError, "seq_len_q_tensor: got a"),
        (lambda: nsa_sliding_window_attention_forward(_P, _P, _P, _E, _E, _E), ValueError, "all five ragged"),
        (lambda: nsa_sliding_window_attention_forward(_X, _X, _X, left_bound=-1), ValueError, "left_bound: got -1"),
        (lambda: nsa_topk_reduction_forward(_P, _P, _P[..., 0], _E), ValueError, "1 of the two"),
        (lambda: nsa_topk_reduction_forward(_X, _X, _X), ValueError, "lse_tensor: got"),
        (lambda: nsa_topk_reduction_forward(_X, _X, _X[..., 0], compress_stride=48), ValueError, "selection_block"),
        (lambda: nsa_topk_reduction_forward(_X, _X, _X[..., 0], k_value=0), ValueError, "k_value: got 0"),
        (lambda: nsa_compression_attention_forward(_X, _X.astype(np.float16), _X), TypeError, "k_tensor: got float16"),
        (lambda: nsa_compression_attention_forward(_X, _X, _X, pv_acc_dtype="float16"), TypeError, "pv_acc_dtype: got"),
        (lambda: nsa_compression_attention_forward(_X, _X, _X, enable_lse=1), TypeError, "enable_lse: got 1"),
        (lambda: nsa_compression_attention_forward(_P, _P, _P, _E * 1.0, _E), TypeError, "cum_seqlen_q_tensor: got"),
        (lambda: nsa_compression_attention_forward(_T, _X, _X), ValueError, "q_tensor: got 3 query heads and 2 key"),
        (lambda: nsa_selection_attention_forward(_P, _P, _P, _I, _C, _E, acc_dtype="float16"), TypeError, "acc_dtype"),
        (
            lambda: nsa_selection_attention_forward(_P, _P, _P, _I, _C, _E, o_dtype="float16"),
            ValueError,
            "o_dtype: got",
        ),
        (lambda: nsa_selection_attention_forward(_P, _P, _P, _I * 1.0, _C, _E), TypeError, "block_indices_tensor: got"),
        (lambda: nsa_selection_attention_forward(_P, _P, _P, _I, _C * 1.0, _E), TypeError, "block_counts_tensor: got"),
        (lambda: nsa_selection_attention_forward(_P, _P, _P, _I[:4], _C, _E), ValueError, "block_indices_tensor: got"),
        (lambda: nsa_selection_attention_forward(_P, _P, _P[:4], _I, _C, _E), ValueError, "v_tensor: got"),
        (
            lambda: nsa_selection_attention_forward(_P, _P, _P, _I, _C, _E, _E[:1]),
            ValueError,
            "cum_seqlen_k_tensor: got",
        ),
        (lambda: nsa_sliding_window_attention_forward(_X, _X, _X, right_bound=-1), ValueError, "right_bound: got -1"),
        (lambda: nsa_sliding_window_attention_forward(_X, _X, _X, left_bound=True), ValueError, "left_bound: got True"),
        (lambda: nsa_sliding_window_attention_forward(_X, _X, _X, o_dtype="int8"), ValueError, "o_dtype: got 'int8'"),
        (lambda: nsa_sliding_window_attention_forward(_X, _X, _X, is_infer=0), TypeError, "is_infer: got 0"),
        (
            lambda: nsa_sliding_window_attention_forward(_X, _X, _X, compute_data_type="float16"),
            TypeError,
            "compute_data_type: got float16",
        ),
        (lambda: nsa_sliding_window_attention_forward(_P, _P, _P, _E * 1.0, _E), TypeError, "seq_len_q_tensor: got"),
        (lambda: nsa_sliding_window_attention_forward(_P, _P, _P, _E, _E[:1]), ValueError, "seq_len_kv_tensor: got"),
        (
            lambda: nsa_sliding_window_attention_forward(_P, _P, _P, _E, _E, *[_E] * 5),
            ValueError,
            r"q_ragged_offset_tensor: got \(2,\), wanted \(3,\)",
        ),
        (lambda: nsa_topk_reduction_forward(_X, _X, _X[..., 0], acc_dtype="float16"), ValueError, "acc_dtype: got"),
        (lambda: nsa_topk_reduction_forward(_X, _X, _X[..., 0], is_causal=1), TypeError, "is_causal: got 1"),
        (
            lambda: nsa_topk_reduction_forward(_X, _X, _X[..., 0].astype(np.float16)),
            TypeError,
            "lse_tensor: got float16",
        ),
        (lambda: nsa_topk_reduction_forward(_P, _P, _P[..., 0], _E * 1.0, _E), TypeError, "cum_seqlen_q_tensor: got"),
    ],
)
def test_refusals(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
