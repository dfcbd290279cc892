"""Kernels that beat the portable tier on a CPU, one module per op family; `KERNELS` is what the backend declares."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules

from deepinfer.registry.kernel import Kernel


def _collect() -> list[Kernel]:
    found: list[Kernel] = []
    for module in sorted(iter_modules(__path__), key=lambda entry: entry.name):
        found += import_module(f"{__name__}.{module.name}").KERNELS
    return found


KERNELS: Sequence[Kernel] = _collect()
