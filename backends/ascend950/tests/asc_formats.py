"""Number formats and roundings of the device from tables of all codes: an oracle apart from the simulator."""

from __future__ import annotations

import ml_dtypes
import numpy as np

Array = np.ndarray
FP4 = {
    "e2m1": np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64),
    "e1m2": np.array([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75], np.float64),
}


def hif8(code: int) -> float:
    """HiF8 by its published layout: a prefix tells the number of exponent bits; powers of two below."""
    bits = code & 0x7F
    if bits == 0:
        return np.nan if code & 0x80 else 0.0
    sign = -1.0 if code & 0x80 else 1.0
    if bits == 0x6F:
        return sign * np.inf
    for prefix, length, exponent_bits in ((3, 2, 4), (2, 2, 3), (1, 2, 2), (1, 3, 1), (1, 4, 0)):
        if bits >> (7 - length) == prefix:
            rest = 7 - length - exponent_bits
            field = (bits >> rest) & ((1 << exponent_bits) - 1)
            exponent = 0
            if exponent_bits:
                size = (1 << (exponent_bits - 1)) | (field & ((1 << (exponent_bits - 1)) - 1))
                exponent = -size if field >> (exponent_bits - 1) else size
            return sign * 2.0**exponent * (1 + (bits & ((1 << rest) - 1)) / 2**rest)
    return sign * 2.0 ** (bits - 23)


def decode(name: str, codes: Array) -> Array:
    """Values of codes (unsigned integers of the format's width)."""
    if name in FP4:
        return np.where(codes & 8, -1.0, 1.0) * FP4[name][codes & 7]
    if name == "hif8":
        return np.array([hif8(code) for code in range(256)])[codes]
    dtype = {
        "bf16": ml_dtypes.bfloat16,
        "f16": np.float16,
        "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
    }
    kind = np.dtype(dtype[name])
    with np.errstate(invalid="ignore"):  # signalling NaN
        return codes.astype(f"u{kind.itemsize}").view(kind).astype(np.float64)


def tables(name: str) -> tuple[Array, Array]:
    """(values ascending, their codes) of the finite values that are not negative."""
    bits = {"bf16": 15, "f16": 15, "e4m3": 7, "e5m2": 7, "hif8": 7, "e2m1": 3, "e1m2": 3}[name]
    codes = np.arange(1 << bits)
    values = decode(name, codes)
    keep = np.isfinite(values)
    order = np.argsort(values[keep])
    return values[keep][order], codes[keep][order]


def encode(name: str, x: Array, mode: str, saturate: bool) -> Array:
    """Codes of `x` (no NaN) rounded by rn (ties to even codes), rna (away), rd, ru or rz; overflow to the largest value
    if `saturate` or the direction says so, else to infinity (NaN where the format has none)."""
    values, codes = tables(name)
    top = {"bf16": 0x7F80, "f16": 0x7C00, "e5m2": 0x7C, "e4m3": 0x7F, "hif8": 0x6F}.get(name)
    sign = 1 << ({"bf16": 15, "f16": 15}.get(name, 3 if name in FP4 else 7))
    found = []
    for value in np.asarray(x, np.float64):
        size = abs(float(value))
        up = (mode == "ru" and value > 0) or (mode == "rd" and value < 0)
        down = mode == "rz" or (mode in ("ru", "rd") and not up)
        i = int(np.searchsorted(values, size, side="right")) - 1
        low = values[i]
        high = values[i + 1] if i + 1 < len(values) else low + (low - values[i - 1])
        middle = (low + high) / 2
        pick = i
        if size != low:
            even = codes[i] % 2 == 1
            pick += not down and (up or size > middle or (size == middle and (mode == "rna" or even)))
        over = pick >= len(values)
        code = codes[min(pick, len(values) - 1)] if not over or saturate or top is None else top
        if np.isinf(size) and not saturate and top is not None:
            code = top
        found.append(int(code) | (sign if np.signbit(value) and (code or name != "hif8") else 0))
    return np.array(found)


def to_integer(x: Array, mode: str, bits: int) -> Array:
    """Rounded and clamped to a signed integer of `bits` bits."""
    wide = np.asarray(x, np.float64)
    rounded = {
        "rn": np.rint(wide),
        "rna": np.copysign(np.floor(np.abs(wide) + 0.5), wide),
        "rd": np.floor(wide),
        "ru": np.ceil(wide),
        "rz": np.trunc(wide),
    }[mode]
    return np.clip(rounded, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1).astype(np.int64)
