"""`cudnn.jax.call`: a kernel of the caller's own as a JAX call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.jax_call import (
    call,
    gemm_operand_spec,
    neg_inf_init,
    row_major_desc,
    sf_atom_spec,
    zeros_init,
)

DESCRIPTOR = jax.ShapeDtypeStruct((4,), jnp.float32)
LOWERED = """
import jax, jax.numpy as jnp
import cuda.bindings.driver as cuda
from cutlass import cute
from cudnn_fe.core.jax_call import call, zeros_init

@cute.kernel
def add(x: cute.Tensor, total: cute.Tensor, copy: cute.Tensor, factor: cute.Float32):
    thread, _, _ = cute.arch.thread_idx()
    total[thread] = total[thread] + x[thread] * factor
    copy[thread] = x[thread]

@cute.jit
def launch(stream: cuda.CUstream, x: cute.Tensor, total: cute.Tensor, copy: cute.Tensor, *, factor: cute.Float32):
    add(x, total, copy, factor).launch(grid=(1, 1, 1), block=(4, 1, 1), stream=stream)

shape = jax.ShapeDtypeStruct((4,), jnp.float32)
for outputs in ((shape, shape), [shape, shape]):
    run = call(launch, output_shape_dtype=outputs, initialized_outputs={0: zeros_init}, factor=2.0)
    shapes = jax.eval_shape(run, jnp.ones(4))
    assert type(shapes) is type(outputs), type(shapes)
    assert [s.shape for s in shapes] == [(4,), (4,)]
text = jax.jit(run).trace(jnp.ones(4)).lower(lowering_platforms=("cuda",)).as_text()
print(text.count("stablehlo.custom_call"), "output_operand_alias" in text)
"""


def build(**options: Any) -> Any:
    return call(lambda *arguments: None, output_shape_dtype=options.pop("outputs", (DESCRIPTOR,)), **options)


@pytest.mark.parametrize("outputs", [((DESCRIPTOR,),), {"y": DESCRIPTOR}, 3, (4,)])
def test_outputs_are_one_descriptor_or_a_flat_sequence(outputs: Any) -> None:
    with pytest.raises(OptionError, match=r"^output_shape_dtype: .*wanted one descriptor or a flat sequence"):
        build(outputs=outputs)


@pytest.mark.parametrize("position", [-1, 1])
@pytest.mark.parametrize("option", ["initialized_outputs", "input_output_aliases"])
def test_positions_beyond_the_outputs_are_refused(option: str, position: int) -> None:
    value = {position: zeros_init} if option == "initialized_outputs" else {0: position}
    with pytest.raises(OptionError, match=rf"^{option}: got {position}, wanted 0\.\.0"):
        build(**{option: value})


def test_an_output_is_either_initialised_or_an_alias() -> None:
    with pytest.raises(OptionError, match="got output 0, which aliases an input"):
        build(initialized_outputs={0: zeros_init}, input_output_aliases={0: 0})


def test_inputs_are_flat_arrays() -> None:
    with pytest.raises(OptionError, match=r"^inputs: .*pass flat array inputs"):
        build()([jnp.ones(4)])


def test_fill_functions_and_layouts() -> None:
    assert jnp.array_equal(zeros_init(DESCRIPTOR), jnp.zeros(4))
    assert jnp.array_equal(neg_inf_init(DESCRIPTOR), jnp.full(4, -jnp.inf))
    assert gemm_operand_spec().layout == (1, 0, 2)
    assert sf_atom_spec().mode == (3, 4, 1, 5, 2, 0)
    described = row_major_desc((2, 3), jnp.bfloat16, "x")
    assert (described.strides, described.device, described.dtype.name) == ((3, 1), "cuda:0", "bfloat16")


def test_initialised_outputs_lower_for_cuda_as_aliased_operands(tmp_path: Path) -> None:
    environment = {**os.environ, "CUTE_DSL_ARCH": "sm_90a", "JAX_PLATFORMS": "cpu"}
    script = tmp_path / "lowered.py"  # the compiler reads kernels' source
    script.write_text(LOWERED)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=300)
    assert done.stdout.split() == ["1", "True"]
