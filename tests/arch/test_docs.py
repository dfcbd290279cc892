"""Every example in docstrings and in the documentation runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import deepinfer

ROOT = Path(__file__).resolve().parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SKIPPED_PACKAGES = ("deepinfer.conformance",)  # pytest plugin modules, imported by pytest itself


def _modules() -> list[str]:
    found = [info.name for info in pkgutil.walk_packages(deepinfer.__path__, "deepinfer.")]
    return [name for name in found if not name.startswith(SKIPPED_PACKAGES) and not name.endswith("__main__")]


@pytest.mark.parametrize("name", ["deepinfer", *_modules()])
def test_docstring_examples(name: str) -> None:
    deepinfer.set_backend("cpu")
    result = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert result.failed == 0


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_documentation_examples(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks fenced as `python` that hold `>>>` are doctests; other python blocks must run as they stand.

    A block whose first line is `# not run: REASON` is only compiled.
    """
    monkeypatch.chdir(ROOT)
    scope: dict[str, object] = {"__name__": "__docs__"}
    for index, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.S)):
        name = f"{path.name}[{index}]"
        if block.startswith("# not run:"):
            compile(block, name, "exec")
        elif ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, scope, name, str(path), 0)
            runner = doctest.DocTestRunner(optionflags=FLAGS)
            runner.run(test, clear_globs=False)
            scope.update(test.globs)
            assert runner.summarize(verbose=False).failed == 0, name
        else:
            exec(compile(block, name, "exec"), scope)
