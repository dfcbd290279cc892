"""Wrong versions of a GEMM kernel, made by editing its PTX: one synchronisation instruction less, or slightly off.

A mutant edits one instruction ("site") of one entry; an operator returns the new line, or None where it has no use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_BARRIER = re.compile(r"\[(%r\d+|remote)\]")


def _drop(pattern: str) -> Callable[[str], str | None]:
    return lambda line: "" if re.match(pattern, line) else None


def _wait_passes(line: str) -> str | None:
    found = re.match(r"mbarrier\.try_wait\S+ (\w+),", line)
    return f"setp.eq.u32 {found[1]}, 0, 0;" if found else None


def _wait_phase(line: str) -> str | None:
    found = re.match(r"(mbarrier\.try_wait\S+ \w+, \[%r\d+\], )(%r\d+);", line)
    return f"{{ .reg .b32 flipped; xor.b32 flipped, {found[2]}, 1; {found[1]}flipped; }}" if found else None


def _next_barrier(pattern: str) -> Callable[[str], str | None]:
    """The barrier 8 bytes on: that of the next stage, or of another kind behind the last one."""
    return lambda line: _BARRIER.sub(r"[\1+8]", line, count=1) if re.match(pattern, line) else None


def _expect(delta: int) -> Callable[[str], str | None]:
    def edit(line: str) -> str | None:
        found = re.match(r"(mbarrier\.arrive\.expect_tx\S+ _, \[%r\d+\], )(%r\d+);", line)
        if not found:
            return None
        return f"{{ .reg .b32 bytes; add.s32 bytes, {found[2]}, {delta}; {found[1]}bytes; }}"

    return edit


OPERATORS: dict[str, Callable[[str], str | None]] = {
    "drop wait": _wait_passes,
    "wrong phase": _wait_phase,
    "wait on next barrier": _next_barrier(r"mbarrier\.try_wait"),
    "drop arrive": _drop(r"mbarrier\.arrive\.shared"),
    "arrive at next barrier": _next_barrier(r"mbarrier\.arrive\.shared"),
    "drop cluster arrive": _drop(r"mbarrier\.arrive\.release\.cluster"),
    "expect 16 bytes less": _expect(-16),
    "expect 16 bytes more": _expect(16),
    "expect on next barrier": _next_barrier(r"mbarrier\.arrive\.expect_tx"),
    "drop commit": _drop(r"tcgen05\.commit|wgmma\.commit"),
    "commit to next barrier": _next_barrier(r"tcgen05\.commit"),
    "drop tcgen05 fence": _drop(r"tcgen05\.fence"),
    "drop wait for loads": _drop(r"tcgen05\.wait"),
    "drop wgmma fence": _drop(r"wgmma\.fence"),
    "drop wgmma wait": _drop(r"wgmma\.wait"),
    "drop proxy fence": _drop(r"fence\.proxy\.async"),
    "drop init fence": _drop(r"fence\.mbarrier_init"),
    "drop store wait": _drop(r"cp\.async\.bulk\.wait_group"),
    "drop store commit": _drop(r"cp\.async\.bulk\.commit_group"),
    "drop warp sync": _drop(r"bar\.warp\.sync"),
    "drop block sync": _drop(r"bar\.sync"),
    "drop cluster sync": _drop(r"barrier\.cluster\.(arrive|wait)"),
    "drop free": _drop(r"tcgen05\.dealloc"),
}


# Instructions of which each single one may be covered by a neighbour: all are dropped together.
EVERYWHERE = ("tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;")


@dataclass(frozen=True)
class Mutant:
    """`name` tells the operator and which of its sites, in program order; `where` is the instruction."""

    name: str
    where: str
    text: str


def entry(ptx: str, symbol: str) -> str:
    """The module reduced to one kernel."""
    kernels = [(found.start(), found[2]) for found in re.finditer(r"^(\.visible )?\.entry (\w+)\(", ptx, re.M)]
    start = next(at for at, name in kernels if name == symbol)
    depth = 0
    for brace in re.compile(r"[{}]").finditer(ptx, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return ptx[: kernels[0][0]] + ptx[start : brace.end()] + "\n"
    raise ValueError(f"{symbol} has no end")


def mutants(text: str) -> Iterator[Mutant]:
    """Every operator at every site, then every instruction of a kind; cluster barriers lose their halves together."""
    lines = text.split("\n")
    for name, edit in OPERATORS.items():
        count = 0
        for number, line in enumerate(lines):
            changed = edit(line.strip())
            if changed is None or (name == "drop cluster sync" and "wait" in line):
                continue
            rest = lines[number + 2 :] if name == "drop cluster sync" else lines[number + 1 :]
            yield Mutant(f"{name} {count}", line.strip()[:90], "\n".join([*lines[:number], changed, *rest]))
            count += 1
    for pattern in EVERYWHERE:
        if pattern in text:
            yield Mutant(f"drop every {pattern}", pattern, text.replace(pattern, ""))
