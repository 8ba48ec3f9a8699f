"""What every op refuses, before anything is launched: a row for each rule of its documentation."""

# Operands are spread from made cases, whose number a type checker cannot know.
# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import pytest
import torch

import cudnn

META = torch.device("meta")


def bf16(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bfloat16)


def vision(tokens: int = 3) -> dict[str, Any]:
    q, v = (bf16(16, tokens, 64).permute(1, 0, 2) for _ in range(2))
    tables = {"cosine": torch.ones(tokens, 1, 32), "sine": torch.ones(tokens, 1, 32)}
    return {"grad_q": q, "grad_k": bf16(16, 64, tokens).permute(2, 0, 1), "grad_v": v, **tables}


def gate() -> dict[str, Any]:
    mask = torch.ones(2, dtype=torch.bool)
    return {"x": bf16(2, 4, 5120), "kv": bf16(2, 25600), "weight": torch.ones(4, 5120), "token_mask": mask}


def lmsd() -> dict[str, Any]:
    return {"x_tensor": bf16(4, 16), "u_tensor": bf16(4, 16), "weight_tensor": bf16(16), "bias_tensor": bf16(16)}


def of_gate() -> dict[str, Any]:
    v = gate()
    del v["token_mask"]
    return v | {"saved": torch.ones(2, 4, 4), "grad_out": bf16(2, 4, 5120)}


def of_lmsd() -> dict[str, Any]:
    saved = {
        "mean_tensor": torch.ones(4),
        "rstd_tensor": torch.ones(4),
        "mask_tensor": torch.ones(4, 16).to(torch.int8),
    }
    flags = {"dropout_ratio": 0.1, "apply_u_silu": True, "concat_u": True, "concat_x": True}
    return {"dy_tensor": bf16(4, 48), **lmsd(), **saved, **flags}


GOOD: dict[str, Callable[[], dict[str, Any]]] = {
    "rmsnorm_rht_amax_wrapper_sm100": lambda: {"x_tensor": bf16(4, 64), "w_tensor": bf16(64)},
    "rmsnorm_silu_forward": lambda: {"x": bf16(4, 32), "weight": bf16(32), "eps": 1e-6},
    "tail_rope": lambda: {"x": bf16(4, 3, 128), "cosine": torch.ones(4, 32), "sine": torch.ones(4, 32)},
    "rope_qdq_inplace": lambda: {
        "x": bf16(4, 512), "cache": torch.ones(5, 64), "positions": torch.zeros(4, dtype=torch.int32),
        "quantization": "fp8",
    },
    "vision_rope_backward_wrapper": vision,
    "engram_gate_saved_forward": gate,
    "engram_gate_saved_backward": of_gate,
    "hstu_lmsd_forward": lmsd,
    "hstu_lmsd_backward": of_lmsd,
}  # fmt: skip

# By function: a change of its operands, and what the message says.
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "rmsnorm_rht_amax_wrapper_sm100": [
        ({"x_tensor": None}, "x_tensor: got None"),
        ({"x_tensor": bf16(64)}, r"x_tensor: got shape \(64,\), wanted \(M, N\)"),
        ({"x_tensor": bf16(4, 0), "w_tensor": bf16(0)}, "N = 0, wanted a multiple of 16"),
        ({"w_tensor": torch.ones(64)}, "w_tensor: got float32"),
        ({"w_tensor": bf16(128)[::2]}, "w_tensor: got strides"),
        ({"w_tensor": bf16(64).to(META)}, "w_tensor: got meta"),
        *(({"num_threads": threads}, "num_threads: got") for threads in (0, -32, 48, 96, 2048, 32.0, True)),
        *(({"rows_per_cta": rows}, "rows_per_cta: got") for rows in (-1, 1.5, True)),
        ({"rows_per_cta": 3}, "M = 4, wanted a multiple of rows_per_cta = 3"),
    ],
    "rmsnorm_silu_forward": [
        ({"x": bf16(32)}, r"x: got \(32,\), wanted \(T, C\)"),
        ({"x": bf16(4, 0), "weight": bf16(0)}, "C = 0"),
        ({"weight": bf16(16)}, r"weight: got \(16,\), wanted 32 elements"),
        ({"weight": torch.ones(32)}, "weight: got float32"),
        ({"weight": bf16(64)[::2]}, "weight: got strides"),
        ({"weight": bf16(32).to(META)}, "weight: got meta"),
        ({"out_dtype": "float16"}, "out_dtype: got float16"),
    ],
    "tail_rope": [
        ({"x": torch.ones(4, 3, 128)}, "x: got float32"),
        ({"cosine": torch.ones(4, 32).double()}, "cosine: got float64"),
        ({"cosine": torch.ones(3, 32)}, r"cosine: got \(3, 32\)"),
        ({"sine": torch.ones(32, 4).T}, "sine: got strides"),
        ({"sine": torch.ones(4, 32).to(META)}, "sine: got meta"),
        ({"cosine": torch.ones(4, 32).requires_grad_()}, "cosine: got a tensor that requires a gradient"),
        ({"x": 3}, "x: got builtins.int"),
    ],
    "rope_qdq_inplace": [
        ({"x": None}, "x: got None"),
        ({"x": torch.ones(4, 512)}, "x: got float32"),
        ({"cache": torch.ones(5, 64).double()}, "cache: got float64"),
        ({"cache": torch.ones(0, 64)}, "cache: got .* P > 0"),
        ({"cache": torch.ones(64, 5).T}, "cache: got strides"),
        ({"cache": torch.ones(5, 64).to(META)}, "cache: got meta"),
        ({"positions": torch.zeros(4)}, "positions: got float32"),
        ({"group_size": 8}, "group_size: got 8"),
        ({"scale_format": "e5m2"}, "scale_format: got 'e5m2'"),
        ({"backend": "other"}, "backend: got 'other'"),
    ],
    "vision_rope_backward_wrapper": [
        ({"grad_q": None}, "grad_q: got None"),
        ({"grad_q": "q"}, "grad_q: got builtins.str"),
        ({"grad_q": bf16(16, 3, 32).permute(1, 0, 2)}, r"grad_q: got \(3, 16, 32\)"),
        ({"grad_v": bf16(3, 16, 64)}, "grad_v: got strides"),
        ({"grad_v": torch.ones(16, 3, 64).permute(1, 0, 2)}, "grad_v: got float32"),
        ({"cosine": torch.ones(3, 1, 32).double()}, "cosine: got float64"),
        ({"sine": torch.ones(3, 1, 32).to(META)}, "sine: got meta"),
        ({"backend": "other"}, "backend: got 'other'"),
    ],
    "engram_gate_saved_forward": [
        *(({"eps": eps}, "eps: got") for eps in (-1.0, float("inf"), float("nan"))),
        ({"backend": "other"}, "backend: got 'other'"),
        ({"x": bf16(2, 4, 512)}, r"x: got \(2, 4, 512\)"),
        ({"weight": bf16(4, 5120)}, "weight: got bfloat16"),
        ({"token_mask": torch.ones(1, dtype=torch.bool)}, r"token_mask: got \(1,\)"),
        ({"kv": bf16(2, 25600).to(META)}, "kv: got meta"),
    ],
    "engram_gate_saved_backward": [
        ({"saved": torch.ones(2, 4, 4).double()}, "saved: got float64"),
        ({"saved": torch.ones(2, 3, 4)}, r"saved: got \(2, 3, 4\)"),
        ({"grad_out": bf16(1, 4, 5120)}, r"grad_out: got \(1, 4, 5120\)"),
        ({"grad_out": bf16(2, 4, 10240)[..., :5120]}, "grad_out: got strides"),
        ({"backend": "other"}, "backend: got 'other'"),
    ],
    "hstu_lmsd_forward": [
        ({"x_tensor": torch.ones(4, 16)}, "x_tensor: got float32"),
        ({"x_tensor": bf16(16)}, "x_tensor: got shape"),
        ({"x_tensor": bf16(16, 4).T}, "x_tensor: got strides"),
        ({"x_tensor": bf16(65)[1:].view(4, 16)}, "x_tensor: got a data pointer aligned to 2 bytes"),
        ({"x_tensor": bf16(64).as_strided((4, 16), (8, 1))}, "rows 8 elements apart"),
        ({"x_tensor": bf16(4, 12)}, "D = 12"),
        ({"u_tensor": bf16(4, 8)}, r"u_tensor: got \(4, 8\)"),
        ({"u_tensor": bf16(4, 16).to(META)}, "u_tensor: got meta"),
        ({"weight_tensor": torch.ones(16)}, "weight_tensor: got float32"),
        *(({"eps": eps}, "eps: got") for eps in (0.0, -1.0, float("inf"))),
        ({"seed": 1.5}, "seed: got 1.5"),
        ({"seed": -(2**63) - 1}, "seed: got"),
    ],
    "hstu_lmsd_backward": [
        ({"dy_tensor": bf16(4, 16)}, r"dy_tensor: got \(4, 16\)"),
        ({"mean_tensor": torch.ones(4).double()}, "mean_tensor: got float64"),
        ({"mask_tensor": torch.ones(4, 16).to(torch.uint8)}, "mask_tensor: got uint8"),
        ({"mask_tensor": torch.ones(4, 32).to(torch.int8)[:, :16]}, "mask_tensor: got strides"),
        ({"dropout_ratio": 0.0}, "mask_tensor: got a mask with dropout_ratio = 0.0"),
        ({"dx_tensor": torch.ones(4, 16)}, "dx_tensor: got dtype float32"),
        ({"dx_tensor": bf16(4, 8)}, "dx_tensor: got shape"),
        ({"dx_tensor": bf16(4, 20)[:, :16]}, "dx_tensor: got rows 20 elements apart"),
        ({"dweight_tensor": bf16(32)[::2]}, "dweight_tensor: got strides"),
    ],
}


@pytest.mark.parametrize(
    ("function", "change", "message"), [(name, *row) for name, rows in REFUSED.items() for row in rows]
)
def test_refusals(function: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(cudnn, function)(**GOOD[function]() | change)


@pytest.mark.parametrize("function", GOOD)
def test_what_the_rows_change_is_accepted(function: str) -> None:
    assert len(getattr(cudnn, function)(**GOOD[function]())) > 0


def test_overlapping_gradients() -> None:
    given, shared = of_lmsd(), bf16(4, 16)
    for buffers, message in (
        ({"dx_tensor": shared, "du_tensor": shared}, "dx_tensor: got bytes that overlap those of du_tensor"),
        ({"dx_tensor": given["dy_tensor"][:, :16]}, "dx_tensor: got bytes that overlap those of dy_tensor"),
        ({"dbias_tensor": given["bias_tensor"]}, "dbias_tensor: got bytes that overlap those of bias_tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            cudnn.hstu_lmsd_backward(**given | buffers)


@pytest.mark.parametrize(
    ("o", "amax", "message"),
    [
        (bf16(4, 32), torch.zeros(2), r"o_tensor: got shape \(4, 32\)"),
        (torch.ones(4, 64), torch.zeros(2), "o_tensor: got dtype float32"),
        (bf16(4, 128)[:, :64], torch.zeros(2), "o_tensor: got strides"),
        (bf16(4, 64), torch.zeros(2).double(), "amax_tensor: got dtype float64"),
        (bf16(4, 64), torch.zeros(4)[::2], "amax_tensor: got strides"),
    ],
)
def test_samples_of_other_results(o: torch.Tensor, amax: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cudnn.RmsNormRhtAmaxSm100(bf16(4, 64), bf16(64), o, amax).check_support()


def test_numpy_is_refused_alike() -> None:
    import numpy as np

    x = np.ones((4, 60), ml_dtypes.bfloat16)
    with pytest.raises(NotImplementedError, match="D = 60"):
        cudnn.tail_rope(x, np.ones((4, 32), np.float32), np.ones((4, 32), np.float32))
