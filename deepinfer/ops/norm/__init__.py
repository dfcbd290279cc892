"""RMS normalisation, with and without a residual add."""

from deepinfer.ops.norm.api import rms_norm

__all__ = ["rms_norm"]
