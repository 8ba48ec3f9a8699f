"""Small calls of every GPU kernel of the dense GEMMs, for a memory checker to watch."""

from __future__ import annotations

import torch

from cudnn_fe.gemm import gemm_swiglu_backward, gemm_swiglu_forward

for k in (64, 71):  # rows that the copy engine takes, and rows that it refuses
    a, b = (torch.randn(2, rows, k, device="cuda").bfloat16().permute(1, 2, 0) for rows in (100, 128))
    for backend in (None, "portable"):
        ab12, c, _, _ = gemm_swiglu_forward(a, b, backend=backend)
        gemm_swiglu_backward(a, b, ab12, c, backend=backend)
torch.cuda.synchronize()
print("done")
