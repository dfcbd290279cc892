# ruff: noqa: E501, E741
"""f32, f64, f16, bf16 arithmetic and every cvt form against exact rational rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import exact
import numpy as np
import pytest
from exact import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, F64, TF32, Format, decode, encode
from lanes import execute, pairs, special_f32

Value = Fraction | float


def finite(*v: Value) -> bool:
    return all(isinstance(x, Fraction) for x in v)


def product(a: Value, b: Value) -> Value:
    if finite(a, b):
        return Fraction(a) * Fraction(b)
    return float(np.float64(float(a)) * np.float64(float(b)))


def total(a: Value, b: Value) -> Value:
    if finite(a, b):
        return Fraction(a) + Fraction(b)
    return float(np.float64(float(a)) + np.float64(float(b)))


def check(
    op: str, f: Format, dtype: str, mode: str, a: np.ndarray, b: np.ndarray, fn: Callable[[Value, Value], Value]
) -> None:
    with np.errstate(all="ignore"):
        got = execute(f"{op} %d, %a, %b;", {"a": a, "b": b}, {"d": dtype})["d"]
        for x, y, g in zip(a.view(dtype), b.view(dtype), got, strict=True):
            want = fn(decode(int(x), f), decode(int(y), f))
            if finite(want) and want == 0:
                assert int(g) & ((1 << (f.width - 1)) - 1) == 0
            elif isinstance(want, float) and math.isnan(want):
                assert math.isnan(decode(int(g), f))
                assert f is F64 or int(g) == (1 << (f.width - 1)) - 1
            else:
                assert int(g) == encode(want, f, mode), (op, hex(x), hex(y), hex(g), hex(encode(want, f, mode)))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("op", "fn"), [("add", total), ("mul", product), ("sub", lambda a, b: total(a, -b))])
def test_f32_rounding(op: str, fn: Callable[[Value, Value], Value], mode: str) -> None:
    a, b = pairs(special_f32(), 11)
    check(f"{op}.{mode}.f32", F32, "u4", mode, a, b, fn)


@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_f64_rounding(mode: str) -> None:
    a, b = pairs(np.array([0.0, 1.0, -1.5, 1e308, 5e-324, math.inf, math.nan, 1 / 3], np.float64), 12)
    check(f"add.{mode}.f64", F64, "u8", mode, a, b, total)
    check(f"mul.{mode}.f64", F64, "u8", mode, a, b, product)


@pytest.mark.parametrize(("f", "t"), [(F16, "f16"), (BF16, "bf16")])
def test_half_arithmetic(f: Format, t: str) -> None:
    values = np.array(
        [0, 0x8000, 1, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0x7C00, 0x7F80, 0x7F7F, 0x3F80, 0x0080, 0xC0A0, 0x7FFF],
        np.uint16,
    )
    a, b = pairs(values, 13, 256)
    check(f"add.rn.{t}", f, "u2", "rn", a, b, total)
    check(f"mul.rn.{t}", f, "u2", "rn", a, b, product)
    c = np.roll(a, 7)
    got = execute(f"fma.rn.{t} %d, %a, %b, %c;", {"a": a, "b": b, "c": c}, {"d": "u2"})["d"]
    with np.errstate(all="ignore"):
        for x, y, z, g in zip(a, b, c, got, strict=True):
            want = total(product(decode(int(x), f), decode(int(y), f)), decode(int(z), f))
            if finite(want) and want != 0:
                assert int(g) == encode(want, f), (hex(x), hex(y), hex(z))


def test_packed_forms_equal_scalar_ones() -> None:
    rng = np.random.default_rng(14)
    a, b, c = (rng.integers(0, 1 << 32, 256, np.uint32) for _ in range(3))
    for t in ("f16", "bf16"):
        body = (
            f"mov.b32 {{%a0, %a1}}, %a;\nmov.b32 {{%b0, %b1}}, %b;\nmov.b32 {{%c0, %c1}}, %c;\nfma.rn.{t} %x0, %a0, %b0, %c0;\nfma.rn.{t} %x1, %a1, %b1, %c1;\n"
            f"mov.b32 %s, {{%x0, %x1}};\nfma.rn.{t}x2 %p, %a, %b, %c;\nmul.rn.{t}x2 %m, %a, %b;"
        )
        got = execute(
            body,
            {"a": a, "b": b, "c": c},
            {"s": "u4", "p": "u4", "m": "u4"},
            regs=".reg .b16 %a<2>, %b<2>, %c<2>, %x<2>;",
        )
        assert np.array_equal(got["s"], got["p"])
    x, y, z = (rng.standard_normal(64).astype(np.float32) for _ in range(3))
    got = execute(
        "mov.b64 %p, {%x, %y};\nmov.b64 %q, {%y, %z};\nfma.rn.f32x2 %r, %p, %q, %q;\nmul.rn.f32x2 %s, %p, %q;\nmov.b64 {%lo, %hi}, %r;".replace(
            "%p", "%pp"
        ),
        {"x": x, "y": y, "z": z},
        {"lo": "f4", "hi": "f4", "s": "u8"},
        regs=".reg .b64 %pp, %q, %r;",
        dev=8,
    )
    exact_lo = np.float32(
        x.astype(np.float64) * y + y
    )  # products of 24-bit numbers are exact in f64, the sum rounds almost never twice
    assert np.allclose(got["lo"], exact_lo, rtol=1e-7)
    assert np.array_equal(got["s"].view(np.float32)[0::2], x * y)


def test_fma_rounds_once() -> None:
    a = np.array([1 + 2**-23, 3.0, 1e30, -1e-40, 16777217.0], np.float32)
    a = np.resize(a, 32)
    with np.errstate(all="ignore"):
        got = execute("fma.rn.f32 %d, %a, %a, %b;", {"a": a, "b": -a * a}, {"d": "u4"})["d"]
        for x, y, g in zip(a, -a * a, got, strict=True):
            if np.isfinite(y):
                want = Fraction(float(x)) ** 2 + Fraction(float(y))
                assert int(g) == encode(want, F32) or want == 0


def test_min_max_rules() -> None:
    a, b = pairs(special_f32(), 15)
    got = execute(
        "min.f32 %l, %a, %b;\nmax.f32 %h, %a, %b;\nmax.NaN.f32 %n, %a, %b;\nmin.xorsign.abs.f32 %x, %a, %b;",
        {"a": a, "b": b},
        dict.fromkeys("lhnx", "u4"),
    )
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        nx, ny = math.isnan(x), math.isnan(y)
        for name, pick in (("l", min), ("h", max)):
            g = got[name].view(np.float32)[i]
            if nx and ny:
                assert int(got[name][i]) == 0x7FFFFFFF
            elif nx or ny:
                assert g == (y if nx else x)
            else:
                assert g == pick(x, y)
                if x == 0 and y == 0 and math.copysign(1, x) != math.copysign(1, y):
                    assert math.copysign(1, g) == (-1 if name == "l" else 1)
        assert math.isnan(got["n"].view(np.float32)[i]) == (nx or ny)
        if not nx and not ny:
            w = min(abs(x), abs(y)) * math.copysign(1, x) * math.copysign(1, y)
            assert got["x"].view(np.float32)[i] == np.float32(w)


def test_ftz_and_saturation() -> None:
    a = np.resize(np.array([1e-40, -1e-40, 1e-38, 0.5, 2.0, -3.0, math.nan, 1e-20], np.float32), 32)
    got = execute(
        "add.ftz.f32 %s, %a, 0f00000000;\nmul.ftz.f32 %m, %a, 0f1E3CE508;\nadd.sat.f32 %t, %a, 0f00000000;",
        {"a": a},
        dict.fromkeys("smt", "f4"),
    )
    tiny = np.abs(a) < np.finfo(np.float32).tiny
    assert np.all(got["s"][tiny] == 0)
    assert np.array_equal(np.signbit(got["s"][tiny]), np.signbit(a[tiny]) & False | np.signbit(got["s"][tiny]))
    assert np.all(np.abs(got["m"][np.abs(a) < 1e-18]) == 0)
    assert np.array_equal(got["t"], np.where(np.isnan(a), 0, np.clip(a, 0, 1)).astype(np.float32))


@pytest.mark.parametrize(
    ("op", "fn", "absolute", "relative"),
    [
        ("ex2.approx.f32", np.exp2, 0, 2**-22),
        ("lg2.approx.f32", np.log2, 2**-22, 2**-22),
        ("rcp.approx.f32", lambda v: 1 / v, 0, 2**-23),
        ("sqrt.approx.f32", np.sqrt, 0, 2**-23),
        ("rsqrt.approx.f32", lambda v: 1 / np.sqrt(v), 0, 2**-22.9),
        ("sin.approx.f32", np.sin, 2**-20.5, 0),
        ("cos.approx.f32", np.cos, 2**-20.5, 0),
        ("tanh.approx.f32", np.tanh, 0, 2**-11),
    ],
)
def test_approximations_keep_their_bounds(
    op: str, fn: Callable[[np.ndarray], np.ndarray], absolute: float, relative: float
) -> None:
    """The largest errors that the PTX ISA promises; test_sim_h200.py holds the very bits."""
    a = np.abs(np.random.default_rng(16).standard_normal(1024)).astype(np.float32) + np.float32(0.01)
    got = execute(f"{op} %d, %a;", {"a": a}, {"d": "f4"})["d"]
    want = fn(a.astype(np.float64))
    assert np.all(np.abs(got - want) <= absolute + relative * np.abs(want))


NARROW = {"f16": F16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2, "e2m1": E2M1, "e2m3": E2M3, "e3m2": E3M2}


def all_f32(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    near = np.array(
        [
            448,
            449,
            464,
            465,
            480,
            57344,
            61440,
            6,
            5,
            7,
            0.25,
            0.75,
            2.5,
            3.5,
            1.0625,
            28,
            30,
            7.5,
            65504,
            65520,
            2**-9,
            2**-10,
            3 * 2**-10,
            2**-149,
        ],
        np.float32,
    )
    spread = (rng.standard_normal(400) * 2.0 ** rng.integers(-30, 20, 400)).astype(np.float32)
    return np.concatenate([special_f32(), near, -near, spread])[:480]


@pytest.mark.parametrize(("t", "mode"), [("f16", "rn"), ("f16", "rz"), ("bf16", "rn"), ("bf16", "rz")])
def test_cvt_f32_to_half(t: str, mode: str) -> None:
    a = all_f32(17)
    got = execute(
        f"cvt.{mode}.{t}.f32 %d, %a;\ncvt.{mode}.{t}x2.f32 %q, %a, 0f3F800000;\ncvt.{mode}.relu.{t}x2.f32 %r, 0f00000000, %a;".replace(
            "%q", "%qq"
        ),
        {"a": a},
        {"d": "u2", "qq": "u4", "r": "u4"},
    )
    one = encode(Fraction(1), NARROW[t])
    for x, g, q, r in zip(a, got["d"], got["qq"], got["r"], strict=True):
        want = encode(
            float(x) if not math.isfinite(x) else Fraction(float(x)), NARROW[t], mode, negative_zero=bool(np.signbit(x))
        )
        assert int(g) == want, (float(x), hex(g), hex(want))
        assert int(q) == want << 16 | one
        assert int(r) == (0 if x < 0 or x == 0 else want)


@pytest.mark.parametrize("t", ["e4m3", "e5m2", "e2m1", "e2m3", "e3m2"])
def test_cvt_f32_to_narrow_pairs(t: str) -> None:
    a, dev = all_f32(18), 8
    b = np.roll(a, 1)
    wide = 4 if t == "e2m1" else 8
    reg = ".reg .b8 %n;" if t == "e2m1" else ".reg .b16 %n;"
    body = f"cvt.rn.satfinite.{t}x2.f32 %n, %a, %b;\n" + (
        "mov.b16 %m, {%n, %n};\ncvt.u32.u16 %d, %m;\nand.b32 %d, %d, 255;" if t == "e2m1" else "cvt.u32.u16 %d, %n;"
    )
    got = execute(body, {"a": a, "b": b}, {"d": "u4"}, regs=reg + ".reg .b16 %m;", dev=dev)["d"]

    def one(v: np.float32) -> int:
        return encode(
            float(v) if not math.isfinite(v) else Fraction(float(v)),
            NARROW[t],
            "rn",
            True,
            negative_zero=bool(np.signbit(v)),
        )

    for x, y, g in zip(a, b, got, strict=True):
        assert int(g) == one(x) << wide | one(y), (float(x), float(y), hex(g))


@pytest.mark.parametrize("t", ["e4m3", "e5m2", "e2m3", "e3m2"])
def test_cvt_narrow_pairs_to_f16(t: str) -> None:
    codes = np.arange(256 if t[0] != "e" or NARROW[t].width == 8 else 64, dtype=np.uint16)
    a = codes | codes[::-1] << 8
    got = execute(f"cvt.rn.f16x2.{t}x2 %d, %a;", {"a": a}, {"d": "u4"}, dev=8)["d"]
    for x, g in zip(a, got, strict=True):
        lo, hi = (
            encode(
                decode(int(x) >> k & 255, NARROW[t]), F16, negative_zero=bool(int(x) >> k >> (NARROW[t].width - 1) & 1)
            )
            for k in (0, 8)
        )
        assert int(g) == lo | hi << 16


def test_cvt_ue8m0() -> None:
    a = np.abs(all_f32(19))
    got = execute(
        "cvt.rp.satfinite.ue8m0x2.f32 %u, %a, %a;\ncvt.rz.satfinite.ue8m0x2.f32 %z, %a, %a;\ncvt.rn.bf16x2.ue8m0x2 %b, %u;",
        {"a": a},
        {"u": "u2", "z": "u2", "b": "u4"},
        dev=8,
    )
    for x, u, z, b in zip(a, got["u"], got["z"], got["b"], strict=True):
        if math.isnan(x):
            assert int(u) == 0xFFFF
            continue
        if math.isinf(x):
            assert int(u) == int(z) == 0xFEFE
            continue
        v = Fraction(float(x))
        want_z = max((e for e in range(255) if Fraction(2) ** (e - 127) <= v), default=0)
        want_p = min((e for e in range(255) if Fraction(2) ** (e - 127) >= v), default=254)
        assert int(u) & 255 == want_p
        assert int(z) & 255 == want_z
        assert decode(int(b) & 0xFFFF, BF16) == Fraction(2) ** (want_p - 127)


def test_cvt_tf32() -> None:
    a = all_f32(20)
    got = execute("cvt.rna.tf32.f32 %d, %a;\ncvt.rn.tf32.f32 %e, %a;", {"a": a}, {"d": "u4", "e": "u4"})
    for x, d, e in zip(a, got["d"], got["e"], strict=True):
        v = float(x) if not math.isfinite(x) else Fraction(float(x))
        if math.isnan(x):
            assert int(d) == int(x.view(np.uint32)) & 0xFFFFE000  # both as an H200 gives them
            assert int(e) == 0x7FFFE000
        else:
            neg = bool(np.signbit(x))
            assert int(d) == encode(v, TF32, "rna", negative_zero=neg) << 13
            assert int(e) == encode(v, TF32, "rn", negative_zero=neg) << 13


def test_cvt_between_integers_and_floats() -> None:
    a = all_f32(21)
    modes: dict[str, Callable[[float], int]] = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
    for mode, fn in modes.items():
        got = execute(
            f"cvt.{mode}.s32.f32 %i, %a;\ncvt.{mode}.u32.f32 %u, %a;\ncvt.{mode}.s64.f32 %l, %a;",
            {"a": a},
            {"i": "i4", "u": "u4", "l": "i8"},
        )
        for x, i, u, l in zip(a, got["i"], got["u"], got["l"], strict=True):
            v = 0 if math.isnan(x) else (1 << 70 if x > 0 else -(1 << 70)) if math.isinf(x) else fn(float(x))
            assert int(i) == max(-(1 << 31), min((1 << 31) - 1, v))
            assert int(u) == max(0, min((1 << 32) - 1, v))
            # NaN towards 64 bits is the smallest integer, as on an H200
            assert int(l) == (-(1 << 63) if math.isnan(x) else max(-(1 << 63), min((1 << 63) - 1, v)))
    ints = np.array(
        [0, 1, -1, 16777217, -16777219, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**53 + 1, 2**62 + 2**38 + 1],
        np.int64,
    )
    ints = np.resize(ints, 32)
    for mode in ("rn", "rz", "rm", "rp"):
        got = execute(
            f"cvt.{mode}.f32.s64 %f, %a;\ncvt.{mode}.f64.s64 %g, %a;\ncvt.{mode}.f32.u64 %h, %a;",
            {"a": ints},
            {"f": "u4", "g": "u8", "h": "u4"},
        )
        for x, f, g, h in zip(ints, got["f"], got["g"], got["h"], strict=True):
            assert int(f) == encode(Fraction(int(x)), F32, mode)
            assert int(g) == encode(Fraction(int(x)), F64, mode)
            assert int(h) == encode(Fraction(int(x) & (1 << 64) - 1), F32, mode)


def test_cvt_integers() -> None:
    a = np.resize(
        np.array([0, 1, -1, 127, 128, -128, -129, 255, 256, 32767, 40000, -40000, 2**31 - 1, -(2**31)], np.int32), 32
    )
    got = execute(
        "cvt.sat.s8.s32 %x, %a;\ncvt.u16.s32 %h, %a;\ncvt.s64.s32 %l, %a;\ncvt.sat.u8.s32 %y, %a;\ncvt.s32.s8 %z, %a;",
        {"a": a},
        {"x": "i4", "h": "u2", "l": "i8", "y": "u4", "z": "i4"},
    )
    assert np.array_equal(got["x"], np.clip(a, -128, 127))
    assert np.array_equal(got["y"], np.clip(a, 0, 255).astype(np.uint32))
    assert np.array_equal(got["h"], a.astype(np.uint16))
    assert np.array_equal(got["l"], a.astype(np.int64))
    assert np.array_equal(got["z"], a.astype(np.int8).astype(np.int32))


def test_exact_reference_agrees_with_numpy() -> None:
    """The oracle itself: f16 encodings equal numpy's for random values."""
    v = np.random.default_rng(22).standard_normal(500).astype(np.float32) * 100
    assert [exact.encode(Fraction(float(x)), F16) for x in v] == v.astype(np.float16).view(np.uint16).tolist()
