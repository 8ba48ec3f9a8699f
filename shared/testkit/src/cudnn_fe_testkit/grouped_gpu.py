"""What the GPU tests of the grouped GEMMs share: operands of a routing on the GPU, and float64 expert by expert."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

__all__ = [
    "BF16",
    "CUDA",
    "DERIVATIVE",
    "LARGE",
    "UNIT",
    "Case",
    "K",
    "N",
    "activated",
    "glu",
    "random",
    "serves",
    "unfused",
    "worst_matrix",
]

CUDA = "cuda"
K, N = 192, 256
BF16 = torch.bfloat16
UNIT = 2.0**-8  # unit roundoff of bfloat16
# Of an activation's derivative: four products of rounded factors, and the approximate exponential and reciprocal.
DERIVATIVE = 8 * 2.0**-20
# Beside the small ones: groups of several tiles, of exactly one, ending within one; more experts than a warp's lanes.
LARGE = {
    "uneven tiles": ([0, 700, 128, 1, 0, 256, 129, 3], 50),
    "many experts": ([(7 * i) % 13 for i in range(150)], 1),
}


def serves(backend: str) -> None:
    """Skip where this GPU is not the backend's."""
    if backend == "sm90" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel is written for compute capability 9.0")


def random(*shape: int, kind: Any = BF16, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Normal values on the GPU."""
    generator = torch.Generator(CUDA).manual_seed(seed)
    return (torch.randn(shape, generator=generator, device=CUDA) * scale).to(kind)


class Case:
    """Operands of a routing, poisoned past the last end.

    Args:
        counts: Rows of each expert.
        tail: Rows past the end.
        kind: Element type of A and B.
        k: Width of the rows.
        n: Rows of each expert's weights.
    """

    def __init__(self, counts: list[int], tail: int = 0, kind: Any = BF16, k: int = K, n: int = N) -> None:
        self.counts, self.end, self.m = counts, sum(counts), sum(counts) + tail
        self.kind = str(kind).removeprefix("torch.")
        self.k, experts = k, len(counts)
        self.ends = torch.tensor(np.cumsum(counts), dtype=torch.int32, device=CUDA)
        self.a = random(self.m, k, kind=kind, seed=1)
        self.b = random(experts, n, k, kind=kind, seed=2, scale=k**-0.5)
        self.alpha = random(experts, kind=torch.float32, seed=3) + 2
        self.prob = random(self.m, kind=torch.float32, seed=4)
        self.bias = random(n, experts, seed=5)
        self.a[self.end :] = float("nan")
        self.prob[self.end :] = float("nan")
        self.owner = torch.repeat_interleave(
            torch.arange(experts, device=CUDA), torch.tensor(counts, device=CUDA), output_size=self.end
        )

    def product(self) -> torch.Tensor:
        """alpha * A * B of the experts' rows, in float64."""
        return self.times(self.a, self.b) * self.alpha.double()[self.owner, None]

    def times(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Each row times its expert's weights, in float64."""
        parts = rows[: self.end].split(self.counts)
        return torch.cat([part.double() @ weight.double().T for part, weight in zip(parts, weights, strict=True)])

    def sums(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """For each expert the product of its rows of ``left``, transposed, and of ``right``, in float64."""
        parts = zip(left[: self.end].split(self.counts), right[: self.end].split(self.counts), strict=True)
        return torch.stack([x.double().T @ y.double() for x, y in parts])

    def worst(self, got: torch.Tensor, wanted: torch.Tensor) -> float:
        """The largest relative RMS error of one expert's rows: an average would hide a wrong expert."""
        error = (got[: self.end].double() - wanted).square()
        pairs = zip(error.split(self.counts), wanted.square().split(self.counts), strict=True)
        parts = [(e.mean() / w.mean()).sqrt() for e, w in pairs if e.numel()]
        return float(torch.stack(parts).max()) if parts else 0.0


def worst_matrix(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest relative RMS error of one expert's matrix; those of experts without rows must be zero."""
    axes = tuple(range(1, wanted.ndim))
    error, size = ((x.square().mean(axes)).sqrt() for x in (got.double() - wanted, wanted))
    assert not bool(got[size == 0].any()), "an expert without rows has a gradient"
    return float((error / torch.where(size == 0, 1.0, size)).max())


def halves(c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up of alternating 32-column blocks."""
    blocks = c.view(len(c), c.shape[1] // 64, 2, 32)
    return blocks[:, :, 0].flatten(1), blocks[:, :, 1].flatten(1)


def activated(c: torch.Tensor, act: str) -> torch.Tensor:
    """SwiGLU, or GeGLU with its clamps, of float64 values."""
    gate, up = halves(c)
    if act == "swiglu":
        return torch.sigmoid(gate) * gate * up
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return torch.sigmoid(1.702 * gate) * gate * (up + 1)


def unfused(case: Case, backend: str | None = None, **options: Any) -> Any:
    """The unfused op on a case."""
    from cudnn_fe.grouped import grouped_gemm_forward  # the kit needs no family to be installed

    named = {"prob_tensor": case.prob, "backend": backend, **options}
    return grouped_gemm_forward(case.a, case.ends, case.alpha, case.b, **named)


def glu(case: Case, backend: str | None = None, **options: Any) -> Any:
    """The fused op on a case."""
    from cudnn_fe.grouped import grouped_gemm_glu_forward  # the kit needs no family to be installed

    named = {"b_tensor": case.b, "prob_tensor": case.prob, "backend": backend, **options}
    return grouped_gemm_glu_forward(case.a, None, case.ends, case.alpha, **named)
