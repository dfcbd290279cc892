# ruff: noqa: E501 (PTX statements that belong together stay on one line)
"""tensormap.replace of every field, tensormap.cp_fenceproxy, and a load through the changed map."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ptx_bitwise.barriers import DECLARE, WAIT, init
from ptx_bitwise.case import POISON, Buffer, Case, Map
from ptx_bitwise.regs import Kernel, words

AREA = 16384
START = Map(0, 6, (64, 40), (128,), (16, 12), 1)  # f16, swizzle 32B
# field -> (type of the new value, operands after the address, bytes of the resulting box)
FIELDS = {
    "global_address": (".b64", ", %adr2", 384),
    "box_dim": (".b32", ", 1, 7", 224),
    "global_dim": (".b32", ", 0, 9", 384),
    "global_stride": (".b64", ", 0, %st", 384),
    "element_stride": (".b32", ", 1, 3", 128),
    "elemtype": (".b32", ", 0xa", 384),
    "swizzle_mode": (".b32", ", 0x2", 384),
    "fill_mode": (".b32", ", 0x1", 384),
    "rank": (".b32", ", 0x0", 32),
    "interleave_layout": (".b32", ", 0x0", 384),
}


ELEMENT_TYPES = (0x1, 0x6)  # further element types of 16 bits under either numbering, PTX's and cuda.h's


def cases() -> Iterator[Case]:
    """One case per field; the copy lies 3 rows and 8 columns inside and leaves the tensor at its end."""
    fields = [(field, "", *row) for field, row in FIELDS.items()]
    fields += [("elemtype", f" value {v}", ".b32", f", 0x{v:x}", 384) for v in ELEMENT_TYPES]
    for field, label, kind, operand, size in fields:
        form = f"tensormap.replace.tile.{field}.shared::cta.b1024{kind}"
        body = f"""{init(1, AREA)} mov.b64 %adr, x1; cvta.param.u64 %adr, %adr; mad.wide.u32 %adr, %me, 4, %adr; ld.b32 %n0, [%adr];
mad.lo.u32 %n1, %me, 4, %smem; add.u32 %n1, %n1, {AREA - 128}; st.shared.b32 [%n1], %n0; bar.sync 0; add.u32 %n1, %smem, {AREA - 128};
ld.param.u64 %adr2, [x2]; mov.b64 %st, 256; @%one {form} [%n1]{operand}; bar.sync 0; ld.param.u64 %adr, [x3];
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%adr], [%n1], 128;
fence.proxy.tensormap::generic.acquire.gpu [%adr], 128; @%one mbarrier.arrive.expect_tx.shared.b64 %st, [%n3], {size};
@%one cp.async.bulk.tensor.{"1" if field == "rank" else "2"}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%smem],
 [%adr, {"{8}" if field == "rank" else "{8, 31}"}], [%n3]; {WAIT} bar.sync 0;"""
        extra = (
            Buffer(words((2560,), 41), hidden=True),
            START,
            Buffer(words((1280,), 42)),
            Buffer(np.zeros(128, np.uint8), scratch=True),
        )
        yield Kernel(
            f"{form}{label} and cp_fenceproxy",
            form,
            body,
            image=np.full(AREA - 128, POISON, np.uint8),
            shared_out=1024,
            extra=extra,
            declare=DECLARE,
            family="tma",
            smem=AREA + 64,
        ).case()
