"""The block-scaled weight gradient against float64, in every format, layout and output mode."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe.grouped.classes import GroupedGemmWgradSm100
from cudnn_fe_testkit.scaled_gemm import KINDS, wrap
from cudnn_fe_testkit.scaled_wgrad import WIDE, H, WgradCase

grouped_gemm_wgrad_forward: Any = cudnn_fe.grouped.grouped_gemm_wgrad_forward  # operands are handed over as lists
grouped_gemm_wgrad_jax_forward: Any = cudnn_fe.grouped.grouped_gemm_wgrad_jax_forward


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_formats(framework: str, kind: str) -> None:
    case = WgradCase(kind)
    case.check(grouped_gemm_wgrad_forward(*case.operands(framework), **case.options(framework))["wgrad_tensor"])


@pytest.mark.parametrize("majors", ["row row", "row column", "column row", "column column"])
def test_layouts(majors: str) -> None:
    case = WgradCase("mxfp8_e4m3")
    case.check(grouped_gemm_wgrad_forward(*case.operands("torch", majors), **case.options("torch"))[0])


@pytest.mark.parametrize("kind", ["mxfp8_e5m2", "nvfp4"])
def test_jax(kind: str) -> None:
    case = WgradCase(kind)
    a, b, sfa, sfb, ends = case.operands("jax", "row row")
    if case.fp4:
        b = wrap("jax", case.b)  # pairs along t: (i, t/2)
    out = grouped_gemm_wgrad_jax_forward(a, b, ends, sfa_tensor=sfa, sfb_tensor=sfb, **case.options("jax"))
    assert list(out.keys()) == ["wgrad_tensor"]
    case.check(out["wgrad_tensor"])


@pytest.mark.parametrize("kind", ["mxfp8_e4m3", "mxfp4"])
def test_ragged_storage(kind: str) -> None:
    case = WgradCase(kind)
    a, b = case.ragged()
    _, _, sfa, sfb, ends = case.operands("numpy")
    kind_of = np.uint8 if case.fp4 else getattr(ml_dtypes, case.format.element.name)
    out = grouped_gemm_wgrad_forward(
        a.view(kind_of), b.view(kind_of).T, sfa, sfb, ends, input_order="tensor_ragged",
        **case.options("numpy"),
    )  # fmt: skip
    case.check(out["wgrad_tensor"])


def test_accumulates_and_writes_behind_addresses() -> None:
    case = WgradCase("mxfp8_e4m3")
    options = case.options("torch")
    plain = grouped_gemm_wgrad_forward(*case.operands("torch"), **options)["wgrad_tensor"]
    old = torch.full((3, H, WIDE), 2.0)
    out = grouped_gemm_wgrad_forward(*case.operands("torch"), wgrad_tensor=old, accumulate_on_output=True, **options)
    assert out["wgrad_tensor"] is old
    assert torch.equal(old, plain + 2)
    owned = torch.full((3, H, WIDE), 2.0)
    pointers = torch.tensor([matrix.data_ptr() for matrix in owned])
    out = grouped_gemm_wgrad_forward(
        *case.operands("torch"), "discrete", None, pointers, accumulate_on_output=True, **options
    )
    assert out["wgrad_tensor"] is None
    assert torch.equal(owned, plain + 2)


def test_class() -> None:
    case = WgradCase("mxfp8_e5m2")
    a, b, sfa, sfb, ends = case.operands("torch")
    w = torch.zeros(3, H, WIDE)
    made = GroupedGemmWgradSm100(a, b, sfa, sfb, ends, w, sf_vec_size=32)
    made.compile()
    made.execute(a, b, sfa, sfb, ends, w)
    case.check(w)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("nvfp4", {"global_scale_a": None, "global_scale_b": None}, "got none, wanted both"),
        ("mxfp8_e4m3", {"global_scale_a": np.ones(3, np.float32)}, "got one, wanted both or none"),
        ("nvfp4", {"global_scale_a": np.ones(2, np.float32)}, "global_scale_a: got"),
        ("mxfp8_e4m3", {"sf_vec_size": 16}, "scale: got float8_e4m3fn elements with a float8_e8m0fnu scale per 16"),
        ("mxfp8_e4m3", {"sfa_tensor": np.zeros(512, np.uint8)}, "sfa_tensor: got 512 scales, wanted 4096: whole atoms"),
        ("mxfp8_e4m3", {"sfb_tensor": None}, "sfb_tensor: got None"),
        ("mxfp8_e4m3", {"sf_fp8_dtype_override": "e5m3"}, "sf_fp8_dtype_override"),
        (
            "mxfp8_e4m3",
            {"descriptor_workspace": np.zeros(8, np.uint8)},
            "descriptor_workspace: got 8 bytes, wanted 1536",
        ),
        ("mxfp8_e4m3", {"mma_tiler_mn": (256, 64)}, "mma_tiler_mn"),
        ("mxfp8_e4m3", {"wgrad_dtype": "float8_e4m3fn"}, "wgrad_dtype: got float8_e4m3fn"),
    ],
)
def test_refuses(kind: str, changes: dict[str, Any], message: str) -> None:
    case = WgradCase(kind)
    names = ("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "offsets_tensor")
    given = dict(zip(names, case.operands("numpy"), strict=True)) | case.options("numpy") | changes
    with pytest.raises(ValueError, match=message):
        grouped_gemm_wgrad_forward(**given)


def test_fp4_lies_along_t() -> None:
    case = WgradCase("mxfp4")
    a, b, sfa, sfb, ends = case.operands("numpy")
    with pytest.raises(ValueError, match=r"b_tensor: got strides .*, wanted FP4 pairs along t"):
        grouped_gemm_wgrad_forward(a, np.ascontiguousarray(b), sfa, sfb, ends, sf_vec_size=32)
