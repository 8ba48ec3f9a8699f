"""The classes of the grouped GEMMs with a Hadamard transform: tables, from which they are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.legacy import LegacyClass, make_class
from cudnn_fe.core.require import require_one_of
from cudnn_fe.grouped.class_forms import FREE, Bound, Mode, Samples, arrange, bound
from cudnn_fe.grouped.glu_hadamard import activation_of
from cudnn_fe.grouped.glu_hadamard.op import FORWARD as HADAMARD
from cudnn_fe.grouped.glu_hadamard.op import KEYS as HADAMARD_KEYS
from cudnn_fe.grouped.glu_hadamard_quant.op import FORWARD as QUANT
from cudnn_fe.grouped.glu_hadamard_quant.op import KEYS as QUANT_KEYS
from cudnn_fe.grouped.scaled.arguments import check_common
from cudnn_fe.grouped.scaled.calls import forward_options
from cudnn_fe.grouped.scaled.classes import FORWARD_INPUTS, SCALED_LAYOUT

__all__ = ["GroupedGemmGluHadamardQuantSm100", "GroupedGemmGluHadamardSm100"]

_TILES = "acc_dtype=None, mma_tiler_mn=(256, 256), cluster_shape_mn=None"
_SHARED = """sample_a, sample_c, sample_d, sample_sfa, sample_padded_offsets, sample_alpha, sample_prob, sample_b=None,
    sample_sfb=None, num_experts=None, b_shape=None, b_dtype=None, b_major='k'"""
_OPERANDS = """a_tensor, c_tensor, d_tensor, sfa_tensor, padded_offsets, alpha_tensor, prob_tensor, b_tensor=None,
    sfb_tensor=None, b_ptrs=None, sfb_ptrs=None"""
_HADAMARD = f"""{_SHARED}, sample_amax=None, sample_post_rht_amax=None, sample_bias=None, sample_hadamard=None,
    {_TILES}, sf_vec_size=16, vector_f32=False, m_aligned=256, act_func="swiglu", situ_beta1=4.0, situ_beta2=25.0,
    use_dynamic_sched=False, use_tmem_post_rht_amax=False"""
_HADAMARD_EXECUTE = f"""{_OPERANDS}, hadamard_tensor=None, amax_tensor=None, post_rht_amax_tensor=None,
    bias_tensor=None, situ_beta1=None, situ_beta2=None, current_stream=None"""
_QUANT = f"""{_SHARED}, sample_sfd=None, sample_rht_rowwise=None, sample_sfrht_rowwise=None, sample_rht_colwise=None,
    sample_sfrht_colwise=None, sample_bias=None, {_TILES}, sf_vec_size=16, sf_fp8_dtype_override=None, vector_f32=False,
    m_aligned=256, act_func="swiglu", use_dynamic_sched=False, glu_alpha=None, glu_limit=None"""
_QUANT_EXECUTE = f"""{_OPERANDS}, sfd_tensor=None, rht_rowwise_tensor=None, sfrht_rowwise_tensor=None,
    rht_colwise_tensor=None, sfrht_colwise_tensor=None, bias_tensor=None, norm_const=1.0, rht_norm_const=1.0,
    current_stream=None"""


def _samples(given: Mapping[str, Any], override: Any = None) -> Samples:
    check_common(
        given["acc_dtype"], "n", given["m_aligned"], given["mma_tiler_mn"], given["cluster_shape_mn"], override
    )
    require_one_of(given["b_major"], "b_major", ("k",))
    return Samples(given, **SCALED_LAYOUT)


def _bind_hadamard(given: Mapping[str, Any]) -> Bound:
    s = _samples(given)
    epilogue, numbers = activation_of(given["act_func"], given["situ_beta1"], given["situ_beta2"])
    kind = dtype(s.dtype("d_tensor"))
    options = dict(forward_options(epilogue, s.dtype("c_tensor"), kind, given["sf_vec_size"]))
    wanted = {name: s.specs[name] is not None or place < 2 for place, name in enumerate(HADAMARD_KEYS)}
    return bound(HADAMARD, s, options, wanted, numbers)


def _bind_quant(given: Mapping[str, Any]) -> Bound:
    s = _samples(given, given["sf_fp8_dtype_override"])
    require_one_of(given["act_func"], "act_func", ("swiglu", "geglu", "srelu"))
    copies = {f"rht_{name}_dtype": s.specs[f"rht_{name}_tensor"] for name in ("rowwise", "colwise")}
    kind = dtype(s.dtype("d_tensor"))
    options = dict(
        forward_options(
            given["act_func"],
            s.dtype("c_tensor"),
            kind,
            given["sf_vec_size"],
            keep_amax=False,
            glu_alpha=given["glu_alpha"],
            glu_limit=given["glu_limit"],
            **{name: None if spec is None else spec.dtype.name for name, spec in copies.items()},
        )
    )
    rows, columns = copies.values()
    fp4_rows = rows is not None and rows.dtype.name != "bfloat16"
    there = (True, True, kind.name != "bfloat16", rows is not None, fp4_rows, columns is not None, columns is not None)
    return bound(QUANT, s, options, dict(zip(QUANT_KEYS, there, strict=True)), (1.0, 1.0))


def _inputs(*more: str) -> tuple[str, ...]:
    return (*(name for name in FORWARD_INPUTS if name != "norm_const_tensor"), *more)


GroupedGemmGluHadamardSm100 = make_class(
    LegacyClass(
        name="GroupedGemmGluHadamardSm100",
        op=HADAMARD,
        parameters=_HADAMARD,
        execute=_HADAMARD_EXECUTE,
        inputs=_inputs("hadamard_tensor"),
        outputs=HADAMARD_KEYS,
        scalars=(),
        absent=(),
        bind=_bind_hadamard,
        arrange=arrange(_inputs("hadamard_tensor"), HADAMARD_KEYS, Mode(HADAMARD, HADAMARD_KEYS, SCALED_LAYOUT)),
        fixed=("situ_beta1", "situ_beta2"),
        free=FREE,
    ),
    __name__,
)
GroupedGemmGluHadamardQuantSm100 = make_class(
    LegacyClass(
        name="GroupedGemmGluHadamardQuantSm100",
        op=QUANT,
        parameters=_QUANT,
        execute=_QUANT_EXECUTE,
        inputs=_inputs(),
        outputs=QUANT_KEYS,
        scalars=("norm_const", "rht_norm_const"),
        absent=(),
        bind=_bind_quant,
        arrange=arrange(_inputs(), QUANT_KEYS, Mode(QUANT, QUANT_KEYS, SCALED_LAYOUT)),
        free=FREE,
    ),
    __name__,
)
