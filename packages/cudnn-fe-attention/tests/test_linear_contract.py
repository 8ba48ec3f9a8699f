"""What the contracts of gated delta rules refuse, and how they say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_fe import attention
from cudnn_fe_testkit.inputs import normal

# Arguments are spread from tables here, which the type checker cannot count.
gdn: Any = attention.gated_delta_net_forward
kda: Any = attention.kimi_delta_attention_forward
gdn_backward: Any = attention.gated_delta_net_backward

T, N, K, V = 17, 4, 8, 6
ENDS = np.asarray([0, 5, 5, 6, 17], np.int32)


def make(gate: tuple[int, ...]) -> dict[str, Any]:
    shapes = {"q": (T, 1, K), "k": (T, 2, K), "v": (T, 2, V), "g": gate, "beta": (T, 2)}
    return {name: normal(shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}


_X = make((T, 2))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"q": _X["q"][0]}, ValueError, "q: got shape"),
        ({"k": np.ones((T, 3, K), np.float32)}, ValueError, "k: got 3 heads, wanted 1 or 2"),
        ({"k": _X["k"].astype(np.float16)}, TypeError, "k: got float16"),
        (
            {"q": np.ones((T, 3, K), np.float32), "k": np.ones((T, 3, K), np.float32)},
            NotImplementedError,
            "v: got 2 heads",
        ),
        ({"g": _X["g"][:, :1]}, NotImplementedError, r"g: got \(17, 1\)"),
        ({"beta": _X["beta"][:3]}, NotImplementedError, "beta: got"),
        ({"beta": _X["beta"].astype(np.float16)}, TypeError, "beta: got float16"),
        ({"cu_seqlens": ENDS.astype(np.float32)}, TypeError, "cu_seqlens: got float32"),
        ({"cu_seqlens": ENDS[:1]}, ValueError, "cu_seqlens: got"),
        ({"allow_neg_eigval": True}, ValueError, "allow_neg_eigval: got True without"),
        ({"a_log": np.zeros(2, np.float32)}, ValueError, "a_log: got a tensor, wanted None without safe_gate"),
        ({"gate_domain": "exp"}, ValueError, "gate_domain: got 'exp'"),
        ({"gate_domain": "linear", "safe_gate": True}, ValueError, "gate_domain: got 'linear' with safe_gate"),
        ({"safe_gate": True, "dt_bias": np.zeros(3, np.float32)}, ValueError, "dt_bias: got"),
        ({"initial_state": np.zeros((3, 2, V, K), np.float32)}, ValueError, "initial_state: got"),
        ({"overwrite_initial_state": True}, ValueError, "overwrite_initial_state: got True without a state"),
        ({"checkpoint_every_n_tokens": -1}, ValueError, "checkpoint_every_n_tokens: got -1"),
        ({"checkpoint_dtype": "float16"}, ValueError, "checkpoint_dtype: got float16"),
        ({"state_indices": np.zeros(N, np.int32)}, ValueError, "state_indices: got a tensor without initial_state"),
        ({"output_final_state": 1}, ValueError, "output_final_state: got 1"),
        ({"scale": float("inf")}, ValueError, "scale: got inf"),
        ({"plan_name": "gdn_frost"}, NotImplementedError, "gdn_frost"),
    ],
)
def test_refusals(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        gdn(**{**_X, "cu_seqlens": ENDS, **change})


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"state_indices": np.zeros(N, np.int64)}, TypeError, "state_indices: got int64"),
        ({"state_indices": np.zeros(3, np.int32)}, ValueError, "state_indices: got"),
        ({"checkpoint_every_n_tokens": 4}, ValueError, "state_indices: got a tensor with checkpoints"),
        (
            {"initial_state": np.zeros((8, 2, K, V), np.float32).transpose(0, 1, 3, 2)},
            ValueError,
            "initial_state: got strides",
        ),
        ({"gate_lower_bound": -1.0}, NotImplementedError, "gate_lower_bound: got -1.0 without safe_gate"),
        ({"gate_lower_bound": 1.0, "safe_gate": True}, ValueError, "gate_lower_bound: got 1.0"),
    ],
)
def test_pool_refusals(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    good = {"initial_state": np.zeros((8, 2, V, K), np.float32), "state_indices": np.arange(N, dtype=np.int32)}
    with pytest.raises(kind, match=message):
        kda(**{**make((T, 2, K)), "cu_seqlens": ENDS, **good, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do": _X["v"][:3]}, "do: got"),
        ({"do": _X["v"].astype(np.float16)}, "do: got float16"),
        ({"d_final_state": np.zeros((N, 2, V, K), np.float16)}, "d_final_state: got float16, wanted float32"),
        ({"d_final_state": np.zeros((N, 2, K, V), np.float32)}, "d_final_state: got"),
    ],
)
def test_backward_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gdn_backward(**{**_X, "cu_seqlens": ENDS, "do": _X["v"], **change})
