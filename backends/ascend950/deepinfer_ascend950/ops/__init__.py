"""Kernels of the Ascend 950 backend: AscendC code in kernels/*.asc, planned and launched by one module per family."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.registry import Kernel
from deepinfer_ascend950.ops.attention import KERNELS as _MLA
from deepinfer_ascend950.ops.cache import KERNELS as _CACHE
from deepinfer_ascend950.ops.ep import KERNELS as _EP
from deepinfer_ascend950.ops.fused import KERNELS as _FUSED
from deepinfer_ascend950.ops.gemm import KERNELS as _GEMM
from deepinfer_ascend950.ops.index import KERNELS as _INDEX
from deepinfer_ascend950.ops.merge import KERNELS as _MERGE
from deepinfer_ascend950.ops.swiglu import KERNELS as _SWIGLU

KERNELS: Sequence[Kernel] = (*_GEMM, *_MLA, *_CACHE, *_MERGE, *_FUSED, *_EP, *_INDEX, *_SWIGLU)
