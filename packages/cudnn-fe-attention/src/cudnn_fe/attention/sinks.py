"""Attention sinks: a score per head that takes weight and gives no value."""

from __future__ import annotations

from typing import Any

__all__ = ["sink_share"]

_INF = float("inf")


def sink_share(xp: Any, lse: Any, sink: Any) -> tuple[Any, Any]:
    """``logaddexp(lse, sink)`` and the sink's part of the weight, ``exp(sink - that)``.

    An infinite maximum of the two is their sum. Of two equal infinities each takes half, but an empty row, whose
    log-sum-exp is plus infinity, leaves the sink nothing.
    """
    sink = xp.broadcast_to(sink, lse.shape)
    high = xp.maximum(lse, sink)
    low = xp.minimum(lse, sink)
    joined = xp.where(xp.isinf(high), high, high + xp.log1p(xp.exp(low - high)))
    share = xp.where(lse == sink, xp.full_like(lse, 0.5), 1.0 / (1.0 + xp.exp(lse - sink)))
    return joined, xp.where(lse == _INF, xp.zeros_like(share), share)
