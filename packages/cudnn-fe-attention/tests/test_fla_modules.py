"""The shims of flash-linear-attention's modules: routing, with stand-ins for what they replace."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cudnn_fe.attention import fla as shims
from cudnn_fe.attention.fla import gated_mlp, patching, short_conv
from cudnn_fe_testkit.compare import assert_close


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    for path in (gated_mlp._path, short_conv._path):
        path.latest = None


def stand_in(**attributes: Any) -> Any:
    """A function that counts its calls and returns them."""

    def real(*args: Any, **kwargs: Any) -> Any:
        real.calls.append((args, kwargs))  # type: ignore[attr-defined]
        return "real"

    real.calls = []  # type: ignore[attr-defined]
    for name, value in attributes.items():
        setattr(real, name, value)
    return real


class Linear(torch.nn.Linear):
    """A projection that is not torch's own."""


class GatedMLP(torch.nn.Module):
    """What flash-linear-attention 0.5.2 has, as far as the shim looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_act, self.fuse_swiglu = "swish", True
        self.gate_proj, self.up_proj = (torch.nn.Linear(16, 24, bias=False).bfloat16() for _ in range(2))
        self.down_proj = torch.nn.Linear(24, 16, bias=False).bfloat16()
        self.swiglu_linear = SwiGLULinear()

    def forward(self, x: Any, **kwargs: Any) -> Any:
        return "real", x, kwargs


class SwiGLULinear(torch.nn.Module):
    """Its fused last step."""


def changed(mlp: GatedMLP, change: str) -> GatedMLP:
    if change == "hooks-or-parametrization":
        mlp.register_forward_hook(lambda *_: None)
    elif change == "variant":
        mlp.fuse_swiglu = False
    elif change == "custom-module":
        mlp.up_proj = Linear(16, 24, bias=False).bfloat16()
    elif change == "custom-forward":
        vars(mlp.down_proj)["forward"] = lambda x: x
    elif change == "hooks":
        mlp.gate_proj.register_forward_pre_hook(lambda *_: None)
    elif change == "bias":
        mlp.up_proj = torch.nn.Linear(16, 24).bfloat16()
    return mlp


@pytest.mark.parametrize(
    "reason",
    [
        "fla-version",
        "hooks-or-parametrization",
        "variant",
        "custom-module",
        "custom-forward",
        "hooks",
        "bias",
        "non-cuda",
    ],
)
def test_gated_mlp_falls_back(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated_mlp, "fla_version", lambda: "0.6.0" if reason == "fla-version" else "0.5.2")
    run = gated_mlp.make_gated_mlp_forward(GatedMLP.forward, GatedMLP, SwiGLULinear)
    x = torch.zeros(2, 16, dtype=torch.bfloat16, device="meta" if reason == "non-cuda" else "cpu")
    mlp = changed(GatedMLP(), reason)
    assert run(mlp, x, spare=1) == ("real", x, {"spare": 1})
    assert shims.mlp_last_path() == f"fallback:{reason}"


def test_gated_mlp_checks_of_input_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the device, which a CPU does not have, the checks see what they should."""
    x = torch.zeros(2, 16, dtype=torch.bfloat16)
    assert gated_mlp._input_refusal(x.float()) == "non-bf16"
    assert gated_mlp._input_refusal(torch.nn.Parameter(x)) == "tensor-subclass"
    mlp = GatedMLP()
    parts = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    assert gated_mlp._weights_refusal(parts, x) is None
    assert gated_mlp._weights_refusal(parts, x[:, :8]) == "shape"
    mlp.up_proj.weight = torch.nn.Parameter(mlp.up_proj.weight.float())
    assert gated_mlp._weights_refusal(parts, x) == "non-bf16"
    monkeypatch.setattr(gated_mlp, "_refusal", lambda *_: None)
    run = gated_mlp.make_gated_mlp_forward(GatedMLP.forward, GatedMLP, SwiGLULinear)
    for outcome, path in ((lambda *_: "native", "native"), (ZeroDivisionError, None), (ValueError, "error:ValueError")):

        def exported(name: str, package: str, outcome: Any = outcome) -> Any:
            assert (name, package) == ("gemm.ops.swiglu_mlp", "cudnn-fe-gemm")
            if isinstance(outcome, type):
                raise outcome("no")
            return outcome

        monkeypatch.setattr(gated_mlp, "exported", exported)
        if isinstance(outcome, type):
            with pytest.raises(outcome):
                run(mlp, x)
        else:
            assert run(mlp, x) == "native"
        assert path is None or shims.mlp_last_path() == path

    def missing(name: str, package: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(gated_mlp, "exported", missing)
    assert run(mlp, x)[0] == "real"
    assert shims.mlp_last_path() == "fallback:ImportError"


def test_gated_mlp_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU, where the original does not run, gets the definition; gradients reach the input and all weights."""
    pytest.importorskip("cudnn_fe.gemm", reason="cudnn-fe-gemm is not installed")
    monkeypatch.setattr(gated_mlp, "fla_version", lambda: "0.5.2")
    run = gated_mlp.make_gated_mlp_forward(GatedMLP.forward, GatedMLP, SwiGLULinear)
    mlp = GatedMLP()
    x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(4)).bfloat16()
    leaf = x.clone()
    out = run(mlp, leaf)
    assert shims.mlp_last_path() == "native"
    gate, up, down = (p.weight.double() for p in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    inner = x.double() @ gate.T
    wanted = inner * torch.sigmoid(inner) * (x.double() @ up.T) @ down.T
    assert_close(out.detach(), wanted.detach(), 4 * 2.0**-9)
    out.sum().backward()
    assert all(p.weight.grad is not None for p in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))


def conv_operands(layout: str = "nd") -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(2)
    x, cache, weight = (torch.randn(s, generator=generator).bfloat16() for s in ((3, 8), (3, 8, 4), (8, 4)))
    return {"nd": x, "n1d": x[:, None], "1nd": x[None]}[layout], cache, weight


@pytest.mark.parametrize("layout", ["nd", "n1d", "1nd"])
def test_short_conv(layout: str) -> None:
    pytest.importorskip("cudnn_fe.conv", reason="cudnn-fe-conv is not installed")
    real = stand_in()
    run = short_conv.make_causal_conv1d_update(real)
    x, cache, weight = conv_operands(layout)
    before = cache.clone()
    out, held = run(x, cache, weight=weight, activation="silu")
    assert shims.short_conv_last_path() == "native"
    assert held is cache
    rows = x.reshape(3, 8)
    assert torch.equal(cache, torch.cat([before[..., 1:], rows[..., None]], -1))
    z = (cache.double() * weight.double()).sum(-1)
    assert_close(out.reshape(3, 8), z * torch.sigmoid(z), 2.0**-8)
    assert out.shape == x.shape
    assert not real.calls


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"residual": torch.zeros(1)}, "residual"),
        ({"weight": None}, "weight"),
        ({"bias": torch.zeros(8)}, "bias"),
        ({"activation": None}, "activation"),
        ({"x": torch.zeros(3, 8)}, "non-bf16"),
        ({"cache": torch.zeros(3, 8, 4, dtype=torch.bfloat16, device="meta")}, "non-cuda"),
        ({"cache": torch.zeros(3, 4, 8, dtype=torch.bfloat16).transpose(1, 2)}, "noncontiguous"),
        ({"cache": torch.zeros(2, 8, 4, dtype=torch.bfloat16)}, "shape"),
        ({"x": torch.zeros(3, 12, dtype=torch.bfloat16)[:, :8]}, "alignment"),
        ({"x": torch.zeros(3, 8, dtype=torch.bfloat16).requires_grad_()}, "autograd"),
    ],
)
def test_short_conv_falls_back(change: dict[str, Any], reason: str) -> None:
    real = stand_in()
    x, cache, weight = conv_operands()
    given = {"x": x, "cache": cache, "weight": weight, "activation": "swish", **change}
    assert short_conv.make_causal_conv1d_update(real)(**given) == "real"
    assert shims.short_conv_last_path() == f"fallback:{reason}"
    assert len(real.calls) == 1


def test_which_functions_are_the_packages_own() -> None:
    module = types.ModuleType("fla.modules.conv.triton.ops")
    own = stand_in(__module__=module.__name__)
    assert short_conv.refuse(module, own) is None
    assert short_conv.refuse(module, stand_in(__module__="elsewhere")) is not None
    once = stand_in(__wrapped__=own)
    assert short_conv.refuse(module, once) is None
    assert short_conv.refuse(module, stand_in(__wrapped__=once)) is not None
    classes = types.ModuleType(__name__)
    assert gated_mlp.refuse(classes, GatedMLP.forward) == "the module has no SwiGLULinear"
    classes.SwiGLULinear = SwiGLULinear  # type: ignore[attr-defined]
    assert gated_mlp.refuse(classes, GatedMLP.forward) is None
    assert gated_mlp.refuse(classes, stand_in(__module__=__name__)) == "GatedMLP.forward is not the class's own method"
    assert {row.name for row in patching.TARGETS if row.default} == {"gated_delta_rule", "kda"}
