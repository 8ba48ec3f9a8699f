"""Every form of a stream becomes the one torch stream that it means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cudnn_fe.core.errors import DeviceError, OptionError
from cudnn_fe.core.streams import stream_handle, torch_stream


class Stream:
    """What torch.cuda offers of a stream, where there is no GPU."""

    def __init__(self, handle: int, device_index: int) -> None:
        self.cuda_stream, self.device_index = handle, device_index


class CUstream:
    def __int__(self) -> int:
        return 77


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda index: ("default", index))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: ("external", handle, device.index))


@pytest.mark.parametrize(("stream", "handle"), [(5, 5), (CUstream(), 77), (SimpleNamespace(cuda_stream=9), 9)])
def test_handles(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", ["main", object(), [1]])
def test_other_things_are_refused(stream: Any) -> None:
    with pytest.raises(OptionError, match=rf"^stream: got {type(stream).__name__}, wanted None, an int handle"):
        stream_handle(stream)


@pytest.mark.usefixtures("cuda")
def test_null_and_legacy_are_the_default_stream_and_others_are_wrapped() -> None:
    assert torch_stream(0, 1) == torch_stream(1, 1) == ("default", 1)
    assert torch_stream(77, 1) == torch_stream(CUstream(), 1) == ("external", 77, 1)


@pytest.mark.usefixtures("cuda")
def test_the_per_thread_stream_is_refused() -> None:
    with pytest.raises(OptionError, match="per-thread default stream"):
        torch_stream(2, 0)


@pytest.mark.usefixtures("cuda")
def test_a_torch_stream_is_kept_and_one_of_another_device_is_refused() -> None:
    stream = Stream(3, 1)
    assert torch_stream(stream, 1) is stream
    with pytest.raises(DeviceError, match=r"^stream: got a stream of cuda:1, wanted a stream of cuda:0"):
        torch_stream(stream, 0)
