"""Microbenchmarks: cases of the op specifications, measured on a device, as JSONL rows that can be compared and drawn.

    rows = deepinfer.bench.run("cpu", ops=["deep_gmm.*"], out="rows.jsonl")
    deepinfer.bench.compare("before.jsonl", "after.jsonl").ok
    deepinfer.bench.picture("rows.jsonl", "rows.svg")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer.bench.comparison import Comparison, compare
    from deepinfer.bench.drawing import picture
    from deepinfer.bench.runner import run

__all__ = ["Comparison", "compare", "picture", "run"]

_LAZY = {
    "run": "deepinfer.bench.runner",
    "compare": "deepinfer.bench.comparison",
    "Comparison": "deepinfer.bench.comparison",
    "picture": "deepinfer.bench.drawing",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'deepinfer.bench' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
