"""The block-scaled weight gradient against float64, in every format, layout and output mode."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe.grouped.classes import GroupedGemmWgradSm100
from cudnn_fe_testkit.moe import weight_gradients
from cudnn_fe_testkit.scaled_gemm import KINDS, numbers, wrap
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


@pytest.mark.parametrize("kind", KINDS)
def test_frameworks_agree_on_every_bit(kind: str) -> None:
    """Of exact sums, in each type of results: rounded once."""
    case = WgradCase(kind, whole=True)
    case.ga[:], case.gb[:] = 0.5, [3, 0.25, -1.25]
    exact = case.exact if not case.needs_global else weight_gradients(case.wide_a, case.wide_b, case.ends)
    factor = (case.ga * case.gb)[:, None, None] if case.needs_global else 1
    for dtype in ("float32", "float16", "bfloat16"):
        wanted = (exact * factor).astype(np.float32).astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float64)
        for framework in ("numpy", "torch", "jax"):
            a, b, *rest = case.operands(framework, "row column" if framework == "torch" else "row row")
            if case.fp4 and framework != "torch":
                b = wrap(framework, case.b) if framework == "jax" else case.b.T
            options = case.options(framework) | {"wgrad_dtype": dtype}
            call = grouped_gemm_wgrad_forward
            if framework == "jax":
                call = grouped_gemm_wgrad_jax_forward
                rest, options["sfa_tensor"], options["sfb_tensor"] = rest[2:], *rest[:2]
            assert np.array_equal(numbers(call(a, b, *rest, **options)["wgrad_tensor"]), wanted), (dtype, framework)


def test_by_hand() -> None:
    """Rows 1.5 and 2 of 128 tokens with scales 2 and 1/2, twice: 384 and, of the expert without tokens, 0."""
    a, b = np.full((1, 256), 1.5, ml_dtypes.float8_e4m3fn), np.full((256, 1), 2.0, ml_dtypes.float8_e4m3fn)
    sfa, sfb = (np.full(1024, x, ml_dtypes.float8_e8m0fnu) for x in (2.0, 0.5))
    ends = np.asarray([128, 128, 256], np.int32)
    factors = {"global_scale_a": np.asarray([1, 2, 0.5], np.float32), "global_scale_b": np.ones(3, np.float32)}
    w = grouped_gemm_wgrad_forward(a, b, sfa, sfb, ends, sf_vec_size=32, **factors)["wgrad_tensor"]
    assert w.astype(np.float32).ravel().tolist() == [384, 0, 192]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_nan_reaches_its_row_of_its_expert(framework: str) -> None:
    case = WgradCase("mxfp8_e4m3")
    case.a[5, 200] = 0x7F
    case.a[:, 384:] = 0x7F  # past the last end
    majors = "row row" if framework == "jax" else "row column"
    w = grouped_gemm_wgrad_forward(*case.operands(framework, majors), **case.options(framework))["wgrad_tensor"]
    bad = np.zeros((3, H, WIDE), bool)
    bad[2, 5] = True
    assert np.array_equal(np.isnan(numbers(w)), bad)


def test_bfloat16_sums_round_before_they_are_added() -> None:
    case = WgradCase("mxfp8_e4m3")
    options = case.options("torch") | {"wgrad_dtype": "bfloat16"}
    plain = grouped_gemm_wgrad_forward(*case.operands("torch"), **options)["wgrad_tensor"]
    old = torch.full((3, H, WIDE), 3.0, dtype=torch.bfloat16)
    grouped_gemm_wgrad_forward(*case.operands("torch"), wgrad_tensor=old, accumulate_on_output=True, **options)
    assert torch.equal(old, (plain.float() + 3).bfloat16())
    fresh = grouped_gemm_wgrad_forward(*case.operands("torch"), accumulate_on_output=True, **options)["wgrad_tensor"]
    assert torch.equal(fresh, plain)  # added to zeros


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
