"""Every attention op under JAX's jit, with all arrays traced: what torch tensors give."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe_testkit.attention_cases import CASES
from cudnn_fe_testkit.compare import rel_rms, to_float64
from cudnn_fe_testkit.inputs import convert

# Those that the ops' own tests trace are not traced again: a compilation takes seconds.
TRACED_ELSEWHERE = (
    "block_sparse_attention_forward",
    "block_sparse_attention_backward",
    "csa_compressor",
    "dsa_dense",
    "dsa_indexer_backward",
    "dsa_indexer_forward",
    "dsa_indexer_fused",
    "dsa_sparse_attention",
    "flex_attention",
    "gated_attention_block_forward",
    "gated_attention_block_backward",
    "gated_delta_net_forward",
    "gated_delta_net_backward",
    "gated_delta_net_v2_forward",
    "gated_delta_net_v2_backward",
    "hstu_attention",
    "kimi_delta_attention_forward",
    "kimi_delta_attention_backward",
    "mamba2",
)


def as_jax(x: torch.Tensor) -> Any:
    if x.dtype == torch.bfloat16:
        return convert(x.float().numpy().astype(ml_dtypes.bfloat16), "jax")
    return convert(x.detach().numpy(), "jax")


@pytest.mark.parametrize("name", [name for name, _, _ in CASES if not name.startswith(TRACED_ELSEWHERE)])
def test_under_jit(name: str) -> None:
    operands, options = next((operands, options) for known, operands, options in CASES if known == name)
    function = getattr(attention, name)
    wanted = [x for x in function(*operands, **options) if x is not None]
    names = [str(position) for position in range(len(operands))]
    given = {**dict(zip(names, operands, strict=True)), **options}
    arrays = {key: as_jax(x) for key, x in given.items() if isinstance(x, torch.Tensor)}

    def run(traced: dict[str, Any]) -> list[Any]:
        values = {**given, **traced}
        results = function(*(values[n] for n in names), **{n: values[n] for n in options})
        return [x for x in results if x is not None]

    got = jax.jit(run)(arrays)
    assert len(got) == len(wanted)
    for x, reference in zip(got, wanted, strict=True):
        assert tuple(x.shape) == tuple(reference.shape)
        # Both are float32 sums of at most a few thousand terms; XLA takes them in another order. A sum beside the
        # middle of two numbers of a narrow type then falls to the other side.
        bound = 2.0**-8 if reference.dtype == torch.bfloat16 else 64 * 2.0**-24
        assert not x.size or rel_rms(to_float64(x), to_float64(reference)) <= bound


@pytest.mark.parametrize(
    "name", ["gated_delta_net_forward", "gated_delta_product_forward"]
)  # others: in their own tests
def test_gradients_under_jit(name: str) -> None:
    """Of every operand that has one: what torch's autograd gives."""
    operands, options = next((operands, options) for known, operands, options in CASES if known == name)
    function = getattr(attention, name)
    options = {key: x for key, x in options.items() if not key.startswith("checkpoint")}  # have no derivative
    places = [i for i, x in enumerate(operands) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    leaves = {i: operands[i].detach().requires_grad_() for i in places}
    function(*(leaves.get(i, x) for i, x in enumerate(operands)), **options)["o"].square().sum().backward()
    arrays = [as_jax(x) if isinstance(x, torch.Tensor) else x for x in operands]

    def loss(given: dict[int, Any]) -> Any:
        return (function(*(given.get(i, x) for i, x in enumerate(arrays)), **options)["o"] ** 2).sum()

    found = jax.jit(jax.grad(loss))({i: arrays[i] for i in places})
    assert len(found) == 5
    for i, leaf in leaves.items():
        assert rel_rms(to_float64(found[i]), to_float64(leaf.grad)) <= 64 * 2.0**-24
