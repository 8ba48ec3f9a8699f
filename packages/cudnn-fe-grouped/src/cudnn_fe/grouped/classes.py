"""The classes of cudnn-frontend 1.32, with dense weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_fe.core.errors import NotYetSupportedError, OptionError
from cudnn_fe.core.op import Problem
from cudnn_fe.core.tensor import TensorSpec
from cudnn_fe.grouped.activation import CLAMP_MAX, CLAMP_MIN, GEGLU_ALPHA
from cudnn_fe.grouped.buffers import write
from cudnn_fe.grouped.dglu import arguments as dglu_arguments
from cudnn_fe.grouped.dglu import grouped_gemm_glu_backward, scalars_of
from cudnn_fe.grouped.dglu.op import BACKWARD
from cudnn_fe.grouped.glu import arguments as glu_arguments
from cudnn_fe.grouped.glu import grouped_gemm_glu_forward
from cudnn_fe.grouped.glu.op import FORWARD as GLU
from cudnn_fe.grouped.hints import check_fixed, check_hints
from cudnn_fe.grouped.life_cycle import GroupedClass
from cudnn_fe.grouped.operands import output
from cudnn_fe.grouped.unfused import arguments as unfused_arguments
from cudnn_fe.grouped.unfused import grouped_gemm_forward
from cudnn_fe.grouped.unfused.op import FORWARD
from cudnn_fe.grouped.wgrad import WGradInputOrder, grouped_gemm_wgrad_forward, is_ragged
from cudnn_fe.grouped.wgrad.op import WGRAD

__all__ = ["GroupedGemmDgluSm100", "GroupedGemmGluSm100", "GroupedGemmSm100", "GroupedGemmWgradSm100"]

_ROWS = {"a_tensor": 0, "c_tensor": 0, "d_tensor": 0, "d_row_tensor": 0, "prob_tensor": 0, "dprob_tensor": 0}
_SCALED = ("sfa", "sfb", "d_col", "sfd_row", "sfd_col", "amax", "norm_const", "scheduler_counter")


def _refuse(given: Mapping[str, Any], dense: str = "sample_b") -> None:
    """Raises for discrete weights or results, and for what belongs to the block-scaled modes."""
    shapes = [name for name in ("num_experts", "b_shape", "b_dtype", "wgrad_shape") if given.get(name) is not None]
    if (given[dense] is None) != bool(shapes):
        raise OptionError(
            dense,
            got="both modes or neither",
            wanted=f"{dense}, or {', '.join(shapes) or 'num_experts'}",
            remedy="choose",
        )
    scaled = [f"sample_{name}" for name in _SCALED if given.get(f"sample_{name}") is not None]
    if shapes or scaled:
        raise NotYetSupportedError(
            ", ".join(shapes + scaled),
            got="discrete or block-scaled mode",
            wanted="dense matrices without scale factors",
            remedy="pass the experts' matrices as one tensor, dequantised",
        )


def _like(spec: TensorSpec, rank: int, name: str) -> TensorSpec:
    """A result's spec with unit dims added up to ``rank``."""
    return output(name, (*spec.shape, *(1,) * (rank - spec.ndim)), spec.dtype, spec.device)


def _given(local: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in local.items() if name not in ("self", "__class__")}


class GroupedGemmSm100(GroupedClass):
    """Class API of `grouped_gemm_forward`; samples are tensors or anything with shape, strides, dtype and device."""

    op = FORWARD
    free = _ROWS

    def __init__(
        self, sample_a: Any, sample_c: Any, sample_d: Any, sample_padded_offsets: Any, sample_alpha: Any,
        sample_b: Any = None, sample_bias: Any = None, sample_prob: Any = None, num_experts: int | None = None,
        b_shape: Any = None, b_dtype: Any = None, acc_dtype: Any = None, mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None, vector_f32: bool = False, m_aligned: int = 256,
        generate_c: bool = False, b_major: str = "k", use_dynamic_sched: bool = False,
    ) -> None:  # fmt: skip
        """Record the samples' metadata and the options."""
        self._set_up(_given(locals()))

    def _problem(self) -> tuple[Problem, Mapping[str, TensorSpec | None]]:
        given, s = self._given, self._samples
        _refuse(given)
        check_fixed(given["acc_dtype"], m_aligned=given["m_aligned"])
        check_hints(given["mma_tiler_mn"], given["cluster_shape_mn"], step=32)
        names = ("a_tensor", "padded_offsets", "alpha_tensor", "b_tensor", "bias_tensor", "prob_tensor")
        operands = unfused_arguments(*[s[name] for name in names], b_major=given["b_major"])
        kinds = {f"{name}_dtype": _dtype(s, f"{name}_tensor") for name in ("c", "d")}
        problem = FORWARD.bind(*operands, **kinds, generate_c=True)
        rank = s["a_tensor"].ndim  # type: ignore[union-attr]
        d, c = problem.outputs
        return problem, {"d_tensor": _like(d, rank, "d_tensor"), "c_tensor": _like(c, rank, "c_tensor")}

    def execute(
        self, a_tensor: Any, c_tensor: Any, d_tensor: Any, padded_offsets: Any, alpha_tensor: Any, b_tensor: Any = None,
        b_ptrs: Any = None, bias_tensor: Any = None, prob_tensor: Any = None, current_stream: Any = None,
    ) -> None:  # fmt: skip
        """Write D, and C with ``generate_c``, into the given buffers on ``current_stream``."""
        self._check(
            a_tensor=a_tensor, c_tensor=c_tensor, d_tensor=d_tensor, padded_offsets=padded_offsets,
            alpha_tensor=alpha_tensor, b_tensor=b_tensor, bias_tensor=bias_tensor, prob_tensor=prob_tensor,
        )  # fmt: skip
        grouped_gemm_forward(
            a_tensor, padded_offsets, alpha_tensor, b_tensor, bias_tensor, b_ptrs, prob_tensor=prob_tensor,
            b_major=self._given["b_major"], c_dtype=_dtype(self._samples, "c_tensor"),
            d_dtype=_dtype(self._samples, "d_tensor"), c_tensor=c_tensor, d_tensor=d_tensor,
            generate_c=self._given["generate_c"], current_stream=current_stream,
        )  # fmt: skip


class GroupedGemmGluSm100(GroupedClass):
    """Class API of `grouped_gemm_glu_forward`."""

    op = GLU
    free = _ROWS

    def __init__(
        self, sample_a: Any, sample_c: Any, sample_d: Any, sample_sfa: Any, sample_padded_offsets: Any,
        sample_alpha: Any, sample_d_col: Any, sample_b: Any = None, sample_sfb: Any = None, sample_bias: Any = None,
        num_experts: int | None = None, b_shape: Any = None, b_dtype: Any = None, sample_sfd_row: Any = None,
        sample_sfd_col: Any = None, sample_amax: Any = None, sample_norm_const: Any = None, sample_prob: Any = None,
        acc_dtype: Any = None, mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None, sf_vec_size: int = 16, sf_fp8_dtype_override: Any = None,
        vector_f32: bool = False, m_aligned: int = 256, discrete_col_sfd: bool = False, act_func: str = "swiglu",
        situ_beta1: float = 4.0, b_major: str = "k", use_dynamic_sched: bool = False,
        use_single_group_runtime_offsets: bool = False, generate_c: bool = False, *,
        sample_scheduler_counter: Any = None,
    ) -> None:  # fmt: skip
        """Record the samples' metadata and the options."""
        self._set_up(_given(locals()))

    def _problem(self) -> tuple[Problem, Mapping[str, TensorSpec | None]]:
        given, s = self._given, self._samples
        _refuse(given)
        check_fixed(given["acc_dtype"], m_aligned=given["m_aligned"])
        check_hints(given["mma_tiler_mn"], given["cluster_shape_mn"], step=64)
        names = ("a_tensor", "padded_offsets", "alpha_tensor", "b_tensor", "bias_tensor", "prob_tensor")
        operands = glu_arguments(*[s[name] for name in names], b_major=given["b_major"])
        kinds = {"d_dtype": _dtype(s, "d_tensor"), "c_dtype": _dtype(s, "c_tensor")}
        problem = GLU.bind(*operands, act_func=given["act_func"], **kinds, generate_c=given["generate_c"])
        rank = s["a_tensor"].ndim  # type: ignore[union-attr]
        d, c = problem.outputs
        results = {"d_tensor": _like(d, rank, "d_tensor")}
        return problem, results | ({"c_tensor": _like(c, rank, "c_tensor")} if given["generate_c"] else {})

    def execute(
        self, a_tensor: Any, c_tensor: Any, d_tensor: Any, sfa_tensor: Any, padded_offsets: Any, alpha_tensor: Any,
        b_tensor: Any = None, sfb_tensor: Any = None, bias_tensor: Any = None, b_ptrs: Any = None, sfb_ptrs: Any = None,
        d_col_tensor: Any = None, sfd_row_tensor: Any = None, sfd_col_tensor: Any = None, amax_tensor: Any = None,
        norm_const_tensor: Any = None, prob_tensor: Any = None, linear_offset: float | None = None,
        geglu_alpha: float = GEGLU_ALPHA, glu_clamp_max: float = CLAMP_MAX, glu_clamp_min: float = CLAMP_MIN,
        situ_beta1: float = 4.0, situ_beta2: float = 25.0, current_stream: Any = None, *,
        scheduler_counter_tensor: Any = None,
    ) -> None:  # fmt: skip
        """Write D, and C with ``generate_c``, into the given buffers on ``current_stream``."""
        self._check(
            a_tensor=a_tensor, c_tensor=c_tensor, d_tensor=d_tensor, padded_offsets=padded_offsets,
            alpha_tensor=alpha_tensor, b_tensor=b_tensor, bias_tensor=bias_tensor, prob_tensor=prob_tensor,
            d_col_tensor=d_col_tensor, sfd_row_tensor=sfd_row_tensor, sfd_col_tensor=sfd_col_tensor,
            amax_tensor=amax_tensor,
        )  # fmt: skip
        given = self._given
        out = grouped_gemm_glu_forward(
            a_tensor, sfa_tensor, padded_offsets, alpha_tensor, b_tensor, sfb_tensor, bias_tensor, b_ptrs, sfb_ptrs,
            b_major=given["b_major"], norm_const_tensor=norm_const_tensor, prob_tensor=prob_tensor,
            c_dtype=_dtype(self._samples, "c_tensor"), d_dtype=_dtype(self._samples, "d_tensor"),
            sf_vec_size=given["sf_vec_size"], discrete_col_sfd=given["discrete_col_sfd"], act_func=given["act_func"],
            linear_offset=linear_offset, geglu_alpha=geglu_alpha, glu_clamp_max=glu_clamp_max,
            glu_clamp_min=glu_clamp_min, current_stream=current_stream, generate_c=given["generate_c"],
            use_single_group_runtime_offsets=given["use_single_group_runtime_offsets"],
            sf_fp8_dtype_override=given["sf_fp8_dtype_override"], scheduler_counter_tensor=scheduler_counter_tensor,
        )  # fmt: skip
        write("d_tensor", d_tensor, out["d_tensor"], padded_offsets, stream=current_stream)
        if given["generate_c"]:
            write("c_tensor", c_tensor, out["c_tensor"], padded_offsets, stream=current_stream)


class GroupedGemmDgluSm100(GroupedClass):
    """Class API of `grouped_gemm_glu_backward`."""

    op = BACKWARD
    free = _ROWS | {"activation_tensor": 0}

    def __init__(
        self, sample_a: Any, sample_c: Any, sample_d_row: Any, sample_d_col: Any, sample_sfa: Any,
        sample_padded_offsets: Any, sample_alpha: Any, sample_beta: Any, sample_prob: Any, sample_dprob: Any,
        sample_b: Any = None, sample_sfb: Any = None, sample_dbias: Any = None, num_experts: int | None = None,
        b_shape: Any = None, b_dtype: Any = None, sample_sfd_row: Any = None, sample_sfd_col: Any = None,
        sample_amax: Any = None, sample_norm_const: Any = None, acc_dtype: Any = None,
        mma_tiler_mn: tuple[int, int] = (256, 256), cluster_shape_mn: tuple[int, int] | None = None,
        sf_vec_size: int = 16, sf_fp8_dtype_override: Any = None, vector_f32: bool = False, m_aligned: int = 256,
        discrete_col_sfd: bool = False, act_func: str = "dswiglu", b_major: str = "k", epilogue_op: Any = None,
        use_dynamic_sched: bool = False, use_single_group_runtime_offsets: bool = False,
        linear_offset: float | None = None, geglu_alpha: float = GEGLU_ALPHA, glu_clamp_max: float = CLAMP_MAX,
        glu_clamp_min: float = CLAMP_MIN, situ_beta1: float = 4.0, situ_beta2: float = 25.0,
        round_dgrad_to_input_dtype: bool = False, sample_activation: Any = None, _deterministic: bool = False,
    ) -> None:  # fmt: skip
        """Record the samples' metadata and the options."""
        self._set_up(_given(locals()))

    def scratch_workspace_bytes(self) -> int:
        """Bytes of the workspace that ``execute`` may be given; it is not used."""
        return 128

    def _problem(self) -> tuple[Problem, Mapping[str, TensorSpec | None]]:
        given, s = self._given, self._samples
        _refuse(given)
        check_fixed(given["acc_dtype"], m_aligned=given["m_aligned"])
        check_hints(given["mma_tiler_mn"], given["cluster_shape_mn"], step=32)
        numbers = ("linear_offset", "geglu_alpha", "glu_clamp_max", "glu_clamp_min")
        scalars_of(given["act_func"], *(given[name] for name in numbers))
        names = ("a", "c", "padded_offsets", "alpha", "beta", "prob", "b")
        specs = [s[name if name == "padded_offsets" else f"{name}_tensor"] for name in names]
        problem = BACKWARD.bind(
            *dglu_arguments(*specs, b_major=given["b_major"]),
            act_func=given["act_func"],
            d_dtype=_dtype(s, "d_row_tensor"),
            generate_dbias=s["dbias_tensor"] is not None,
            generate_activation=s["activation_tensor"] is not None,
            round_dgrad=given["round_dgrad_to_input_dtype"],
        )
        d, dprob, dbias, again = problem.outputs
        rank = s["a_tensor"].ndim  # type: ignore[union-attr]
        results = {"d_row_tensor": _like(d, rank, "d_row_tensor")}
        if s["prob_tensor"] is not None:
            results["dprob_tensor"] = _like(dprob, s["prob_tensor"].ndim, "dprob_tensor")
        if s["dbias_tensor"] is not None:
            results["dbias_tensor"] = dbias
        if s["activation_tensor"] is not None:
            results["activation_tensor"] = _like(again, s["activation_tensor"].ndim, "activation_tensor")
        return problem, results

    def execute(
        self, a_tensor: Any, c_tensor: Any, d_row_tensor: Any, d_col_tensor: Any, sfa_tensor: Any, padded_offsets: Any,
        alpha_tensor: Any, beta_tensor: Any, prob_tensor: Any, dprob_tensor: Any, b_tensor: Any = None,
        sfb_tensor: Any = None, dbias_tensor: Any = None, b_ptrs: Any = None, sfb_ptrs: Any = None,
        sfd_row_tensor: Any = None, sfd_col_tensor: Any = None, amax_tensor: Any = None, norm_const_tensor: Any = None,
        current_stream: Any = None, activation_tensor: Any = None, *, workspace: Any = None,
    ) -> None:  # fmt: skip
        """Write D, add to dprob and dbias, and write the activation where it has a sample, on ``current_stream``."""
        del workspace
        self._check(
            a_tensor=a_tensor, c_tensor=c_tensor, d_row_tensor=d_row_tensor, padded_offsets=padded_offsets,
            alpha_tensor=alpha_tensor, beta_tensor=beta_tensor, prob_tensor=prob_tensor, dprob_tensor=dprob_tensor,
            b_tensor=b_tensor, dbias_tensor=dbias_tensor, activation_tensor=activation_tensor,
            d_col_tensor=d_col_tensor, sfd_row_tensor=sfd_row_tensor, sfd_col_tensor=sfd_col_tensor,
            amax_tensor=amax_tensor,
        )  # fmt: skip
        given = self._given
        same = ("b_major", "sf_vec_size", "sf_fp8_dtype_override", "discrete_col_sfd", "act_func", "linear_offset",
                "geglu_alpha", "glu_clamp_max", "glu_clamp_min", "epilogue_op", "use_single_group_runtime_offsets",
                "round_dgrad_to_input_dtype")  # fmt: skip
        out = grouped_gemm_glu_backward(
            a_tensor, c_tensor, sfa_tensor, padded_offsets, alpha_tensor, beta_tensor, prob_tensor, dprob_tensor,
            b_tensor, sfb_tensor, dbias_tensor is not None, b_ptrs, sfb_ptrs, norm_const_tensor=norm_const_tensor,
            d_dtype=_dtype(self._samples, "d_row_tensor"), current_stream=current_stream,
            activation_tensor=activation_tensor, deterministic=given["_deterministic"],
            **{name: given[name] for name in same},
        )  # fmt: skip
        write("d_row_tensor", d_row_tensor, out["d_row_tensor"], padded_offsets, stream=current_stream)
        if dbias_tensor is not None:
            write("dbias_tensor", dbias_tensor, out["dbias_tensor"], add=True, stream=current_stream)


class GroupedGemmWgradSm100(GroupedClass):
    """Class API of `grouped_gemm_wgrad_forward`."""

    op = WGRAD
    free = {"a_tensor": 1, "b_tensor": 0}  # noqa: RUF012

    def __init__(
        self, sample_a: Any, sample_b: Any, sample_sfa: Any, sample_sfb: Any, sample_offsets: Any,
        sample_wgrad: Any = None, sample_wgrad_expert: Any = None, num_experts: int | None = None,
        wgrad_shape: Any = None, wgrad_dtype: Any = None, sample_global_scale_a: Any = None,
        sample_global_scale_b: Any = None, acc_dtype: Any = None, mma_tiler_mn: tuple[int, int] = (256, 256),
        cluster_shape_mn: tuple[int, int] | None = None, sf_vec_size: int = 16, sf_fp8_dtype_override: Any = None,
        accumulate_on_output: bool = False, input_order: Any = WGradInputOrder.Tensor2D,
    ) -> None:  # fmt: skip
        """Record the samples' metadata and the options."""
        self._set_up(_given(locals()))

    def _problem(self) -> tuple[Problem, Mapping[str, TensorSpec | None]]:
        given, s = self._given, self._samples
        _refuse(given, "sample_wgrad")
        check_fixed(given["acc_dtype"])
        check_hints(given["mma_tiler_mn"], given["cluster_shape_mn"], step=64)
        old = s["wgrad_tensor"] if given["accumulate_on_output"] else None
        problem = WGRAD.bind(
            s["a_tensor"],
            s["b_tensor"],
            s["offsets_tensor"],
            old,
            wgrad_dtype=_dtype(s, "wgrad_tensor"),
            ragged=is_ragged(given["input_order"]),
        )
        return problem, {"wgrad_tensor": problem.outputs[0]}

    def execute(
        self, a_tensor: Any, b_tensor: Any, sfa_tensor: Any, sfb_tensor: Any, offsets_tensor: Any,
        wgrad_tensor: Any = None, wgrad_ptrs: Any = None, global_scale_a: Any = None, global_scale_b: Any = None,
        current_stream: Any = None, *, descriptor_workspace: Any = None,
    ) -> None:  # fmt: skip
        """Write or add the gradients, on ``current_stream``."""
        self._check(
            a_tensor=a_tensor, b_tensor=b_tensor, offsets_tensor=offsets_tensor, wgrad_tensor=wgrad_tensor
        )  # fmt: skip
        given = self._given
        grouped_gemm_wgrad_forward(
            a_tensor, b_tensor, sfa_tensor, sfb_tensor, offsets_tensor, wgrad_tensor=wgrad_tensor,
            wgrad_ptrs=wgrad_ptrs, global_scale_a=global_scale_a, global_scale_b=global_scale_b,
            sf_vec_size=given["sf_vec_size"], sf_fp8_dtype_override=given["sf_fp8_dtype_override"],
            accumulate_on_output=given["accumulate_on_output"], input_order=given["input_order"],
            current_stream=current_stream, descriptor_workspace=descriptor_workspace,
        )  # fmt: skip


def _dtype(samples: Mapping[str, TensorSpec | None], name: str) -> str:
    """The dtype of a result's sample; bfloat16 where there is none."""
    spec = samples[name]
    return "bfloat16" if spec is None else spec.dtype.name
