"""The optional tuner of the dense GEMMs: times every tile on the caller's shape and stores the fastest."""

from __future__ import annotations

from typing import Any, Literal

from cudnn_fe.core.call import Options, bind_operands
from cudnn_fe.core.choose import choose
from cudnn_fe.core.compile import compiled
from cudnn_fe.core.device import device
from cudnn_fe.core.errors import BackendError
from cudnn_fe.core.gemm_spec import GemmSpec, GemmTile
from cudnn_fe.core.op import Op
from cudnn_fe.core.tuning import tune
from cudnn_fe.gemm.kernels import sm90_candidates, tuning_key

__all__ = ["tune_tile"]

_ROUNDS = 11


def tune_tile(op: Op, operands: tuple[Any, ...], options: Options, epilogue: Literal["identity", "swiglu"]) -> GemmTile:
    """Time each tile of the Hopper kernel on ``operands`` and store the fastest for later calls of that shape.

    Every candidate is compiled, a few seconds each. Other processes use the choice from their next start on.

    Args:
        op: `cudnn_fe.gemm.swiglu.op.FORWARD` or `cudnn_fe.gemm.matmul.op.MATMUL`.
        operands: CUDA tensors (torch), as the calls will have them.
        options: The call's options as pairs.
        epilogue: The op's epilogue, ``"swiglu"`` or ``"identity"``.

    Returns:
        The fastest tile.

    Raises:
        BackendError: The Hopper kernel does not serve the call.
    """
    import torch

    from cudnn_fe.core.torch import torch_op

    problem = bind_operands(op, operands, dict(options))
    choice = choose(op, problem, "sm90")
    if choice.kernel is None:
        raise BackendError(op.name, got="an empty problem", wanted="work to time", remedy="tune on a real shape")
    kernel, where = choice.kernel, device(problem.device)
    outputs = [
        torch.empty_strided(s.shape, s.strides, dtype=getattr(torch, s.dtype.torch), device=problem.device)
        for s in problem.outputs
    ]

    def seconds(spec: GemmSpec) -> float:
        function = compiled(kernel.module, spec, where.arch)
        times: list[float] = []
        for _ in range(_ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(1_000_000)  # the launch waits behind it, so that the host's time does not count
            begin.record()
            function(*operands, *outputs, *(1.0 for _ in op.scalars))
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return sorted(times)[_ROUNDS // 2]

    specs = {spec.tile: spec for spec in sm90_candidates(problem, where, epilogue)}
    best, _ = tune(tuning_key(problem, where, epilogue), [t for t in specs if t], lambda tile: seconds(specs[tile]))
    torch_op(op).forget_plans()
    return best
