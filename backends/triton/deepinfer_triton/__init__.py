"""Small ops in Triton, a library that accelerator backends may use. Importing it, or its kernel list, needs no triton.

Triton is only the compiler: launches go through the device's own driver, on hardware and in the simulator alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.registry import Kernel


def kernels() -> Sequence[Kernel]:
    """All kernels of this package, for a backend's `kernels()`."""
    from deepinfer_triton import flash_mla, grouping, moe, norm, quant, rope, sampling

    return [kernel for module in (flash_mla, grouping, moe, norm, quant, rope, sampling) for kernel in module.KERNELS]
