"""On a GPU: block-scaled grouped GEMMs that go forward, on both main loops, against their definition on a CPU.

Where every sum is exact in float32, what the contracts fix must be bit-equal; activations are held to float64.
"""

# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe.core.settings import override
from cudnn_fe_testkit.moe import halves, sigmoid
from cudnn_fe_testkit.on_gpu import poison
from cudnn_fe_testkit.scaled_gemm import numbers
from cudnn_fe_testkit.scaled_moe import Case, ExactCase, check_results

pytestmark = pytest.mark.gpu

grouped: Any = cudnn_fe.grouped  # operands are handed over by name
EXACT = [("mxfp8_e4m3", "one row"), ("mxfp8_e5m2", "uneven"), ("mxfp4", "one row"), ("nvfp4", "uneven")]
exact = pytest.mark.parametrize(("kind", "route"), EXACT)


@pytest.fixture(params=["sm90", "portable"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "sm90" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for compute capability 9.0")
    poison()
    with override(backend=request.param):
        yield request.param


def cuda(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda").copy_(x)


def raw(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().contiguous().view(-1).view(torch.uint8)


def differing(got: Any, wanted: Any) -> list[str]:
    """Results that are not the same bits."""
    assert list(got.keys()) == list(wanted.keys())
    found = []
    for key, x in wanted.items():
        y = got[key]
        assert (x is None) == (y is None), key
        if x is not None and not (x.stride() == y.stride() and torch.equal(raw(y), raw(x))):
            found.append(f"{key}: {int((raw(y) != raw(x)).sum())} bytes of {raw(x).numel()}")
    return found


def both(function: Any, **given: Any) -> tuple[Any, Any]:
    """The results on a GPU, the same from two calls, and the definition's."""
    with override(backend="reference"):
        wanted = function(**given)
    placed = {name: cuda(x) for name, x in given.items()}
    got, again = function(**placed), function(**placed)
    assert differing(got, again) == []
    return got, wanted


def options_of(case: Case, d_dtype: str | None = None) -> dict[str, Any]:
    kind = d_dtype or ("bfloat16" if case.fp4 else "float8_e4m3fn")
    return {"d_dtype": kind, "sf_vec_size": case.format.block}


def operands(case: Case) -> dict[str, Any]:
    return case.wrapped("torch")


@exact
def test_quant(backend: str, kind: str, route: str) -> None:
    case = ExactCase(kind, 136, route)
    got, wanted = both(grouped.grouped_gemm_quant_forward, **operands(case), **options_of(case))
    assert differing(got, wanted) == []
    more = {
        "bias_tensor": torch.from_numpy(case.bias.T.copy()).T.half() if case.fp4 else torch.from_numpy(case.bias),
        "row_scale_tensor": torch.linspace(-2, 2, case.m),
    }
    options = options_of(case, "float32" if case.fp4 else "bfloat16")
    got, wanted = both(grouped.grouped_gemm_quant_forward, **operands(case), **more, **options)
    assert differing(got, wanted) == []


def test_odd_extents(backend: str) -> None:
    """Rows of 33 elements with 97 of K, at addresses that are multiples of a byte."""
    case = ExactCase("mxfp8_e4m3", 33, "uneven", k=97)
    given = operands(case)
    given["a_tensor"] = torch.cat([torch.zeros(1, dtype=torch.uint8), given["a_tensor"].view(torch.uint8).view(-1)])
    with override(backend="reference"):
        wanted = grouped.grouped_gemm_quant_forward(**operands(case), **options_of(case))
    placed = {name: cuda(x) for name, x in given.items()}
    placed["a_tensor"] = placed["a_tensor"][1:].view(torch.float8_e4m3fn).view(case.m, 97)
    assert differing(grouped.grouped_gemm_quant_forward(**placed, **options_of(case)), wanted) == []


def test_n_major_weights_and_one_expert(backend: str) -> None:
    case = ExactCase("mxfp8_e4m3", 72, "one row")
    given = operands(case)
    given["b_tensor"] = given["b_tensor"].view(torch.uint8).transpose(1, 2).contiguous().view(torch.float8_e4m3fn)
    got, wanted = both(grouped.grouped_gemm_quant_forward, **given, b_major="n", **options_of(case))
    assert differing(got, wanted) == []
    case = ExactCase("nvfp4", 72, "one expert")
    got, wanted = both(
        grouped.grouped_gemm_quant_forward,
        **operands(case),
        use_single_group_runtime_offsets=True,
        **options_of(case),
    )
    assert differing(got, wanted) == []


@pytest.mark.parametrize("d_dtype", ["float8_e5m2", "float8_e4m3fn"])
def test_columns_by_expert(backend: str, d_dtype: str) -> None:
    case = ExactCase("mxfp8_e4m3", 160, "atoms")
    options = options_of(case, d_dtype) | {"discrete_col_sfd": True}
    got, wanted = both(grouped.grouped_gemm_quant_forward, **operands(case), **options)
    assert differing(got, wanted) == []


@exact
@pytest.mark.parametrize("b_major", ["k", "n"])
def test_discrete(backend: str, kind: str, route: str, b_major: str) -> None:
    case = ExactCase(kind, 136, route)
    if case.fp4 and b_major == "n":
        return  # FP4 pairs lie along K
    given = operands(case)
    with override(backend="reference"):
        wanted = grouped.grouped_gemm_quant_forward(**given, **options_of(case))
    placed = {name: cuda(x) for name, x in given.items()}
    weights, scales = placed.pop("b_tensor"), placed.pop("sfb_tensor")
    bytes_of = [x.view(torch.uint8) for x in weights]
    owned = [x.T.contiguous() if b_major == "n" else x.clone() for x in bytes_of]
    packed = [x.view(torch.uint8).clone() for x in scales]
    b_ptrs, sfb_ptrs = (torch.tensor([x.data_ptr() for x in group], device="cuda") for group in (owned, packed))
    got = grouped.grouped_gemm_quant_forward(
        **placed, b_ptrs=b_ptrs, sfb_ptrs=sfb_ptrs, n=136, b_dtype=weights.dtype, b_major=b_major, **options_of(case)
    )
    assert differing(got, wanted) == []


@exact
def test_srelu(backend: str, kind: str, route: str) -> None:
    case = ExactCase(kind, 72, route)
    given = operands(case)
    given["prob_tensor"] = given["prob_tensor"].bfloat16()
    got, wanted = both(grouped.grouped_gemm_srelu_forward, **given, c_dtype="float16", **options_of(case))
    assert differing(got, wanted) == []


def to_cpu(out: Any) -> Any:
    return {key: None if x is None else x.cpu() for key, x in out.items()}


@pytest.mark.parametrize(("kind", "d_dtype"), [("mxfp8_e4m3", "float8_e4m3fn"), ("nvfp4", "bfloat16")])
def test_bounded_srelu(backend: str, kind: str, d_dtype: str) -> None:
    case, clamp = ExactCase(kind, 72, "one row"), 2.5
    out = grouped.grouped_gemm_srelu_forward(
        **{name: cuda(x) for name, x in operands(case).items()}, tanh_clamp_scale=clamp, **options_of(case, d_dtype)
    )
    x, prob = case.s * case.rows(case.alpha), case.prob.astype(np.float64)[:, None]
    r = np.maximum(x, 0)
    bound = 16 * 2.0**-24 * clamp * (r + 1) + 2 * r * 2.0**-22 * np.abs(x)
    check_results(case, to_cpu(out), (clamp * np.tanh(r / clamp)) ** 2 * prob, bound * np.abs(prob), d_dtype)


def activated(act: str, x: Any) -> tuple[Any, Any]:
    """The definition, in float64, and its error per unit: rounded exponents, and approximate functions."""
    gate, up = halves(x)
    units = (16 + np.abs(gate)) * 2.0**-23
    if act == "swiglu":
        return sigmoid(gate) * gate * up, units * np.abs(gate * up)
    if act == "situglu":
        value = 4 * 25 * np.tanh(gate / 4) * sigmoid(gate) * np.tanh(up / 25)
        return value, units * np.abs(gate * up)
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return sigmoid(1.702 * gate) * gate * (up + 1), 2 * units * np.abs(gate) * (np.abs(up) + 1)


@pytest.mark.parametrize("act", ["swiglu", "geglu", "situglu"])
@pytest.mark.parametrize(
    ("kind", "route", "d_dtype"),
    [
        ("mxfp8_e4m3", "one row", "float8_e4m3fn"),
        ("mxfp8_e5m2", "uneven", "float16"),
        ("mxfp4", "one row", "float32"),
        ("nvfp4", "uneven", "bfloat16"),
    ],
)
def test_glu(backend: str, kind: str, route: str, d_dtype: str, act: str) -> None:
    case = ExactCase(kind, 192, route)
    case.alpha /= 16  # so that exponentials see ordinary numbers
    given = operands(case) | {"bias_tensor": torch.from_numpy(case.bias)}
    options = options_of(case, d_dtype) | {"act_func": act, "c_dtype": "float32"}
    got, wanted = both(grouped.grouped_gemm_glu_forward, **given, **options)
    assert torch.equal(got["c_tensor"].cpu(), wanted["c_tensor"])
    prob = case.prob.astype(np.float64)[:, None]
    values, error = activated(act, numbers(wanted["c_tensor"]))
    check_results(case, to_cpu(got), values * prob, error * np.abs(prob), d_dtype)


def test_swiglu_and_its_discrete_form(backend: str) -> None:
    """The dense op and the one of weights behind addresses are one kernel: the same bits, columns by expert too."""
    case = ExactCase("mxfp8_e4m3", 320, "atoms")
    case.alpha /= 16
    placed = {name: cuda(x) for name, x in operands(case).items()}
    options = options_of(case) | {"c_dtype": "bfloat16", "discrete_col_sfd": True}
    dense = grouped.grouped_gemm_swiglu_forward(**placed, **options)
    values, error = activated("swiglu", case.s * case.rows(case.alpha))
    prob = case.prob.astype(np.float64)[:, None]
    joint = grouped.grouped_gemm_swiglu_forward(**placed, **options | {"discrete_col_sfd": False})
    check_results(case, to_cpu(joint), values * prob, 2 * error * np.abs(prob), "float8_e4m3fn")
    assert torch.equal(raw(joint["d_col_tensor"]), raw(dense["d_col_tensor"]))
    assert torch.equal(raw(joint["sfd_col_tensor"]).sort()[0], raw(dense["sfd_col_tensor"]).sort()[0])
    assert not torch.equal(raw(joint["sfd_col_tensor"]), raw(dense["sfd_col_tensor"]))
    b, sfb = placed.pop("b_tensor"), placed.pop("sfb_tensor")
    b_ptrs, sfb_ptrs = (torch.tensor([one.data_ptr() for one in x], device="cuda") for x in (b, sfb))
    discrete = grouped.discrete_grouped_gemm_swiglu_forward(
        placed.pop("a_tensor"), b_ptrs, placed.pop("sfa_tensor"), sfb_ptrs, placed.pop("padded_offsets"),
        placed.pop("alpha_tensor"), 320, b.dtype, **placed, **options,
    )  # fmt: skip
    assert differing(discrete, dense) == []


def test_buffers_keep_rows_past_the_end(backend: str) -> None:
    case = ExactCase("mxfp8_e4m3", 64, "one row")
    placed = {name: cuda(x) for name, x in operands(case).items()}
    fresh = grouped.grouped_gemm_glu_forward(**placed, **options_of(case))
    outs = {key: torch.full_like(x.view(torch.uint8), 0x5A).view(x.dtype) for key, x in fresh.items() if x is not None}
    grouped.grouped_gemm_glu_forward(**placed, **options_of(case), outs=outs)
    end = int(case.ends[-1])
    for key in ("c_tensor", "d_tensor", "d_col_tensor"):
        assert torch.equal(raw(outs[key][:end]), raw(fresh[key][:end])), key
        assert bool((raw(outs[key][end:]) == 0x5A).all()), key
        assert not bool(raw(fresh[key][end:]).any()), key
    for key in ("sfd_row_tensor", "sfd_col_tensor"):
        assert torch.equal(raw(outs[key]), raw(fresh[key])), key


def test_many_experts_and_no_rows_at_all(backend: str) -> None:
    """More experts than a warp has lanes, most of them empty; then none has a row."""
    case = ExactCase("nvfp4", 64, "uneven", k=32)
    rng = np.random.default_rng(3)
    count = 150
    case.b, case.sfb, _ = case._operand(rng, count, 64, 32)
    case.ends = np.sort(rng.integers(0, 138, count)).astype(np.int32)
    case.alpha = rng.standard_normal(count).astype(np.float32)
    got, wanted = both(grouped.grouped_gemm_quant_forward, **operands(case), **options_of(case))
    assert differing(got, wanted) == []
    case.ends[:] = 0
    got, wanted = both(grouped.grouped_gemm_quant_forward, **operands(case), **options_of(case))
    assert differing(got, wanted) == []


def test_in_a_graph(backend: str) -> None:
    """Replays read ends, and the rows that these select, anew."""
    case = ExactCase("mxfp8_e4m3", 64, "one row")
    case.a[~case.inside] = 0x38
    placed = {name: cuda(x) for name, x in operands(case).items()}
    options = options_of(case, "float16") | {"generate_amax": True}

    def forward() -> Any:
        return grouped.grouped_gemm_quant_forward(**placed, **options)

    before = {key: x.clone() for key, x in forward().items() if x is not None}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = forward()
    graph.replay()
    assert all(torch.equal(raw(captured[key]), raw(x)) for key, x in before.items())
    placed["padded_offsets"].copy_(torch.tensor([0, 5, 6, 300, 301, 640, 640, 700]))
    graph.replay()
    wanted = forward()
    assert [key for key in before if not torch.equal(raw(captured[key]), raw(wanted[key]))] == []
    assert not torch.equal(raw(captured["d_tensor"]), raw(before["d_tensor"]))
