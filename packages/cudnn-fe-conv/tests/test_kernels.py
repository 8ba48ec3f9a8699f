"""Without a GPU: every kernel compiles for each architecture, JAX lowers for CUDA, choices are as documented."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudnn_fe.conv import causal_conv1d, causal_conv1d_update
from cudnn_fe.conv.causal_conv1d.chunks import chunk_count
from cudnn_fe.conv.causal_conv1d.kernels import THREADS
from cudnn_fe.conv.causal_conv1d.op import BACKWARD, FORWARD
from cudnn_fe.conv.causal_conv1d_update.op import UPDATE
from cudnn_fe.core.call import bind_operands
from cudnn_fe.core.choose import choose
from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.device import Device
from cudnn_fe.core.op import Op
from cudnn_fe_testkit.causal_conv import LENGTHS, make_case

H200 = Device("cuda:0", (9, 0), 132, "H200")


def problem_of(op: Op, width: int = 4, kind: str = "bfloat16", states: bool = True, **how: Any) -> Any:
    """A problem with every optional operand, so that every branch of a kernel is compiled; or without states."""
    if op is UPDATE:
        x, state = torch.zeros(3, 64).to(torch.bfloat16), torch.zeros(4, 64, width).to(torch.bfloat16)
        taps, slots = torch.zeros(64, width).to(torch.bfloat16), torch.zeros(3, dtype=torch.int32)
        return bind_operands(op, (x, state, taps, taps[:, 0], slots, slots), {"activation": "silu"})
    case = make_case(1, 64, 0, width, kind, lengths=(*LENGTHS, 3), initial=states, **how)
    operands: Any = (case.x, case.weight, case.bias, case.cu_seqlens, case.initial)
    options = {"activation": "silu", "layout": "BDT", "return_final_states": states}
    if op is BACKWARD:
        options.pop("return_final_states")
        operands += (case.x, case.initial)
    return bind_operands(op, operands, options)


CASES = [
    *((op, width, last) for op in (FORWARD, BACKWARD) for width, last in ((4, False), (4, True), (12, True))),
    (UPDATE, 4, False),
]


@pytest.mark.parametrize("target", FORWARD.kernels[0].targets)
@pytest.mark.parametrize(("op", "width", "channels_last"), CASES)
def test_kernels_compile_for_each_architecture(op: Op, width: int, channels_last: bool, target: str) -> None:
    problem = problem_of(op, width, channels_last=channels_last)
    kernel = next(kernel for kernel in op.kernels if kernel.refuse(problem, H200) is None)
    assert target in kernel.targets
    assert callable(compile_now(kernel.module, kernel.specialise(problem, H200), target))


@pytest.mark.parametrize("target", FORWARD.kernels[0].targets)
@pytest.mark.parametrize("op", [FORWARD, BACKWARD])
def test_bits_of_packed_sequences_compile_for_each_architecture(op: Op, target: str) -> None:
    spec: Any = op.kernels[0].specialise(problem_of(op, states=False), H200)
    assert spec.marked
    assert callable(compile_now(op.kernels[0].module, spec, target))


@pytest.mark.parametrize("op", [FORWARD, BACKWARD])
def test_float64_compiles(op: Op) -> None:
    problem = problem_of(op, 3, "float64", channels_last=op is FORWARD)
    kernel = op.kernels[0]
    assert callable(compile_now(kernel.module, kernel.specialise(problem, H200), "sm_90a"))


def test_vectors_are_sixteen_bytes_where_memory_allows() -> None:
    for kind, length in (("bfloat16", 8), ("float32", 4), ("float64", 2)):
        for last in (False, True):
            case = make_case(2, 64, 64, 4, kind, channels_last=last)
            options = {"activation": None, "layout": "BDT", "return_final_states": False}
            problem = bind_operands(FORWARD, (case.x, case.weight, None, None, None), options)
            spec: Any = FORWARD.kernels[0].specialise(problem, H200)
            assert (spec.vector, spec.major) == (length, "channels" if last else "time")
            shifted = make_case(2, 63, 63, 4, kind, channels_last=last)
            odd = bind_operands(FORWARD, (shifted.x, shifted.weight, None, None, None), options)
            assert FORWARD.kernels[0].specialise(odd, H200).vector == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("lanes", "pad", "apart", "ring", "whole", "vector"),
    [
        (4, 0, False, False, True, 2),  # one piece of 16 bytes
        (3, 0, False, False, True, 2),
        (4, 0, False, True, False, 1),  # a ring's places are known on the GPU alone
        (4, 1, False, False, False, 1),  # slots that begin anywhere
        (4, 0, True, False, False, 4),  # lanes that hold channels side by side
    ],
)
def test_a_step_reads_states_as_they_lie(
    lanes: int, pad: int, apart: bool, ring: bool, whole: bool, vector: int
) -> None:
    x, taps, seen = torch.zeros(3, 64).bfloat16(), torch.zeros(64, 4).bfloat16(), torch.zeros(3, dtype=torch.int32)
    state = torch.zeros(4, 64 * lanes + pad).bfloat16()[:, : 64 * lanes]
    state = state.view(4, lanes, 64).transpose(1, 2) if apart else state.view(4, 64, lanes)
    problem = bind_operands(UPDATE, (x, state, taps, None, seen if ring else None, None), {"activation": None})
    spec: Any = UPDATE.kernels[0].specialise(problem, H200)
    assert (spec.whole_states, spec.vector) == (whole, vector)


def test_partial_sums_shrink_with_the_sequence() -> None:
    """A chunk of time has at least 32 tokens, so the sums stay small beside x."""
    problem = problem_of(BACKWARD, channels_last=True)
    kernel = BACKWARD.kernels[0]
    assert kernel.scratch is not None
    (partial,) = kernel.scratch(problem, kernel.specialise(problem, H200))
    assert partial.shape == (-(-problem.extents[2] // 32), 5, 64)


@pytest.mark.parametrize(("backward", "last"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("extents", [(4, 4096, 8192), (1, 5120, 32768), (8, 2048, 4096), (3, 3000, 5000)])
def test_blocks_end_together(extents: tuple[int, int, int], backward: bool, last: bool) -> None:
    """The last wave of blocks leaves less than a quarter of the chip's time unused."""
    case = make_case(1, 64, 64, 4, "bfloat16", channels_last=last)
    operands: Any = (case.x, case.weight, case.bias, None, None)
    options: Any = {"activation": "silu", "layout": "BDT"}
    op = BACKWARD if backward else FORWARD
    problem = bind_operands(
        op,
        (*operands, case.x, None) if backward else operands,
        options | ({} if backward else {"return_final_states": False}),
    )
    spec: Any = op.kernels[0].specialise(problem, H200)
    batch, channels, time = extents
    if last:
        unit, blocks = spec.unroll, batch * -(-channels // (spec.vector * THREADS))
    else:
        unit, blocks = spec.unroll * spec.vector * 32, -(-batch * channels // (THREADS // 32))
    chunks = chunk_count(
        spec, spec.waves, blocks, time, unit, lambda condition, value, other: value if condition else other
    )
    slots = spec.resident * spec.multiprocessors
    waves = -(-blocks * chunks // slots)
    assert blocks * chunks > 0.75 * waves * slots


@pytest.mark.parametrize("op", [FORWARD, BACKWARD, UPDATE])
@pytest.mark.parametrize("extent", [2**31 - 2**24, 2**31 - 1])
def test_counts_that_a_grid_would_carry_past_32_bits_are_refused(op: Op, extent: int) -> None:
    """Threads past the last token compute where they are before they find out."""
    x, taps = torch.empty(1, 1, extent, device="meta"), torch.empty(1, 4, device="meta")
    operands: Any = (x, taps, None, None, None)
    options: Any = {"activation": None, "layout": "BDT", "return_final_states": False}
    if op is BACKWARD:
        operands += (x, None)
    elif op is UPDATE:
        channels = torch.empty(extent, 4, device="meta")
        operands, options = (x[0], channels[None], channels, None, None, None), {"activation": None}
    problem = bind_operands(op, operands, options)
    reasons = [kernel.refuse(problem, H200) for kernel in op.kernels]
    assert all("32 bits" in str(reason) for reason in reasons) == (extent == 2**31 - 1), reasons


def test_an_old_gpu_is_refused_with_the_reason() -> None:
    problem = problem_of(FORWARD)
    with pytest.raises(NotImplementedError, match=r"compute capability 8\.0"):
        choose(FORWARD, problem, "portable", on=Device("cuda:0", (7, 5), 40, "T4"))


@pytest.mark.parametrize("layout", ["BDT", "BTD"])
def test_jax_lowers_for_cuda(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import jax
    import jax.numpy as jnp

    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    x, weight = jnp.ones((2, 64, 64)), jnp.ones((64, 4))
    states = jnp.ones((2, 64, 3))

    def loss(x: Any, weight: Any, states: Any) -> Any:
        y, final = causal_conv1d(
            x,
            weight,
            None,
            "silu",
            initial_states=states,
            return_final_states=True,
            layout=layout,
        )
        return y.sum() + final.sum()

    text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(x, weight, states).lower(lowering_platforms=("cuda",))
    assert text.as_text().count("stablehlo.custom_call") >= 1


def test_jax_lowers_the_step_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax
    import jax.numpy as jnp

    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    step = jax.jit(lambda x, state, weight: causal_conv1d_update(x, state, weight, activation="silu"))
    lowered = step.trace(jnp.ones((3, 64)), jnp.ones((3, 64, 3)), jnp.ones((64, 4))).lower(lowering_platforms=("cuda",))
    assert "custom_call" in lowered.as_text()
