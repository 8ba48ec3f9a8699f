"""From the samples of a block-scaled class to its problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.op import Op
from cudnn_fe.core.require import require_one_of
from cudnn_fe.grouped.class_forms import Bound, Samples, bound
from cudnn_fe.grouped.scaled.arguments import EPILOGUES, check_common
from cudnn_fe.grouped.scaled.calls import BACKWARD_KEYS

__all__ = [
    "BACKWARD_INPUTS",
    "FORWARD_INPUTS",
    "FORWARD_OUTPUTS",
    "SCALED_LAYOUT",
    "bind_backward",
    "bind_forward",
    "has_scales",
]

SCALED_LAYOUT = {"canonical_n": True, "kernel_n": True}
FORWARD_INPUTS = (
    "a_tensor",
    "b_tensor",
    "sfa_tensor",
    "sfb_tensor",
    "padded_offsets",
    "alpha_tensor",
    "prob_tensor",
    "norm_const_tensor",
    "bias_tensor",
    "b_ptrs",
    "sfb_ptrs",
)
BACKWARD_INPUTS = (
    "a_tensor",
    "c_tensor",
    "b_tensor",
    "sfa_tensor",
    "sfb_tensor",
    "padded_offsets",
    "alpha_tensor",
    "beta_tensor",
    "prob_tensor",
    "norm_const_tensor",
    "b_ptrs",
    "sfb_ptrs",
)
FORWARD_OUTPUTS = ("c_tensor", "d_tensor", "d_col_tensor", "amax_tensor", "sfd_row_tensor", "sfd_col_tensor")


def has_scales(samples: Samples, *buffers: str) -> bool:
    """Whether the result has scales: all of their buffers and norm_const have samples, or none has."""
    names = ("norm_const_tensor", *buffers)
    there = [name for name in names if samples.specs.get(name) is not None]
    if there and len(there) < len(names):
        raise OptionError(
            ", ".join(names), got=f"{', '.join(there)} alone", wanted="all or none", remedy="pass the others too"
        )
    return bool(there)


def bind_forward(
    op: Op,
    given: Mapping[str, Any],
    epilogue: str,
    numbers: tuple[float, ...] = (),
    *,
    with_c: bool = True,
    override: Any = None,
) -> Bound:
    """The problem of a class that goes forward."""
    check_common(
        given["acc_dtype"],
        "n",
        given["m_aligned"],
        given["mma_tiler_mn"],
        given["cluster_shape_mn"],
        override,
    )
    s = Samples(given, **SCALED_LAYOUT)
    quantised = has_scales(s, "sfd_row_tensor", "sfd_col_tensor")
    keep_amax = s.specs.get("amax_tensor") is not None
    options = {
        "epilogue": epilogue,
        "c_dtype": s.dtype("c_tensor") if with_c else None,
        "d_dtype": s.dtype("d_tensor"),
        "sf_vec_size": given["sf_vec_size"],
        "quantised": quantised,
        "expert_columns": given["discrete_col_sfd"],
        "keep_amax": keep_amax,
        "single_group": given.get("use_single_group_runtime_offsets", False),
        "tanh_clamp_scale": given.get("tanh_clamp_scale"),
    }
    wanted = dict(zip(FORWARD_OUTPUTS, (with_c, True, quantised, keep_amax, quantised, quantised), strict=True))
    return bound(op, s, options, wanted, numbers)


def bind_backward(
    op: Op, given: Mapping[str, Any], epilogue: str, numbers: tuple[float, ...] = (), *, override: Any = None
) -> Bound:
    """The problem of a class that goes backward."""
    check_common(
        given["acc_dtype"],
        "n",
        given["m_aligned"],
        given["mma_tiler_mn"],
        given["cluster_shape_mn"],
        override,
    )
    require_one_of(given.get("epilogue_op"), "epilogue_op", EPILOGUES)
    s = Samples(given, **SCALED_LAYOUT)
    plain = epilogue == "srelu"
    again = "sfd_col_d_srelu_tensor"
    quantised = has_scales(s, "sfd_row_tensor", "sfd_col_tensor", *((again,) if plain else ()))
    kind = dtype(s.dtype("d_row_tensor"))
    if kind.is_fp8 and not quantised:
        raise OptionError(
            "sfd_row_tensor, sfd_col_tensor, norm_const_tensor",
            got="none",
            wanted=f"samples of scales for a {kind} result",
            remedy="pass them",
        )
    quantised = kind.is_fp8  # with other results scales are documented to be ignored
    there = {name: s.specs.get(name) is not None for name in BACKWARD_KEYS}
    there |= {name: quantised for name in BACKWARD_KEYS if name.startswith("sfd") and (plain or "srelu" not in name)}
    there |= {"d_row_tensor": True, "d_srelu_tensor": plain, "d_col_tensor": quantised}
    options = {
        "epilogue": epilogue,
        "d_dtype": kind.name,
        "generate_dbias": there["dbias_tensor"],
        "sf_vec_size": given["sf_vec_size"],
        "quantised": quantised,
        "expert_columns": given["discrete_col_sfd"],
        "keep_amax": there["amax_tensor"],
        "single_group": given.get("use_single_group_runtime_offsets", False),
        "tanh_clamp_scale": given.get("tanh_clamp_scale"),
    }
    return bound(op, s, options, there, numbers)
