"""A launch made ready once and repeated: parameter block, grid, cluster shape and attributes.

Kernels are called thousands of times with the same pointers; building the parameter block and the attribute list each
time would cost more than the launch. Invariants: what a launch hands to the driver never changes; every stream has a
configuration of its own, so that threads on different streams share nothing; a launch runs on its kernel's device,
whichever is current in the calling thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from cuda.bindings import driver as cu

from deepinfer.hal import Arg, Stream
from deepinfer.hal.driver import Dim3
from deepinfer_cuda.driver import Place, parameter_block
from deepinfer_cuda.result import check

DEFAULT_SHARED_LIMIT = 48 * 1024
STREAM_LIMIT = 64  # configurations one launch keeps
_SUCCESS = cu.CUresult.CUDA_SUCCESS
_NO_CONTEXT = int(cu.CUresult.CUDA_ERROR_INVALID_CONTEXT)  # of a thread in which nothing used CUDA before


def allow_shared(fn: int, smem_bytes: int) -> None:
    """Raise the kernel's dynamic shared-memory limit; needed above 48 KB."""
    if smem_bytes <= DEFAULT_SHARED_LIMIT:
        return
    attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check("cuFuncSetAttribute", cu.cuFuncSetAttribute(cu.CUfunction(fn), attribute, smem_bytes))


class Prepared:
    """One kernel with everything but the stream."""

    def __init__(
        self,
        fn: int,
        grid: Dim3,
        block: Dim3,
        smem_bytes: int,
        args: Sequence[Arg],
        *,
        cluster: Dim3 = (1, 1, 1),
        dependent: bool = False,
        place: Place,
    ) -> None:
        """`cluster` divides `grid`, which counts blocks; `dependent` allows overlap with the previous grid's tail."""
        with place.within():
            allow_shared(fn, smem_bytes)
        self._place = place
        self._fn = cu.CUfunction(fn)
        self._pointers, self._keep = parameter_block(args)
        self._params = ctypes.addressof(self._pointers)
        self._shape = grid, block, smem_bytes, cluster, dependent
        self._configs: dict[int, cu.CUlaunchConfig] = {}

    def __call__(self, stream: Stream) -> None:
        """Enqueue on `stream`."""
        config = self._configs.get(stream.handle) or self._configure(stream.handle)
        if not self._place.elsewhere():
            (status,) = cu.cuLaunchKernelEx(config, self._fn, self._params, 0)
            if status is _SUCCESS or int(status) == 0:
                return
            if int(status) != _NO_CONTEXT:
                check("cuLaunchKernelEx", (status,))
        with self._place.within():
            check("cuLaunchKernelEx", cu.cuLaunchKernelEx(config, self._fn, self._params, 0))

    def _configure(self, stream: int) -> cu.CUlaunchConfig:
        grid, block, smem_bytes, cluster, dependent = self._shape
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = smem_bytes
        config.attrs = _attributes(cluster, dependent)
        config.numAttrs = len(config.attrs)
        config.hStream = cu.CUstream(stream)
        if len(self._configs) >= STREAM_LIMIT:
            self._configs.clear()
        self._configs[stream] = config
        return config


def _attributes(cluster: Dim3, dependent: bool) -> list[cu.CUlaunchAttribute]:
    found: list[cu.CUlaunchAttribute] = []
    if cluster != (1, 1, 1):
        attribute = cu.CUlaunchAttribute()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        shape = attribute.value.clusterDim
        shape.x, shape.y, shape.z = cluster
        found.append(attribute)
    if dependent:
        attribute = cu.CUlaunchAttribute()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        found.append(attribute)
    return found
