# ruff: noqa: E501
"""Exact rounding with rational numbers: the independent statement of floating-point formats used by the tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    exponent: int
    mantissa: int
    bias: int
    kind: str  # "ieee", "fn" (no infinity, one NaN), "finite"

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa


F64, F32, F16, BF16, TF32 = (
    Format(11, 52, 1023, "ieee"),
    Format(8, 23, 127, "ieee"),
    Format(5, 10, 15, "ieee"),
    Format(8, 7, 127, "ieee"),
    Format(8, 10, 127, "ieee"),
)
E4M3, E5M2 = Format(4, 3, 7, "fn"), Format(5, 2, 15, "ieee")
E2M3, E3M2, E2M1 = Format(2, 3, 1, "finite"), Format(3, 2, 3, "finite"), Format(2, 1, 1, "finite")


def decode(bits: int, f: Format) -> Fraction | float:
    m, e = bits & (1 << f.mantissa) - 1, bits >> f.mantissa & (1 << f.exponent) - 1
    sign = -1 if bits >> (f.width - 1) & 1 else 1
    top = (1 << f.exponent) - 1
    if f.kind == "ieee" and e == top:
        return math.nan if m else sign * math.inf
    if f.kind == "fn" and e == top and m == (1 << f.mantissa) - 1:
        return math.nan
    if e == 0:
        return sign * Fraction(m, 1) * Fraction(2) ** (1 - f.bias - f.mantissa)
    return sign * Fraction(m + (1 << f.mantissa)) * Fraction(2) ** (e - f.bias - f.mantissa)


def largest(f: Format) -> int:
    top = (1 << f.exponent + f.mantissa) - 1
    return {"ieee": (((1 << f.exponent) - 2) << f.mantissa) | ((1 << f.mantissa) - 1), "fn": top - 1, "finite": top}[
        f.kind
    ]


def encode(
    v: Fraction | float, f: Format, mode: str = "rn", satfinite: bool = False, negative_zero: bool = False
) -> int:
    """Bits of v rounded to f. mode: rn rz rm rp rna. NaN becomes all ones below the sign, or the largest value of a finite format."""
    sign_bit = 1 << (f.width - 1)
    nan = (1 << (f.width - 1)) - 1
    if isinstance(v, float) and math.isnan(v):
        return nan
    if isinstance(v, float) and math.isinf(v):
        s = sign_bit if v < 0 else 0
        if satfinite or f.kind == "finite":
            return s | largest(f)
        return s | ((((1 << f.exponent) - 1) << f.mantissa) if f.kind == "ieee" else nan)
    v = Fraction(v)
    if v == 0:
        return sign_bit if negative_zero else 0
    s = sign_bit if v < 0 else 0
    a = abs(v)
    e = a.numerator.bit_length() - a.denominator.bit_length()
    if Fraction(2) ** e > a:
        e -= 1
    e = max(e, 1 - f.bias)
    q = a / Fraction(2) ** (e - f.mantissa)
    whole, rest = divmod(q, 1)
    n = int(whole)
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and n & 1),
        "rna": rest >= Fraction(1, 2),
        "rz": False,
        "rm": bool(s) and rest > 0,
        "rp": not s and rest > 0,
    }[mode]
    n += bool(up)
    bits = n if n < 1 << f.mantissa else ((e - (1 - f.bias) + 1) << f.mantissa) + n - (1 << f.mantissa)
    if bits > largest(f):
        if satfinite or f.kind == "finite" or mode == "rz" or (mode == "rm" and not s) or (mode == "rp" and s):
            return s | largest(f)
        return s | ((((1 << f.exponent) - 1) << f.mantissa) if f.kind == "ieee" else nan)
    return s | bits
