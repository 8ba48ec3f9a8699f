"""Dense and grouped GEMMs by the module paths of cudnn-frontend 1.32, and the names that live here."""

from __future__ import annotations

from cudnn._below import names_below

__all__: list[str] = []

__getattr__, __dir__ = names_below("gemm", globals())
