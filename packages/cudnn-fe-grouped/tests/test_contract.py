"""What is refused, with which error and message; names and signatures."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe.core.choose import choose
from cudnn_fe.core.device import Device
from cudnn_fe.core.errors import CudnnFeError
from cudnn_fe.core.op import resolve
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.grouped import (
    get_grouped_gemm_wgrad_workspace_size,
    grouped_gemm_forward,
    grouped_gemm_glu_backward,
    grouped_gemm_glu_forward,
    grouped_gemm_wgrad_forward,
    grouped_gemm_wgrad_jax_forward,
)
from cudnn_fe.grouped.exports import FAMILY
from cudnn_fe.grouped.unfused.op import FORWARD

M, K, N, L = 8, 16, 64, 2
ADDRESSES = np.zeros(L, np.int64)
DISCRETE = {"b_tensor": None, "b_ptrs": ADDRESSES, "n": N, "b_dtype": "float32"}


def given(**changes: Any) -> dict[str, Any]:
    good = {
        "a_tensor": np.ones((M, K), np.float32),
        "padded_offsets": np.array([3, 8], np.int32),
        "alpha_tensor": np.ones(L, np.float32),
        "b_tensor": np.ones((L, N, K), np.float32),
        "prob_tensor": np.ones(M, np.float32),
    }
    return good | changes


REFUSED: list[tuple[dict[str, Any], str, type[Exception]]] = [
    ({"prob_tensor": None}, "prob_tensor: got None", ValueError),
    ({"prob_tensor": np.ones(M)}, "prob_tensor: got float64", ValueError),
    ({"prob_tensor": np.ones(M + 1, np.float32)}, "prob_tensor", ValueError),
    ({"alpha_tensor": np.ones(3, np.float32)}, "alpha_tensor", ValueError),
    ({"padded_offsets": np.array([3, 8])}, "padded_offsets: got int64", ValueError),
    ({"padded_offsets": np.array([8], np.int32)}, "b_tensor", ValueError),
    ({"a_tensor": np.ones((M, K + 1), np.float32)}, "b_tensor", ValueError),
    ({"a_tensor": np.ones((K, M), np.float32).T}, "a_tensor: got strides", ValueError),
    ({"a_tensor": np.ones((M, K, 2), np.float32)}, "a_tensor", ValueError),
    ({"a_tensor": np.ones((M, K), np.float64)}, "a_tensor: got float64", ValueError),
    ({"b_tensor": np.ones((L, N, K), np.float16)}, "b_tensor: got float16", ValueError),
    ({"b_tensor": None}, "b_tensor, b_ptrs: got neither", ValueError),
    ({"b_ptrs": ADDRESSES}, "b_tensor, b_ptrs: got both", ValueError),
    ({"n": 64}, "n, b_dtype", ValueError),
    ({"b_tensor": None, "b_ptrs": ADDRESSES}, "n, b_dtype", ValueError),
    ({"b_tensor": None, "b_ptrs": ADDRESSES, "n": N, "b_dtype": "bfloat16"}, "b_dtype: got bfloat16", ValueError),
    ({"b_tensor": None, "b_ptrs": ADDRESSES, "n": 0, "b_dtype": "float32"}, "N > 0", ValueError),
    (DISCRETE | {"b_ptrs": np.zeros(3, np.int64)}, r"b_ptrs: got \(3,\), wanted \(2,\)", ValueError),
    (DISCRETE | {"b_ptrs": np.zeros(L, np.float32)}, "b_ptrs: got float32, wanted int64", ValueError),
    (DISCRETE | {"b_ptrs": np.zeros(2 * L, np.int64)[::2]}, "b_ptrs: got strides", ValueError),
    (DISCRETE, "pointer of expert 0: got 0x0, wanted a multiple of 16 bytes above 0", ValueError),
    (DISCRETE | {"b_ptrs": np.full(L, 8, np.int64)}, "pointer of expert 0: got 0x8", ValueError),
    ({"b_major": "m"}, "b_major", ValueError),
    ({"b_tensor": np.ones((L, N, K), np.float32).transpose(1, 2, 0), "b_major": "n"}, "b_major", ValueError),
    ({"b_tensor": np.ones((L, K, N), np.float32).transpose(2, 1, 0)}, "b_tensor: got strides", ValueError),
    ({"m_aligned": 128}, "m_aligned", ValueError),
    ({"acc_dtype": "float16"}, "acc_dtype", ValueError),
    ({"cd_major": "m"}, "cd_major", ValueError),
    ({"mma_tiler_mn": (64, 64)}, "mma_tiler_mn", ValueError),
    ({"cluster_shape_mn": (3, 1)}, "cluster_shape_mn", ValueError),
    ({"d_dtype": "int32"}, "d_dtype", ValueError),
    ({"d_dtype": "float8_e4m3fn"}, "d_dtype", ValueError),
]


@pytest.mark.parametrize(("changes", "message", "kind"), REFUSED)
def test_unfused_refuses(changes: dict[str, Any], message: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=message) as caught:
        grouped_gemm_forward(**given(**changes))
    assert isinstance(caught.value, CudnnFeError)


def test_too_many_experts_and_unlike_buffers_are_refused() -> None:
    many = given(
        padded_offsets=np.zeros(1025, np.int32),
        alpha_tensor=np.ones(1025, np.float32),
        b_tensor=np.ones((1025, 8, K), np.float32),
    )
    with pytest.raises(ValueError, match="1 to 1024 experts"):
        grouped_gemm_forward(**many)
    tensors: dict[str, Any] = {key: torch.from_numpy(value) for key, value in given().items()}
    with pytest.raises(ValueError, match="d_tensor: got dtype bfloat16"):
        grouped_gemm_forward(**tensors, d_dtype="float32", d_tensor=torch.ones((M, N), dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("changes", "message", "kind"),
    [
        ({"b_tensor": np.ones((L, 32, K), np.float32)}, "N = 32", ValueError),
        ({"b_major": "n"}, "b_major", ValueError),
        ({"act_func": "relu"}, "act_func", ValueError),
        ({"act_func": "situglu"}, "act_func", ValueError),
        ({"sf_vec_size": 32}, "sf_vec_size", ValueError),
        ({"geglu_alpha": 1.0}, "geglu_alpha", ValueError),
        ({"sfb_tensor": np.ones(1)}, "sfb_tensor", ValueError),
        ({"scheduler_counter_tensor": np.ones(1)}, "scheduler_counter_tensor", ValueError),
    ],
)
def test_glu_refuses(changes: dict[str, Any], message: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=message):
        grouped_gemm_glu_forward(**given(sfa_tensor=None, **changes))


@pytest.mark.parametrize(
    ("changes", "message", "kind"),
    [
        ({"dprob_tensor": None}, "dprob_tensor", ValueError),
        ({"dprob_tensor": np.zeros(M)}, "dprob_tensor: got dtype float64", ValueError),
        ({"c_tensor": np.ones((M, N), np.float32)}, "c_tensor", ValueError),
        ({"epilogue_op": "relu"}, "epilogue_op", ValueError),
        ({"act_func": "swiglu"}, "act_func", ValueError),
        ({"act_func": "dgeglu", "glu_clamp_max": -8.0}, "glu_clamp", ValueError),
        ({"activation_tensor": np.zeros((M, N))}, "activation_tensor", ValueError),
    ],
)
def test_dglu_refuses(changes: dict[str, Any], message: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=message):
        grouped_gemm_glu_backward(**backward() | changes)


def backward() -> dict[str, Any]:
    return given(
        c_tensor=np.ones((M, 2 * N), np.float32),
        sfa_tensor=None,
        beta_tensor=np.ones(L, np.float32),
        dprob_tensor=np.zeros(M, np.float32),
    )


def test_dglu_is_deterministic_whether_asked_to_be_or_not() -> None:
    asked, plain = (grouped_gemm_glu_backward(**backward(), deterministic=way) for way in (True, False))
    for key in ("d_row_tensor", "dprob_tensor"):
        np.testing.assert_array_equal(asked[key], plain[key])


@pytest.mark.parametrize(
    ("changes", "message", "kind"),
    [
        ({"output_mode": "sparse"}, "output_mode", ValueError),
        ({"wgrad_ptrs": ADDRESSES}, "wgrad_ptrs", ValueError),
        ({"wgrad_ptrs": ADDRESSES, "output_mode": "discrete"}, "pointer of expert 0", ValueError),
        ({"wgrad_ptrs": ADDRESSES[:1], "output_mode": "discrete"}, "wgrad_ptrs: got", ValueError),
        ({"global_scale_a": np.ones(2, np.float32)}, "global_scale_a", ValueError),
        ({"input_order": "other"}, "input_order", ValueError),
        ({"b_tensor": np.ones((M + 1, 8), np.float32)}, "b_tensor", ValueError),
        ({"a_tensor": np.ones((K, 2 * M), np.float32)[:, ::2]}, "a_tensor: got strides", ValueError),
        ({"wgrad_dtype": "float64"}, "wgrad_dtype", ValueError),
        ({"mma_tiler_mn": (256, 96)}, "mma_tiler_mn", ValueError),
    ],
)
def test_wgrad_refuses(changes: dict[str, Any], message: str, kind: type[Exception]) -> None:
    good: dict[str, Any] = {
        "a_tensor": np.ones((K, M), np.float32),
        "b_tensor": np.ones((M, 8), np.float32),
        "sfa_tensor": None,
        "sfb_tensor": None,
        "offsets_tensor": np.array([3, 8], np.int32),
    }
    with pytest.raises(kind, match=message):
        grouped_gemm_wgrad_forward(**good | changes)


def test_jax_wgrad_does_not_accumulate() -> None:
    with pytest.raises(ValueError, match="accumulate_on_output"):
        grouped_gemm_wgrad_jax_forward(
            np.ones((K, M)), np.ones((M, 8)), np.array([8], np.int32), accumulate_on_output=True
        )


def test_workspace_size() -> None:
    assert get_grouped_gemm_wgrad_workspace_size(3) == 1536
    assert get_grouped_gemm_wgrad_workspace_size(3, output_mode="discrete", input_order="tensor_ragged") == 1920
    refused: Any = ({"num_experts": 0}, {"num_experts": 1, "output_mode": "x"}, {"num_experts": 1, "input_order": 1})
    for arguments in refused:
        with pytest.raises(ValueError, match=next(reversed(arguments))):
            get_grouped_gemm_wgrad_workspace_size(**arguments)


def test_no_rows_and_no_products() -> None:
    for m, k in ((0, K), (M, 0)):
        arguments = given(
            a_tensor=np.ones((m, k), np.float32),
            b_tensor=np.ones((L, N, k), np.float32),
            prob_tensor=np.ones(m, np.float32),
            padded_offsets=np.array([0, m], np.int32),
            bias_tensor=np.ones((N, L), np.float32),
        )
        d, _ = grouped_gemm_forward(**arguments)
        assert d.shape == (m, N)
        assert (d.astype(np.float32) == 1).all()  # the bias alone


@pytest.mark.parametrize("name", sorted(FAMILY.exports))
def test_names_resolve(name: str) -> None:
    assert resolve(FAMILY.exports[name]) is not None


@pytest.mark.parametrize("kind", ["", "_glu", "_dglu", "_wgrad"])
def test_wrappers_are_the_functions_under_old_names(kind: str) -> None:
    wrapper = resolve(FAMILY.exports[f"grouped_gemm{kind}_wrapper_sm100"])
    function = resolve(FAMILY.exports[f"grouped_gemm{kind}_{'backward' if kind == '_dglu' else 'forward'}"])
    old = dict(inspect.signature(wrapper).parameters)
    assert [name for name in inspect.signature(function).parameters if name not in ("backend", "outs")] == list(old)
    assert wrapper.supports_bf16_canonical_layouts


def test_a_gpu_runs_a_kernel_unless_the_reference_is_named() -> None:
    specs = [spec_of(given()[name], name) for name in FORWARD.problem.operands[:5]]
    problem = FORWARD.bind(*specs, None, d_dtype="bfloat16", c_dtype="bfloat16", generate_c=False).placed("cuda:0")
    ampere = Device("cuda:0", (8, 0), 108, "A100")
    assert choose(FORWARD, problem, on=ampere).backend == "portable"
    assert choose(FORWARD, problem, "reference", on=ampere).backend == "reference"
