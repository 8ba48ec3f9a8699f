"""torch tensors: plans, autograd, autocast, torch.compile, function transforms, subclasses."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from cudnn_fe.core.choose import Choice
from cudnn_fe.core.errors import NotYetSupportedError, StrideError
from cudnn_fe.core.settings import override
from cudnn_fe.core.torch import torch_op
from cudnn_fe_testkit.toy import TOY, toy, toy_op

Compiled = tuple[Callable[..., Any], list[int]]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def counting(function: Callable[..., Any], **options: Any) -> Compiled:
    """The compiled function, and a list that grows by one entry per graph."""
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    return torch.compile(function, fullgraph=True, backend=backend, **options), graphs


def data(rows: int = 4, columns: int = 8, **options: Any) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows), **options)


# Plans


def test_a_plan_is_kept_per_shape_layout_type_alignment_option_and_setting() -> None:
    op = toy_op("toy_plans")
    memory = data(8, 16)
    calls: list[Callable[[], Any]] = [
        lambda: toy(memory[:4, :8], op=op),
        lambda: toy(memory[:5, :8], op=op),
        lambda: toy(memory[:4, :8].contiguous(), op=op),
        lambda: toy(memory[:4, :8].to(torch.float16).float().double(), op=op),
        lambda: toy(memory[:4, 1:9], op=op),
        lambda: toy(memory[:4, :8], memory[0, :8], op=op),
        lambda: toy(memory[:4, :8], order="column", op=op),
        lambda: toy(memory[:4, :8], backend="reference", op=op),
    ]
    for _ in range(2):
        for run in calls:
            run()
    assert len(torch_op(op)._plans) == len(calls)
    with override(backend="reference"):
        calls[0]()
    toy(memory[:4, :8], alpha=5.0, op=op)
    assert len(torch_op(op)._plans) == len(calls) + 1


def test_devices_without_an_index_do_not_share_plans() -> None:
    op = toy_op("toy_meta")
    for device in ("cpu", "meta", "cpu"):
        y = toy(torch.zeros(2, 3, device=device), op=op)
        assert (y.device.type, y.shape) == (device, (2, 3))


def test_the_plan_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn_fe.core.torch._MOST_PLANS", 3)
    op = toy_op("toy_bounded")
    for rows in range(1, 9):
        toy(data(rows), op=op)
    assert len(torch_op(op)._plans) <= 3


def test_a_compiled_function_gets_inputs_outputs_and_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    op, seen = toy_op("toy_launch"), []
    x, bias = data(), data()[0]
    for operands, count in (((x, None), 2), ((x, bias), 3)):
        plan = torch_op(op).plan(operands, (), None)
        monkeypatch.setattr(plan, "function", lambda *arguments: seen.append(arguments))
        monkeypatch.setattr(plan, "device_index", 0)
        monkeypatch.setattr("cudnn_fe.core.torch.current_device", lambda: 0)
        outputs = plan.allocate()
        plan.run(operands, outputs, (2.0,))
        assert len(seen[-1]) == count + 1
        assert seen[-1][0] is x
        assert seen[-1][-2] is outputs[0]
        assert seen[-1][-1] == 2.0
    assert Choice("reference").kernel is None


def test_sparse_tensors_are_refused_by_name() -> None:
    with pytest.raises(StrideError, match=r"^x: got a torch.sparse_coo tensor"):
        toy(torch.eye(3).to_sparse())


# Autograd


def test_gradients_are_those_of_plain_torch() -> None:
    x, bias, weight = data(requires_grad=True), data(1)[0].requires_grad_(), data(4)
    (toy(x, bias, alpha=3.0) * weight).sum().backward()
    assert torch.equal(x.grad, 3.0 * weight)  # type: ignore[arg-type]
    assert torch.allclose(bias.grad, weight.sum(0))  # type: ignore[arg-type]


def test_only_what_needs_a_gradient_gets_one() -> None:
    bias = data(1)[0].requires_grad_()
    toy(data(), bias).sum().backward()
    assert bias.grad is not None
    x = torch.nn.Parameter(data())
    toy(x, data()[0]).sum().backward()
    assert x.grad is not None


def test_without_grad_mode_nothing_is_recorded() -> None:
    x = data(requires_grad=True)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not toy(x).requires_grad
    assert toy(x.detach()).grad_fn is None
    assert toy(x).requires_grad


def test_a_second_derivative_raises_instead_of_being_zero() -> None:
    x = data(requires_grad=True)
    (first,) = torch.autograd.grad(toy(x).square().sum(), x, create_graph=True)
    with pytest.raises(NotYetSupportedError, match=r"^the gradient of toy: got a request for its derivative"):
        first.sum().backward()
    with pytest.raises(NotYetSupportedError, match="the gradient of toy"):
        (first.sum() + x.sum()).backward()


def test_create_graph_without_a_second_derivative_is_harmless() -> None:
    x = data(requires_grad=True)
    toy(x, alpha=2.0).sum().backward(create_graph=True)
    assert x.grad is not None
    assert torch.equal(x.grad.detach(), torch.full_like(x, 2.0))
    x.grad = None


def test_an_op_without_a_rule_runs_and_its_derivative_raises() -> None:
    y = toy(data(requires_grad=True), op=toy_op("toy_without_rule", gradient=False))
    assert torch.equal(y.detach(), data())
    with pytest.raises(NotYetSupportedError, match=r"^toy_without_rule: got a request for its derivative"):
        y.sum().backward()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_forward_mode_raises_instead_of_dropping_the_tangent() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(data(), data())
        with pytest.raises(NotYetSupportedError, match=r"^toy: got an operand with a forward-mode tangent"):
            toy(dual)
        assert torch.equal(toy(data()), data())
    with pytest.raises(NotYetSupportedError, match="forward-mode tangent"):
        torch.func.jvp(toy, (data(),), (data(),))


# Autocast


def test_autocast_casts_float32_and_the_gradient_comes_back_as_float32() -> None:
    x = data(requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = toy(x)
        assert torch.equal(y, x.bfloat16().float())
        assert torch.equal(toy(x.half().detach()), x.half().float())
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert torch.equal(toy(x), x)


def test_the_derivative_rule_runs_outside_autocast() -> None:
    x, weight = data(requires_grad=True), data(4) * (1 + 2.0**-12)
    with torch.autocast("cpu", torch.bfloat16):
        torch.autograd.backward(toy(x.double(), y_dtype="float32"), weight)
    assert torch.equal(x.grad, weight)  # type: ignore[arg-type]


# torch.compile, export, torch.library


def test_compiles_as_one_graph_and_a_new_row_count_does_not_compile_again() -> None:
    run, graphs = counting(lambda x: toy(x, alpha=2.0))
    for rows in (3, 5, 7, 11, 64):
        assert torch.equal(run(data(rows)), 2.0 * data(rows))
    assert len(graphs) <= 2  # one for the first shape, one for every other


def test_an_eager_call_between_compiled_ones_does_not_compile_again() -> None:
    op = toy_op("toy_traced_first")
    run, graphs = counting(lambda x: toy(x, op=op))
    run(data())
    toy(data(), op=op)
    run(data())
    assert len(graphs) == 1


def test_compiled_training_gives_the_eager_gradients() -> None:
    def loss(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return toy(x, bias, alpha=3.0).square().sum()

    grads = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        x, bias = data(requires_grad=True), data(1)[0].requires_grad_()
        function(x, bias).backward()
        grads.append((x.grad, bias.grad))
    for eager, compiled in zip(*grads, strict=True):
        assert torch.allclose(eager, compiled, rtol=1e-6)


def test_compiled_autocast_is_the_eager_one() -> None:
    def cast(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return toy(x)

    run, _ = counting(cast)
    assert torch.equal(run(data()), cast(data()))


@pytest.mark.parametrize("bias", [False, True])
def test_opcheck_finds_schema_fake_kernel_and_autograd_right(bias: bool) -> None:
    run, _ = counting(toy)
    run(data())
    x = data(requires_grad=True)
    operands = (x, data(1)[0].requires_grad_() if bias else None)
    options = ["y_dtype='float32'", "order='column'", "window=()"]
    found = torch.library.opcheck(torch.ops.cudnn_fe.toy.default, (*operands, [2.0], options, ""))
    assert set(found.values()) == {"SUCCESS"}


def test_fake_tensors_give_fake_results_of_the_promised_layout() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with FakeTensorMode():
            y = toy(torch.empty(4, 8), order="column")
    assert type(y).__name__ == "FakeTensor"
    assert (y.shape, y.stride()) == ((4, 8), (1, 4))


def test_modes_see_the_op_and_its_work() -> None:
    with FlopCounterMode(display=False) as counter:
        toy(data(4, 8))
    assert counter.get_total_flops() == 4 * 8


def test_the_symbolic_trace_holds_the_op() -> None:
    exported = torch.export.export(Model(), (data(),))
    assert "cudnn_fe.toy" in exported.graph_module.code
    assert torch.equal(exported.module()(data()), 2.0 * data())


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return toy(x, alpha=2.0)


# Transforms and subclasses


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_of_torch_func_agree_with_autograd() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return toy(x, alpha=3.0).square().sum()

    x = data()
    wanted = 18.0 * x
    stack = torch.stack([x, 2 * x])
    assert torch.allclose(torch.func.grad(loss)(x), wanted)
    assert torch.equal(torch.func.vmap(toy)(stack), stack)
    per_sample = torch.func.vmap(torch.func.grad(loss))(stack)
    assert torch.allclose(per_sample, torch.stack([wanted, 2 * wanted]))
    assert torch.allclose(torch.func.grad(lambda s: torch.func.vmap(loss)(s).sum())(stack), per_sample)
    with pytest.raises(NotYetSupportedError, match="the gradient of toy"):
        torch.func.grad(lambda x: torch.func.grad(loss)(x).sum())(x)


def test_subclasses_and_lazily_negated_views_go_through_the_dispatcher() -> None:
    class Marked(torch.Tensor):
        pass

    assert type(toy(data().as_subclass(Marked))) is Marked
    view = torch._neg_view(data())
    assert view.is_neg()
    assert torch.equal(toy(view), -data())


def test_a_module_that_holds_an_op_can_be_copied() -> None:
    model: Any = Model()
    model.op = TOY
    assert copy.deepcopy(model).op is TOY
