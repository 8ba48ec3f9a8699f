"""Bulk copies into shared memory and the barriers that tell of their arrival (SM90 and up), at plain addresses.

The tensor copies of the GEMMs go through the DSL's pipelines; a row needs no descriptor. Shared-memory addresses are
Int32. A barrier is eight bytes; it completes when its arrivals have come and all bytes that they announced.
"""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Int64

from cudnn_fe.core.cute.ptx_base import assemble

__all__ = ["announce", "barriers_are_set", "bulk_load", "send", "set_barrier", "wait"]


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


def bulk_load(shared: Any, address: Any, nbytes: Any, barrier: Any) -> None:
    """Begin to copy bytes, a multiple of 16 between multiples of 16; ``barrier`` counts them as they arrive."""
    code = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    assemble(code, [], [Int32(shared), Int64(address), Int32(nbytes), Int32(barrier)])


def send(place: Any, value: Any, barrier: Any) -> None:
    """Write an fp32 value into another CTA, whose barrier counts its four bytes; addresses of the cluster's window."""
    code = "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [$0], $1, [$2];"
    assemble(code, [], [Int32(place), Float32(value), Int32(barrier)])
