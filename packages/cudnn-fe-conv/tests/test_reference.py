"""The reference against float64, in every framework, layout, dtype and kind of sequence."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe.conv import causal_conv1d, causal_conv1d_backward
from cudnn_fe.conv.causal_conv1d.op import FORWARD
from cudnn_fe_testkit.causal_conv import DTYPES, LENGTHS, Case, exact, make_case, sum_tolerance, tolerance
from cudnn_fe_testkit.compare import assert_close


def as_numpy(tensor: Any) -> Any:
    """The values; bfloat16 in ml_dtypes' type."""
    import ml_dtypes

    if tensor is None:
        return None
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def check_forward(case: Case, silu: bool, results: Any, kind: str) -> None:
    x, weight, bias, initial = case.wide()
    y, final = exact(x, weight, bias, silu, case.offsets, initial)
    assert_close(results[0], y, tolerance(weight.shape[1], kind), "y")
    assert np.array_equal(np.asarray(results[1], np.float64), final.numpy()), "states are copies"


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_numpy_grid(kind: str, channels_last: bool) -> None:
    # Time shorter than, at and beyond the history; odd extents.
    for time, width, silu, initial in itertools.product((0, 1, 2, 3, 4, 9), (1, 2, 4, 7), (False, True), (False, True)):
        case = make_case(2, 5, time, width, kind, channels_last=channels_last, initial=initial, bias=silu)
        results = causal_conv1d(
            as_numpy(case.x),
            as_numpy(case.weight),
            as_numpy(case.bias),
            "silu" if silu else None,
            initial_states=as_numpy(case.initial),
            return_final_states=True,
        )
        check_forward(case, silu, results, kind)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("initial", [False, True])
def test_packed_sequences(kind: str, initial: bool) -> None:
    for width, lengths in itertools.product((1, 2, 4, 8), (LENGTHS, (0,), (0, 0, 5), (5, 0), (1,) * 9)):
        case = make_case(1, 3, 0, width, kind, lengths=lengths, initial=initial)
        results = causal_conv1d(
            case.x,
            case.weight,
            case.bias,
            "swish",
            cu_seqlens=case.cu_seqlens,
            initial_states=case.initial,
            return_final_states=True,
        )
        check_forward(case, True, [t.double().numpy() for t in results], kind)


def test_a_boundary_at_every_position() -> None:
    for first in range(17):
        case = make_case(1, 2, 0, 4, lengths=(first, 16 - first), initial=True)
        results = causal_conv1d(
            case.x, case.weight, cu_seqlens=case.cu_seqlens, initial_states=case.initial, return_final_states=True
        )
        case.bias = None
        check_forward(case, False, results, "float32")


@pytest.mark.parametrize("layout", ["BDT", "BTD"])
def test_jax_grid(layout: str) -> None:
    import jax.numpy as jnp

    def convert(tensor: Any) -> Any:
        return None if tensor is None else jnp.asarray(as_numpy(tensor))

    for kind, lengths, initial in itertools.product(("bfloat16", "float32"), (None, LENGTHS), (False, True)):
        case = make_case(1 if lengths else 2, 6, 11, 4, kind, lengths=lengths, initial=initial)
        x = convert(case.x)
        results = causal_conv1d(
            x if layout == "BDT" else x.transpose(0, 2, 1),
            convert(case.weight),
            convert(case.bias),
            "silu",
            cu_seqlens=convert(case.cu_seqlens),
            initial_states=convert(case.initial),
            return_final_states=True,
            layout=layout,
        )
        y = results[0] if layout == "BDT" else results[0].transpose(0, 2, 1)
        check_forward(case, True, (np.asarray(y), np.asarray(results[1])), kind)


@pytest.mark.parametrize("extents", [(0, 3, 5), (2, 0, 5)])
def test_no_rows_or_channels(extents: tuple[int, int, int]) -> None:
    case = make_case(*extents, 4, initial=True)
    operands: Any = (case.x, case.weight, case.bias, "silu")
    y, final = causal_conv1d(*operands, initial_states=case.initial, return_final_states=True)
    got = causal_conv1d_backward(y, *operands, initial_states=case.initial, d_final_states=final)
    assert [tuple(t.shape) for t in (y, final)] == [extents, (*extents[:2], 3)]
    for name, like in zip(got.keys(), (case.x, case.weight, case.bias, case.initial), strict=True):
        assert torch.equal(got[name], torch.zeros_like(like)), name


def test_strides_of_x_are_kept() -> None:
    for channels_last, pad in itertools.product((False, True), (0, 3)):
        case = make_case(2, 4, 6, 3, channels_last=channels_last, pad=pad)
        y = causal_conv1d(case.x, case.weight)
        assert y.stride() == ((24, 1, 4) if channels_last else (24, 6, 1))
    _, final = causal_conv1d(case.x, case.weight, return_final_states=True)
    assert final.stride() == (8, 1, 4)


@pytest.mark.parametrize("framework", ["torch", "numpy", "jax"])
@pytest.mark.parametrize(("packed", "layout"), [(False, "BDT"), (True, "BDT"), (True, "BTD")])
def test_states_are_copied_bit_for_bit(packed: bool, layout: str, framework: str) -> None:
    """NaNs with payloads and negative zeros too, of samples and of initial states."""
    import jax.numpy as jnp

    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).reshape(-1, 4)
    x, initial, weight = bits[None, :, :2], bits[None, :, 1:], torch.ones(bits.shape[0], 4).bfloat16()
    offsets = torch.tensor([0, 2], dtype=torch.int32) if packed else None
    wanted = torch.cat([initial[..., 2:], x], dim=2)
    x = x.transpose(1, 2) if layout == "BTD" else x
    given: list[Any] = [t if framework == "torch" else as_numpy(t) for t in (x, weight, offsets, initial)]
    if framework == "jax":
        given = [None if t is None else jnp.asarray(t) for t in given]
    _, final = causal_conv1d(
        given[0], given[1], cu_seqlens=given[2], initial_states=given[3], return_final_states=True, layout=layout
    )
    final = final.contiguous().view(torch.int16).numpy() if framework == "torch" else np.asarray(final).view(np.int16)
    assert np.array_equal(final, wanted.view(torch.int16).numpy())


def test_nan_reaches_exactly_what_depends_on_it() -> None:
    case = make_case(1, 2, 0, 4, lengths=(6, 6))
    case.x[0, 1, 4] = torch.nan
    y = causal_conv1d(case.x, case.weight, case.bias, "silu", cu_seqlens=case.cu_seqlens)
    assert torch.isnan(y).nonzero().tolist() == [[0, 1, 4], [0, 1, 5]]
    operands = (torch.ones_like(y), case.x, case.weight, case.bias, "silu")
    got = causal_conv1d_backward(*operands, cu_seqlens=case.cu_seqlens)
    assert torch.isnan(got["dx"]).nonzero().tolist() == [[0, 1, t] for t in range(1, 6)]
    assert torch.isnan(got["dweight"]).any(dim=1).tolist() == torch.isnan(got["dbias"]).tolist() == [False, True]


def test_nan_in_a_state_reaches_exactly_what_depends_on_it() -> None:
    case = make_case(1, 2, 0, 4, lengths=(2, 6), initial=True)
    case.initial[1, 0, 1] = torch.nan  # two tokens before the second sequence's first
    given = {"cu_seqlens": case.cu_seqlens, "initial_states": case.initial}
    y, final = causal_conv1d(case.x, case.weight, case.bias, "silu", return_final_states=True, **given)
    assert torch.isnan(y).nonzero().tolist() == [[0, 0, 2], [0, 0, 3]]
    assert not torch.isnan(final).any()
    d_final = torch.zeros_like(final)
    d_final[0, 1, 1] = torch.nan  # the first sequence's first token
    d_final[0, 1, 0] = torch.nan  # its initial state's last lane
    operands = (torch.ones_like(y), case.x, case.weight, case.bias)
    got = causal_conv1d_backward(*operands, d_final_states=d_final, **given)
    assert torch.isnan(got["dx"]).nonzero().tolist() == [[0, 1, 0]]
    assert torch.isnan(got["d_initial_states"]).nonzero().tolist() == [[0, 1, 2]]


def gradients_of(case: Case, silu: bool, dy: Any, d_final: Any) -> list[Any]:
    leaves = [t.requires_grad_() if t is not None else None for t in case.wide()]
    x, weight, bias, initial = leaves
    y, final = exact(x, weight, bias, silu, case.offsets, initial)
    loss = (y * dy.double()).sum() + (0 if d_final is None else (final * d_final.double()).sum())
    loss.backward()
    return [None if t is None else t.grad for t in leaves]


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_backward_against_float64_autograd(kind: str, lengths: tuple[int, ...] | None) -> None:
    for width, silu, initial, time in itertools.product((1, 2, 4, 6), (False, True), (False, True), (2, 13)):
        case = make_case(1 if lengths else 2, 3, time, width, kind, lengths=lengths, initial=initial, bias=silu)
        generator = torch.Generator().manual_seed(5)
        dy = torch.randn(case.x.shape, generator=generator).to(case.x.dtype)
        count = case.x.shape[0] if lengths is None else len(lengths)
        d_final = torch.randn((count, 3, width - 1), generator=generator).to(case.x.dtype) if initial else None
        got = causal_conv1d_backward(
            dy,
            case.x,
            case.weight,
            case.bias,
            "silu" if silu else None,
            cu_seqlens=case.cu_seqlens,
            initial_states=case.initial,
            d_final_states=d_final,
        )
        tokens = case.x.shape[0] * case.x.shape[2]
        sums = sum_tolerance(tokens, width, kind, kind)
        bounds = (tolerance(width, kind), sums, sums, tolerance(width, kind))
        for name, wanted, bound in zip(got.keys(), gradients_of(case, silu, dy, d_final), bounds, strict=False):
            if wanted is not None:
                pair = ("dx", "dweight", "dbias", "d_initial_states")
                assert_close(got[name], wanted, bound, f"{name} of {pair}")


def test_float32_parameters_beside_half_precision() -> None:
    """Taps are not rounded to x's type, nor their gradients."""
    for kind in ("bfloat16", "float16"):
        case = make_case(2, 3, 40, 4, kind, parameters="float32")
        dy = torch.randn(case.x.shape, generator=torch.Generator().manual_seed(5)).to(case.x.dtype)
        y = causal_conv1d(case.x, case.weight, case.bias, "silu")
        got = causal_conv1d_backward(dy, case.x, case.weight, case.bias, "silu")
        x, weight, bias, _ = case.wide()
        assert_close(y, exact(x, weight, bias, True)[0], tolerance(4, kind), "y")
        dx, dweight, dbias, _ = gradients_of(case, True, dy, None)
        assert_close(got["dx"], dx, tolerance(4, kind), "dx")
        for name, gradient in (("dweight", dweight), ("dbias", dbias)):
            assert got[name].dtype == torch.float32
            assert_close(got[name], gradient, sum_tolerance(80, 4, kind, "float32"), name)


def test_d_final_is_added_before_the_rounding() -> None:
    """256 + 0.5 in bfloat16 is 256, but 256 + (0.5 + 0.75) rounds up from 257.25."""
    x, weight = torch.zeros(1, 1, 1, dtype=torch.bfloat16), torch.tensor([[0.0, 0.75]], dtype=torch.bfloat16)
    d_final = torch.tensor([[[257.0 - 1.0]]], dtype=torch.bfloat16)
    dy = torch.tensor([[[5 / 3]]], dtype=torch.bfloat16)
    dx = causal_conv1d_backward(dy, x, weight, d_final_states=d_final)["dx"]
    wanted = (dy.float() * 0.75 + 256.0).to(torch.bfloat16)
    assert torch.equal(dx, wanted)
    assert wanted.item() != 256.0


def test_padding_reaches_nothing() -> None:
    case = make_case(2, 3, 8, 4, pad=5)
    assert not torch.isnan(causal_conv1d(case.x, case.weight)).any()


def test_the_reference_is_the_only_backend_on_a_cpu() -> None:
    assert next(iter(FORWARD.support())) == "reference"
