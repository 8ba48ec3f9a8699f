"""Derivatives and tracing: torch's autograd and torch.compile, JAX's jit, grad and vmap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from cudnn_fe.conv import causal_conv1d, causal_conv1d_update
from cudnn_fe_testkit.causal_conv import LENGTHS, exact, make_case

TIGHT: Any = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_torch_gradients(lengths: tuple[int, ...] | None) -> None:
    case = make_case(1 if lengths else 2, 4, 9, 4, "float64", lengths=lengths, initial=True)
    leaves = [t.requires_grad_() for t in (case.x, case.weight, case.bias, case.initial)]

    def run(x: Any, weight: Any, bias: Any, initial: Any) -> Any:
        return causal_conv1d(
            x,
            weight,
            bias,
            "silu",
            cu_seqlens=case.cu_seqlens,
            initial_states=initial,
            return_final_states=True,
        )

    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize("used", ["y", "final"])
def test_gradients_when_one_result_is_unused(used: str) -> None:
    case = make_case(2, 3, 5, 4)
    x = case.x.requires_grad_()
    y, final = causal_conv1d(x, case.weight, None, "silu", return_final_states=True)
    (y if used == "y" else final).sum().backward()
    x64 = case.x.detach().double().requires_grad_()
    wanted = exact(x64, case.weight.double(), None, True)
    wanted[0 if used == "y" else 1].sum().backward()
    assert x64.grad is not None
    torch.testing.assert_close(x.grad, x64.grad.float(), **TIGHT)


def test_only_needed_gradients_are_given() -> None:
    case = make_case(1, 3, 5, 4)
    weight = case.weight.requires_grad_()
    causal_conv1d(case.x, weight, case.bias).sum().backward()
    assert weight.grad is not None
    assert case.x.grad is None


def test_the_callers_buffer_carries_the_gradient() -> None:
    case = make_case(2, 3, 5, 4)
    x, buffer = case.x.requires_grad_(), torch.empty(2, 3, 3)
    _, final = causal_conv1d(x, case.weight, return_final_states=True, final_states_out=buffer)
    assert final is buffer
    final.sum().backward()
    wanted = torch.zeros(2, 3, 5)
    wanted[..., 2:] = 1
    assert x.grad is not None
    assert torch.equal(x.grad, wanted)


@pytest.mark.parametrize(("states", "lengths"), [(False, None), (True, None), (False, LENGTHS), (True, LENGTHS)])
def test_torch_compile_takes_the_whole_graph(states: bool, lengths: tuple[int, ...] | None) -> None:
    case = make_case(1 if lengths else 2, 4, 9, 4, initial=states, lengths=lengths)
    given = {"cu_seqlens": case.cu_seqlens, "initial_states": case.initial}

    def layer(x: Any, weight: Any) -> Any:
        out = causal_conv1d(x * 2, weight, case.bias, "silu", return_final_states=states, **given)
        return out[0].sum() + out[1].square().sum() if states else out.sum()

    results = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        x, weight = (t.detach().clone().requires_grad_() for t in (case.x, case.weight))
        value = function(x, weight)
        value.backward()
        results.append((value.detach(), x.grad, weight.grad))
    for eager, traced in zip(*results, strict=True):
        assert torch.equal(eager, traced)


def test_torch_compile_fills_the_callers_buffer() -> None:
    case = make_case(2, 3, 5, 4)

    def layer(x: Any, buffer: Any) -> Any:
        y, final = causal_conv1d(x, case.weight, return_final_states=True, final_states_out=buffer)
        return y.sum() + final.square().sum()

    results = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        x, buffer = case.x.detach().clone().requires_grad_(), torch.zeros(2, 3, 3)
        value = function(x, buffer)
        value.backward()
        results.append((value.detach(), x.grad, buffer.detach()))
    assert torch.equal(results[0][2], case.x[..., 2:])
    for eager, traced in zip(*results, strict=True):
        assert torch.equal(eager, traced)
    with pytest.raises(Exception, match="final_states_out"):
        torch.compile(layer, fullgraph=True, backend="aot_eager")(case.x, torch.zeros(2, 2, 3, 3))


@pytest.mark.parametrize("ring", [False, True])
def test_torch_compile_updates_the_state_in_place(ring: bool) -> None:
    case = make_case(1, 4, 1, 4)
    x, state = torch.randn(3, 4), torch.randn(5, 4, 3)
    slots, seen = torch.tensor([4, -1, 0], dtype=torch.int32), torch.tensor([3, 9, 7], dtype=torch.int32)
    given: Any = {"conv_state_indices": slots, "cache_seqlens": seen} if ring else {}

    def step(x: Any, state: Any) -> Any:
        return causal_conv1d_update(x, state, case.weight, case.bias, "silu", **given) + 1

    graphs = []

    def look(module: Any, inputs: Any) -> Any:
        graphs.append(module.code)
        return aot_autograd(fw_compiler=lambda graph, _: graph)(module, inputs)

    wanted_state = state.clone()
    wanted = step(x, wanted_state)
    got = torch.compile(step, fullgraph=True, backend=look)(x, state)
    assert torch.equal(got, wanted)
    assert torch.equal(state, wanted_state)
    # The op that writes to the cache, and no copy of it.
    assert "causal_conv1d_update_in_place" in graphs[0]
    assert "copy_" not in graphs[0]


def test_library_op_passes_opcheck() -> None:
    case = make_case(2, 3, 5, 4)
    torch.compile(lambda x: causal_conv1d(x, case.weight), backend="eager")(case.x)  # tracing registers the op
    options = ["activation='silu'", "return_final_states=True", "layout='BDT'"]
    arguments: Any = (case.x.requires_grad_(), case.weight, case.bias, None, None, [], options, "")
    torch.library.opcheck(torch.ops.cudnn_fe.causal_conv1d.default, arguments)


def test_the_in_place_op_passes_opcheck() -> None:
    case = make_case(1, 4, 1, 4)
    torch.compile(lambda x: causal_conv1d(x, case.weight), backend="eager")(case.x)  # tracing registers the family
    arguments: Any = (
        torch.randn(3, 4),
        torch.randn(3, 4, 3),
        case.weight,
        None,
        None,
        None,
        [],
        ["activation=None"],
        "",
    )
    torch.library.opcheck(torch.ops.cudnn_fe.causal_conv1d_update_in_place.default, arguments)


@pytest.mark.parametrize("layout", ["BDT", "BTD"])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_jax_grad_under_jit(layout: str, lengths: tuple[int, ...] | None) -> None:
    import jax
    import jax.numpy as jnp

    case = make_case(1 if lengths else 2, 4, 9, 4, lengths=lengths, initial=True)
    arrays = [jnp.asarray(t.numpy()) for t in (case.x, case.weight, case.bias, case.initial)]
    if layout == "BTD":
        arrays[0] = arrays[0].transpose(0, 2, 1)
    offsets = None if case.cu_seqlens is None else jnp.asarray(case.cu_seqlens.numpy())

    @jax.jit
    def loss(x: Any, weight: Any, bias: Any, initial: Any) -> Any:
        y, final = causal_conv1d(
            x,
            weight,
            bias,
            "silu",
            cu_seqlens=offsets,
            initial_states=initial,
            return_final_states=True,
            layout=layout,
        )
        return jnp.sum(jnp.sin(y)) + jnp.sum(final**2)

    got = jax.grad(loss, argnums=(0, 1, 2, 3))(*arrays)
    leaves = [t.requires_grad_() for t in case.wide()]
    y, final = exact(leaves[0], leaves[1], leaves[2], True, case.offsets, leaves[3])
    (y.sin().sum() + final.square().sum()).backward()
    for index, (mine, leaf) in enumerate(zip(got, leaves, strict=True)):
        value = np.asarray(mine).transpose(0, 2, 1) if index == 0 and layout == "BTD" else np.asarray(mine)
        np.testing.assert_allclose(value, leaf.grad.numpy(), rtol=2e-5, atol=2e-5)


def test_jax_without_optional_operands_and_under_vmap() -> None:
    import jax
    import jax.numpy as jnp

    case = make_case(2, 4, 9, 3, bias=False)
    x, weight = jnp.asarray(case.x.numpy()), jnp.asarray(case.weight.numpy())
    many = jnp.stack([x, x + 1])

    def gradient(x: Any) -> Any:
        return jax.grad(lambda x: causal_conv1d(x, weight, activation="silu").sum())(x)

    batched = jax.vmap(gradient)(many)
    for one, wanted in zip(batched, (gradient(many[0]), gradient(many[1])), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-6)
