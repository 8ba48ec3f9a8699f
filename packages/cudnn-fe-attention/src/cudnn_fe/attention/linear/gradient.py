"""The derivatives of gated delta rules, for torch's autograd and JAX's ``custom_vjp``."""

from __future__ import annotations

from functools import partial
from typing import Any

from cudnn_fe.attention.arrays import zeros_like
from cudnn_fe.attention.linear.op import (
    GDN2_BACKWARD,
    GDN2_FORWARD,
    GDN_BACKWARD,
    GDN_FORWARD,
    KDA_BACKWARD,
    KDA_FORWARD,
    PRODUCT_BACKWARD,
    PRODUCT_FORWARD,
)
from cudnn_fe.core.call import call
from cudnn_fe.core.errors import NotYetSupportedError
from cudnn_fe.core.gradient import Gradient
from cudnn_fe.core.op import Op

__all__ = ["GDN", "GDN2", "KDA", "PRODUCT"]

_SHARED = (
    "use_qk_l2norm_in_kernel",
    "use_beta_sigmoid_in_kernel",
    "allow_neg_eigval",
    "safe_gate",
    "gate_lower_bound",
    "gate_domain",
    "beta_guard",
    "num_householder",
)


def _backward(
    forward: Op,
    backward: Op,
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    scalars: tuple[float, ...],
    needed: tuple[bool, ...],
    backend: str | None,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Any, ...]:
    *operands, out = saved
    names = forward.problem.operands
    named = {"state_indices": None, **dict(zip(names, operands, strict=True))}
    do, by_final, *by_kept = cotangents
    given = dict(options)
    for name, there in (
        ("state_indices", named["state_indices"] is not None),
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
    named |= {"do": zeros_like(out) if do is None else do, "d_final_state": final}
    grads = iter(call(backward, tuple(named[n] for n in backward.problem.operands), kept, scalars, backend=backend))
    apart = ("cu_seqlens", "state_indices")
    found = {name: next(grads) for name in names if name not in apart and named[name] is not None}
    return tuple(found.get(name) if wanted else None for name, wanted in zip(names, needed, strict=True))


GDN, KDA, GDN2, PRODUCT = (
    Gradient(
        name=forward.name,
        save=lambda operands, outputs: (*operands, outputs[0]),
        backward=partial(_backward, forward, backward),
        explicit=backward.name,
        with_options=True,
    )
    for forward, backward in (
        (GDN_FORWARD, GDN_BACKWARD),
        (KDA_FORWARD, KDA_BACKWARD),
        (GDN2_FORWARD, GDN2_BACKWARD),
        (PRODUCT_FORWARD, PRODUCT_BACKWARD),
    )
)
