"""Broken variants of PTX kernels, to measure what the simulator's checker catches.

A mutant changes one statement of a kernel the way a programmer gets it wrong: a synchronisation is dropped, a byte
count, parity, stage or descriptor field is off. The share of mutants that end in an error, a finding or a wrong result
is the mutation score.
Invariants: every mutant is valid PTX, differs from the original in one line, and names that line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Statements whose removal leaves valid PTX. Results of dropped waits are not used by anything but their own loop.
DROPPED = (
    "fence.mbarrier_init",
    "fence.proxy",
    "tcgen05.fence",
    "tcgen05.wait",
    "tcgen05.commit",
    "tcgen05.dealloc",
    "wgmma.fence",
    "wgmma.commit_group",
    "wgmma.wait_group",
    "mbarrier.arrive",
    "mbarrier.init",
    "bar.sync",
    "barrier.sync",
    "barrier.cluster",
    "cp.async.bulk.wait_group",
    "cp.async.bulk.commit_group",
    "cp.async.commit_group",
    "cp.async.wait_group",
    "cp.async.wait_all",
)
STATEMENT = re.compile(r"^\s*(?P<guard>@!?[%\w]+\s+)?(?P<op>[a-z][\w.:]*)\s*(?P<args>.*);(?P<rest>[^;]*)$")


@dataclass(frozen=True)
class Mutant:
    """One broken kernel: what was done, to which line (1-based) of the original, and the whole new text."""

    kind: str
    line: int
    statement: str
    text: str
    probe: str  # the original with a trap in place of the statement: a clean run proves the line is never reached

    def __str__(self) -> str:
        return f"{self.kind} at PTX line {self.line}: {self.statement[:100]}"


def _operands(args: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, c in enumerate(args):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            parts.append(args[start:i].strip())
            start = i + 1
    parts.append(args[start:].strip())
    return parts


def _changed(op: str, operands: list[str], index: int, bits: int, instruction: str, value: str) -> str:
    """The statement with operand `index` replaced by `instruction operand, value`, in a scope of its own."""
    changed = list(operands)
    changed[index] = "%mutant"
    return f"{{ .reg .b{bits} %mutant; {instruction} %mutant, {operands[index]}, {value}; {op} {', '.join(changed)}; }}"


def _shifted(operand: str, delta: int) -> str:
    """[base+k] with k moved by delta bytes."""
    base, _, offset = operand[1:-1].partition("+")
    return f"[{base}+{int(offset or 0) + delta}]"


def _variants(op: str, operands: list[str]) -> Iterator[tuple[str, str]]:
    """(kind, replacement statement) for one statement; an empty replacement drops it."""
    if op.startswith(DROPPED):
        yield f"drop {'.'.join(op.split('.')[:2])}", ""
    if "expect_tx" in op:
        yield "bytes +16", _changed(op, operands, len(operands) - 1, 32, "add.s32", "16")
        yield "bytes -16", _changed(op, operands, len(operands) - 1, 32, "add.s32", "-16")
    if ("try_wait.parity" in op or "test_wait.parity" in op) and len(operands) >= 3:
        yield "phase flipped", _changed(op, operands, 2, 32, "xor.b32", "1")
        yield "stage of wait", f"{op} {operands[0]}, {_shifted(operands[1], -8)}, {', '.join(operands[2:])};"
    if op.startswith(("mbarrier.arrive", "tcgen05.commit")):
        at = next(i for i, o in enumerate(operands) if o.startswith("["))
        moved = [*operands[:at], _shifted(operands[at], 8), *operands[at + 1 :]]
        yield "stage of arrive", f"{op} {', '.join(moved)};"
    if op.startswith("mbarrier.init"):
        yield "count +1", _changed(op, operands, 1, 32, "add.s32", "1")
    if op.startswith(("wgmma.mma_async", "tcgen05.mma")):
        for index, name in ((1, "A"), (2, "B")):
            if not operands[index].startswith("%rd"):
                continue
            yield f"descriptor {name} start +32", _changed(op, operands, index, 64, "add.s64", "2")
            yield f"descriptor {name} stride", _changed(op, operands, index, 64, "xor.b64", "0x2000000000")
            yield f"descriptor {name} swizzle", _changed(op, operands, index, 64, "xor.b64", "0xC000000000000000")
    if op.startswith("tcgen05.mma"):
        yield "instruction descriptor format", _changed(op, operands, 3, 32, "xor.b32", "128")
        yield "instruction descriptor N", _changed(op, operands, 3, 32, "xor.b32", "0x40000")


def mutants(ptx: str) -> Iterator[Mutant]:
    """All mutants of a module's text, in line order."""
    lines = ptx.split("\n")
    for number, line in enumerate(lines):
        found = STATEMENT.match(line)
        if not found or ";" in found["args"]:
            continue
        op, operands = found["op"], _operands(found["args"])
        for kind, replacement in _variants(op, operands):
            guard = found["guard"] or ""
            if guard and replacement.startswith("{"):
                continue  # a guard covers one instruction, not a scope
            before, after = lines[:number], lines[number + 1 :]
            body = "\n".join([*before, guard + replacement if replacement else "", *after])
            yield Mutant(kind, number + 1, line.strip(), body, "\n".join([*before, f"{guard}trap;", *after]))
