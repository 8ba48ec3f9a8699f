"""On a GPU: block-scaled grouped GEMMs that go backward, on both main loops.

Where every sum is exact in float32, what the contracts fix must have the definition's bits; the rest is held to
float64.
"""

# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe_testkit.moe import sums, worst_expert
from cudnn_fe_testkit.scaled_gemm import numbers
from cudnn_fe_testkit.scaled_gpu import both, cuda, differing, main_loops, raw, to_cpu
from cudnn_fe_testkit.scaled_moe import Case, ExactCase, check_results
from cudnn_fe_testkit.scaled_moe_backward import check_amax, derivative, kept

pytestmark = pytest.mark.gpu

grouped: Any = cudnn_fe.grouped  # operands are handed over by name
backend = main_loops
EXACT = [
    ("mxfp8_e4m3", "one row", "bfloat16"),
    ("mxfp8_e5m2", "uneven", "float8_e5m2"),
    ("mxfp4", "one row", "float16"),
    ("nvfp4", "uneven", "float32"),
]
DBIAS = 2.0**-8 + 2.0**-12  # bfloat16's rounding, and float32 sums


def options_of(case: Case, d_dtype: str | None = None) -> dict[str, Any]:
    kind = d_dtype or ("bfloat16" if case.fp4 else "float8_e4m3fn")
    return {"d_dtype": kind, "sf_vec_size": case.format.block}


def whole(case: Case, width: int, kind: str = "bfloat16") -> torch.Tensor:
    """C of small integers, NaN in rows past the end."""
    c = torch.from_numpy(np.random.default_rng(9).integers(-3, 4, (case.m, width)).astype(np.float32))
    c[torch.from_numpy(~case.inside)] = torch.nan
    return c.to(getattr(torch, kind))


def on_gpu(given: dict[str, Any]) -> dict[str, Any]:
    return {name: cuda(x) for name, x in given.items()}


@pytest.mark.parametrize(("kind", "route", "c_dtype"), EXACT)
def test_dsrelu(backend: str, kind: str, route: str, c_dtype: str) -> None:
    case = ExactCase(kind, 72, route)
    c = whole(case, 72, c_dtype)
    got, wanted = both(
        grouped.grouped_gemm_srelu_backward, **case.wrapped("torch"), c_tensor=c, generate_dbias=True,
        **options_of(case),
    )  # fmt: skip
    sums_of_many = {"dprob_tensor", "dbias_tensor"}  # in another order than the definition's
    assert [key for key in map(_name, differing(got, wanted)) if key not in sums_of_many] == []
    d, _, dprob, room = derivative(case, "srelu", c.float().numpy(), beta=False)
    assert (np.abs(numbers(got["dprob_tensor"].cpu()) - dprob) <= room).all()
    assert worst_expert(numbers(got["dbias_tensor"].cpu())[..., 0], sums(d, case.ends)) <= DBIAS


def _name(described: str) -> str:
    return described.partition(":")[0]


@pytest.mark.parametrize(("kind", "d_dtype"), [("mxfp8_e4m3", "float8_e4m3fn"), ("nvfp4", "bfloat16")])
def test_bounded_dsrelu(backend: str, kind: str, d_dtype: str) -> None:
    case, clamp = Case(kind, 70, "one row", seed=6), 2.5
    c = kept(case, 70)
    out = grouped.grouped_gemm_srelu_backward(
        **on_gpu(case.wrapped("torch")), c_tensor=torch.from_numpy(c).cuda(), tanh_clamp_scale=clamp,
        **options_of(case, d_dtype),
    )  # fmt: skip
    d, error, dprob, room = derivative(case, f"srelu {clamp}", c, beta=False)
    check_results(case, to_cpu(out), d, error, d_dtype, "d_row_tensor")
    assert (np.abs(numbers(out["dprob_tensor"].cpu()) - dprob) <= room).all()


@pytest.mark.parametrize(
    ("act", "kind", "route", "d_dtype"),
    [
        ("swiglu", "mxfp8_e4m3", "one row", "float8_e4m3fn"),
        ("swiglu", "nvfp4", "uneven", "bfloat16"),
        ("geglu", "mxfp8_e5m2", "uneven", "float8_e5m2"),
        ("geglu", "nvfp4", "one row", "float16"),
        ("situglu", "mxfp8_e4m3", "uneven", "float8_e5m2"),
        ("situglu", "mxfp4", "one row", "float32"),
    ],
)
def test_dglu(backend: str, act: str, kind: str, route: str, d_dtype: str) -> None:
    case = Case(kind, 96, route, seed=5)
    c = kept(case, 192)
    c[: case.m // 3] *= 4  # on both sides of the clamps
    begin = torch.linspace(0, 1, case.m)
    given = on_gpu(case.wrapped("torch")) | {
        "c_tensor": torch.from_numpy(c).cuda(), "beta_tensor": torch.from_numpy(case.beta).cuda()
    }  # fmt: skip
    options = options_of(case, d_dtype) | {"act_func": f"d{act}", "generate_dbias": True}
    buffers = [begin.cuda() for _ in range(2)]
    out, again = (grouped.grouped_gemm_glu_backward(**given, dprob_tensor=buffer, **options) for buffer in buffers)
    assert differing(out, again) == []
    d, error, dprob, room = derivative(case, act, c, beta=act != "geglu")  # dgeglu leaves C as it is, as documented
    check_results(case, to_cpu(out), d, error, d_dtype, "d_row_tensor")
    if out["amax_tensor"] is not None:
        check_amax(to_cpu(out), d, case, error)
    found = numbers(buffers[0].cpu())
    assert (np.abs(found - begin.numpy() - dprob) <= room + 2.0**-22 * np.abs(dprob))[case.inside].all()
    assert np.array_equal(found[~case.inside], begin.numpy()[~case.inside])  # not written
    assert worst_expert(numbers(out["dbias_tensor"].cpu())[..., 0], sums(d, case.ends)) <= DBIAS


@pytest.mark.parametrize("c_dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_what_the_forward_kept_in_any_type(backend: str, c_dtype: str) -> None:
    """The bits of the same values in float32; N of half a tile."""
    case = ExactCase("mxfp8_e4m3", 32, "one row")
    given = on_gpu(case.wrapped("torch")) | {"beta_tensor": None}
    narrow = whole(case, 64, c_dtype).cuda()
    found = [
        grouped.grouped_gemm_swiglu_backward(**given, c_tensor=c, **options_of(case)) for c in (narrow, narrow.float())
    ]
    assert differing(*found) == []
    assert raw(found[0]["d_row_tensor"]).any()


def test_odd_extents(backend: str) -> None:
    """Rows of 33 elements with 97 of K."""
    case = ExactCase("mxfp8_e4m3", 33, "uneven", k=97)
    got, wanted = both(
        grouped.grouped_gemm_srelu_backward, **case.wrapped("torch"), c_tensor=whole(case, 33), **options_of(case)
    )
    assert [key for key in map(_name, differing(got, wanted)) if key != "dprob_tensor"] == []


@pytest.mark.parametrize("by_expert", [False, True])
def test_discrete(backend: str, by_expert: bool) -> None:
    """Weights behind addresses: the dense op's bits, and columns packed by expert too."""
    case = ExactCase("mxfp8_e4m3", 160, "atoms")
    case.alpha /= 16
    placed = on_gpu(case.wrapped("torch")) | {"c_tensor": whole(case, 320).cuda(), "beta_tensor": None}
    options = options_of(case) | {"act_func": "dgeglu", "generate_dbias": True, "discrete_col_sfd": by_expert}
    dense = grouped.grouped_gemm_glu_backward(**placed, dprob_tensor=torch.zeros(case.m, device="cuda"), **options)
    b, sfb = placed.pop("b_tensor"), placed.pop("sfb_tensor")
    b_ptrs, sfb_ptrs = (torch.tensor([one.data_ptr() for one in x], device="cuda") for x in (b, sfb))
    got = grouped.discrete_grouped_gemm_swiglu_backward(
        **placed, b_ptrs=b_ptrs, sfb_ptrs=sfb_ptrs, n=160, b_dtype=b.dtype,
        dprob_tensor=torch.zeros(case.m, device="cuda"), **options,
    )  # fmt: skip
    assert differing(got, dense) == []
    given = {**case.wrapped("torch"), "c_tensor": whole(case, 160)}
    got, wanted = both(
        grouped.grouped_gemm_srelu_backward, **given, discrete_col_sfd=by_expert, **options_of(case)
    )  # fmt: skip
    assert [key for key in map(_name, differing(got, wanted)) if key != "dprob_tensor"] == []


def test_many_experts_and_no_rows_at_all(backend: str) -> None:
    """More experts than a warp has lanes, several in most tiles; then none has a row."""
    case = ExactCase("nvfp4", 64, "uneven", k=32)
    rng = np.random.default_rng(3)
    count = 150
    case.b, case.sfb, _ = case._operand(rng, count, 64, 32)
    case.ends = np.sort(rng.integers(0, 138, count)).astype(np.int32)
    case.alpha = rng.integers(-2, 3, count).astype(np.float32)
    for ends in (case.ends, np.zeros_like(case.ends)):
        case.ends = ends
        case.inside = np.arange(case.m) < ends[-1]
        got, wanted = both(
            grouped.grouped_gemm_srelu_backward, **case.wrapped("torch"), c_tensor=whole(case, 64),
            generate_dbias=True, **options_of(case),
        )  # fmt: skip
        assert [key for key in map(_name, differing(got, wanted)) if key != "dprob_tensor"] == []  # few rows: exact


def test_in_a_graph(backend: str) -> None:
    """Replays read ends, and the rows that these select, anew."""
    case = ExactCase("mxfp8_e4m3", 64, "one row")
    case.a[~case.inside] = 0x38
    placed = on_gpu(case.wrapped("torch")) | {"c_tensor": torch.ones(case.m, 64, device="cuda")}
    options = options_of(case, "float8_e5m2") | {"generate_dbias": True}

    def backward() -> Any:
        return grouped.grouped_gemm_srelu_backward(**placed, **options)

    before = {key: x.clone() for key, x in backward().items() if x is not None}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = backward()
    graph.replay()
    assert all(torch.equal(raw(captured[key]), raw(x)) for key, x in before.items())
    placed["padded_offsets"].copy_(torch.tensor([0, 5, 6, 300, 301, 640, 640, 700]))
    graph.replay()
    wanted = backward()
    assert [key for key in before if not torch.equal(raw(captured[key]), raw(wanted[key]))] == []
    assert not torch.equal(raw(captured["d_row_tensor"]), raw(before["d_row_tensor"]))
