"""Kernels of the CUDA backend: device code in .cuh/.cu, one Python module per kernel family for planning and launch."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_triton import kernels as _small_ops

from deepinfer.registry import Kernel
from deepinfer_cuda.kernels.gemm import KERNELS as _GEMM
from deepinfer_cuda.kernels.route import KERNELS as _ROUTE

KERNELS: Sequence[Kernel] = (*_GEMM, *_ROUTE, *_small_ops())
