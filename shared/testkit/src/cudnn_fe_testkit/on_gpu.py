"""What tests on a GPU share: operands made there, errors measured there, memory that shows what nobody wrote."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["normal_matrix", "poison", "rel_rms"]


def normal_matrix(
    rows: int, columns: int, batch: int, kind: str, major: str = "k", *, seed: int = 0, pad: int = 0
) -> Any:
    """(rows, columns, batch) normal values on the GPU, contiguous along dim 1 ("k") or 0 ("mn"), NaN between rows."""
    generator = torch.Generator("cuda").manual_seed(seed)
    inner, outer = (columns, rows) if major == "k" else (rows, columns)
    memory = torch.full((batch, outer, inner + pad), float("nan"), device="cuda").to(getattr(torch, kind))
    memory[..., :inner] = torch.randn((batch, outer, inner), generator=generator, device="cuda").to(memory.dtype)
    view = memory[..., :inner]
    return view.permute(1, 2, 0) if major == "k" else view.permute(2, 1, 0)


def rel_rms(x: Any, reference: Any) -> float:
    """Root mean square of the error over that of the reference, on the GPU; NaN anywhere gives NaN."""
    if reference.numel() == 0:
        assert x.shape == reference.shape
        return 0.0
    error = (x.double() - reference).square().mean().sqrt()
    norm = reference.square().mean().sqrt()
    return float(error) if float(norm) == 0 else float(error / norm)


def poison() -> None:
    """Fill the allocator's free blocks with NaN, so that elements that nobody writes are seen."""
    blocks = [torch.full((1 << size,), float("nan"), device="cuda") for size in (8, 10, 12, 14, 16, 18, 20, 21, 22, 24)]
    del blocks
