"""What flex attention and its plans refuse, and what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_fe.attention import create_mask_plan, flex_attention

_X = np.ones((1, 4, 2, 8), np.float32)
_ENDS = np.full((1, 1, 4), 4, np.int32)
_THREE = np.ones((1, 4, 3, 8), np.float32)
_P = np.ones((4, 2, 8), np.float32)
_E = np.asarray([0, 4], np.int32)
_VARLEN = {"q": _P, "k": _P, "v": _P, "cu_seqlens_q": _E, "cu_seqlens_k": _E, "max_seqlen_q": 4, "max_seqlen_k": 4}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"mask_func": lambda i, j: j <= i}, TypeError, "mask_func: got builtins.function"),
        ({"mask_func": _ENDS.astype(np.int64)}, TypeError, "mask_func: got int64"),
        ({"mask_func": _ENDS[0]}, ValueError, "mask_func: got"),
        ({"mask_func": np.zeros((1, 2, 4), np.int32)}, ValueError, r"mask_func: got \(1, 2, 4\).*odd N"),
        ({"mask_func": np.zeros((3, 1, 4), np.int32)}, ValueError, r"mask_func: got \(3, 1, 4\)"),
        ({"mask_func": _ENDS + 1}, ValueError, "mask_func: got endpoints out of order or range"),
        ({"mask_func": _ENDS - 5}, ValueError, "mask_func: got endpoints"),
        ({"mask_func": np.asarray([[[3] * 4, [2] * 4, [4] * 4]], np.int32)}, ValueError, "mask_func: got endpoints"),
        ({"q": _X[0]}, ValueError, "q: got shape"),
        ({"q": _X.astype(np.int32)}, TypeError, "q: got int32"),
        ({"k": _X[..., :4]}, ValueError, "k: got"),
        ({"v": _X[:, :2]}, ValueError, "v: got"),
        ({"v": _X.astype(np.float16)}, TypeError, "v: got float16"),
        ({"k": _THREE, "v": _THREE}, ValueError, "q: got 2 query heads and 3 key heads"),
        ({"pack_gqa": 1}, TypeError, "pack_gqa: got 1"),
        ({"build_backward": "yes"}, TypeError, "build_backward: got 'yes'"),
        ({"mask_func": _ENDS.repeat(2, 0), "pack_gqa": True}, ValueError, "pack_gqa: got True with 2 masks"),
        ({"cu_seqlens_q": _E}, ValueError, "cu_seqlens_k: got None, wanted all four"),
        ({**_VARLEN, "max_seqlen_k": 4.0}, TypeError, "max_seqlen_k: got 4.0"),
        ({**_VARLEN, "max_seqlen_q": -1}, ValueError, "max_seqlen_q: got -1"),
        ({**_VARLEN, "cu_seqlens_q": _E.astype(np.int64)}, TypeError, "cu_seqlens_q: got int64"),
        ({**_VARLEN, "cu_seqlens_q": _E[:1]}, ValueError, "cu_seqlens_q: got"),
        ({**_VARLEN, "cu_seqlens_q": _E + 1}, ValueError, "cu_seqlens_q: got offsets that do not fit"),
        ({**_VARLEN, "cu_seqlens_k": _E - 1, "mask_func": -_ENDS}, ValueError, "cu_seqlens_k: got offsets"),
        ({**_VARLEN, "max_seqlen_k": 3}, ValueError, "cu_seqlens_k: got offsets.*at most 3 apart"),
    ],
)  # fmt: skip
def test_plans_that_are_refused(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        create_mask_plan(**{"mask_func": _ENDS, "q": _X, "k": _X, "v": _X, **change})


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"mask_plan": _ENDS}, TypeError, "mask_plan: got ndarray, wanted a MaskPlan"),
        ({"softmax_scale": float("nan")}, ValueError, "softmax_scale: got nan"),
        ({"softmax_scale": True}, ValueError, "softmax_scale: got True"),
        ({"softmax_scale": -1.0, "return_max_logit": True}, ValueError, "softmax_scale: got -1.0.*not negative"),
        ({"deterministic": 1}, TypeError, "deterministic: got 1"),
        ({"return_lse": None}, TypeError, "return_lse: got None"),
        ({"return_max_logit": 0}, TypeError, "return_max_logit: got 0"),
        ({"q": _X[:, :3]}, ValueError, r"q: got \(1, 3, 2, 8\), wanted \(1, 4, 2, 8\), as in the plan"),
        ({"v": np.ones((1, 4, 2, 16), np.float32)}, ValueError, "v: got"),
        ({"k": _X.astype(np.float16)}, TypeError, "k: got float16, wanted float32, as in the plan"),
    ],
)
def test_calls_that_are_refused(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    plan = create_mask_plan(_ENDS, _X, _X, _X)
    with pytest.raises(kind, match=message):
        flex_attention(**{"q": _X, "k": _X, "v": _X, "mask_plan": plan, **change})
