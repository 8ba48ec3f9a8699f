"""Frameworks are recognised, never imported."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cudnn_fe.core.errors import FrameworkError
from cudnn_fe.core.frameworks import common_framework, framework_of

WITHOUT = """
import sys
import numpy as np
from cudnn_fe.gemm import gemm_swiglu_forward, gemm_swiglu_backward
a, b = np.ones((2, 8, 1), np.float32), np.ones((64, 8, 1), np.float32)
out = gemm_swiglu_forward(a, b)
gemm_swiglu_backward(a, b, out["ab12_tensor"], out["c_tensor"])
loaded = sorted({"torch", "jax", "cutlass", "tvm_ffi", "cuda"} & {name.split(".")[0] for name in sys.modules})
assert not loaded, loaded
"""


class OnlyDLPack:
    """An array that nothing is known of but DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_numpy_calls_import_no_framework_and_no_compiler() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


@pytest.mark.parametrize(
    ("array", "framework"),
    [
        (torch.zeros(1), "torch"),
        (torch.nn.Parameter(torch.zeros(1)), "torch"),
        (jnp.zeros(1), "jax"),
        (np.zeros(1), "numpy"),
        (OnlyDLPack(np.zeros(1)), "dlpack"),
    ],
)
def test_recognises(array: Any, framework: str) -> None:
    assert framework_of(array) == framework
    assert common_framework(("x",), (array,)) == framework


def test_tracers_are_jax_arrays() -> None:
    seen = []
    jax.jit(lambda x: seen.append(framework_of(x)))(jnp.zeros(1))
    assert seen == ["jax"]


def test_a_framework_that_another_thread_is_still_importing_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert framework_of(np.zeros(1)) == "numpy"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert framework_of(np.zeros(1)) == "numpy"


@pytest.mark.parametrize("thing", [1.0, [1.0], None, SimpleNamespace(shape=(1,), dtype="float32")])
def test_other_things_are_refused_by_name(thing: Any) -> None:
    with pytest.raises(FrameworkError, match=r"^weights: got \S+, wanted a torch tensor.*; convert it"):
        framework_of(thing, operand="weights")


def test_numpy_beside_jax_counts_as_jax_in_either_order() -> None:
    assert common_framework(("a", "b"), (np.zeros(1), jnp.zeros(1))) == "jax"
    assert common_framework(("a", "b", "c"), (jnp.zeros(1), None, np.zeros(1))) == "jax"


def test_mixed_frameworks_are_refused_naming_both() -> None:
    with pytest.raises(FrameworkError, match=r"^b: got an array of numpy, wanted an array of torch, as a is"):
        common_framework(("none", "a", "b"), (None, torch.zeros(1), np.zeros(1)))
    with pytest.raises(FrameworkError, match="at least one array"):
        common_framework(("a",), (None,))
