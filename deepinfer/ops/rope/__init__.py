"""Rotary position embedding and its tables."""

from deepinfer.ops.rope.api import apply
from deepinfer.ops.rope.table import build_table, softmax_factor

__all__ = ["apply", "build_table", "softmax_factor"]
