"""The weight gradients of grouped linear layers."""

from __future__ import annotations

from enum import Enum
from typing import Any

from cudnn_fe.core.call import Permuted, call
from cudnn_fe.core.codecs import packed_pairs
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.core.errors import DTypeError, OptionError, ShapeError
from cudnn_fe.core.frameworks import framework_of
from cudnn_fe.core.hints import check_fixed
from cudnn_fe.core.require import require_contiguous, require_dtype
from cudnn_fe.core.tensor import spec_of
from cudnn_fe.core.tuple_dict import TupleDict
from cudnn_fe.grouped.device_values import check_device_values
from cudnn_fe.grouped.forms import as_flat, is_narrow
from cudnn_fe.grouped.glu import check_glu_hints
from cudnn_fe.grouped.scaled.arguments import check_common, require_given
from cudnn_fe.grouped.scaled.problem import is_fp4
from cudnn_fe.grouped.wgrad.op import WGRAD
from cudnn_fe.grouped.wgrad_scaled.op import SCALED

__all__ = [
    "WGradInputOrder",
    "get_grouped_gemm_wgrad_workspace_size",
    "grouped_gemm_wgrad_forward",
    "grouped_gemm_wgrad_jax_forward",
    "is_ragged",
]

_UNSCALED = "leave it out: unscaled operands have none"


class WGradInputOrder(Enum):
    """How the operands lie in memory: as their shapes say, or each expert's block compact by itself."""

    Tensor2D = "tensor2d"
    TensorRagged = "tensor_ragged"


def is_ragged(order: Any) -> bool:
    """Whether the order is `WGradInputOrder.TensorRagged`; raises OptionError for what is no order."""
    try:
        return WGradInputOrder(order) is WGradInputOrder.TensorRagged
    except ValueError:
        raise OptionError(
            "input_order", got=repr(order), wanted='"tensor2d" or "tensor_ragged"', remedy="choose one"
        ) from None


def _require_mode(mode: Any) -> None:
    if mode not in ("dense", "discrete"):
        raise OptionError("output_mode", got=repr(mode), wanted='"dense" or "discrete"', remedy="choose one")


def get_grouped_gemm_wgrad_workspace_size(
    num_experts: int, *, output_mode: str = "dense", input_order: Any = WGradInputOrder.Tensor2D
) -> int:
    """Bytes that a caller's scratch must have at least; the ops here need none.

    Args:
        num_experts: E, at least 1.
        output_mode: ``"dense"`` or ``"discrete"``.
        input_order: Order of the operands; it does not change the size.

    Returns:
        512 bytes an expert, or 640 with discrete outputs.

    Raises:
        OptionError: No experts, or an unknown mode or order.

    Example:
        >>> get_grouped_gemm_wgrad_workspace_size(8)
        4096
    """
    _require_mode(output_mode)
    is_ragged(input_order)
    if not isinstance(num_experts, int) or num_experts <= 0:
        raise OptionError("num_experts", got=repr(num_experts), wanted="an int above 0", remedy="pass E")
    return 128 * num_experts * (4 if output_mode == "dense" else 5)


def _is_packed(x: Any) -> bool:
    return is_fp4(dtype(x.dtype, operand="a_tensor"))


def _check_workspace(workspace: Any, offsets: Any, output_mode: str) -> None:
    """Raises unless a caller's scratch is as large as documented; it is not used."""
    if workspace is None:
        return
    spec, count = spec_of(workspace, "descriptor_workspace"), offsets.shape[0]
    wanted = get_grouped_gemm_wgrad_workspace_size(max(count, 1), output_mode=output_mode)
    require_dtype(spec, "uint8")
    if spec.size < wanted:
        raise ShapeError(
            spec.name, got=f"{spec.size} bytes", wanted=f"{wanted} at least", remedy="ask for the workspace's size"
        )
    require_contiguous(spec)


def grouped_gemm_wgrad_forward(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    offsets_tensor: Any,
    output_mode: str = "dense",
    wgrad_tensor: Any = None,
    wgrad_ptrs: Any = None,
    global_scale_a: Any = None,
    global_scale_b: Any = None,
    acc_dtype: Any = None,
    wgrad_dtype: Any = None,
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 16,
    sf_fp8_dtype_override: Any = None,
    accumulate_on_output: bool = False,
    input_order: Any = "tensor2d",
    current_stream: Any = None,
    *,
    descriptor_workspace: Any = None,
    backend: str | None = None,
) -> TupleDict:
    """For each expert the product of its columns of A and its rows of B.

    Args:
        a_tensor: (h, t), compact, either dim contiguous: bfloat16, float16 or float32, E4M3 or E5M2. E.g. ``dy.T``. FP4
            is packed along t: (h, t/2), t contiguous.
        b_tensor: (t, i), likewise, same dtype, FP4 (t/2, i). E.g. the layer's input. JAX has FP4 as (i, t/2).
        sfa_tensor: Packed scales of A along t, expert after expert, in any shape; None for unscaled operands.
        sfb_tensor: Those of B.
        offsets_tensor: (E,) int32 ends of the experts' rows: any non-decreasing numbers.
        output_mode: ``"dense"``, or ``"discrete"``, which is the same as long as no addresses are given.
        wgrad_tensor: (E, h, i) buffer for the result, or None. Its dtype stands.
        wgrad_ptrs: (E,) int64 addresses of the experts' own (h, i) row-major results, with ``"discrete"`` alone.
        global_scale_a: (E,) float32 factors of scaled operands, required for NVFP4, or None.
        global_scale_b: Likewise.
        acc_dtype: float32.
        wgrad_dtype: bfloat16 (default), float16 or float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        sf_vec_size: Elements per scale: 32, or 16 for FP4; 16 for unscaled operands.
        sf_fp8_dtype_override: None.
        accumulate_on_output: Whether to add to what ``wgrad_tensor``, or the memory behind the addresses, holds.
        input_order: A `WGradInputOrder` or its value.
        current_stream: Launch stream for CUDA tensors.
        descriptor_workspace: uint8 scratch with scaled operands, of which nothing is used, or None.
        backend: ``None`` (best that serves) or a name.

    Returns:
        ``wgrad_tensor`` (E, h, i), zero for an expert without rows; None with addresses.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, OptionError: Operands or options outside the contract.
        BackendError: No backend serves the call, with every backend's reason.
    """
    _require_mode(output_mode)
    ragged = is_ragged(input_order)
    if output_mode == "dense" and wgrad_ptrs is not None:
        raise OptionError("wgrad_ptrs", got="addresses", wanted='None with output_mode="dense"', remedy="leave it out")
    for name, operand in (("a_tensor", a_tensor), ("b_tensor", b_tensor)):
        spec_of(operand, name).require_rank(2, "(h, t) and (t, i)")
    scaled = is_narrow(a_tensor, "a_tensor")
    extras = {
        "sfa_tensor": sfa_tensor,
        "sfb_tensor": sfb_tensor,
        "global_scale_a": global_scale_a,
        "global_scale_b": global_scale_b,
        "sf_fp8_dtype_override": sf_fp8_dtype_override,
        "descriptor_workspace": descriptor_workspace,
    }
    if scaled:
        check_common(acc_dtype, "n", 256, mma_tiler_mn, cluster_shape_mn, sf_fp8_dtype_override)
        require_given(sfa_tensor=sfa_tensor, sfb_tensor=sfb_tensor)
        _check_workspace(descriptor_workspace, offsets_tensor, output_mode)
    else:
        for name, extra in extras.items():
            if extra is not None:
                raise OptionError(name, got="a value", wanted="None", remedy=_UNSCALED)
        if sf_vec_size != 16:
            raise OptionError("sf_vec_size", got=repr(sf_vec_size), wanted="16", remedy=_UNSCALED)
        check_fixed(acc_dtype)
        check_glu_hints(mma_tiler_mn, cluster_shape_mn)
    kind = dtype("bfloat16" if wgrad_dtype is None else wgrad_dtype, operand="wgrad_dtype")
    if wgrad_tensor is not None:
        given = spec_of(wgrad_tensor, "wgrad_tensor").dtype
        if output_mode == "discrete" and given != kind:
            raise DTypeError("wgrad_tensor", got=str(given), wanted=f"{kind}, the wgrad_dtype", remedy="name its dtype")
        kind = given
    old = wgrad_tensor if accumulate_on_output else None
    if wgrad_ptrs is not None and wgrad_tensor is not None:
        raise OptionError("wgrad_tensor, wgrad_ptrs", got="both", wanted="one of the two", remedy="leave one out")
    options: tuple[tuple[str, Any], ...] = (
        ("wgrad_dtype", kind.name),
        ("ragged", ragged),
        ("accumulate", bool(accumulate_on_output)),
    )
    operands: tuple[Any, ...] = (a_tensor, b_tensor, offsets_tensor, old, wgrad_ptrs)
    if scaled:
        options += (("sf_vec_size", sf_vec_size),)
        a, b = packed_pairs(a_tensor, axis=1), packed_pairs(b_tensor, axis=0)
        if _is_packed(b) and framework_of(b) == "jax":
            b = Permuted(b, (1, 0))  # row-major arrays hold pairs along t as (i, t/2) alone
        flat = as_flat(sfa_tensor, "sfa_tensor"), as_flat(sfb_tensor, "sfb_tensor")
        operands = (a, b, *flat, offsets_tensor, global_scale_a, global_scale_b, old, wgrad_ptrs)
    check_device_values(offsets_tensor, a_tensor.shape[1] * (2 if _is_packed(a_tensor) else 1), wgrad_ptrs)
    outs = None if wgrad_tensor is None or framework_of(wgrad_tensor) == "jax" else (wgrad_tensor,)
    op = SCALED if scaled else WGRAD
    (result,) = call(op, operands, options, backend=backend, stream=current_stream, outs=outs)
    if wgrad_ptrs is None:
        return TupleDict(wgrad_tensor=result)
    return TupleDict(wgrad_tensor=result if framework_of(result) == "jax" else None)


def grouped_gemm_wgrad_jax_forward(
    a_tensor: Any,
    b_tensor: Any,
    offsets_tensor: Any,
    wgrad_ptrs: Any = None,
    wgrad_dtype: Any = "bfloat16",
    acc_dtype: Any = "float32",
    mma_tiler_mn: tuple[int, int] = (256, 256),
    cluster_shape_mn: tuple[int, int] | None = None,
    accumulate_on_output: bool = False,
    input_order: Any = "tensor2d",
    *,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    global_scale_a: Any = None,
    global_scale_b: Any = None,
    sf_vec_size: int = 32,
    backend: str | None = None,
) -> Any:
    """`grouped_gemm_wgrad_forward` for JAX, usable under ``jit`` with traced offsets.

    Args:
        a_tensor: (h, t), row-major.
        b_tensor: (t, i), row-major, same dtype; FP4 pairs come as (i, t/2) bytes, those of A as (h, t/2).
        offsets_tensor: (E,) int32 ends of the experts' rows.
        wgrad_ptrs: Addresses of the experts' (h, i) results, int64, or 8 uint8 each. XLA does not see that memory: keep
            it alive, and read it once the returned token exists.
        wgrad_dtype: bfloat16, float16 or float32.
        acc_dtype: float32.
        mma_tiler_mn: Hint without effect on results.
        cluster_shape_mn: Hint without effect on results.
        accumulate_on_output: With addresses alone: dense JAX arrays cannot be added to.
        input_order: A `WGradInputOrder` or its value; dense results take ``"tensor2d"``.
        sfa_tensor: Packed scales of A along t, expert after expert, in any shape; None for unscaled operands.
        sfb_tensor: Those of B.
        global_scale_a: (E,) float32 factors, for NVFP4, or None.
        global_scale_b: Likewise.
        sf_vec_size: Elements per scale factor; unscaled operands have none.
        backend: ``None`` or a name.

    Returns:
        ``wgrad_tensor`` (E, h, i); with addresses the token, zeros (h, i), itself.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    if is_narrow(a_tensor, "a_tensor"):
        if wgrad_ptrs is not None:
            raise OptionError(
                "wgrad_ptrs", got="addresses", wanted="None with scale factors", remedy="use the returned gradients"
            )
    else:
        sf_vec_size = 16
    if wgrad_ptrs is None and (accumulate_on_output or is_ragged(input_order)):
        raise OptionError(
            "accumulate_on_output, input_order",
            got=f"{accumulate_on_output}, {input_order!r}",
            wanted='False and "tensor2d" with dense results',
            remedy="add the returned gradients yourself",
        )
    out = grouped_gemm_wgrad_forward(
        as_jax("a_tensor", a_tensor),
        as_jax("b_tensor", b_tensor),
        sfa_tensor,
        sfb_tensor,
        offsets_tensor,
        "dense" if wgrad_ptrs is None else "discrete",
        None,
        wgrad_ptrs,
        global_scale_a,
        global_scale_b,
        acc_dtype,
        wgrad_dtype,
        mma_tiler_mn,
        cluster_shape_mn,
        sf_vec_size,
        accumulate_on_output=accumulate_on_output,
        input_order=input_order,
        backend=backend,
    )
    if wgrad_ptrs is None:
        return out
    import jax.numpy as jnp

    return jnp.broadcast_to(out["wgrad_tensor"], (a_tensor.shape[0], b_tensor.shape[1]))
