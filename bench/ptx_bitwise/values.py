"""Operand values per type: combinations of special values, then random ones that exercise rounding and alignment."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptx_bitwise.stream import Stream

COUNT = 2048  # lanes of one elementwise case

F32 = [
    0,
    0x80000000,
    1,
    0x80000001,
    0x007FFFFF,
    0x00800000,
    0x80800000,
    0x3F800000,
    0xBF800000,
    0x7F7FFFFF,
    0xFF7FFFFF,
    0x7F800000,
    0xFF800000,
    0x7FC00000,
    0x7F800001,
    0xFFC12345,
    0x3F800001,
    0x33800000,
    0x4B000001,
    0xCB7FFFFF,
    0x4F000000,
    0xCF000000,
    0x5F000000,
    0x43E00000,
    0x43E80000,
    0x3F000000,
    0x40200000,
    0x477FF000,
    0x33000000,
    0x38800000,
    0x40490FDB,
    0x0DA24260,
]
F64 = [
    0,
    1 << 63,
    1,
    0x000FFFFFFFFFFFFF,
    0x0010000000000000,
    0x3FF0000000000000,
    0xBFF0000000000000,
    0x7FEFFFFFFFFFFFFF,
    0xFFEFFFFFFFFFFFFF,
    0x7FF0000000000000,
    0xFFF0000000000000,
    0x7FF8000000000000,
    0x7FF0000000000001,
    0xFFF8123456789ABC,
    0x3FF0000000000001,
    0x3CA0000000000000,
    0x41E0000000000000,
    0xC1E0000000200000,
    0x43E0000000000000,
    0x47EFFFFFF0000000,
    0x3690000000000000,
    0x3810000000000000,
    0x4004000000000000,
    0x3FE0000000000000,
]
F16 = [
    0,
    0x8000,
    1,
    0x8001,
    0x3FF,
    0x400,
    0x3C00,
    0xBC00,
    0x7BFF,
    0xFBFF,
    0x7C00,
    0xFC00,
    0x7E00,
    0x7C01,
    0xFE12,
    0x3C01,
    0x1400,
    0x6400,
    0x5C00,
    0x5F80,
    0x3800,
    0x4100,
]
BF16 = [
    0,
    0x8000,
    1,
    0x8001,
    0x7F,
    0x80,
    0x3F80,
    0xBF80,
    0x7F7F,
    0xFF7F,
    0x7F80,
    0xFF80,
    0x7FC0,
    0x7F81,
    0xFFC1,
    0x3F81,
    0x3380,
    0x4B00,
    0x43E0,
    0x43E8,
    0x3F00,
    0x4020,
    0x4F00,
    0x5F00,
]
U32 = [
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    33,
    63,
    255,
    256,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0x80000000,
    0x80000001,
    0xFFFFFFFF,
    0xFFFFFFFE,
    0x12345678,
    0xFFFF8000,
    0x00FF00FF,
]
U64 = [
    0,
    1,
    2,
    63,
    64,
    0xFFFFFFFF,
    1 << 32,
    (1 << 53) + 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 63) + 1,
    (1 << 64) - 1,
    (1 << 64) - 2,
    0x123456789ABCDEF0,
    0xFFFFFFFF80000000,
    (1 << 24) + 1,
    0xFFFFFF8000000001,
]
SPECIALS = {"f32": F32, "f64": F64, "f16": F16, "bf16": BF16}
FLOATS = {"f32": (8, 23), "f64": (11, 52), "f16": (5, 10), "bf16": (8, 7), "tf32": (8, 23)}
SMALL = {"e4m3x2": 16, "e5m2x2": 16, "e2m1x2": 8, "e2m3x2": 16, "e3m2x2": 16, "ue8m0x2": 16, "e4m3x4": 32}


def bits(token: str) -> int:
    """Storage bits of a type token."""
    if token in SMALL:
        return SMALL[token]
    token = token.removeprefix("nz#")
    if token in ("shift", "len", "lane", "offset"):
        return 32
    if token.endswith("x2"):
        return 2 * bits(token[:-2])
    digits = "".join(c for c in token if c.isdigit())
    return 32 if token == "tf32" else int(digits)


def dtype(token: str) -> Any:
    """Unsigned integer type that stores the token."""
    return {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[max(bits(token), 8)]


def specials(token: str) -> list[int]:
    """Special values of one operand, as storage bits."""
    if token in SPECIALS:
        return SPECIALS[token]
    if token == "tf32":
        return F32
    if token == "shift":
        return [0, 1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 0x80000001, 0xFFFFFFFF]
    if token == "len":
        return [0, 1, 5, 8, 16, 31, 32, 33, 63, 64, 65, 200, 255, 256, 257]
    if token == "lane":
        return list(range(32))
    if token == "offset":
        return [0, 1, 2, 3, 5, 31, 32, 33, 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFE0]
    mask = (1 << bits(token)) - 1
    base = U64 if bits(token) == 64 else U32
    return sorted({v & mask for v in base} - ({0} if token.startswith("nz#") else set()))


def random(token: str, rng: Stream, count: int) -> np.ndarray[Any, Any]:
    """Random bits; floats half of the time with exponents near one, so that sums cancel and round."""
    if token in ("shift", "len"):
        return rng.integers(0, 72, count).astype(np.uint32)
    if token in ("lane", "offset"):
        return np.array(specials(token), np.uint32)[rng.integers(0, len(specials(token)), count)]
    raw = rng.words(count)
    if token in FLOATS:
        e, m = FLOATS[token]
        near = (1 << (e - 1)) - 1 + rng.integers(-4, 5, count)
        tame = (raw & np.uint64((1 << m) - 1)) | near.astype(np.uint64) << np.uint64(m)
        tame |= (raw >> np.uint64(63)) << np.uint64(e + m)
        raw = np.where(rng.random(count) < 0.6, tame, raw)
    raw = raw & np.uint64((1 << bits(token)) - 1)
    if token.startswith("nz#"):  # quotients of every size
        raw = np.maximum(raw >> rng.integers(0, bits(token), count).astype(np.uint64), np.uint64(1))
    return raw.astype(dtype(token))


def operands(tokens: list[str], name: str, count: int = COUNT) -> list[np.ndarray[Any, Any]]:
    """`count` values per operand, the same for the same `name`: up to half of them combinations of special values."""
    rng = Stream(name)
    packed = [token.endswith("x2") and token[:-2] in SPECIALS for token in tokens]
    flat = [part for token, two in zip(tokens, packed, strict=True) for part in ([token[:-2]] * 2 if two else [token])]
    lists = [np.array(specials(t), dtype(t)) if t not in SMALL else random(t, rng, 64) for t in flat]
    total = int(np.prod([len(v) for v in lists]))
    half = min(count // 2, max(total, 1))
    if total <= count // 2:
        columns = [g.ravel() for g in np.meshgrid(*lists, indexing="ij")]
    else:
        columns = [v[rng.integers(0, len(v), half)] for v in lists]
    columns = [np.concatenate([c, random(t, rng, count - len(c))]) for c, t in zip(columns, flat, strict=True)]
    found = []
    for token, two in zip(tokens, packed, strict=True):
        low = columns.pop(0)
        if two:
            wide = dtype(token)
            low = low.astype(wide) | columns.pop(0).astype(wide) << wide(bits(token) // 2)
        found.append(low)
    return found
