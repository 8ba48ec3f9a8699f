"""From the documented arguments of block-scaled functions to a call, and back to results in the documented forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.block_scale import atom_view
from cudnn_fe.core.call import call
from cudnn_fe.core.codecs import packed_pairs
from cudnn_fe.core.dtypes import DType
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.op import Op
from cudnn_fe.core.streams import torch_stream
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.device_values import check_device_values
from cudnn_fe.grouped.forms import Buffers, all_or_none, as_flat, as_rows, as_vector, in_form
from cudnn_fe.grouped.scaled.arguments import Rows, Weights, one_element, require_given, wants_amax

__all__ = [
    "BACKWARD_KEYS",
    "filled",
    "forward_operands",
    "forward_options",
    "in_forms",
    "only",
    "run_backward",
    "run_forward",
]

BACKWARD_KEYS = (
    "d_row_tensor",
    "d_col_tensor",
    "d_srelu_tensor",
    "dprob_tensor",
    "dbias_tensor",
    "amax_tensor",
    "sfd_row_tensor",
    "sfd_col_tensor",
    "sfd_col_d_srelu_tensor",
)
Options = tuple[tuple[str, Any], ...]


def forward_operands(rows: Rows, weights: Weights, *, quantised: bool = False) -> tuple[tuple[Any, ...], Options]:
    """The operands of `ScaledForward` in its forms, and the options of weights behind addresses."""
    if rows.sfa is None:
        raise OptionError("sfa_tensor", got="None", wanted="the scale factors of a_tensor", remedy="pass them")
    flat = packed_pairs(as_rows(rows.a, "a_tensor"))
    b, sfb, form = weights.operands(rows.a)
    check_device_values(rows.offsets, flat.shape[0], weights.b_ptrs, weights.sfb_ptrs)
    operands = (
        flat,
        b,
        as_flat(rows.sfa, "sfa_tensor"),
        sfb,
        rows.offsets,
        rows.alpha,
        as_vector(rows.prob, "prob_tensor"),
        one_element(rows.norm_const) if quantised else None,
        rows.bias,
        as_vector(rows.row_scale, "row_scale_tensor"),
    )
    return operands, form


def forward_options(epilogue: str, c_dtype: Any, d_dtype: DType, sf_vec_size: int, **more: Any) -> Options:
    """The options of `ScaledForward`; ``more`` are those that are not at their defaults."""
    plain = {
        "quantised": False,
        "expert_columns": False,
        "keep_amax": True,
        "single_group": False,
        "tanh_clamp_scale": None,
    }
    first = {"epilogue": epilogue, "c_dtype": c_dtype, "d_dtype": d_dtype.name, "sf_vec_size": sf_vec_size}
    return tuple((first | plain | more).items())


def run_forward(
    op: Op,
    rows: Rows,
    weights: Weights,
    *,
    epilogue: str,
    c_dtype: Any,
    d_dtype: DType,
    quantised: bool,
    keep_amax: bool,
    sf_vec_size: int,
    expert_columns: bool,
    single_group: bool = False,
    tanh_clamp_scale: float | None = None,
    numbers: tuple[float, ...] = (),
    stream: Any = None,
    outs: Mapping[str, Any] | None = None,
    backend: str | None = None,
) -> TupleDict:
    """Call a block-scaled op that goes forward: ``c_tensor`` first, then D and what belongs to it."""
    operands, form = forward_operands(rows, weights, quantised=quantised)
    options = forward_options(
        epilogue,
        c_dtype,
        d_dtype,
        sf_vec_size,
        quantised=quantised,
        expert_columns=expert_columns,
        keep_amax=keep_amax,
        single_group=single_group,
        tanh_clamp_scale=tanh_clamp_scale,
    )
    keys = ("c_tensor", "d_tensor", "d_col_tensor", "amax_tensor", "sfd_row_tensor", "sfd_col_tensor")
    there = dict(zip(keys, (c_dtype is not None, True, quantised, keep_amax, quantised, quantised), strict=True))
    buffers = Buffers(outs, *(key if there[key] else "" for key in keys))
    options += (*form, ("zero_tail", buffers.rows is None))
    results = call(op, operands, options, numbers, backend=backend, stream=stream, outs=buffers.rows)
    return buffers.results(**in_forms(rows.a, dict(zip(keys, results, strict=True)), there))


def run_backward(
    op: Op,
    rows: Rows,
    c: Any,
    beta: Any,
    weights: Weights,
    *,
    epilogue: str,
    d_dtype: DType,
    generate_dbias: bool = False,
    sf_vec_size: int,
    expert_columns: bool,
    single_group: bool = False,
    tanh_clamp_scale: float | None = None,
    numbers: tuple[float, ...] = (),
    dprob: Any = None,
    keep_dprob: bool = True,
    amax: Any = None,
    stream: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """Call a block-scaled op that goes backward; the keys are those of `BACKWARD_KEYS`.

    ``dprob`` and ``amax`` are buffers that the results are added to and compared with, or None.
    """
    require_given(sfa_tensor=rows.sfa, c_tensor=c)
    flat = packed_pairs(as_rows(rows.a, "a_tensor"))
    b, sfb, form = weights.operands(rows.a)
    check_device_values(rows.offsets, flat.shape[0], weights.b_ptrs, weights.sfb_ptrs)
    quantised, keep_amax = d_dtype.is_fp8, wants_amax(d_dtype)
    operands = (
        flat,
        as_rows(c, "c_tensor"),
        b,
        as_flat(rows.sfa, "sfa_tensor"),
        sfb,
        rows.offsets,
        rows.alpha,
        beta,
        as_vector(rows.prob, "prob_tensor"),
        one_element(rows.norm_const) if quantised else None,
    )
    options = (
        ("epilogue", epilogue),
        ("d_dtype", d_dtype.name),
        ("generate_dbias", generate_dbias),
        ("sf_vec_size", sf_vec_size),
        ("quantised", quantised),
        ("expert_columns", expert_columns),
        ("keep_amax", keep_amax),
        ("single_group", single_group),
        ("tanh_clamp_scale", tanh_clamp_scale),
        *form,
    )
    plain = epilogue == "srelu"
    there = (True, quantised, plain, keep_dprob, generate_dbias, keep_amax, quantised, quantised, plain and quantised)
    outs = all_or_none(None, None, None, as_vector(dprob, "dprob_tensor"), None, amax, None, None, None)
    results = call(op, operands, options, numbers, backend=backend, stream=stream, outs=outs)
    found = dict(zip(BACKWARD_KEYS, results, strict=True))
    formed = in_forms(rows.a, found, dict(zip(BACKWARD_KEYS, there, strict=True)))
    if dprob is not None:
        formed["dprob_tensor"] = dprob
    elif keep_dprob:
        rank = rows.prob.ndim if rows.prob is not None else 3 if rows.a.ndim == 3 else 1
        formed["dprob_tensor"] = in_form(found["dprob_tensor"], rank)
    return TupleDict(**formed)


def filled(name: str, buffer: Any, value: float, stream: Any) -> Any:
    """A caller's buffer, filled on the launch stream; None stays None. Raises OptionError for a JAX array."""
    if buffer is None:
        return None
    if framework_of(buffer) == "jax":
        raise OptionError(name, got="a buffer", wanted="None: JAX arrays do not change", remedy="use the results")
    if stream is not None and getattr(buffer, "is_cuda", False):
        import torch  # buffer is its

        with torch.cuda.stream(torch_stream(stream, buffer.get_device())):
            buffer.fill_(value)
        return buffer
    buffer[...] = value
    return buffer


def only(results: TupleDict, *keys: str) -> TupleDict:
    """Some of the results, in this order."""
    return TupleDict(**{key: results[key] for key in keys})


_AS_THEY_ARE = ("dbias_tensor", "dprob_tensor", "rht_colwise_tensor")


def in_forms(a: Any, results: Mapping[str, Any], there: Mapping[str, bool]) -> dict[str, Any]:
    """Results in the form of A: unit dims of rows, the view of packed scales; None where they are not wanted."""
    atoms = a.ndim == 3 and framework_of(a) != "jax"

    def formed(key: str, x: Any) -> Any:
        if key.startswith("sf"):
            return atom_view(x) if atoms and x.ndim == 6 else x
        return x if "amax" in key or key in _AS_THEY_ARE else in_form(x, a.ndim)

    return {key: formed(key, x) if there[key] else None for key, x in results.items()}
