"""The block-scaled weight gradient against float64, in every format, layout and output mode."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe.core.block_scale import quantize
from cudnn_fe.core.codecs import from_codes, pack_fp4
from cudnn_fe.grouped.classes import GroupedGemmWgradSm100
from cudnn_fe_testkit.moe import ends_of, weight_gradients, worst_expert
from cudnn_fe_testkit.scaled_gemm import KINDS, numbers, wrap

grouped_gemm_wgrad_forward: Any = cudnn_fe.grouped.grouped_gemm_wgrad_forward  # operands are handed over as lists
grouped_gemm_wgrad_jax_forward: Any = cudnn_fe.grouped.grouped_gemm_wgrad_jax_forward
H, WIDE = 140, 24
COUNTS, TAIL = [128, 0, 256], 128


class Case:
    """Operands quantised along t as NumPy bytes, scales placed by the documented offset of each, and their values."""

    def __init__(self, kind: str) -> None:
        self.format = KINDS[kind]
        self.fp4, self.block = self.format.element.bits == 4, self.format.block
        self.ends, self.t = ends_of(COUNTS), sum(COUNTS) + TAIL
        rng = np.random.default_rng(0)
        self.a, self.sfa, self.wide_a = self._operand(rng, H)
        self.b, self.sfb, self.wide_b = self._operand(rng, WIDE)
        self.ga, self.gb = (rng.standard_normal(3).astype(np.float32) for _ in range(2))
        self.needs_global = self.format.scale.name == "float8_e4m3fn"
        self.exact = weight_gradients(self.wide_a, self.wide_b, self.ends)
        if self.needs_global:
            self.exact = self.exact * (self.ga.astype(np.float64) * self.gb)[:, None, None]

    def _operand(self, rng: Any, width: int) -> tuple[Any, Any, Any]:
        """(width, t) codes with t contiguous, packed scales, and (t, width) values."""
        got = quantize(rng.standard_normal((width, self.t)).astype(np.float32), self.format)
        element = getattr(ml_dtypes, self.format.element.name)
        values = from_codes(got.codes, self.format.element).view(element).astype(np.float64)
        scale = getattr(ml_dtypes, self.format.scale.name)
        wide = values * got.scales.view(scale).astype(np.float64).repeat(self.block, 1)
        high = -(-width // 128)
        packed: Any = np.full(
            512 * high * self.t // (4 * self.block), 0x7F, np.uint8
        )  # large or NaN where nothing is read
        begin = 0
        for end in (*self.ends, self.t):
            row, local = np.arange(width)[:, None], np.arange((end - begin) // self.block)[None]
            base = 128 * high * begin // self.block
            inner = ((row // 128) * ((end - begin) // (4 * self.block)) + local // 4) * 512
            offset = base + inner + row % 32 * 16 + row % 128 // 32 * 4 + local % 4
            if end > begin:
                packed[offset] = got.scales[:, begin // self.block : end // self.block]
            begin = end
        codes: Any = got.codes
        return np.ascontiguousarray(pack_fp4(codes) if self.fp4 else codes), packed, wide.T

    def operands(self, framework: str, majors: str = "row column") -> list[Any]:
        """A (h, t), B (t, i), their scales and the ends; ``majors`` says how A and B lie."""
        first, second = majors.split()
        a = self.a if first == "row" else np.ascontiguousarray(self.a.T).T
        b = self.b.T if second == "column" else np.ascontiguousarray(self.b.T)
        names = ("uint8" if self.fp4 else self.format.element.name, self.format.scale.name)
        if framework == "torch":
            element: Any = torch.float4_e2m1fn_x2 if self.fp4 else getattr(torch, names[0])
            data = [torch.from_numpy(x).view(element) for x in (a, b)] if not self.fp4 else [
                torch.from_numpy(self.a).view(element), torch.from_numpy(self.b).view(element).T]  # fmt: skip
            scales = [torch.from_numpy(x).view(getattr(torch, names[1])) for x in (self.sfa, self.sfb)]
            return [*data, *scales, torch.from_numpy(self.ends)]
        kinds = [getattr(ml_dtypes, name, np.uint8) for name in names]
        values = [a.view(kinds[0]), b.view(kinds[0]), *(x.view(kinds[1]) for x in (self.sfa, self.sfb)), self.ends]
        return [wrap(framework, x) for x in values]

    def options(self, framework: str) -> dict[str, Any]:
        scales = {"global_scale_a": wrap(framework, self.ga), "global_scale_b": wrap(framework, self.gb)}
        return {"wgrad_dtype": "float32", "sf_vec_size": self.block} | (scales if self.needs_global else {})

    def check(self, w: Any) -> None:
        assert w.shape == (3, H, WIDE)
        assert worst_expert(numbers(w), self.exact) <= 4 * 2.0**-24 * 256**0.5


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_formats(framework: str, kind: str) -> None:
    case = Case(kind)
    case.check(grouped_gemm_wgrad_forward(*case.operands(framework), **case.options(framework))["wgrad_tensor"])


@pytest.mark.parametrize("majors", ["row row", "row column", "column row", "column column"])
def test_layouts(majors: str) -> None:
    case = Case("mxfp8_e4m3")
    case.check(grouped_gemm_wgrad_forward(*case.operands("torch", majors), **case.options("torch"))[0])


@pytest.mark.parametrize("kind", ["mxfp8_e5m2", "nvfp4"])
def test_jax(kind: str) -> None:
    case = Case(kind)
    a, b, sfa, sfb, ends = case.operands("jax", "row row")
    if case.fp4:
        b = wrap("jax", case.b)  # pairs along t: (i, t/2)
    out = grouped_gemm_wgrad_jax_forward(a, b, ends, sfa_tensor=sfa, sfb_tensor=sfb, **case.options("jax"))
    assert list(out.keys()) == ["wgrad_tensor"]
    case.check(out["wgrad_tensor"])


@pytest.mark.parametrize("kind", ["mxfp8_e4m3", "mxfp4"])
def test_ragged_storage(kind: str) -> None:
    case = Case(kind)
    per, ragged = (2 if case.fp4 else 1), []
    for codes in (case.a, case.b):
        flat, begin = [], 0
        for end in (*case.ends, case.t):
            flat.append(codes[:, begin // per : end // per].ravel())
            begin = end
        ragged.append(np.concatenate(flat).reshape(codes.shape))
    _, _, sfa, sfb, ends = case.operands("numpy")
    kind_of = np.uint8 if case.fp4 else getattr(ml_dtypes, case.format.element.name)
    out = grouped_gemm_wgrad_forward(
        ragged[0].view(kind_of), ragged[1].view(kind_of).T, sfa, sfb, ends, input_order="tensor_ragged",
        **case.options("numpy"),
    )  # fmt: skip
    case.check(out["wgrad_tensor"])


def test_accumulates_and_writes_behind_addresses() -> None:
    case = Case("mxfp8_e4m3")
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
    case = Case("mxfp8_e5m2")
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
    case = Case(kind)
    names = ("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "offsets_tensor")
    given = dict(zip(names, case.operands("numpy"), strict=True)) | case.options("numpy") | changes
    with pytest.raises(ValueError, match=message):
        grouped_gemm_wgrad_forward(**given)


def test_fp4_lies_along_t() -> None:
    case = Case("mxfp4")
    a, b, sfa, sfb, ends = case.operands("numpy")
    with pytest.raises(ValueError, match=r"b_tensor: got strides .*, wanted FP4 pairs along t"):
        grouped_gemm_wgrad_forward(a, np.ascontiguousarray(b), sfa, sfb, ends, sf_vec_size=32)
