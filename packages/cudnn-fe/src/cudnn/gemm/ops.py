"""The families' names that live below ``cudnn.gemm.ops``."""

from __future__ import annotations

from cudnn._below import names_below

__all__: list[str] = []

__getattr__, __dir__ = names_below("gemm.ops", globals())
