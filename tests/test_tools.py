"""The rules that the tools hold the repository to, on made-up input."""

import pin
import pytest
from lazy_imports import violations

LOCK = {
    "package": [
        {"name": "workspace", "version": "0", "source": {"virtual": "."}, "dependencies": [{"name": "a"}]},
        {"name": "a", "version": "1.0", "source": {"registry": "r"}, "dependencies": [{"name": "b"}]},
        {"name": "b", "version": "2.0", "source": {"registry": "r"}, "resolution-markers": ["python_version < '3.12'"]},
        {
            "name": "b",
            "version": "2.1",
            "source": {"registry": "r"},
            "resolution-markers": ["python_version == '3.13'", "python_version == '3.12'"],
        },
        {"name": "c", "version": "3", "source": {"registry": "r"}, "resolution-markers": ["sys_platform == 'x'"]},
    ]
}
PINS = [
    "a==1.0",
    "b==2.0 ; python_version < '3.12'",
    "b==2.1 ; python_version == '3.12' or python_version == '3.13'",
    "c==3",
]


def test_pins_carry_markers_only_where_versions_differ() -> None:
    assert [str(entry) for entry in pin.pins_of(LOCK)] == PINS


def test_closure_follows_dependencies() -> None:
    assert pin.closure(LOCK, ["a"]) == {"a", "b"}


def test_pins_disagree_both_ways() -> None:
    assert pin.disagreements(pin.pins_of(LOCK), PINS) == []
    assert pin.disagreements(pin.pins_of(LOCK), [*PINS[1:], "d==4"]) == [
        "no pin for a==1.0",
        "pinned, but not needed: d==4",
    ]


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import torch", "cudnn_fe.core.tensors"),
        ("from jax import numpy", "cudnn_fe.gemm.torch"),
        ("try:\n    import cutlass.cute\nexcept ImportError:\n    pass", "cudnn_fe.core.runtime"),
        ("from cudnn_fe.core import cute", "cudnn_fe.core.runtime"),
        ("from .swiglu import sm90", "cudnn_fe.gemm.registry"),
        ("from . import sm90", "cudnn_fe.gemm.swiglu.op"),
        ("from cudnn_fe.core.cute.mainloop import run", "cudnn_fe.gemm.swiglu.op"),
        ("class Lazy:\n    import rich", "cudnn.table"),
    ],
)
def test_import_at_module_level_is_refused(source: str, module: str) -> None:
    known = frozenset({"cudnn_fe.core.cute", "cudnn_fe.core.cute.mainloop", "cudnn_fe.gemm.swiglu.sm90"})
    (message,) = violations(source, module, known=known)
    assert "at module level; import it where it is used" in message


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("def call():\n    import torch", "cudnn_fe.core.tensors"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", "cudnn_fe.core.tensors"),
        ("import torch", "cudnn_fe.gemm.torch"),
        ("import jax.numpy", "cudnn_fe.gemm.jax"),
        ("import cutlass", "cudnn_fe.core.cute.epilogue"),
        ("from cudnn_fe.core.cute import epilogue", "cudnn_fe.gemm.swiglu.sm90"),
        ("import torchlike", "cudnn_fe.core.tensors"),
    ],
)
def test_import_where_it_belongs_is_free(source: str, module: str) -> None:
    assert not list(violations(source, module, known=frozenset({"cudnn_fe.core.cute"})))
