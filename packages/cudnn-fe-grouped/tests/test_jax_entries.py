"""Every block-scaled JAX entry under jit, with traced offsets: documented keys and shapes, what torch tensors give."""

# Operands are spread from made cases, whose number a type checker cannot know.
# mypy: disable-error-code="misc"

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import cudnn
from cudnn_fe_testkit.scaled_moe import ExactCase, raw
from cudnn_fe_testkit.scaled_moe_backward import kept
from cudnn_fe_testkit.scaled_wgrad import WIDE, H, WgradCase

M, N, L, K = 384, 128, 3, 32
ROWS = (1, 3, 1, 32, 4, 4)  # packed scales of 384 rows of up to four blocks
COLUMNS = (1, 1, 3, 32, 4, 4)  # of up to 128 columns of 12 blocks of rows


@dataclass(frozen=True)
class Entry:
    """A call.

    Attributes:
        name: Its JAX entry.
        like: The function of torch tensors that computes the same.
        kind: Format of the operands.
        shapes: Of the documented results, in order; None where there is none.
        options: Static arguments, those of both.
        width: Columns of C, an operand of derivatives.
        without: Operands that it does not take.
        exact: Whether there is no exponential, so that the frameworks' bits are the same.
    """

    name: str
    like: str
    kind: str
    shapes: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    width: int = 0
    without: tuple[str, ...] = ()
    exact: bool = False

    def operands(self, framework: str) -> dict[str, Any]:
        case = ExactCase(self.kind, N, "atoms", k=K)
        v = case.wrapped(framework)
        c = np.nan_to_num(kept(case, self.width)) if self.width else None
        if c is not None:
            v["c_tensor"] = torch.from_numpy(c) if framework == "torch" else jnp.asarray(c)
        if self.width == 2 * N:
            v["beta_tensor"] = v["alpha_tensor"]
        absent = self.without if "e4m3" in self.kind else (*self.without, "norm_const_tensor")
        return {name: x for name, x in v.items() if name not in absent}


def forward(width: int, *, quantised: bool, c: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {"c_tensor": (M, N)} if c else {}
    scales = (ROWS, COLUMNS) if quantised else (None, None)
    return found | {
        "d_tensor": (M, width), "d_col_tensor": (M, width) if quantised else None,
        "amax_tensor": None if quantised else (L, 1), "sfd_row_tensor": scales[0], "sfd_col_tensor": scales[1],
    }  # fmt: skip


def backward(*, quantised: bool, dbias: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {
        "d_row_tensor": (M, 2 * N), "d_col_tensor": (M, 2 * N) if quantised else None, "dprob_tensor": (M,),
        "dbias_tensor": None, "amax_tensor": None if quantised else (L, 2, 1),
        "sfd_row_tensor": (1, 3, 2, 32, 4, 4) if quantised else None,
        "sfd_col_tensor": (1, 2, 3, 32, 4, 4) if quantised else None,
    }  # fmt: skip
    return found if dbias else {key: shape for key, shape in found.items() if key != "dbias_tensor"}


def of_srelu(*, quantised: bool) -> dict[str, Any]:
    shape, scales = (M, N), COLUMNS if quantised else None
    return {
        "d_row_tensor": shape, "d_col_tensor": shape if quantised else None, "d_srelu_tensor": shape,
        "dprob_tensor": (M,), "dbias_tensor": None, "amax_tensor": None if quantised else (L, 1),
        "sfd_row_tensor": ROWS if quantised else None, "sfd_col_tensor": scales, "sfd_col_d_srelu_tensor": scales,
    }  # fmt: skip


FP8: dict[str, Any] = {"d_dtype": "float8_e4m3fn", "sf_vec_size": 32}
FP4: dict[str, Any] = {"d_dtype": "bfloat16", "sf_vec_size": 16}
QUANT_KEYS = {"no amax": forward(N, quantised=False, c=False) | {"amax_tensor": None}}
GLU, DGLU = ("grouped_gemm_glu_jax_sm100", "grouped_gemm_glu_forward"), (
    "grouped_gemm_dglu_jax_sm100", "grouped_gemm_glu_backward")  # fmt: skip
SRELU = ("grouped_gemm_srelu_jax_forward", "grouped_gemm_srelu_forward")
DSRELU = ("grouped_gemm_dsrelu_jax_sm100", "grouped_gemm_srelu_backward")
QUANT = ("grouped_gemm_quant_jax_forward", "grouped_gemm_quant_forward")
ENTRIES = (
    Entry(*GLU, "mxfp8_e4m3", forward(N // 2, quantised=True), {**FP8, "generate_c": True}),
    Entry(*GLU, "nvfp4", forward(N // 2, quantised=False), {**FP4, "act_func": "geglu"}),
    Entry(*DGLU, "mxfp8_e4m3", backward(quantised=True), FP8, 2 * N),
    Entry(*DGLU, "mxfp4", backward(quantised=False), {**FP4, "sf_vec_size": 32, "act_func": "dgeglu"}, 2 * N),
    Entry(
        "grouped_gemm_swiglu_jax_forward", "grouped_gemm_swiglu_forward", "mxfp8_e4m3", forward(N // 2, quantised=True)
    ),
    Entry(
        "grouped_gemm_swiglu_jax_backward", "grouped_gemm_swiglu_backward", "mxfp8_e4m3",
        backward(quantised=True, dbias=False), width=2 * N,
    ),
    Entry(*SRELU, "mxfp8_e4m3", forward(N, quantised=True), FP8, exact=True),
    Entry(*SRELU, "nvfp4", forward(N, quantised=False), {**FP4, "tanh_clamp_scale": 4.0}),
    Entry(*DSRELU, "mxfp8_e4m3", of_srelu(quantised=True), FP8, N),
    Entry(*DSRELU, "nvfp4", of_srelu(quantised=False), FP4, N),
    Entry(*QUANT, "mxfp8_e4m3", forward(N, quantised=True, c=False), FP8, exact=True),
    Entry(*QUANT, "nvfp4", forward(N, quantised=False, c=False), {**FP4, "generate_amax": True}, exact=True),
    Entry(*QUANT, "mxfp8_e5m2", QUANT_KEYS["no amax"], {"sf_vec_size": 32, "generate_amax": False}, 0,
          ("prob_tensor", "norm_const_tensor"), exact=True),
    Entry(
        "grouped_gemm_glu_hadamard_jax_forward", "grouped_gemm_glu_hadamard_forward", "nvfp4",
        {"c_tensor": (M, N), "d_tensor": (M, N), "amax_tensor": (L, 1), "post_rht_amax_tensor": (L, 1)},
        {"act_func": "srelu"},
    ),
    Entry(
        "grouped_gemm_glu_hadamard_quant_jax_forward", "grouped_gemm_glu_hadamard_quant_forward", "nvfp4",
        {"c_tensor": (M, N), "d_tensor": (M, N // 2), "sfd_tensor": None, "rht_rowwise_tensor": (M, N // 2),
         "sfrht_rowwise_tensor": None, "rht_colwise_tensor": None, "sfrht_colwise_tensor": None},
        {"rht_rowwise_dtype": "bfloat16", "glu_alpha": 0.5, "glu_limit": 3.0},
    ),
)  # fmt: skip


def floats(x: Any) -> Any:
    return np.asarray(x.float() if hasattr(x, "float") else x).astype(np.float64)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.name}-{entry.kind}")
def test_under_jit(entry: Entry) -> None:
    more = FP8 if not entry.options else {}  # the older entries' defaults
    given = entry.operands("torch")
    if entry.like == "grouped_gemm_glu_backward":
        given["dprob_tensor"] = torch.zeros(M)
    wanted = getattr(cudnn, entry.like)(**given, **entry.options, **more)
    out = jax.jit(partial(getattr(cudnn, entry.name), **entry.options))(**entry.operands("jax"))
    shapes = {key: None if x is None else x.shape for key, x in out.items()}
    assert list(shapes) == list(entry.shapes)
    assert shapes == entry.shapes
    for key, x in out.items():
        there = wanted[key]
        if x is None or there is None:
            continue  # a function of torch tensors may return what JAX's does not
        if entry.exact or key.startswith("sf"):
            assert np.array_equal(raw(x).ravel(), raw(there.contiguous()).ravel()), key
        else:
            a, b = floats(x), floats(there)
            finite = np.isfinite(b)
            # Sums in another order, other exponentials: a step of the result's format now and then.
            assert np.array_equal(np.isfinite(a), finite)
            assert np.linalg.norm((a - b)[finite]) <= 2.0**-6 * np.linalg.norm(b[finite]), key


def addresses(v: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Each expert's weights and scales in memory of their own, and where they lie."""
    owned = [[np.array(x) for x in np.asarray(v.pop(name))] for name in ("b_tensor", "sfb_tensor")]
    found = [jnp.asarray(np.array([x.ctypes.data for x in group], np.int64).view(np.uint8)) for group in owned]
    return owned, {"b_ptrs": found[0], "sfb_ptrs": found[1]}


@pytest.mark.parametrize("d_dtype", ["bfloat16", "float8_e4m3fn"])
def test_discrete_swiglu_under_jit(d_dtype: str) -> None:
    case = ExactCase("mxfp8_e4m3", N, "uneven", k=K)
    m = case.m
    wanted = cudnn.grouped_gemm_glu_forward(**case.wrapped("numpy"), d_dtype=d_dtype, sf_vec_size=32)
    v = case.wrapped("jax")
    owned, pointers = addresses(v)
    v |= {"a_tensor": v["a_tensor"][..., None], "prob_tensor": v["prob_tensor"][:, None, None]}
    run = jax.jit(partial(cudnn.discrete_grouped_gemm_swiglu_jax_sm100, n=N, d_dtype=d_dtype))
    out = run(**v, **pointers)
    assert type(out) is dict
    assert set(out) == set(wanted.keys())
    assert [out[key].shape for key in ("c_tensor", "d_tensor", "d_col_tensor")] == [(m, N, 1), (m, 64, 1), (m, 64, 1)]
    assert (out["amax_tensor"] is None) == (d_dtype != "bfloat16")
    assert np.array_equal(raw(out["c_tensor"]).ravel()[: 2 * N * 137], raw(wanted["c_tensor"]).ravel()[: 2 * N * 137])
    assert np.array_equal(raw(out["sfd_row_tensor"]), raw(wanted["sfd_row_tensor"]))
    assert not raw(out["d_tensor"])[137:].any()  # rows past the last end
    del owned


@pytest.mark.parametrize("kind", ["mxfp8_e4m3", "nvfp4", "mxfp4"])
def test_wgrad_under_jit(kind: str) -> None:
    case = WgradCase(kind, whole=True)
    a, b, sfa, sfb, ends = case.operands("jax", "row row")
    b = jnp.asarray(case.b) if case.fp4 else b  # the entry takes pairs along t as (n, t / 2)
    given = {"sfa_tensor": sfa, "sfb_tensor": sfb}
    options = case.options("jax")
    factors = {name: options.pop(name) for name in list(options) if name.startswith("global")}

    def run(a: Any, b: Any, ends: Any, scales: Any, factors: Any) -> Any:
        return cudnn.grouped_gemm_wgrad_jax_sm100(a, b, ends, **scales, **factors, **options)

    out = jax.jit(run)(a, b, ends, given, factors)
    assert list(out.keys()) == ["wgrad_tensor"]
    assert out["wgrad_tensor"].shape == (3, H, WIDE)
    case.check(out["wgrad_tensor"])
