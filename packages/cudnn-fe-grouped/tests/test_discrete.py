"""Weights and results behind addresses: the same bits as dense ones, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cudnn_fe.core.errors import BackendError
from cudnn_fe.core.settings import override
from cudnn_fe.grouped import (
    grouped_gemm_forward,
    grouped_gemm_glu_backward,
    grouped_gemm_glu_forward,
    grouped_gemm_glu_jax_backward,
    grouped_gemm_glu_jax_forward,
    grouped_gemm_jax_forward,
    grouped_gemm_wgrad_forward,
    grouped_gemm_wgrad_jax_forward,
)
from cudnn_fe.grouped.classes import GroupedGemmDgluSm100, GroupedGemmGluSm100, GroupedGemmSm100, GroupedGemmWgradSm100

K, N, M, L = 16, 64, 12, 3
ENDS = np.array([5, 5, 11], np.int32)
MAKE: dict[str, Any] = {"numpy": np.asarray, "torch": torch.from_numpy, "jax": jnp.asarray}
framework = pytest.mark.parametrize("framework", sorted(MAKE))


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


class Weights:
    """Experts' matrices, each in memory of its own, and their addresses."""

    def __init__(self, n: int, k: int, major: str, framework: str) -> None:
        self.dense, self.major = normal(L, n, k), major
        turned = self.dense.transpose(0, 2, 1) if major == "n" else self.dense
        self.owned = [aligned(matrix) for matrix in turned]
        self.pointers: Any = MAKE[framework](addresses(self.owned, bytewise=framework == "jax"))


def aligned(matrix: Any) -> Any:
    """A copy at a multiple of 16 bytes."""
    room = np.zeros(matrix.size + 4, np.float32)
    skip = -room.ctypes.data % 16 // 4
    copy = room[skip : skip + matrix.size].reshape(matrix.shape)
    copy[:] = matrix
    return copy


def addresses(arrays: Any, *, bytewise: bool) -> Any:
    found = np.array([array.ctypes.data for array in arrays], np.int64)
    return found.view(np.uint8) if bytewise else found  # JAX has no int64 unless asked for


def rows(framework: str, k: int = K) -> dict[str, Any]:
    make = MAKE[framework]
    return {
        "a": make(normal(M, k)),
        "ends": make(ENDS.copy()),
        "alpha": make(normal(L)),
        "beta": make(normal(L) + 1),
        "prob": make(normal(M)),
    }


def same(got: Any, wanted: Any) -> bool:
    first, second = (np.asarray(x.float() if hasattr(x, "float") else x) for x in (got, wanted))
    return first.tobytes() == second.tobytes()


@framework
@pytest.mark.parametrize("major", ["k", "n"])
def test_forward(framework: str, major: str) -> None:
    v, w = rows(framework), Weights(N, K, major, framework)
    discrete: dict[str, Any] = {"b_ptrs": w.pointers, "n": N, "b_dtype": "float32", "b_major": major}
    dense = MAKE[framework](w.dense)
    options: dict[str, Any] = {"prob_tensor": v["prob"], "d_dtype": "float32", "generate_c": True}
    got = grouped_gemm_forward(v["a"], v["ends"], v["alpha"], **discrete, **options)
    wanted = grouped_gemm_forward(v["a"], v["ends"], v["alpha"], dense, **options)
    assert all(same(g, e) for g, e in zip(got, wanted, strict=True))
    got = grouped_gemm_glu_forward(v["a"], None, v["ends"], v["alpha"], **discrete, **options)
    wanted = grouped_gemm_glu_forward(v["a"], None, v["ends"], v["alpha"], dense, **options)
    assert same(got["d_tensor"], wanted["d_tensor"])
    assert same(got["c_tensor"], wanted["c_tensor"])


@framework
def test_backward(framework: str) -> None:
    v, w = rows(framework), Weights(N, K, "n", framework)
    c = MAKE[framework](normal(M, 2 * N))
    shared = (v["a"], c, None, v["ends"], v["alpha"], v["beta"], v["prob"])
    results = []
    for weights in (
        {"b_ptrs": w.pointers, "n": N, "b_dtype": "float32", "b_major": "n"},
        {"b_tensor": MAKE[framework](w.dense)},
    ):
        dprob = None if framework == "jax" else MAKE[framework](np.zeros(M, np.float32))
        results.append(grouped_gemm_glu_backward(*shared, dprob, generate_dbias=True, d_dtype="float32", **weights))
    for key in ("d_row_tensor", "dprob_tensor"):
        assert same(results[0][key], results[1][key])
    assert same(results[0]["dbias_tensor"], results[1]["dbias_tensor"])


@framework
@pytest.mark.parametrize("accumulate", [False, True])
def test_wgrad(framework: str, accumulate: bool) -> None:
    v, b = rows(framework), MAKE[framework](normal(M, 24))
    owned = [aligned(np.full((K, 24), 2.0, np.float32)) for _ in range(L)]
    pointers = MAKE[framework](addresses(owned, bytewise=framework == "jax"))
    a = v["a"].T
    if framework == "jax":
        token = jax.jit(
            lambda a, b, ends, pointers: grouped_gemm_wgrad_jax_forward(
                a, b, ends, pointers, "float32", accumulate_on_output=accumulate
            )
        )(a, b, v["ends"], pointers)
        assert token.shape == (K, 24)
        assert not np.asarray(token).any()
    else:
        out = grouped_gemm_wgrad_forward(
            a, b, None, None, v["ends"], "discrete", None, pointers, wgrad_dtype="float32",
            accumulate_on_output=accumulate,
        )  # fmt: skip
        assert out["wgrad_tensor"] is None
    wanted = grouped_gemm_wgrad_forward(a, b, None, None, v["ends"], wgrad_dtype="float32")["wgrad_tensor"]
    assert same(np.stack(owned), np.asarray(wanted) + (2 if accumulate else 0))
    assert not np.asarray(wanted)[1].any()


@framework
@pytest.mark.parametrize(("h", "t", "i"), [(0, M, 24), (K, M, 0), (0, 0, 0)])
def test_results_without_elements_leave_the_addresses_alone(framework: str, h: int, t: int, i: int) -> None:
    make = MAKE[framework]
    nowhere = make(np.full(8 * L, 255, np.uint8) if framework == "jax" else np.full(L, -1))
    ends = make(np.minimum(ENDS, t))
    out = grouped_gemm_wgrad_forward(
        make(normal(t, h)).T, make(normal(t, i)), None, None, ends, "discrete", None, nowhere
    )
    token = out["wgrad_tensor"]  # JAX's word that all is written
    assert (token is None) == (framework != "jax")
    assert token is None or not np.asarray(token).any()


@framework
def test_no_rows_write_zeros_behind_the_addresses(framework: str) -> None:
    make = MAKE[framework]
    owned = [aligned(np.full((K, 24), 2.0, np.float32)) for _ in range(L)]
    pointers = make(addresses(owned, bytewise=framework == "jax"))
    ends, a, b = make(np.zeros(L, np.int32)), make(normal(0, K)).T, make(normal(0, 24))
    options: dict[str, Any] = {"wgrad_dtype": "float32"}
    grouped_gemm_wgrad_forward(a, b, None, None, ends, "discrete", None, pointers, **options)
    jax.effects_barrier()
    assert not np.stack(owned).any()


def test_jax_entries_under_jit() -> None:
    v, w = rows("jax"), Weights(N, K, "k", "jax")
    a, prob = v["a"][:, :, None], v["prob"][:, None, None]
    d, c = jax.jit(lambda e, p: grouped_gemm_jax_forward(a, e, v["alpha"], p, N, prob))(v["ends"], w.pointers)
    assert c is None
    assert d.shape == (M, N, 1)
    wanted = grouped_gemm_forward(a, v["ends"], v["alpha"], jnp.asarray(w.dense), prob_tensor=prob)[0]
    assert same(d.astype("float32"), wanted.astype("float32"))
    d, c = grouped_gemm_glu_jax_forward(a, v["ends"], v["alpha"], w.pointers, N, prob, generate_c=True)
    assert (d.shape, c.shape) == ((M, N // 2, 1), (M, N, 1))
    d, dprob, dbias = grouped_gemm_glu_jax_backward(
        a, jnp.asarray(normal(M, 2 * N, 1)), v["ends"], v["alpha"], v["beta"], w.pointers, N, prob
    )
    assert (d.shape, dprob.shape, dbias) == ((M, 2 * N, 1), (M, 1, 1), None)


def test_jax_on_a_gpu_refuses_what_a_host_function_cannot_reach() -> None:
    v, w = rows("jax"), Weights(N, K, "k", "jax")

    def run(a: Any) -> Any:
        return grouped_gemm_jax_forward(
            a, v["ends"], v["alpha"], w.pointers, N, v["prob"], backend="reference"
        )[0]  # fmt: skip

    with pytest.raises(BackendError, match="a kernel that reads device addresses"):
        jax.jit(run).trace(v["a"]).lower(lowering_platforms=("cuda",))


def test_gradients_of_everything_but_the_weights() -> None:
    v, w = rows("torch"), Weights(N, K, "n", "torch")
    found = []
    for weights in (
        {"b_ptrs": w.pointers, "n": N, "b_dtype": torch.float32, "b_major": "n"},
        {"b_tensor": torch.from_numpy(w.dense)},
    ):
        leaves = [v[name].clone().requires_grad_() for name in ("a", "alpha", "prob")]
        d = grouped_gemm_glu_forward(
            leaves[0], None, v["ends"], leaves[1], prob_tensor=leaves[2], d_dtype="float32", **weights
        )["d_tensor"]  # fmt: skip
        found.append(torch.autograd.grad(d[:11].sum(), leaves))
    assert all(torch.equal(first, second) for first, second in zip(*found, strict=True))


def test_classes() -> None:
    v, w = rows("torch"), Weights(N, K, "k", "torch")
    dense = torch.from_numpy(w.dense)
    shape: dict[str, Any] = {"num_experts": L, "b_shape": (N, K, 1), "b_dtype": torch.float32}
    plain = GroupedGemmSm100(v["a"], None, torch.ones(M, N), v["ends"], v["alpha"], sample_prob=v["prob"], **shape)
    plain.compile()
    d = torch.full((M, N), 7.0)
    plain.execute(v["a"], None, d, v["ends"], v["alpha"], b_ptrs=w.pointers, prob_tensor=v["prob"])
    wanted = grouped_gemm_forward(v["a"], v["ends"], v["alpha"], dense, prob_tensor=v["prob"], d_dtype="float32")[0]
    assert torch.equal(d[:11], wanted[:11])
    assert (d[11] == 7).all()
    with pytest.raises(ValueError, match="b_tensor, b_ptrs"):
        plain.execute(v["a"], None, d, v["ends"], v["alpha"], prob_tensor=v["prob"])
    half = torch.zeros(M, N // 2, 1)
    glu = GroupedGemmGluSm100(
        v["a"][..., None], None, half, None, v["ends"], v["alpha"], None, sample_prob=v["prob"], **shape
    )
    glu.compile()
    glu.execute(v["a"][..., None], None, half, None, v["ends"], v["alpha"], b_ptrs=w.pointers, prob_tensor=v["prob"])
    out = grouped_gemm_glu_forward(v["a"], None, v["ends"], v["alpha"], dense, prob_tensor=v["prob"], d_dtype="float32")
    assert torch.equal(half[..., 0], out["d_tensor"])
    c, full, dprob = torch.from_numpy(normal(M, 2 * N)), torch.zeros(M, 2 * N), torch.ones(M)
    samples = (v["a"], c, full, None, None, v["ends"], v["alpha"], v["beta"], v["prob"], dprob)
    back = GroupedGemmDgluSm100(*samples, **shape)
    back.compile()
    back.execute(*samples, b_ptrs=w.pointers)
    assert dprob[11] == 1  # not written
    assert (dprob[:11] != 1).all()
    owned = [aligned(np.zeros((K, N), np.float32)) for _ in range(L)]
    weight = GroupedGemmWgradSm100(
        v["a"].T, torch.ones(M, N), None, None, v["ends"], num_experts=L, wgrad_shape=(K, N), wgrad_dtype=torch.float32
    )
    weight.compile()
    pointers = torch.from_numpy(addresses(owned, bytewise=False))
    weight.execute(v["a"].T, torch.ones(M, N), None, None, v["ends"], wgrad_ptrs=pointers)
    assert np.allclose(owned[2], v["a"][5:11].sum(0)[:, None], rtol=1e-6, atol=1e-6)


def test_device_values_are_checked_on_request() -> None:
    v, w = rows("torch"), Weights(N, K, "k", "torch")
    good: dict[str, Any] = {"b_ptrs": w.pointers, "n": N, "b_dtype": "float32", "prob_tensor": v["prob"]}
    with override(validate_device_values=True):
        grouped_gemm_forward(v["a"], v["ends"], v["alpha"], **good)
        for ends in ([5, 4, 11], [5, 5, 13], [-1, 5, 11]):
            with pytest.raises(ValueError, match=r"padded_offsets: got .*, wanted non-decreasing ends from 0 to 12"):
                grouped_gemm_forward(v["a"], torch.tensor(ends, dtype=torch.int32), v["alpha"], **good)
        good["b_ptrs"] = w.pointers * torch.tensor([1, 0, 1])
        with pytest.raises(ValueError, match="pointer of expert 1: got 0x0"):
            grouped_gemm_forward(v["a"], v["ends"], v["alpha"], **good)
