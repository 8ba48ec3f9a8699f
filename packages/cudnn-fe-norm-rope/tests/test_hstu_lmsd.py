"""LayerNorm-Multiply-SiLU-Dropout against float64, its mask against published Philox words, and its rules."""

# Operands are spread from made cases, whose number a type checker cannot know.
# mypy: disable-error-code="call-arg, misc"

from __future__ import annotations

from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cudnn_fe.core.device import Device
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import AliasError, OptionError, ShapeError, StrideError
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides
from cudnn_fe.norm_rope import hstu_lmsd_backward, hstu_lmsd_forward, hstu_lmsd_jax_forward
from cudnn_fe.norm_rope.hstu_lmsd.dropout import dropout
from cudnn_fe.norm_rope.hstu_lmsd.op import BACKWARD, FORWARD
from cudnn_fe.norm_rope.hstu_lmsd.reference import philox_words
from cudnn_fe.norm_rope.limits import MOST_ROWS

BF16 = ml_dtypes.bfloat16
FLAGS = [(silu, u, x) for silu in (True, False) for u in (True, False) for x in (True, False)]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """The generator in Python's whole numbers."""
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & 0xFFFFFFFF,
            (first >> 32) ^ counter[3] ^ key[1],
            first & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def test_philox_known_answers() -> None:
    # From the authors' Random123 distribution, kat_vectors.
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    full = 0xFFFFFFFF
    assert philox([full] * 4, [full] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 17, -5])
def test_words_of_every_element(seed: int) -> None:
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    signed = [word - 2**32 if word >= 2**31 else word for word in key]
    for xp in (np, torch):
        import array_api_compat

        namespace = array_api_compat.array_namespace(xp.asarray([0]))
        for plane in range(3):
            words = np.asarray(philox_words(namespace, 3, 8, plane, (signed[0], signed[1])))
            wanted = [[philox([row, c // 4, plane, 0], list(key))[c % 4] for c in range(8)] for row in range(3)]
            assert words.tolist() == wanted


@pytest.mark.parametrize("ratio", [1e-12, 0.1, 0.5, 0.99999994])
def test_threshold_is_the_first_word_above_the_ratio(ratio: float) -> None:
    def kept(word: int) -> bool:
        return bool(np.float32(np.float32(word) * np.float32(2.0**-32)) > np.float32(ratio))

    _, threshold = dropout(float(np.float32(ratio)))
    assert threshold == 2**32 or kept(threshold)
    assert not kept(threshold - 1)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(("rows", "ratio", "seed"), [(3, 0.1, 1), (5, 0.37, 2**32 + 17), (4, 0.5, -(2**63))])
def test_mask_is_that_of_the_generator(rows: int, ratio: float, seed: int, framework: str) -> None:
    """Bit p of the mask: whether plane p's word, as float32 times 2**-32, exceeds the ratio."""
    convert: dict[str, Any] = {"numpy": np.asarray, "torch": from_numpy, "jax": jnp.asarray}
    given: Any = [convert[framework](t) for t in sample(rows, 16)]
    forward = hstu_lmsd_jax_forward if framework == "jax" else hstu_lmsd_forward
    mask = forward(*given, dropout_ratio=ratio, seed=seed)[3]
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for row, c in np.ndindex(rows, 16):
        words = [philox([row, c // 4, plane, 0], list(key))[c % 4] for plane in range(3)]
        kept = [bool(np.float32(np.float32(word) * np.float32(2.0**-32)) > np.float32(ratio)) for word in words]
        assert int(mask[row, c]) == sum(bit << plane for plane, bit in enumerate(kept)), (row, c)


def from_numpy(x: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)


def sample(rows: int, columns: int) -> Any:
    rng = np.random.default_rng(columns)
    shapes = ((rows, columns), (rows, columns), (columns,), (columns,))
    return [rng.normal(size=shape).astype(BF16) for shape in shapes]


def definition(x: Any, u: Any, w: Any, b: Any, mask: Any, ratio: float, silu: bool, cu: bool, cx: bool) -> Any:
    """The page's formulas in torch, differentiable, in the arguments' precision."""
    scale = float(dropout(float(np.float32(ratio)))[0]) if ratio else 1.0
    gate = u * torch.sigmoid(u) if silu else u
    centred = x - x.mean(1, keepdim=True)
    product = (centred / torch.sqrt(centred.square().mean(1, keepdim=True) + 1e-6) * w + b) * gate
    segments = [(gate, 2)] * cu + [(x, 1)] * cx + [(product, 0)]
    if mask is None:
        return torch.cat([value for value, _ in segments], 1)
    return torch.cat([torch.where((mask >> bit) & 1 != 0, value * scale, 0.0) for value, bit in segments], 1)


def wide(x: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float64))


@pytest.mark.parametrize(("silu", "cu", "cx"), FLAGS)
@pytest.mark.parametrize("ratio", [0.0, 0.37])
def test_forward_and_gradients_against_float64(silu: bool, cu: bool, cx: bool, ratio: float) -> None:
    rows, columns = 33, 24
    given = sample(rows, columns)
    how: dict[str, Any] = {"dropout_ratio": ratio, "apply_u_silu": silu, "concat_u": cu, "concat_x": cx}
    y, mean, rstd, mask = hstu_lmsd_forward(*given, seed=2**32 + 17, **how)
    assert (mask is None) == (ratio == 0)
    leaves: Any = [wide(t).requires_grad_() for t in given]
    bits = None if mask is None else torch.from_numpy(mask.astype(np.int64))
    wanted = definition(*leaves, bits, ratio, silu, cu, cx)
    unit = 2.0**-8  # one rounding to bfloat16
    assert np.abs(y.astype(np.float64) - wanted.detach().numpy()).max() <= unit * wanted.abs().max().item()
    np.testing.assert_allclose(mean, wide(given[0]).mean(1), rtol=0, atol=2.0**-23 * 24)
    deviation = 1 / (wide(given[0]).var(1, correction=0) + 1e-6).sqrt()
    np.testing.assert_allclose(rstd, deviation, rtol=2.0**-23 * 24)
    dy = np.random.default_rng(1).normal(size=y.shape).astype(BF16)
    wanted.backward(wide(dy))
    grads = hstu_lmsd_backward(dy, *given, mean, rstd, mask, **how)
    for got, leaf in zip(grads, (leaves[0], leaves[1], leaves[2], leaves[3]), strict=True):
        error = np.sqrt(np.mean((got.astype(np.float64) - leaf.grad.numpy()) ** 2))
        assert error <= unit * np.sqrt(np.mean(leaf.grad.numpy() ** 2))


def test_mask_bits_of_absent_segments_are_zero_and_each_plane_is_kept_as_often_as_asked() -> None:
    x, u, w, b = sample(400, 200)
    y, _, _, mask = hstu_lmsd_forward(x, u, w, b, dropout_ratio=0.25, seed=3, concat_u=False)
    assert mask.max() <= 3
    for bit in (0, 1):
        kept = ((mask >> bit) & 1).mean()
        assert abs(kept - 0.75) < 5 * np.sqrt(0.75 * 0.25 / mask.size)
    assert not y[:, :200][(mask & 2) == 0].any()
    again = hstu_lmsd_forward(x, u, w, b, dropout_ratio=0.25, seed=4, concat_u=False)["mask_tensor"]
    assert (again != mask).mean() > 0.3


def test_jax_takes_a_traced_seed() -> None:
    given: Any = [jnp.asarray(t) for t in sample(5, 16)]
    traced = jax.jit(lambda seed: hstu_lmsd_jax_forward(*given, dropout_ratio=0.5, seed=seed))
    for seed in (7, 2**32 + 17):
        words = jnp.asarray([seed & 0xFFFFFFFF, seed >> 32], jnp.uint32).view(jnp.int32)
        assert (
            np.asarray(traced(words)[3]) == hstu_lmsd_forward(*sample(5, 16), dropout_ratio=0.5, seed=seed)[3]
        ).all()


def test_callers_buffers_with_padded_rows() -> None:
    x, u, w, b = (torch.from_numpy(t.astype(np.float32)).to(torch.bfloat16) for t in sample(6, 16))
    how: dict[str, Any] = {"dropout_ratio": 0.0, "apply_u_silu": True, "concat_u": False, "concat_x": False}
    y, mean, rstd, _ = hstu_lmsd_forward(x, u, w, b, **how)
    storage = torch.full((6, 32), float("nan"), dtype=torch.bfloat16)
    dx = storage[:, 8:24]
    got = hstu_lmsd_backward(y, x, u, w, b, mean, rstd, None, dx_tensor=dx, compute_dweight=False, **how)
    assert got["dx_tensor"] is dx
    assert got["dweight_tensor"] is None
    wanted = hstu_lmsd_backward(y, x, u, w, b, mean, rstd, None, **how)
    assert torch.equal(dx, wanted["dx_tensor"])
    assert torch.isnan(storage[:, :8]).all()
    assert torch.isnan(storage[:, 24:]).all()
    with pytest.raises(AliasError, match="dx_tensor"):
        hstu_lmsd_backward(y, x, u, w, b, mean, rstd, None, dx_tensor=x, **how)


def test_a_row_of_one_value_has_no_negative_variance() -> None:
    """The mean square may come out below the squared mean, by far more than eps: the difference is clamped."""
    columns = 56  # whose reciprocal float32 rounds down
    x = np.repeat(np.linspace(1e3, 1e6, 200).astype(BF16)[:, None], columns, axis=1)
    ones, zeros = np.ones(columns, BF16), np.zeros(columns, BF16)
    exact, share = x.astype(np.float32), np.float32(1 / columns)
    mean = exact.sum(axis=1) * share
    assert ((exact * exact).sum(axis=1) * share - mean * mean < -1).any()
    _, _, rstd, _ = hstu_lmsd_forward(x, np.ones_like(x), ones, zeros, eps=1e-6, dropout_ratio=0.0)
    assert np.isfinite(rstd).all()
    assert (rstd <= np.float32(1e3) * (1 + 2.0**-22)).all()
    assert (rstd > 999).any()


def test_nan_reaches_what_depends_on_it() -> None:
    x, u, w, b = sample(5, 16)
    x[1, 3], u[3, 7] = np.nan, np.nan
    how: dict[str, Any] = {"dropout_ratio": 0.0, "apply_u_silu": True, "concat_u": True, "concat_x": True}
    y, mean, rstd, _ = hstu_lmsd_forward(x, u, w, b, **how)
    wanted = np.zeros((5, 48), bool)
    wanted[3, 7] = wanted[1, 16 + 3] = wanted[3, 32 + 7] = True
    wanted[1, 32:] = True
    assert (np.isnan(y.astype(np.float32)) == wanted).all()
    assert np.flatnonzero(np.isnan(mean)).tolist() == np.flatnonzero(np.isnan(rstd)).tolist() == [1]
    dx, du, dweight, dbias = hstu_lmsd_backward(np.ones_like(y), x, u, w, b, mean, rstd, None, **how)
    assert np.isnan(dx.astype(np.float32)).all(axis=1).tolist() == [False, True, False, True, False]
    assert np.argwhere(np.isnan(du.astype(np.float32))).tolist() == [[1, c] for c in range(16)] + [[3, 7]]
    assert np.isnan(dweight.astype(np.float32)).all()
    assert np.flatnonzero(np.isnan(dbias.astype(np.float32))).tolist() == [7]


@pytest.mark.parametrize("op", [FORWARD, BACKWARD])
@pytest.mark.parametrize("rows", [MOST_ROWS, MOST_ROWS + 1])
def test_rows_that_32_bits_cannot_count_are_refused(op: Any, rows: int) -> None:
    def spec(*shape: int, kind: str = "bfloat16") -> TensorSpec:
        return TensorSpec(shape, contiguous_strides(shape), dtype(kind), "cuda:0", 16, "operand")

    x, vector, row = spec(rows, 8), spec(8), spec(rows, kind="float32")
    flags: dict[str, Any] = {"apply_u_silu": True, "concat_u": False, "concat_x": False}
    if op is FORWARD:
        problem = op.bind(x, x, vector, vector, None, dropout=False, **flags)
    else:
        problem = op.bind(x, x, x, vector, vector, row, row, None, compute_dweight=True, **flags)
    reason = op.kernels[0].refuse(problem, Device("cuda:0", (9, 0), 132, "sm_90a"))
    assert (reason is None) == (rows == MOST_ROWS), reason


def test_refusals() -> None:
    x, u, w, b = sample(4, 16)
    for ratio in (1.0, -0.1, 0.99999999, float("nan")):
        with pytest.raises(OptionError, match="dropout_ratio"):
            hstu_lmsd_forward(x, u, w, b, dropout_ratio=ratio)
    with pytest.raises(OptionError, match="seed"):
        hstu_lmsd_forward(x, u, w, b, seed=2**63)
    with pytest.raises(ShapeError, match="D = 1024"):
        hstu_lmsd_forward(*sample(2, 1024))
    with pytest.raises(StrideError, match="multiple of 8"):
        hstu_lmsd_forward(np.zeros((4, 20), BF16)[:, :16], u, w, b)
    y, mean, rstd, mask = hstu_lmsd_forward(x, u, w, b)
    with pytest.raises(OptionError, match="apply_u_silu, concat_x"):
        hstu_lmsd_backward(y, x, u, w, b, mean, rstd, mask, 0.1, concat_u=True)
    how: dict[str, Any] = {"apply_u_silu": True, "concat_u": True, "concat_x": True}
    with pytest.raises(OptionError, match="mask_tensor"):
        hstu_lmsd_backward(y, x, u, w, b, mean, rstd, None, 0.1, **how)
    with pytest.raises(OptionError, match="dweight_tensor"):
        hstu_lmsd_backward(y, x, u, w, b, mean, rstd, mask, 0.1, dweight_tensor=w, compute_dweight=False, **how)


def test_a_ratio_that_rounds_to_zero_drops_nothing() -> None:
    x, u, w, b = sample(4, 16)
    assert hstu_lmsd_forward(x, u, w, b, dropout_ratio=1e-50)["mask_tensor"] is None


def test_autograd_is_the_explicit_backward() -> None:
    x, u, w, b = (torch.from_numpy(t.astype(np.float32)).to(torch.bfloat16) for t in sample(5, 16))
    leaves: Any = [t.clone().requires_grad_() for t in (x, u, w, b)]
    how: dict[str, Any] = {"dropout_ratio": 0.25, "apply_u_silu": False, "concat_u": True, "concat_x": False}
    y, mean, rstd, mask = hstu_lmsd_forward(*leaves, seed=9, **how)
    dy = torch.randn_like(y)
    y.backward(dy)
    wanted = hstu_lmsd_backward(dy, x, u, w, b, mean.detach(), rstd.detach(), mask, **how)
    assert all(torch.equal(leaf.grad, grad) for leaf, grad in zip(leaves, wanted, strict=True))


def test_jax_grad() -> None:
    given: Any = [jnp.asarray(t) for t in sample(5, 16)]

    def loss(*arrays: Any) -> Any:
        return hstu_lmsd_jax_forward(*arrays, dropout_ratio=0.5, seed=3)[0].astype(jnp.float32).sum()

    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*given)
    y, mean, rstd, mask = hstu_lmsd_forward(*sample(5, 16), dropout_ratio=0.5, seed=3)
    how: dict[str, Any] = {"dropout_ratio": 0.5, "apply_u_silu": True, "concat_u": True, "concat_x": True}
    wanted = hstu_lmsd_backward(np.ones_like(y), *sample(5, 16), mean, rstd, mask, **how)
    for got, grad in zip(grads, wanted, strict=True):
        difference = np.asarray(got).astype(np.float64) - grad.astype(np.float64)
        assert np.linalg.norm(difference) <= 2.0**-7 * np.linalg.norm(grad.astype(np.float64))


@pytest.mark.parametrize("columns", [8, 24, 128, 264, 1016])
def test_a_block_has_what_the_smallest_target_offers(columns: int) -> None:
    chip = Device("cuda:0", (8, 6), 84, "sm_80")

    def spec(*shape: int, kind: str = "bfloat16") -> TensorSpec:
        return TensorSpec(shape, contiguous_strides(shape), dtype(kind), "cuda:0", 16, "operand")

    x, vector, wide, row = spec(3, columns), spec(columns), spec(3, 3 * columns), spec(3, kind="float32")
    mask = spec(3, columns, kind="int8")
    flags: dict[str, Any] = {"apply_u_silu": True, "concat_u": True, "concat_x": True}
    forward = FORWARD.bind(x, x, vector, vector, None, dropout=True, **flags)
    backward = BACKWARD.bind(wide, x, x, vector, vector, row, row, mask, compute_dweight=True, **flags)
    for op, problem in ((FORWARD, forward), (BACKWARD, backward)):
        kernel = op.kernels[0]
        launcher = import_module(kernel.module).launcher(kernel.specialise(problem, chip))
        assert launcher.groups.block % 32 == 0
        assert launcher.shared_bytes <= 99 * 1024  # SM86, SM89 and SM120
