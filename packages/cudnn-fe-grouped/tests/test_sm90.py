"""The Hopper kernels without a GPU: what they compile to, what they refuse and why, and which tile a shape gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.gemm_spec import GemmSpec, GemmTile
from cudnn_fe.core.op import Kernel, Op
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.core.toolchain import missing_toolchain
from cudnn_fe.grouped.dglu.op import BACKWARD
from cudnn_fe.grouped.glu.op import FORWARD as GLU
from cudnn_fe.grouped.kernel_spec import RowsSpec, WgradSpec
from cudnn_fe.grouped.tiles import ALONE, BROAD, PAIRED, SHORT, SHORT_WIDE, STACKED, choose_rows_tile, choose_sum_tile
from cudnn_fe.grouped.unfused.op import FORWARD as UNFUSED
from cudnn_fe.grouped.wgrad.op import WGRAD
from cudnn_fe_testkit.machine_code import stack_bytes

needs_compiler = pytest.mark.skipif(
    missing_toolchain() is not None, reason=f"no kernel compiler: {missing_toolchain()}"
)
H200 = Device("cuda:0", (9, 0), 132, "H200")
EXPERTS = 3


def gemm(*outs: str, tile: GemmTile = PAIRED, kind: str = "bfloat16", **more: Any) -> GemmSpec:
    return GemmSpec(kind, kind, outs, tile=replace(tile, early_launch=True), **more)


B = "bfloat16"
SUMS: dict[str, Any] = {"a_major": "mn", "b_major": "mn"}
BACK = (B, "float32", B, B)
CASES: dict[str, tuple[str, Any]] = {
    "plain": ("unfused", RowsSpec(gemm(B, B))),
    "plain, broad": ("unfused", RowsSpec(gemm(B, B, tile=BROAD))),
    "n-major weights": ("unfused", RowsSpec(gemm(B, B, b_major="mn", tile=SHORT_WIDE))),
    "float32 results, bias": (
        "unfused",
        RowsSpec(gemm("float32", "float32", kind="float16"), bias_dtype="float32", wanted=frozenset({"c"})),
    ),
    "addresses": ("unfused", RowsSpec(gemm(B, B, tile=SHORT), addresses="int64", zero_tail=False)),
    "swiglu, broad": ("glu", RowsSpec(gemm(B, B, tile=BROAD), "swiglu", wanted=frozenset({"c"}))),
    "swiglu": ("glu", RowsSpec(gemm(B, B), "swiglu", wanted=frozenset({"c"}))),
    "geglu": ("glu", RowsSpec(gemm(B, B, tile=ALONE), "geglu", bias_dtype=B)),
    "dswiglu": ("dglu", RowsSpec(gemm(*BACK, b_major="mn"), "swiglu", c_dtype=B, wanted=frozenset({"dbias"}))),
    "dgeglu": ("dglu", RowsSpec(gemm(*BACK), "geglu", c_dtype=B, wanted=frozenset({"activation"}))),
    "wgrad": ("wgrad", WgradSpec(gemm(B, **SUMS))),
    "wgrad added": ("wgrad", WgradSpec(gemm("float32", tile=STACKED, **SUMS), adds=True)),
    "wgrad added at addresses": ("wgrad", WgradSpec(gemm(B, **SUMS), adds=True, addresses="int64")),
    "wgrad at addresses": ("wgrad", WgradSpec(gemm(B, **SUMS), addresses="uint8")),
}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_compiles_to_wgmma_and_tma(name: str, tmp_path: Path) -> None:
    folder, spec = CASES[name]
    compile_now(f"cudnn_fe.grouped.{folder}.sm90", spec, "sm_90a", f"--keep-ptx --keep-cubin --dump-dir={tmp_path}")
    texts = {path.name: path.read_text() for path in tmp_path.glob("*.ptx")}
    ptx = next(text for text in texts.values() if "wgmma" in text)
    loads, stores = ("cp.async.bulk.tensor.{}d.shared", "cp.async.bulk.tensor.{}d.global")
    grouped = (loads, stores) if folder == "wgrad" else (stores, loads)
    assert grouped[0].format(4) in ptx, "a group's end is no boundary"
    if getattr(spec, "addresses", None):
        assert grouped[1].format(4) in ptx, "addresses lie outside of the descriptor's reach"
    for atomic in ("\tatom.", "\tred."):
        assert atomic not in ptx, "the order of a sum depends on timing"
    for cubin in tmp_path.glob("*.cubin"):
        assert stack_bytes(cubin.read_bytes()) == 0, "registers are spilled"


@needs_compiler
@pytest.mark.parametrize("tile", [replace(SHORT, split_k=2), replace(SHORT, n=32)])
def test_an_epilogue_that_reads_wants_whole_sums_and_pairs_of_blocks(tile: GemmTile) -> None:
    from cudnn_fe.grouped.dglu.sm90 import launcher  # needs the DSL

    with pytest.raises(ValueError, match="reads wants an even number of blocks, and all of K"):
        launcher(RowsSpec(gemm(*BACK, tile=tile), "swiglu", c_dtype=B))


def tensor(shape: tuple[int, ...], kind: str = B, order: tuple[int, ...] | None = None, **more: Any) -> TensorSpec:
    """``order`` lists the dims, the contiguous one first."""
    strides = contiguous_strides(shape, order or tuple(reversed(range(len(shape)))))
    return TensorSpec(shape, strides, dtype(kind), "cuda:0", **{"alignment": 16, "name": "a_tensor", **more})


def rows(
    op: Op, m: int = 96, n: int = 128, k: int = 64, kind: str = B, d: str = B, n_of_addresses: int = 0, **a: Any
) -> Any:
    options = {"d_dtype": d, "c_dtype": d, "generate_c": False, "n": n_of_addresses}
    options |= {"act_func": "swiglu"} if op is GLU else {}
    vectors = tensor((EXPERTS,), "int32"), tensor((EXPERTS,), "float32"), tensor((m,), "float32")
    if n_of_addresses:
        b = tensor((EXPERTS,), "int64", name="b_tensor")
    else:
        b = tensor((EXPERTS, n, k), kind, name="b_tensor")
    return op.bind(tensor((m, k), kind, **a), b, *vectors, None, **options)


def backward(n: int = 64, **c: Any) -> Any:
    vectors = tensor((EXPERTS,), "int32"), *(tensor((EXPERTS,), "float32"),) * 2, tensor((96,), "float32")
    options = {"generate_dbias": True, "generate_activation": False, "round_dgrad": False, "act_func": "dswiglu"}
    return BACKWARD.bind(
        tensor((96, 64)), tensor((96, 2 * n), name="c_tensor", **c), tensor((EXPERTS, n, 64), name="b_tensor"),
        *vectors, d_dtype=B, **options,
    )  # fmt: skip


def wgrad(
    h: int = 64, i: int = 64, orders: tuple[Any, Any] = ((0, 1), (1, 0)), kind: str = B, old: TensorSpec | None = None
) -> Any:
    a, b = tensor((h, 96), order=orders[0]), tensor((96, i), order=orders[1], name="b_tensor")
    return WGRAD.bind(a, b, tensor((EXPERTS,), "int32"), old, None, wgrad_dtype=kind, ragged=False)


def hopper(op: Op) -> Kernel:
    (kernel,) = (kernel for kernel in op.kernels if kernel.backend == "sm90")
    return kernel


@pytest.mark.parametrize(
    ("op", "problem", "reason"),
    [
        (UNFUSED, rows(UNFUSED, kind="float32"), "a_tensor is float32, and it multiplies bfloat16 and float16 alone"),
        (UNFUSED, rows(UNFUSED, alignment=8), "a_tensor starts at an address that is not a multiple of 16 bytes"),
        (UNFUSED, rows(UNFUSED, k=36), "a_tensor's strides (36, 1) are not positive multiples of 16 bytes"),
        (UNFUSED, rows(UNFUSED, n=36), "d_tensor's rows of 36 elements are not multiples of 16 bytes"),
        (UNFUSED, rows(UNFUSED, m=2**30 + 1, k=8), "a_tensor has 1073741825 rows, more than 1073741824"),
        (GLU, rows(GLU, k=36), "a_tensor's strides (36, 1) are not positive multiples of 16 bytes"),
        (BACKWARD, backward(alignment=4), "c_tensor starts at an address that is not a multiple of 16 bytes"),
        (
            WGRAD,
            wgrad(orders=((1, 0), (1, 0))),
            "a_tensor is contiguous along t, where an expert's rows may begin at any element",
        ),
        (
            WGRAD,
            wgrad(orders=((0, 1), (0, 1))),
            "b_tensor is contiguous along t, where an expert's rows may begin at any element",
        ),
        (WGRAD, wgrad(h=12), "a_tensor's strides (1, 12) are not positive multiples of 16 bytes"),
    ],
)
def test_refusals_name_operand_and_reason(op: Op, problem: Any, reason: str) -> None:
    assert hopper(op).refuse(problem, H200) == reason


def test_what_is_added_to_starts_where_the_copy_engine_reads() -> None:
    here = tensor((EXPERTS, 64, 64), alignment=8, name="wgrad_tensor")
    reason = "wgrad_tensor starts at an address that is not a multiple of 16 bytes"
    assert hopper(WGRAD).refuse(wgrad(old=here), H200) == reason


def test_other_chips_are_refused() -> None:
    reason = "it is written for compute capability 9.0, not 10.0"
    for op, problem in ((UNFUSED, rows(UNFUSED)), (GLU, rows(GLU)), (BACKWARD, backward()), (WGRAD, wgrad())):
        kernel = hopper(op)
        assert kernel.refuse(problem, Device("cuda:0", (10, 0), 148, "B200")) == reason
        assert kernel.refuse(problem, H200) is None


def test_weights_at_addresses_need_whole_rows() -> None:
    kernel = hopper(UNFUSED)
    assert kernel.refuse(rows(UNFUSED, n_of_addresses=128), H200) is None
    spec = kernel.specialise(rows(UNFUSED, n_of_addresses=128), H200)
    assert isinstance(spec, RowsSpec)
    assert spec.addresses == "int64"
    problem = replace(rows(UNFUSED, n_of_addresses=36, d="float32"), n_major=True)
    assert kernel.refuse(problem, H200) == "rows of 36 elements, at addresses, are not multiples of 16 bytes"


def test_extents_enter_the_tile_alone() -> None:
    kernel = hopper(GLU)
    specs: set[Any] = {
        kernel.specialise(rows(GLU, m=m, n=n, k=k), H200)
        for m in (512, 70_000)
        for n in (512, 4096)
        for k in (64, 7168)
    }
    assert len(specs) == 2
    assert len({replace(spec, gemm=replace(spec.gemm, tile=None)) for spec in specs}) == 1


def test_scratch_holds_every_part() -> None:
    kernel = hopper(BACKWARD)
    row_parts, column_parts = kernel.scratch(backward(n=64), None)  # type: ignore[misc]
    assert row_parts.shape == (2, 96)
    # Ends at every row: three experts begin a part each, wherever they end.
    assert column_parts.shape == (96 // 16 + EXPERTS + 1, 128)


@pytest.mark.parametrize(
    ("rows", "groups", "n", "k", "tile"),
    [
        (8 * 2048, 8, 14336, 4096, BROAD),
        (8 * 2048, 8, 14336, 2048, PAIRED),  # K too short to pay for its epilogues
        (256 * 64, 256, 4096, 7168, PAIRED),
        (64 * 256, 64, 2816, 2048, PAIRED),
        (64 * 2, 64, 2816, 2048, SHORT_WIDE),  # as many tiles as multiprocessors, however wide
        (8 * 2, 8, 2048, 2048, SHORT),
        (256 * 16, 256, 4096, 2048, SHORT),
        (256 * 64, 256, 4096, 2048, PAIRED),  # some groups have more
        (1, 1024, 4096, 2048, SHORT),  # one group has a row, whatever their number
        (4096, 8, 384, 2048, ALONE),  # one of two CTAs that share rows would idle at the third column of tiles
        (4096, 8, 1408, 2048, PAIRED),
    ],
)
def test_tile_of_rows(rows: int, groups: int, n: int, k: int, tile: GemmTile) -> None:
    assert choose_rows_tile(rows, groups, n, k, 132) == replace(tile, early_launch=True, persistent_ctas=132)


def test_tile_of_sums() -> None:
    for (m, n), tile in {(4096, 7168): PAIRED, (512, 128): STACKED, (128, 128): ALONE, (384, 256): PAIRED}.items():
        assert choose_sum_tile(m, n, 132) == replace(tile, early_launch=True, persistent_ctas=132)
