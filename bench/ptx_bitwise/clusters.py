# ruff: noqa: E501 (PTX statements that belong together stay on one line)
"""Clusters: addresses, remote loads, stores and atomics, st.async and red.async, multicast, remote barriers; and control flow.

Four CTAs of 64 threads; every CTA's shared memory is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ptx_bitwise import values
from ptx_bitwise.barriers import DECLARE, SIZE, WAIT
from ptx_bitwise.case import POISON, Buffer, Case, Map
from ptx_bitwise.regs import Kernel, words

CTAS, THREADS = 4, 64
MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
# %n1: rank of the next CTA; %n2: its image; %n3: own barrier
RING = f"""mov.u32 %n0, %cluster_ctarank; add.u32 %n1, %n0, 1; and.b32 %n1, %n1, {CTAS - 1}; mapa.shared::cluster.u32 %n2, %smem, %n1;
add.u32 %n3, %smem, {SIZE}; setp.eq.u32 %one, %me, 0;"""


def barrier(count: int) -> str:
    """A barrier per CTA, visible to the whole cluster."""
    return f"@%one mbarrier.init.shared.b64 [%n3], {count}; @%one fence.mbarrier_init.release.cluster; {MEET}"


def kernel(
    name: str, body: str, outs: int = 0, ins: dict[str, Any] | None = None, instruction: str = "", **more: Any
) -> Case:
    total = {"d": (outs, np.uint32)} if outs else {}
    return Kernel(
        name,
        instruction or name.split(" ")[0],
        f"{RING} {body}",
        ins or {},
        total,
        words((SIZE // 4,), 31),
        SIZE,
        THREADS,
        CTAS,
        CTAS,
        declare=DECLARE,
        family="cluster",
        smem=SIZE + 64,
        **more,
    ).case()


def remote() -> Iterator[Case]:
    """Loads, stores and atomics at another CTA's shared memory."""
    offset = "mad.lo.u32 %n1, %me, 8, %n2;"
    for kind in ("b32", "b64", "b8", "b16"):
        body = f"{offset} ld.shared::cluster.{kind} %st, [%n1]; cvt.u32.u64 %d0, %st;"
        yield kernel(f"ld.shared::cluster.{kind}", body, 1)
        body = f"{offset} cvt.u64.u32 %st, %gid; st.shared::cluster.{kind} [%n1], %st; {MEET}"
        yield kernel(f"st.shared::cluster.{kind}", body)
    for form in ("ld.relaxed.cluster.shared::cluster.b32", "ld.acquire.cluster.shared::cluster.b32"):
        yield kernel(form, f"{offset} {form} %d0, [%n1];", 1)
    for form in ("st.release.cluster.shared::cluster.b32", "st.relaxed.cluster.shared::cluster.b32"):
        yield kernel(form, f"{offset} {form} [%n1], %gid; {MEET}")
    for op in ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec"):
        kind = "b32" if op in ("and", "or", "xor", "exch") else "u32"
        form = f"atom.shared::cluster.{op}.{kind}"
        yield kernel(form, f"{offset} mul.lo.u32 %n0, %gid, 2654435761; {form} %d0, [%n1], %n0; {MEET}", 1)
    form = "red.relaxed.cluster.shared::cluster.add.u32"
    yield kernel(f"{form} contended", f"{form} [%n2+16], %gid; {MEET}")
    yield kernel(
        "mapa.u64 generic",
        f"""cvt.u64.u32 %adr, %smem; cvta.shared.u64 %adr, %adr; mapa.u64 %adr, %adr, %n1; mad.wide.u32 %adr, %me, 8, %adr;
ld.b32 %d0, [%adr]; st.b32 [%adr+4], %gid; getctarank.u64 %d1, %adr; {MEET}""",
        2,
    )
    yield kernel(
        "getctarank.shared::cluster.u32",
        "getctarank.shared::cluster.u32 %d0, %n2; getctarank.shared::cluster.u32 %d1, %smem;",
        2,
    )
    regs = (
        "cluster_ctarank",
        "cluster_nctarank",
        "cluster_ctaid.x",
        "cluster_ctaid.y",
        "cluster_nctaid.x",
        "clusterid.x",
        "nclusterid.x",
        "ctaid.x",
        "nctaid.x",
        "is_explicit_cluster",
    )
    reads = "".join(f"mov.u32 %d{i}, %{r};" for i, r in enumerate(regs[:-1]))
    yield kernel("mov.u32 special registers of clusters", reads, len(regs) - 1, instruction="mov.u32")
    yield kernel(
        "mov.pred %is_explicit_cluster",
        "mov.pred %go, %is_explicit_cluster; selp.u32 %d0, 1, 0, %go;",
        1,
        instruction="mov.pred",
    )


def asynchronous() -> Iterator[Case]:
    """Stores and reductions that complete transactions on the destination's barrier."""

    def expect(n: int) -> str:
        arrive = f"@%one mbarrier.arrive.expect_tx.shared.b64 %st, [%n3], {n};"
        return f"{barrier(1)} {arrive} add.u32 %n0, %n2, {SIZE};"

    tail = ".shared::cluster.mbarrier::complete_tx::bytes"
    for kind, size in (
        ("b32", 4),
        ("u32", 4),
        ("s32", 4),
        ("f32", 4),
        ("b64", 8),
        ("f64", 8),
        ("v2.b32", 8),
        ("v4.b32", 16),
        ("v2.b64", 16),
    ):
        head, _, element = kind.rpartition(".")
        vector = f".{head}" if head else ""
        form = f"st.async{tail}{vector}.{element}"
        value = {"b64": "%adr", "f64": "%adr"}.get(element, "%gid")
        count = int(head[1]) if head else 1
        operand = f"{{{', '.join([value] * count)}}}" if head else value
        body = f"""{expect(size * THREADS)} cvt.u64.u32 %adr, %gid; mad.lo.u32 %n1, %me, {size}, %n2;
{form} [%n1], {operand}, [%n0]; {WAIT} {MEET}"""
        yield kernel(form, body)
    for op, kind in (
        ("inc", "u32"),
        ("dec", "u32"),
        ("min", "u32"),
        ("max", "u32"),
        ("min", "s32"),
        ("max", "s32"),
        ("add", "u32"),
        ("add", "s32"),
        ("add", "u64"),
        ("and", "b32"),
        ("or", "b32"),
        ("xor", "b32"),
    ):
        form = f"red.async.relaxed.cluster{tail}.{op}.{kind}"
        size = 8 if kind == "u64" else 4
        value = "%adr" if size == 8 else "%n3x"
        body = f"""{expect(size * THREADS)} mul.lo.u32 %n3x, %gid, 2654435761; cvt.u64.u32 %adr, %gid; mad.lo.u32 %n1, %me, {size}, %n2;
{form} [%n1], {value}, [%n0]; {WAIT} {MEET}"""
        yield Kernel(
            form,
            form,
            f"{RING} {body}",
            {},
            {},
            words((SIZE // 4,), 31),
            SIZE,
            THREADS,
            CTAS,
            CTAS,
            declare=DECLARE + ".reg .b32 %n3x;",
            family="cluster",
            smem=SIZE + 64,
        ).case()
    form = "mbarrier.arrive.release.cluster.shared::cluster.b64"
    body = f"{barrier(THREADS)} add.u32 %n0, %n2, {SIZE}; {form} _, [%n0]; {WAIT} mov.u32 %d0, %gid; {MEET}"
    yield kernel(form, body, 1)
    form = "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64"
    body = f"""{barrier(1)} add.u32 %n0, %n2, {SIZE}; @%one {form} _, [%n0], {16 * THREADS};
mad.lo.u32 %n1, %me, 16, %n2; cvt.u64.u32 %adr, %gid; st.async{tail}.v2.b64 [%n1], {{%adr, %adr}}, [%n0]; {WAIT} {MEET}"""
    yield kernel(form, body)


def copies() -> Iterator[Case]:
    """Bulk copies between CTAs, reductions into another CTA, multicast loads."""
    source = words((SIZE // 4,), 33)
    form = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    body = f"""{barrier(1)} @%one mbarrier.arrive.expect_tx.shared.b64 %st, [%n3], 1024; add.u32 %n0, %n2, {SIZE};
add.u32 %n1, %smem, 2048; @%one {form} [%n2], [%n1], 1024, [%n0]; {WAIT} {MEET}"""
    yield kernel(form, body)
    for op, kinds in {
        "add": ("u32", "s32", "u64"),
        "min": ("u32", "s32"),
        "max": ("u32", "s32"),
        "inc": ("u32",),
        "dec": ("u32",),
        "and": ("b32",),
        "or": ("b32",),
        "xor": ("b32",),
    }.items():
        for kind in kinds:
            form = f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}.{kind}"
            body = f"""{barrier(1)} @%one mbarrier.arrive.expect_tx.shared.b64 %st, [%n3], 1024; add.u32 %n0, %n2, {SIZE};
add.u32 %n1, %smem, 2048; @%one {form} [%n2], [%n1], 1024, [%n0]; {WAIT} {MEET}"""
            yield kernel(form, body)
    form = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    body = f"""{barrier(1)} @%one mbarrier.arrive.expect_tx.shared.b64 %st, [%n3], 1024; ld.param.u64 %adr, [x0];
mov.u32 %n1, %cluster_ctarank; setp.eq.and.u32 %one, %n1, 0, %one; @%one {form} [%smem+512], [%adr], 1024, [%n3], 15; {WAIT} {MEET}"""
    yield kernel(form, body, extra=(Buffer(source),))
    tensor = Map(0, 9, (64, 64), (128,), (32, 16), 2)
    form = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    body = f"""{barrier(1)} @%one mbarrier.arrive.expect_tx.shared.b64 %st, [%n3], 1024; mov.b64 %adr, x1; cvta.param.u64 %adr, %adr;
mov.u32 %n1, %cluster_ctarank; and.b32 %n0, %n1, 1; setp.eq.and.u32 %one, %n0, 0, %one; shl.b32 %n0, 3, %n1; cvt.u16.u32 %rh, %n0;
mul.lo.u32 %n1, %n1, 8; prefetch.tensormap [%adr];
@%one {form} [%smem], [%adr, {{%n1, 5}}], [%n3], %rh; {WAIT} {MEET}"""
    yield Kernel(
        form,
        form,
        f"{RING} {body}",
        {},
        {},
        words((SIZE // 4,), 31),
        SIZE,
        THREADS,
        CTAS,
        CTAS,
        (Buffer(words((2048,), 34), hidden=True), tensor),
        declare=DECLARE + ".reg .b16 %rh;",
        family="cluster",
        smem=SIZE + 64,
    ).case()


FLOW = {
    "bra in divergent loops": """mov.u32 %d0, 0; mov.u32 %n0, %a0; LOOP: setp.le.u32 %go, %n0, 1; @%go bra DONE; and.b32 %n1, %n0, 1;
setp.eq.u32 %one, %n1, 0; @%one bra EVEN; mad.lo.u32 %n0, %n0, 3, 1; bra NEXT; EVEN: shr.u32 %n0, %n0, 1; NEXT: add.u32 %d0, %d0, 1;
setp.lt.u32 %go, %d0, 300; @%go bra LOOP; DONE:""",
    "brx.idx": """and.b32 %n0, %a0, 3; TABLE: .branchtargets B0, B1, B2, B3; brx.idx %n0, TABLE; B0: mov.u32 %d0, 5; bra END;
B1: shl.b32 %d0, %a0, 2; bra END; B2: not.b32 %d0, %a0; bra END; B3: mul.lo.u32 %d0, %a0, %a0; END:""",
    "local memory": """.local .align 16 .b8 box[64]; and.b32 %n0, %a0, 15; mul.lo.u32 %n0, %n0, 4; mov.u64 %adr, box; cvt.u64.u32 %adr2, %n0; add.s64 %adr2, %adr, %adr2;
st.local.v4.b32 [box], {%a0, %me, %a0, %me}; st.local.v4.b32 [box+16], {%me, %me, %a0, %a0}; st.local.v4.b32 [box+32], {%a0, %a0, %a0, %a0};
st.local.v4.b32 [box+48], {%me, %me, %me, %a0}; st.local.u32 [%adr2], %n0; ld.local.u32 %d0, [box+20]; ld.local.u8 %n2, [%adr2+1];
add.u32 %d0, %d0, %n2; cvta.local.u64 %adr, %adr; ld.u16 %n2, [%adr+32]; add.u32 %d0, %d0, %n2;""",
    "named barriers": """setp.lt.u32 %go, %me, 32; @%go bra PRODUCER; bar.sync 3, 64; ld.shared.b32 %d0, [%smem]; bra END;
PRODUCER: mad.lo.u32 %n0, %me, 0, %smem; setp.eq.u32 %one, %me, 0; @%one st.shared.b32 [%n0], 1234; bar.arrive 3, 64; mov.u32 %d0, 7; END:""",
    "griddepcontrol": "griddepcontrol.launch_dependents; griddepcontrol.wait; add.u32 %d0, %a0, 1;",
    "setmaxnreg": "setmaxnreg.dec.sync.aligned.u32 40; add.u32 %d0, %a0, 1; setmaxnreg.inc.sync.aligned.u32 64;",
    "nanosleep": "nanosleep.u32 20; add.u32 %d0, %a0, 2;",
    "shfl across partial masks": """and.b32 %n0, %me, 16; setp.eq.u32 %go, %n0, 0; mov.u32 %d0, 0; @%go bra LOW;
shfl.sync.bfly.b32 %d0, %a0, 3, 0x1f, 0xffff0000; bra END; LOW: shfl.sync.down.b32 %d0, %a0, 2, 0x101f, 0x0000ffff; END: bar.warp.sync -1;""",
}


def flow() -> Iterator[Case]:
    """Control flow and what surrounds it; %a0 is one random word per thread."""
    for name, body in FLOW.items():
        threads = 128 if name == "setmaxnreg" else 64
        data = np.concatenate([np.arange(60, dtype=np.uint32), values.operands(["b32"], name, 68)[0]])[
            :threads
        ].reshape(-1, 1)
        text = f"{{ {body} }}"
        declare = DECLARE + (" .reg .b64 %unused;" if name else "")
        yield Kernel(
            name,
            name.split(" ")[0],
            text,
            {"a": data},
            {"d": (1, np.uint32)},
            np.full(64, POISON, np.uint8),
            threads=threads,
            declare=declare,
            family="flow",
        ).case()


def cases() -> Iterator[Case]:
    """Every case of this family."""
    yield from remote()
    yield from asynchronous()
    yield from copies()
    yield from flow()
