"""Other CTAs' shared memory in a cluster, and barriers that tell of what they sent (SM90 and up).

A barrier is eight bytes of shared memory; it completes when its arrivals have come and all bytes that they announced.
"""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32

from cudnn_fe.core.cute.ptx_base import assemble

__all__ = ["announce", "barriers_are_set", "remote_address", "send", "set_barrier", "store_remote", "wait"]


def remote_address(local: Any, rank: Any) -> Int32:
    """The address, in the cluster's shared window, of the same place in the CTA of that rank."""
    (address,) = assemble("mapa.shared::cluster.u32 $0, $1, $2;", [Int32], [Int32(local), Int32(rank)])
    return address


def store_remote(address: Int32, values: list[Any]) -> None:
    """Write one or four fp32 values to another CTA; the DSL's own copies there go four bytes at a time."""
    names = ", ".join(f"${index + 1}" for index in range(len(values)))
    names, form = (f"{{{names}}}", "v4.f32") if len(values) == 4 else (names, "f32")
    assemble(f"st.shared::cluster.{form} [$0], {names};", [], [address, *(Float32(value) for value in values)])


def set_barrier(barrier: Any, arrivals: int = 1) -> None:
    """Initialise a barrier; one thread does it, and `barriers_are_set` follows."""
    assemble(f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", [], [Int32(barrier)])


def barriers_are_set() -> None:
    """Let the copy engine and the other CTAs of the cluster see initialised barriers."""
    assemble("fence.mbarrier_init.release.cluster;", [], [])


def announce(barrier: Any, nbytes: Any) -> None:
    """Arrive, and announce so many bytes."""
    assemble("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", [], [Int32(barrier), Int32(nbytes)])


def wait(barrier: Any, phase: Any) -> None:
    """Wait until the barrier's lap of this parity is complete."""
    code = "{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @!done bra AGAIN; }"
    assemble(code, [], [Int32(barrier), Int32(phase)])


def send(place: Any, value: Any, barrier: Any) -> None:
    """Write an fp32 value into another CTA, whose barrier counts its four bytes; addresses of the cluster's window."""
    code = "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [$0], $1, [$2];"
    assemble(code, [], [Int32(place), Float32(value), Int32(barrier)])
