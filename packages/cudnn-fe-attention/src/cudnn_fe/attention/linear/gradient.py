"""The derivatives of gated delta rules, for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from functools import partial
from typing import Any

from cudnn_fe.attention.arrays import zeros_like
from cudnn_fe.attention.linear.op import GDN_BACKWARD, KDA_BACKWARD
from cudnn_fe.core.call import call
from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.core.op import Op

__all__ = ["GDN", "KDA"]

_SHARED = (
    "use_qk_l2norm_in_kernel",
    "use_beta_sigmoid_in_kernel",
    "allow_neg_eigval",
    "safe_gate",
    "gate_lower_bound",
    "gate_domain",
)


def _backward(
    op: Op,
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Any, ...]:
    *tokens, state, a_log, dt_bias, indices, out = saved
    do, by_final, *by_kept = cotangents
    given = dict(options)
    for name, there in (
        ("state_indices", indices is not None),
        ("overwrite_initial_state", given["overwrite_initial_state"]),
        ("checkpoints", any(x is not None for x in by_kept)),
    ):
        if there:
            raise NotYetSupportedError(
                name,
                got="a call that is differentiated",
                wanted="states that are passed and returned",
                remedy=f"leave {name} out, or detach what comes of it",
            )
    kept = tuple((name, value) for name, value in options if name in _SHARED)
    final = by_final if given["output_final_state"] else None
    operands = (*tokens, zeros_like(out) if do is None else do, final, state, a_log, dt_bias)
    grads = iter(call(op, operands, kept, scalars, backend=backend))
    by_token = [next(grads) for _ in range(5)]
    rest = [None if x is None else next(grads) for x in (state, a_log, dt_bias)]
    return tuple(x if wanted else None for x, wanted in zip((*by_token, None, *rest, None), needed, strict=True))


GDN, KDA = (
    Gradient(
        name=f"{name}_forward",
        save=lambda operands, outputs: (*operands, outputs[0]),
        backward=partial(_backward, op),
        explicit=f"{name}_backward",
        with_options=True,
    )
    for name, op in (("gated_delta_net", GDN_BACKWARD), ("kimi_delta_attention", KDA_BACKWARD))
)
