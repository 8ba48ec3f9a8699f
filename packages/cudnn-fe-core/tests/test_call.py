"""A call returns arrays of the operands' kind with the layout that the contract promises."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cudnn_fe.core.call import Permuted, call
from cudnn_fe.core.errors import BackendError, FrameworkError, OptionError, ShapeError
from cudnn_fe.core.tensor import spec_of
from cudnn_fe_testkit.compare import rel_rms
from cudnn_fe_testkit.inputs import arrange, convert, normal
from cudnn_fe_testkit.toy import TOY, toy, toy_op

FRAMEWORKS = ("numpy", "torch", "jax")


class OnlyDLPack:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("bias", [False, True])
def test_the_same_kind_comes_out_with_the_right_values(framework: Any, bias: bool) -> None:
    x, b = normal((5, 7), "float32", seed=1), normal((7,), "float32", seed=2)
    given = (convert(x, framework), convert(b, framework) if bias else None)
    y = toy(*given, alpha=2, y_dtype="float64" if framework == "numpy" else "float32")
    assert type(y).__module__.split(".")[0] == type(given[0]).__module__.split(".")[0]
    assert rel_rms(y, 2.0 * x + (b if bias else 0)) == 0.0


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize(("order", "strides"), [("row", (7, 1)), ("column", (1, 5))])
@pytest.mark.parametrize("pad", [0, 3])
def test_results_have_the_promised_strides_whatever_the_operands(
    framework: Any, order: str, strides: tuple[int, int], pad: int
) -> None:
    x = arrange(normal((5, 7)), pad=pad)
    y = toy(convert(x, framework), order=order)
    assert spec_of(y).strides == strides
    assert rel_rms(y, x) == 0.0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_empty_operands_give_empty_results(framework: Any) -> None:
    for shape in ((0, 7), (5, 0)):
        y = toy(convert(normal(shape), framework))
        assert tuple(y.shape) == shape


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_permuted_operands_are_seen_in_their_order(framework: Any) -> None:
    x = normal((7, 5))
    memory = x if framework == "jax" else arrange(x, (0, 1))
    y = call(TOY, (Permuted(convert(memory, framework), (1, 0)), None), (), (3.0,))[0]
    assert rel_rms(y, 3 * x.T) == 0.0
    beyond = convert(arrange(normal((4, 10))[:, :5]), framework)
    with pytest.raises(ShapeError, match=r"^bias: got \(4, 5\)"):
        call(TOY, (beyond, Permuted(convert(normal((5, 4)), framework), (1, 0))), (), (3.0,))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_options_may_be_lists_and_what_cannot_be_hashed_is_named(framework: Any) -> None:
    x = convert(normal((2, 3)), framework)
    assert tuple(toy(x, window=[1, 2]).shape) == (2, 3)
    if framework != "numpy":
        with pytest.raises(OptionError, match=r"^window: got \{1: 2\}, wanted a hashable value"):
            toy(x, window={1: 2})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_scalars_are_numbers_known_on_the_host(framework: Any) -> None:
    x = convert(normal((2, 3)), framework)
    for alpha in (2, np.float32(2), np.int64(2), True):
        assert rel_rms(toy(x, alpha=alpha), float(alpha) * normal((2, 3))) == 0.0
    for other in (torch.tensor(2.0), jnp.asarray(2.0), np.asarray([2.0]), "2", None, 2j):
        with pytest.raises(OptionError, match=r"^alpha: got .*, wanted a number that is known on the host"):
            toy(x, alpha=other)


def test_what_cannot_serve_is_refused_by_name() -> None:
    x = normal((2, 3))
    with pytest.raises(FrameworkError, match=r"^bias: got an array of numpy, wanted an array of torch, as x is"):
        toy(torch.from_numpy(x), x[0])
    with pytest.raises(FrameworkError, match=r"^x: got OnlyDLPack, known by DLPack alone, .*class API"):
        toy(OnlyDLPack(x))
    with pytest.raises(FrameworkError, match=r"^x: got builtins.list"):
        toy([[1.0]])
    with pytest.raises(BackendError, match=r"portable: the operands are on the CPU"):
        toy(x, backend="portable")
    with pytest.raises(OptionError, match=r"^stream: got 0, wanted None: XLA"):
        toy(jnp.asarray(x), stream=0)


def test_numpy_results_of_no_dims_keep_none() -> None:
    from cudnn_fe.core.call import _numpy_layout

    assert _numpy_layout(np.asarray(1.0), spec_of(np.asarray(1.0))).shape == ()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_eight_threads_may_call_a_fresh_op_at_once(framework: Any) -> None:
    op = toy_op(f"toy_threads_{framework}")
    inputs = [convert(normal((3 + i % 4, 5), seed=i), framework) for i in range(64)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda x: toy(x, alpha=2.0, op=op), inputs))
    finally:
        sys.setswitchinterval(interval)
    for i, y in enumerate(results):
        assert rel_rms(y, 2 * normal((3 + i % 4, 5), seed=i)) == 0.0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_required_operand_that_is_none_is_named(framework: Any) -> None:
    bias = convert(normal((7,)), framework)
    with pytest.raises(OptionError, match=r"^x: got None, wanted a tensor; pass the documented operand"):
        toy(None, bias)
