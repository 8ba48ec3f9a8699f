"""JAX arrays: jit, grad, vmap, lowering for CUDA, and errors that wait for the platform they concern."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cudnn_fe.core.errors import BackendError, FrameworkError, OptionError
from cudnn_fe.core.jax import as_jax
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe_testkit.inputs import normal
from cudnn_fe_testkit.toy import toy, toy_op

LOWERED = """
import jax, jax.numpy as jnp
from cudnn_fe.core.errors import BackendError
from cudnn_fe_testkit.toy import kernel, toy, toy_op

x = jnp.ones((3, 8))
def lower(function):
    return jax.jit(function).trace(x).lower(lowering_platforms=("cuda",)).as_text()
refusing = toy_op("toy_refusing", kernel(refuse=lambda problem, where: f"not on {where.name}"))
print(lower(lambda x: toy(x, alpha=2.0)).count("stablehlo.custom_call"))
print(lower(lambda x: toy(x, backend="reference")).count("stablehlo.custom_call"))
print(jax.jit(lambda x: toy(x, op=refusing))(x).sum())
try:
    lower(lambda x: toy(x, op=refusing))
except BackendError as error:
    print(error)
"""


def array(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(normal(shape, seed=seed))


def test_jit_agrees_with_eager_and_keeps_static_arguments_static() -> None:
    x, bias = array(4, 8), array(8, seed=1)
    wanted = 2.0 * x + bias
    assert jnp.array_equal(toy(x, bias, alpha=2.0), wanted)
    jitted = jax.jit(lambda x, bias, alpha: toy(x, bias, alpha=alpha), static_argnames="alpha")
    assert jnp.array_equal(jitted(x, bias, alpha=2.0), wanted)
    with pytest.raises(OptionError, match=r"^alpha: got jax.*Tracer, .*static under jit"):
        jax.jit(lambda x, alpha: toy(x, alpha=alpha))(x, 2.0)


def test_numpy_arrays_among_jax_arrays_are_taken() -> None:
    assert isinstance(toy(np.ones((2, 3), np.float32), array(3)), jax.Array)


def test_gradients_also_of_absent_operands_and_unused_results() -> None:
    x, bias, weight = array(4, 8), array(8, seed=1), array(4, 8, seed=2)

    def loss(x: Any, bias: Any) -> Any:
        return (toy(x, bias, alpha=3.0) * weight).sum()

    dx, dbias = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, bias)
    assert jnp.array_equal(dx, 3.0 * weight)
    assert jnp.allclose(dbias, weight.sum(0))
    assert jnp.array_equal(jax.grad(lambda x: (toy(x, alpha=3.0) * weight).sum())(x), 3.0 * weight)
    unused = jax.grad(lambda x: (0 * x).sum() + jax.lax.stop_gradient(toy(x)).sum())(x)
    assert jnp.array_equal(unused, jnp.zeros_like(x))


def test_a_cotangent_that_is_symbolically_zero_gives_zeros() -> None:
    x = array(4, 8)
    _, pull = jax.vjp(lambda x: (toy(x), x), x)
    assert jnp.array_equal(pull((jnp.zeros_like(x), x))[0], x)
    assert jnp.array_equal(jax.grad(lambda x: (toy(x), x.sum())[1])(x), jnp.ones_like(x))


def test_vmap_nested_and_under_grad_and_jit() -> None:
    stack, bias = array(2, 3, 4, 8), array(8, seed=1)
    wanted = 2.0 * stack + bias

    def run(x: Any) -> Any:
        return toy(x, bias, alpha=2.0)

    assert jnp.array_equal(jax.vmap(run)(stack[0]), wanted[0])
    assert jnp.array_equal(jax.vmap(jax.vmap(run))(stack), wanted)
    assert jnp.array_equal(jax.vmap(run, in_axes=1, out_axes=1)(stack[0]), wanted[0])
    per_sample = jax.jit(jax.vmap(jax.grad(lambda x: run(x).sum())))(stack[0])
    assert jnp.array_equal(per_sample, jnp.full_like(stack[0], 2.0))
    through = jax.jit(jax.grad(lambda s: jax.vmap(run)(s).sum()))(stack[0])
    assert jnp.array_equal(through, per_sample)


def test_a_call_traces_once_per_problem() -> None:
    traces = []

    @jax.jit
    def run(x: Any) -> Any:
        traces.append(x.shape)
        return toy(x)

    for rows in (2, 2, 3):
        run(array(rows, 4))
    assert traces == [(2, 4), (3, 4)]


def test_results_read_by_name_pass_through_jit() -> None:
    out = jax.jit(lambda x: TupleDict(y=toy(x), absent=None))(array(2, 3))
    assert type(out) is TupleDict
    y, absent = out
    assert y.shape == (2, 3)
    assert absent is None
    assert list(jax.tree_util.tree_map(jnp.shape, out)) == [(2, 3), None]


def test_lowering_for_cuda_without_a_target_raises_and_does_not_take_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cudnn_fe.core.jax.compile_target", lambda: None)
    op = toy_op("toy_without_target")
    run = jax.jit(lambda x: toy(x, op=op))
    assert run(array(2, 3)).shape == (2, 3)
    with pytest.raises(BackendError, match=r"^toy_without_target: got lowering for CUDA .*set CUTE_DSL_ARCH"):
        run.trace(array(2, 3)).lower(lowering_platforms=("cuda",))
    named = jax.jit(lambda x: toy(x, op=op, backend="reference"))
    assert "custom_call" not in named.trace(array(2, 3)).lower(lowering_platforms=("cuda",)).as_text()


def test_naming_a_kernel_on_a_cpu_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn_fe.core.jax.compile_target", lambda: None)
    with pytest.raises(BackendError, match="got portable: the operands are on the CPU"):
        toy(array(2, 3), backend="portable")


def test_lowering_for_a_named_target_compiles_the_kernel_and_refusals_wait_for_it() -> None:
    environment = {**os.environ, "CUTE_DSL_ARCH": "sm_90a", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", LOWERED], env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    kernel, reference, cpu, refusal = done.stdout.splitlines()
    assert (kernel, reference, cpu) == ("1", "0", "24.0")
    assert "toy_refusing: got portable: not on sm_90a, wanted a backend for sm_90a" in refusal


def test_as_jax_takes_what_jax_takes_without_a_hidden_copy() -> None:
    x = array(2, 3)
    assert as_jax("x", x) is x
    assert isinstance(as_jax("x", np.ones(3)), jax.Array)
    with pytest.raises(FrameworkError, match=r"^x: got Tensor, wanted a JAX or NumPy array; use jax.dlpack"):
        as_jax("x", torch.zeros(3))
    with pytest.raises(FrameworkError, match=r"^x: got builtins.list"):
        as_jax("x", [1.0])
