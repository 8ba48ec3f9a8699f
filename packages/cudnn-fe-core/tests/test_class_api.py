"""The class API: samples, `check_support`, `compile`, `execute`, and what each refuses."""

from __future__ import annotations

import inspect
import logging
import pickle
import weakref
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cudnn_fe.core import class_api, class_launch
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import (
    AliasError,
    AlignmentError,
    FrameworkError,
    MissingDeviceError,
    NotCompiledError,
    NotYetSupportedError,
    ShapeError,
)
from cudnn_fe.core.experimental import _reset_for_tests
from cudnn_fe.core.legacy import LegacyClass, LegacyFunction, make_class, make_function
from cudnn_fe.core.op import Problem
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe_testkit.inputs import arrange, normal
from cudnn_fe_testkit.toy import TOY, toy

PARAMETERS = "sample_x, sample_y, alpha=1.0, tile=(128, 64), sample_scale=None"
EXECUTE = "x_tensor, y_tensor, scale_tensor=None, alpha=None, current_stream=None"
Bound = tuple[Problem, tuple[TensorSpec, ...], tuple[float, ...]]


def bind(given: Mapping[str, Any]) -> Bound:
    x, y = spec_of(given["sample_x"], "x_tensor"), spec_of(given["sample_y"], "y_tensor")
    if x.shape != y.shape:
        raise ShapeError("y_tensor", got=str(y.shape), wanted=str(x.shape), remedy="allocate it")
    return TOY.bind(x, None, y_dtype=y.dtype), (y,), (given["alpha"],)


ToySm100 = make_class(
    LegacyClass(
        "ToySm100", TOY, PARAMETERS, EXECUTE, ("x_tensor",), ("y_tensor",), ("alpha",), ("scale_tensor",), bind
    ),
    __name__,
)
toy_wrapper_sm100 = make_function(LegacyFunction("toy_wrapper_sm100", toy, "x, bias=None, alpha=1.0"), __name__)


def pair(framework: str) -> tuple[Any, Any]:
    x = normal((4, 8))
    return (x, np.zeros_like(x)) if framework == "numpy" else (torch.from_numpy(x), torch.zeros(4, 8))


def made(*samples: Any, **options: Any) -> Any:
    op = ToySm100(*samples, **options)
    op.compile()
    return op


# Lifecycle


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_lifecycle(framework: str) -> None:
    x, y = pair(framework)
    op: Any = ToySm100(x, y, alpha=3.0)
    assert op.check_support() is True
    op.compile()
    op.compile()
    assert op.execute(x, y) is None
    assert np.array_equal(np.asarray(y), 3.0 * normal((4, 8)))
    op.execute(x_tensor=x, y_tensor=y, alpha=2.0)
    assert np.array_equal(np.asarray(y), 2.0 * normal((4, 8)))
    op.execute(2 * x, y)
    assert np.array_equal(np.asarray(y), 6.0 * normal((4, 8)))


def test_calling_compiles_when_needed_and_compile_checks_support(caplog: pytest.LogCaptureFixture) -> None:
    x, y = pair("torch")
    with caplog.at_level(logging.INFO, "ToySm100"):
        ToySm100(x, y)(x, y)
    assert torch.equal(x, y)
    assert "check_support was not called" in caplog.text


def test_execute_before_compile_names_the_remedy() -> None:
    x, y = pair("torch")
    with pytest.raises(NotCompiledError, match=r"^ToySm100: got execute before compile, .*call ToySm100.compile\(\)"):
        ToySm100(x, y).execute(x, y)


def test_bad_samples_are_refused_by_check_support_not_by_the_constructor() -> None:
    op = ToySm100(torch.zeros(4, 8), torch.zeros(4, 9))
    for step in (op.check_support, op.compile):
        with pytest.raises(ShapeError, match=r"^y_tensor: got \(4, 9\), wanted \(4, 8\)"):
            step()


def test_the_experimental_notice_comes_once_per_class(caplog: pytest.LogCaptureFixture) -> None:
    _reset_for_tests()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ToySm100(*pair("numpy"))
    assert [record.name for record in caplog.records] == ["ToySm100"]


# Samples


@pytest.mark.parametrize(
    "sample",
    [
        lambda: torch.zeros(4, 8, device="meta"),
        lambda: TensorSpec((4, 8), (8, 1), dtype("float32")),
        lambda: SimpleNamespace(shape=(4, 8), dtype="float32"),
        lambda: np.zeros((4, 8), np.float32),
    ],
    ids=["meta tensor", "TensorSpec", "description", "array of another framework"],
)
def test_samples_need_metadata_only(sample: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_api, "cuda_device_count", lambda: 0)
    x, y = pair("torch")
    made(sample(), sample()).execute(x, y)
    assert torch.equal(x, y)


def test_samples_are_let_go_after_compile() -> None:
    x, y = pair("torch")
    assert made(x, y)._arguments is None


def test_samples_on_a_gpu_that_is_not_there_are_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = TensorSpec((4, 8), (8, 1), dtype("float32"), "cuda:63")
    with pytest.raises(MissingDeviceError, match=r"^device: got cuda:63, wanted cpu or one of"):
        ToySm100(sample, sample).check_support()


# Execute


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("wrong", ["shape", "dtype", "strides"])
def test_tensors_unlike_the_samples_are_refused_with_both_descriptions(framework: str, wrong: str) -> None:
    x, y = pair(framework)
    op = made(x, y)
    other = {
        "shape": lambda: x[:3],
        "dtype": lambda: x.astype(np.float16) if framework == "numpy" else x.half(),
        "strides": lambda: arrange(normal((4, 8)), (0, 1)) if framework == "numpy" else x.t().contiguous().t(),
    }[wrong]()
    with pytest.raises(
        ShapeError, match=r"^x_tensor: got shape .*, wanted shape \(4, 8\).* as the sample; pass tensors"
    ):
        op.execute(other, y)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_overlapping_buffers_are_refused_naming_both(framework: str) -> None:
    x, y = pair(framework)
    with pytest.raises(AliasError, match=r"^y_tensor: got bytes that overlap those of x_tensor"):
        made(x, y).execute(x, x)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_any_alignment_serves_on_the_cpu(framework: str) -> None:
    x, y = pair(framework)
    memory = normal((40,))
    view = memory[1:33].reshape(4, 8)
    odd = view if framework == "numpy" else torch.from_numpy(view)
    made(x, y).execute(odd, y)
    assert np.array_equal(np.asarray(y), view)
    made(odd, y).execute(x, y)
    assert np.array_equal(np.asarray(y), np.asarray(x))


def test_jax_arrays_on_the_cpu_cannot_be_written_to() -> None:
    x = jnp.ones((4, 8))
    with pytest.raises(
        FrameworkError, match=r"^y_tensor: got a JAX array on the CPU.*use toy, which returns new arrays"
    ):
        made(x, x).execute(x, x)


def test_modes_that_are_not_served_are_refused_by_name() -> None:
    x, y = pair("torch")
    with pytest.raises(NotYetSupportedError, match=r"^scale_tensor: got a tensor, wanted None"):
        made(x, y).execute(x, y, x)


def test_tensors_that_need_gradients_are_written_without_recording() -> None:
    x, y = pair("torch")
    x.requires_grad_()
    made(x, y).execute(x, y)
    assert torch.equal(x.detach(), y)
    assert not y.requires_grad


# The CUDA launch, with torch standing in for the device


class OnlyDLPack:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A launch into a function that records its arguments, on a device that CPU tensors count as."""
    seen: list[tuple[Any, ...]] = []
    x, y = pair("torch")
    specs = [spec_of(x, "x_tensor"), spec_of(y, "y_tensor")]
    problem = TOY.bind(specs[0], None, y_dtype="float32")
    monkeypatch.setattr(Problem, "device", "cuda:-1")
    monkeypatch.setattr("cudnn_fe.core.torch.current_device", lambda: -1)
    refuse: list[Exception] = []

    def compiled(*arguments: Any) -> None:
        if refuse:
            raise refuse[0]
        seen.append(arguments)

    launch = class_launch.flat(class_launch.cuda_launch(TOY, problem, compiled, specs, (True,)), 1, 1)
    run = class_launch.repeated(launch, compiled, specs, 1, -1)
    return SimpleNamespace(run=run, seen=seen, refuse=refuse, x=x, y=y)


def test_the_compiled_function_gets_inputs_outputs_scalars(launch: Any) -> None:
    launch.run(launch.x, launch.y, 2.0, None)
    (arguments,) = launch.seen
    assert arguments[0] is launch.x
    assert arguments[1] is launch.y
    assert arguments[2] == 2.0


def test_arrays_known_by_dlpack_are_passed_without_a_copy(launch: Any) -> None:
    launch.run(OnlyDLPack(launch.x), OnlyDLPack(launch.y), 1.0, None)
    assert [tensor.data_ptr() for tensor in launch.seen[0][:2]] == [launch.x.data_ptr(), launch.y.data_ptr()]


def test_a_launch_refuses_other_shapes_alignments_and_overlaps(launch: Any) -> None:
    with pytest.raises(ShapeError, match=r"^x_tensor: got shape \(3, 8\)"):
        launch.run(launch.x[:3], launch.y, 1.0, None)
    with pytest.raises(AlignmentError, match=r"^x_tensor: got a pointer aligned to 4 bytes, wanted 16 bytes"):
        launch.run(torch.zeros(40)[1:33].view(4, 8), launch.y, 1.0, None)
    with pytest.raises(AliasError, match=r"^y_tensor: got bytes that overlap"):
        launch.run(launch.x, launch.x, 1.0, None)
    assert launch.seen == []


def test_a_launch_names_the_operand_that_compiled_code_refuses(launch: Any) -> None:
    launch.run(launch.x, launch.y, 1.0, None)
    half = launch.x.view(torch.float16)[:, :8].as_strided((4, 8), (8, 1))  # same memory, shape and strides
    launch.seen.clear()
    launch.refuse.append(ValueError("argument #0: another type"))
    with pytest.raises(ShapeError, match=r"^x_tensor: got shape .* float16 on cpu, wanted .* float32"):
        launch.run(half, launch.y, 1.0, None)
    with pytest.raises(ValueError, match="another type"):  # not about the operands
        launch.run(launch.x, launch.y, 1.0, None)
    assert launch.seen == []


def test_a_tensor_of_the_last_call_is_checked_again_when_its_layout_changed(launch: Any) -> None:
    for _ in range(2):
        launch.run(launch.x, launch.y, 1.0, None)
    launch.x.transpose_(0, 1)
    with pytest.raises(ShapeError, match=r"^x_tensor: got shape \(8, 4\), strides \(1, 8\)"):
        launch.run(launch.x, launch.y, 1.0, None)
    assert len(launch.seen) == 2


def test_the_tensors_of_the_last_call_take_the_short_way(launch: Any) -> None:
    launch.run(launch.x, launch.y, 1.0, None)
    long_way: list[Any] = []
    launch.run.__globals__["launch"] = lambda *arguments: long_way.append(arguments)
    launch.run(launch.x, launch.y, 2.0, None)
    assert [arguments[2] for arguments in launch.seen] == [1.0, 2.0]
    assert long_way == []
    launch.run(launch.x.clone(), launch.y, 3.0, None)
    assert len(long_way) == 1


def test_launches_keep_no_tensor_alive(launch: Any) -> None:
    x = launch.x.clone()
    for _ in range(2):
        launch.run(x, launch.y, 1.0, None)
    launch.seen.clear()
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_a_stream_is_current_during_the_launch(launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[Any] = []

    class Current:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            entered.append(self.stream)

        def __exit__(self, *_: object) -> None:
            entered.append(None)

    monkeypatch.setattr(torch.cuda, "stream", Current)
    monkeypatch.setattr(class_launch, "torch_stream", lambda stream, index: (stream, index))
    launch.run(launch.x, launch.y, 1.0, 7)
    assert entered == [(7, -1), None]
    assert len(launch.seen) == 1


def test_meta_samples_stand_for_the_first_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_api, "cuda_device_count", lambda: 1)
    monkeypatch.setattr("cudnn_fe.core.choose.device", lambda place: Device(place, (9, 0), 132, "chip"))
    sample = torch.zeros(4, 8, device="meta")
    op: Any = ToySm100(sample, sample)
    assert op.check_support() is True
    assert (op._problem.device, op._outputs[0].device) == ("cuda:0", "cuda:0")


# Generated code


def test_generated_signatures_are_those_of_the_table() -> None:
    def signature(text: str) -> inspect.Signature:
        scope: dict[str, Any] = {}
        exec(f"def wanted({text}): pass", scope)
        return inspect.signature(scope["wanted"])

    assert inspect.signature(ToySm100) == signature(PARAMETERS)
    assert inspect.signature(ToySm100.execute) == signature(f"self, {EXECUTE}")
    assert inspect.signature(toy_wrapper_sm100) == signature("x, bias=None, alpha=1.0")
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        ToySm100(1, 2, colour=3)


def test_generated_names_pickle_and_describe_themselves() -> None:
    assert pickle.loads(pickle.dumps(ToySm100)) is ToySm100
    assert pickle.loads(pickle.dumps(toy_wrapper_sm100)) is toy_wrapper_sm100
    assert ToySm100.execute.__qualname__ == "ToySm100.execute"
    assert toy_wrapper_sm100.__module__ == ToySm100.__module__ == __name__
    assert "`toy` under its name in cudnn-frontend 1.32" in (toy_wrapper_sm100.__doc__ or "")
    assert "Class API of `toy`" in (ToySm100.__doc__ or "")


def test_a_generated_function_can_be_traced_by_torch() -> None:
    x = pair("torch")[0]
    run = torch.compile(lambda x: toy_wrapper_sm100(x, alpha=2.0), fullgraph=True, backend="eager")
    assert torch.equal(run(x), 2.0 * x)
