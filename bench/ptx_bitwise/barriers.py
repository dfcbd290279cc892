# ruff: noqa: E501 (PTX statements that belong together stay on one line)
"""mbarrier results and parities; cp.async with zero fill; bulk copies and reductions; async proxies within one CTA."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ptx_bitwise import values
from ptx_bitwise.case import Buffer, Case
from ptx_bitwise.regs import Kernel, words

SIZE = 4096
INIT = """add.u32 %n3, %smem, PLACE; setp.eq.u32 %one, %me, 0;
@%one mbarrier.init.shared.b64 [%n3], COUNT; @%one fence.mbarrier_init.release.cluster; bar.sync 0;"""
WAIT = """LAB_WAIT: mbarrier.try_wait.parity.shared.b64 %go, [%n3], 0; @!%go bra LAB_WAIT;"""
DECLARE = ".reg .pred %one; .reg .b64 %st, %st2, %adr, %adr2;"


def init(count: int, place: int = SIZE) -> str:
    """%n3 becomes the address of a barrier behind the image, initialised for `count` arrivals; %one is thread 0."""
    return INIT.replace("COUNT", str(count)).replace("PLACE", str(place))


def show(register: str) -> str:
    """Predicate %go as a number."""
    return f"selp.u32 {register}, 1, 0, %go;"


def states() -> Iterator[Case]:
    """Pending counts of returned states and what waits answer, phase by phase; one thread, so everything is determined."""
    arrive = "mbarrier.arrive{}.shared.b64 %st, [%n3]{};"
    pending = "mbarrier.pending_count.b64 %d{}, %st;"
    test = "mbarrier.test_wait.shared.b64 %go, [%n3], %st2;"
    parity = "mbarrier.test_wait.parity.shared.b64 %go, [%n3], {};"
    scripts = {
        "arrive": [arrive.format("", ""), arrive.format("", ", 2"), arrive.format("", "")],
        "arrive.release.cta": [arrive.format(".release.cta", ""), arrive.format(".release.cluster", ", 3")],
        "arrive.noComplete": [
            arrive.format(".noComplete", ", 1"),
            arrive.format(".noComplete", ", 2"),
            arrive.format("", ""),
        ],
        "arrive_drop": [
            "mbarrier.arrive_drop.shared.b64 %st, [%n3];",
            arrive.format("", ", 3"),
            arrive.format("", ", 2"),
        ],
        "arrive_drop.noComplete": [
            "mbarrier.arrive_drop.noComplete.shared.b64 %st, [%n3], 2;",
            arrive.format("", ", 2"),
        ],
        "arrive.expect_tx": [
            "mbarrier.arrive.expect_tx.shared.b64 %st, [%n3], 64;",
            arrive.format("", ", 3"),
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%n3], 64;",
        ],
        "expect_tx": [
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%n3], 32;",
            arrive.format("", ", 4"),
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%n3], 16;",
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%n3], 16;",
        ],
    }
    for name, steps in scripts.items():
        lines, at = [init(4), "mov.b64 %st, 0; mov.b64 %st2, 0;"], 0
        for index, step in enumerate(steps):
            lines.append(step)
            if "%st," in step:
                lines += [pending.format(at)] + (["mov.b64 %st2, %st;"] if index == 0 else [])
                at += 1
            lines += [
                test,
                show(f"%d{at}"),
                parity.format(0),
                show(f"%d{at + 1}"),
                parity.format(1),
                show(f"%d{at + 2}"),
                "mbarrier.try_wait.parity.shared.b64 %go, [%n3], 1;",
                show(f"%d{at + 3}"),
            ]
            at += 4
        yield Kernel(
            f"mbarrier.{name} and waits",
            f"mbarrier.{name}.shared.b64",
            "\n".join(lines),
            {},
            {"d": (at, np.uint32)},
            threads=1,
            smem=SIZE + 64,
            declare=DECLARE,
            family="mbarrier",
        ).case()
    for form in ("test_wait", "try_wait", "test_wait.acquire.cta", "try_wait.acquire.cluster"):
        body = f"{init(32)} mbarrier.arrive.shared.b64 %st, [%n3]; LOOP: mbarrier.{form}.shared.b64 %go, [%n3], %st; @!%go bra LOOP;"
        yield Kernel(
            f"mbarrier.{form} by state",
            f"mbarrier.{form}.shared.b64",
            body + "mov.u32 %d0, %me;",
            {},
            {"d": (1, np.uint32)},
            smem=SIZE + 64,
            declare=DECLARE,
            family="mbarrier",
        ).case()


def cp_async() -> Iterator[Case]:
    """Sizes, zero fill, predicated fill, groups, arrival on a barrier."""
    source = words((64, 4), 11)
    for cache, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        for fill in ("", "zero", "ignore"):
            for end in ("group", "all", "noinc"):
                if fill and end != "group":
                    continue
                address = (
                    f"ld.param.u64 %adr, [x0]; mad.wide.u32 %adr, %me, 16, %adr; mad.lo.u32 %n0, %me, {size}, %smem;"
                )
                tail = ""
                if fill == "zero":
                    address += f"and.b32 %n1, %me, {size - 1};"
                    tail = ", %n1"
                if fill == "ignore":
                    address += "and.b32 %n1, %me, 1; setp.eq.u32 %go, %n1, 0;"
                    tail = ", %go"
                hint = ".L2::128B" if end == "all" else ""
                form = f"cp.async.{cache}.shared.global{hint}"
                finish = {
                    "group": "cp.async.commit_group; cp.async.wait_group 0;",
                    "all": "cp.async.wait_all;",
                    "noinc": f"cp.async.mbarrier.arrive.noinc.shared.b64 [%n3]; {WAIT}",
                }[end]
                body = f"{init(32)} {address} {form} [%n0], [%adr], {size}{tail}; {finish} bar.sync 0;"
                yield Kernel(
                    f"{form} {size} {fill} {end}",
                    form,
                    body,
                    image=np.zeros(SIZE, np.uint8),
                    shared_out=1024,
                    extra=(Buffer(source),),
                    declare=DECLARE,
                    family="copy",
                    smem=SIZE + 64,
                ).case()


REDUCTIONS = {
    "add": ("u32", "s32", "u64", "f16.noftz", "bf16.noftz"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}


def bulk() -> Iterator[Case]:
    """Whole-buffer copies in all directions and reductions to global and shared memory."""
    image, source = words((SIZE // 4,), 12), words((SIZE // 4,), 13)
    for size, hint in ((16, ""), (2048, ""), (1024, ".L2::cache_hint")):
        policy = "createpolicy.fractional.L2::evict_last.b64 %st, 1.0;" if hint else ""
        tail = ", %st" if hint else ""
        form = f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{hint}"
        body = f"""{init(1)} {policy} ld.param.u64 %adr, [x0]; @%one mbarrier.arrive.expect_tx.shared.b64 %st2, [%n3], {size};
@%one {form} [%smem+64], [%adr+32], {size}, [%n3]{tail}; {WAIT} bar.sync 0;"""
        yield Kernel(
            f"{form} {size}",
            form,
            body,
            image=image,
            shared_out=SIZE,
            extra=(Buffer(source),),
            declare=DECLARE,
            family="copy",
            smem=SIZE + 64,
        ).case()
        form = f"cp.async.bulk.global.shared::cta.bulk_group{hint}"
        body = f"""setp.eq.u32 %one, %me, 0; {policy} ld.param.u64 %adr, [x0]; @%one {form} [%adr+32], [%smem+64], {size}{tail};
@%one cp.async.bulk.commit_group; @%one cp.async.bulk.wait_group 0;"""
        yield Kernel(
            f"{form} {size}",
            form,
            body,
            image=image,
            extra=(Buffer(source, True),),
            declare=DECLARE,
            family="copy",
            smem=SIZE + 64,
        ).case()
    for op, kinds in REDUCTIONS.items():
        for kind in kinds:
            plain = kind.split(".")[0]
            noftz = ".noftz" if "noftz" in kind else ""
            yield _bulk_reduction(f"{op}{noftz}.{plain}", plain, op + kind)
    for plain in ("f32", "f64"):
        yield _bulk_reduction(f"add.{plain}", plain, "bulk" + plain)


def _bulk_reduction(operation: str, plain: str, seed: str) -> Case:
    """`operation` of SIZE bytes of shared memory onto global memory."""
    left, right = (v.view(np.uint8)[:SIZE] for v in values.operands([plain, plain], seed, SIZE // 2))
    form = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}"
    body = f"""setp.eq.u32 %one, %me, 0; ld.param.u64 %adr, [x0]; @%one {form} [%adr], [%smem], {SIZE};
@%one cp.async.bulk.commit_group; @%one cp.async.bulk.wait_group 0;"""
    extra = (Buffer(right.copy(), True),)
    return Kernel(form, form, body, image=left, extra=extra, declare=DECLARE, family="copy", smem=SIZE + 64).case()


def cases() -> Iterator[Case]:
    """Every case of this family."""
    yield from states()
    yield from cp_async()
    yield from bulk()
