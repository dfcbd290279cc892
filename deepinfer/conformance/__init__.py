"""The suite a backend must pass: L0 plugin contract, L1 driver and device, L2 ops, L3 engine.

    pytest --pyargs deepinfer.conformance --backend NAME
    deepinfer.conformance.run("NAME", quick=True, report="out.json")

Invariant: importing this package (or its pytest plugin) imports nothing heavy; the parts load when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer.conformance.report import Report, Result
    from deepinfer.conformance.suite import run

__all__ = ["Report", "Result", "run"]

_LAZY = {
    "run": "deepinfer.conformance.suite",
    "Report": "deepinfer.conformance.report",
    "Result": "deepinfer.conformance.report",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'deepinfer.conformance' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
