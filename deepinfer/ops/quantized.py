"""`Quantized`: a quantised operand with everything needed to read it, so that nothing is inferred from a shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.errors import invalid

FORMATS = ("e4m3", "e2m1")
SCALE_DTYPES = ("f32", "ue8m0", "e4m3")


@dataclass(frozen=True)
class Quantized:
    """A block-quantised matrix: value = data * scale of its block.

    Attributes:
        data: [..., rows, cols] float8_e4m3fn for "e4m3", or [..., rows, cols/2] uint8 for "e2m1" (two values per byte,
            the even column in the low nibble).
        scale: [..., ceil(rows/block[0]), ceil(cols/block[1])]; float32 for "f32", uint8 (biased exponent, value
            2^(byte-127), 0xFF = NaN) for "ue8m0", float8_e4m3fn for "e4m3".
        block: (rows, cols) covered by one scale, e.g. (1, 128), (128, 128), (1, 32).
        scale_dtype: "f32", "ue8m0" or "e4m3"; f32 scales are used as stored, never rounded to powers of two.
        format: "e4m3" or "e2m1".
    """

    data: torch.Tensor
    scale: torch.Tensor
    block: tuple[int, int]
    scale_dtype: str = "f32"
    format: str = "e4m3"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise invalid("Quantized.format", self.format, f"must be one of {FORMATS}", nearest="'e4m3'")
        if self.scale_dtype not in SCALE_DTYPES:
            raise invalid("Quantized.scale_dtype", self.scale_dtype, f"must be one of {SCALE_DTYPES}", nearest="'f32'")
        for name, part in (("data", self.data), ("scale", self.scale)):
            if not isinstance(part, torch.Tensor):
                raise invalid(f"Quantized.{name}", part, "must be a torch.Tensor")
        parts = self.block if isinstance(self.block, tuple) else ()
        if [type(part) for part in parts] != [int, int] or min(parts) < 1:
            raise invalid("Quantized.block", self.block, "must be a tuple of two positive integers", nearest=(1, 128))

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape: columns count values, not bytes."""
        last = self.data.shape[-1] * (2 if self.format == "e2m1" else 1)
        return (*self.data.shape[:-1], last)
