"""FP4 grouped GEMMs with a Hadamard transform, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn_fe.grouped
from cudnn_fe.core.codecs import E2M1, E4M3, decode, unpack_fp4
from cudnn_fe.grouped.classes_hadamard import GroupedGemmGluHadamardQuantSm100, GroupedGemmGluHadamardSm100
from cudnn_fe_testkit.moe import halves, sigmoid
from cudnn_fe_testkit.scaled_gemm import numbers
from cudnn_fe_testkit.scaled_moe import Case, raw

grouped: Any = cudnn_fe.grouped  # operands are handed over by name
H = np.array([[(-1.0) ** (i & j).bit_count() for j in range(16)] for i in range(16)])
KEYS = ["c_tensor", "d_tensor", "sfd_tensor", "rht_rowwise_tensor", "sfrht_rowwise_tensor", "rht_colwise_tensor",
        "sfrht_colwise_tensor"]  # fmt: skip


def operands(case: Case, framework: str) -> dict[str, Any]:
    return {name: x for name, x in case.wrapped(framework).items() if name != "norm_const_tensor"}


def pre_activation(case: Case) -> tuple[Any, Any]:
    alpha = case.rows(case.alpha)
    return case.s * alpha, case.bound * np.abs(alpha) + 2.0**-22 * np.abs(case.s * alpha)


def groups(case: Case) -> list[tuple[int, int]]:
    return list(zip([0, *case.ends[:-1]], case.ends, strict=True))


def column_blocks(d: Any) -> Any:
    """Blocks of 16 rows, zeros at the end, as (blocks, 16, W)."""
    return np.pad(d, ((0, -len(d) % 16), (0, 0))).reshape(-1, 16, d.shape[1])


@pytest.mark.parametrize(
    ("framework", "kind", "act"),
    [
        ("numpy", "nvfp4", "swiglu"),
        ("numpy", "mxfp4", "geglu"),
        ("torch", "fp4_e8m0_16", "situglu"),
        ("torch", "nvfp4", "srelu"),
        ("jax", "nvfp4", "srelu"),
    ],
)
def test_maxima(framework: str, kind: str, act: str) -> None:
    case = Case(kind, 128)
    v = operands(case, framework)
    out = grouped.grouped_gemm_glu_hadamard_forward(**v, act_func=act, c_dtype="float32", sf_vec_size=case.format.block)
    assert list(out.keys()) == ["c_tensor", "d_tensor", "amax_tensor", "post_rht_amax_tensor"]
    x, bound = pre_activation(case)
    assert (np.abs(numbers(out["c_tensor"]) - x) <= bound).all()
    gate, up = halves(x)
    y = {
        "swiglu": lambda: sigmoid(gate) * gate * up,
        "geglu": lambda: sigmoid(1.702 * np.minimum(gate, 7)) * np.minimum(gate, 7) * (np.clip(up, -7, 7) + 1),
        "situglu": lambda: 100 * np.tanh(gate / 4) * sigmoid(gate) * np.tanh(up / 25),
        "srelu": lambda: np.maximum(x, 0) ** 2,
    }[act]() * case.prob.astype(np.float64)[:, None] * case.inside[:, None]  # fmt: skip
    d = numbers(out["d_tensor"])
    assert np.abs(d - y).max() <= 2.0**-8 * np.abs(y).max()
    for (begin, end), before, after in zip(
        groups(case), numbers(out["amax_tensor"])[:, 0], numbers(out["post_rht_amax_tensor"])[:, 0], strict=True
    ):
        # Each is the maximum of what D holds, but for D's own rounding, or of exact sums of what D holds.
        assert abs(before - np.abs(d[begin:end]).max(initial=0.0)) <= 2.0**-8 * before
        wanted = np.abs(H @ column_blocks(d[begin:end])).max(initial=0.0) / 4
        assert abs(after - wanted) <= 16 * 2.0**-24 * 16 * np.abs(d).max()
    assert numbers(out["amax_tensor"])[1] == 0


def test_hadamard_class_with_another_matrix() -> None:
    case = Case("nvfp4", 64)
    v = operands(case, "torch")
    c, d = (torch.zeros(case.m, w, dtype=torch.bfloat16) for w in (64, 32))
    amax, post = torch.zeros(3, 1), torch.zeros(3, 1)
    names = ("sfa_tensor", "padded_offsets", "alpha_tensor", "prob_tensor", "b_tensor", "sfb_tensor")
    shared, matrix = [v[name] for name in names], 4 * torch.eye(16)
    made = GroupedGemmGluHadamardSm100(
        v["a_tensor"], c, d, *shared, sample_amax=amax, sample_post_rht_amax=post, sample_hadamard=matrix
    )
    made.compile()
    made.execute(v["a_tensor"], c, d, *shared, hadamard_tensor=matrix, amax_tensor=amax, post_rht_amax_tensor=post)
    for (begin, end), found in zip(groups(case), post[:, 0], strict=True):
        assert found == (d[begin:end].float().abs().max() if end > begin else 0)
    with pytest.raises(ValueError, match=r"situ_beta1: got 3\.0, wanted 4\.0, as constructed"):
        made.execute(v["a_tensor"], c, d, *shared, hadamard_tensor=matrix, situ_beta1=3.0)


def quantised(x: Any, norm: float, *, columns: bool) -> tuple[Any, Any]:
    """Codes' values and scales of blocks of 16 along the last axis, by the documented formulas in float32."""
    blocks = x.reshape(*x.shape[:-1], -1, 16).astype(np.float32)
    nc, sixth, largest = np.float32(norm), np.float32(1 / 6), np.finfo(np.float32).max
    amax = np.abs(blocks).max(-1)
    wanted = amax * (nc * sixth) if columns else (amax * sixth) * nc
    scales = np.minimum(wanted, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    with np.errstate(divide="ignore"):
        inverse = 1 / (scales * (1 / nc)) if columns else nc * (1 / scales)
    factor = np.minimum(inverse, largest)[..., None]
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    size = np.minimum(np.abs(blocks * factor).astype(np.float64), 7)  # saturates
    steps = np.abs(size[..., None] - grid)
    nearest = steps.min(-1, keepdims=True)
    even = np.array([0, 1, 0, 1, 0, 1, 0, 1])  # ties go to the even code
    code = np.where(steps == nearest, even, 9).argmin(-1)
    return np.sign(blocks) * grid[code], scales


@pytest.mark.parametrize(("framework", "act"), [("numpy", "geglu"), ("torch", "swiglu"), ("jax", "swiglu")])
def test_quantised(framework: str, act: str) -> None:
    case = Case("nvfp4", 512, "atoms", k=32)
    fp4: Any = torch.float4_e2m1fn_x2 if framework == "torch" else "float4_e2m1fn"
    v = operands(case, framework)
    options: dict[str, Any] = {
        "act_func": act, "glu_alpha": 0.5, "glu_limit": 3.0, "norm_const": 20.0, "rht_norm_const": 48.0,
    }  # fmt: skip
    plain = grouped.grouped_gemm_glu_hadamard_quant_forward(**v, **options)
    assert list(plain.keys()) == KEYS
    assert [plain[key] is None for key in KEYS] == [False, False, True, True, True, True, True]
    x, _ = pre_activation(case)
    gate, up = (np.clip(half, -3, 3) for half in halves(x))
    y = sigmoid(gate) * gate * up if act == "swiglu" else sigmoid(1.702 * gate) * gate * (up + 1)
    y = y * case.prob.astype(np.float64)[:, None] * 0.5
    d = numbers(plain["d_tensor"])
    assert (np.abs(d - y) <= 2.0**-8 * np.abs(y) + 1e-4 * np.abs(y).max()).all()

    out = grouped.grouped_gemm_glu_hadamard_quant_forward(
        **v, **options, d_dtype=fp4, rht_rowwise_dtype=fp4, rht_colwise_dtype=fp4
    )
    m, w = d.shape
    turned = (d.reshape(m, -1, 16).astype(np.float32) @ H.astype(np.float32) / 4).reshape(m, w)
    turned = turned.astype(ml_dtypes.bfloat16).astype(np.float32)
    for name, wanted, norm in (("d", d, 20.0), ("rht_rowwise", turned, 48.0)):
        codes = np.asarray(decode(unpack_fp4(raw(out[f"{name}_tensor"])), E2M1))
        values, scales = quantised(wanted, norm, columns=False)
        packed = raw(out[f"sf{name}_tensor"]).reshape(m // 128, w // 64, 32, 4, 4)
        assert np.array_equal(np.asarray(decode(packed.transpose(0, 3, 2, 1, 4).reshape(m, w // 16), E4M3)), scales)
        assert np.array_equal(codes.reshape(values.shape), values)

    codes = np.asarray(decode(unpack_fp4(raw(out["rht_colwise_tensor"])), E2M1))
    packed = np.asarray(decode(raw(out["sfrht_colwise_tensor"]), E4M3))
    for begin, end in groups(case):
        if begin == end:
            continue
        z = np.einsum("ij,bjw->wbi", H.astype(np.float32), column_blocks(d[begin:end].astype(np.float32))) / 4
        z = z.reshape(w, end - begin).astype(ml_dtypes.bfloat16).astype(np.float32)
        values, scales = quantised(z, 48.0, columns=True)
        assert np.array_equal(codes[begin * w : end * w].reshape(values.shape), values)
        segment, high, across = packed[begin * w // 16 : end * w // 16], w // 128, (end - begin) // 64
        f, block = np.arange(w)[:, None], np.arange((end - begin) // 16)[None]
        place = f % 32 * (16 * high * across) + f // 32 % 4 * (4 * high * across) + f // 128 * (4 * across)
        assert np.array_equal(segment[place + block % 4 * across + block // 4], scales)


def test_quant_class() -> None:
    case = Case("nvfp4", 256, "atoms", k=32)
    v = operands(case, "torch")
    m, fp4, e4m3 = case.m, torch.float4_e2m1fn_x2, torch.float8_e4m3fn

    def bytes_of(*shape: int, kind: Any) -> Any:
        return torch.zeros(shape, dtype=torch.uint8).view(kind)

    c = torch.zeros(m, 256, dtype=torch.bfloat16)
    d, sfd = bytes_of(m, 64, kind=fp4), bytes_of(1, m // 128, 2, 32, 4, 4, kind=e4m3)
    column, sf_column = bytes_of(m * 64, kind=fp4), bytes_of(m * 8, kind=e4m3)
    names = ("sfa_tensor", "padded_offsets", "alpha_tensor", "prob_tensor", "b_tensor", "sfb_tensor")
    shared = [v[name] for name in names]
    results = {"sfd": sfd, "rht_colwise": column, "sfrht_colwise": sf_column}
    made = GroupedGemmGluHadamardQuantSm100(
        v["a_tensor"], c, d, *shared, **{f"sample_{name}": x for name, x in results.items()}
    )
    made.compile()
    tensors = {f"{name}_tensor": x for name, x in results.items()}
    made.execute(v["a_tensor"], c, d, *shared, **tensors, norm_const=3.0, rht_norm_const=5.0)
    wanted = grouped.grouped_gemm_glu_hadamard_quant_forward(
        **v, d_dtype=fp4, rht_colwise_dtype=fp4, norm_const=3.0, rht_norm_const=5.0
    )
    for name, found in (("d_tensor", d), *tensors.items()):
        assert np.array_equal(raw(found).reshape(-1), raw(wanted[name]).reshape(-1)), name


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("", {"kind": "mxfp8_e4m3"}, "d_dtype: got bfloat16, wanted"),
        ("", {"b_major": "n"}, "b_major: got 'n'"),
        ("", {"d_dtype": "float32"}, "d_dtype: got float32, wanted bfloat16 or float16"),
        ("", {"act_func": "gelu"}, "act_func: got 'gelu'"),
        ("", {"prob_tensor": None}, "prob_tensor: got None"),
        ("_quant", {"kind": "mxfp8_e4m3"}, "a_tensor: got float8_e4m3fn, wanted FP4 pairs"),
        ("_quant", {"act_func": "situglu"}, "act_func: got 'situglu'"),
        ("_quant", {"d_dtype": "float16"}, "d_dtype: got float16, wanted bfloat16 or"),
        ("_quant", {"rht_rowwise_dtype": "float16"}, "rht_rowwise_dtype: got float16"),
        ("_quant", {"rht_colwise_dtype": "bfloat16"}, "rht_colwise_dtype: got bfloat16"),
        ("_quant", {"rht_colwise_dtype": "float4_e2m1fn"}, "N = 64, wanted a multiple of 128"),
        ("_quant", {"glu_limit": -1.0}, "glu_limit: got -1.0"),
        ("_quant", {"norm_const": np.ones(1)}, "norm_const: got numpy.ndarray, wanted a number"),
        ("_quant", {"sf_fp8_dtype_override": "e5m3"}, "sf_fp8_dtype_override"),
    ],
)
def test_refuses(name: str, changes: dict[str, Any], message: str) -> None:
    case = Case(changes.pop("kind", "nvfp4"), 128)
    given = operands(case, "numpy") | {"sf_vec_size": case.format.block} | changes
    with pytest.raises(ValueError, match=message):
        getattr(grouped, f"grouped_gemm_glu_hadamard{name}_forward")(**given)


def test_jax_entries_are_the_functions() -> None:
    case = Case("mxfp4", 64, "one expert", k=32)
    names = ("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "padded_offsets", "alpha_tensor", "prob_tensor")
    v = operands(case, "jax")
    out = grouped.grouped_gemm_glu_hadamard_jax_forward(*[v[name] for name in names], sf_vec_size=32)
    wanted = grouped.grouped_gemm_glu_hadamard_forward(**operands(case, "numpy"), sf_vec_size=32)
    assert np.allclose(out["amax_tensor"], wanted["amax_tensor"], rtol=1e-5)
    assert out["post_rht_amax_tensor"].shape == (1, 1)
