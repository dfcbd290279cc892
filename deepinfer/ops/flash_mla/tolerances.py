"""How close attention results must be to the float64 reference.

bf16: the figures that the public Flash MLA kernels are tested with (they round dequantised keys and probabilities to
bf16). float32: a few hundred roundings of 2^-24 in dot products of unit-size numbers.
"""

from __future__ import annotations

import torch

from deepinfer.registry import Tolerance

F32_OUT = Tolerance(abs=2e-6, rel=2e-5, cos=1e-10)
F32_LSE = Tolerance(abs=2e-6, rel=2e-6, cos=1e-10)

# Per op: (out, lse and max logit) for bf16.
_BF16 = {
    "flash_mla.decode": (Tolerance(8e-4, 2.01 / 128, 5e-6), Tolerance(1e-6, 8.01 / 65536, 1e-8)),
    "flash_mla.prefill": (Tolerance(8e-4, 2.01 / 128, 5e-6), Tolerance(1e-6, 8.01 / 65536, 1e-8)),
    "flash_mla.sparse_decode": (Tolerance(1e-3, 2.01 / 128, 5e-6), Tolerance(1e-6, 8.01 / 65536, 1e-8)),
    "flash_mla.sparse_prefill": (Tolerance(8e-4, 3.01 / 128, 1e-5), Tolerance(1e-6, 2.01 / 65536, 1e-8)),
    # Of the dequantised output; a scale may fall one power of two beside the reference's.
    "flash_mla.sparse_attention_fused": (Tolerance(1.1e-3, 1.01 / 8, 1e-3), Tolerance(1e-5, 4.01 / 65536, 1e-8)),
}


def attention(op: str, dtype: torch.dtype, output: str) -> Tolerance:
    """Tolerance of result `output` ("out", or "lse" / "max_logits") of `op` with queries of `dtype`."""
    out, lse = _BF16[op] if dtype is torch.bfloat16 else (F32_OUT, F32_LSE)
    return out if output == "out" else lse
