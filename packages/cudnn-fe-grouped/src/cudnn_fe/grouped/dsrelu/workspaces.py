"""Workspaces of the vendor's reproducible sums, and their reductions: what its class offers as static methods.

The ops here add in a fixed order and take no workspaces; code that owns some can still reduce them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.codecs.bits import namespace_of
from cudnn_fe.core.hints import pair_of
from cudnn_fe.core.streams import torch_stream

__all__ = ["METHODS"]

_ROWS = 128  # of a block of the bias gradient's partial sums


def dprob_workspace_shape(
    valid_m: int, n: int, mma_tiler_mn: tuple[int, int] = (256, 256), cluster_shape_mn: tuple[int, int] | None = None
) -> tuple[int, int, int]:
    """One float32 slot for each row and tile of columns."""
    columns = pair_of(mma_tiler_mn, "mma_tiler_mn")[1]
    cluster = 1 if cluster_shape_mn is None else pair_of(cluster_shape_mn, "cluster_shape_mn")[1]
    return valid_m, -(-n // (columns * cluster)) * cluster, 1


def dbias_workspace_shape(valid_m: int, n: int, mma_tiler_mn: tuple[int, int] = (256, 256)) -> tuple[int, int, int]:
    """One bfloat16 slot for each 128 rows and column."""
    pair_of(mma_tiler_mn, "mma_tiler_mn")
    return -(-valid_m // _ROWS), n, 1


def reduce_dprob_workspace(dprob_workspace: Any, dprob_tensor: Any = None, current_stream: Any = None) -> Any:
    """The sum over the slots, (M, 1, 1), added to ``dprob_tensor`` if that is given."""
    with _on(current_stream, dprob_workspace):
        xp = namespace_of(dprob_workspace, operand="dprob_workspace")
        return _added(xp.sum(dprob_workspace, axis=1, keepdims=True), dprob_tensor)


def reduce_dbias_workspace(
    dbias_workspace: Any,
    padded_offsets: Any,
    dbias_tensor: Any = None,
    mma_tiler_mn: tuple[int, int] = (256, 256),
    current_stream: Any = None,
) -> Any:
    """Each expert's sum over its blocks, (L, N, 1) bfloat16, added to ``dbias_tensor`` if that is given."""
    pair_of(mma_tiler_mn, "mma_tiler_mn")
    with _on(current_stream, dbias_workspace):
        xp = namespace_of(dbias_workspace, operand="dbias_workspace")
        place = {"device": dbias_workspace.device} if "torch" in xp.__name__ else {}
        first = xp.arange(dbias_workspace.shape[0], dtype=xp.int32, **place) * _ROWS
        begins = xp.concat((padded_offsets[:1] * 0, padded_offsets[:-1]))
        own = (first[None] >= begins[:, None]) & (first[None] < padded_offsets[:, None])
        total = xp.matmul(astype(own, "float32"), astype(dbias_workspace[..., 0], "float32"))
        return _added(astype(total, "bfloat16")[..., None], dbias_tensor)


def _added(total: Any, buffer: Any) -> Any:
    if buffer is None:
        return total
    buffer += total
    return buffer


def _on(stream: Any, tensor: Any) -> AbstractContextManager[Any]:
    if stream is None or not getattr(tensor, "is_cuda", False):
        return nullcontext()
    import torch  # tensor is its

    launch: AbstractContextManager[Any] = torch.cuda.stream(torch_stream(stream, tensor.get_device()))
    return launch


METHODS = {
    function.__name__: staticmethod(function)
    for function in (
        dprob_workspace_shape,
        dbias_workspace_shape,
        reduce_dprob_workspace,
        reduce_dbias_workspace,
    )
}
"""The static methods, by name."""
