"""On a GPU: the block-scaled weight gradient on both main loops, bit for bit where every sum is exact in float32."""

# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from typing import Any

import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe.core.settings import override
from cudnn_fe.grouped.classes import GroupedGemmWgradSm100
from cudnn_fe_testkit.scaled_gemm import KINDS
from cudnn_fe_testkit.scaled_gpu import both, cuda, main_loops
from cudnn_fe_testkit.scaled_wgrad import WgradCase

pytestmark = pytest.mark.gpu

wgrad: Any = cudnn_fe.grouped.grouped_gemm_wgrad_forward  # operands are handed over by name
NAMES = ("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "offsets_tensor")
backend = main_loops


def case_of(kind: str, extents: tuple[int, int] = (140, 72), *, whole: bool = True) -> WgradCase:
    """Experts of one atom of scales, of several, and of none, at the beginning too; more tiles than one."""
    atom = 4 * KINDS[kind].block
    return WgradCase(kind, [0, atom, 3 * atom, 0, 0, 2 * atom, atom], extents, whole=whole)


def given(case: WgradCase, majors: str = "row column", **options: Any) -> dict[str, Any]:
    return dict(zip(NAMES, case.operands("torch", majors), strict=True)) | case.options("torch") | options


@pytest.mark.parametrize(("kind", "wgrad_dtype"), [*((kind, "float32") for kind in KINDS), ("nvfp4", "bfloat16")])
def test_formats(backend: str, kind: str, wgrad_dtype: str) -> None:
    got, wanted = both(wgrad, **given(case_of(kind), wgrad_dtype=wgrad_dtype))
    assert torch.equal(got["wgrad_tensor"].cpu(), wanted["wgrad_tensor"])
    assert float(wanted["wgrad_tensor"].abs().max()) > 1


@pytest.mark.parametrize("majors", ["row row", "column row", "column column"])
def test_layouts(backend: str, majors: str) -> None:
    got, wanted = both(wgrad, **given(case_of("mxfp8_e5m2"), majors))
    assert torch.equal(got["wgrad_tensor"].cpu(), wanted["wgrad_tensor"])


@pytest.mark.parametrize("extents", [(1, 8), (129, 256), (33, 35)], ids=str)
@pytest.mark.parametrize("kind", ["mxfp8_e4m3", "nvfp4"])
def test_extents(backend: str, kind: str, extents: tuple[int, int]) -> None:
    if backend == "sm90" and extents[1] % 4:
        return  # float32 rows that are no multiples of 16 bytes
    got, wanted = both(
        wgrad, **given(case_of(kind, extents), "column row" if kind.startswith("mxfp8") else "row column")
    )
    assert torch.equal(got["wgrad_tensor"].cpu(), wanted["wgrad_tensor"])


@pytest.mark.parametrize("kind", ["mxfp8_e4m3", "mxfp4"])
def test_ragged_storage(backend: str, kind: str) -> None:
    case = case_of(kind)
    plain = given(case)
    element = plain["a_tensor"].dtype
    a, b = (torch.from_numpy(x).view(element) for x in case.ragged())
    wanted = wgrad(**{name: cuda(x) for name, x in plain.items()})["wgrad_tensor"]
    got, _ = both(wgrad, **plain | {"a_tensor": a, "b_tensor": b.T}, input_order="tensor_ragged")
    assert torch.equal(got["wgrad_tensor"], wanted)


def test_normal_values(backend: str) -> None:
    for kind in ("mxfp8_e4m3", "nvfp4"):
        case = case_of(kind, whole=False)
        case.check(wgrad(**{name: cuda(x) for name, x in given(case).items()})["wgrad_tensor"].cpu())


@pytest.mark.parametrize("wgrad_dtype", ["float32", "bfloat16"])
def test_accumulates_and_writes_behind_addresses(backend: str, wgrad_dtype: str) -> None:
    case = case_of("nvfp4")
    placed = {name: cuda(x) for name, x in given(case, wgrad_dtype=wgrad_dtype).items()}
    plain = wgrad(**placed)["wgrad_tensor"]
    begin = torch.full_like(plain, 0.75)
    wanted = (plain.float() + 0.75).to(plain.dtype)
    old = begin.clone()
    out = wgrad(**placed, wgrad_tensor=old, accumulate_on_output=True)
    assert out["wgrad_tensor"] is old
    assert torch.equal(old, wanted)
    for adds, expected in ((True, wanted), (False, plain)):
        owned = [x.clone() for x in begin]
        pointers = torch.tensor([x.data_ptr() for x in owned], device="cuda")
        out = wgrad(**placed, output_mode="discrete", wgrad_ptrs=pointers, accumulate_on_output=adds)
        assert out["wgrad_tensor"] is None
        assert torch.equal(torch.stack(owned), expected)


def test_no_rows_at_all(backend: str) -> None:
    case = case_of("mxfp8_e4m3")
    case.ends[:] = 0
    placed = {name: cuda(x) for name, x in given(case).items()}
    assert not wgrad(**placed)["wgrad_tensor"].any()


def test_class_and_graph(backend: str) -> None:
    """A replay reads ends anew."""
    case = case_of("mxfp8_e5m2")
    placed = {name: cuda(x) for name, x in given(case).items() if name in NAMES}
    tensors, w = list(placed.values()), torch.zeros(7, 140, 72, device="cuda")
    made = GroupedGemmWgradSm100(*tensors, w, sf_vec_size=32)
    made.compile()
    made.execute(*tensors, w)
    wanted = wgrad(**placed, sf_vec_size=32, wgrad_dtype="float32")["wgrad_tensor"]
    assert torch.equal(w, wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.execute(*tensors, w)
    placed["offsets_tensor"].copy_(torch.tensor([128, 128, 128, 256, 256, 256, 512]))
    graph.replay()
    again = wgrad(**placed, sf_vec_size=32, wgrad_dtype="float32")["wgrad_tensor"]
    assert torch.equal(w, again)
    with override(backend="reference"):
        moved = {name: x.cpu() for name, x in placed.items()}
        assert torch.equal(again[:3].cpu(), wgrad(**moved, sf_vec_size=32, wgrad_dtype="float32")["wgrad_tensor"][:3])
