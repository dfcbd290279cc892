"""Expert routing and the activation between the two expert GEMMs."""

from deepinfer.ops.moe.api import route, swiglu_quantize

__all__ = ["route", "swiglu_quantize"]
