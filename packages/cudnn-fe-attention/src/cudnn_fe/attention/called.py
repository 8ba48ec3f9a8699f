"""Classes of the class API whose `execute` takes more than the samples say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.class_api import OpClass

__all__ = ["CalledClass", "given_of"]


class CalledClass(OpClass):
    """Base of classes whose `execute` calls the op's public function, once the samples are found to be supported."""

    _counts = (0, 0)  # no launch of the base is used


def given_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """A constructor's arguments, from its ``locals()``."""
    return {name: value for name, value in values.items() if name not in ("self", "__class__")}
