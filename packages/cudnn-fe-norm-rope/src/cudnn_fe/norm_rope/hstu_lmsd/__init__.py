"""HSTU's LayerNorm-Multiply-SiLU-Dropout, forward and backward."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.call import call
from cudnn_fe.core.errors import OptionError
from cudnn_fe.core.require import require_finite_positive
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["hstu_lmsd_backward", "hstu_lmsd_forward", "hstu_lmsd_jax_backward", "hstu_lmsd_jax_forward"]


def hstu_lmsd_forward(
    x_tensor: Any,
    u_tensor: Any,
    weight_tensor: Any,
    bias_tensor: Any,
    eps: float = 1e-6,
    dropout_ratio: float = 0.1,
    seed: int = 0,
    stream: Any = None,
    apply_u_silu: bool = True,
    concat_u: bool = True,
    concat_x: bool = True,
    *,
    backend: str | None = None,
) -> TupleDict:
    """``dropout(act(u) * LayerNorm(x))``, behind dropped-out ``act(u)`` and ``x`` on request.

    Args:
        x_tensor: (N, D) bfloat16, D a multiple of 8 up to 1016; channels contiguous, rows any multiple of 8 elements
            apart, 16-byte aligned.
        u_tensor: (N, D) bfloat16, likewise.
        weight_tensor: (D,) bfloat16, contiguous.
        bias_tensor: (D,) bfloat16, contiguous.
        eps: Added to the variance; finite, above 0.
        dropout_ratio: Share that is dropped, in [0, 1); 0 drops nothing and gives no mask.
        seed: Key of the mask, an int64. The same seed gives the same mask.
        stream: Launch stream for CUDA tensors: None (torch's current one), an int handle, a torch stream or a CUstream.
        apply_u_silu: Whether the gate is SiLU of u, or u itself.
        concat_u: Whether the dropped-out gate is the first segment of y.
        concat_x: Whether the dropped-out x is the next.
        backend: ``None`` (best that serves), or ``"portable"``, ``"reference"``: that one or an error.

    Returns:
        ``y_tensor`` (N, S D) bfloat16, ``mean_tensor`` and ``rstd_tensor`` (N,) float32, and ``mask_tensor`` (N, D)
        int8, None without dropout: bit 0 for the product, 1 for x, 2 for the gate.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, AlignmentError, OptionError: Operands outside the contract.
        BackendError: No backend serves the call, with every backend's reason.

    Example:
        >>> import numpy as np, ml_dtypes
        >>> x, one = np.arange(8, dtype=np.float32).reshape(1, 8), np.ones(8, ml_dtypes.bfloat16)
        >>> x = x.astype(ml_dtypes.bfloat16)
        >>> y, mean, rstd, mask = hstu_lmsd_forward(x, x, one, one, dropout_ratio=0.0, concat_u=False)
        >>> y.shape, mean.tolist(), mask
        ((1, 16), [3.5], None)
    """
    from cudnn_fe.norm_rope.hstu_lmsd.dropout import checked_ratio, dropout, key_words, signed_word
    from cudnn_fe.norm_rope.hstu_lmsd.op import FORWARD  # keeps `import cudnn_fe.norm_rope` light

    ratio, key = checked_ratio(dropout_ratio), key_words(seed)
    scale, threshold = dropout(ratio) if ratio else (1.0, 0)
    return _forward(
        FORWARD,
        (x_tensor, u_tensor, weight_tensor, bias_tensor, None),
        (apply_u_silu, concat_u, concat_x, ratio > 0),
        (require_finite_positive(eps, "eps"), scale, signed_word(threshold), *key),
        backend=backend,
        stream=stream,
    )


def _forward(op: Any, operands: Any, flags: Any, scalars: Any, **place: Any) -> TupleDict:
    options = tuple(zip(("apply_u_silu", "concat_u", "concat_x", "dropout"), flags, strict=True))
    y, mean, rstd, *mask = call(op, operands, options, scalars, **place)
    return TupleDict(y_tensor=y, mean_tensor=mean, rstd_tensor=rstd, mask_tensor=mask[0] if mask else None)


def hstu_lmsd_backward(
    dy_tensor: Any,
    x_tensor: Any,
    u_tensor: Any,
    weight_tensor: Any,
    bias_tensor: Any,
    mean_tensor: Any,
    rstd_tensor: Any,
    mask_tensor: Any,
    dropout_ratio: float | None = None,
    stream: Any = None,
    dx_tensor: Any = None,
    du_tensor: Any = None,
    dweight_tensor: Any = None,
    dbias_tensor: Any = None,
    apply_u_silu: bool | None = None,
    concat_u: bool | None = None,
    concat_x: bool | None = None,
    compute_dweight: bool = True,
    *,
    backend: str | None = None,
) -> TupleDict:
    """Gradients of `hstu_lmsd_forward`.

    Args:
        dy_tensor: Gradient of y (N, S D) bfloat16; channels contiguous, rows any multiple of 8 elements apart.
        x_tensor: As in the forward.
        u_tensor: As in the forward.
        weight_tensor: As in the forward.
        bias_tensor: As in the forward.
        mean_tensor: From the forward.
        rstd_tensor: From the forward.
        mask_tensor: From the forward; None exactly when nothing was dropped.
        dropout_ratio: As in the forward; must be given, as must the three flags.
        stream: Launch stream for CUDA tensors.
        dx_tensor: Buffer for the gradient of x, whose rows may be padded, or None.
        du_tensor: Likewise for u.
        dweight_tensor: Buffer for the gradient of the weight, or None.
        dbias_tensor: Buffer for the gradient of the bias, or None.
        apply_u_silu: As in the forward.
        concat_u: As in the forward.
        concat_x: As in the forward.
        compute_dweight: False leaves the gradient of the weight out.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``dx_tensor``, ``du_tensor``, ``dweight_tensor`` (None if left out) and ``dbias_tensor``, bfloat16.

    Raises:
        ShapeError, StrideError, DTypeError, DeviceError, AlignmentError, OptionError: Operands outside the contract.
        AliasError: A buffer overlaps an operand or another buffer.
        BackendError: No backend serves the call, with every backend's reason.
    """
    from cudnn_fe.norm_rope.hstu_lmsd.dropout import checked_ratio, dropout, require_mask
    from cudnn_fe.norm_rope.hstu_lmsd.op import BACKWARD  # keeps `import cudnn_fe.norm_rope` light

    flags = {"apply_u_silu": apply_u_silu, "concat_u": concat_u, "concat_x": concat_x}
    missing = [name for name, value in {"dropout_ratio": dropout_ratio, **flags}.items() if value is None]
    if missing:
        raise OptionError(", ".join(missing), got="None", wanted="the forward's values", remedy="pass all of them")
    ratio = checked_ratio(dropout_ratio)
    require_mask(mask_tensor, ratio)
    if dweight_tensor is not None and not compute_dweight:
        raise OptionError(
            "dweight_tensor", got="a buffer", wanted="None with compute_dweight=False", remedy="leave one of them out"
        )
    operands = (dy_tensor, x_tensor, u_tensor, weight_tensor, bias_tensor, mean_tensor, rstd_tensor, mask_tensor)
    options = (*flags.items(), ("compute_dweight", compute_dweight))
    scalars = (dropout(ratio)[0] if ratio else 1.0,)
    outs = (dx_tensor, du_tensor, *((dweight_tensor,) if compute_dweight else ()), dbias_tensor)
    results = call(
        BACKWARD,
        operands,
        options,
        scalars,
        backend=backend,
        stream=stream,
        outs=None if all(out is None for out in outs) else outs,
    )
    dx, du, *affine = results
    return TupleDict(
        dx_tensor=dx, du_tensor=du, dweight_tensor=affine[0] if compute_dweight else None, dbias_tensor=affine[-1]
    )


def hstu_lmsd_jax_forward(
    x_tensor: Any,
    u_tensor: Any,
    weight_tensor: Any,
    bias_tensor: Any,
    eps: float = 1e-6,
    dropout_ratio: float = 0.1,
    seed: Any = 0,
    apply_u_silu: bool = True,
    concat_u: bool = True,
    concat_x: bool = True,
    *,
    backend: str | None = None,
) -> tuple[Any, Any, Any, Any]:
    """`hstu_lmsd_forward` for JAX: usable under ``jit``; runs on CPU and CUDA.

    Args:
        x_tensor: (N, D) bfloat16.
        u_tensor: (N, D) bfloat16.
        weight_tensor: (D,) bfloat16.
        bias_tensor: (D,) bfloat16.
        eps: Added to the variance; static under ``jit``, as all that follows but the seed.
        dropout_ratio: Share that is dropped.
        seed: An int64, or an int32 array of its low and high word, which may be traced: a new seed compiles nothing.
        apply_u_silu: Whether the gate is SiLU of u, or u itself.
        concat_u: Whether the dropped-out gate is the first segment of y.
        concat_x: Whether the dropped-out x is the next.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``(y, mean, rstd, mask)``; the mask is None without dropout.

    Raises:
        ShapeError, DTypeError, OptionError, BackendError: As the message says.
    """
    import jax.numpy as jnp  # the caller asks for JAX

    from cudnn_fe.core.jax import as_jax
    from cudnn_fe.norm_rope.hstu_lmsd.dropout import checked_ratio, dropout, key_words, signed_word
    from cudnn_fe.norm_rope.hstu_lmsd.op import FORWARD

    ratio = checked_ratio(dropout_ratio)
    scale, threshold = dropout(ratio) if ratio else (1.0, 0)
    words = jnp.asarray(key_words(seed), jnp.int32) if isinstance(seed, int) else seed
    given = {"x_tensor": x_tensor, "u_tensor": u_tensor, "weight_tensor": weight_tensor, "bias_tensor": bias_tensor}
    operands = (*(as_jax(*row) for row in given.items()), words if ratio else None)
    result = _forward(
        FORWARD,
        operands,
        (apply_u_silu, concat_u, concat_x, ratio > 0),
        (require_finite_positive(eps, "eps"), scale, signed_word(threshold), 0, 0),
        backend=backend,
    )
    return result[0], result[1], result[2], result[3]


def hstu_lmsd_jax_backward(
    dy_tensor: Any,
    x_tensor: Any,
    u_tensor: Any,
    weight_tensor: Any,
    bias_tensor: Any,
    mean_tensor: Any,
    rstd_tensor: Any,
    mask_tensor: Any,
    dropout_ratio: float | None = None,
    apply_u_silu: bool | None = None,
    concat_u: bool | None = None,
    concat_x: bool | None = None,
    compute_dweight: bool = True,
    *,
    backend: str | None = None,
) -> tuple[Any, Any, Any, Any]:
    """`hstu_lmsd_backward` for JAX: usable under ``jit``.

    Args:
        dy_tensor: Gradient of y (N, S D).
        x_tensor: As in the forward.
        u_tensor: As in the forward.
        weight_tensor: As in the forward.
        bias_tensor: As in the forward.
        mean_tensor: From the forward.
        rstd_tensor: From the forward.
        mask_tensor: From the forward.
        dropout_ratio: As in the forward.
        apply_u_silu: As in the forward.
        concat_u: As in the forward.
        concat_x: As in the forward.
        compute_dweight: False leaves the gradient of the weight out.
        backend: ``None``, or the name of the one to use.

    Returns:
        ``(dx, du, dweight, dbias)``.

    Raises:
        ShapeError, DTypeError, OptionError, BackendError: As the message says.
    """
    from cudnn_fe.core.jax import as_jax  # the caller asks for JAX

    def array(name: str, given: Any) -> Any:
        return None if given is None else as_jax(name, given)

    result = hstu_lmsd_backward(
        array("dy_tensor", dy_tensor),
        array("x_tensor", x_tensor),
        array("u_tensor", u_tensor),
        array("weight_tensor", weight_tensor),
        array("bias_tensor", bias_tensor),
        array("mean_tensor", mean_tensor),
        array("rstd_tensor", rstd_tensor),
        array("mask_tensor", mask_tensor),
        dropout_ratio,
        apply_u_silu=apply_u_silu,
        concat_u=concat_u,
        concat_x=concat_x,
        compute_dweight=compute_dweight,
        backend=backend,
    )
    return result[0], result[1], result[2], result[3]
