"""Quantised results are the same bytes in NumPy, torch and JAX, for every block-scaled grouped op that has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe_testkit.scaled_gemm import wrap
from cudnn_fe_testkit.scaled_moe import ExactCase, raw

grouped: Any = cudnn_fe.grouped  # operands are handed over by name
N = 192
OPEN = 512.0  # factor that leaves sums 0 or far from it, where a sigmoid is 1/2, 0 or 1 in float32


def case_of(kind: str, factor: float = 1.0) -> ExactCase:
    """All products and sums are exact in float32, so that only the recipe decides on the bits."""
    case = ExactCase(kind, N, "atoms", k=64)
    rng = np.random.default_rng(8)
    case.a[:32] = 0  # blocks of zeros along rows and columns
    case.alpha = (factor * np.asarray([1, 2, -0.5])).astype(np.float32)
    case.prob = rng.choice(np.asarray([0, 0.25, 1, -2], np.float32), case.m)
    case.norm = np.asarray([0.5], np.float32)
    return case


def kept(case: ExactCase, width: int) -> Any:
    """A pre-activation of integers that are 0 or far from it."""
    return 64 * np.random.default_rng(9).integers(-3, 4, (case.m, width)).astype(np.float32)


def glu(v: Any, _c: Any, options: Any) -> Any:
    return grouped.grouped_gemm_glu_forward(**v, **options)


def dglu(v: Any, c: Any, options: Any) -> Any:
    return grouped.grouped_gemm_swiglu_backward(**v, c_tensor=c, beta_tensor=None, **options)


def srelu(v: Any, _c: Any, options: Any) -> Any:
    return grouped.grouped_gemm_srelu_forward(**v, **options)


def dsrelu(v: Any, c: Any, options: Any) -> Any:
    return grouped.grouped_gemm_srelu_backward(**v, c_tensor=c, **options)


def quant(v: Any, _c: Any, options: Any) -> Any:
    return grouped.grouped_gemm_quant_forward(**v, **options)


CALLS: dict[str, tuple[Callable[..., Any], int, float]] = {  # columns of C, factor of alpha
    "swiglu": (glu, 0, OPEN),
    "dswiglu": (dglu, 2 * N, 1.0),
    "srelu": (srelu, 0, 1.0),
    "dsrelu": (dsrelu, N, 1.0),
    "quant": (quant, 0, 1.0),
}


@pytest.mark.parametrize(
    ("kind", "d_dtype", "by_expert"), [("mxfp8_e4m3", "float8_e4m3fn", True), ("mxfp8_e5m2", "float8_e5m2", False)]
)
@pytest.mark.parametrize("name", CALLS)
def test_grouped(name: str, kind: str, d_dtype: str, by_expert: bool) -> None:
    call, width, factor = CALLS[name]
    case = case_of(kind, factor)
    options = {"d_dtype": d_dtype, "sf_vec_size": 32, "discrete_col_sfd": by_expert}
    found = []
    for framework in ("numpy", "torch", "jax"):
        c = wrap(framework, kept(case, width)) if width else None
        found.append(call(case.wrapped(framework), c, options))
    keys = [key for key in found[0].keys() if key.startswith(("d_row", "d_col", "d_srelu", "d_tensor", "sfd"))]  # noqa: SIM118
    assert len(keys) >= 4
    for key in keys:
        first, *others = (raw(out[key]) for out in found)
        assert first.any(), key
        assert all(np.array_equal(first, other) for other in others), key


FP4: dict[str, Any] = {"torch": torch.float4_e2m1fn_x2}


@pytest.mark.parametrize(("kind", "act"), [("nvfp4", "swiglu"), ("fp4_e8m0_16", "geglu")])
def test_hadamard_quant(kind: str, act: str) -> None:
    case = ExactCase(kind, 512, "atoms", k=32)
    case.alpha = np.full(3, OPEN, np.float32)
    case.prob = np.random.default_rng(3).choice(np.asarray([0, 2.0**-12, -(2.0**-13)], np.float32), case.m)
    found = []
    for framework in ("numpy", "torch", "jax"):
        fp4 = FP4.get(framework, "float4_e2m1fn")
        v = {name: x for name, x in case.wrapped(framework).items() if name != "norm_const_tensor"}
        found.append(
            grouped.grouped_gemm_glu_hadamard_quant_forward(
                **v, act_func=act, d_dtype=fp4, rht_rowwise_dtype=fp4, rht_colwise_dtype=fp4, norm_const=3.0,
                rht_norm_const=0.3,
            )
        )  # fmt: skip
    for key in found[0].keys():  # noqa: SIM118
        first, *others = (raw(out[key]).reshape(-1) for out in found)
        assert first.any(), key
        assert all(np.array_equal(first, other) for other in others), key
