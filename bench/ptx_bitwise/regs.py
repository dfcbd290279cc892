"""Cases whose operands are groups of registers and a shared-memory image: matrix and asynchronous instructions.

`Kernel` writes the frame: every thread loads its registers, all threads copy the image into dynamic shared memory and
meet at a barrier (visible to asynchronous readers), the body runs, registers and shared memory are stored. In the body,
%G0, %G1, ... are the registers of group G, %smem the image's shared address (1024-byte aligned), %me the thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ptx_bitwise.case import HEAD, POISON, Buffer, Case, Map, poisoned
from ptx_bitwise.stream import Stream

Array = np.ndarray[Any, Any]


@dataclass
class Kernel:
    """One case under construction. Arrays of `ins` are [threads, registers] of unsigned words."""

    name: str
    instruction: str
    body: str
    ins: dict[str, Array] = field(default_factory=dict)
    outs: dict[str, tuple[int, Any]] = field(default_factory=dict)  # group -> (registers, unsigned dtype)
    image: Array | None = None  # bytes, a multiple of 16
    shared_out: int = 0  # bytes of shared memory to compare, from the image's start
    threads: int = 32
    ctas: int = 1
    cluster: int = 1
    extra: tuple[Buffer | Map | bytes, ...] = ()  # further parameters, named x0, x1, ...
    declare: str = ""
    family: str = "matrix"
    rule: str = "bits"
    proxy_fence: bool = True
    smem: int = 0  # bytes of dynamic shared memory when more than the image

    def case(self) -> Case:
        """The finished case."""
        total = self.threads * self.ctas
        args: list[Buffer | Map | bytes] = [Buffer(np.ascontiguousarray(v)) for v in self.ins.values()]
        args += [Buffer(poisoned(total * n, kind), out=True) for n, kind in self.outs.values()]
        if self.image is not None:
            args.append(Buffer(np.frombuffer(self.image.tobytes(), np.uint8)))
        if self.shared_out:
            args.append(Buffer(np.full(self.shared_out * self.ctas, POISON, np.uint8), out=True))
        smem = max(self.smem, 0 if self.image is None else self.image.nbytes, self.shared_out)
        before = sum(isinstance(a, Buffer) for a in args)  # maps count buffers of `extra`
        args += [replace(a, buffer=a.buffer + before) if isinstance(a, Map) else a for a in self.extra]
        return Case(
            f"{self.family}/{self.name}",
            self.instruction,
            self._text(),
            tuple(args),
            (self.ctas, 1, 1),
            (self.threads, 1, 1),
            (self.cluster, 1, 1),
            smem,
            rule=self.rule,
            family=self.family,
        )

    def _text(self) -> str:
        params = [f".param .u64 p_{g}" for g in (*self.ins, *self.outs)]
        params += [".param .u64 p_image"] if self.image is not None else []
        params += [".param .u64 p_shared"] if self.shared_out else []
        for index, arg in enumerate(self.extra):
            if isinstance(arg, Map):
                params.append(f".param .align 64 .b8 x{index}[128]")
            elif isinstance(arg, bytes):
                params.append(f".param .b{8 * len(arg)} x{index}")
            elif not arg.hidden:
                params.append(f".param .u64 x{index}")
        lines = [HEAD, ".extern .shared .align 1024 .b8 smem[];", f".visible .entry k({', '.join(params)})", "{"]
        lines += [".reg .b64 %ptr, %off; .reg .b32 %me, %gid, %smem, %i, %n<4>; .reg .pred %go; .reg .b32 %w<4>;"]
        groups = {g: (v.shape[-1], v.dtype) for g, v in self.ins.items()} | self.outs
        lines += [f".reg .b{8 * np.dtype(kind).itemsize} %{g}<{n}>;" for g, (n, kind) in groups.items()]
        lines += [
            self.declare,
            "mov.u32 %me, %tid.x; mov.u32 %n0, %ctaid.x; mov.u32 %n1, %ntid.x;",
            "mad.lo.u32 %gid, %n0, %n1, %me; mov.u32 %smem, smem;",
        ]
        for g, array in self.ins.items():
            lines += self._move(g, array.shape[-1], array.dtype, load=True)
        lines += self._fill() if self.image is not None else []
        lines.append(self.body)
        for g, (n, kind) in self.outs.items():
            lines += self._move(g, n, kind, load=False)
        lines += self._keep() if self.shared_out else []
        return "\n".join([*lines, "ret;", "}"]) + "\n"

    @staticmethod
    def _move(group: str, count: int, kind: Any, load: bool) -> list[str]:
        size = np.dtype(kind).itemsize
        at = [f"ld.param.u64 %ptr, [p_{group}]; mad.wide.u32 %ptr, %gid, {count * size}, %ptr;"]
        if load:
            return at + [f"ld.global.b{8 * size} %{group}{i}, [%ptr+{i * size}];" for i in range(count)]
        return at + [f"st.global.b{8 * size} [%ptr+{i * size}], %{group}{i};" for i in range(count)]

    def _copy(self, label: str, end: int, move: list[str]) -> list[str]:
        return [
            f"shl.b32 %i, %me, 4; setp.ge.u32 %go, %i, {end};",
            f"@%go bra {label}_END;",
            f"{label}:",
            "cvt.u64.u32 %off, %i; add.s64 %off, %ptr, %off; add.u32 %n2, %smem, %i;",
            *move,
            f"add.u32 %i, %i, {self.threads * 16}; setp.lt.u32 %go, %i, {end};",
            f"@%go bra {label};",
            f"{label}_END:",
        ]

    def _fill(self) -> list[str]:
        size = 0 if self.image is None else self.image.nbytes
        move = ["ld.global.v4.b32 {%w0, %w1, %w2, %w3}, [%off];", "st.shared.v4.b32 [%n2], {%w0, %w1, %w2, %w3};"]
        lines = ["ld.param.u64 %ptr, [p_image];", *self._copy("FILL", size, move)]
        lines += ["fence.proxy.async.shared::cta;"] if self.proxy_fence else []
        wait = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if self.cluster > 1 else "bar.sync 0;"
        return [*lines, wait]

    def _keep(self) -> list[str]:
        wait = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if self.cluster > 1 else "bar.sync 0;"
        move = ["ld.shared.v4.b32 {%w0, %w1, %w2, %w3}, [%n2];", "st.global.v4.b32 [%off], {%w0, %w1, %w2, %w3};"]
        base = f"ld.param.u64 %ptr, [p_shared]; mov.u32 %n0, %ctaid.x; mad.wide.u32 %ptr, %n0, {self.shared_out}, %ptr;"
        return [wait, base, *self._copy("KEEP", self.shared_out, move)]


def words(shape: tuple[int, ...], seed: int, kind: Any = np.uint32) -> Array:
    """Random words."""
    return Stream(seed).words(int(np.prod(shape))).astype(kind).reshape(shape)
