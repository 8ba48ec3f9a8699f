"""The PTX machine's clusters: shared memory of neighbouring blocks, and barriers that count arrivals and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cudnn_fe_testkit.ptx import Instruction
from cudnn_fe_testkit.ptx_memory import Memory

__all__ = ["Clusters"]

Array = np.ndarray[Any, Any]
_RANK = 24  # bits of an address inside a block; above them the block's rank, from one on
_PATIENCE = 1000  # turns of a wait after which nobody is left to end it


@dataclass
class _Barrier:
    """Arrivals that a phase waits for, those still to come, bytes still to come, and phases that are over."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def settle(self) -> None:
        """Begin the next phase where this one is complete."""
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, self.count


class Clusters:
    """Instructions of a machine whose blocks may reach their neighbours' shared memory."""

    shared: Memory
    blocks: Array
    cluster: int  # blocks of one
    where: Array
    barriers: dict[int, _Barrier]
    spins: int

    def read(self, operand: str, kind: str) -> Array:
        """An operand of the threads that take part."""
        raise NotImplementedError

    def write(self, register: str, values: Array) -> None:
        """Set a register of the threads that take part."""
        raise NotImplementedError

    def place(self, operand: str) -> Array:
        """Where an operand of shared memory lies, this block's or a neighbour's."""
        address = self.read(operand.strip("[]"), "u32").astype(int)
        own = self.blocks[self.where]
        rank, inside = address >> _RANK, address & ((1 << _RANK) - 1)
        block = np.where(rank > 0, own // self.cluster * self.cluster + rank - 1, own)
        return self.shared.of_block(block, inside)

    def _mapa(self, one: Instruction) -> None:
        address, rank = (self.read(x, "u32") for x in one.operands[1:])
        self.write(one.operands[0], (rank + np.uint32(1)) << np.uint32(_RANK) | address)

    def _mbarrier(self, one: Instruction) -> None:
        action = one.words[0]
        if action == "init":
            count = int(self.read(one.operands[1], "u32")[0])
            for address in self.place(one.operands[0]):
                self.barriers[int(address)] = _Barrier(count, count)
        elif action == "arrive":
            expected = self.read(one.operands[2], "u32") if "expect_tx" in one.words else 0 * self.where
            for address, more in zip(self.place(one.operands[1]), expected, strict=True):
                barrier = self.barriers[int(address)]
                barrier.bytes += int(more)
                barrier.pending -= 1
                barrier.settle()
        elif action == "try_wait" and "parity" in one.words:
            parity = self.read(one.operands[2], "u32").astype(int)
            phases = np.array([self.barriers[int(x)].phase for x in self.place(one.operands[1])])
            over = phases % 2 != parity
            self.spins = 0 if over.any() else self.spins + 1
            if self.spins > _PATIENCE:
                raise RuntimeError(f"nobody ends this wait: {one}")
            self.write(one.operands[0], over)
        else:
            raise NotImplementedError(".".join((one.name, *one.words)))

    def _store_async(self, one: Instruction) -> None:
        """``st.async``: bytes to a neighbour, counted by its barrier."""
        value = self.read(one.operands[1], "b32")
        self.shared.access(self.place(one.operands[0]), 4, 1, [value])
        for address in self.place(one.operands[2]):
            barrier = self.barriers[int(address)]
            barrier.bytes -= 4
            barrier.settle()
