"""The gated attention block: against a float64 formulation under autograd, by finite differences, at the edges."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import record
from cudnn_fe_testkit.attention import attention_tolerance, double
from cudnn_fe_testkit.compare import assert_close, rel_rms, to_float64
from cudnn_fe_testkit.gated_block import NAMES, block_operands, exact_block
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists and tables here, which the type checker cannot count.
forward: Any = attention.gated_attention_block_forward
backward: Any = attention.gated_attention_block_backward
Geometry: Any = attention.GatedAttentionBlockGeometry

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
GQA = Geometry(d_model=48, h_q=4, h_kv=2, d_head=32, rope_dim=12)


def leaves_of(given: dict[str, Any]) -> dict[str, Any]:
    made = {name: None if x is None else double(x) for name, x in given.items()}
    for name, x in made.items():
        if x is not None and name not in ("cos", "sin"):
            x.requires_grad_()
    return made


def tolerance(kind: str, roundings: int) -> float:
    """Roundings of the projection, heads, P, O and the gated output pass through two products that shrink none."""
    return attention_tolerance(kind, roundings, 4 * 128)


GEOMETRIES = {
    "gqa": GQA,
    "mha": replace(GQA, h_q=2, h_kv=2),
    "dense": replace(GQA, is_causal=False),
    "window": replace(GQA, window_left=2, window_right=1),
    "forward window": replace(GQA, window_left=0, window_right=1),
    **{f"window of {n}": replace(GQA, window_left=n, window_right=0) for n in (1, 8, 9, 100)},  # of 9 tokens
    "mqa": replace(GQA, h_kv=1, d_head=64),
    "no norm": replace(GQA, qk_norm=False),
    "all rotated": replace(GQA, rope_dim=32, attn_scale=0.3),
    "not rotated": replace(GQA, rope_dim=0),
}


def check_backward(g: Any, given: dict[str, Any], wanted: dict[str, Any], dy: Any, saved: Any, kind: str) -> None:
    framework: Framework = "torch" if hasattr(dy, "detach") else "numpy" if isinstance(dy, np.ndarray) else "jax"
    arrays = {n: None if x is None else convert(x, framework) for n, x in given.items()}
    if framework == "torch":
        for name, x in arrays.items():
            if x is not None and name not in ("cos", "sin"):
                x.requires_grad_()
        saved = replace(saved, h=arrays["h"])
    grads = backward(dy, saved, *(arrays[n] for n in NAMES[1:]), g, thd=saved.seq_lens_form is not None)
    for name in ("h", "w_qkvg", "w_o", *(("w_q_norm", "w_k_norm") if g.qk_norm else ())):
        assert_close(grads[f"d{name}"], wanted[name].grad, tolerance(kind, 8), name)
    assert grads["dw_q_norm"] is not None or not g.qk_norm


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(name: str) -> None:
    g = GEOMETRIES[name]
    given = block_operands(g)
    leaves = leaves_of(given)
    out, lse = exact_block(g, leaves)
    dy = normal(out.shape, seed=20)
    out.backward(double(dy))
    got = forward(*(given[n] for n in NAMES), g, return_lse=True, save_for_backward=True)
    assert_close(got["out"], out.detach(), tolerance("float32", 4))
    assert_close(got["lse"], lse.detach(), tolerance("float32", 4))
    check_backward(g, given, leaves, dy, got["saved"], "float32")


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_and_lengths(framework: Framework, kind: str) -> None:
    """A sequence with 5 keys, and one with none, whose output is 0 exactly."""
    given, lengths = block_operands(GQA, kind), np.asarray([5, 0], np.int32)
    leaves = leaves_of(given)
    out, lse = exact_block(GQA, leaves, lengths)
    dy = normal(out.shape, kind, seed=20)
    out.backward(double(dy))
    arrays = [convert(given[n], framework) for n in NAMES]
    seq_lens = convert(lengths, framework)
    got = forward(*arrays, GQA, seq_lens=seq_lens, return_lse=True, save_for_backward=True)
    assert_close(got["out"], out.detach(), tolerance(kind, 6))
    assert not to_float64(got["out"])[1].any()
    assert np.isneginf(to_float64(got["lse"])[1]).all()
    live = to_float64(got["lse"])[0]
    assert_close(live, lse.detach()[0], tolerance(kind, 4))
    check_backward(GQA, given, leaves, convert(dy, framework), got["saved"], kind)


@pytest.mark.parametrize("form", ["lengths", "prefix"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_packed_sequences(framework: Framework, form: str) -> None:
    """Sequences of 4, 0, 6 and 1 tokens, and two rows of NaN after them."""
    given = block_operands(GQA, lead=(13,))
    lengths = np.asarray([4, 0, 6, 1], np.int32)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    leaves = leaves_of(given)
    out, lse = exact_block(GQA, leaves, packed=list(pairwise(ends)))
    dy = normal(out.shape, seed=20)
    out[:11].backward(double(dy[:11]))
    for x in (given["h"], dy):
        x[11:] = np.nan
    arrays = [convert(given[n], framework) for n in NAMES]
    seq_lens = convert(ends if form == "prefix" else lengths, framework)
    options = {"thd": True, "cu_seqlens": form == "prefix"}
    got = forward(*arrays, GQA, seq_lens=seq_lens, return_lse=True, save_for_backward=True, **options)
    assert got["lse"].shape == (1, 4, 13)
    assert_close(got["out"][:11], out.detach()[:11], tolerance("float32", 4))
    assert_close(got["lse"][:, :, :11], lse.detach()[:, :, :11], tolerance("float32", 4))
    assert not to_float64(got["out"])[11:].any()
    check_backward(GQA, given, leaves, convert(dy, framework), got["saved"], "float32")


def test_the_record() -> None:
    given = block_operands(GQA, "bfloat16")
    t = {n: convert(x, "torch") for n, x in given.items()}
    saved = forward(*(t[n] for n in NAMES), GQA, save_for_backward=True)["saved"]
    slab = (t["h"].float() @ t["w_qkvg"].float().T).bfloat16().reshape(18, -1)
    assert saved.h is t["h"]
    assert rel_rms(saved.proj_slab, slab) < 2.0**-12  # a float32 sum in another order may round to the neighbour
    views = record.saved_slab_views(saved.proj_slab, GQA, 2, 9)
    for view, name in zip(views, ("q_pre", "gate", "k_pre"), strict=False):
        assert view.data_ptr() == getattr(saved, name).data_ptr()
        assert view.untyped_storage().data_ptr() == saved.proj_slab.untyped_storage().data_ptr()
    root = views[0].double().square().mean(-1)
    assert_close(saved.rstd_q, (root + 1e-6).rsqrt(), 2.0**-20)
    again = replace(saved, proj_slab=None, q_pre=None, k_pre=None)
    for x in t.values():
        x.requires_grad_()
    dy, rest = torch.ones_like(t["h"]), [t[n] for n in NAMES[1:]]
    whole = backward(dy, saved, *rest, GQA)
    assert all(torch.equal(a, b) for a, b in zip(whole, backward(dy, again, *rest, GQA), strict=True))


def test_torch_autograd() -> None:
    given = block_operands(GQA)
    leaves = leaves_of(given)
    exact_block(GQA, leaves)[0].square().sum().backward()
    t = {n: torch.from_numpy(x).requires_grad_(n not in ("cos", "sin")) for n, x in given.items()}
    got = forward(*(t[n] for n in NAMES), GQA, return_lse=True)
    assert not got["lse"].requires_grad
    assert got["saved"] is None
    got["out"].square().sum().backward()
    for name, leaf in leaves.items():
        if name not in ("cos", "sin"):
            assert_close(t[name].grad, leaf.grad, tolerance("float32", 8), name)
    learned = {n: x.detach().requires_grad_(n in ("h", "sin")) for n, x in t.items()}
    with pytest.raises(NotImplementedError, match="cos, sin: got tables that require a gradient"):
        forward(*(learned[n] for n in NAMES), GQA)["out"].sum().backward()
    with torch.no_grad():
        assert torch.equal(forward(*(t[n] for n in NAMES), GQA)["out"], got["out"])
    frozen = {n: x.detach() for n, x in t.items()}
    frozen["w_k_norm"] = t["w_k_norm"].detach().to(torch.float32).requires_grad_()
    saved = forward(*(frozen[n] for n in NAMES), GQA, save_for_backward=True)["saved"]
    grads = backward(torch.ones_like(t["h"]), saved, *(frozen[n] for n in NAMES[1:]), GQA)
    assert [name for name, x in grads.items() if x is not None] == ["dw_q_norm", "dw_k_norm"]
    with pytest.raises(ValueError, match="needs: got no gradient"):
        backward(torch.ones_like(t["h"]), saved, *(t[n].detach() for n in NAMES[1:]), GQA)


def test_finite_differences() -> None:
    g = Geometry(d_model=8, h_q=2, h_kv=1, d_head=64, rope_dim=4, window_left=2)
    t = {n: double(x) for n, x in block_operands(g, lead=(1, 4)).items()}
    inputs = [t[n].requires_grad_() for n in ("h", "w_qkvg", "w_q_norm", "w_k_norm", "w_o")]

    def run(h: Any, w_qkvg: Any, w_q: Any, w_k: Any, w_o: Any) -> Any:
        return forward(h, w_qkvg, w_q, w_k, t["cos"], t["sin"], w_o, g)["out"]

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


def test_jax_under_jit_and_grad() -> None:
    import jax
    import jax.numpy as jnp

    given = block_operands(GQA)
    leaves = leaves_of(given)
    exact_block(GQA, leaves)[0].square().sum().backward()

    @jax.jit
    def gradients(*arrays: Any) -> Any:
        return jax.grad(lambda *xs: jnp.square(forward(*xs, GQA)["out"]).sum(), argnums=(0, 1, 2, 3, 6))(*arrays)

    got = gradients(*(convert(given[n], "jax") for n in NAMES))
    for grad, name in zip(got, ("h", "w_qkvg", "w_q_norm", "w_k_norm", "w_o"), strict=True):
        assert_close(grad, leaves[name].grad, tolerance("float32", 8), name)
    saved = jax.jit(lambda *xs: forward(*xs, GQA, save_for_backward=True)["saved"])(
        *(convert(given[n], "jax") for n in NAMES)
    )
    assert isinstance(saved, record.SavedForBackward)
    assert saved.q_pre.shape == (2, 9, 4, 32)


def test_zero_and_one_token() -> None:
    for tokens in (0, 1):
        given = block_operands(GQA, lead=(2, tokens))
        got = forward(*(given[n] for n in NAMES), GQA, return_lse=True, save_for_backward=True)
        assert got["out"].shape == (2, tokens, 48)
        grads = backward(np.ones_like(given["h"]), got["saved"], *(given[n] for n in NAMES[1:]), GQA)
        assert [x.shape for x in grads] == [given[n].shape for n in ("h", "w_qkvg", "w_o", "w_q_norm", "w_k_norm")]
        assert tokens or not any(x.any() for x in grads)
