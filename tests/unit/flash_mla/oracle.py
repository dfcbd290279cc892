"""Independent oracles: KV records byte by byte with numpy and ml_dtypes, attention by the formula in plain numpy.

Nothing here uses deepinfer; scales and payloads are derived from the format descriptions alone.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

E4M3 = ml_dtypes.float8_e4m3fn
E2M1 = ml_dtypes.float4_e2m1fn


def ue8m0_up(scale: float) -> int:
    """Smallest biased exponent whose power of two is >= scale."""
    byte = 0
    while byte < 254 and math.ldexp(1.0, byte - 127) < scale:
        byte += 1
    return byte


def e4m3_bytes(x: np.ndarray) -> bytes:
    return np.clip(x.astype(np.float32), -448, 448).astype(E4M3).tobytes()


def e2m1_bytes(x: np.ndarray) -> bytes:
    codes = np.clip(x.astype(np.float32), -6, 6).astype(E2M1).view(np.uint8) & 15
    return (codes[0::2] | codes[1::2] << 4).tobytes()


def bf16_bytes(x: np.ndarray) -> bytes:
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).tobytes()


def amax(tile: np.ndarray) -> np.float32:
    return np.float32(np.abs(tile).max())


def record(name: str, row: np.ndarray) -> tuple[bytes, bytes]:
    """(data bytes, scale bytes) of one finite float32 row; interleaved formats are put together by the caller."""
    f32 = np.float32
    coded, tile = {"v32_fp8": (512, 128), "v4_fp8": (448, 64), "v41_fp8": (512, 32), "v41_fp4": (512, 16),
                   "index_fp4": (128, 32), "index_fp8": (128, 128)}[name.removesuffix("_paged")]
    payload, scales = b"", b""
    for at in range(0, coded, tile):
        part = row[at : at + tile].astype(f32)
        top = amax(part)
        if name == "v32_fp8":
            scale = f32(top / f32(448)) or f32(1)
            scales += scale.tobytes()
        elif name == "index_fp8":
            scale = f32(max(top, f32(1e-4)) / f32(448))
            scales += scale.tobytes()
        elif name.startswith("v41_fp4"):
            scale = f32(np.clip(f32(max(top, f32(6 * 2.0**-9)) / f32(6)), 0, 448).astype(E4M3))
            scales += np.array(scale).astype(E4M3).tobytes()
        else:
            if name == "v4_fp8":
                plain = max(f32(top / f32(448)), f32(1e-4))
            elif name == "index_fp4":
                plain = f32(max(top, f32(6 * 2.0**-126)) / f32(6))
            else:
                plain = f32(max(top, f32(1e-4)) / f32(448))
            byte = ue8m0_up(float(plain))
            scale = f32(math.ldexp(1.0, byte - 127))
            scales += bytes([byte])
        quotient = part / scale
        payload += e2m1_bytes(quotient) if "fp4" in name else e4m3_bytes(quotient)
    if name in ("v32_fp8", "v4_fp8"):
        payload += bf16_bytes(row[coded:])
    return payload, scales


def block(name: str, rows: list[np.ndarray], pad: list[int]) -> bytes:
    """All bytes of a block that holds `rows`; `pad` gives the V4 pad byte of each token (never written)."""
    records = [record(name, row) for row in rows]
    if name == "v32_fp8":
        return b"".join(data[:512] + scales + data[512:] for data, scales in records)
    if name in ("v41_fp8", "v41_fp4"):
        return b"".join(data + scales for data, scales in records)
    tails = [scales + (bytes([pad[i]]) if name == "v4_fp8" else b"") for i, (_, scales) in enumerate(records)]
    return b"".join(data for data, _ in records) + b"".join(tails)


def attention(q: np.ndarray, keys: np.ndarray, d_v: int, scale: float, sink: float | None = None) -> tuple:
    """One head, one token, by the definition: (out [d_v], lse, largest logit)."""
    if len(keys) == 0:
        return np.zeros(d_v), -math.inf, -math.inf
    logits = [scale * math.fsum(float(a) * float(b) for a, b in zip(q, key, strict=True)) for key in keys]
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    total = math.fsum(weights)
    lse = top + math.log(total)
    out = np.array([math.fsum(w * float(key[c]) for w, key in zip(weights, keys, strict=True)) / total
                    for c in range(d_v)])
    if sink is not None:
        share = 0.0 if sink - lse > 700 else 1 / (1 + math.exp(sink - lse))
        out = out * share
    return out, lse, top
