"""Deep GMM: dense, grouped and masked grouped matrix multiply in bf16, fp8 and fp8 x fp4."""

from deepinfer.ops.deep_gmm.api import (
    gemm,
    group_rows,
    grouped_gemm,
    grouped_swiglu_mlp,
    masked_grouped_gemm,
    prepack,
)
from deepinfer.ops.deep_gmm.packed import Packed

__all__ = [
    "Packed", "gemm", "group_rows", "grouped_gemm", "grouped_swiglu_mlp", "masked_grouped_gemm", "prepack",
]
