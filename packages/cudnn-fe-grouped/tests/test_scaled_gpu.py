"""On a GPU: block-scaled grouped GEMMs that go forward, on both main loops, against their definition on a CPU.

Where every sum is exact in float32, what the contracts fix must be bit-equal; activations are held to float64.
"""

# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe.core.settings import override
from cudnn_fe.grouped.classes_scaled import GroupedGemmSwigluSm100
from cudnn_fe_testkit.moe import halves, sigmoid
from cudnn_fe_testkit.scaled_gemm import numbers
from cudnn_fe_testkit.scaled_gpu import both, cuda, differing, main_loops, raw, to_cpu
from cudnn_fe_testkit.scaled_moe import Case, ExactCase, check_results
from cudnn_fe_testkit.scaled_moe import raw as bytes_of

pytestmark = pytest.mark.gpu

grouped: Any = cudnn_fe.grouped  # operands are handed over by name
EXACT = [("mxfp8_e4m3", "one row"), ("mxfp8_e5m2", "uneven"), ("mxfp4", "one row"), ("nvfp4", "uneven")]
exact = pytest.mark.parametrize(("kind", "route"), EXACT)
backend = main_loops


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


@pytest.mark.parametrize(
    ("kind", "route", "b_major"),
    [("mxfp8_e4m3", "one row", "n"), ("mxfp8_e5m2", "uneven", "k"), ("nvfp4", "one row", "k")],
)
def test_discrete(backend: str, kind: str, route: str, b_major: str) -> None:
    case = ExactCase(kind, 136, route)
    given = operands(case)
    with override(backend="reference"):
        wanted = grouped.grouped_gemm_quant_forward(**given, **options_of(case))
    placed = {name: cuda(x) for name, x in given.items()}
    weights, scales = placed.pop("b_tensor"), placed.pop("sfb_tensor")
    matrices = [x.view(torch.uint8) for x in weights]
    owned = [x.T.contiguous() if b_major == "n" else x.clone() for x in matrices]
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


@pytest.mark.parametrize(
    ("kind", "route", "d_dtype", "act"),
    [
        ("mxfp8_e4m3", "one row", "float8_e4m3fn", "swiglu"),
        ("mxfp8_e4m3", "uneven", "float8_e5m2", "geglu"),
        ("mxfp8_e5m2", "uneven", "float16", "situglu"),
        ("mxfp4", "one row", "float32", "geglu"),
        ("nvfp4", "uneven", "bfloat16", "swiglu"),
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


def largest_sum(d: torch.Tensor) -> torch.Tensor:
    """The largest sum of magnitudes of 16 rows of a column."""
    padded = torch.nn.functional.pad(d.abs(), (0, 0, 0, -len(d) % 16))
    return padded.view(-1, 16, d.shape[1]).sum(1).amax() if len(d) else torch.zeros(())


@pytest.mark.parametrize("act", ["srelu", "swiglu"])
@pytest.mark.parametrize(
    ("kind", "route", "d_dtype"), [("nvfp4", "one row", "bfloat16"), ("mxfp4", "uneven", "float16")]
)
def test_hadamard(backend: str, kind: str, route: str, d_dtype: str, act: str) -> None:
    """Of squared ReLU every bit; else the transform's maxima are of the D that is there, and what it rounds."""
    case = ExactCase(kind, 192, route)
    case.alpha /= 16
    given = operands(case)
    del given["norm_const_tensor"]
    got, wanted = both(
        grouped.grouped_gemm_glu_hadamard_forward, **given, act_func=act, c_dtype="float32", **options_of(case, d_dtype)
    )
    assert torch.equal(got["c_tensor"].cpu(), wanted["c_tensor"])
    if act == "srelu":
        assert differing(got, wanted) == []
    step = 2.0**-7  # a rounding apart
    d, again = (x["d_tensor"].cpu().float() for x in (got, wanted))
    assert bool(((d - again).abs() <= step * again.abs() + 2.0**-24).all())
    parts = d[: int(case.ends[-1])].split(np.diff(case.ends, prepend=0).tolist())
    rows = torch.stack([largest_sum(part) for part in parts])
    # A sum of 16 rounded values errs by their steps; so do its maxima.
    for key, size in (("amax_tensor", again.abs().max()), ("post_rht_amax_tensor", rows / 4)):
        error = (got[key].cpu() - wanted[key]).view(-1).abs()
        assert bool((error <= step * size + 2.0**-24).all()), key


F4: Any = getattr(torch, "float4_e2m1fn_x2", None)
QUANTISED: list[dict[str, Any]] = [
    {"d_dtype": "bfloat16", "rht_rowwise_dtype": "bfloat16", "rht_colwise_dtype": F4},
    {"d_dtype": F4, "rht_rowwise_dtype": F4, "rht_colwise_dtype": F4},
    {"d_dtype": F4},
]


@pytest.mark.parametrize("results", QUANTISED, ids=["bfloat16", "all", "D"])
@pytest.mark.parametrize("counts", [[64, 0, 192, 0], [40, 0, 96, 8]], ids=["whole blocks", "odd"])
def test_hadamard_quant(backend: str, results: dict[str, Any], counts: list[int]) -> None:
    """Squared ReLU of exact sums fixes every bit of the quantised results and of both transforms."""
    case = ExactCase("nvfp4", 128, "uneven")
    rng = np.random.default_rng(4)
    case.ends, case.m = np.cumsum(counts).astype(np.int32), sum(counts) + 32
    case.a, case.sfa, _ = case._operand(rng, 1, case.m, case.k)
    case.b, case.sfb, _ = case._operand(rng, len(counts), 128, case.k)
    case.a = case.a[0]
    case.alpha, case.prob = (rng.standard_normal(x).astype(np.float32) for x in (len(counts), case.m))
    case.alpha /= 16
    given = operands(case) | {"norm_const": 3.0, "rht_norm_const": 2.5, "act_func": "srelu", "c_dtype": "float32"}
    del given["norm_const_tensor"]
    got, wanted = both(grouped.grouped_gemm_glu_hadamard_quant_forward, **given, **results)
    assert differing(got, wanted) == []


@pytest.mark.parametrize("act", ["swiglu", "geglu"])
def test_hadamard_quant_of_gates(backend: str, act: str) -> None:
    case = ExactCase("nvfp4", 256, "one row", k=64)
    case.alpha /= 16
    given = operands(case) | {"act_func": act, "glu_alpha": 1.5, "glu_limit": 2.0, "c_dtype": "float32"}
    del given["norm_const_tensor"]
    got, wanted = both(grouped.grouped_gemm_glu_hadamard_quant_forward, **given, rht_rowwise_dtype="bfloat16")
    assert torch.equal(got["c_tensor"].cpu(), wanted["c_tensor"])
    d, again = (x["d_tensor"].cpu().float() for x in (got, wanted))
    assert bool(((d - again).abs() <= 2.0**-7 * again.abs() + 1e-30).all())
    assert float((d != again).float().mean()) < 0.01  # a rounding apart, where a value lies between two
    turned, back = (x["rht_rowwise_tensor"].cpu().float() for x in (got, wanted))
    size = again.abs().view(len(again), -1, 16).sum(2).repeat_interleave(16, 1)
    assert bool(((turned - back).abs() <= 2.0**-7 * (size / 4 + back.abs()) + 1e-30).all())


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


def test_class_writes_its_buffers(backend: str) -> None:
    case = ExactCase("mxfp8_e4m3", 128, "one row")
    case.alpha /= 16
    v = {name: cuda(x) for name, x in operands(case).items()}
    fresh = grouped.grouped_gemm_swiglu_forward(**v, c_dtype="float32", **options_of(case))
    outs = {key: torch.full_like(x.view(torch.uint8), 3).view(x.dtype) for key, x in fresh.items() if x is not None}
    given = (
        v["a_tensor"], v["b_tensor"], outs["c_tensor"], outs["d_tensor"], v["sfa_tensor"], v["sfb_tensor"],
        v["padded_offsets"], v["alpha_tensor"], outs["d_col_tensor"], outs["sfd_row_tensor"], outs["sfd_col_tensor"],
        None, v["norm_const_tensor"], v["prob_tensor"],
    )  # fmt: skip
    made = GroupedGemmSwigluSm100(*given, sf_vec_size=32)
    made.compile()
    made.execute(*given)
    end = int(case.ends[-1])
    for key, x in outs.items():
        rows = end if key in ("c_tensor", "d_tensor", "d_col_tensor") else len(x)
        assert torch.equal(raw(x[:rows]), raw(fresh[key][:rows])), key
        assert bool((raw(x[rows:]) == 3).all()), key


def test_nan_reaches_what_depends_on_it(backend: str) -> None:
    """A row's results and its expert's maximum; or, in weights, a column of the expert's rows."""
    case = ExactCase("mxfp8_e4m3", 64, "uneven")
    case.a[3, 5], case.b[2, 7, 1] = 0x7F, 0x7F
    placed = {name: cuda(x) for name, x in operands(case).items()}
    out = grouped.grouped_gemm_srelu_forward(**placed, **options_of(case, "bfloat16"))
    wanted = torch.zeros(case.m, 64, dtype=torch.bool)
    wanted[3], wanted[40:137, 7] = True, True
    assert torch.equal(out["d_tensor"].isnan().cpu(), wanted)
    assert torch.equal(out["c_tensor"].isnan().cpu(), wanted)
    assert out["amax_tensor"].isnan().view(-1).tolist() == [True, False, True]
    assert out["amax_tensor"][1].item() == -torch.inf  # no rows


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


def test_jax_jit(backend: str) -> None:
    """Traced ends, and an activation's numbers, which a kernel takes by name there."""
    jax = pytest.importorskip("jax")
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("JAX sees no GPU")
    case = ExactCase("mxfp8_e4m3", 128, "uneven")
    v = case.wrapped("jax")
    names = ("b_tensor", "sfa_tensor", "sfb_tensor")
    fixed = [v[name] for name in names]

    @jax.jit
    def both_ops(a: Any, ends: Any, factors: Any) -> Any:
        shared = (a, *fixed, ends, *factors)
        plain = grouped.grouped_gemm_quant_jax_forward(*shared, d_dtype="float8_e4m3fn", backend=backend)
        gated = grouped.grouped_gemm_swiglu_jax_forward(*shared, c_dtype="float32", backend=backend)
        return dict(plain.items()), gated["c_tensor"]

    factors = [v[name] for name in ("alpha_tensor", "prob_tensor", "norm_const_tensor")]
    plain, c = both_ops(v["a_tensor"], v["padded_offsets"], factors)
    with override(backend="reference"):
        wanted = grouped.grouped_gemm_quant_forward(**case.wrapped("numpy"), **options_of(case))
        gated = grouped.grouped_gemm_swiglu_forward(**case.wrapped("numpy"), c_dtype="float32", **options_of(case))
    for key, x in wanted.items():
        assert (x is None) == (plain[key] is None), key
        assert x is None or np.array_equal(bytes_of(plain[key]), bytes_of(x)), key
    assert np.array_equal(np.asarray(c), gated["c_tensor"])
