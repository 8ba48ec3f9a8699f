"""What the block-scaled grouped GEMMs refuse, with which message; names, signatures, classes, and JAX under jit."""

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
from cudnn_fe.grouped.classes import GroupedGemmDgluSm100, GroupedGemmGluSm100
from cudnn_fe.grouped.classes_scaled import (
    DiscreteGroupedGemmSwigluSm100,
    GroupedGemmDsreluSm100,
    GroupedGemmQuantSm100,
    GroupedGemmSreluSm100,
    GroupedGemmSwigluSm100,
)
from cudnn_fe.grouped.exports import FAMILY
from cudnn_fe.grouped.prepared import prepare_grouped_gemm
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


def torch_results(case: Case, width: int, d_dtype: Any, rows: int) -> dict[str, Any]:
    def bytes_of(*shape: int, kind: Any) -> Any:
        return torch.full(shape, 3, dtype=torch.uint8).view(kind)

    e8m0 = torch.float8_e8m0fnu
    scales = {
        "sfd_row": bytes_of(1, -(-rows // 128), -(-width // 128), 32, 4, 4, kind=e8m0),
        "sfd_col": bytes_of(1, -(-width // 128), -(-rows // 128), 32, 4, 4, kind=e8m0),
    }
    values = {name: bytes_of(rows, width, kind=d_dtype) for name in ("d", "d_col")}
    return values | scales | {"c": torch.full((rows, case.n), 3.0)}


@pytest.mark.parametrize("route", ["uneven", "one expert"])
def test_classes_write_what_the_functions_return(route: str) -> None:
    sample, case = Case("mxfp8_e4m3", 128), Case("mxfp8_e4m3", 128, "uneven", seed=7)
    if route == "one expert":
        case = sample
    s, v = sample.wrapped("torch"), case.wrapped("torch")
    kind, norm = torch.float8_e4m3fn, v["norm_const_tensor"]
    made = torch_results(sample, 64, kind, sample.m)
    glu = GroupedGemmSwigluSm100(
        s["a_tensor"], s["b_tensor"], made["c"], made["d"], s["sfa_tensor"], s["sfb_tensor"], s["padded_offsets"],
        s["alpha_tensor"], made["d_col"], made["sfd_row"], made["sfd_col"], None, norm, s["prob_tensor"],
        sf_vec_size=32,
    )  # fmt: skip
    glu.compile()
    out = torch_results(case, 64, kind, case.m)
    glu.execute(
        v["a_tensor"], v["b_tensor"], out["c"], out["d"], v["sfa_tensor"], v["sfb_tensor"], v["padded_offsets"],
        v["alpha_tensor"], out["d_col"], out["sfd_row"], out["sfd_col"], None, norm, v["prob_tensor"],
    )  # fmt: skip
    wanted = grouped.grouped_gemm_swiglu_forward(**v, c_dtype="float32", d_dtype=kind, sf_vec_size=32)
    inside = torch.from_numpy(case.inside)
    for name in ("c", "d", "d_col"):
        found, there = out[name], wanted[f"{name}_tensor"]
        found, there = (x if x.dtype == torch.float32 else x.view(torch.uint8) for x in (found, there))
        assert torch.equal(found[inside], there[inside])
        assert (found[~inside] == 3).all()  # not written
    for name in ("sfd_row", "sfd_col"):
        assert torch.equal(out[name].view(torch.uint8), wanted[f"{name}_tensor"].view(torch.uint8))


def test_class_of_the_unified_glu_takes_both_modes() -> None:
    case = Case("mxfp8_e4m3", 128)
    v = case.wrapped("torch")
    half, c = torch.zeros(case.m, 64, dtype=torch.bfloat16), torch.zeros(case.m, 128, dtype=torch.bfloat16)
    amax = torch.full((3, 1), 1e9)
    names = ("sfa_tensor", "padded_offsets", "alpha_tensor")
    shared = [v[name] for name in names]
    glu = GroupedGemmGluSm100(
        v["a_tensor"], c, half, *shared, None, v["b_tensor"], v["sfb_tensor"], sample_amax=amax,
        sample_prob=v["prob_tensor"], sf_vec_size=32, act_func="situglu", situ_beta1=2.0,
    )  # fmt: skip
    glu.compile()
    rest = {"prob_tensor": v["prob_tensor"], "amax_tensor": amax, "situ_beta1": None}
    glu.execute(v["a_tensor"], c, half, *shared, v["b_tensor"], v["sfb_tensor"], **rest)
    assert (amax == 1e9).all()  # the maximum with what the buffer holds
    assert half.any()
    with pytest.raises(ValueError, match=r"situ_beta1: got 4\.0, wanted 2.0, as constructed"):
        glu.execute(v["a_tensor"], c, half, *shared, v["b_tensor"], v["sfb_tensor"], prob_tensor=v["prob_tensor"])
    with pytest.raises(ValueError, match="amax_tensor: got None"):
        glu.execute(v["a_tensor"], c, half, *shared, v["b_tensor"], v["sfb_tensor"], **rest | {"amax_tensor": None})


def test_class_rules() -> None:
    case = Case("mxfp8_e4m3", 128)
    v = case.wrapped("torch")
    d = torch.zeros(case.m, 128, dtype=torch.float8_e4m3fn)
    names = ("sfa_tensor", "padded_offsets", "alpha_tensor")
    partly = GroupedGemmQuantSm100(
        v["a_tensor"], *(v[name] for name in names), d, d, v["b_tensor"], v["sfb_tensor"],
        sample_norm_const=v["norm_const_tensor"], sf_vec_size=32,
    )  # fmt: skip
    with pytest.raises(ValueError, match="norm_const_tensor alone, wanted all or none"):
        partly.check_support()
    # Without scales an FP8 result is a plain, saturating cast.
    plain = GroupedGemmQuantSm100(
        v["a_tensor"], *(v[name] for name in names), d, None, v["b_tensor"], v["sfb_tensor"], sf_vec_size=32
    )
    plain.compile()
    plain.execute(v["a_tensor"], *(v[name] for name in names), d, v["b_tensor"], v["sfb_tensor"])
    wide = {name: x for name, x in v.items() if name not in ("prob_tensor", "norm_const_tensor")}
    full = grouped.grouped_gemm_quant_forward(**wide, d_dtype="float16", sf_vec_size=32)["d_tensor"].float()
    assert (d.float() - full).abs().max() <= 2.0**-4 * full.abs().max() + 2.0**-10
    discrete = DiscreteGroupedGemmSwigluSm100(
        v["a_tensor"][..., None], 3, (128, 95), torch.float8_e4m3fn, torch.zeros(case.m, 128, 1), d[:, :64, None],
        v["sfa_tensor"], v["padded_offsets"], v["alpha_tensor"], None, sf_vec_size=32,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"b_shape: got \(128, 95\), wanted \(N, 96\)"):
        discrete.check_support()
    srelu = GroupedGemmSreluSm100(v["a_tensor"], None, sample_d=d, sample_padded_offsets=v["padded_offsets"])
    with pytest.raises(ValueError, match="sample_b"):
        srelu.check_support()


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


def test_backward_classes_add_to_what_their_buffers_hold() -> None:
    case = Case("mxfp8_e4m3", 64)
    v = case.wrapped("torch")
    kind, e8m0, m = torch.float8_e4m3fn, torch.float8_e8m0fnu, case.m
    c = torch.ones(m, 64)
    values = {name: torch.zeros(m, 64, dtype=torch.uint8).view(kind) for name in ("d_row", "d_col", "d_srelu")}
    scales = {
        "sfd_row": torch.zeros(1, 2, 1, 32, 4, 4, dtype=torch.uint8).view(e8m0),
        "sfd_col": torch.zeros(1, 1, 2, 32, 4, 4, dtype=torch.uint8).view(e8m0),
        "sfd_col_d_srelu": torch.zeros(1, 1, 2, 32, 4, 4, dtype=torch.uint8).view(e8m0),
    }
    dprob, dbias = torch.ones(m, 1, 1), torch.ones(3, 64, 1, dtype=torch.bfloat16)
    shared = {name: v[f"{name}_tensor"] for name in ("a", "b", "sfa", "sfb", "alpha", "prob", "norm_const")}
    shared |= {"c": c, "padded_offsets": v["padded_offsets"], "dprob": dprob, "dbias": dbias}
    every = shared | values | scales
    made = GroupedGemmDsreluSm100(**{f"sample_{name}": x for name, x in every.items()}, sf_vec_size=32)
    made.compile()
    made.execute(**{name if name == "padded_offsets" else f"{name}_tensor": x for name, x in every.items()})
    wanted = grouped.grouped_gemm_srelu_backward(**v, c_tensor=c, generate_dbias=True, d_dtype=kind, sf_vec_size=32)
    assert torch.equal(dprob[:, 0, 0][:137], 1 + wanted["dprob_tensor"][:137])
    assert (dprob[137:] == 1).all()
    assert torch.equal(dbias, 1 + wanted["dbias_tensor"])
    for name in ("d_row", "d_srelu", "sfd_col_d_srelu"):
        assert torch.equal(every[name].view(torch.uint8), wanted[f"{name}_tensor"].view(torch.uint8))
    stubborn = GroupedGemmDsreluSm100(
        **{f"sample_{name}": x for name, x in every.items()}, sf_vec_size=32, deterministic=True
    )
    with pytest.raises(NotImplementedError, match="sums have a fixed order"):
        stubborn.check_support()


def test_unified_dglu_class_takes_both_modes() -> None:
    case = Case("mxfp4", 64)
    v = case.wrapped("torch")
    c, d, dprob = torch.ones(case.m, 128), torch.zeros(case.m, 128, dtype=torch.float16), torch.zeros(case.m)
    amax = torch.full((3, 2, 1), -torch.inf)
    operands = (v["sfa_tensor"], v["padded_offsets"], v["alpha_tensor"], v["alpha_tensor"], v["prob_tensor"], dprob)
    made = GroupedGemmDgluSm100(
        v["a_tensor"], c, d, None, *operands, v["b_tensor"], v["sfb_tensor"], sample_amax=amax, sf_vec_size=32
    )
    made.compile()
    made.execute(v["a_tensor"], c, d, None, *operands, v["b_tensor"], v["sfb_tensor"], amax_tensor=amax)
    wanted = grouped.grouped_gemm_swiglu_backward(
        **{name: x for name, x in v.items() if name != "norm_const_tensor"}, c_tensor=c, beta_tensor=v["alpha_tensor"],
        d_dtype="float16", sf_vec_size=32,
    )  # fmt: skip
    assert torch.equal(amax, wanted["amax_tensor"])
    assert torch.equal(d[:137], wanted["d_row_tensor"][:137])
    with pytest.raises(ValueError, match="b_tensor, b_ptrs: got both or neither"):
        made.execute(v["a_tensor"], c, d, None, *operands, amax_tensor=amax)


def test_workspaces_of_the_vendors_reproducible_sums() -> None:
    made = GroupedGemmDsreluSm100
    assert made.dprob_workspace_shape(300, 600) == (300, 3, 1)
    assert made.dprob_workspace_shape(300, 600, (256, 256), (2, 2)) == (300, 4, 1)
    assert made.dbias_workspace_shape(300, 600) == (3, 600, 1)
    slots = torch.arange(6.0).reshape(2, 3, 1)
    dprob = torch.ones(2, 1, 1)
    assert made.reduce_dprob_workspace(slots, dprob) is dprob
    assert dprob[:, 0, 0].tolist() == [4.0, 13.0]
    blocks = torch.tensor([[[1.0]], [[2.0]], [[4.0]]], dtype=torch.bfloat16)
    ends = torch.tensor([128, 128, 384], dtype=torch.int32)
    assert made.reduce_dbias_workspace(blocks, ends)[:, 0, 0].tolist() == [1.0, 0.0, 6.0]


def test_prepared_calls() -> None:
    first, second = Case("mxfp8_e4m3", 64).wrapped("torch"), Case("mxfp8_e4m3", 64, "uneven", seed=3).wrapped("torch")
    options: dict[str, Any] = {"d_dtype": "float8_e4m3fn", "sf_vec_size": 32}
    plan = prepare_grouped_gemm("glu", reuse_row_outputs=True, **first, **options)
    out, again = plan.run(**first), plan.run(**second)
    assert again["d_tensor"].data_ptr() == out["d_tensor"].data_ptr()
    assert again["d_col_tensor"].data_ptr() != out["d_col_tensor"].data_ptr()
    wanted = grouped.grouped_gemm_glu_forward(**second, **options)
    for key in ("d_tensor", "sfd_row_tensor"):
        assert torch.equal(again[key].view(torch.uint8), wanted[key].view(torch.uint8))
    short = Case("mxfp8_e4m3", 64, "atoms").wrapped("torch")
    assert plan.run(**short)["d_tensor"].shape == (384, 32)
    with pytest.raises(ValueError, match="sf_vec_size"):
        plan.run(**first, sf_vec_size=16)
    with pytest.raises(ValueError, match="sfa_tensor: got 1024 scales"):
        plan.run(**short | {"sfa_tensor": first["sfa_tensor"]})
    quant = prepare_grouped_gemm("quant", generate_amax=False, sf_vec_size=32, **first)
    d = torch.zeros(140, 64, dtype=torch.bfloat16)
    found = quant.run(**{name: x for name, x in second.items() if name != "norm_const_tensor"}, outputs={"d_tensor": d})
    assert found["d_tensor"] is d
    assert found["amax_tensor"] is None
