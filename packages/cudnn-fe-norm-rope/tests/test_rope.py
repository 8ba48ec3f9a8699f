"""Tail RoPE and the vision encoder's backward, bit for bit against exact arithmetic."""

# Operands are spread from made cases, whose number a type checker cannot know.
# mypy: disable-error-code="arg-type, assignment, call-arg, call-overload, func-returns-value, index, unreachable"

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn
from cudnn_fe.core.errors import NotYetSupportedError, ShapeError, StrideError
from cudnn_fe.norm_rope import tail_rope_forward, vision_rope_backward

BF16 = ml_dtypes.bfloat16


def rounded(exact: Fraction, bits: int) -> float:
    """``exact`` to ``bits`` significant bits, or fewer where they would lie below float32's smallest subnormal or its
    like, ties to even; infinity past the largest."""
    if exact == 0:
        return 0.0
    scale, size = 0, abs(exact)
    while size >= 2**bits:
        size, scale = size / 2, scale + 1
    while size < 2 ** (bits - 1):
        size, scale = size * 2, scale - 1
    lost = max(-125 - bits - scale, 0)  # places below those that subnormals have
    whole = round(size / 2**lost) * 2**lost  # Python rounds halves to even
    result = Fraction(whole) * Fraction(2) ** scale
    return float(np.sign(exact)) * (float(result) if result < 2**128 else float("inf"))


def pair(a: float, b: float, c: float, s: float) -> tuple[float, float]:
    """The contract's two results of one pair, in exact arithmetic with its roundings."""
    a, b, c, s = map(Fraction, (a, b, c, s))
    left = a * c - Fraction(rounded(b * s, 24))
    right = b * c + Fraction(rounded(a * s, 24))
    return tuple(rounded(Fraction(rounded(x, 24)), 8) for x in (left, right))  # type: ignore[return-value]


def inputs(tokens: int, channels: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(channels)
    x = rng.normal(size=(tokens, channels)).astype(BF16)
    angle = rng.uniform(-7, 7, size=(tokens, 32))
    return x, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def test_order_of_roundings_fixture() -> None:
    a, b, c, s = -0.88671875, 0.28125, -0.9531887769699097, -0.3023758828639984
    x = np.zeros((1, 64), BF16)
    x[0, :2] = a, b
    tables = np.full((1, 32), c, np.float32), np.full((1, 32), s, np.float32)
    out = tail_rope_forward(x, *tables)["out"]
    assert int(out.view(np.uint16)[0, 1]) == 14368  # any other order of rounding gives 14367


# Also where bfloat16's subnormals come in, where products are subnormal, and where results overflow.
@pytest.mark.parametrize(
    ("channels", "magnitude", "table"), [(64, 0, 0), (128, 0, 0), (64, -128, 0), (64, -70, -60), (64, 126, 0)]
)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_every_pair_is_rounded_as_written(channels: int, magnitude: int, table: int, framework: str) -> None:
    x, cosine, sine = inputs(20, channels)
    x = (x.astype(np.float64) * 2.0**magnitude).astype(BF16)
    cosine, sine = (angle * np.float32(2.0**table) for angle in (cosine, sine))
    if framework == "numpy":
        with np.errstate(over="ignore", invalid="ignore"):
            out = tail_rope_forward(x, cosine, sine)["out"]
    else:
        given = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        turned = tail_rope_forward(given, torch.from_numpy(cosine), torch.from_numpy(sine))["out"]
        out = turned.view(torch.int16).numpy().view(BF16)
    assert (out[:, :-64].view(np.uint16) == x[:, :-64].view(np.uint16)).all()
    tail, turned = x[:, -64:].astype(float), out[:, -64:].astype(float)
    for token in range(20):
        for i in range(32):
            wanted = pair(*tail[token, 2 * i : 2 * i + 2], float(cosine[token, i]), float(sine[token, i]))
            assert tuple(turned[token, 2 * i : 2 * i + 2]) == wanted


def test_nan_and_infinity_stay_in_their_pair() -> None:
    x, cosine, sine = inputs(1, 128)
    x[0, 70], x[0, 80], x[0, 3] = np.nan, np.inf, np.nan
    out = tail_rope_forward(x, cosine, sine)["out"][0].astype(np.float32)
    assert np.flatnonzero(~np.isfinite(out)).tolist() == [3, 70, 71, 80, 81]
    assert np.isinf(out[80:82]).all()


def test_strided_tokens_and_heads() -> None:
    x = torch.randn(5, 4, 192).to(torch.bfloat16)[::2, 1:3, :128]
    tables = torch.randn(3, 32), torch.randn(3, 32)
    assert torch.equal(tail_rope_forward(x, *tables)["out"], tail_rope_forward(x.contiguous(), *tables)["out"])


def test_tail_refusals() -> None:
    x, cosine, sine = inputs(2, 128)
    with pytest.raises(NotYetSupportedError, match="D = 60"):
        tail_rope_forward(x[:, :60], cosine, sine)
    with pytest.raises(ShapeError, match=r"sine.*\(T, 32\)"):
        tail_rope_forward(x, cosine, sine[:, :16])
    with pytest.raises(StrideError, match="last dim"):
        tail_rope_forward(np.asfortranarray(x), cosine, sine)
    with pytest.raises(ValueError, match="frost"):
        cudnn.tail_rope(x, cosine, sine, backend="other")
    with pytest.raises(ValueError, match="gradient"):
        cudnn.tail_rope(torch.ones(2, 128, dtype=torch.bfloat16).requires_grad_(), cosine, sine)


def test_tail_class() -> None:
    def tensors(tokens: int) -> list[torch.Tensor]:
        x, out = (torch.randn(tokens, 2, 128).to(torch.bfloat16) for _ in range(2))
        return [x, torch.randn(tokens, 32), torch.randn(tokens, 32), out]

    op = cudnn.TailRoPEForward(*tensors(3))
    op.compile()
    assert op.scratch_workspace_bytes() == 0
    for tokens in (3, 7, 0):
        x, cosine, sine, out = tensors(tokens)
        assert op.execute(x, cosine, sine, out)["out"] is out
        assert torch.equal(out, tail_rope_forward(x, cosine, sine)["out"])
    x, cosine, sine, _ = tensors(3)
    with pytest.raises(ValueError, match="overlap"):
        op.execute(x, cosine, sine, x)
    with pytest.raises(ValueError, match="as the sample"):
        op.execute(torch.ones(3, 4, 128, dtype=torch.bfloat16), cosine, sine, x)


def vision(tokens: int) -> list[torch.Tensor]:
    rows = [torch.randn(16, tokens, 64).to(torch.bfloat16).permute(1, 0, 2) for _ in range(2)]
    columns = torch.randn(16, 64, tokens).to(torch.bfloat16).permute(2, 0, 1)
    angle = torch.randn(tokens, 1, 32)
    return [rows[0], columns, rows[1], angle.cos(), angle.sin()]


@pytest.mark.parametrize("tokens", [1, 31, 33])
def test_vision_is_exact(tokens: int) -> None:
    q, k, v, cosine, sine = vision(tokens)
    out = vision_rope_backward(q, k, v, cosine, sine)["grad_qkv"].view(tokens, 3, 16, 64)
    for got, grad in ((out[:, 0], q), (out[:, 1], k)):
        # torch's eager products and sums round one by one.
        a, b = grad.float().split(32, dim=-1)
        wanted = torch.cat((a * cosine + b * sine, b * cosine - a * sine), dim=-1).to(torch.bfloat16)
        assert torch.equal(got, wanted)
    assert torch.equal(out[:, 2], v)


def test_vision_refusals_and_class() -> None:
    q, k, v, cosine, sine = vision(4)
    with pytest.raises(StrideError, match=r"grad_k.*\[head\]\[channel\]\[token\]"):
        vision_rope_backward(q, k.contiguous(), v, cosine, sine)
    with pytest.raises(ShapeError, match="unsqueeze"):
        vision_rope_backward(q, k, v, cosine[:, 0], sine)
    op = cudnn.VisionRoPEBackward(q, k, v, cosine, sine)
    with pytest.raises(RuntimeError, match="compile"):
        op.execute(q, k, v, cosine, sine, q)
    op.compile()
    for tokens in (4, 9):
        given, out = vision(tokens), torch.full((tokens, 3072), float("nan"), dtype=torch.bfloat16)
        assert op.execute(*given, out) is out
        assert torch.equal(out, vision_rope_backward(*given)["grad_qkv"])
