"""Another CTA's shared memory, in a cluster (SM90 and up)."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32

from cudnn_fe.core.cute.ptx_base import assemble

__all__ = ["remote_address", "store_remote"]


def remote_address(local: Any, rank: Any) -> Int32:
    """The address, in the cluster's shared window, of the same place in the CTA of that rank."""
    (address,) = assemble("mapa.shared::cluster.u32 $0, $1, $2;", [Int32], [Int32(local), Int32(rank)])
    return address


def store_remote(address: Int32, values: list[Any]) -> None:
    """Write one or four fp32 values to another CTA; the DSL's own copies there go four bytes at a time."""
    names = ", ".join(f"${index + 1}" for index in range(len(values)))
    names, form = (f"{{{names}}}", "v4.f32") if len(values) == 4 else (names, "f32")
    assemble(f"st.shared::cluster.{form} [$0], {names};", [], [address, *(Float32(value) for value in values)])
