"""The query projection: bytes against exact arithmetic, layouts, frameworks, NaN and infinity, classes, refusals."""

# Operands are spread from made cases, whose number a type checker cannot know.
# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import cudnn
from cudnn_fe.core.errors import DeviceError, DTypeError, NotCompiledError, OptionError, ShapeError, StrideError
from cudnn_fe.gemm import gemm_proj_rope_mxfp8_forward, gemm_proj_rope_mxfp8_jax_forward
from cudnn_fe_testkit import block_scale as exact

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
T, HEADS, K = 40, 3, 64  # the last block of tokens is short, the number of heads odd


def operands(*, scaled: bool = False, seed: int = 0) -> list[Any]:
    """Small integers, so that every sum is exact in float32, in whatever order it is taken."""
    rng = np.random.default_rng(seed)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((T, K), (192 * HEADS, K)))
    x[3] = 0
    angle = rng.uniform(-7, 7, (T, 64))
    tables = [f(angle).astype(BF16) for f in (np.cos, np.sin)]
    if not scaled:
        return [x.astype(BF16), w.astype(BF16), *tables, None, None]
    scales = [rng.integers(125, 130, (rows, K // 32)).astype(np.uint8) for rows in (T, 192 * HEADS)]
    return [x.astype(E4M3), w.astype(E4M3), *tables, *scales]


def rotated(x: Any, w: Any, cos: Any, sin: Any, x_scale: Any, w_scale: Any) -> Any:
    """The values to be quantised, in float64 where each step is exact or rounds once as float32 does."""
    a, b = x.astype(np.float64), w.astype(np.float64)
    if x_scale is not None:
        a, b = (m * np.exp2(s.astype(np.float64) - 127).repeat(32, 1) for m, s in ((a, x_scale), (b, w_scale)))
    y = np.einsum("tk,nk->tn", a, b).astype(BF16).astype(np.float64).reshape(T, HEADS, 192)
    v = y.copy()
    for j in range(32):
        p, q = y[:, :, 128 + 2 * j], y[:, :, 129 + 2 * j]
        c, s = (m.astype(np.float64)[:, None] for m in (cos, sin))
        v[:, :, 128 + j] = p * c[..., j] - q * s[..., j]
        v[:, :, 160 + j] = p * s[..., 32 + j] + q * c[..., 32 + j]
    return v.astype(np.float32)


def raw(x: Any) -> Any:
    return x.view(torch.uint8).numpy() if isinstance(x, torch.Tensor) else np.asarray(x).view(np.uint8)


def as_torch(x: Any) -> Any:
    if x is None or x.dtype == np.uint8:
        return None if x is None else torch.from_numpy(x)
    name = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn}[x.dtype.name]
    return torch.from_numpy(x.view(f"i{x.dtype.itemsize}")).view(name)


def check(out: Any, v: Any) -> None:
    codes, scales, column_codes, column_scales = (raw(x) for x in out)
    assert codes.shape == column_codes.shape == (T, HEADS, 192)
    assert scales.shape == (T, HEADS, 6)
    assert column_scales.shape == (2, HEADS, 192)
    for t in (0, 3, 20, 39):
        for h in range(HEADS):
            for b in range(6):
                block = v[t, h, 32 * b : 32 * b + 32].tolist()
                scale, wanted = exact.quantize_block(block, "mxfp8_e4m3", "power_of_two", 1.0)
                assert scales[t, h, b] == scale
                assert codes[t, h, 32 * b : 32 * b + 32].tolist() == wanted
    for c in range(2):
        for n in range(0, 192, 7):
            block = v[32 * c : 32 * c + 32, 1, n].tolist()
            padding = [0.0] * (32 - len(block))
            scale, wanted = exact.quantize_block(block + padding, "mxfp8_e4m3", "power_of_two", 1.0)
            assert column_scales[c, 1, n] == scale
            assert column_codes[32 * c : 32 * c + 32, 1, n].tolist() == wanted[: len(block)]


@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "mxfp8"])
@pytest.mark.parametrize("framework", [lambda x: x, as_torch, lambda x: None if x is None else jnp.asarray(x)],
                         ids=["numpy", "torch", "jax"])  # fmt: skip
def test_bytes(framework: Any, scaled: bool) -> None:
    given = operands(scaled=scaled)
    out = gemm_proj_rope_mxfp8_forward(*(framework(x) for x in given))
    assert list(out.keys()) == ["out_fp8_row", "out_scales_row", "out_fp8_col", "out_scales_col"]
    check(out, rotated(*given))


@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "mxfp8"])
def test_stored_the_other_way(scaled: bool) -> None:
    x, w, cos, sin, x_scale, w_scale = operands(scaled=scaled)
    turned = [None if m is None else np.ascontiguousarray(m.T) for m in (w, w_scale)]
    out = gemm_proj_rope_mxfp8_forward(x, turned[0], cos, sin, x_scale, turned[1], w_out_in=False)
    for got, wanted in zip(out, gemm_proj_rope_mxfp8_forward(x, w, cos, sin, x_scale, w_scale), strict=True):
        assert np.array_equal(raw(got), raw(wanted))


def test_under_jit_and_compile() -> None:
    given = operands(scaled=True)
    wanted = gemm_proj_rope_mxfp8_forward(*given)
    e8m0 = [x.view(ml_dtypes.float8_e8m0fnu) for x in given[4:]]  # scales by their own type as well
    jitted = jax.jit(gemm_proj_rope_mxfp8_jax_forward)(*(jnp.asarray(x) for x in (*given[:4], *e8m0)))
    compiled = torch.compile(gemm_proj_rope_mxfp8_forward, backend="eager", fullgraph=True)(*map(as_torch, given))
    for a, b, c in zip(wanted, jitted, compiled, strict=True):
        assert np.array_equal(raw(a), raw(b))
        assert np.array_equal(raw(a), raw(c))


def test_nan_and_infinity_stay_where_they_belong() -> None:
    x, w, cos, sin, *_ = operands()
    w[:, 0], w[200, 0] = 0, 1
    x[[5, 7]] = 0
    finite = gemm_proj_rope_mxfp8_forward(x, w, cos, sin)
    x[5, 0], x[7, 0] = np.nan, np.inf  # feature 8 of the second head gets infinity, where others get 0 * inf
    out = gemm_proj_rope_mxfp8_forward(x, w, cos, sin)
    codes, scales = raw(out["out_fp8_row"]), raw(out["out_scales_row"])
    assert (codes[5] == 0x7F).all()
    assert (scales[5] == 0xFF).all()
    assert scales[7, 1, 0] == 254
    assert codes[7, 1, :32].tolist() == [0x7E if feature == 8 else 0x7F for feature in range(32)]
    others = [t for t in range(T) if t not in (5, 7)]
    assert np.array_equal(codes[others], raw(finite["out_fp8_row"])[others])
    # Along tokens a NaN leaves the scale to the other tokens, infinity does not.
    column, column_scales = raw(out["out_fp8_col"]), raw(out["out_scales_col"])
    assert np.array_equal(column_scales[:, [0, 2]], raw(finite["out_scales_col"])[:, [0, 2]])
    assert np.array_equal(column[others][:, [0, 2]], raw(finite["out_fp8_col"])[others][:, [0, 2]])
    assert (column[[5, 7]][:, [0, 2]] == 0x7F).all()
    assert column_scales[0, 1, 8] == 254


@pytest.mark.parametrize("shape", [(0, 1, 8), (2, 0, 8), (2, 1, 0)])
def test_empty(shape: tuple[int, int, int]) -> None:
    t, heads, k = shape
    tables = [np.ones((t, 64), BF16)] * 2
    out = gemm_proj_rope_mxfp8_forward(np.ones((t, k), BF16), np.ones((192 * heads, k), BF16), *tables)
    assert [x.shape for x in out] == [(t, heads, 192), (t, heads, 6), (t, heads, 192), (-(-t // 32), heads, 192)]
    assert not any(raw(x).any() for x in out)


@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "mxfp8"])
def test_classes(scaled: bool) -> None:
    x, w, cos, sin, x_scale, w_scale = map(as_torch, operands(scaled=scaled))
    kinds = (torch.float8_e4m3fn, torch.uint8)
    shapes = ((T, HEADS, 192), (T, HEADS, 6), (T, HEADS, 192), (2, HEADS, 192))
    outs = [torch.zeros(shape, dtype=kinds[index % 2]) for index, shape in enumerate(shapes)]
    op: Any
    if scaled:
        tensors = (x, x_scale, w, w_scale, cos, sin, *outs)
        op = cudnn.GemmProjRopeMxfp8Mxfp8InSm100(*tensors)
    else:
        tensors = (x, w.T.contiguous(), cos, sin, *outs)
        op = cudnn.GemmProjRopeMxfp8Bf16InSm100(*tensors)
    with pytest.raises(NotCompiledError):
        op.execute(*tensors)
    op.compile()
    op.execute(*tensors)
    wanted = cudnn.gemm_proj_rope_mxfp8_wrapper_sm100(x, w, cos, sin, x_scale, w_scale)
    assert all(np.array_equal(raw(a), raw(b)) for a, b in zip(outs, wanted, strict=True))
    with pytest.raises(ShapeError, match="out_scales_col"):
        type(op)(*tensors[:-1], outs[0]).check_support()


def test_reference_by_its_name() -> None:
    from cudnn.gemm.cutedsl.dense import proj_rope_mxfp8 as module

    x, w, cos, sin, *_ = operands()
    got = module.gemm_proj_rope_mxfp8_reference(x, np.ascontiguousarray(w.T), cos, sin)
    assert type(got) is tuple
    check(got, rotated(x, w, cos, sin, None, None))
    assert module.GemmProjRopeMxfp8Bf16InSm100 is cudnn.GemmProjRopeMxfp8Bf16InSm100
    signature = inspect.signature(cudnn.GemmProjRopeMxfp8Bf16InSm100.__init__)
    assert signature.parameters["w_out_in"].default is False


def test_refusals() -> None:
    x, w, cos, sin, x_scale, w_scale = operands(scaled=True)
    plain = operands()[:2]
    forward: Any = gemm_proj_rope_mxfp8_forward
    with pytest.raises(OptionError, match="x_scale: got None, wanted E8M0 scales"):
        forward(x, w, cos, sin)
    with pytest.raises(OptionError, match="x_scale: got scales, wanted None with bfloat16"):
        forward(*plain, cos, sin, x_scale, w_scale)
    with pytest.raises(DTypeError, match="w: got bfloat16, wanted float8_e4m3fn"):
        forward(x, plain[1], cos, sin, x_scale, w_scale)
    with pytest.raises(DTypeError, match="x: got float16"):
        forward(plain[0].astype(np.float16), plain[1], cos, sin)
    with pytest.raises(ShapeError, match="a multiple of 192"):
        forward(plain[0], plain[1][:100], cos, sin)
    with pytest.raises(ShapeError, match=r"\(T, 64\)"):
        forward(*plain, cos[:, :32], sin)
    with pytest.raises(ShapeError, match="or set w_out_in"):
        forward(*plain, cos, sin, w_out_in=False)
    with pytest.raises(ShapeError, match="one per 32 along K"):
        forward(x, w, cos, sin, x_scale[:, :1].copy(), w_scale)
    with pytest.raises(ShapeError, match="one per 32 along K"):
        forward(x, w, cos, sin, x_scale, w_scale[:, :1].copy())
    with pytest.raises(DTypeError, match="x_scale: got float32"):
        forward(x, w, cos, sin, x_scale.astype(np.float32), w_scale)
    with pytest.raises(DTypeError, match="cos: got float32"):
        forward(*plain, cos.astype(np.float32), sin)
    with pytest.raises(ShapeError, match=r"sin: got \(5, 64\)"):
        forward(*plain, cos, sin[:5])
    with pytest.raises(ShapeError, match="x: got shape"):
        forward(plain[0][0], plain[1], cos, sin)
    with pytest.raises(OptionError, match="w: got None"):
        forward(plain[0], None, cos, sin)
    with pytest.raises(DeviceError, match="w: got meta"):
        forward(as_torch(plain[0]), as_torch(plain[1]).to("meta"), as_torch(cos), as_torch(sin))
    with pytest.raises(StrideError, match="contiguous"):
        forward(np.asfortranarray(plain[0]), plain[1], cos, sin)
