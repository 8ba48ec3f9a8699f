"""The shims of flash-linear-attention: patching against a stand-in, routing on a CPU, and the package itself."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cudnn_fe.attention import fla as shims
from cudnn_fe.attention.fla import gated_delta_rule, kda
from cudnn_fe.core.settings import settings
from cudnn_fe_testkit.compare import assert_close

HAVE_FLA = importlib.util.find_spec("fla") is not None and importlib.util.find_spec("einops") is not None
needs_fla = pytest.mark.skipif(not HAVE_FLA, reason="flash-linear-attention (fla-core and einops) is not installed")

B, T, H, HV, K, V = 2, 70, 2, 4, 8, 6


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    shims.restore_fla()
    for path in (gated_delta_rule._path, kda._path):
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


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> dict[str, types.ModuleType]:
    """A package ``fla`` with the default targets, and a module that has imported one of them."""
    names = ("fla", "fla.ops", "fla.ops.gated_delta_rule", "fla.ops.kda", "user_of_fla")
    made = {name: types.ModuleType(name) for name in names}
    made["fla"].__path__ = made["fla.ops"].__path__ = []
    made["fla.ops.gated_delta_rule"].chunk_gated_delta_rule = stand_in()  # type: ignore[attr-defined]
    made["fla.ops.kda"].chunk_kda = stand_in()  # type: ignore[attr-defined]
    made["user_of_fla"].chunk_kda = made["fla.ops.kda"].chunk_kda  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.split(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_patching(package: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    gdn, kda_module, user = (package[name] for name in ("fla.ops.gated_delta_rule", "fla.ops.kda", "user_of_fla"))
    original = kda_module.chunk_kda
    assert not shims.is_accelerated()
    shims.accelerate_fla(targets="kda")
    assert capsys.readouterr().out == "cudnn.fla: kda\n"
    assert shims.is_accelerated()
    assert shims.is_accelerated("kda")
    assert not shims.is_accelerated("gdn")
    assert kda_module.chunk_kda.__wrapped__ is original
    assert user.chunk_kda is kda_module.chunk_kda
    replacement = kda_module.chunk_kda
    shims.accelerate_fla()
    assert capsys.readouterr().out == "cudnn.fla: gated_delta_rule\n"
    assert kda_module.chunk_kda is replacement
    shims.accelerate_fla(verbose=False, targets=("gated_delta_rule", "kda"))
    assert capsys.readouterr().out == ""
    shims.restore_fla(targets="gdn")
    assert not hasattr(gdn.chunk_gated_delta_rule, "__wrapped__")
    assert user.chunk_kda is replacement
    shims.restore_fla()
    assert user.chunk_kda is kda_module.chunk_kda is original
    shims.restore_fla()


def test_a_third_party_is_not_clobbered(package: dict[str, Any]) -> None:
    module, user = package["fla.ops.kda"], package["user_of_fla"]
    original = module.chunk_kda
    shims.accelerate_fla(verbose=False, targets="kda")
    other = module.chunk_kda = stand_in()
    assert not shims.is_accelerated("kda")
    shims.accelerate_fla(verbose=False, targets="kda")
    assert module.chunk_kda.__wrapped__ is other
    assert user.chunk_kda is original
    newer = module.chunk_kda = stand_in()
    shims.restore_fla()
    assert module.chunk_kda is newer


def test_what_cannot_be_replaced(package: dict[str, Any]) -> None:
    del package["fla.ops.kda"].chunk_kda
    with pytest.raises(ImportError, match=r"kda: fla\.ops\.kda has no chunk_kda"):
        shims.accelerate_fla(targets=["gdn", "kda"])
    assert not shims.is_accelerated("gdn")  # all of those named, or none
    shims.accelerate_fla(verbose=False)  # of the default ones, those that there are
    assert shims.is_accelerated("gdn")
    shims.restore_fla()
    del package["fla.ops.gated_delta_rule"].chunk_gated_delta_rule
    with pytest.raises(ImportError, match=r"gated_delta_rule: .*kda: "):
        shims.accelerate_fla()
    with pytest.raises(ImportError, match=r"gated_mlp: fla\.modules\.mlp cannot be imported"):
        shims.accelerate_fla(targets="mlp")
    with pytest.raises(ValueError, match="targets: got none"):
        shims.accelerate_fla(targets=[])
    with pytest.raises(ValueError, match="targets: got 'attention'"):
        shims.accelerate_fla(targets="attention")
    with pytest.raises(TypeError, match="targets: got 3"):
        shims.restore_fla(targets=[3])  # type: ignore[list-item]


def operands(op: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    gate = (B, T, HV, K) if op == "kda" else (B, T, HV)
    return {
        "q": normal(B, T, H, K).to(dtype),
        "k": torch.nn.functional.normalize(normal(B, T, H, K), dim=-1).to(dtype),
        "v": normal(B, T, HV, V).to(dtype),
        "g": -normal(*gate).abs() / 8,
        "beta": normal(B, T, HV).sigmoid(),
    }


MAKERS = {"gdn": (gated_delta_rule, "make_chunk_gated_delta_rule"), "kda": (kda, "make_chunk_kda")}


def shim_of(op: str) -> tuple[Any, Any, Any]:
    module, maker = MAKERS[op]
    real = stand_in()
    return module, real, getattr(module, maker)(real)


@pytest.mark.parametrize("op", MAKERS)
def test_native_on_a_cpu(op: str) -> None:
    """Batches, packed sequences, both layouts of the states, types that are cast; gradients reach every operand."""
    module, real, run = shim_of(op)
    given = operands(op)
    state = torch.randn(B, HV, K, V, generator=torch.Generator().manual_seed(1))
    o, final = run(**given, initial_state=state, output_final_state=True)
    assert module.last_path() == "native"
    assert o.shape == (B, T, HV, V)
    assert final.shape == (B, HV, K, V)
    assert final.dtype == torch.float32
    turned, again = run(**given, initial_state=state.transpose(-1, -2), output_final_state=True, state_v_first=True)
    assert torch.equal(turned, o)
    assert torch.equal(again.transpose(-1, -2), final)
    packed = {name: x.reshape(1, B * T, *x.shape[2:]) for name, x in given.items()}
    ends = torch.tensor([0, T, 2 * T])
    flat, _ = run(**packed, initial_state=state.double(), cu_seqlens=ends)
    assert torch.equal(flat.reshape(o.shape), o)
    half = run(**operands(op, torch.bfloat16))
    assert half[0].dtype == torch.bfloat16
    assert half[1] is None
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    out, _ = run(*leaves.values())
    out.sum().backward()
    assert all(x.grad is not None and x.grad.shape == x.shape for x in leaves.values())
    assert not real.calls


@pytest.mark.parametrize(
    ("op", "change", "reason"),
    [
        ("gdn", {"cp_context": object()}, "cp_context"),
        ("kda", {"cp_context": object()}, "cp_context"),
        ("gdn", {"allow_neg_eigval": True}, "NotYetSupportedError"),
        ("gdn", {"use_gate_in_kernel": True}, "NotYetSupportedError"),
        ("gdn", {"use_gate_in_kernel": True, "A_log": torch.zeros(3)}, "NotYetSupportedError"),
        ("gdn", {"cu_seqlens": torch.tensor([0, T])}, "NotYetSupportedError"),
        ("gdn", {"g": torch.zeros(B, T, H)}, "NotYetSupportedError"),
        ("gdn", {"beta": torch.zeros(B, T, H)}, "NotYetSupportedError"),
        ("gdn", {"q": torch.zeros(T, H, K)}, "NotYetSupportedError"),
        ("kda", {"use_gate_in_kernel": True}, "NotYetSupportedError"),
        ("kda", {"use_gate_in_kernel": True, "safe_gate": True}, "NotYetSupportedError"),
        ("kda", {"use_gate_in_kernel": True, "lower_bound": -6.0}, "NotYetSupportedError"),
        ("kda", {"use_gate_in_kernel": True, "lower_bound": -1.0, "dt_bias": torch.zeros(3)}, "NotYetSupportedError"),
        ("kda", {"return_intermediate_states": True}, "NotYetSupportedError"),
    ],
)
def test_fallback(op: str, change: dict[str, Any], reason: str) -> None:
    module, real, run = shim_of(op)
    given = {**operands(op), **change}
    assert run(**given) == "real"
    assert module.last_path() == f"fallback:{reason}"
    assert len(real.calls) == 1
    args, kwargs = real.calls[0]
    assert args == ()
    assert kwargs.keys() == given.keys()
    assert all(kwargs[name] is value for name, value in given.items())


def test_other_errors_are_not_hidden() -> None:
    _, real, run = shim_of("gdn")
    with pytest.raises(ValueError, match="k: got"):
        run(**{**operands("gdn"), "k": torch.zeros(B, T, H, K + 1)})
    with pytest.raises(TypeError, match="missing a required argument"):
        run(torch.zeros(1))
    assert not real.calls


def test_devices_without_kernels_take_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    from cudnn_fe.attention.fla import calls
    from cudnn_fe.attention.linear.op import GDN_FORWARD

    on_gpu = types.SimpleNamespace(device=types.SimpleNamespace(type="cuda"))
    assert calls.served(GDN_FORWARD, torch.zeros(1)) is None
    assert calls.served(GDN_FORWARD, torch.zeros(1, device="meta")) == "device"
    if GDN_FORWARD.runs_reference_on_gpu:
        assert calls.served(GDN_FORWARD, on_gpu) == "no-kernel"
    monkeypatch.setattr(calls, "settings", lambda: types.SimpleNamespace(backend="reference"))
    assert calls.served(GDN_FORWARD, on_gpu) is None
    assert settings().backend != "reference"


def test_kda_returns_states_on_the_way() -> None:
    _, _, run = shim_of("kda")
    given = operands("kda")
    with torch.inference_mode():
        o, final, h = run(**given, return_intermediate_states=True, output_final_state=True)
        assert h.shape == (B, 2, HV, K, V)
        assert not h[:, 0].any()
        first = {name: x[:, :64] for name, x in given.items()}
        _, after = run(**first, output_final_state=True)
        assert torch.equal(h[:, 1], after)
        assert final is not None
        packed = {name: x.reshape(1, B * T, *x.shape[2:]) for name, x in given.items()}
        ends = torch.tensor([0, T, T, 2 * T])
        flat = run(**packed, return_intermediate_states=True, cu_seqlens=ends, state_v_first=True)
        assert torch.equal(flat[2][0].reshape(B, 2, HV, V, K).transpose(-1, -2), h)
        assert torch.equal(flat[0].reshape(o.shape), o)


@needs_fla
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("op", MAKERS)
def test_against_the_package(op: str, fused: bool) -> None:
    """The package's own entry, replaced, against the package's plain recurrence and gates."""
    real_gdn, real_kda = importlib.import_module("fla.ops.gated_delta_rule"), importlib.import_module("fla.ops.kda")
    naive_gdn_gate = importlib.import_module("fla.ops.gated_delta_rule.gate").naive_gdn_gate
    gates, plain_kda = importlib.import_module("fla.ops.kda.gate"), importlib.import_module("fla.ops.kda.naive")
    plain_gdn = importlib.import_module("fla.ops.gated_delta_rule.naive")
    shims.accelerate_fla(verbose=False)
    given = operands(op)
    if op == "gdn":
        given = {name: x.repeat_interleave(HV // H, 2) if name in "qk" else x for name, x in given.items()}
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    plain = {name: x.clone().requires_grad_() for name, x in given.items()}
    used, options = dict(plain), {}
    generator = torch.Generator().manual_seed(5)
    if fused:
        a_log = torch.randn(HV, generator=generator)
        bias = torch.randn(HV * K if op == "kda" else HV, generator=generator)
        options = {
            "use_qk_l2norm_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
            "use_gate_in_kernel": True,
            "A_log": a_log,
            "dt_bias": bias,
        }
        gate = naive_gdn_gate if op == "gdn" else gates.naive_kda_gate
        used |= {"g": gate(plain["g"], a_log, bias), "beta": plain["beta"].sigmoid()}
        used |= {name: torch.nn.functional.normalize(plain[name], dim=-1, eps=1e-12) for name in "qk"}
    if op == "gdn":
        o, final = real_gdn.chunk_gated_delta_rule(**leaves, output_final_state=True, **options)
        order = (used["q"], used["k"], used["v"], used["beta"], used["g"])
        wanted, state = plain_gdn.naive_recurrent_gated_delta_rule(*order, output_final_state=True)
        assert gated_delta_rule.last_path() == "native"
    else:
        o, final = real_kda.chunk_kda(**leaves, output_final_state=True, **options)
        wanted, state = plain_kda.naive_recurrent_kda(**used, output_final_state=True)
        assert kda.last_path() == "native"
        if fused:
            bounded, _ = real_kda.chunk_kda(**given, **options, lower_bound=-3.0)
            used = {**used, "g": gates.naive_kda_lowerbound_gate(plain["g"], a_log, bias, -3.0)}
            assert_close(bounded, plain_kda.naive_recurrent_kda(**used)[0], 1e-4)
    # Two float32 recurrences over 70 tokens; each token adds a few roundings of 2^-24 to states that shrink.
    assert_close(o, wanted, 1e-4)
    assert_close(final, state, 1e-4)
    (o.square().sum() + final.sum()).backward()
    (wanted.square().sum() + state.sum()).backward()
    for name, leaf in leaves.items():
        assert_close(leaf.grad, plain[name].grad, 5e-4, name)


@needs_fla
def test_fallback_raises_what_the_package_raises() -> None:
    """On a CPU the package's kernels do not run: a declined call says what they say."""
    real_kda = importlib.import_module("fla.ops.kda")
    if torch.cuda.is_available():
        pytest.skip("the package's kernels run here")
    shims.accelerate_fla(verbose=False, targets="kda")
    with pytest.raises(Exception) as ours:  # noqa: PT011 - whatever the package raises
        real_kda.chunk_kda(**operands("kda"), return_intermediate_states=True)
    assert kda.last_path() == "fallback:NotYetSupportedError"
    original = real_kda.chunk_kda.__wrapped__
    with pytest.raises(type(ours.value)), torch.inference_mode():
        original(**operands("kda"), return_intermediate_states=True)
