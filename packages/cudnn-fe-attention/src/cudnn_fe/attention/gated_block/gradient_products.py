"""The products of the gated attention block's backward, with what is rounded before each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_fe.attention.arrays import product, wide
from cudnn_fe.attention.gated_block.quantised import (
    CODES,
    LIFT,
    along_tokens,
    codes_of,
    fp4_values,
    mx_values,
    scaled,
    step_below,
)
from cudnn_fe.attention.pieces import attend_gradients, largest_score_gradient
from cudnn_fe.attention.tiles import Visible

if TYPE_CHECKING:
    from cudnn_fe.attention.gated_block.op_backward import GatedAttentionBlockBackward

__all__ = ["Products", "products_of"]


def _tokens(xp: Any, x: Any) -> Any:
    """(B, S, C) as (B S, C)."""
    return xp.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))


def _outer(xp: Any, a: Any, b: Any) -> Any:
    """``sum_t a_t b_t^T`` over all tokens of (B, S, M) and (B, S, N)."""
    return product(xp, xp.matrix_transpose(_tokens(xp, a)), _tokens(xp, b))


class Products:
    """Those of a block that is not quantised.

    Args:
        problem: The bound problem.
        xp: Array namespace.
        operands: dY and h (B, S, d_model), the first and the last weight as they came.
        offsets: First tokens of packed sequences, or None.
    """

    def __init__(
        self, problem: GatedAttentionBlockBackward, xp: Any, operands: tuple[Any, Any, Any, Any], offsets: Any
    ) -> None:
        self.problem, self.xp, self.offsets = problem, xp, offsets
        self.dy, self.x, self.w_qkvg, self.w_o = operands
        self.io = problem.cos.dtype.name

    def by_gated(self) -> Any:
        """The gradient of the gated output (B, S, Hq D)."""
        return product(self.xp, self.dy, wide(self.w_o))

    def attention(self, do: Any, q: Any, k: Any, v: Any, lse: Any, delta: Any, visible: Visible) -> Any:
        """``(dQ, dK, dV)``, (B, H, S, D)."""
        scale = self.problem.geometry.scale
        return attend_gradients(self.xp, do, q, k, v, lse, delta, visible, scale, self.io)

    def projected(self, gradient: Any) -> None:
        """Take the gradient of the projection (B, S, n_qkvg), which the next two read."""
        self.gradient = gradient

    def by_hidden(self) -> Any:
        """The gradient of h."""
        return product(self.xp, self.gradient, wide(self.w_qkvg))

    def by_first_weight(self) -> Any:
        """The gradient of the first weight."""
        return _outer(self.xp, self.gradient, self.x)

    def by_last_weight(self, gated: Any) -> Any:
        """The gradient of the last weight, from the gated output (B, S, Hq D)."""
        return _outer(self.xp, self.dy, gated)

    def numbers(self) -> Any:
        """The numbers of `SCALARS` (29,), of quantised blocks."""
        raise NotImplementedError


class _Quantised(Products):
    """What both quantised forms do: dY and the gated output with a factor per tensor."""

    def __init__(self, problem: Any, xp: Any, operands: Any, offsets: Any, rest: tuple[Any, ...]) -> None:
        super().__init__(problem, xp, operands, offsets)
        self.scale_dp, self.scale_dy, self.scale_do, self.scale_dqkvg = rest[:4]
        self.h_t, self.h_t_sf, self.w_t, self.w_t_sf, self.w_o_t, self.w_o_t_sf = rest[4:10]
        names = ("descale_h", "descale_w_qkvg", "descale_w_o", "scale_q", "scale_k", "scale_v", "scale_o")
        self.factors = dict(zip(names, rest[10:], strict=True))
        self.found: dict[str, Any] = {}
        self.codes_dy, self.scale_dy = self._encoded(self.dy, "dy", self.scale_dy)

    def _encoded(self, x: Any, name: str, given: Any) -> tuple[Any, Any]:
        """Codes of a gradient, and the scale that they have, which is the caller's where he gave one."""
        scale, amax = step_below(self.xp, x, self.problem.margin)
        if given is not None:
            scale = self.xp.reshape(given, (1,))
        self.found |= {f"amax_{name}": amax, f"scale_{name}": scale, f"descale_{name}": 1 / scale}
        return codes_of(x, scale), scale

    def by_gated(self) -> Any:
        xp, formats = self.xp, self.problem.formats
        if formats.o_fp4 is None:
            alpha = self.factors["descale_w_o"] / self.scale_dy
            self.found["alpha_b2"] = alpha
            return product(xp, self.codes_dy, wide(self.w_o)) * alpha
        kind = "float8_e4m3fn" if formats.o_fp4 == "nvfp4" else "float8_e8m0fnu"
        weight = xp.matrix_transpose(scaled(xp, self.w_o_t, self.w_o_t_sf, formats.o_block, kind, fp4=True))
        if formats.o_fp4 == "mxfp4":
            return product(xp, mx_values(self.dy, -1), weight)
        self.found["alpha_b2"] = 1 / self.scale_dy
        return product(xp, fp4_values(xp, self.dy * self.scale_dy, "nvfp4"), weight) / self.scale_dy

    def by_last_weight(self, gated: Any) -> Any:
        scale = self.factors["scale_o"]
        return _outer(self.xp, self.codes_dy, codes_of(gated, scale)) / (self.scale_dy * scale)

    def numbers(self) -> Any:
        from cudnn_fe.attention.gated_block.op_backward import SCALARS  # it names this module

        xp, zero = self.xp, self.xp.zeros_like(self.scale_dy)
        scale = self.factors["scale_o"]
        shared = {"scale_o": scale, "descale_o": 1 / scale, "descale_w_o": self.factors["descale_w_o"]}
        found = {**shared, "alpha_b1": self.found["descale_dy"] / scale, **self.found}
        rows = [found.get(name, 0.0) for name in SCALARS]
        return xp.concat([zero + row for row in rows])


class _Fp8(_Quantised):
    """A factor per tensor everywhere."""

    def attention(self, do: Any, q: Any, k: Any, v: Any, lse: Any, delta: Any, visible: Visible) -> Any:
        xp, scale = self.xp, self.problem.geometry.scale
        codes, scale_do = self._encoded(do, "do", self.scale_do)
        do = codes / scale_do
        q, k, v = (
            codes_of(x, self.factors[f"scale_{n}"]) / self.factors[f"scale_{n}"]
            for n, x in zip("qkv", (q, k, v), strict=True)
        )
        self.found["amax_dp"] = largest_score_gradient(xp, do, q, k, v, lse, delta, visible, scale)
        lift_ds = xp.reshape(self.scale_dp, (1,))
        self.found["descale_dp"] = 1 / lift_ds
        return attend_gradients(xp, do, q, k, v, lse, delta, visible, scale, CODES, lift=LIFT, lift_ds=lift_ds)

    def projected(self, gradient: Any) -> None:
        self.gradient, scale = self._encoded(gradient, "dqkvg", self.scale_dqkvg)
        self.alpha_h = self.factors["descale_w_qkvg"] / scale
        self.alpha_weight = self.factors["descale_h"] / scale

    def by_hidden(self) -> Any:
        return super().by_hidden() * self.alpha_h

    def by_first_weight(self) -> Any:
        return super().by_first_weight() * self.alpha_weight

    def numbers(self) -> Any:
        factors = self.factors
        self.found |= {name: factors[name] for name in ("descale_h", "descale_w_qkvg")}
        for name in "qkv":
            scale = factors[f"scale_{name}"]
            self.found |= {f"scale_{name}": scale, f"descale_{name}": 1 / scale}
        self.found |= {"alpha_b7": self.alpha_weight, "alpha_b8": self.alpha_h}
        self.found |= {"scale_s": LIFT, "descale_s": 1 / LIFT, "scale_dqkv": 1.0}
        return super().numbers()


class _Mxfp8(_Quantised):
    """Blocks of 32 along the axis that each product sums over."""

    def attention(self, do: Any, q: Any, k: Any, v: Any, lse: Any, delta: Any, visible: Visible) -> Any:
        xp, scale = self.xp, self.problem.geometry.scale
        of_q, of_do, of_k = (along_tokens(xp, x, self.offsets) for x in (q, do, k))
        do, q, k, v = (mx_values(x, -1) for x in (do, q, k, v))
        return attend_gradients(
            xp, do, q, k, v, lse, delta, visible, scale, CODES, io_ds=self.io, lift=LIFT, by_token=(of_q, of_do, of_k)
        )

    def by_hidden(self) -> Any:
        weight = scaled(self.xp, self.w_t, self.w_t_sf, fp4=self.problem.w_fp4)
        return product(self.xp, mx_values(self.gradient, -1), self.xp.matrix_transpose(weight))

    def by_first_weight(self) -> Any:
        rows = mx_values(_tokens(self.xp, self.gradient), -2)
        hidden = scaled(self.xp, self.h_t, self.h_t_sf, fp4=False)
        return product(self.xp, self.xp.matrix_transpose(rows), self.xp.matrix_transpose(hidden))


def products_of(
    problem: GatedAttentionBlockBackward,
    xp: Any,
    operands: tuple[Any, Any, Any, Any],
    offsets: Any,
    rest: tuple[Any, ...],
) -> Products:
    """The products of a problem's formats."""
    if problem.quant is None:
        return Products(problem, xp, operands, offsets)
    return {"fp8": _Fp8, "mxfp8": _Mxfp8}[problem.quant](problem, xp, operands, offsets, rest)
