# ruff: noqa: E501
"""Integer, bit and carry instructions against Python integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from lanes import execute, pairs, special_u32

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def s(v: int, bits: int) -> int:
    return v - (1 << bits) if v >> (bits - 1) else v


def clamp(v: int, lo: int, hi: int) -> int:
    return max(lo, min(hi, v))


def quotient(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


BINARY: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda a, b: a + b,
    "add.sat.s32": lambda a, b: clamp(s(a, 32) + s(b, 32), -(1 << 31), (1 << 31) - 1),
    "sub.s32": lambda a, b: a - b,
    "sub.sat.s32": lambda a, b: clamp(s(a, 32) - s(b, 32), -(1 << 31), (1 << 31) - 1),
    "mul.lo.u32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: a * b >> 32,
    "mul.hi.s32": lambda a, b: s(a, 32) * s(b, 32) >> 32,
    "div.u32": lambda a, b: M32 if b == 0 else a // b,
    "div.s32": lambda a, b: M32 if b == 0 else quotient(s(a, 32), s(b, 32)),
    "rem.u32": lambda a, b: a if b == 0 else a % b,
    "rem.s32": lambda a, b: a if b == 0 else s(a, 32) - s(b, 32) * quotient(s(a, 32), s(b, 32)),
    "min.s32": lambda a, b: min(s(a, 32), s(b, 32)),
    "max.u32": lambda a, b: max(a, b),
    "max.relu.s32": lambda a, b: max(s(a, 32), s(b, 32), 0),
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "shl.b32": lambda a, b: 0 if b > 31 else a << b,
    "shr.u32": lambda a, b: 0 if b > 31 else a >> b,
    "shr.s32": lambda a, b: s(a, 32) >> min(b, 31),
    "add.u16x2": lambda a, b: (a + b & 0xFFFF) | ((a >> 16) + (b >> 16) & 0xFFFF) << 16,
    "max.s16x2": lambda a, b: (max(s(a & 0xFFFF, 16), s(b & 0xFFFF, 16)) & 0xFFFF)
    | (max(s(a >> 16, 16), s(b >> 16, 16)) & 0xFFFF) << 16,
    "bmsk.clamp.b32": lambda a, b: 0 if a > 31 else ((1 << min(b, 32)) - 1) << a,
}


@pytest.mark.parametrize("op", BINARY)
def test_binary_32(op: str) -> None:
    a, b = pairs(special_u32(), 1)
    got = execute(f"{op} %d, %a, %b;", {"a": a, "b": b}, {"d": np.uint32})["d"]
    want = [BINARY[op](int(x), int(y)) & M32 for x, y in zip(a, b, strict=True)]
    assert got.tolist() == want


BINARY64: dict[str, Callable[[int, int], int]] = {
    "add.s64": lambda a, b: a + b,
    "mul.lo.s64": lambda a, b: a * b,
    "mul.hi.u64": lambda a, b: a * b >> 64,
    "mul.hi.s64": lambda a, b: s(a, 64) * s(b, 64) >> 64,
    "div.s64": lambda a, b: M64 if b == 0 else quotient(s(a, 64), s(b, 64)),
    "min.u64": min,
    "shl.b64": lambda a, b: 0 if (b & M32) > 63 else a << (b & M32),
}


@pytest.mark.parametrize("op", BINARY64)
def test_binary_64(op: str) -> None:
    values = np.array([0, 1, 2, 63, 64, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, M64, 0x0123456789ABCDEF], np.uint64)
    a, b = pairs(values, 2)
    body = f"{op} %d, %a, %b;" if op != "shl.b64" else "cvt.u32.u64 %n, %b;\nshl.b64 %d, %a, %n;"
    got = execute(body, {"a": a, "b": b}, {"d": np.uint64}, regs=".reg .b32 %n;")["d"]
    assert got.tolist() == [BINARY64[op](int(x), int(y)) & M64 for x, y in zip(a, b, strict=True)]


def test_wide_products_and_mad() -> None:
    a, b = pairs(special_u32(), 3)
    got = execute(
        "mul.wide.u32 %u, %a, %b;\nmul.wide.s32 %s, %a, %b;\nmad.lo.s32 %m, %a, %b, %a;\nmad.hi.u32 %h, %a, %b, %b;\nmad.wide.s32 %w, %a, %b, %u;",
        {"a": a, "b": b},
        {"u": np.uint64, "s": np.uint64, "m": np.uint32, "h": np.uint32, "w": np.uint64},
    )
    ia, ib = [int(v) for v in a], [int(v) for v in b]
    assert got["u"].tolist() == [x * y for x, y in zip(ia, ib, strict=True)]
    assert got["s"].tolist() == [s(x, 32) * s(y, 32) & M64 for x, y in zip(ia, ib, strict=True)]
    assert got["m"].tolist() == [x * y + x & M32 for x, y in zip(ia, ib, strict=True)]
    assert got["h"].tolist() == [(x * y >> 32) + y & M32 for x, y in zip(ia, ib, strict=True)]
    assert got["w"].tolist() == [s(x, 32) * s(y, 32) + x * y & M64 for x, y in zip(ia, ib, strict=True)]


def test_carry_chains() -> None:
    a, b = pairs(special_u32(), 4)
    c, d = pairs(special_u32(), 5)
    got = execute(
        "add.cc.u32 %l, %a, %b;\naddc.u32 %h, %c, %e;\nsub.cc.u32 %sl, %a, %b;\nsubc.u32 %sh, %c, %e;\n"
        "mad.lo.cc.u32 %ml, %a, %b, %c;\nmadc.hi.u32 %mh, %a, %b, %e;",
        {"a": a, "b": b, "c": c, "e": d},
        dict.fromkeys(("l", "h", "sl", "sh", "ml", "mh"), np.uint32),
    )
    for i in range(len(a)):
        x, y, p, q = int(a[i]), int(b[i]), int(c[i]), int(d[i])
        total = (x | p << 32) + (y | q << 32) & M64
        assert (int(got["l"][i]) | int(got["h"][i]) << 32) == total
        difference = (x | p << 32) - (y | q << 32) & M64
        assert (int(got["sl"][i]) | int(got["sh"][i]) << 32) == difference
        product = x * y + p + (q << 32) & M64
        assert (int(got["ml"][i]) | int(got["mh"][i]) << 32) == product


def bfe(v: int, pos: int, length: int, bits: int, signed: bool) -> int:
    pos, length = pos & 255, length & 255
    if length == 0:
        return 0
    wide = s(v, bits) if signed else v
    field = wide >> min(pos, 1000) if signed else v >> pos
    if length >= bits or pos + length >= bits:
        top = field
        return top & ((1 << bits) - 1) if signed else field & ((1 << min(length, bits)) - 1)
    cut = field & ((1 << length) - 1)
    return (s(cut, length) if signed else cut) & ((1 << bits) - 1)


def test_bit_fields() -> None:
    rng = np.random.default_rng(6)
    a = rng.integers(0, 1 << 32, 512, np.uint32)
    b = rng.integers(0, 1 << 32, 512, np.uint32)
    p, n = rng.integers(0, 40, 512, np.uint32), rng.integers(0, 40, 512, np.uint32)
    got = execute(
        "bfe.u32 %u, %a, %p, %n;\nbfe.s32 %s, %a, %p, %n;\nbfi.b32 %i, %a, %b, %p, %n;\npopc.b32 %c, %a;\nclz.b32 %z, %p;\nbrev.b32 %r, %a;\n"
        "bfind.u32 %f, %p;\nfns.b32 %g, %a, 0, 3;".replace("%p", "%pp"),
        {"a": a, "b": b, "pp": p, "n": n},
        dict.fromkeys(("u", "s", "i", "c", "z", "r", "f", "g"), np.uint32),
    )
    for i in range(512):
        v, w, pos, length = int(a[i]), int(b[i]), int(p[i]), int(n[i])
        assert int(got["u"][i]) == bfe(v, pos, length, 32, False)
        assert int(got["s"][i]) == bfe(v, pos, length, 32, True), (hex(v), pos, length)
        mask = ((1 << length) - 1) << pos & M32
        assert int(got["i"][i]) == (w & ~mask | v << pos & mask) & M32
        assert int(got["c"][i]) == v.bit_count()
        assert int(got["z"][i]) == 32 - pos.bit_length()
        assert int(got["r"][i]) == int(f"{v:032b}"[::-1], 2)
        assert int(got["f"][i]) == (pos.bit_length() - 1) & M32
        ones = [k for k in range(32) if v >> k & 1]
        assert int(got["g"][i]) == (ones[2] if len(ones) > 2 else M32)


def test_permute_logic_funnel() -> None:
    rng = np.random.default_rng(7)
    a, b, c = (rng.integers(0, 1 << 32, 256, np.uint32) for _ in range(3))
    got = execute(
        "prmt.b32 %m, %a, %b, %c;\nlop3.b32 %l, %a, %b, %c, 0xCA;\nshf.l.wrap.b32 %x, %a, %b, %c;\nshf.r.clamp.b32 %y, %a, %b, %c;\nprmt.b32.f4e %z, %a, %b, %c;",
        {"a": a, "b": b, "c": c},
        dict.fromkeys(("m", "l", "x", "y", "z"), np.uint32),
    )
    for i in range(256):
        x, y, z = int(a[i]), int(b[i]), int(c[i])
        both = y << 32 | x
        byte = [both >> 8 * k & 255 for k in range(8)]
        out = 0
        for k in range(4):
            sel = z >> 4 * k & 15
            v = byte[sel & 7]
            out |= ((255 if v & 128 else 0) if sel & 8 else v) << 8 * k
        assert int(got["m"][i]) == out
        assert int(got["l"][i]) == (x & y | ~x & z) & M32
        assert int(got["x"][i]) == both << (z & 31) >> 32 & M32
        assert int(got["y"][i]) == both >> min(z, 32) & M32
        assert int(got["z"][i]) == sum(byte[(z & 3) + k] << 8 * k for k in range(4))


def test_dot_products() -> None:
    rng = np.random.default_rng(8)
    a, b, c = (rng.integers(0, 1 << 32, 64, np.uint32) for _ in range(3))
    got = execute(
        "dp4a.s32.u32 %x, %a, %b, %c;\ndp2a.hi.s32.s32 %y, %a, %b, %c;\nsad.u32 %z, %a, %b, %c;",
        {"a": a, "b": b, "c": c},
        dict.fromkeys(("x", "y", "z"), np.uint32),
    )
    for i in range(64):
        x, y, z = int(a[i]), int(b[i]), int(c[i])
        four = sum(s(x >> 8 * k & 255, 8) * (y >> 8 * k & 255) for k in range(4))
        two = sum(s(x >> 16 * k & 0xFFFF, 16) * s(y >> 8 * (k + 2) & 255, 8) for k in range(2))
        assert int(got["x"][i]) == (four + z) & M32
        assert int(got["y"][i]) == (two + z) & M32
        assert int(got["z"][i]) == (abs(x - y) + z) & M32


def test_packing_moves() -> None:
    a = np.arange(32, dtype=np.uint32) * 0x01010101
    got = execute(
        "mov.b32 {%h0, %h1}, %a;\nmov.b32 %x, {%h1, %h0};\nmov.b64 %y, {%a, %x};\nmov.b64 {_, %z}, %y;\nmov.b128 %w, {%y, %y};\nmov.b128 {_, %v}, %w;",
        {"a": a},
        {"x": np.uint32, "y": np.uint64, "z": np.uint32, "v": np.uint64},
        regs=".reg .b16 %h<2>;\n.reg .b128 %w;",
    )
    swapped = (a >> 16 | a << 16).astype(np.uint32)
    assert np.array_equal(got["x"], swapped)
    assert np.array_equal(got["y"], a.astype(np.uint64) | swapped.astype(np.uint64) << 32)
    assert np.array_equal(got["z"], swapped)
    assert np.array_equal(got["v"], got["y"])
