"""Byte codecs of the small float formats, exact to the bit: e4m3 (fn), e2m1, UE8M0.

Rules (design: ops.md 2; format facts: OCP Microscaling 1.0, FP8 E4M3FN): encoding rounds to nearest, ties to the even
code; e4m3 and e2m1 saturate (infinities too); e4m3 keeps NaN; e2m1 has no NaN and encodes one as +0, so quantisers
mark NaN blocks in the scale. UE8M0 is a biased power-of-two exponent without sign or zero; 0xFF is NaN.
"""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
E2M1_MAX = 6.0
UE8M0_NAN = 0xFF
E4M3_BITS = ~0x4000  # what to keep of a byte that was widened with its sign to 16 bits and shifted by 7
MANY = 1 << 14  # codes from which nine vector operations are faster than four calls for a look-up

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Midpoints between neighbours; a tie goes to the even code, so some belong to the lower and some to the upper one.
_TIES_DOWN = (0.25, 1.25, 2.5, 5.0)
_TIES_UP = (0.75, 1.75, 3.5)


def e4m3_encode(x: torch.Tensor) -> torch.Tensor:
    """float -> float8_e4m3fn, saturating at +-448; NaN stays NaN. Any shape; computed in float32."""
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def e4m3_decode(q: torch.Tensor) -> torch.Tensor:
    """float8_e4m3fn (or its uint8 bytes) -> float32, exact."""
    if q.device.type == "cpu":  # torch converts fp8 element by element there
        return _look_up(_E4M3_TABLE, q.view(torch.uint8)) if q.numel() < MANY else _e4m3_shifted(q.view(torch.int8))
    return (q if q.dtype is torch.float8_e4m3fn else q.view(torch.float8_e4m3fn)).float()


def _e4m3_shifted(q: torch.Tensor) -> torch.Tensor:
    """Bytes as int8 -> float32: shifted to where float16 keeps exponent and mantissa, widened, times 2^(15 - 7)."""
    bits = q.to(torch.int16).mul_(1 << 7).bitwise_and_(E4M3_BITS)
    value = bits.view(torch.float16).float().mul_(2.0**8)
    if int(q.amax()) < 0x7F and int(q.view(torch.uint8).amax()) < 0xFF:  # the codes of NaN
        return value
    return value.masked_fill_(q.bitwise_and(0x7F) == 0x7F, torch.nan)


def _look_up(table: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    """table[code] for a table [256]; torch gathers from tables of one dimension several times faster."""
    return table.index_select(0, code.reshape(-1).int()).view(code.shape)


def e2m1_encode(x: torch.Tensor) -> torch.Tensor:
    """float -> e2m1 codes 0..15 (bit 3 = sign), uint8, one code per element, saturating at +-6."""
    magnitude = x.float().abs()
    code = torch.zeros_like(magnitude, dtype=torch.uint8)
    for bound in _TIES_DOWN:
        code += (magnitude > bound).to(torch.uint8)
    for bound in _TIES_UP:
        code += (magnitude >= bound).to(torch.uint8)
    return code | (torch.signbit(x) & ~x.isnan()).to(torch.uint8) << 3


def e2m1_decode(code: torch.Tensor) -> torch.Tensor:
    """e2m1 codes 0..15 -> float32."""
    table = torch.tensor([*E2M1_VALUES, *(-v for v in E2M1_VALUES)], dtype=torch.float32, device=code.device)
    return table[(code & 15).long()]


def e2m1_decode_packed(packed: torch.Tensor) -> torch.Tensor:
    """Bytes [..., n] of two codes each -> float32 [..., 2n]."""
    data = packed.view(torch.uint8)
    return _look_up(_E2M1_PAIRS.to(data.device), data).view(torch.float32)


def e2m1_pack(code: torch.Tensor) -> torch.Tensor:
    """Codes [..., n] (n even) -> bytes [..., n/2]; the even element lies in the low nibble."""
    return code[..., 0::2] | code[..., 1::2] << 4


def e2m1_unpack(packed: torch.Tensor) -> torch.Tensor:
    """Bytes [..., n] -> codes [..., 2n]."""
    data = packed.view(torch.uint8)
    return torch.stack((data & 15, data >> 4), dim=-1).flatten(-2)


def ue8m0_encode(scale: torch.Tensor) -> torch.Tensor:
    """Positive float32 -> biased exponent byte, rounded UP to a power of two, within [2^-127, 2^127].

    NaN, infinities and negative numbers give 0xFF (NaN); zero gives byte 0 (2^-127, the smallest scale).
    """
    bits = scale.float().contiguous().view(torch.int32)
    exponent = (bits >> 23) & 0xFF
    mantissa = bits & 0x7FFFFF
    # A subnormal m * 2^-149 is at most 2^-127 iff m <= 2^22: byte 0; above that it rounds up to 2^-126: byte 1.
    up = torch.where(exponent == 0, mantissa > 1 << 22, mantissa != 0)
    byte = (exponent + up.to(torch.int32)).clamp(max=254)
    bad = ~torch.isfinite(scale) | (scale < 0)
    return torch.where(bad, torch.full_like(byte, UE8M0_NAN), byte).to(torch.uint8)


def ue8m0_decode(byte: torch.Tensor) -> torch.Tensor:
    """Exponent byte -> float32 2^(byte-127); 0xFF -> NaN. Exact, the subnormal 2^-127 included."""
    value = byte.view(torch.uint8).int()
    bits = torch.where(value == 0, torch.full_like(value, 1 << 22), value << 23)
    bits = torch.where(value == UE8M0_NAN, torch.full_like(value, 0x7FC00000), bits)
    return bits.contiguous().view(torch.float32)


_BYTES = torch.arange(256, dtype=torch.uint8)
_E4M3_TABLE = _BYTES.view(torch.float8_e4m3fn).float()
_E2M1_PAIRS = e2m1_decode(e2m1_unpack(_BYTES.unsqueeze(-1))).view(torch.int64).squeeze(-1)  # two float32 each
