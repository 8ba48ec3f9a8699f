"""Quantised blocks, FP8, MXFP8 and FP4: against a float64 formulation with every rounding of the definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnn_fe import attention
from cudnn_fe.attention.gated_block import declarations, legacy_backward, legacy_forward, op_backward, record
from cudnn_fe_testkit.attention import attention_tolerance
from cudnn_fe_testkit.compare import assert_close, rel_rms, to_float64
from cudnn_fe_testkit.gated_block import NAMES, block_operands, exact_block
from cudnn_fe_testkit.gated_block_quantised import Oracle, QuantisedOperands, power_of_two_below
from cudnn_fe_testkit.inputs import Framework, convert, normal

# Arguments are spread from lists and tables here, which the type checker cannot count.
Geometry: Any = attention.GatedAttentionBlockGeometry
Fwd: Any = legacy_forward.GatedAttentionBlockFwd
Bwd: Any = legacy_backward.GatedAttentionBlockBwd
backward: Any = attention.gated_attention_block_backward

FP8 = declarations.QuantSpec(0.02, 0.002, 0.001, 40.0, 30.0, 50.0, 100.0)
MX = declarations.MxQuantSpec(0.001, 100.0)
NV4 = declarations.MxQuantSpec(1.0, o_fp4=declarations.Fp4Format.NVFP4)
MX4 = declarations.MxQuantSpec(1.0, w_qkvg_dtype="float4_e2m1fn", o_fp4=declarations.Fp4Format.MXFP4)
SPECS = {"fp8": FP8, "mxfp8": MX, "nvfp4": NV4, "mxfp4": MX4}
G = Geometry(d_model=128, h_q=4, h_kv=2, d_head=32, rope_dim=12)
WIDE = replace(G, h_q=2, h_kv=1, d_head=128)
NEEDED = ("dh", "dw_qkvg", "dw_o", "dw_q_norm", "dw_k_norm")
LENGTHS = [50, 33]  # of 50 tokens: a block of 32 that a length cuts
# A sum beside the middle of two numbers of a narrow format may fall to either side: one step of 2**-3 in one of many.
TOLERANCE = attention_tolerance("bfloat16", 3) + 2.0**-7


def geometry(kind: str) -> Any:
    return WIDE if kind in ("nvfp4", "mxfp4") else G


def operands(kind: str, framework: Framework, *, thd: bool = False) -> tuple[QuantisedOperands, list[Any], Oracle]:
    """The operands, the arrays of a call, and the oracle of sequences of 50 and 33 keys, padded or packed."""
    given = QuantisedOperands(geometry(kind), SPECS[kind], (83,) if thd else (2, 50))
    segments = [(0, 0, 50, 50), (0, 50, 83, 33)] if thd else [(b, 0, 50, n) for b, n in enumerate(LENGTHS)]
    return given, [convert(x, framework) for x in given.arrays], Oracle(given, segments)


def blobs_of(given: QuantisedOperands, framework: Framework) -> dict[str, Any]:
    return {n: None if x is None else convert(x, framework) for n, x in given.blobs.items()}


def block(given: QuantisedOperands, arrays: list[Any], blobs: dict[str, Any], thd: bool, **options: Any) -> Any:
    modes = {"thd": True, "num_sequences": 2, "max_seq_len": 50} if thd else {"seq_lens_present": True}
    samples = {f"sample_{name}": blob for name, blob in blobs.items()}
    out = convert(
        np.zeros((*given.lead, 128), ml_dtypes.bfloat16), "numpy" if isinstance(arrays[0], np.ndarray) else "torch"
    )
    made = Fwd(*arrays, out, given.g, quant=given.spec, **modes, **samples, **options)
    made.compile()
    return made, out


@pytest.mark.parametrize("thd", [False, True])
@pytest.mark.parametrize("kind", SPECS)
def test_forward(kind: str, thd: bool) -> None:
    framework: Framework = "numpy" if kind == "mxfp8" else "torch"
    given, arrays, oracle = operands(kind, framework, thd=thd)
    blobs, lengths = blobs_of(given, framework), convert(np.asarray(LENGTHS, np.int32), framework)
    made, out = block(given, arrays, blobs, thd)
    made.execute(*arrays, out, None, lengths, **blobs)
    # Beside the middle of two E2M1 numbers the step is 2**-2 of them.
    bound = TOLERANCE if kind in ("fp8", "mxfp8") else 2 * TOLERANCE
    assert_close(out, oracle.forward().reshape(out.shape), bound)
    if thd:
        return
    exact, _ = exact_block(
        given.g,
        {n: torch.from_numpy(x.astype(np.float64)) for n, x in block_operands(given.g, "bfloat16", (2, 50)).items()},
        LENGTHS,
    )
    assert 2.0**-6 < rel_rms(out, exact) < (2.0**-3 if kind in ("fp8", "mxfp8") else 2.0**-1)  # what the format loses
    if kind not in ("fp8", "mxfp8"):
        return
    changed = replace(given.spec, scale_o=50.0)
    made.update_quant_scales(changed)
    made.execute(*arrays, out, None, lengths, **blobs)
    oracle.given.spec = changed
    assert_close(out, oracle.forward(), TOLERANCE)
    with pytest.raises(TypeError, match="spec: got str"):
        made.update_quant_scales("fp8")


def trained(given: QuantisedOperands, arrays: list[Any], thd: bool) -> tuple[Any, Any]:
    """The output and the record of a training forward."""
    g, blobs = given.g, blobs_of(given, "torch")
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    made, out = block(given, arrays, blobs, thd, save_for_backward=True)
    lead = (1, 83) if thd else (2, 50)
    saved = record.SavedForBackward(
        h=arrays[0],
        gate=None,
        o=torch.empty(*lead, g.h_q, g.d_head, dtype=torch.bfloat16),
        lse=torch.empty(lead[0], g.h_q, lead[1]),
        rstd_q=torch.empty(*lead, g.h_q),
        rstd_k=torch.empty(*lead, g.h_kv),
        proj_slab=torch.empty(*lead, g.n_qkvg, dtype=torch.bfloat16),
        seq_lens=lengths,
        seq_lens_form="lengths" if thd else None,
    )
    made.execute(*arrays, out, None, lengths, saved=saved, **blobs)
    return out, saved


@pytest.mark.parametrize(
    ("kind", "thd", "delayed", "margin"),
    [
        ("fp8", False, False, 2),
        ("fp8", True, True, 0),
        ("mxfp8", False, False, 0),
        ("mxfp8", True, False, 1),
        ("nvfp4", False, True, 0),
        ("mxfp4", False, False, 0),
    ],
)
def test_gradients(kind: str, thd: bool, delayed: bool, margin: int) -> None:
    given, arrays, oracle = operands(kind, "torch", thd=thd)
    g = given.g
    _, saved = trained(given, arrays, thd)
    dy = convert(normal(given.values["h"].shape, "bfloat16", seed=30), "torch")
    turned = {n: convert(x, "torch") for n, x in given.turned.items()}
    scales = {"dp": 64.0} if kind == "fp8" else {}
    if delayed:
        scales |= {"dy": 48.0} | ({"do": 100.0, "dqkvg": 24.0} if kind == "fp8" else {})
    tensors = {f"scale_{n}": torch.tensor([x]) for n, x in scales.items()}
    modes = {"thd": True, "num_sequences": 2, "max_seq_len": 50} if thd else {"seq_lens_present": True}
    scaling = {
        "quant": given.spec,
        "grad_scaling": "delayed" if delayed else "current",
        "grad_scale_margin_log2": margin,
    }
    made = Bwd(dy, saved, *arrays[1:], g, **modes, **scaling)
    made.compile()
    workspace = torch.zeros(made.get_workspace_size(), dtype=torch.uint8)
    buffers = [
        torch.full(x, float("nan"), dtype=torch.bfloat16)
        for x in (given.values["h"].shape, (g.n_qkvg, 128), (128, g.h_q * g.d_head))
    ]
    buffers += [torch.full((g.d_head,), float("nan")) for _ in range(2)]
    made.execute(dy, saved, *arrays[1:], *buffers, workspace=workspace, **tensors, **turned)
    lead = saved.o.shape[:2]
    slab, o, lse = (to_float64(x) for x in (saved.proj_slab.reshape(*lead, -1), saved.o, saved.lse))
    wanted, numbers = oracle.backward(to_float64(dy), slab, o, lse, scales, margin)
    for name, got in zip(NEEDED, buffers, strict=True):
        # Half a dozen roundings to bfloat16 lie on the way of each, and those beside a middle of two codes.
        assert_close(got, wanted[name], 2 * TOLERANCE, name)
    found = made.quant_scalars(workspace)
    assert tuple(found) == op_backward.SCALARS
    for name in ("dy", "do", "dqkvg") if kind == "fp8" else ("dy",):
        assert float(found[f"scale_{name}"]) == numbers[f"scale_{name}"]
        assert float(found[f"descale_{name}"]) == pytest.approx(1 / numbers[f"scale_{name}"], rel=1e-6)
        assert float(found[f"amax_{name}"]) == pytest.approx(numbers[f"amax_{name}"], rel=2.0**-7)
    if kind == "fp8":
        assert float(found["amax_dp"]) == pytest.approx(numbers["amax_dp"], rel=2.0**-6)
        assert float(found["alpha_b1"]) == pytest.approx(1 / (numbers["scale_dy"] * FP8.scale_o), rel=1e-6)
        assert float(found["alpha_b7"]) == pytest.approx(FP8.descale_h / numbers["scale_dqkvg"], rel=1e-6)
        assert float(found["scale_s"]) == 256.0
    else:
        assert all(float(found[n]) == 0 for n in ("amax_do", "scale_dqkvg", "alpha_b7", "scale_q", "descale_h"))
    if kind != "fp8":
        return
    leaves = [x.detach().requires_grad_() for x in arrays]
    again = backward(
        *(dy, replace(saved, h=leaves[0]), *leaves[1:], g),
        thd=thd,
        quant=given.spec,
        **tensors,
        **{name: scaling[name] for name in ("grad_scaling", "grad_scale_margin_log2")},
    )
    assert all(torch.equal(again[name], x) for name, x in zip(NEEDED, buffers, strict=True))


def test_scales_of_gradients() -> None:
    """At the middle of E4M3's range, on either side of its largest mantissa, at the ends of float32, and for zeros."""
    from array_api_compat import array_namespace

    from cudnn_fe.attention.gated_block.quantised import step_below

    for value in (1.0, 1.75, float(np.nextafter(np.float32(1.75), np.float32(2))), 448.0, 3e-30, 3e38, 0.0):
        x = np.asarray([[0.0, -value]], np.float32)
        for given in (x, convert(x, "torch"), convert(x, "jax")):
            scale, amax = step_below(array_namespace(given), given, 3)
            assert float(amax[0]) == np.float32(value)
            assert float(scale[0]) == power_of_two_below(float(np.float32(value)), 3)


def test_calls_that_are_refused() -> None:
    made = block_operands(G, "bfloat16")
    wide = [convert(made[n], "torch") for n in NAMES]
    codes = [x.to(torch.float8_e4m3fn) if i in (0, 1, 6) else x for i, x in enumerate(wide)]
    out, fp8 = torch.empty_like(wide[0]), declarations.QuantSpec(*[1.0] * 7)
    mx, blob = declarations.MxQuantSpec(1.0), torch.zeros(128 * 4, dtype=torch.uint8)
    scales = {"sample_h_sf": blob, "sample_w_qkvg_sf": torch.zeros(384 * 4, dtype=torch.uint8)}
    Fwd(*codes, out, G, quant=mx, **scales).check_support()
    packed = [*codes[:6], torch.zeros(128, 64, dtype=torch.uint8)]
    for arrays, options, kind, message in (
        (wide, {"quant": fp8}, TypeError, "h: got bfloat16, wanted float8_e4m3fn"),
        (codes, {}, TypeError, "h: got float8_e4m3fn"),
        ([*codes[:4], codes[4].float(), *codes[5:]], {"quant": fp8}, TypeError, "cos: got float32"),
        (codes, {"quant": mx}, ValueError, "h_sf: got None, wanted 512 scales"),
        (codes, {"quant": fp8, **scales}, ValueError, "h_sf: got scales, wanted None"),
        (codes, {"quant": mx, **scales, "sample_h_sf": blob[:-1]}, ValueError, "h_sf: got"),
        (codes, {"quant": mx, **scales, "sample_h_sf": blob.int()}, TypeError, "h_sf: got int32"),
        (codes, {"quant": mx, **scales, "sample_w_o_sf": blob}, ValueError, "w_o_sf: got scales, wanted None"),
        (packed, {"quant": NV4, **scales}, ValueError, "w_o: got uint8, wanted a float8 or float4 type"),
        (codes, {"quant": NV4, **scales}, NotImplementedError, "d_head: got 32, wanted a multiple of 64 for nvfp4"),
    ):
        with pytest.raises(kind, match=message):
            Fwd(*arrays, out, G, **options).check_support()
    one = Fwd(*codes, out, G, quant=fp8)
    with pytest.raises(RuntimeError, match="a call before compile"):
        one.update_quant_scales(fp8)
    with pytest.raises(ValueError, match="spec: got QuantSpec, wanted a quantised block"):
        Fwd(*wide, out, G).update_quant_scales(fp8)
    small = [x[..., :64] if i in (0, 1) else x[:64] if i == 6 else x for i, x in enumerate(codes)]
    with pytest.raises(NotImplementedError, match="d_model: got 64"):
        Fwd(*small, out[..., :64], replace(G, d_model=64), quant=mx, **scales).check_support()


@pytest.mark.parametrize(
    ("kind", "change", "error", "message"),
    [
        ("fp8", {"scale_dp": None}, ValueError, "scale_dp: got None, wanted one float32 number"),
        ("fp8", {"scale_dp": torch.ones(2)}, ValueError, r"scale_dp: got \(2,\), wanted one number"),
        ("fp8", {"scale_dy": torch.ones(1)}, ValueError, "scale_dy: got a tensor, wanted None"),
        ("fp8", {"dy": torch.zeros(2, 50, 128, dtype=torch.float16)}, NotImplementedError, "dy: got float16"),
        (
            "fp8",
            {"h_t": torch.zeros(128, 100, dtype=torch.float8_e4m3fn)},
            ValueError,
            "h_t: got a tensor, wanted None",
        ),
        ("mxfp8", {"scale_dp": torch.ones(1)}, ValueError, "scale_dp: got a tensor, wanted None"),
        ("mxfp8", {"h_t": None, "h_t_sf": None}, ValueError, r"h_t: got None, wanted \(128, 100\) of float8_e4m3fn"),
        ("mxfp8", {"w_qkvg_t_sf": None}, ValueError, "w_qkvg_t_sf: got None"),
        ("mxfp4", {"w_o_t": None, "w_o_t_sf": None}, ValueError, r"w_o_t: got None, wanted \(256, 64\) of float4"),
        ("mxfp4", {"w_o_t": torch.zeros(256, 64, dtype=torch.uint8)}, ValueError, "w_o_t: got uint8"),
    ],
)
def test_gradients_that_are_refused(kind: str, change: dict[str, Any], error: type[Exception], message: str) -> None:
    given, arrays, _ = operands(kind, "torch")
    g = given.g
    statistics: dict[str, Any] = {"rstd_q": torch.zeros(2, 50, g.h_q), "rstd_k": torch.zeros(2, 50, g.h_kv)}
    slab, o = (torch.zeros(2, 50, *n, dtype=torch.bfloat16) for n in ((g.n_qkvg,), (g.h_q, g.d_head)))
    saved = record.SavedForBackward(arrays[0], None, o, torch.zeros(2, g.h_q, 50), proj_slab=slab, **statistics)
    good = {"scale_dp": torch.ones(1)} if kind == "fp8" else {n: convert(x, "torch") for n, x in given.turned.items()}
    call: dict[str, Any] = {"dy": torch.zeros(2, 50, 128, dtype=torch.bfloat16), **good, **change}
    buffers = [torch.empty(2, 50, 128).bfloat16(), torch.empty(g.n_qkvg, 128).bfloat16()]
    buffers += [torch.empty(128, g.h_q * g.d_head).bfloat16(), torch.empty(g.d_head), torch.empty(g.d_head)]
    dy = call.pop("dy")

    def run() -> None:
        made = Bwd(dy, saved, *arrays[1:], g, quant=given.spec)
        made.compile()
        made.execute(dy, saved, *arrays[1:], *buffers, workspace=torch.zeros(256, dtype=torch.uint8), **call)

    with pytest.raises(error, match=message):
        run()
