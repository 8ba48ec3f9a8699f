"""Executes PTX on the host: every register is an array over the threads of a grid, and the lowest place goes first.

It knows what portable kernels are made of: arithmetic, branches, shuffles, barriers, global and shared memory, a warp's
matrix products, clusters; no bulk copies or products of warp groups. Approximate instructions (exponential, reciprocal,
roots) are rounded exactly, fused ones through extended precision. Reads and writes outside the arrays that it was given
are errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudnn_fe_testkit.ptx import Instruction, Kernel
from cudnn_fe_testkit.ptx_arithmetic import LOGIC, Arithmetic
from cudnn_fe_testkit.ptx_clusters import Clusters
from cudnn_fe_testkit.ptx_matrix import multiplied
from cudnn_fe_testkit.ptx_memory import Memory
from cudnn_fe_testkit.ptx_values import BITS, convert, immediate, kind_of

__all__ = ["Machine", "TrapError"]

Array = np.ndarray[Any, Any]
_WARP = 32
_PARAMETER = "%param_"  # its number, times 2^32, stands for its address
_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": lambda x, y: (x != y) & (x == x) & (y == y),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "num": lambda x, y: (x == x) & (y == y),
    "nan": lambda x, y: (x != x) | (y != y),
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_NOTHING = frozenset({"membar", "fence", "griddepcontrol", "pragma", "prefetch", "nanosleep", "setmaxnreg"})


class TrapError(Exception):
    """A kernel gave up."""


class Machine(Arithmetic, Clusters):
    """One launch.

    Args:
        kernel: What runs.
        grid: Blocks along x, y and z.
        block: Threads of each, likewise.
        parameters: Bytes of each parameter.
        memory: Global memory.
        dynamic: Bytes of shared memory beside the kernel's own.
        cluster: Blocks of a cluster, neighbours along x.
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        parameters: list[bytes],
        memory: Memory,
        dynamic: int = 0,
        cluster: int = 1,
    ) -> None:
        self.kernel, self.parameters, self.memory, self.cluster = kernel, parameters, memory, cluster
        self.barriers, self.spins = {}, 0
        threads, blocks = int(np.prod(block)), int(np.prod(grid))
        self.threads = np.tile(np.arange(threads), blocks)
        self.blocks = np.repeat(np.arange(blocks), threads)
        self.shared = Memory.blank(blocks, kernel.shared_bytes + dynamic)
        self.registers: dict[str, Array] = {}
        self.special = {"%laneid": self.threads % _WARP, "%warpid": self.threads // _WARP}
        for name, index, extents in (("tid", self.threads, block), ("ctaid", self.blocks, grid)):
            rest = index
            for axis, extent in zip("xyz", extents, strict=True):
                self.special[f"%{name}.{axis}"] = rest % extent
                self.special[f"%n{name}.{axis}"] = np.full(len(index), extent)
                rest = rest // extent
        self.where = np.zeros(0, int)  # threads that take part in the instruction under way

    def run(self) -> None:
        """All threads to their end."""
        instructions = self.kernel.instructions
        end = len(instructions)
        place = np.zeros(len(self.threads), int)
        waiting = np.zeros(len(self.threads), bool)
        with np.errstate(all="ignore"):
            while True:
                able = (place < end) & ~waiting
                if not able.any():
                    if not waiting.any():
                        return
                    waiting[:] = False
                    continue
                here = int(place[able].min())
                together = np.nonzero(able & (place == here))[0]
                one = instructions[here]
                place[together] = here + 1
                self.where = together if one.guard is None else together[self._holds(one, together)]
                if one.name == "bra":
                    place[self.where] = self.kernel.labels[one.operands[0]]
                elif one.name in ("ret", "exit"):
                    place[self.where] = end
                elif one.name in ("bar", "barrier"):
                    waiting[self.where] = "arrive" not in one.words  # all blocks wait for each other: clusters too
                elif len(self.where):
                    self._execute(one)

    def _holds(self, one: Instruction, where: Array) -> Array:
        found: Array = self.registers[one.guard or ""][where] != 0
        return ~found if one.negated else found

    def _execute(self, one: Instruction) -> None:
        if one.name in _NOTHING:
            return
        method = getattr(self, f"_{one.name}", None)
        if method is None:
            raise NotImplementedError(f"{'.'.join((one.name, *one.words))} {', '.join(one.operands)}")
        method(one)

    # Values

    def read(self, operand: str, kind: str) -> Array:
        """An operand of the threads that take part, as numbers of a PTX type."""
        if operand in self.special:
            return self.special[operand][self.where].astype(kind_of(kind))
        if operand in self.registers:
            found: Array = self.registers[operand][self.where]
            if kind == "pred":
                holds: Array = found != 0
                return holds
            return found.astype(f"u{BITS[kind] // 8}").view(kind_of(kind))
        if operand.startswith(_PARAMETER):
            return np.full(len(self.where), int(operand.removeprefix(_PARAMETER)) << 32, kind_of(kind))
        if operand in self.kernel.shared:
            return np.full(len(self.where), self.kernel.shared[operand], kind_of(kind))
        return np.full(len(self.where), immediate(operand, kind))

    def write(self, register: str, values: Array) -> None:
        """Set a register of the threads that take part."""
        if register == "_":
            return
        if register not in self.registers:
            self.registers[register] = np.zeros(len(self.threads), np.uint64)
        values = np.ascontiguousarray(values)
        raw = values.astype(np.uint64) if values.dtype == bool else values.view(f"u{values.dtype.itemsize}")
        self.registers[register][self.where] = raw

    # Choices

    def _setp(self, one: Instruction) -> None:
        words, kind = list(one.words), one.words[-1]
        x, y = (self.read(name, kind) for name in one.operands[1:3])
        rule = words[0]
        if rule.endswith("u") and rule != "u":
            found = _COMPARE[rule[:-1]](x, y) | (x != x) | (y != y)
        else:
            found = _COMPARE[rule](x, y)
        if len(one.operands) > 3:
            found = LOGIC[words[1]](found, self.read(one.operands[3], "pred"))
        self.write(one.operands[0], found)

    def _testp(self, one: Instruction) -> None:
        x = self.read(one.operands[1], one.words[-1])
        rules = {"finite": np.isfinite, "infinite": np.isinf, "notanumber": np.isnan}
        self.write(one.operands[0], rules[one.words[0]](x))

    def _selp(self, one: Instruction) -> None:
        kind = one.words[-1]
        x, y = (self.read(name, kind) for name in one.operands[1:3])
        self.write(one.operands[0], np.where(self.read(one.operands[3], "pred"), x, y))

    # Moves

    def _mov(self, one: Instruction) -> None:
        to, source = one.operands
        kind = one.words[-1]
        if to.startswith("{"):
            names = _names(to)
            self._spread(names, self.read(source, kind), BITS[kind] // len(names))
        elif source.startswith("{"):
            names = _names(source)
            self.write(to, self._gathered(names, kind))
        else:
            self.write(to, self.read(source, kind))

    def _spread(self, names: list[str], value: Array, bits: int) -> None:
        for index, name in enumerate(names):
            self.write(name, (value >> np.array(bits * index, value.dtype)).astype(f"u{bits // 8}"))

    def _gathered(self, names: list[str], kind: str) -> Array:
        bits = BITS[kind] // len(names)
        found = np.zeros(len(self.where), kind_of(kind))
        for index, name in enumerate(names):
            found |= self.read(name, f"b{bits}").astype(found.dtype) << np.array(bits * index, found.dtype)
        return found

    def _cvt(self, one: Instruction) -> None:
        to, source = one.words[-2:]
        given = [self.read(x, source) for x in one.operands[1:]]
        value = given[0] if len(given) == 1 else np.stack(given[::-1])
        self.write(one.operands[0], convert(value, source, to, one.words))

    def _ld(self, one: Instruction) -> None:
        names, kind = _names(one.operands[0]), one.words[-1]
        if one.words[0] == "param":
            self._parameter(one, names, BITS[kind] // 8)
            return
        for register, value in zip(names, self._reach(one, one.operands[1], len(names)), strict=True):
            self.write(register, value)

    def _parameter(self, one: Instruction, names: list[str], size: int) -> None:
        """Loads from the launch's parameters, of which threads may choose different ones."""
        name, offset = _place(one.operands[1])
        address = self.read(name, "u64").astype(int) + offset
        values = np.zeros((len(names), len(address)), f"u{size}")
        for one_address in np.unique(address):
            raw = self.parameters[one_address >> 32][one_address & 0xFFFFFFFF :]
            found = np.frombuffer(raw[: len(names) * size], f"u{size}")
            values[:, address == one_address] = found[:, None]
        for register, value in zip(names, values, strict=True):
            self.write(register, value)

    def _st(self, one: Instruction) -> None:
        if one.words[0] == "async":
            self._store_async(one)
            return
        kind = one.words[-1]
        values = [self.read(name, f"b{BITS[kind]}") for name in _names(one.operands[1])]
        self._reach(one, one.operands[0], len(values), values)

    def _red(self, one: Instruction) -> None:
        """Changes memory thread by thread."""
        kind, everyone = one.words[-1], self.where
        rules: dict[str, Callable[[Array, Array], Array]] = {"add": np.add, "max": np.fmax, "min": np.fmin, **LOGIC}
        rule = next(rules[word] for word in one.words if word in rules)
        values = self.read(one.operands[1], kind)
        for index, value in enumerate(values):
            self.where = everyone[index : index + 1]
            (found,) = self._reach(one, one.operands[0], 1)
            total = rule(found.view(kind_of(kind)), value).astype(kind_of(kind))
            self._reach(one, one.operands[0], 1, [total.view(found.dtype)])
        self.where = everyone

    def _reach(self, one: Instruction, operand: str, count: int, values: list[Array] | None = None) -> list[Array]:
        """Loads from, or stores to, the address of an operand."""
        name, offset = _place(operand)
        address = self.read(name, "s64") + offset
        size = BITS[one.words[-1]] // 8
        memory = self.shared if "shared" in one.words else self.memory
        if memory is self.shared:
            address = memory.of_block(self.blocks[self.where], address)
        return memory.access(address, size, count, values)

    def _cp(self, one: Instruction) -> None:
        """``cp.async``: done at once, so that committing and waiting do nothing."""
        if "shared" not in one.words:
            return
        size = int(one.operands[2])
        used = (
            self.read(one.operands[3], "u32").astype(int) if len(one.operands) > 3 else np.full(len(self.where), size)
        )
        (to, ahead), (source, behind) = _place(one.operands[0]), _place(one.operands[1])
        target = self.shared.of_block(self.blocks[self.where], self.read(to, "s64") + ahead)
        origin, everyone = self.read(source, "s64") + behind, self.where
        words = [np.zeros(len(everyone), np.uint32) for _ in range(size // 4)]
        for index in range(size // 4):
            there = used > 4 * index
            words[index][there] = self.memory.access(origin[there] + 4 * index, 4, 1)[0]
        self.shared.access(target, 4, size // 4, words)

    # Warps

    def _ldmatrix(self, one: Instruction) -> None:
        """Matrices of 8 x 8 words of 16 bits; eight lanes in turn hold the rows' addresses of each."""
        name, offset = _place(one.operands[1])
        address = self.shared.of_block(self.blocks[self.where], self.read(name, "s64") + offset)
        lane, first = self.where % _WARP, np.arange(len(self.where)) // _WARP * _WARP
        for matrix, register in enumerate(_names(one.operands[0])):
            row, column = lane // 4, lane % 4 * 2
            halves = []
            for half in range(2):
                at, within = (column + half, row) if "trans" in one.words else (row, column + half)
                halves.append(self.shared.access(address[first + 8 * matrix + at] + 2 * within, 2, 1)[0])
            self.write(register, halves[0].astype(np.uint32) | halves[1].astype(np.uint32) << np.uint32(16))

    def _shfl(self, one: Instruction) -> None:
        mode = one.words[1]
        lane = self.where % _WARP
        other, clamp = (self.read(name, "u32").astype(int) for name in one.operands[2:4])
        segment, last = clamp >> 8 & 31, clamp & 31
        within = lane & segment
        highest = within | (last & ~segment)
        source = {
            "bfly": lambda: lane ^ other,
            "idx": lambda: within | (other & ~segment & 31),
            "up": lambda: lane - other,
            "down": lambda: lane + other,
        }[mode]()
        valid = source >= highest if mode == "up" else source <= highest
        source = np.where(valid, source, lane)
        origin = self.where - lane + source
        if not np.isin(origin, self.where).all():
            raise TrapError(f"a shuffle reads a lane that is elsewhere: {one}")
        to, *predicate = one.operands[0].split("|")
        self.write(to, self.registers[one.operands[1]][origin].astype(np.uint32))
        for name in predicate:
            self.write(name, valid)

    def _mma(self, one: Instruction) -> None:
        """A warp's product of a shape whose sums are float32."""
        shape, kind = next(word for word in one.words if word[:3] == "m16"), one.words[-3]
        if not shape.startswith("m16n8k") or one.words[-1] != "f32" or len(self.where) % _WARP:
            raise NotImplementedError(".".join((one.name, *one.words)))
        groups = [_names(operand) for operand in one.operands]
        read = [[self.read(name, "b32").reshape(-1, _WARP) for name in names] for names in groups[1:]]
        total = np.stack(read[2]).view(np.float32)
        for name, value in zip(groups[0], multiplied(read[0], read[1], total, kind, int(shape[6:])), strict=True):
            self.write(name, value.reshape(-1))

    def _trap(self, one: Instruction) -> None:
        raise TrapError("the kernel trapped")


def _names(operand: str) -> list[str]:
    return [name.strip() for name in operand.strip("{}").split(",")]


def _place(operand: str) -> tuple[str, int]:
    """The register or variable of ``[name+offset]``, and the offset."""
    name, _, offset = operand.strip("[]").replace("+-", "-").replace("-", "+-").partition("+")
    return name.strip(), int(offset or 0)
