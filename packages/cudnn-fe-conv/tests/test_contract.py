"""What a call refuses, with the message it gives, and what the op's record says."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe.conv import causal_conv1d
from cudnn_fe.conv.causal_conv1d.op import FORWARD
from cudnn_fe.conv.causal_conv1d_update.op import UPDATE
from cudnn_fe.core.errors import (
    AliasError,
    DeviceError,
    DTypeError,
    NotYetSupportedError,
    OptionError,
    ShapeError,
    StrideError,
)

X, WEIGHT = torch.randn(2, 3, 5), torch.randn(3, 4)
INT: Any = {"dtype": torch.int32}


@pytest.mark.parametrize(
    ("kind", "message", "options"),
    [
        (NotYetSupportedError, "activation: got 'relu'", {"activation": "relu"}),
        (TypeError, "return_final_states: got 1", {"return_final_states": 1}),
        (OptionError, "final_states_out: got a buffer without", {"final_states_out": torch.zeros(2, 3, 3)}),
        (OptionError, "seq_idx", {"seq_idx": torch.zeros(2, 5, **INT), "cu_seqlens": torch.zeros(2, **INT)}),
        (OptionError, "seq_idx", {"seq_idx": torch.zeros(2, 5, **INT), "return_final_states": True}),
        (ValueError, r"\(B, T\) = \(2, 5\)", {"seq_idx": torch.zeros(2, 4, **INT)}),
        (OptionError, "layout: got 'TBD'", {"seq_idx": torch.zeros(2, 5, **INT), "layout": "TBD"}),
        (NotImplementedError, "pack the sequences", {"seq_idx": torch.zeros(2, 5, **INT)}),
        (ShapeError, "x: got B = 2, wanted B = 1", {"cu_seqlens": torch.tensor([0, 5], **INT)}),
        (ShapeError, "bias", {"bias": torch.zeros(4)}),
        (ShapeError, "initial_states", {"initial_states": torch.zeros(2, 3, 4)}),
        (TypeError, "initial_states: got float16", {"initial_states": torch.zeros(2, 3, 3).half()}),
        (TypeError, "bias: got float16", {"bias": torch.zeros(3).half()}),
        (TypeError, "bias: got builtins.list", {"bias": [0.0] * 3}),
        (DeviceError, "initial_states: got meta", {"initial_states": torch.zeros(2, 3, 3, device="meta")}),
        (OptionError, "layout", {"layout": "TBD"}),
    ],
)
def test_refusals(kind: type[Exception], message: str, options: dict[str, Any]) -> None:
    with pytest.raises(kind, match=message):
        causal_conv1d(X, WEIGHT, **options)


def test_refusals_of_x_and_weight() -> None:
    with pytest.raises(ShapeError, match="x: got shape"):
        causal_conv1d(X[0], WEIGHT)
    with pytest.raises(ShapeError, match="x: got shape"):
        causal_conv1d(X[0], WEIGHT, seq_idx=torch.zeros(3, 5, **INT))
    with pytest.raises(ShapeError, match="weight"):
        causal_conv1d(X, WEIGHT[:2])
    with pytest.raises(ShapeError, match=r"weight: got shape .* 1 dim"):
        causal_conv1d(X, WEIGHT[0])
    with pytest.raises(ShapeError, match="W = 0"):
        causal_conv1d(X, WEIGHT[:, :0])
    with pytest.raises(ShapeError, match="W = 257"):
        causal_conv1d(X, torch.zeros(3, 257))
    with pytest.raises(DTypeError, match="x: got int32"):
        causal_conv1d(X.int(), WEIGHT)
    with pytest.raises(TypeError, match="weight"):
        causal_conv1d(X, [[1.0]])
    with pytest.raises(TypeError, match="weight: got bfloat16"):
        causal_conv1d(X, WEIGHT.bfloat16())


@pytest.mark.parametrize("offsets", [[1, 5], [0, 4], [0, 4, 3, 5], [0, 6]])
def test_bad_offsets_raise_on_a_cpu(offsets: list[int]) -> None:
    with pytest.raises(OptionError, match="cu_seqlens"):
        causal_conv1d(X[:1], WEIGHT, cu_seqlens=torch.tensor(offsets, **INT))


@pytest.mark.parametrize(
    ("kind", "message", "offsets"),
    [
        (ShapeError, "at least 2 offsets", torch.zeros(1, **INT)),
        (ShapeError, "cu_seqlens: got shape", torch.tensor([[0, 5]], **INT)),
        (DTypeError, "cu_seqlens: got int64", torch.tensor([0, 5])),
        (StrideError, "cu_seqlens: got strides", torch.tensor([0, 0, 5, 5], **INT)[::2]),
    ],
)
def test_refusals_of_offsets(kind: type[Exception], message: str, offsets: Any) -> None:
    with pytest.raises(kind, match=message):
        causal_conv1d(X[:1], WEIGHT, cu_seqlens=offsets)


def test_the_final_states_buffer() -> None:
    with pytest.raises(AliasError, match="final_states_out"):
        causal_conv1d(X, WEIGHT, return_final_states=True, final_states_out=X[:, :, :3])
    with pytest.raises(ShapeError, match="final_states_out"):
        causal_conv1d(X, WEIGHT, return_final_states=True, final_states_out=torch.zeros(2, 3, 4))
    with pytest.raises(DTypeError, match="final_states_out: got bfloat16"):
        causal_conv1d(X, WEIGHT, return_final_states=True, final_states_out=torch.zeros(2, 3, 3).bfloat16())
    buffer = np.zeros((2, 3, 3), np.float32)
    _, final = causal_conv1d(X.numpy(), WEIGHT.numpy(), return_final_states=True, final_states_out=buffer)
    assert final is buffer
    assert np.array_equal(buffer, X[:, :, 2:].numpy())


def test_a_bad_buffer_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(sys.modules["cudnn_fe.conv.causal_conv1d"], "call", lambda *given, **_: ran.append(given))
    for buffer in (torch.zeros(2, 3, 4), X[:, :, :3]):
        with pytest.raises(ValueError, match="final_states_out"):
            causal_conv1d(X, WEIGHT, return_final_states=True, final_states_out=buffer)
    assert not ran


def test_half_precision_with_float32_parameters() -> None:
    y = causal_conv1d(X.bfloat16(), WEIGHT, torch.zeros(3))
    assert y.dtype == torch.bfloat16


@pytest.mark.parametrize("op", [FORWARD, UPDATE])
def test_the_page_s_example_runs(op: Any) -> None:
    exec(op.example, {})


def test_the_cudnn_namespace() -> None:
    cudnn = pytest.importorskip("cudnn")
    from cudnn.ops import causal_conv1d as exported

    assert exported is causal_conv1d
    assert {"causal_conv1d", "causal_conv1d_update"} <= set(dir(cudnn.ops))
    assert "ops.causal_conv1d" not in dir(cudnn)
    with pytest.raises(AttributeError, match="no_such_op"):
        _ = cudnn.ops.no_such_op
