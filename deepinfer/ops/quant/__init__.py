"""Block quantisation: byte codecs, quantisers, scale packing."""

from deepinfer.ops.quant.api import dequantize, pack_scales, quantize_fp8, quantize_mxfp4

__all__ = ["dequantize", "pack_scales", "quantize_fp8", "quantize_mxfp4"]
