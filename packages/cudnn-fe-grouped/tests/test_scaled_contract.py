"""What the block-scaled grouped GEMMs refuse, with which message; names, signatures, and JAX under jit."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe.core.errors import CudnnFeError
from cudnn_fe.core.op import resolve
from cudnn_fe.grouped.exports import FAMILY
from cudnn_fe_testkit.scaled_moe import Case

grouped: Any = cudnn_fe.grouped
Changes = dict[str, Any]


def given(kind: str = "mxfp8_e4m3", n: int = 64, framework: str = "numpy", **changes: Any) -> Changes:
    return Case(kind, n).wrapped(framework) | {"sf_vec_size": 32} | changes


REFUSED: list[tuple[Changes, str]] = [
    ({"sf_vec_size": 16}, "scale: got float8_e4m3fn elements with a float8_e8m0fnu scale per 16"),
    ({"sf_vec_size": 64}, "sf_vec_size: got 64, wanted 16 or 32"),
    ({"sfa_tensor": None}, "sfa_tensor: got None"),
    ({"sfb_tensor": None}, "sfb_tensor, sfb_ptrs: got no sfb_tensor"),
    ({"sfa_tensor": np.zeros(512, np.uint8)}, "sfa_tensor: got 512 scales, wanted 1024: whole atoms for 140 rows"),
    ({"sfa_tensor": np.zeros((2, 1024), np.uint8)[:, ::2]}, "sfa_tensor: got strides"),
    ({"sfa_tensor": np.zeros(1024, np.float32)}, "sfa_tensor: got float32"),
    ({"sfb_tensor": np.zeros(1536, np.uint8)}, "sfb_tensor: got uint8, wanted float8_e8m0fnu, as sfa_tensor"),
    ({"b_tensor": np.zeros((3, 64, 96), np.uint8)}, "b_tensor: got uint8, wanted float8_e4m3fn"),
    ({"a_tensor": None}, "a_tensor: got None"),
    ({"a_tensor": np.zeros((140, 96, 1, 1), np.uint8)}, r"a_tensor: got \(140, 96, 1, 1\), wanted \(M, X\) or"),
    ({"a_tensor": np.zeros((96, 140), np.uint8).T}, "a_tensor: got strides"),
    ({"b_tensor": np.zeros((64, 96), np.uint8)}, r"b_tensor: got \(64, 96\), wanted \(L, N, K\)"),
    ({"b_tensor": np.zeros((3, 64, 64), ml_dtypes.float8_e4m3fn)}, r"b_tensor: got \(3, 64, 64\), wanted .*96"),
    ({"padded_offsets": None}, "padded_offsets: got None"),
    ({"padded_offsets": np.asarray([1, 2, 3])}, "padded_offsets: got int64"),
    ({"padded_offsets": np.zeros(6, np.int32)[::2]}, "padded_offsets: got strides"),
    ({"padded_offsets": np.zeros(2, np.int32)}, "b_tensor: got"),
    ({"alpha_tensor": np.ones(3)}, "alpha_tensor: got float64"),
    ({"alpha_tensor": np.ones(2, np.float32)}, r"alpha_tensor: got \(2,\)"),
    ({"prob_tensor": np.ones(5, np.float32)}, r"prob_tensor: got \(5,\)"),
    ({"prob_tensor": np.ones(140)}, "prob_tensor: got float64, wanted float32 or bfloat16"),
    ({"prob_tensor": None}, "prob_tensor: got None"),
    ({"alpha_tensor": None}, "alpha_tensor: got None"),
    ({"d_dtype": "float32"}, "d_dtype: got float32, wanted bfloat16 or float16 or float8_e4m3fn"),
    ({"d_dtype": "float8_e4m3fn", "norm_const_tensor": None}, "norm_const_tensor: got None, wanted a factor"),
    ({"d_dtype": "float8_e4m3fn", "norm_const_tensor": np.ones(2, np.float32)}, "norm_const_tensor"),
    ({"c_dtype": "int32"}, "c_dtype: got int32"),
    ({"tanh_clamp_scale": 0.0}, "tanh_clamp_scale: got 0.0, wanted None, or finite and above 0"),
    ({"acc_dtype": "float16"}, "acc_dtype: got float16, wanted float32"),
    ({"cd_major": "m"}, "cd_major"),
    ({"m_aligned": 128}, "m_aligned"),
    ({"mma_tiler_mn": (256, 64)}, "mma_tiler_mn"),
    ({"cluster_shape_mn": (8, 1)}, "cluster_shape_mn: got .*powers of two up to 4"),
    ({"cluster_shape_mn": (1, 1)}, "an even first extent"),
    ({"bias_tensor": np.ones((3, 64), np.float32)}, "bias_tensor: got"),
    ({"bias_tensor": np.ones((3, 64), np.int32).T}, "bias_tensor: got int32"),
    ({"b_ptrs": np.zeros(3, np.int64)}, "b_tensor, b_ptrs: got both"),
    ({"b_major": "x"}, "b_major: got 'x'"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_srelu_refuses(changes: Changes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        grouped.grouped_gemm_srelu_forward(**given(**changes))
    assert isinstance(caught.value, CudnnFeError)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("grouped_gemm_swiglu_forward", {"n": 96}, "N = 96, wanted a multiple of 64"),
        ("grouped_gemm_swiglu_forward", {"norm_const_tensor": None}, "norm_const_tensor: got None"),
        ("grouped_gemm_swiglu_forward", {"kind": "mxfp4", "d_dtype": "float8_e4m3fn"}, "d_dtype: got float8_e4m3fn"),
        ("grouped_gemm_glu_forward", {"act_func": "relu"}, "act_func: got 'relu'"),
        ("grouped_gemm_glu_forward", {"act_func": "situglu", "situ_beta1": 0.0}, "situ_beta1: got 0.0"),
        ("grouped_gemm_glu_forward", {"sf_fp8_dtype_override": "e5m3"}, "sf_fp8_dtype_override"),
        ("grouped_gemm_glu_forward", {"use_single_group_runtime_offsets": True}, "True with 3 experts"),
        ("grouped_gemm_glu_forward", {"scheduler_counter_tensor": np.zeros(1, np.int32)}, "scheduler_counter_tensor"),
        ("grouped_gemm_glu_forward", {"act_func": "situglu", "situ_beta2": np.inf}, "situ_beta2: got inf"),
        ("grouped_gemm_quant_forward", {"row_scale_tensor": np.ones(3, np.float32)}, "row_scale_tensor: got"),
        ("grouped_gemm_quant_forward", {"row_scale_tensor": np.ones(140)}, "row_scale_tensor: got float64"),
        ("grouped_gemm_quant_forward", {"row_scale_tensor": np.ones(280, np.float32)[::2]}, "row_scale_tensor: got"),
        ("grouped_gemm_quant_forward", {"use_single_group_runtime_offsets": True}, "True with 3 experts"),
        ("grouped_gemm_quant_forward", {"sf_fp8_dtype_override": "e4m3"}, "sf_fp8_dtype_override"),
        ("grouped_gemm_quant_forward", {"norm_const_tensor": None, "d_dtype": "float8_e4m3fn"}, "norm_const_tensor"),
        (
            "grouped_gemm_quant_forward",
            {"scheduler_counter_tensor": np.zeros(1), "use_dynamic_sched": True},
            "scheduler_counter_tensor: got float64, wanted int32",
        ),
        (
            "grouped_gemm_quant_forward",
            {"scheduler_counter_tensor": np.zeros((1, 1), np.int32), "use_dynamic_sched": True},
            "scheduler_counter_tensor: got shape",
        ),
        ("grouped_gemm_quant_forward", {"d_tensor": np.ones((140, 64), np.float32)}, "d_tensor: got dtype float32"),
        ("grouped_gemm_quant_forward", {"d_tensor": np.ones((3, 64), np.float16)}, "d_tensor: got shape"),
    ],
)
def test_others_refuse(name: str, changes: Changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(grouped, name)(**given(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sfb_ptrs": None}, "sfb_ptrs, sfb_tensor: got no sfb_ptrs"),
        ({"b_dtype": "float8_e5m2"}, "b_dtype: got float8_e5m2, wanted float8_e4m3fn"),
        ({"b_dtype": None}, "n, b_dtype: got 64, None"),
        ({"n": 0}, "N > 0"),
        ({"b_major": "x"}, "b_major: got 'x'"),
        ({"b_ptrs": np.zeros(3, np.float32)}, "b_ptrs: got float32, wanted int64"),
        ({"b_ptrs": np.zeros(6, np.int64)[::2]}, "b_ptrs: got strides"),
        ({"act_func": "situglu"}, "act_func"),
        ({"sfb_ptrs": np.zeros(2, np.int64)}, r"sfb_ptrs: got \(2,\), wanted \(3,\)"),
        ({"b_ptrs": np.zeros(3, np.int64)}, "pointer of expert 0"),
    ],
)
def test_discrete_refuses(changes: Changes, message: str) -> None:
    v = {name: x for name, x in given().items() if name not in ("b_tensor", "sfb_tensor")}
    addresses = {"b_ptrs": np.zeros(3, np.int64), "sfb_ptrs": np.zeros(3, np.int64)}
    with pytest.raises(ValueError, match=message):
        grouped.discrete_grouped_gemm_swiglu_forward(**v | addresses | {"n": 64, "b_dtype": "float8_e4m3fn"} | changes)


def test_fp4_weights_lie_along_k() -> None:
    case = Case("nvfp4", 64)
    v = case.wrapped("torch") | {"sf_vec_size": 16}
    v["b_tensor"] = v["b_tensor"].view(torch.uint8).permute(1, 2, 0).contiguous().permute(2, 0, 1)
    v["a_tensor"] = v["a_tensor"].view(torch.uint8)
    with pytest.raises(ValueError, match="b_tensor"):
        grouped.grouped_gemm_srelu_forward(**v)


def backward(**changes: Any) -> Changes:
    v = Case("mxfp8_e4m3", 64).wrapped("numpy")
    more = {"c_tensor": np.ones((140, 128), np.float32), "beta_tensor": np.ones(3, np.float32), "sf_vec_size": 32}
    return v | more | {"d_dtype": "float8_e4m3fn"} | changes


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("grouped_gemm_swiglu_backward", {"d_dtype": None}, "d_dtype: got bfloat16, wanted float8_e4m3fn or"),
        ("grouped_gemm_swiglu_backward", {"prob_tensor": None}, "prob_tensor: got None"),
        ("grouped_gemm_swiglu_backward", {"c_tensor": np.ones((140, 64), np.float32)}, "c_tensor: got"),
        ("grouped_gemm_swiglu_backward", {"beta_tensor": np.ones(2, np.float32)}, "beta_tensor: got"),
        ("grouped_gemm_swiglu_backward", {"epilogue_op": "gelu"}, "epilogue_op: got 'gelu'"),
        ("grouped_gemm_swiglu_backward", {"norm_const_tensor": None}, "norm_const_tensor: got None"),
        ("grouped_gemm_swiglu_backward", {"dprob_tensor_buf": np.ones(3, np.float32)}, "dprob_tensor: got shape"),
        ("grouped_gemm_swiglu_backward", {"c_tensor": np.ones((140, 128), np.int32)}, "c_tensor: got int32"),
        ("grouped_gemm_swiglu_backward", {"padded_offsets": None}, "padded_offsets: got None"),
        ("grouped_gemm_swiglu_backward", {"alpha_tensor": None}, "alpha_tensor: got None"),
        ("grouped_gemm_swiglu_backward", {"dprob_tensor_buf": np.ones(140)}, "dprob_tensor: got dtype float64"),
        ("grouped_gemm_glu_backward", {"act_func": "swiglu"}, "act_func: got 'swiglu'"),
        ("grouped_gemm_glu_backward", {"epilogue_op": "gelu"}, "epilogue_op: got 'gelu'"),
        ("grouped_gemm_glu_backward", {"use_single_group_runtime_offsets": True}, "True with 3 experts"),
        ("grouped_gemm_glu_backward", {"round_dgrad_to_input_dtype": True}, "round_dgrad_to_input_dtype"),
        ("grouped_gemm_glu_backward", {"activation_tensor": np.ones((140, 64))}, "activation_tensor: got a value"),
        ("grouped_gemm_glu_backward", {"act_func": "dsituglu", "situ_beta2": -1.0}, "situ_beta2: got -1.0"),
        ("grouped_gemm_srelu_backward", {"c_tensor": None}, "c_tensor: got None"),
        ("grouped_gemm_srelu_backward", {"tanh_clamp_scale": float("nan")}, "tanh_clamp_scale: got nan"),
    ],
)
def test_backward_refuses(name: str, changes: Changes, message: str) -> None:
    v = backward(**changes)
    if "srelu" in name:
        del v["beta_tensor"]
        v["c_tensor"] = v["c_tensor"] if v["c_tensor"] is None else np.ones((140, 64), np.float32)
    if "glu_b" in name and "swiglu" not in name:
        v["dprob_tensor"] = None
    with pytest.raises(ValueError, match=message):
        getattr(grouped, name)(**v)


@pytest.mark.parametrize("name", ["dprob_tensor_buf", "amax_tensor_buf"])
def test_jax_arrays_are_no_buffers(name: str) -> None:
    v = {key: jnp.asarray(x) if isinstance(x, np.ndarray) else x for key, x in backward().items()}
    with pytest.raises(ValueError, match=f"{name}: got a buffer, wanted None: JAX arrays do not change"):
        grouped.grouped_gemm_swiglu_backward(**v, **{name: jnp.zeros((3, 2, 1))})


WRAPPERS = {
    "grouped_gemm_dswiglu_wrapper_sm100": "grouped_gemm_swiglu_backward",
    "grouped_gemm_dsrelu_wrapper_sm100": "grouped_gemm_srelu_backward",
    "discrete_grouped_gemm_dswiglu_wrapper_sm100": "discrete_grouped_gemm_swiglu_backward",
    "grouped_gemm_swiglu_wrapper_sm100": "grouped_gemm_swiglu_forward",
    "grouped_gemm_srelu_wrapper_sm100": "grouped_gemm_srelu_forward",
    "grouped_gemm_quant_wrapper_sm100": "grouped_gemm_quant_forward",
    "discrete_grouped_gemm_swiglu_wrapper_sm100": "discrete_grouped_gemm_swiglu_forward",
}


@pytest.mark.parametrize(("old", "new"), WRAPPERS.items())
def test_wrappers_are_the_functions_under_old_names(old: str, new: str) -> None:
    wrapper, function = resolve(FAMILY.exports[old]), resolve(FAMILY.exports[new])
    names = [name for name in inspect.signature(function).parameters if name not in ("backend", "outs")]
    assert list(inspect.signature(wrapper).parameters) == names
    assert wrapper.supports_optional_amax if "quant" in old else True


def test_jax_entries_under_jit() -> None:
    case = Case("mxfp8_e4m3", 64, "atoms", k=32)
    v = case.wrapped("jax")
    eager = grouped.grouped_gemm_swiglu_forward(**v, d_dtype="float8_e4m3fn", sf_vec_size=32)
    names = ("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "padded_offsets", "alpha_tensor", "prob_tensor",
             "norm_const_tensor")  # fmt: skip
    run = jax.jit(grouped.grouped_gemm_swiglu_jax_forward)
    out = run(*[v[name] for name in names])
    assert list(out.keys()) == list(eager.keys())
    assert out["amax_tensor"] is None
    for key in ("d_tensor", "sfd_row_tensor"):
        assert np.array_equal(np.asarray(out[key]).view(np.uint8), np.asarray(eager[key]).view(np.uint8))
    ends = np.asarray([0, 256, 384], np.int32)  # offsets are not compiled in
    other = run(*[ends if name == "padded_offsets" else v[name] for name in names])
    assert not np.array_equal(
        np.asarray(other["c_tensor"][:128]).view(np.uint16), np.asarray(out["c_tensor"][:128]).view(np.uint16)
    )
