"""All public ops. One folder per family: the specification (reference, cases, cost), the portable version, the API."""

from deepinfer.ops import deep_ep, deep_gmm, flash_mla, moe, norm, quant, rope, sampling
from deepinfer.ops.quantized import Quantized

__all__ = ["Quantized", "deep_ep", "deep_gmm", "flash_mla", "moe", "norm", "quant", "rope", "sampling"]
