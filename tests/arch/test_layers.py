"""Architecture rules that no linter knows: vendor words, environment variables, import weight, backend names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = sorted((ROOT / "deepinfer").rglob("*.py"))
VENDOR_MODULES = {"triton", "cuda", "acl", "torch_npu", "cupy"}
VENDOR_WORDS = re.compile(r"\b(is_)?(cuda|npu|nvidia|ascend\d*|huawei|triton|rocm)(_|\b)", re.IGNORECASE)
VENDOR_ATTRIBUTES = {("torch", "cuda"), ("torch", "npu"), ("torch", "xpu")}


def _imports(tree: ast.AST) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append(node.module)
    return found


def _attributes(tree: ast.AST) -> set[tuple[str, str]]:
    return {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_core_file_keeps_the_rules(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = _imports(tree)
    assert not [name for name in imported if name.split(".")[0].startswith("deepinfer_")], "imports a backend package"
    assert not VENDOR_MODULES & {name.split(".")[0] for name in imported}, "imports a vendor package"
    assert not VENDOR_ATTRIBUTES & _attributes(tree), "touches a vendor namespace of torch"
    if path.name != "config.py":
        assert ("os", "environ") not in _attributes(tree), "reads the environment outside config.py"
        assert ("os", "getenv") not in _attributes(tree), "reads the environment outside config.py"


def _words(tree: ast.AST) -> list[str]:
    """Names, attributes and texts of a module, docstrings left out."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.append(node.id)
        elif isinstance(node, ast.Attribute):
            found.append(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found.append(node.value)
    return found


@pytest.mark.parametrize("package", ["engine", "models", "ops", "registry"])
def test_no_vendor_is_named_above_the_hal(package: str) -> None:
    guilty = [
        f"{path.relative_to(ROOT)}: {word!r}"
        for path in sorted((ROOT / "deepinfer" / package).rglob("*.py"))
        for word in _words(ast.parse(path.read_text()))
        if VENDOR_WORDS.search(word)
    ]
    assert not guilty


def test_a_vendor_branch_would_be_found() -> None:
    for source in ("x = t.is_cuda", "if d.type == 'npu': pass", "import torch; torch.cuda.synchronize()"):
        assert any(VENDOR_WORDS.search(word) for word in _words(ast.parse(source))), source
    assert not any(VENDOR_WORDS.search(word) for word in _words(ast.parse("'on cuda:1'; ascending = 'ascending'")))


@pytest.mark.parametrize("package", ["engine", "models"])
def test_engine_and_models_import_only_what_they_may(package: str) -> None:
    allowed = ("deepinfer.ops", "deepinfer.registry", "deepinfer.hal", "deepinfer.engine", "deepinfer.models",
               "deepinfer.errors", "deepinfer.config")
    for path in sorted((ROOT / "deepinfer" / package).rglob("*.py")):
        for name in _imports(ast.parse(path.read_text())):
            if name == "deepinfer" or name.startswith("deepinfer."):
                assert name.startswith(allowed), f"{path.name} imports {name}"


def test_import_is_light() -> None:
    """`import deepinfer` loads no backend, driver, compiler or tokenizer, and opens no device."""
    code = (
        "import sys, torch; before = set(sys.modules); import deepinfer; new = set(sys.modules) - before; "
        "heavy = [m for m in new if m.split('.')[0] in "
        "('triton','cuda','torch_npu','transformers','tokenizers','safetensors','jinja2','rich') "
        "or m.startswith('deepinfer_') or m.startswith('deepinfer.engine') or m.startswith('deepinfer.ops')]; "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_entry_point_loads_without_heavy_imports() -> None:
    code = (
        "import sys; from deepinfer.hal import discovery; discovery.state('cpu'); discovery.state('null'); "
        "assert 'triton' not in sys.modules and 'deepinfer_cpu.kernels' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_any_toolkit_the_import_works_and_the_choice_explains_c79() -> None:
    """C79: no PATH, no CUDA_HOME. What is missing is named with what would help, and the cpu goes on working."""
    code = (
        "import torch, deepinfer\n"
        "try:\n    deepinfer.set_backend('cuda')\n"
        "except deepinfer.errors.BackendUnavailable as error:\n    print(error)\n"
        "else:\n    print('chosen')\n"
        "with deepinfer.use_backend('cpu'):\n    print(deepinfer.ops.norm.rms_norm(torch.ones(1, 2), torch.ones(2)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PATH": ""})
    assert "tensor([[" in done.stdout
    assert ("To fix it" in done.stdout) != ("chosen" in done.stdout)
