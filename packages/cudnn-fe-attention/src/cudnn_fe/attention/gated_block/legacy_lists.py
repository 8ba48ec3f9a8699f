"""What the forward class does for block-sparse attention, with the parameters of cudnn-frontend 1.32."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from cudnn_fe.attention.gated_block.declarations import MxQuantSpec, QuantSpec
from cudnn_fe.attention.gated_block.geometry import GatedAttentionBlockGeometry
from cudnn_fe.attention.gated_block.lifecycle import Block
from cudnn_fe.attention.gated_block.op import frozen
from cudnn_fe.attention.gated_block.sparse import sparse_forward
from cudnn_fe.attention.gated_block.sparse_op import SPARSE
from cudnn_fe.attention.operands import check_samples, compact, deliver
from cudnn_fe.core.choose import choose
from cudnn_fe.core.dtypes import dtype as dtype_of
from cudnn_fe.core.errors import NotYetSupportedError, OptionError
from cudnn_fe.core.tensor import TensorSpec, spec_of

__all__ = ["LISTS", "ListForms"]

LISTS = (
    *("block_ids", "block_lens", "w_iq_norm", "w_ik_norm"),
    *("index_k_compressed", "block_ids_out", "block_lens_out"),
)


class ListForms(Block):
    """A forward class that may be of a sparse block."""

    geometry: GatedAttentionBlockGeometry
    _specs: list[TensorSpec | None]
    _out: TensorSpec
    _form: str | None
    _lse: bool
    _training: bool
    _quant: QuantSpec | MxQuantSpec | None

    def _validate_sparse(self, h: TensorSpec, lengths: TensorSpec | None) -> None:
        g, tokens = self.geometry, h.size // max(self.geometry.d_model, 1)
        shape = frozen(g, sparse=True)
        for name, given in (("save_for_backward", self._training), ("quant", self._quant is not None)):
            if given:
                wanted = "a bfloat16 or float16 forward beside qsa"
                raise NotYetSupportedError(name, got="a value", wanted=wanted, remedy="leave it out")
        assert g.qsa is not None
        lists: tuple[TensorSpec | None, ...] = (None, None, None, None)
        if g.qsa.index_source == "caller":
            lists = (compact("block_ids", (tokens, g.qsa.top_k), dtype_of("int32"), h.device), None, None, None)
        else:
            norms = (compact(n, (g.qsa.index_head_dim,), h.dtype, h.device) for n in ("w_iq_norm", "w_ik_norm"))
            lists = (None, None, *norms)
        problem = SPARSE.bind(*self._specs, lengths, *lists, shape=shape, form=self._form)
        choose(SPARSE, problem)
        check_samples(problem, (self._out, *[None] * (len(problem.outputs) - 1)))
        if g.index_band:
            self._workspace = -(-tokens * g.qsa.index_head_dim * h.dtype.itemsize // 256) * 256

    def index_k_raw(self, workspace: Any) -> Any:
        """The indexer's keys as they were projected by the latest ``execute`` with that workspace, a view of it.

        Args:
            workspace: The uint8 buffer that it got.

        Returns:
            (T, 1, index_head_dim), of the dtype of h.

        Raises:
            OptionError: The geometry has no indexer's columns, or the workspace is too small.
        """
        self._require_compiled()
        h, qsa = self._specs[0], self.geometry.qsa
        if qsa is None or not self.geometry.index_band:
            raise OptionError("index_k_raw", got="a call", wanted="an indexer's columns", remedy="declare a QsaSpec")
        assert h is not None
        spec = None if workspace is None else spec_of(workspace, "workspace")
        if spec is None or spec.dtype.name != "uint8" or spec.shape[0] < self._workspace:
            wanted = f"uint8 of {self._workspace} bytes or more"
            raise OptionError("workspace", got=str(spec), wanted=wanted, remedy="allocate get_workspace_size() bytes")
        tokens = h.size // self.geometry.d_model
        used = workspace[: tokens * qsa.index_head_dim * h.dtype.itemsize]
        kind = getattr(array_namespace(workspace), h.dtype.name, None) or h.dtype.name
        return used.view(kind).reshape(tokens, 1, qsa.index_head_dim)

    def _execute_lists(
        self,
        operands: tuple[Any, ...],
        seq_lens: Any,
        lists: tuple[Any, ...],
        buffers: tuple[Any, ...],
        workspace: Any,
        stream: Any,
    ) -> None:
        self._require_lse(buffers[1])
        raw = self.index_k_raw(workspace) if self.geometry.index_band else None
        results = sparse_forward((*operands, seq_lens, *lists), self.geometry, self._form, stream=stream)
        if raw is not None:
            deliver((results["index_k_raw"][:, None],), (raw,), ("workspace",), stream=stream)
        self._deliver_lists(results, buffers, "None without an indexer", stream)

    @staticmethod
    def _deliver_lists(results: Any, buffers: tuple[Any, ...], absent: str, stream: Any) -> None:
        """Fills the buffers that there are; ``absent`` says what a buffer of a result that is not there should be."""
        for name, buffer in zip(("out", "lse", *LISTS[4:]), buffers, strict=True):
            if buffer is None:
                continue
            if results[name] is None:
                raise OptionError(name, got="a tensor", wanted=absent, remedy="leave it out")
            room = buffer[:, : results[name].shape[1]] if name == "index_k_compressed" else buffer
            value = results[name].reshape(tuple(room.shape)) if name.startswith("block") else results[name]
            deliver((value,), (room,), (name,), stream=stream)
