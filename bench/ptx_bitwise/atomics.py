"""Atomics and reductions: every operation and type at every scope, on global, shared and generic addresses.

Each thread owns its word where the old value is compared; words shared by four threads are compared after commutative
integer operations only, so that no result depends on the order of threads.
"""

from __future__ import annotations

from collections.abc import Iterator

from ptx_bitwise import values
from ptx_bitwise.case import Case
from ptx_bitwise.lanes import case

OPERATIONS = {
    "add": ("u32", "s32", "u64", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
    "add.noftz": ("f16", "f16x2", "bf16", "bf16x2"),
}
ORDERED = {
    "add": ("u32", "u64"),
    "min": ("s32",),
    "max": ("u32", "s64"),
    "and": ("b32",),
    "or": ("b64",),
    "xor": ("b32",),
}
SCOPES = ("cta", "cluster", "gpu", "sys")
SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
SHARED = ".shared .align 16 .b8 sh[4096];"


def spill(width: int) -> tuple[str, str]:
    """Code before and after an operation on this thread's shared word at [%u]: load it, write it back to a's place."""
    before = f"mov.b32 %u, sh; mad.lo.u32 %u, %v, {width // 8}, %u; st.shared.b{width} [%u], %a; bar.sync 0;"
    return before, f"bar.sync 0; ld.shared.b{width} %a, [%u]; st.global.b{width} [%pa], %a;"


def own_word() -> Iterator[Case]:
    """Old and new value of a word of this thread's own."""
    for op, kinds in OPERATIONS.items():
        for kind in kinds:
            width, operand = values.bits(kind), "%b, %c" if op == "cas" else "%b"
            ins = [kind] * (3 if op == "cas" else 2)
            for space in ("global", "shared", ""):
                where = ".".join(filter(None, ("atom", space, op, kind)))
                before, after = spill(width)
                if space == "shared":
                    yield case(where, f"{before} {where} %d, [%u], {operand}; {after}", ins, kind, "atomic", SHARED)
                else:
                    yield case(where, f"{where} %d, [%pa], {operand};", ins, kind, "atomic")
            if op not in ("exch", "cas"):
                name = f"red.global.{op}.{kind}"
                yield case(name, f"{name} [%pa], %b; mov.b{width} %d, %b;", ins, kind, "atomic")


def semantics() -> Iterator[Case]:
    """Orderings and scopes do not change values."""
    for index, (scope, order) in enumerate((a, b) for a in SCOPES for b in SEMANTICS):
        op, kind = [("add", "u32"), ("exch", "b64"), ("max", "s32"), ("add", "f32"), ("xor", "b64")][index % 5]
        name = f"atom.{order}.{scope}.global.{op}.{kind}"
        yield case(name, f"{name} %d, [%pa], %b;", [kind, kind], kind, "atomic")
        name = f"atom.{order}.{scope}.global.cas.b32"
        yield case(name, f"{name} %d, [%pa], %b, %c;", ["b32", "b32", "b32"], "b32", "atomic")
        if order in ("relaxed", "release"):
            name = f"red.{order}.{scope}.global.add.u64"
            yield case(name, f"{name} [%pa], %b; mov.b64 %d, %b;", ["u64", "u64"], "u64", "atomic")


def contended() -> Iterator[Case]:
    """Four threads per word; the word is compared at the end."""
    for op, kinds in ORDERED.items():
        for kind in kinds:
            width = values.bits(kind)
            back = f"and.b32 %u, %v, 3; mul.lo.u32 %u, %u, {width // 8}; cvt.u64.u32 %x, %u; sub.u64 %x, %pa, %x;"
            name = f"red.global.{op}.{kind}"
            yield case(
                f"{name} contended",
                f"{back} {name} [%x], %b; mov.b{width} %d, %b;",
                [kind, kind],
                kind,
                "atomic",
                writes="a",
            )
            before, after = spill(width)
            shared = f"{before} and.b32 %w, %v, 3; mul.lo.u32 %w, %w, {width // 8}; sub.u32 %w, %u, %w;"
            name = f"red.shared.{op}.{kind}"
            yield case(
                f"{name} contended",
                f"{shared} {name} [%w], %b; mov.b{width} %d, %b; {after}",
                [kind, kind],
                kind,
                "atomic",
                SHARED + " .reg .b32 %w;",
            )


def vectors() -> Iterator[Case]:
    """Packed and vector forms (sm_90)."""
    forms = [
        (4, "f32", 2),
        (4, "f32", 4),
        (2, "f16", 2),
        (2, "f16", 4),
        (2, "f16", 8),
        (2, "bf16", 2),
        (2, "bf16", 8),
        (4, "f16x2", 2),
        (4, "bf16x2", 4),
    ]
    for size, kind, count in forms:
        parts, bits = [f"%w{i}" for i in range(count)], 8 * size
        load = f"and.b32 %u, %t, {-count}; sub.u32 %u, %t, %u; setp.eq.u32 %q, %u, 0;"
        declare = "".join(f".reg .b{bits} {p}, %o{p[1:]};" for p in parts)
        fetch = " ".join(f"@%q ld.global.b{bits} {p}, [%pb+{i * size}];" for i, p in enumerate(parts))
        flavour = ".noftz" if kind != "f32" else ""
        for what in ("atom", "red"):
            form = f"{what}.global.v{count}.{kind}.add{flavour}"
            old = ", ".join(f"%o{p[1:]}" for p in parts)
            target = f"{{{old}}}, " if what == "atom" else ""
            keep = f"@%q mov.b{bits} %d, %ow{count - 1};" if what == "atom" else ""
            body = f"mov.b{bits} %d, %a; {load} {fetch} @%q {form} {target}[%pa], {{{', '.join(parts)}}}; {keep}"
            yield case(form, body, [kind, kind], kind, "atomic", declare)
    wide = ".reg .b128 %w, %z, %n;"
    pair = "mov.b128 %n, {%b, %b}; mov.b128 %z, {%a, %a};"
    for op, body in (
        ("exch", "atom.global.exch.b128 %w, [%pa], %n;"),
        ("cas", "atom.global.cas.b128 %w, [%pa], %z, %n;"),
    ):
        alone = "and.b32 %u, %t, 1; setp.eq.u32 %q, %u, 0; mov.b64 %d, 0;"
        yield case(
            f"atom.global.{op}.b128",
            f"{alone} {pair} @%q {body} @%q mov.b128 {{%d, %x}}, %w;",
            ["b64", "b64"],
            "b64",
            "atomic",
            wide,
        )


def cases() -> Iterator[Case]:
    """Every case of this family."""
    yield from own_word()
    yield from semantics()
    yield from contended()
    yield from vectors()
