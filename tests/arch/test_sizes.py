"""The size budget of style: small files, small functions, a docstring on every module."""

from __future__ import annotations

import ast
import statistics
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_CAP, KERNEL_CAP, FUNCTION_CAP = 500, 700, 80
NATIVE = {".c", ".cc", ".cpp", ".h", ".hpp", ".cuh", ".cu", ".asc"}


def _tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.splitlines() if Path(name).suffix in suffixes and (ROOT / name).exists()]


def _is_large_kind(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return path.suffix in NATIVE or "tests" in parts or "kernels" in parts


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_files_stay_below_their_cap() -> None:
    too_long = {
        str(path.relative_to(ROOT)): _lines(path)
        for path in _tracked(".py", *NATIVE)
        if _lines(path) > (KERNEL_CAP if _is_large_kind(path) else FILE_CAP)
    }
    assert not too_long


def test_modules_that_tests_import_by_bare_name_are_unique() -> None:
    """Test folders of backends share one import path, so of two modules with one name only the first is ever seen."""
    places: dict[str, list[str]] = {}
    for path in _tracked(".py"):
        parts = path.relative_to(ROOT).parts
        if parts[0] == "backends" and "tests" in parts and not path.stem.startswith(("test_", "conftest", "__")):
            places.setdefault(path.stem, []).append("/".join(parts))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_most_files_are_small() -> None:
    sizes = sorted(_lines(path) for path in _tracked(".py") if "tests" not in path.relative_to(ROOT).parts)
    assert statistics.median(sizes) <= 120
    assert sizes[int(len(sizes) * 0.9)] <= 300


def _functions(path: Path) -> list[tuple[str, int]]:
    tree = ast.parse(path.read_text())
    return [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_functions_stay_below_their_cap() -> None:
    cap = {True: 250, False: FUNCTION_CAP}
    too_long = [
        f"{path.relative_to(ROOT)}:{name}: {size}"
        for path in _tracked(".py")
        for name, size in _functions(path)
        if size > cap["kernels" in path.relative_to(ROOT).parts and "triton" in path.relative_to(ROOT).parts]
    ]
    assert not too_long


def test_median_function_is_short() -> None:
    product = [path for path in _tracked(".py") if "tests" not in path.relative_to(ROOT).parts]
    sizes = [size for path in product for _, size in _functions(path)]
    assert statistics.median(sizes) <= 12


@pytest.mark.parametrize("path", _tracked(".py"), ids=lambda path: str(path.relative_to(ROOT)))
def test_module_says_why_it_exists(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not tree.body or ast.get_docstring(tree), "needs a module docstring"


def test_no_bare_assert_or_silent_except_in_the_product() -> None:
    guilty: list[str] = []
    for path in _tracked(".py"):
        parts = path.relative_to(ROOT).parts
        if "tests" in parts or "conformance" in parts or parts[0] not in ("deepinfer", "backends"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                guilty.append(f"{path.relative_to(ROOT)}:{node.lineno}: assert")
            if isinstance(node, ast.ExceptHandler) and all(isinstance(stmt, ast.Pass) for stmt in node.body):
                guilty.append(f"{path.relative_to(ROOT)}:{node.lineno}: except with nothing but pass")
    assert not guilty
