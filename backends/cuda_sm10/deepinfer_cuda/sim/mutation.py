"""Broken variants of PTX kernels, to measure what the simulator's checker catches.

A mutant changes one place of a kernel the way a programmer gets it wrong: a synchronisation is dropped, a byte count,
parity, stage or descriptor field is off. The share of mutants that end in an error, a finding or a wrong result is the
mutation score.
Invariants: every mutant is valid PTX and differs from the original in one statement (a cluster barrier in its two
halves, the "everywhere" kinds in all statements of a kind); its name, kind and ordinal among that kind's sites, stays
the same as long as the kernel's synchronisation does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Statements whose removal leaves valid PTX. Results of dropped waits are not used by anything but their own loop.
DROPPED = (
    "fence.",
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
    "bar.warp.sync",
    "barrier.sync",
    "barrier.cluster",
    "cp.async.bulk.wait_group",
    "cp.async.bulk.commit_group",
    "cp.async.commit_group",
    "cp.async.wait_group",
    "cp.async.wait_all",
)
# Statements of which each single one may be covered by a neighbour: all of a kind are dropped together as well.
EVERYWHERE = (
    "tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync", "bar.warp.sync", "fence.proxy.async",
)
STATEMENT = re.compile(r"^\s*(?P<guard>@!?[%\w]+\s+)?(?P<op>[a-z][\w.:]*)\s*(?P<args>.*);(?P<rest>[^;]*)$")


@dataclass(frozen=True)
class Mutant:
    """One broken kernel: what was done, to which line (1-based) of the original, and the whole new text."""

    kind: str
    site: int
    line: int
    statement: str
    text: str
    probe: str  # the original with a trap in place of the statement: a clean run proves the line is never reached

    @property
    def name(self) -> str:
        return f"{self.kind} {self.site}"

    def __str__(self) -> str:
        return f"{self.name} at PTX line {self.line}: {self.statement[:100]}"


def entry(ptx: str, symbol: str) -> str:
    """The module reduced to one kernel, so that no mutant lands in a kernel that is not run."""
    kernels = [(found.start(), found[2]) for found in re.finditer(r"^(\.visible )?\.entry (\w+)\(", ptx, re.M)]
    start = next(at for at, name in kernels if name == symbol)
    depth = 0
    for brace in re.compile(r"[{}]").finditer(ptx, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return ptx[: kernels[0][0]] + ptx[start : brace.end()] + "\n"
    raise ValueError(f"{symbol} has no end")


def _operands(args: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, c in enumerate(args):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            parts.append(args[start:i].strip())
            start = i + 1
    parts.append(args[start:].strip())
    return parts


@dataclass(frozen=True)
class _Statement:
    guard: str
    op: str
    operands: list[str]

    def changed(self, index: int, bits: int, instruction: str, value: str) -> str:
        """This with operand `index` replaced by `instruction operand, value`, in a scope of its own."""
        moved = [*self.operands[:index], "%mutant", *self.operands[index + 1 :]]
        prepare = f".reg .b{bits} %mutant; {instruction} %mutant, {self.operands[index]}, {value};"
        return f"{{ {prepare} {self.guard}{self.op} {', '.join(moved)}; }}"

    def moved(self, index: int, delta: int) -> str:
        """This with the address operand `index` moved by `delta` bytes."""
        base, _, offset = self.operands[index][1:-1].partition("+")
        place = f"[{base}+{int(offset or 0) + delta}]"
        return f"{self.guard}{self.op} {', '.join([*self.operands[:index], place, *self.operands[index + 1 :]])};"


_Changes = Iterator[tuple[str, str]]  # kinds with the statement that comes instead


def _waits(s: _Statement) -> Iterator[tuple[str, str]]:
    if ("try_wait.parity" in s.op or "test_wait.parity" in s.op) and len(s.operands) >= 3:
        yield "wait passes at once", f"{s.guard}setp.eq.u32 {s.operands[0]}, 0, 0;"
        yield "wait for the other phase", s.changed(2, 32, "xor.b32", "1")
        yield "wait on previous barrier", s.moved(1, -8)
        yield "wait on next barrier", s.moved(1, 8)


def _arrivals(s: _Statement) -> Iterator[tuple[str, str]]:
    if s.op.startswith(("mbarrier.arrive", "tcgen05.commit")):
        at = next(i for i, o in enumerate(s.operands) if o.startswith("["))
        yield "arrive at next barrier", s.moved(at, 8)
        yield "arrive at previous barrier", s.moved(at, -8)
    if "expect_tx" in s.op:
        yield "expect 16 bytes more", s.changed(len(s.operands) - 1, 32, "add.s32", "16")
        yield "expect 16 bytes less", s.changed(len(s.operands) - 1, 32, "add.s32", "-16")
    if s.op.startswith("mbarrier.init"):
        yield "one arrival more", s.changed(1, 32, "add.s32", "1")


def _products(s: _Statement) -> Iterator[tuple[str, str]]:
    if s.op.startswith(("wgmma.mma_async", "tcgen05.mma")):
        for index, name in ((1, "A"), (2, "B")):
            if not s.operands[index].startswith("%rd"):
                continue
            yield f"descriptor {name} start", s.changed(index, 64, "add.s64", "2")
            yield f"descriptor {name} stride", s.changed(index, 64, "xor.b64", "0x2000000000")
            yield f"descriptor {name} swizzle", s.changed(index, 64, "xor.b64", "0xC000000000000000")
    if s.op.startswith("tcgen05.mma"):
        yield "instruction format", s.changed(3, 32, "xor.b32", "128")
        yield "instruction N", s.changed(3, 32, "xor.b32", "0x40000")


def _variants(s: _Statement) -> Iterator[tuple[str, str]]:
    """(kind, replacement) for one statement; an empty replacement drops it."""
    dropped = next((prefix for prefix in DROPPED if s.op.startswith(prefix)), None)
    if dropped:
        yield f"drop {s.op if 'fence' in dropped else dropped}", ""
    yield from _waits(s)
    yield from _arrivals(s)
    yield from _products(s)


def _parsed(lines: list[str]) -> Iterator[tuple[int, str, _Statement]]:
    for number, line in enumerate(lines):
        found = STATEMENT.match(line)
        if found and ";" not in found["args"]:
            yield number, line.strip(), _Statement(found["guard"] or "", found["op"], _operands(found["args"]))


def _whole(lines: list[str], parsed: list[tuple[int, str, _Statement]]) -> Iterator[Mutant]:
    """Both halves of each cluster barrier, and every statement of a kind at once."""
    halves = [(n, line) for n, line, s in parsed if s.op.startswith("barrier.cluster.arrive")]
    site = 0
    for number, line in halves:
        if number + 1 < len(lines) and "barrier.cluster.wait" in lines[number + 1]:
            text = "\n".join([*lines[:number], "", "", *lines[number + 2 :]])
            probe = "\n".join([*lines[:number], "trap;", *lines[number + 1 :]])
            yield Mutant("drop cluster barrier", site, number + 1, line, text, probe)
            site += 1
    for op in EVERYWHERE:
        gone = {n for n, _, s in parsed if s.op.startswith(op)}
        if gone:
            first = min(gone)
            text = "\n".join("" if n in gone else line for n, line in enumerate(lines))
            probe = "\n".join("trap;" if n in gone else line for n, line in enumerate(lines))
            yield Mutant(f"drop every {op}", 0, first + 1, lines[first].strip(), text, probe)


def _exchanges(s: _Statement) -> Iterator[tuple[str, str]]:
    """Shared memory is written or read one vector further on."""
    if s.op.startswith(("st.shared", "ld.shared")):
        at = next(i for i, o in enumerate(s.operands) if o.startswith("["))
        yield f"{'store' if s.op[0] == 's' else 'load'} 16 bytes further", s.moved(at, 16)


def _single(
    lines: list[str], parsed: list[tuple[int, str, _Statement]], variants: Callable[[_Statement], _Changes]
) -> Iterator[Mutant]:
    """Mutants of one statement each, in line order."""
    sites: Counter[str] = Counter()
    for number, line, statement in parsed:
        before, after = lines[:number], lines[number + 1 :]
        probe = "\n".join([*before, f"{statement.guard}trap;", *after])
        for kind, replacement in variants(statement):
            text = "\n".join([*before, replacement, *after])
            yield Mutant(kind, sites[kind], number + 1, line, text, probe)
            sites[kind] += 1


def mutants(ptx: str) -> Iterator[Mutant]:
    """All mutants of a module's text, in line order, then those of several statements."""
    lines = ptx.split("\n")
    parsed = list(_parsed(lines))
    yield from _single(lines, parsed, _variants)
    yield from _whole(lines, parsed)


def exchange_mutants(ptx: str) -> Iterator[Mutant]:
    """Mutants of where threads put and find values, for kernels that share by plain loads and stores."""
    lines = ptx.split("\n")
    yield from _single(lines, list(_parsed(lines)), _exchanges)
