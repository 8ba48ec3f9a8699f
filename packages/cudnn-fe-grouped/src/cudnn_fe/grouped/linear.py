"""The derivative that every grouped linear layer shares: from the gradient of its sums to those of its operands."""

from __future__ import annotations

from typing import Any

from cudnn_fe.core.arrays import astype
from cudnn_fe.core.call import Permuted, call
from cudnn_fe.core.dtypes import dtype
from cudnn_fe.grouped.forms import permuted
from cudnn_fe.grouped.groups import Owners, of_rows
from cudnn_fe.grouped.row_sums import row_sums

__all__ = ["contiguous", "form_of", "linear_gradients", "product", "weight_gradient"]


def contiguous(x: Any) -> Any:
    """``x`` row-major in memory."""
    return x.contiguous() if hasattr(x, "contiguous") else x


Options = tuple[tuple[str, Any], ...]


def product(
    a: Any,
    b: Any,
    offsets: Any,
    alpha: Any,
    bias: Any = None,
    *,
    form: Options,
    kind: Any = "float32",
    backend: str | None = None,
) -> Any:
    """The unfused grouped GEMM without prob; b is (L, N, K), or addresses with N and major in ``form``."""
    from cudnn_fe.grouped.unfused.op import FORWARD  # its rule is made of this module

    options = (("d_dtype", kind), ("c_dtype", kind), ("generate_c", False), *form)
    return call(FORWARD, (a, b, offsets, alpha, None, bias), options, backend=backend)[0]


def weight_gradient(rows: Any, a: Any, offsets: Any, *, kind: Any, backend: str | None = None) -> Any:
    """(L, N, K): for each expert the sum over its rows of ``rows`` (M, N) times ``a`` (M, K)."""
    from cudnn_fe.grouped.wgrad.op import WGRAD

    options = (("wgrad_dtype", kind), ("ragged", False), ("accumulate", False))
    return call(WGRAD, (Permuted(rows, (1, 0)), a, offsets, None, None), options, backend=backend)[0]


def form_of(options: Options) -> Options:
    """What a call's options say of weights behind addresses."""
    return tuple((name, value) for name, value in options if name in ("n", "n_major"))


def _transposed(a: Any, b: Any, form: Options) -> tuple[Any, Options]:
    """The weights seen as (L, K, N), and their form."""
    given = dict(form)
    if not given["n"]:
        return permuted(b, (0, 2, 1)), form
    return b, (("n", a.shape[1]), ("n_major", not given["n_major"]))


def linear_gradients(
    xp: Any,
    groups: Owners | None,
    operands: tuple[Any, Any, Any, Any],
    ds: Any,
    needed: tuple[bool, ...],
    backend: str | None,
    form: Options,
    scaled: Any = None,
) -> tuple[Any, Any, Any]:
    """``(dA, dB, dalpha)`` of ``alpha * (A @ B)`` from float32 ``ds`` (M, N); None where not needed.

    Weights behind addresses get none: `grouped_gemm_wgrad_forward` gives theirs.

    ``alpha * ds`` is rounded to the operands' dtype: what the tensor cores multiply. Where it is given as ``scaled``,
    and alpha's gradient is not needed, ``ds`` and ``groups`` may be None.
    """
    a, b, offsets, alpha = operands
    kind = dtype(a.dtype).name
    if scaled is None:
        assert groups is not None
        scaled = contiguous(astype(ds * of_rows(xp, groups, alpha)[:, None], kind))
    transposed, turned = _transposed(a, b, form)  # dA[m,k] = sum_n dS[m,n] B[n,k] contracts over N
    ones = xp.ones_like(alpha)
    da = db = dalpha = None
    if needed[0]:
        da = product(scaled, transposed, offsets, ones, form=turned, kind=kind, backend=backend)
    if needed[1] and not dict(form)["n"]:
        db = weight_gradient(scaled, a, offsets, kind=kind, backend=backend)
    if needed[3]:
        assert groups is not None
        # Not from the forward's sums divided by alpha, which may be zero.
        back = product(contiguous(astype(ds, kind)), transposed, offsets, ones, form=turned, backend=backend)
        dots = xp.sum(back * xp.where(groups.inside[:, None], astype(a, "float32"), 0.0), axis=1)
        dalpha = row_sums(dots[:, None], offsets, backend=backend)[:, 0]
    return da, db, dalpha
