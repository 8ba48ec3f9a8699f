"""Prepared calls: a wrapper's metadata and options frozen, then run on other tensors of any M."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.tensor import TensorSpec, spec_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.forms import is_narrow
from cudnn_fe.grouped.glu import grouped_gemm_glu_forward
from cudnn_fe.grouped.quant import grouped_gemm_quant_forward

__all__ = ["PreparedGroupedGemm", "prepare_grouped_gemm"]

_OF_ROWS = frozenset({"a_tensor", "prob_tensor", "row_scale_tensor", "sfa_tensor", "d_tensor"})
_REUSED = ("d_tensor", "sfd_row_tensor")


class PreparedGroupedGemm:
    """A grouped GEMM whose options and metadata, but for M, are fixed; see `prepare_grouped_gemm`."""

    def __init__(self, function: Callable[..., TupleDict], given: Mapping[str, Any], *, reuse: bool) -> None:
        self._function, self._reuse = function, reuse
        self._kept: tuple[int, dict[str, Any]] = (-1, {})
        self._samples = {name: spec_of(x, name) for name, x in given.items() if hasattr(x, "shape")}
        self._options = {name: value for name, value in given.items() if name not in self._samples}

    def check_call(self, **kwargs: Any) -> None:
        """Raises OptionError unless a call's tensors and options are those prepared for, but for M."""
        for name, value in kwargs.items():
            sample = self._samples.get(name)
            if sample is None:
                same = self._options.get(name) == value
            else:
                same = value is not None and _but_for_rows(spec_of(value, name)) == _but_for_rows(sample)
            if not same:
                raise OptionError(
                    name, got=type(value).__name__, wanted="what the call was prepared with", remedy="prepare another"
                )
        missing = sorted(self._samples.keys() - kwargs.keys() - {"d_tensor"})
        if missing:
            raise OptionError(", ".join(missing), got="nothing", wanted="tensors", remedy="pass every prepared tensor")

    def run(self, *, check: bool = True, outputs: Mapping[str, Any] | None = None, **kwargs: Any) -> TupleDict:
        """Run on these tensors.

        Args:
            check: Whether to compare them with those prepared for.
            outputs: Buffers by result key; they are written to and returned.
            **kwargs: The wrapper's tensors; options that are given must be those prepared for.

        Returns:
            As the function that was prepared.
        """
        if check:
            self.check_call(**kwargs)
        m = kwargs["a_tensor"].shape[0]
        reused = self._kept[1] if self._kept[0] == m else {}
        results = self._function(**{**self._options, **kwargs}, outs={**reused, **(outputs or {})} or None)
        if self._reuse:
            self._kept = m, {key: results[key] for key in _REUSED}
        return results


def _but_for_rows(spec: TensorSpec) -> tuple[Any, ...]:
    if spec.name == "sfa_tensor":
        return (spec.dtype, spec.device)  # its count follows from M, and is checked with it
    shape = spec.shape[1:] if spec.name in _OF_ROWS else spec.shape
    return shape, spec.ndim, spec.dtype, spec.device


def prepare_grouped_gemm(kind: str, *, reuse_row_outputs: bool = False, **kwargs: Any) -> PreparedGroupedGemm:
    """Freeze a call's metadata and options; launches nothing.

    Args:
        kind: ``"glu"`` for `grouped_gemm_glu_forward`, ``"quant"`` for `grouped_gemm_quant_forward`.
        reuse_row_outputs: Whether runs of the same M share the storage of D and its row scales; ``"glu"`` of an FP8 D
            alone.
        **kwargs: The function's arguments: canonical dense operands, k-major.

    Returns:
        An object whose ``run`` takes tensors of any M.

    Raises:
        OptionError: An unknown kind, or operands in another form.

    Example:
        >>> import numpy as np
        >>> x = {"a_tensor": np.ones((4, 8), np.float32), "padded_offsets": np.array([4], np.int32),
        ...      "alpha_tensor": np.ones(1, np.float32), "b_tensor": np.ones((1, 64, 8), np.float32),
        ...      "prob_tensor": np.ones(4, np.float32)}
        >>> plan = prepare_grouped_gemm("glu", sfa_tensor=None, **x)
        >>> plan.run(**x)["d_tensor"].shape
        (4, 32)
    """
    functions: dict[str, Callable[..., TupleDict]] = {
        "glu": grouped_gemm_glu_forward,
        "quant": grouped_gemm_quant_forward,
    }
    if kind not in functions:
        raise OptionError("kind", got=repr(kind), wanted='"glu" or "quant"', remedy="choose one")
    if kwargs.get("b_ptrs") is not None or kwargs.get("b_major", "k") != "k" or kwargs.get("cd_major", "n") != "n":
        raise OptionError(
            "b_ptrs, b_major, cd_major", got="other values", wanted='None, "k" and "n"', remedy="leave them out"
        )
    a, b = kwargs.get("a_tensor"), kwargs.get("b_tensor")
    if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 3 or 0 in a.shape:
        raise OptionError(
            "a_tensor, b_tensor", got="another form", wanted="rows (M, K), M > 0, and (L, N, K)", remedy="pass both"
        )
    scaled_glu = kind == "glu" and is_narrow(a, "a_tensor")
    if reuse_row_outputs and not (scaled_glu and dtype(kwargs.get("d_dtype") or "bfloat16").is_fp8):
        raise OptionError(
            "reuse_row_outputs", got="True", wanted='False without "glu" of an FP8 D', remedy="leave it out"
        )
    if kind == "quant" and kwargs.get("norm_const_tensor") is not None:
        kwargs = {**kwargs, "norm_const_tensor": None}  # documented: a prepared D has no scales
    return PreparedGroupedGemm(functions[kind], kwargs, reuse=reuse_row_outputs)
