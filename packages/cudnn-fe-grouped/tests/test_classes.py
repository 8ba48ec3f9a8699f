"""The classes write what the functions return, for any M, and refuse other tensors than their samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudnn_fe.core.errors import NotCompiledError
from cudnn_fe.grouped import (
    grouped_gemm_forward,
    grouped_gemm_glu_backward,
    grouped_gemm_glu_forward,
    grouped_gemm_wgrad_forward,
)
from cudnn_fe.grouped.classes import GroupedGemmDgluSm100, GroupedGemmGluSm100, GroupedGemmSm100, GroupedGemmWgradSm100
from cudnn_fe.grouped.prepared import prepare_grouped_gemm

K, N, L = 16, 64, 3


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def rows(m: int) -> dict[str, Any]:
    one = torch.ones(L)
    ends = torch.tensor([1, 1, m - 1], dtype=torch.int32)
    return {"a": bf16(m, K), "ends": ends, "one": one, "b": bf16(L, N, K), "prob": torch.linspace(0.1, 0.9, m)}


@pytest.mark.parametrize("m", [8, 21])
def test_unfused_and_glu(m: int) -> None:
    s, v = rows(8), rows(m)
    made = GroupedGemmSm100(
        s["a"], bf16(8, N), bf16(8, N).float(), s["ends"], s["one"], s["b"], sample_prob=s["prob"], generate_c=True
    )
    assert made.check_support()
    with pytest.raises(NotCompiledError):
        made.execute(s["a"], None, None, s["ends"], s["one"])
    made.compile()
    c, d = torch.full((m, N), 3.0).bfloat16(), torch.full((m, N), 3.0)
    made.execute(v["a"], c, d, v["ends"], v["one"], v["b"], prob_tensor=v["prob"])
    wanted = grouped_gemm_forward(
        v["a"], v["ends"], v["one"], v["b"], prob_tensor=v["prob"], d_dtype="float32", generate_c=True
    )
    assert torch.equal(d[:-1], wanted["d_tensor"][:-1])
    assert torch.equal(c[:-1], wanted["c_tensor"][:-1])
    assert (d[-1] == 3).all()

    glu = GroupedGemmGluSm100(
        s["a"], None, bf16(8, N // 2), None, s["ends"], s["one"], None, s["b"], sample_prob=s["prob"], act_func="geglu"
    )
    glu.compile()
    half = torch.full((m, N // 2), 3.0).bfloat16()
    glu.execute(v["a"], None, half, None, v["ends"], v["one"], v["b"], prob_tensor=v["prob"], linear_offset=0.5)
    out = grouped_gemm_glu_forward(
        v["a"], None, v["ends"], v["one"], v["b"], prob_tensor=v["prob"], act_func="geglu", linear_offset=0.5
    )
    assert torch.equal(half[:-1], out["d_tensor"][:-1])
    with pytest.raises(ValueError, match="d_tensor"):
        glu.execute(v["a"], None, half.float(), None, v["ends"], v["one"], v["b"], prob_tensor=v["prob"])
    with pytest.raises(ValueError, match="bias_tensor"):
        glu.execute(v["a"], None, half, None, v["ends"], v["one"], v["b"], None, bf16(N, L), prob_tensor=v["prob"])


@pytest.mark.parametrize("m", [8, 21])
def test_dglu_and_wgrad(m: int) -> None:
    s, v = rows(8), rows(m)
    sample = (s["a"], bf16(8, 2 * N), bf16(8, 2 * N), None, None, s["ends"], s["one"], s["one"], s["prob"], s["prob"])
    dglu = GroupedGemmDgluSm100(*sample, s["b"], sample_dbias=bf16(L, 2 * N, 1))
    dglu.compile()
    assert dglu.scratch_workspace_bytes() == 0
    c, d, dprob = bf16(m, 2 * N), torch.full((m, 2 * N), 3.0).bfloat16(), torch.ones(m)
    dbias = torch.zeros((L, 2 * N, 1), dtype=torch.bfloat16)
    dglu.execute(v["a"], c, d, None, None, v["ends"], v["one"], v["one"], v["prob"], dprob, v["b"], dbias_tensor=dbias)
    wanted = grouped_gemm_glu_backward(
        v["a"], c, None, v["ends"], v["one"], v["one"], v["prob"], torch.ones(m), v["b"], generate_dbias=True
    )
    assert torch.equal(d[:-1], wanted["d_row_tensor"][:-1])
    assert torch.equal(dprob, wanted["dprob_tensor"])
    assert torch.equal(dbias, wanted["dbias_tensor"])

    wgrad = GroupedGemmWgradSm100(
        s["a"].T, bf16(8, 24), None, None, s["ends"], torch.zeros(L, K, 24), accumulate_on_output=True
    )
    wgrad.compile()
    w, b = torch.ones(L, K, 24), bf16(m, 24)
    wgrad.execute(v["a"].T, b, None, None, v["ends"], w)
    alone = grouped_gemm_wgrad_forward(v["a"].T, b, None, None, v["ends"], wgrad_dtype="float32")["wgrad_tensor"]
    assert torch.equal(w, 1 + alone)


def test_samples_say_which_weights_there_are() -> None:
    s = rows(8)
    made = GroupedGemmSm100(
        s["a"], bf16(8, N), bf16(8, N), s["ends"], s["one"], sample_prob=s["prob"], num_experts=L, b_shape=(N, K + 1),
        b_dtype=torch.bfloat16,
    )  # fmt: skip
    with pytest.raises(ValueError, match="b_shape: got"):
        made.check_support()
    neither = GroupedGemmSm100(s["a"], bf16(8, N), bf16(8, N), s["ends"], s["one"], sample_prob=s["prob"])
    with pytest.raises(ValueError, match="sample_b"):
        neither.check_support()


def test_prepared_calls_take_any_m_and_nothing_else() -> None:
    def tensors(m: int) -> dict[str, Any]:
        v = rows(m)
        return {
            "a_tensor": v["a"],
            "padded_offsets": v["ends"],
            "alpha_tensor": v["one"],
            "b_tensor": v["b"],
            "prob_tensor": v["prob"],
        }

    plan = prepare_grouped_gemm("glu", sfa_tensor=None, act_func="geglu", **tensors(8))
    d = torch.full((21, N // 2), 3.0).bfloat16()
    out = plan.run(**tensors(21), outputs={"d_tensor": d})
    assert out["d_tensor"] is d
    assert torch.equal(d[:-1], grouped_gemm_glu_forward(sfa_tensor=None, act_func="geglu", **tensors(21))[1][:-1])
    assert (d[-1] == 3).all()
    with pytest.raises(ValueError, match="b_tensor"):
        plan.run(**tensors(8) | {"b_tensor": bf16(L, 2 * N, K)})
    with pytest.raises(ValueError, match="act_func"):
        plan.run(**tensors(8), act_func="swiglu")
    with pytest.raises(ValueError, match="prob_tensor"):
        plan.run(a_tensor=bf16(3, K))
    with pytest.raises(ValueError, match="kind"):
        prepare_grouped_gemm("other")
    with pytest.raises(ValueError, match="reuse_row_outputs"):
        prepare_grouped_gemm("glu", sfa_tensor=None, reuse_row_outputs=True, **tensors(8))
