"""PTX read into instructions, which `ptx_machine` executes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

__all__ = ["Instruction", "Kernel", "parse"]

_ENTRY = re.compile(r"\.visible \.entry (\S+?)\((.*?)\)\s*(?:\.\w+[^\n{]*\n)*\s*\{\n", re.DOTALL)
_PARAMETER = re.compile(r"\.param (?:\.align \d+ )?\.(\w+) (?:\S+?)_param_\d+(?:\[(\d+)\])?")
_SHARED = re.compile(r"^\.(?:extern )?\.?shared (?:\.align (\d+) )?\.(\w+) ([\w$]+)(?:\[(\d*)\])?;")
_LABEL = re.compile(r"^([\w$]+):(?!:)")
_STATEMENT = re.compile(r"^(?:@(!?)(%?\w+)\s+)?([\w.:]+)\s*(.*)$", re.DOTALL)


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        name: What it does: ``"add"``.
        words: The rest of its name, in order: ``("rn", "f32")``.
        operands: As they are written.
        guard: The predicate that must hold, or None.
        negated: Whether it must not hold instead.
    """

    name: str
    words: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str | None
    negated: bool


@dataclass(frozen=True)
class Kernel:
    """One entry of a module.

    Attributes:
        instructions: In order.
        labels: Positions of instructions by label.
        parameters: Bytes of each parameter.
        shared: Offsets of the variables in shared memory; what a launch adds begins at ``shared_bytes``.
        shared_bytes: Bytes that these take.
    """

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    parameters: tuple[int, ...]
    shared: dict[str, int]
    shared_bytes: int


def parse(text: str) -> dict[str, Kernel]:
    """The kernels of a module by name."""
    outside = _shared_variables(text[: text.find(".visible .entry")])
    kernels = {}
    starts = list(_ENTRY.finditer(text))
    for position, start in enumerate(starts):
        end = starts[position + 1].start() if position + 1 < len(starts) else len(text)
        body = text[start.end() : end]
        body = body[: body.rfind("\n}")].replace(f"{start[1]}_param_", "%param_")
        kernels[start[1]] = _kernel(body, start[2], outside)
    return kernels


def _shared_variables(text: str) -> list[tuple[str, int, int]]:
    """Name, alignment and bytes of what is declared in shared memory."""
    found = []
    for line in text.split("\n"):
        match = _SHARED.match(line.strip())
        if match:
            count = int(match[4]) if match[4] else 0 if "[" in line else 1
            found.append((match[3], int(match[1] or 1), count * _bytes(match[2])))
    return found


def _bytes(kind: str) -> int:
    return int(kind.strip("bsufx")) // 8


def _kernel(body: str, declared: str, outside: list[tuple[str, int, int]]) -> Kernel:
    parameters = tuple(_bytes(kind) * int(count or 1) for kind, count in _PARAMETER.findall(declared))
    shared: dict[str, int] = {}
    size = 0
    for name, align, length in sorted((*outside, *_shared_variables(body)), key=lambda row: row[2] == 0):
        size = -(-size // align) * align
        shared[name] = size
        size += length
    instructions: list[Instruction] = []
    labels = {}
    for number, line in enumerate(body.split("\n")):
        code = line.split("//")[0].strip()
        if not code or code.startswith("."):
            continue
        inside = code.startswith("{")  # inline assembly, whose labels are its own
        for one in _statements(code):
            label = _LABEL.match(one)
            if label:
                labels[f"{label[1]}.{number}" if inside else label[1]] = len(instructions)
            statement = one[label.end() :].strip() if label else one
            if statement:
                found = _instruction(statement)
                local = inside and found.name == "bra"
                instructions.append(replace(found, operands=(f"{found.operands[0]}.{number}",)) if local else found)
    return Kernel(tuple(instructions), labels, parameters, shared, size)


def _statements(code: str) -> list[str]:
    """The statements of a line; braces around all of them, of inline assembly, are left out."""
    code = code.removeprefix("{").removesuffix("}") if code.startswith("{") else code
    return [one for one in (part.strip() for part in _split(code, ";")) if one and not one.startswith(".")]


def _split(text: str, separator: str) -> list[str]:
    """Pieces between separators that are in no braces or brackets."""
    pieces, depth = [""], 0
    for character in text:
        depth += (character in "{[(") - (character in "}])")
        if character == separator and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces


def _instruction(statement: str) -> Instruction:
    match = _STATEMENT.match(statement)
    if match is None:
        raise ValueError(f"not PTX: {statement!r}")
    negated, guard, name, rest = match.groups()
    first, *words = name.split(".")
    operands = tuple(one.strip() for one in _split(rest, ",") if one.strip())
    return Instruction(first, tuple(words), operands, guard, negated == "!")
