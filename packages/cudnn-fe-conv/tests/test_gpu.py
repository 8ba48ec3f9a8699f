"""The kernels on a GPU: values against float64, and everything that only a GPU can show."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cudnn_fe.conv import causal_conv1d, causal_conv1d_backward, causal_conv1d_update
from cudnn_fe.core.compile import compile_counts
from cudnn_fe_testkit.causal_conv import LENGTHS, Case, exact, exact_step, make_case, sum_tolerance, tolerance
from cudnn_fe_testkit.on_gpu import poison, rel_rms

pytestmark = pytest.mark.gpu
CUDA = "cuda"
# Packed sequences whose sum is a multiple of a vector, so that rows stay aligned along time.
ALIGNED = (*LENGTHS, 3)


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    poison()
    yield
    torch.cuda.synchronize()


def check(case: Case, silu: bool, states: bool, kind: str, parameters: str | None = None) -> None:
    """Forward and backward of the kernels against float64, and a second run against the first."""
    activation = "silu" if silu else None
    given = {"cu_seqlens": case.cu_seqlens, "initial_states": case.initial}
    operands = (case.x, case.weight, case.bias, activation)
    width, tokens = case.weight.shape[1], case.x.shape[0] * case.x.shape[2]
    runs = [causal_conv1d(*operands, return_final_states=True, **given) for _ in range(2)]
    leaves = [None if t is None else t.requires_grad_() for t in case.wide()]
    y, final = exact(leaves[0], leaves[1], leaves[2], silu, case.offsets, leaves[3])
    assert torch.equal(runs[0][0], runs[1][0])
    assert rel_rms(runs[0][0], y.detach()) <= tolerance(width, kind)
    assert torch.equal(runs[0][1].double(), final.detach()), "states are copies"
    dy = torch.empty_like(case.x).normal_()
    d_final = torch.empty_like(runs[0][1]).normal_() if states else None
    loss = (y * dy.double()).sum()
    (loss if d_final is None else loss + (final * d_final.double()).sum()).backward()
    poison()
    got, again = (causal_conv1d_backward(dy, *operands, d_final_states=d_final, **given) for _ in range(2))
    sums = sum_tolerance(tokens, width, kind, parameters or kind)
    names = ("dx", "dweight", "dbias", "d_initial_states")
    for name, leaf, bound in zip(
        names, leaves, (tolerance(width, kind), sums, sums, tolerance(width, kind)), strict=True
    ):
        if leaf is not None:
            assert torch.equal(got[name], again[name]), f"{name} differs from run to run"
            assert rel_rms(got[name], leaf.grad) <= bound, name


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("time", [1, 2, 3, 4, 5, 8, 63, 65, 264, 1001, 4096])
def test_batches(time: int, channels_last: bool) -> None:
    """Times shorter than the history, around vectors and unrolled groups, and long enough for many chunks."""
    for batch, channels in ((2, 1024), (1, 257)):
        check(
            make_case(batch, channels, time, 4, "bfloat16", channels_last=channels_last, device=CUDA),
            True,
            False,
            "bfloat16",
        )


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("width", "kind"),
    [
        *((1, "float32"), (2, "bfloat16"), (3, "float16"), (4, "float32"), (4, "float64"), (7, "float64")),
        *((8, "bfloat16"), (9, "bfloat16"), (40, "float32"), (130, "float64")),
    ],
)
def test_packed_sequences_with_states(width: int, kind: str, channels_last: bool) -> None:
    for lengths, initial in ((ALIGNED, True), (LENGTHS, False), ((200, 0, 300), True)):
        case = make_case(
            1,
            256,
            0,
            width,
            kind,
            lengths=lengths,
            initial=initial and width > 1,
            bias=width != 3,
            channels_last=channels_last,
            device=CUDA,
        )
        check(case, width != 2, True, kind)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("states", [False, True])
def test_a_boundary_at_every_position(states: bool, channels_last: bool) -> None:
    """Without states, bits say where sequences start; with them, a cursor does."""
    for first in range(41):
        lengths = (first, 40 - first)
        case = make_case(
            1, 64, 0, 4, "bfloat16", lengths=lengths, initial=states, channels_last=channels_last, device=CUDA
        )
        check(case, True, states, "bfloat16")


@pytest.mark.parametrize(
    ("width", "kind"),
    [
        *((1, "float32"), (2, "bfloat16"), (3, "float16"), (4, "float64"), (5, "bfloat16"), (8, "bfloat16")),
        *((8, "float32"), (9, "bfloat16")),
    ],
)
def test_packed_sequences_without_states(width: int, kind: str) -> None:
    """Along time: many short ones, empty ones, more than a chunk's tokens, and rows that no vector divides."""
    for lengths in (ALIGNED, LENGTHS, (7, 1, 0, 0, 2, 3) * 40, (3000, 1, 1191), (1,) * 64, (64,)):
        check(make_case(1, 96, 0, width, kind, lengths=lengths, device=CUDA), width != 2, False, kind)


@pytest.mark.parametrize("channels_last", [False, True])
def test_float32_parameters_and_padded_rows(channels_last: bool) -> None:
    last = channels_last
    case = make_case(2, 512, 128, 4, "bfloat16", parameters="float32", channels_last=last, device=CUDA)
    check(case, True, False, "bfloat16", "float32")
    for pad in (8, 3):
        case = make_case(2, 512, 128, 4, "bfloat16", pad=pad, initial=True, channels_last=last, device=CUDA)
        check(case, True, True, "bfloat16")


def test_nan_reaches_exactly_what_depends_on_it() -> None:
    for last in (False, True):
        case = make_case(1, 64, 0, 4, "bfloat16", lengths=(24, 40), channels_last=last, device=CUDA)
        case.x[0, 5, 22] = torch.nan
        y = causal_conv1d(case.x, case.weight, case.bias, "silu", cu_seqlens=case.cu_seqlens)
        assert torch.isnan(y).nonzero().tolist() == [[0, 5, 22], [0, 5, 23]]
        dx = causal_conv1d_backward(case.x, case.x, case.weight, case.bias, cu_seqlens=case.cu_seqlens)["dx"]
        assert torch.isnan(dx).nonzero().tolist() == [[0, 5, t] for t in (19, 20, 21, 22)]


def test_states_are_copied_bit_for_bit() -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = bits.reshape(1, -1, 8).to(CUDA)
    _, final = causal_conv1d(x, torch.ones(x.shape[1], 4, device=CUDA).bfloat16(), return_final_states=True)
    assert torch.equal(final.view(torch.int16), x[..., 5:].view(torch.int16))


def test_more_than_2_to_31_elements() -> None:
    x = torch.zeros(1, 2**16 + 64, 2**15, dtype=torch.bfloat16, device=CUDA)
    weight = torch.randn(x.shape[1], 4, device=CUDA).bfloat16()
    for view in (x, x.view(1, x.shape[2], x.shape[1]).transpose(1, 2)):
        part = view[:, -16:, -64:]
        part.copy_(torch.randn(part.shape, device=CUDA))
        taps = weight[: view.shape[1]] if view.shape[1] <= weight.shape[0] else weight
        y = causal_conv1d(view, taps)
        wanted, _ = exact(view[:, -16:, -80:].double(), taps[-16:].double(), None, False)
        assert rel_rms(y[:, -16:, -64:], wanted[..., 16:]) <= tolerance(4, "bfloat16")
        part.zero_()
        del y


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("width", "lanes", "kind", "ring"),
    [
        *((4, 3, "bfloat16", False), (4, 4, "bfloat16", False), (4, 4, "float16", True), (1, 2, "float32", True)),
        *((20, 24, "bfloat16", False), (20, 24, "float64", True)),
    ],
)
def test_decoding_steps(width: int, lanes: int, kind: str, ring: bool, channels_last: bool) -> None:
    dtype = getattr(torch, kind)
    for rows, channels, slots in ((5, 1024, 8), (3, 257, 3)):
        x, weight, bias = (
            torch.randn(shape, device=CUDA).to(dtype) for shape in ((rows, channels), (channels, width), channels)
        )
        shape = (slots, lanes, channels) if channels_last else (slots, channels, lanes)
        state = torch.randn(shape, device=CUDA).to(dtype)
        state = state.transpose(1, 2) if channels_last else state
        slot = torch.randperm(slots, device=CUDA)[:rows].to(torch.int32)
        slot[1] = -1
        seen = torch.arange(rows, dtype=torch.int32, device=CUDA) * 5 + 1 if ring else None
        before, wanted_state = state.clone(), state.clone()
        y = causal_conv1d_update(x, state, weight, bias, "silu", cache_seqlens=seen, conv_state_indices=slot)
        for row in range(rows):
            place = int(slot[row])
            if place < 0:
                assert not y[row].any()
                continue
            held = before[place]
            if ring:
                now = 5 * row + 1
                places = [(now - back) % lanes for back in range(width - 1, 0, -1)]
                history = held[:, places]
                wanted_state[place][:, now % lanes] = x[row]
            else:
                history = held[:, lanes - (width - 1) :]
                wanted_state[place] = torch.cat([held[:, 1:], x[row, :, None]], 1)
            wanted = exact_step(x[row : row + 1].double(), history[None].double(), weight.double(), bias.double(), True)
            assert rel_rms(y[row : row + 1], wanted) <= 2 * tolerance(width, kind)
        assert torch.equal(state, wanted_state)


_TRAPS = {
    "offsets": "o = torch.tensor([0, 9, 5, 64], dtype=torch.int32, device='cuda')\n"
    "causal_conv1d(torch.ones(1, 8, 64, device='cuda'), w, cu_seqlens=o)",
    "slot past the end": "i = torch.tensor([0, 9], dtype=torch.int32, device='cuda')\n"
    "causal_conv1d_update(torch.ones(2, 8, device='cuda'), s, w, conv_state_indices=i)",
    "slot named twice": "i = torch.tensor([1, 1], dtype=torch.int32, device='cuda')\n"
    "causal_conv1d_update(torch.ones(2, 8, device='cuda'), s, w, conv_state_indices=i)",
}


@pytest.mark.parametrize("fault", _TRAPS)
def test_bad_indices_trap(fault: str) -> None:
    """In a process of its own: a trap ends its use of the device."""
    script = (
        "import torch\nfrom cudnn_fe.conv import causal_conv1d, causal_conv1d_update\n"
        "w = torch.ones(8, 4, device='cuda'); s = torch.ones(4, 8, 3, device='cuda')\n"
        f"{_TRAPS[fault]}\n"
        "try:\n    torch.cuda.synchronize()\nexcept Exception as error:\n    print('trapped', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "trapped" in done.stdout, done.stdout + done.stderr


def test_a_graph_replays_with_new_data() -> None:
    case = make_case(2, 256, 64, 4, "bfloat16", device=CUDA, initial=True)
    state = torch.zeros(2, 256, 3, device=CUDA, dtype=torch.bfloat16)
    token = torch.randn(2, 256, device=CUDA).bfloat16()

    def run() -> tuple[Any, ...]:
        y, final = causal_conv1d(
            case.x, case.weight, case.bias, "silu", initial_states=case.initial, return_final_states=True
        )
        state.copy_(final)
        return y, causal_conv1d_update(token, state, case.weight, case.bias, "silu")

    run()  # compile before capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    case.x.normal_()
    token.normal_()
    graph.replay()
    wanted = run()
    for got, value in zip(captured, wanted, strict=True):
        assert torch.equal(got, value)


def test_a_side_stream_orders_the_call() -> None:
    case = make_case(2, 256, 64, 4, "bfloat16", device=CUDA)
    late, stream = torch.randn_like(case.x), torch.cuda.Stream()
    causal_conv1d(case.x, case.weight)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        case.x.copy_(late)
    y = causal_conv1d(case.x, case.weight, stream=stream)
    stream.synchronize()
    assert torch.equal(y, causal_conv1d(late, case.weight))


def test_threads_call_at_once() -> None:
    failures: list[int] = []

    def work(index: int) -> None:
        case = make_case(1, 64, 32 + 8 * index, 4, "bfloat16", device=CUDA, seed=index)
        wanted, _ = exact(case.x.double(), case.weight.double(), case.bias.double(), True)
        if not rel_rms(causal_conv1d(case.x, case.weight, case.bias, "silu"), wanted) <= tolerance(4, "bfloat16"):
            failures.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_new_length_compiles_nothing() -> None:
    def run(batch: int, time: int) -> None:
        case = make_case(batch, 1024, time, 4, "bfloat16", channels_last=True, device=CUDA)
        case.x.requires_grad_()
        causal_conv1d(case.x, case.weight, case.bias, "silu").sum().backward()

    run(1, 512)
    before = compile_counts.compiled + compile_counts.loaded
    for batch, time in ((1, 1000), (3, 77), (8, 512), (1, 2)):
        run(batch, time)
    assert compile_counts.compiled + compile_counts.loaded == before


def test_no_synchronisation() -> None:
    case = make_case(1, 64, 0, 4, "bfloat16", lengths=ALIGNED, initial=True, device=CUDA)
    x = case.x.requires_grad_()

    def run() -> None:
        y, _ = causal_conv1d(
            x,
            case.weight,
            None,
            "silu",
            cu_seqlens=case.cu_seqlens,
            initial_states=case.initial,
            return_final_states=True,
        )
        y.sum().backward()

    run()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_torch_compile_equals_eager() -> None:
    case = make_case(2, 64, 128, 4, "bfloat16", initial=True, device=CUDA)

    def layer(x: Any) -> Any:
        y, final = causal_conv1d(
            x, case.weight, case.bias, "silu", initial_states=case.initial, return_final_states=True
        )
        return y.float().sum() + final.float().square().sum()

    grads = []
    for function in (layer, torch.compile(layer, fullgraph=True)):
        x = case.x.detach().clone().requires_grad_()
        function(x).backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_jax_on_the_gpu() -> None:
    import numpy as np

    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no CUDA backend")
    case = make_case(1, 64, 0, 4, lengths=ALIGNED, initial=True)
    x, weight, initial = (jax.numpy.asarray(t.numpy()) for t in (case.x, case.weight, case.initial))
    offsets = jax.numpy.asarray(case.cu_seqlens.numpy())

    @jax.jit
    def loss(x: Any, initial: Any) -> Any:
        y, final = causal_conv1d(
            x, weight, None, "silu", cu_seqlens=offsets, initial_states=initial, return_final_states=True
        )
        return jax.numpy.sin(y).sum() + (final**2).sum()

    got = jax.grad(loss, argnums=(0, 1))(x, initial)
    leaves = [case.x.double().requires_grad_(), case.initial.double().requires_grad_()]
    y, final = exact(leaves[0], case.weight.double(), None, True, case.offsets, leaves[1])
    (y.sin().sum() + final.square().sum()).backward()
    for mine, leaf in zip(got, leaves, strict=True):
        assert leaf.grad is not None
        assert rel_rms(torch.from_numpy(np.asarray(mine).copy()), leaf.grad) <= 4 * tolerance(4, "float32")
