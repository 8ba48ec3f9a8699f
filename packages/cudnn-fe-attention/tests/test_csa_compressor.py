"""The CSA compressor: against a float64 loop over rows, by finite differences, in every framework, at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.namespaces import CSA
from cudnn_fe_testkit.attention import attention_tolerance, double
from cudnn_fe_testkit.compare import assert_close, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists here, which the type checker cannot count.
csa_compressor_forward: Any = attention.csa_compressor_forward
csa_compressor_backward: Any = attention.csa_compressor_backward

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
LENGTHS = (9, 3, 0, 8, 5)  # tails, a segment shorter than a block, an empty one
SPARE = 3


def make(kind: str, ratio: int, coff: int, lengths: tuple[int, ...] = LENGTHS, d: int = 5) -> tuple[list[Any], int]:
    """Operands with tokens of NaN past the last segment; and the output rows."""
    tokens = sum(lengths) + SPARE
    kv = normal((tokens, coff * d), kind, seed=1)
    score = normal((tokens, coff * d), kind, seed=2, scale=1.5)
    kv[-SPARE:], score[-SPARE:] = np.nan, np.nan
    ape = normal((ratio, coff * d), seed=3, scale=0.25)
    rows = [length // ratio for length in lengths]
    ends = [np.concatenate([[0], np.cumsum(x)]).astype(np.int32) for x in (lengths, rows)]
    return [kv, score, ape, *ends], sum(rows)


def exact(
    kv: torch.Tensor, score: torch.Tensor, ape: torch.Tensor, lengths: tuple[int, ...], coff: int
) -> torch.Tensor:
    """The definition, one row at a time, in float64."""
    ratio, d, out, first = len(ape), ape.shape[1] // coff, [], 0
    for length in lengths:
        for block in range(length // ratio):
            values, scores = [], []
            for half in range(coff):
                which = block - (coff - 1 - half)
                if which >= 0:
                    at, columns = (
                        slice(first + which * ratio, first + (which + 1) * ratio),
                        slice(half * d, half * d + d),
                    )
                    values.append(kv[at, columns])
                    scores.append(score[at, columns] + ape[:, columns])
            p = torch.softmax(torch.cat(scores), 0)
            out.append((p * torch.cat(values)).sum(0))
        first += length
    return torch.stack(out)


@pytest.mark.parametrize(("kind", "ratio", "coff"), [("bfloat16", 4, 2), ("float32", 4, 1), ("float32", 2, 2)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_forward_and_backward(framework: Framework, kind: str, ratio: int, coff: int) -> None:
    given, rows = make(kind, ratio, coff)
    arrays = [convert(x, framework) for x in given]
    leaves = [double(x).requires_grad_() for x in given[:3]]
    wanted = exact(leaves[0], leaves[1], leaves[2], LENGTHS, coff)
    out = csa_compressor_forward(*arrays, ratio, None, coff, rows + 2)["out"]
    assert_close(out[:rows], wanted.detach(), attention_tolerance(kind, 1, 8))
    assert not to_float64(out[rows:]).any()
    grad = normal((rows + 2, 5), kind, seed=4)
    grad[rows:] = np.nan
    wanted.backward(double(grad[:rows]))
    grads = csa_compressor_backward(*arrays, convert(grad, framework), ratio, None, coff, deterministic=True)
    for name, got, leaf in zip(grads.keys(), grads, leaves, strict=True):
        assert leaf.grad is not None
        assert_close(got, leaf.grad, attention_tolerance("float32" if name == "grad_ape" else kind, 1, 40), name)
        assert not to_float64(got)[leaf.grad.numpy() == 0].any(), name


def test_rows_of_fewer_tokens_than_a_block_are_refused() -> None:
    x, ends = np.ones((3, 6), np.float32), np.asarray([0, 3], np.int32)
    with pytest.raises(ValueError, match="total_comp: got 1 rows of 3 tokens, wanted 0"):
        csa_compressor_forward(x, x, np.ones((4, 6), np.float32), ends, ends * 0, total_comp=1)


def test_long_blocks() -> None:
    lengths = (300, 127, 256)
    given, rows = make("float32", 128, 2, lengths)
    leaves = [double(x) for x in given[:3]]
    out = csa_compressor_forward(*given, 128)["out"]
    assert out.shape == (rows, 5)
    wanted = exact(leaves[0], leaves[1], leaves[2], lengths, 2)
    assert_close(out, wanted, attention_tolerance("float32", 1, 256))


def test_finite_differences() -> None:
    given, rows = make("float32", 2, 2, (5, 4), 2)
    leaves = [double(x).nan_to_num(0).requires_grad_() for x in given[:3]]
    ends = [torch.from_numpy(x) for x in given[3:]]
    assert torch.autograd.gradcheck(lambda *x: csa_compressor_forward(*x, *ends, 2, None, 2, rows)["out"], leaves)


def test_jax_under_jit_and_grad() -> None:
    import jax

    given, rows = make("float32", 4, 2)
    leaves = [double(x).requires_grad_() for x in given[:3]]
    exact(leaves[0], leaves[1], leaves[2], LENGTHS, 2).square().sum().backward()
    ends = [convert(x, "jax") for x in given[3:]]

    def loss(*x: Any) -> Any:
        return (csa_compressor_forward(*x, *ends, 4, None, 2, rows)["out"] ** 2).sum()

    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*(convert(x, "jax") for x in given[:3]))
    for got, leaf in zip(grads, leaves, strict=True):
        assert_close(got, leaf.grad, attention_tolerance("float32", 2, 40))
    with pytest.raises(ValueError, match="total_comp: got None while tracing"):
        jax.jit(lambda e: csa_compressor_forward(*given[:3], ends[0], e)["out"])(ends[1])


def test_special_scores() -> None:
    """NaN and nothing but minus infinity reach their channel alone; zero rows and zero tokens."""
    given, rows = make("float32", 4, 1, (8,), 3)
    given[1][1, 0], given[1][4:8, 2] = np.nan, -np.inf
    out = csa_compressor_forward(*given, 4, None, 1)["out"]
    assert np.isnan(out).tolist() == [[True, False, False], [False, False, True]]
    assert rows == 2
    none = np.zeros(2, np.int32)
    assert csa_compressor_forward(*given[:3], none, none, 4, None, 1)["out"].shape == (0, 3)
    grads = csa_compressor_backward(*given[:3], none, none, np.zeros((0, 3), np.float32), 4, None, 1)
    assert not any(x.any() for x in grads)
    empty = np.zeros((0, 3), np.float32)
    assert csa_compressor_forward(empty, empty, given[2], none, none, 4, None, 1)["out"].shape == (0, 3)


def test_classes_and_wrappers() -> None:
    given, rows = make("float32", 4, 2)
    arrays = [convert(x, "torch") for x in given]
    out = torch.full((rows, 5), float("nan"))
    made = CSA.CSACompressorForward(*arrays, out)
    assert made.check_support()
    made(*arrays, out)
    assert torch.equal(out, CSA.csa_compressor_forward_wrapper(*arrays)["out"])
    back = CSA.CSACompressorBackward(*arrays, out, deterministic=True)
    assert back.scratch_workspace_bytes() == 0
    grads = [torch.full_like(x, float("nan")) for x in arrays[:3]]
    back(*arrays, out, *grads)
    wanted = CSA.csa_compressor_backward_wrapper(*arrays, out)
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


@pytest.mark.parametrize(
    ("grad", "message"),
    [
        (np.ones((2, 4), np.float32), r"grad_out: got \(2, 4\)"),
        (np.ones(2, np.float32), "grad_out: got shape"),
        (np.ones((2, 3), np.float16), "grad_out: got float16"),
    ],
)
def test_backward_refusals(grad: Any, message: str) -> None:
    x, ends = np.ones((8, 6), np.float32), np.asarray([0, 8], np.int32)
    with pytest.raises(ValueError, match=message):
        csa_compressor_backward(x, x, x[:4], ends, np.asarray([0, 2], np.int32), grad)


@pytest.mark.parametrize(
    ("position", "value", "options", "message"),
    [
        (0, np.ones((8, 7), np.float32), {}, "kv: got 7 columns"),
        (1, np.ones((8, 4), np.float32), {}, "score: got"),
        (1, np.ones((8, 6), np.float16), {}, "score: got float16"),
        (2, np.ones((2, 6), np.float32), {}, "ape: got"),
        (2, np.ones((4, 6), np.float16), {}, "ape: got float16"),
        (3, np.zeros(1, np.int32), {}, "cu_seqlens: got"),
        (4, np.zeros(3, np.int32), {}, "cu_seqlens_comp: got"),
        (4, np.zeros(2, np.int64), {}, "cu_seqlens_comp: got int64"),
        (4, None, {"ratio": 3}, "ratio: got 3"),
        (4, None, {"coff": 3}, "coff: got 3"),
        (4, None, {"head_dim": 6}, "kv: got 6 columns"),
        (4, None, {"total_comp": -1}, "total_comp: got -1"),
        (4, None, {"ratio": 128}, r"ape: got \(4, 6\), wanted .* \(128, 6\)"),
        (0, np.ones((6, 8), np.float32).T, {}, "kv: got strides"),
    ],
)
def test_refusals(position: int, value: Any, options: dict[str, Any], message: str) -> None:
    x, ends = np.ones((8, 6), np.float32), np.asarray([0, 8], np.int32)
    given = [x, x, x[:4], ends, np.asarray([0, 2], np.int32)]
    if value is not None:
        given[position] = value
    with pytest.raises(ValueError, match=message):
        csa_compressor_forward(*given, **options)
