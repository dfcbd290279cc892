"""Every public op documents what a caller must know: arguments, results, errors, shapes, dtypes, source, an example."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

FAMILIES = ("flash_mla", "deep_gmm", "deep_ep", "moe", "norm", "quant", "rope", "sampling")
SECTIONS = ("Args:", "Returns:", "Raises:", "Source:", ">>> ")
DTYPES = re.compile(r"\b(bf16|f16|f32|float32|int32|int64|uint8|e4m3|e2m1|bool|dtype)\b")
NO_TENSORS = {"initial_placement", "size_hint", "softmax_factor"}  # plain numbers in and out


def _public() -> list[tuple[str, Callable[..., Any]]]:
    found = []
    for family in FAMILIES:
        module = importlib.import_module(f"deepinfer.ops.{family}")
        for name in module.__all__:
            entry = getattr(module, name)
            if inspect.isfunction(entry):
                found.append((f"{family}.{name}", entry))
    return found


@pytest.mark.parametrize(("name", "function"), _public(), ids=lambda value: value if isinstance(value, str) else "")
def test_docstring(name: str, function: Callable[..., Any]) -> None:
    text = inspect.getdoc(function) or ""
    missing = [section for section in SECTIONS if section not in text]
    if name.partition(".")[2] not in NO_TENSORS:
        missing += [] if re.search(r"\[[^\]]+\]", text) else ["shapes"]
        missing += [] if DTYPES.search(text) else ["dtypes"]
    if ".." not in text:  # "temperature .. row_map: as for `sample`"
        parameters = inspect.signature(function).parameters
        missing += [parameter for parameter in parameters if not re.search(rf"\b{parameter}\b", text)]
    assert not missing, f"{name} says nothing of {missing}"


def test_the_list_holds_every_family() -> None:
    assert {name.partition(".")[0] for name, _ in _public()} == set(FAMILIES)
    assert len(_public()) >= 34
