"""RMS normalisation, with and without a residual add."""

from deepinfer.ops.norm.api import fused_add_rms_norm, rms_norm

__all__ = ["fused_add_rms_norm", "rms_norm"]
