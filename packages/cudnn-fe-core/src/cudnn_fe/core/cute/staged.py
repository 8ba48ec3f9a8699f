"""Records of device values that live through the DSL's run-time branches and loops."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Self

import cutlass

__all__ = ["Staged"]


class Staged:
    """Base of frozen dataclasses, some of whose fields are device values; the others stay compile-time constants."""

    def _device_fields(self) -> dict[str, Any]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if hasattr(value, "__extract_mlir_values__")}

    def __extract_mlir_values__(self) -> list[Any]:
        return [raw for value in self._device_fields().values() for raw in cutlass.extract_mlir_values(value)]

    def __new_from_mlir_values__(self, values: list[Any]) -> Self:
        rebuilt = {}
        for name, value in self._device_fields().items():
            count = len(cutlass.extract_mlir_values(value))
            rebuilt[name] = cutlass.new_from_mlir_values(value, values[:count])
            values = values[count:]
        return replace(self, **rebuilt)  # type: ignore[type-var]
