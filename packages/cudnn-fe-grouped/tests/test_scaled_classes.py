"""The block-scaled classes and prepared calls: what they write, what they add to, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe.grouped.classes import GroupedGemmDgluSm100, GroupedGemmGluSm100
from cudnn_fe.grouped.classes_scaled import (
    DiscreteGroupedGemmSwigluSm100,
    GroupedGemmDsreluSm100,
    GroupedGemmQuantSm100,
    GroupedGemmSreluSm100,
    GroupedGemmSwigluSm100,
)
from cudnn_fe.grouped.prepared import prepare_grouped_gemm
from cudnn_fe_testkit.scaled_moe import Case

grouped: Any = cudnn_fe.grouped


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
