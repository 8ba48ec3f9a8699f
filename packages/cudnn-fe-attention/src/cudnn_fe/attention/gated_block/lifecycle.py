"""What both classes of the gated attention block share."""

from __future__ import annotations

from typing import Any

from cudnn_fe.attention.gated_block.declarations import MxQuantSpec, QuantSpec
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import NotCompiledError, OptionError, OptionTypeError, ShapeError
from cudnn_fe.core.experimental import announce_experimental
from cudnn_fe.core.tensor import TensorSpec

__all__ = [
    "Block",
    "check_packing",
    "check_sample",
    "lengths_spec",
]


def lengths_spec(form: str | None, count: int, device: str) -> TensorSpec:
    """Lengths of ``count`` sequences as a call gets them."""
    rows = count + (form == "prefix")
    return TensorSpec((rows,), (1,), dtype("int32"), device, 16, "seq_lens")


def check_packing(tokens: int, num_sequences: int | None, max_seq_len: int | None) -> None:
    """Raises OptionError unless so many sequences of such lengths may fill the tokens."""
    for name, value, least in (("num_sequences", num_sequences, 1), ("max_seq_len", max_seq_len, 2)):
        if not isinstance(value, int) or value < least:
            raise OptionError(name, got=repr(value), wanted=f"an int of at least {least} with thd", remedy="pass it")
    assert num_sequences is not None
    assert max_seq_len is not None
    if max_seq_len > tokens or num_sequences * max_seq_len < tokens:
        raise OptionError(
            "max_seq_len",
            got=f"{max_seq_len} of {num_sequences} sequences",
            wanted=f"at most {tokens} tokens, and enough for all of them",
            remedy="pass the longest sequence",
        )


class Block:
    """Lifecycle that both classes share."""

    def __init__(self) -> None:
        announce_experimental(type(self).__name__)
        self._supported = self._compiled = False

    def check_support(self) -> bool:
        """Validate the samples; launches nothing.

        Returns:
            True.
        """
        if not self._supported:
            self._validate()
            self._supported = True
        return True

    def _validate(self) -> None:
        raise NotImplementedError

    def compile(self) -> None:
        """Make the block ready; the second call does nothing."""
        self.check_support()
        self._compiled = True

    _workspace, _lse = 0, False

    def _require_lse(self, lse: Any) -> None:
        """Raises OptionError unless there is a buffer exactly where ``return_lse`` declared one."""
        if (lse is not None) != self._lse:
            raise OptionError("lse", got="the opposite", wanted="what return_lse declared", remedy="declare it")

    def get_workspace_size(self) -> int:
        """Bytes of the workspace that ``execute`` takes.

        Raises:
            NotCompiledError: Before ``compile``.
        """
        self._require_compiled()
        return self._workspace

    def _require_compiled(self) -> None:
        if not self._compiled:
            name = type(self).__name__
            raise NotCompiledError(name, got="a call before compile", wanted="a block", remedy=f"call {name}.compile()")

    _quant: QuantSpec | MxQuantSpec | None = None

    def update_quant_scales(self, spec: Any, *, current_stream: Any = None) -> None:
        """Change the factors of a quantised block; later calls use them.

        Raises:
            OptionError: The block is not quantised, or the new factors are of other types.
            OptionTypeError: They are of another kind.
            NotCompiledError: Before ``compile``.
        """
        del current_stream
        if self._quant is None:
            raise OptionError(
                "spec", got=type(spec).__qualname__, wanted="a quantised block", remedy="make one with quant"
            )
        if type(spec) is not type(self._quant):
            wanted = type(self._quant).__qualname__
            raise OptionTypeError("spec", got=type(spec).__qualname__, wanted=wanted, remedy="keep its kind")
        self._require_compiled()
        for name in ("dtype", "block_size", "w_qkvg_dtype", "o_fp4"):
            if getattr(spec, name, None) != getattr(self._quant, name, None):
                wanted = repr(getattr(self._quant, name, None))
                raise OptionError(name, got=repr(getattr(spec, name, None)), wanted=wanted, remedy="make another block")
        self._quant = spec


def check_sample(found: TensorSpec, spec: TensorSpec) -> None:
    """Raises ShapeError unless a tensor is like its sample."""
    if (found.shape, found.dtype, found.device) != (spec.shape, spec.dtype, spec.device):
        raise ShapeError(
            spec.name,
            got=f"{found.shape} {found.dtype} on {found.device}",
            wanted=f"{spec.shape} {spec.dtype} on {spec.device}, as the sample",
            remedy="make another block",
        )
