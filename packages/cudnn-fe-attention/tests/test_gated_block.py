"""The gated attention block: against a float64 formulation under autograd, by finite differences, at the edges."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations, geometry, legacy_backward, legacy_forward, record
from cudnn_fe.core.block_scale import swizzle_scales
from cudnn_fe_testkit.attention import attention_tolerance, double
from cudnn_fe_testkit.compare import assert_close, rel_rms, to_float64
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists and tables here, which the type checker cannot count.
forward: Any = attention.gated_attention_block_forward
backward: Any = attention.gated_attention_block_backward
qkvg_from_hf: Any = attention.qkvg_from_hf
qkvg_from_vllm: Any = attention.qkvg_from_vllm
build_fused_qkvg_weight: Any = attention.build_fused_qkvg_weight
Geometry: Any = attention.GatedAttentionBlockGeometry
Fwd: Any = legacy_forward.GatedAttentionBlockFwd
Bwd: Any = legacy_backward.GatedAttentionBlockBwd

FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "jax")
GQA = Geometry(d_model=48, h_q=4, h_kv=2, d_head=32, rope_dim=12)
NAMES = ("h", "w_qkvg", "w_q_norm", "w_k_norm", "cos", "sin", "w_o")


def operands(g: Any, kind: str = "float32", lead: tuple[int, ...] = (2, 9)) -> dict[str, Any]:
    """Random operands; tables whose halves differ, so that the adjoint of RoPE is told from its inverse."""
    shapes = {
        "h": (*lead, g.d_model),
        "w_qkvg": (g.n_qkvg, g.d_model),
        "w_q_norm": (g.d_head,),
        "w_k_norm": (g.d_head,),
        "cos": (*lead, g.rope_dim),
        "sin": (*lead, g.rope_dim),
        "w_o": (g.d_model, g.h_q * g.d_head),
    }
    scales = {"w_qkvg": g.d_model**-0.5, "w_o": (g.h_q * g.d_head) ** -0.5}
    made = {n: normal(s, kind, seed=i, scale=scales.get(n, 1.0)) for i, (n, s) in enumerate(shapes.items())}
    return made if g.qk_norm else {n: None if n.endswith("norm") else x for n, x in made.items()}


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, width: int) -> torch.Tensor:
    lead, rest = x[..., :width], x[..., width:]
    half = width // 2
    swapped = torch.cat([-lead[..., half:], lead[..., :half]], -1)
    return torch.cat([lead * cos[:, :, None] + swapped * sin[:, :, None], rest], -1)


def exact(g: Any, t: dict[str, Any], lengths: Any = None, packed: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """``(out, lse)``, the page's steps one after the other without any rounding."""
    h = t["h"] if t["h"].ndim == 3 else t["h"][None]
    cos, sin = (x if x.ndim == 3 else x[None] for x in (t["cos"], t["sin"]))
    batch, tokens, _ = h.shape
    projected = h @ t["w_qkvg"].T
    widths = [g.h_q * g.d_head] * 2 + [g.h_kv * g.d_head] * 2
    q, gate, k, v = (x.reshape(batch, tokens, -1, g.d_head) for x in projected.split(widths, -1))
    if g.qk_norm:
        q, k = (
            x / (x.square().mean(-1, keepdim=True) + g.qk_norm_eps).sqrt() * w
            for x, w in ((q, t["w_q_norm"]), (k, t["w_k_norm"]))
        )
    q, k = (rotate(x, cos, sin, g.rope_dim) for x in (q, k))
    k, v = (x.repeat_interleave(g.h_q // g.h_kv, 2) for x in (k, v))
    mask = torch.zeros(batch, 1, tokens, tokens, dtype=torch.bool)
    for b, _, i, j in np.ndindex(*mask.shape):
        seen = not g.is_causal or j <= i + max(g.window_right, 0)
        seen = seen and (g.window_left < 0 or j >= i - g.window_left)
        seen = seen and (lengths is None or j < lengths[b])
        mask[b, 0, i, j] = bool(seen) and (packed is None or any(a <= i < e and a <= j < e for a, e in packed))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (g.attn_scale or g.d_head**-0.5)
    s = s.masked_fill(~mask, float("-inf"))
    alive = mask.any(-1, keepdim=True)
    p = torch.softmax(s.masked_fill(~alive, 0.0), -1) * alive
    o = torch.einsum("bhij,bjhd->bihd", p, v)
    out = (o * torch.sigmoid(gate)).reshape(batch, tokens, -1) @ t["w_o"].T
    return out.reshape(t["h"].shape), torch.logsumexp(s, -1)


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
    given = operands(g)
    leaves = leaves_of(given)
    out, lse = exact(g, leaves)
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
    given, lengths = operands(GQA, kind), np.asarray([5, 0], np.int32)
    leaves = leaves_of(given)
    out, lse = exact(GQA, leaves, lengths)
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
    given = operands(GQA, lead=(13,))
    lengths = np.asarray([4, 0, 6, 1], np.int32)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    leaves = leaves_of(given)
    out, lse = exact(GQA, leaves, packed=list(pairwise(ends)))
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
    given = operands(GQA, "bfloat16")
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
    given = operands(GQA)
    leaves = leaves_of(given)
    exact(GQA, leaves)[0].square().sum().backward()
    t = {n: torch.from_numpy(x).requires_grad_(n not in ("cos", "sin")) for n, x in given.items()}
    got = forward(*(t[n] for n in NAMES), GQA, return_lse=True)
    assert not got["lse"].requires_grad
    assert got["saved"] is None
    got["out"].square().sum().backward()
    for name, leaf in leaves.items():
        if name not in ("cos", "sin"):
            assert_close(t[name].grad, leaf.grad, tolerance("float32", 8), name)
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
    t = {n: double(x) for n, x in operands(g, lead=(1, 4)).items()}
    inputs = [t[n].requires_grad_() for n in ("h", "w_qkvg", "w_q_norm", "w_k_norm", "w_o")]

    def run(h: Any, w_qkvg: Any, w_q: Any, w_k: Any, w_o: Any) -> Any:
        return forward(h, w_qkvg, w_q, w_k, t["cos"], t["sin"], w_o, g)["out"]

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


def test_jax_under_jit_and_grad() -> None:
    import jax
    import jax.numpy as jnp

    given = operands(GQA)
    leaves = leaves_of(given)
    exact(GQA, leaves)[0].square().sum().backward()

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
        given = operands(GQA, lead=(2, tokens))
        got = forward(*(given[n] for n in NAMES), GQA, return_lse=True, save_for_backward=True)
        assert got["out"].shape == (2, tokens, 48)
        grads = backward(np.ones_like(given["h"]), got["saved"], *(given[n] for n in NAMES[1:]), GQA)
        assert [x.shape for x in grads] == [given[n].shape for n in ("h", "w_qkvg", "w_o", "w_q_norm", "w_k_norm")]
        assert tokens or not any(x.any() for x in grads)


@pytest.mark.parametrize("copies", [False, True])
def test_classes(copies: bool) -> None:
    given = operands(GQA, "bfloat16")
    t = [convert(given[n], "torch") for n in NAMES]
    wanted = forward(*t, GQA, return_lse=True, save_for_backward=True)
    s = wanted["saved"]
    out = torch.full_like(wanted["out"], float("nan"))
    made = Fwd(*t, out, GQA, save_for_backward=True, saved_gate_copy=copies, fuse_gate=False)
    with pytest.raises(RuntimeError, match="a call before compile"):
        made.get_workspace_size()
    assert made.check_support()
    made.compile()
    assert made.get_workspace_size() == 0
    buffers: dict[str, Any] = {
        n: torch.full_like(getattr(s, n), float("nan")) for n in ("o", "lse", "rstd_q", "rstd_k")
    }
    if copies:
        buffers |= {n: torch.full(getattr(s, n).shape, float("nan"), dtype=out.dtype) for n in ("gate", "q_pre")}
    else:
        buffers |= {"gate": None, "proj_slab": torch.full_like(s.proj_slab, float("nan")).reshape(2, 9, -1)}
    mine = record.SavedForBackward(h=t[0], **buffers)
    made.execute(*t, out, None, saved=mine)
    assert torch.equal(out, wanted["out"])
    for name, buffer in buffers.items():
        assert buffer is None or torch.equal(buffer.reshape(getattr(s, name).shape), getattr(s, name))
    plain = Fwd(*t, out, GQA, return_lse=True)
    plain.compile()
    lse = torch.empty_like(s.lse)
    plain.execute(*t, out, None, lse=lse)
    assert torch.equal(lse, s.lse)
    for x in t:
        x.requires_grad_()
    dy = torch.ones_like(out)
    expected = backward(dy, replace(s, h=t[0]), *t[1:], GQA)
    for x in t:
        x.requires_grad_(False)
    grads = [torch.full_like(x, float("nan")) for x in expected]
    back = Bwd(dy, mine, *t[1:], GQA)
    back.compile()
    assert back.get_workspace_size() == 0
    back.execute(dy, mine, *t[1:], *grads)
    assert all(torch.equal(a, b) for a, b in zip(grads, expected, strict=True))
    fewer = Bwd(dy, mine, *t[1:], GQA, need_dw_qkvg=False, need_dw_norms=False)
    fewer.compile()
    with pytest.raises(ValueError, match="dw_qkvg: got the opposite, wanted None"):
        fewer.execute(dy, mine, *t[1:], *grads)
    again = torch.empty_like(grads[0])
    fewer.execute(dy, mine, *t[1:], dh=again, dw_o=grads[2])
    assert torch.equal(again, expected["dh"])


def test_classes_of_packed_sequences() -> None:
    given = operands(GQA, lead=(13,))
    t = [convert(given[n], "torch") for n in NAMES]
    lengths = torch.tensor([6, 7], dtype=torch.int32)
    out = torch.empty_like(t[0])
    made = Fwd(*t, out, GQA, thd=True, num_sequences=2, max_seq_len=7)
    made.compile()
    made.execute(*t, out, None, lengths)
    wanted = forward(*t, GQA, seq_lens=lengths, thd=True, save_for_backward=True)
    assert torch.equal(out, wanted["out"])
    back = Bwd(out, wanted["saved"], *t[1:], GQA, thd=True, num_sequences=2, max_seq_len=7, need_dh=False)
    assert back.check_support()
    for options, message in (
        ({"num_sequences": 0}, "num_sequences: got 0"),
        ({"max_seq_len": 1}, "max_seq_len: got 1"),
        ({"max_seq_len": 6}, "max_seq_len: got 6 of 2 sequences"),
        ({"max_seq_len": 14}, "max_seq_len: got 14"),
    ):
        with pytest.raises(ValueError, match=message):
            Fwd(*t, out, GQA, **{"thd": True, "num_sequences": 2, "max_seq_len": 7, **options}).check_support()
    with pytest.raises(ValueError, match="seq_lens: got the opposite, wanted lengths"):
        made.execute(*t, out, None)


def class_samples() -> tuple[list[Any], Any]:
    given = operands(GQA)
    t = [convert(given[n], "torch") for n in NAMES]
    return t, torch.empty_like(t[0])


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"inplace_qkv": True, "save_for_backward": True}, ValueError, "inplace_qkv: got True"),
        ({"fuse_norm_rope": True, "save_for_backward": True}, ValueError, "fuse_norm_rope: got True"),
        ({"fuse_gate": True, "save_for_backward": True}, ValueError, "fuse_gate: got True"),
        ({"fuse_norm_rope": True, "inplace_qkv": False}, ValueError, "fuse_norm_rope: got True"),
        ({"saved_gate_copy": True}, ValueError, "saved_gate_copy: got True"),
        ({"seq_lens_present": True, "thd": True}, ValueError, "seq_lens_present: got True"),
        ({"return_lse": 1}, TypeError, "return_lse: got 1"),
        ({"paged_kv_page_size": 16}, NotImplementedError, "paged_kv_page_size: got 16"),
        ({"kv_source": "paged"}, NotImplementedError, "kv_source: got 'paged'"),
        ({"quant": object()}, TypeError, "quant: got object, wanted a QuantSpec"),
        (
            {"quant": declarations.MxQuantSpec(1.0, o_fp4=declarations.Fp4Format.NVFP4)},
            NotImplementedError,
            "quant: got FP4",
        ),
        ({"no_such": None}, TypeError, "unexpected keyword argument 'no_such'"),
    ],
)
def test_class_refuses(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    t, out = class_samples()
    with pytest.raises(kind, match=message):
        Fwd(*t, out, GQA, **options)


def test_class_checks_its_record() -> None:
    t, out = class_samples()
    with pytest.raises(ValueError, match="out: got"):
        Fwd(*t, out[:, :3], GQA).check_support()
    made = Fwd(*t, out, GQA, save_for_backward=True)
    made.compile()
    good = forward(*t, GQA, save_for_backward=True)["saved"]
    for change, kind, message in (
        (None, ValueError, "saved: got the opposite, wanted a record"),
        (good.h, TypeError, "saved: got Tensor"),
        (replace(good, h=t[0].clone()), ValueError, "saved.h: got something else"),
        (replace(good, proj_slab=None), ValueError, "saved.proj_slab"),
        (replace(good, rstd_q=None), ValueError, "saved.rstd_q"),
        (replace(good, seq_lens_form="prefix"), ValueError, "saved.seq_lens_form"),
        (replace(good, o=good.o[:1]), ValueError, "saved.o: got"),
    ):
        with pytest.raises(kind, match=message):
            made.execute(*t, out, None, saved=change)
    with pytest.raises(ValueError, match="lse: got"):
        made.execute(*t, out, None, lse=torch.empty_like(good.lse), saved=good)
    with pytest.raises(NotImplementedError, match="k_cache: got"):
        made.execute(*t, out, None, saved=good, k_cache=out)
    with pytest.raises(ValueError, match="w_o: got"):
        made.execute(*t[:6], t[6][:, :64], out, None, saved=good)
    for call in (made.update_quant_scales, made.index_k_raw):
        with pytest.raises((ValueError, NotImplementedError), match=r"quantised block|an indexer"):
            call(None)
    with pytest.raises(NotImplementedError, match="serving_envelope"):
        Fwd.serving_envelope(GQA, torch.bfloat16, "cpu")
    with pytest.raises(NotImplementedError, match="RECOMPUTE_GATE"):
        Bwd(out, good, *t[1:], GQA, recompute=record.RecomputePolicy.RECOMPUTE_GATE)
    with pytest.raises(ValueError, match="sample_saved: got lengths None, absent"):
        Bwd(out, good, *t[1:], GQA, thd=True)


def test_weights_of_checkpoints() -> None:
    """The query and gate of every head, and values, end where the projection's bands say."""
    g = GQA
    q, gate = normal((4, 32, 48), seed=0), normal((4, 32, 48), seed=1)
    k, v = normal((64, 48), seed=2), normal((64, 48), seed=3)
    norms = normal((32,), "bfloat16", seed=4, scale=0.1), normal((32,), "bfloat16", seed=5, scale=0.1)
    wanted = np.concatenate([q.reshape(-1, 48), gate.reshape(-1, 48), k, v])
    interleaved = np.stack([q, gate], 1).reshape(-1, 48)
    flat = np.concatenate([q.reshape(-1, 48), gate.reshape(-1, 48)])
    for framework in FRAMEWORKS:
        pieces = [convert(x, framework) for x in (interleaved, k, v, *norms)]
        fused, w_q, w_k = qkvg_from_hf(*pieces, g)
        np.testing.assert_array_equal(to_float64(fused), wanted)
        np.testing.assert_array_equal(to_float64(w_q), (1 + norms[0].astype(np.float32)).astype(norms[0].dtype))
        merged = convert(np.concatenate([interleaved, k, v]), framework)
        again = qkvg_from_vllm(merged, *pieces[3:], g)
        for a, b in zip(again, (fused, w_q, w_k), strict=True):
            np.testing.assert_array_equal(to_float64(a), to_float64(b))
    np.testing.assert_array_equal(build_fused_qkvg_weight(flat, k, v, g, q_gate_layout="flat"), wanted)
    with pytest.warns(FutureWarning, match="q_gate_layout"):
        build_fused_qkvg_weight(flat, k, v, g)
    for arguments, options, kind, message in (
        ((flat[:-1], k, v), {}, ValueError, "w_q_gate: got"),
        ((flat, k[:, :8], v), {}, ValueError, "w_k: got"),
        ((flat, k, v.astype(np.float16)), {}, TypeError, "w_v: got float16"),
        ((flat, k, v), {"index_qk_proj_weight": k}, ValueError, "index_qk_proj_weight: got"),
        ((flat, k, v), {"q_gate_layout": "by_head"}, ValueError, "q_gate_layout: got 'by_head'"),
    ):
        with pytest.raises(kind, match=message):
            build_fused_qkvg_weight(*arguments, g, **{"q_gate_layout": "flat", **options})
    with pytest.raises(ValueError, match="qkv_proj_weight: got"):
        qkvg_from_vllm(flat, *norms, g)


def test_columns_of_the_projection() -> None:
    block = geometry.ProjBlock
    assert (GQA.n_qkv, GQA.n_qkvg, GQA.gqa_ratio) == (256, 384, 2)
    assert GQA.qkvg_offsets == (0, 128, 256, 320)
    assert GQA.block_for_column(0) == (block.Q, 0, 0)
    assert GQA.block_for_column(128 + 33) == (block.GATE, 1, 1)
    assert GQA.block_for_column(383) == (block.V, 1, 31)
    assert GQA.qkvg_tile_plan(64) == (block.Q, block.Q, block.GATE, block.GATE, block.K, block.V)
    sparse = replace(GQA, qsa=declarations.QsaSpec(index_band=True, index_head_dim=64))
    assert sparse.n_qkvg == 384 + 5 * 64
    assert sparse.block_for_column(384 + 65) == (block.INDEX, 1, 1)
    for call, message in (
        (lambda: GQA.block_for_column(384), "c: got 384"),
        (lambda: GQA.qkvg_tile_plan(0), "tile_n: got 0"),
        (lambda: GQA.qkvg_tile_plan(96), "tile_n: got 96: a tile of GATE and Q"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"d_model": 0}, ValueError, "d_model: got 0"),
        ({"h_kv": 3}, ValueError, "h_q: got 4, wanted a multiple of h_kv = 3"),
        ({"rope_dim": 34}, ValueError, r"rope_dim: got 34, wanted 0..32"),
        ({"rope_dim": 3}, ValueError, "rope_dim: got 3, wanted an even"),
        ({"qk_norm_eps": 0.0}, ValueError, "qk_norm_eps: got 0.0"),
        ({"attn_scale": -1.0}, ValueError, "attn_scale: got -1.0"),
        ({"qk_norm": False, "rope_dim": 0}, ValueError, "qk_norm: got False"),
        ({"window_left": -2}, ValueError, "window_left: got -2"),
        ({"window_right": 1, "is_causal": False}, ValueError, "window_right: got 1"),
        ({"causal_bottom_right": True, "is_causal": False}, ValueError, "causal_bottom_right: got True"),
        ({"h_kv": 1}, ValueError, "d_head: got 32 columns of K"),
        ({"qsa": 4}, TypeError, "qsa: got int"),
        ({"qsa": declarations.QsaSpec(top_k=6)}, ValueError, "top_k: got 6"),
        ({"qsa": declarations.QsaSpec(index_source="indexer")}, ValueError, "index_band: got False"),
        ({"qsa": declarations.QsaSpec(block_size=8)}, ValueError, "block_size: got 8"),
        ({"qsa": declarations.QsaSpec()}, NotImplementedError, "qsa: got a QsaSpec"),
    ],
)
def test_geometries_that_are_refused(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    given = operands(GQA)
    with pytest.raises(kind, match=message):
        forward(*(given[n] for n in NAMES), replace(GQA, **change))


def test_declarations_of_quantised_blocks() -> None:
    scales = dict.fromkeys(
        ("descale_h", "descale_w_qkvg", "descale_w_o", "scale_q", "scale_k", "scale_v", "scale_o"), 1.0
    )
    assert declarations.QuantSpec(**scales).dtype == "float8_e4m3fn"
    with pytest.raises(ValueError, match="scale_k: got 0"):
        declarations.QuantSpec(**{**scales, "scale_k": 0.0})
    with pytest.raises(NotImplementedError, match="dtype: got float8_e5m2"):
        declarations.QuantSpec(**scales, dtype="float8_e5m2")
    nvfp4 = declarations.Fp4Format.NVFP4
    assert (nvfp4.fmt_name, nvfp4.block_size, nvfp4.sf_torch_dtype) == ("nvfp4", 16, torch.float8_e4m3fn)
    assert declarations.Fp4Format.MXFP4.sf_cudnn_dtype == "float8_e8m0fnu"
    with pytest.raises(ValueError, match=r"scale_o: got 2.0, wanted 1.0 with o_fp4"):
        declarations.MxQuantSpec(1.0, 2.0, o_fp4=nvfp4)
    with pytest.raises(ValueError, match="block_size: got 16"):
        declarations.MxQuantSpec(1.0, block_size=16)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"h": np.zeros((2, 9), np.float32)}, ValueError, "h: got shape"),
        ({"h": np.zeros((2, 9, 40), np.float32)}, ValueError, "h: got"),
        ({"h": np.zeros((2, 9, 48), np.int32)}, TypeError, "h: got int32"),
        ({"w_qkvg": np.zeros((100, 48), np.float32)}, ValueError, "w_qkvg: got"),
        ({"w_o": np.zeros((48, 128), np.float16)}, TypeError, "w_o: got float16"),
        ({"w_q_norm": None}, ValueError, "w_q_norm: got None"),
        ({"cos": np.zeros((2, 9, 8), np.float32)}, ValueError, "cos: got"),
        ({"geometry": 3}, TypeError, "geometry: got int"),
        ({"seq_lens": np.zeros(3, np.int32)}, ValueError, "seq_lens: got"),
        ({"seq_lens": np.zeros(2, np.int64)}, TypeError, "seq_lens: got int64"),
        ({"thd": True}, ValueError, r"h: got \(2, 9, 48\), wanted \(T, d_model\)"),
        ({"save_for_backward": 1}, TypeError, "save_for_backward: got 1"),
    ],
)
def test_calls_that_are_refused(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        forward(**{**operands(GQA), "geometry": GQA, **change})


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"saved": None}, TypeError, "saved: got NoneType"),
        ({"dy": np.zeros((2, 8, 48), np.float32)}, ValueError, "dy: got"),
        ({"recompute": "save_all"}, TypeError, "recompute: got str"),
        ({"thd": True}, ValueError, "thd: got True"),
        ({"seq_lens": np.zeros(2, np.int32)}, ValueError, "seq_lens: got another array"),
        ({"quant": object()}, NotImplementedError, "quant: got a value"),
        ({"scale_dp": 1.0}, NotImplementedError, "scale_dp: got a value"),
        ({"grad_scaling": "delayed"}, ValueError, "grad_scaling: got 'delayed'"),
    ],
)
def test_gradients_that_are_refused(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    given = operands(GQA)
    saved = forward(**given, geometry=GQA, save_for_backward=True)["saved"]
    good = {**given, "dy": given.pop("h"), "saved": saved, "geometry": GQA}
    good.pop("h", None)
    with pytest.raises(kind, match=message):
        backward(**{**good, **change})


def e4m3(x: Any) -> Any:
    """Rounded to the nearest E4M3 number, saturating."""
    return np.clip(x, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def bf16(x: Any) -> Any:
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def mxfp8(x: Any, axis: int) -> tuple[Any, Any]:
    """Codes with a power of two per 32, both as float64, the scales repeated to the shape of ``x``."""
    moved = np.moveaxis(x, axis, -1)
    count = moved.shape[-1]
    padded = np.concatenate([moved, np.zeros((*moved.shape[:-1], -count % 32))], -1)
    groups = padded.reshape(*padded.shape[:-1], -1, 32)
    amax = np.abs(groups).max(-1, keepdims=True)
    exponent = np.ceil(np.log2(np.maximum(amax, 2.0**-100) * float(np.float32(1 / 448))))
    scales = np.where(amax > 0, np.exp2(np.maximum(exponent, -127)), 2.0**-127)
    codes = e4m3(groups / scales)

    def back(y: Any) -> Any:
        return np.moveaxis(y.reshape(padded.shape)[..., :count], -1, axis)

    return back(codes), back(np.broadcast_to(scales, groups.shape))


def quantised_oracle(g: Any, t: dict[str, Any], spec: Any, lengths: Any) -> Any:
    """The page's steps with every rounding, in float64."""
    batch, tokens, _ = t["h"].shape
    mx = isinstance(spec, declarations.MxQuantSpec)
    alpha = 1.0 if mx else spec.descale_h * spec.descale_w_qkvg
    projected = bf16(t["h"] @ t["w_qkvg"].T * alpha)
    widths = np.cumsum([g.h_q * g.d_head, g.h_q * g.d_head, g.h_kv * g.d_head])
    q, gate, k, v = (x.reshape(batch, tokens, -1, g.d_head) for x in np.split(projected, widths, -1))
    q, k = (
        x / np.sqrt(np.square(x).mean(-1, keepdims=True) + g.qk_norm_eps) * t[n]
        for x, n in ((q, "w_q_norm"), (k, "w_k_norm"))
    )
    cos, sin = (torch.from_numpy(t[n]) for n in ("cos", "sin"))
    q, k = (bf16(rotate(torch.from_numpy(x), cos, sin, g.rope_dim).numpy()) for x in (q, k))
    there = np.arange(tokens)[None, :] < np.asarray(lengths)[:, None]
    if mx:
        q, k = (np.prod(mxfp8(x, -1), axis=0) for x in (q, k))
        v = np.prod(mxfp8(v * there[:, :, None, None], 1), axis=0)
        by_score, by_value, lift = 1.0, 1.0, 1.0
    else:
        q, k, v = (e4m3(x * f) for x, f in ((q, spec.scale_q), (k, spec.scale_k), (v, spec.scale_v)))
        by_score, by_value, lift = spec.scale_q * spec.scale_k, spec.scale_v, 256.0
    k, v = (x.repeat(g.h_q // g.h_kv, 2) for x in (k, v))
    s = np.einsum("bihd,bjhd->bhij", q, k) * g.d_head**-0.5 / by_score
    s[np.broadcast_to(~np.tri(tokens, dtype=bool) | ~there[:, None, None, :], s.shape)] = -np.inf
    p = np.exp(s - s.max(-1, keepdims=True))
    o = np.einsum("bhij,bjhd->bihd", e4m3(lift * p), v) / lift / p.sum(-1).transpose(0, 2, 1)[..., None]
    gated = e4m3(bf16(bf16(o / by_value) / (1 + np.exp(-gate))) * spec.scale_o)
    return gated.reshape(batch, tokens, -1) @ t["w_o"].T * (spec.descale_w_o / spec.scale_o)


def packed_scales(scales: Any) -> Any:
    """Scales (rows, K) as packed E8M0 bytes."""
    codes = (np.log2(scales[:, ::32]) + 127).astype(np.uint8)
    return swizzle_scales(codes[None]).reshape(-1)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ["fp8", "mxfp8"])
def test_quantised_blocks(kind: str, framework: Framework) -> None:
    """Every rounding of the page, sequences of 50 and 33 keys of 50 tokens, blocks of 32 that a length cuts."""
    g = Geometry(d_model=128, h_q=4, h_kv=2, d_head=32, rope_dim=12)
    given = {n: x.astype(np.float64) for n, x in operands(g, "bfloat16", lead=(2, 50)).items()}
    blobs: dict[str, Any] = {"h_sf": None, "w_qkvg_sf": None}
    codes, values = {}, dict(given)
    if kind == "fp8":
        spec: Any = declarations.QuantSpec(0.02, 0.002, 0.001, 40.0, 30.0, 50.0, 100.0)
        factors = {"h": spec.descale_h, "w_qkvg": spec.descale_w_qkvg, "w_o": spec.descale_w_o}
    else:
        spec = declarations.MxQuantSpec(0.001, 100.0)
        factors = {"w_o": spec.descale_w_o}
    for name, factor in factors.items():
        codes[name] = values[name] = e4m3(given[name] / factor)
    if kind == "mxfp8":
        for name in ("h", "w_qkvg"):
            codes[name], scales = mxfp8(given[name], -1)
            values[name] = codes[name] * scales
            blobs[f"{name}_sf"] = convert(packed_scales(scales.reshape(-1, 128)), framework)
    lengths = np.asarray([50, 33], np.int32)
    arrays = []
    for name in NAMES:
        stored = (
            codes[name].astype(ml_dtypes.float8_e4m3fn) if name in codes else given[name].astype(ml_dtypes.bfloat16)
        )
        arrays.append(convert(stored, framework))
    out = convert(np.zeros((2, 50, 128), ml_dtypes.bfloat16), framework)
    samples = {f"sample_{name}": blob for name, blob in blobs.items()}
    made = Fwd(*arrays, out, g, quant=spec, seq_lens_present=True, **samples)
    made.compile()
    made.execute(*arrays, out, None, convert(lengths, framework), **blobs)
    wanted = quantised_oracle(g, values, spec, lengths)
    # A sum beside the middle of two E4M3 numbers may fall to either side: one step of 2**-3 in one of many.
    assert_close(out, wanted, attention_tolerance("bfloat16", 3) + 2.0**-7)
    plain, _ = exact(g, {n: torch.from_numpy(x) for n, x in given.items()}, lengths)
    assert 2.0**-6 < rel_rms(out, plain) < 2.0**-3  # E4M3 was there, and no more than it
    changed = replace(spec, scale_o=50.0)
    made.update_quant_scales(changed)
    made.execute(*arrays, out, None, convert(lengths, framework), **blobs)
    assert_close(out, quantised_oracle(g, values, changed, lengths), attention_tolerance("bfloat16", 3) + 2.0**-7)
    with pytest.raises(TypeError, match="spec: got str"):
        made.update_quant_scales("fp8")


def test_quantised_blocks_refuse() -> None:
    g = Geometry(d_model=128, h_q=4, h_kv=2, d_head=32, rope_dim=12)
    made = operands(g, "bfloat16")
    wide = [convert(made[n], "torch") for n in NAMES]
    codes = [x.to(torch.float8_e4m3fn) if i in (0, 1, 6) else x for i, x in enumerate(wide)]
    out, fp8 = torch.empty_like(wide[0]), declarations.QuantSpec(*[1.0] * 7)
    mx, blob = declarations.MxQuantSpec(1.0), torch.zeros(128 * 4, dtype=torch.uint8)
    scales = {"sample_h_sf": blob, "sample_w_qkvg_sf": torch.zeros(384 * 4, dtype=torch.uint8)}
    Fwd(*codes, out, g, quant=mx, **scales).check_support()
    for arrays, options, kind, message in (
        (wide, {"quant": fp8}, TypeError, "h: got bfloat16, wanted float8_e4m3fn"),
        (codes, {}, TypeError, "h: got float8_e4m3fn"),
        ([*codes[:4], codes[4].float(), *codes[5:]], {"quant": fp8}, TypeError, "cos: got float32"),
        (codes, {"quant": mx}, ValueError, "h_sf: got None, wanted 512 scales"),
        (codes, {"quant": fp8, **scales}, ValueError, "h_sf: got scales, wanted None"),
        (codes, {"quant": mx, **scales, "sample_h_sf": blob[:-1]}, ValueError, "h_sf: got"),
        (codes, {"quant": mx, **scales, "sample_h_sf": blob.int()}, TypeError, "h_sf: got int32"),
    ):
        with pytest.raises(kind, match=message):
            Fwd(*arrays, out, g, **options).check_support()
    block = Fwd(*codes, out, g, quant=fp8)
    with pytest.raises(RuntimeError, match="a call before compile"):
        block.update_quant_scales(fp8)
    with pytest.raises(ValueError, match="spec: got QuantSpec, wanted a quantised block"):
        Fwd(*wide, out, g).update_quant_scales(fp8)
    small = [x[..., :64] if i in (0, 1) else x[:64] if i == 6 else x for i, x in enumerate(codes)]
    with pytest.raises(NotImplementedError, match="d_model: got 64"):
        Fwd(*small, out[..., :64], replace(g, d_model=64), quant=mx, **scales).check_support()
