"""Small calls of the GPU kernels of the dense and the grouped GEMMs, for a memory checker to watch."""

from __future__ import annotations

import torch

from cudnn_fe.gemm import gemm_swiglu_backward, gemm_swiglu_forward
from cudnn_fe_testkit.grouped_gpu import Case, glu, unfused

for k in (64, 71):  # rows that the copy engine takes, and rows that it refuses
    a, b = (torch.randn(2, rows, k, device="cuda").bfloat16().permute(1, 2, 0) for rows in (100, 128))
    for backend in (None, "portable"):
        ab12, c, _, _ = gemm_swiglu_forward(a, b, backend=backend)
        gemm_swiglu_backward(a, b, ab12, c, backend=backend)

for backend in (None, "portable"):
    case = Case([0, 130, 1, 40], 3)
    case.a.requires_grad_()
    case.b.requires_grad_()
    glu(case, backend)["d_tensor"].float().sum().backward()
    unfused(case, backend)[0].float().sum().backward()
torch.cuda.synchronize()
print("done")
