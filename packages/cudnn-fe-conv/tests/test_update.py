"""The decoding step's reference: values, states in place, slots, rings, and the hand-over from whole sequences."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe.conv import causal_conv1d, causal_conv1d_update
from cudnn_fe.core.errors import AliasError, DTypeError, NotYetSupportedError, OptionError, ShapeError
from cudnn_fe_testkit.causal_conv import DTYPES, exact_step, tolerance
from cudnn_fe_testkit.compare import assert_close


def operands(rows: int, channels: int, width: int, lanes: int, slots: int, kind: str = "float32") -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, channels), (slots, channels, lanes), (channels, width), (channels,))
    return [torch.randn(shape, generator=generator).to(getattr(torch, kind)) for shape in shapes]


@pytest.mark.parametrize("kind", DTYPES)
def test_shifted_states(kind: str) -> None:
    for width, extra, silu in itertools.product((1, 2, 4, 9), (0, 1, 3), (False, True)):
        x, state, weight, bias = operands(3, 5, width, width - 1 + extra, 4, kind)
        before = state.clone()
        y = causal_conv1d_update(x, state, weight, bias, "silu" if silu else "identity")
        history = before[:3, :, before.shape[2] - (width - 1) :].double()
        wanted = exact_step(x.double(), history, weight.double(), bias.double(), silu)
        assert_close(y, wanted, tolerance(width, kind))
        moved = torch.cat([before[:3], x[:, :, None]], dim=2)[:, :, 1:]
        assert torch.equal(state, torch.cat([moved, before[3:]]))


def test_slots_and_rows_left_out() -> None:
    x, state, weight, bias = operands(4, 5, 4, 3, 6)
    before = state.clone()
    slots = torch.tensor([5, -1, 0, 2], dtype=torch.int32)
    y = causal_conv1d_update(x, state, weight, bias, conv_state_indices=slots)
    assert torch.equal(y[1], torch.zeros(5))
    for row, slot in ((0, 5), (2, 0), (3, 2)):
        assert torch.equal(state[slot], torch.cat([before[slot, :, 1:], x[row, :, None]], dim=1))
    for slot in (1, 3, 4):
        assert torch.equal(state[slot], before[slot])


@pytest.mark.parametrize("lanes", [3, 4, 7])
def test_a_ring_follows_the_whole_sequence(lanes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 5, 20, generator=generator), torch.randn(5, 4, generator=generator)
    whole = causal_conv1d(x, weight, activation="silu")
    ring = torch.zeros(2, 5, lanes)
    seen = torch.zeros(2, dtype=torch.int32)
    for t in range(20):
        y = causal_conv1d_update(x[..., t], ring, weight, None, "silu", cache_seqlens=seen)
        assert torch.equal(y, whole[..., t])
        assert torch.equal(ring[:, :, t % lanes], x[..., t])
        seen += 1


def converted(tensor: Any, framework: str) -> Any:
    """A bfloat16 or other tensor as the framework's own array, bit for bit."""
    import jax.numpy as jnp
    import ml_dtypes

    if framework == "torch":
        return tensor.clone()
    bits = tensor.dtype == torch.bfloat16
    array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if bits else tensor.numpy()
    return jnp.asarray(array) if framework == "jax" else array.copy()


@pytest.mark.parametrize("framework", ["torch", "numpy", "jax"])
@pytest.mark.parametrize("extents", [(0, 5, 4), (0, 5, 0), (2, 0, 3)])
def test_no_rows_or_channels(extents: tuple[int, int, int], framework: str) -> None:
    rows, channels, slots = extents
    x, state, weight, _ = operands(rows, channels, 4, 3, slots)
    for indices in (None, torch.arange(rows, dtype=torch.int32)):
        given = [converted(t, framework) for t in (x, state, weight)]
        slot = None if indices is None else converted(indices, framework)
        y = causal_conv1d_update(*given, conv_state_indices=slot)
        y, after = y if framework == "jax" else (y, given[1])
        assert y.shape == (rows, channels)
        assert np.array_equal(np.asarray(after), state.numpy())


@pytest.mark.parametrize("framework", ["torch", "numpy", "jax"])
@pytest.mark.parametrize("ring", [False, True])
def test_states_move_bit_for_bit(ring: bool, framework: str) -> None:
    """Every bfloat16, NaNs with payloads too, in one row's slot; a row left out and its NaNs reach nothing."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    lanes = bits.reshape(-1, 4)
    state = torch.stack([torch.zeros_like(lanes[:, :3]), lanes[:, :3]])
    x = torch.stack([torch.full_like(lanes[:, 3], torch.nan), lanes[:, 3]])
    slots, seen = torch.tensor([-1, 1], dtype=torch.int32), torch.tensor([7, 7], dtype=torch.int32)
    given = [converted(t, framework) for t in (x, state, torch.ones(lanes.shape[0], 4).bfloat16())]
    y = causal_conv1d_update(
        *given,
        conv_state_indices=converted(slots, framework),
        cache_seqlens=converted(seen, framework) if ring else None,
    )
    y, after = y if framework == "jax" else (y, given[1])
    after = after.view(torch.int16).numpy() if framework == "torch" else np.asarray(after).view(np.int16)
    wanted = lanes[:, [0, 3, 2] if ring else [1, 2, 3]].contiguous()
    assert np.array_equal(after[1], wanted.view(torch.int16).numpy())
    assert not after[0].any()
    assert not np.asarray(y.float() if framework == "torch" else y)[0].any()


def test_numpy_and_jax() -> None:
    import jax
    import jax.numpy as jnp

    x, state, weight, bias = (t.numpy() for t in operands(3, 5, 4, 3, 4))
    slots = np.array([2, 0, 3], np.int32)
    given = [jnp.asarray(array) for array in (x, state, weight, bias)]
    step = jax.jit(lambda x, s, w, b: causal_conv1d_update(x, s, w, b, "silu", conv_state_indices=jnp.asarray(slots)))
    y_jax, state_jax = step(*given)
    y = causal_conv1d_update(x, state, weight, bias, "silu", conv_state_indices=slots)
    np.testing.assert_allclose(np.asarray(y_jax), y, rtol=1e-6)
    assert np.array_equal(np.asarray(state_jax), state)


def test_jax_leaves_rows_without_a_slot_out() -> None:
    import jax.numpy as jnp

    x, state, weight, _ = (t.numpy() for t in operands(4, 5, 4, 3, 3))
    slots = np.array([2, 3, -2, 2], np.int32)
    given: Any = [jnp.asarray(array) for array in (x, state, weight)]
    y, after = causal_conv1d_update(*given, conv_state_indices=jnp.asarray(slots))
    assert not np.asarray(y)[1:3].any()
    wanted = state.copy()
    wanted[2] = np.concatenate([state[2, :, 1:], x[0, :, None]], axis=1)
    assert np.array_equal(np.asarray(after), wanted)


def test_refusals() -> None:
    x, state, weight, bias = operands(3, 5, 4, 3, 4)
    with pytest.raises(OptionError, match="activation: got 'gelu'"):
        causal_conv1d_update(x, state, weight, bias, "gelu")
    with pytest.raises(ShapeError, match=r"S = 2 slots for N = 3 rows"):
        causal_conv1d_update(x, state[:2], weight)
    with pytest.raises(ShapeError, match=r"L = 2 beside W = 4"):
        causal_conv1d_update(x, state[:, :, :2], weight)
    with pytest.raises(DTypeError, match="conv_state: got float16"):
        causal_conv1d_update(x, state.half(), weight)
    with pytest.raises(TypeError, match="conv_state_indices: got int64"):
        causal_conv1d_update(x, state, weight, conv_state_indices=torch.arange(3))
    with pytest.raises(ValueError, match="x: got shape"):
        causal_conv1d_update(x[:, :, None], state, weight)
    for bad in ([0, 1, 4], [0, 1, -2], [0, 1, 1]):
        before = state.clone()
        with pytest.raises(OptionError, match="conv_state_indices"):
            causal_conv1d_update(x, state, weight, conv_state_indices=torch.tensor(bad, dtype=torch.int32))
        assert torch.equal(state, before)
    with pytest.raises(NotYetSupportedError, match="requires a gradient"):
        causal_conv1d_update(x.requires_grad_(), state, weight)
    memory = torch.randn(4, 5, 3)
    with pytest.raises(AliasError, match="conv_state"):
        causal_conv1d_update(memory[:3, :, 0], memory, weight)
