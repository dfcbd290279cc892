"""The hardware build with stand-ins for the vendor's programs: what is missing or broken is named, with the remedy."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from deepinfer_ascend950 import detect
from deepinfer_ascend950.toolchain import bisheng
from deepinfer_ascend950.toolchain.sources import npu_build

from deepinfer.errors import BackendUnavailable
from deepinfer.jit import CompileError

# Writes down its arguments, and makes what stands behind -o.
GOOD = """#!/bin/sh
echo "$0 $*" >> "$LOG"
if [ "$1" = --version ]; then echo "bisheng 15.0.5 (stand-in)"; exit 0; fi
while [ $# -gt 1 ]; do [ "$1" = -o ] && echo "image" > "$2"; shift; done
"""


@pytest.fixture
def cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolkit whose programs are stand-ins, announced by ASCEND_HOME_PATH; a space in its path."""
    root = tmp_path / "my cann"
    (root / "bin").mkdir(parents=True)
    (root / f"{platform.machine()}-linux" / "include").mkdir(parents=True)
    for name in ("bisheng", "ld.lld"):
        program(root, name, GOOD)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(root))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return root


def program(root: Path, name: str, text: str, mode: int = 0o755) -> None:
    path = root / "bin" / name
    path.write_text(text)
    path.chmod(mode)


def test_a_kernel_goes_through_compiler_and_linker(cann: Path, tmp_path: Path) -> None:
    compiler = bisheng.BishengCompiler()
    assert compiler.identity().startswith("bisheng 15.0.5 (stand-in)")
    image, log = compiler.compile(npu_build("gemm_plain", ("-DX=1",)))
    assert (image, log) == (b"image\n", "")
    version, compiled, linked = (tmp_path / "log").read_text().splitlines()
    assert version.endswith("--version")
    for part in (
        "--npu-arch=dav-3510",
        "-std=c++20",
        "-DX=1",
        f"-I{cann}/{platform.machine()}-linux/include",
        "-x asc",
    ):
        assert part in compiled
    assert linked.split("ld.lld ")[1].startswith("-m aicorelinux -Ttext 0 --no-mmap-output-file")


def test_a_toolkit_that_is_not_there(cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", "/nowhere/cann")
    with pytest.raises(BackendUnavailable, match=r"(?s)bisheng.*/nowhere/cann, which is no folder.*PATH.*set_env\.sh"):
        bisheng.BishengCompiler().identity()
    monkeypatch.delenv("ASCEND_HOME_PATH")
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    with pytest.raises(BackendUnavailable, match=r"(?s)neither ASCEND_HOME_PATH nor ASCEND_TOOLKIT_HOME"):
        bisheng.find("bisheng", bisheng.toolkit(defaults=()))


def test_the_default_folder_is_used_when_nothing_is_announced(tmp_path: Path) -> None:
    folders = (tmp_path / "absent", tmp_path / "cann")
    folders[1].mkdir()
    assert bisheng.toolkit({}, folders) == folders[1]
    assert bisheng.toolkit({"ASCEND_TOOLKIT_HOME": "/other"}, folders) == Path("/other")


def test_a_program_that_may_not_run(cann: Path) -> None:
    program(cann, "bisheng", GOOD, 0o644)
    with pytest.raises(BackendUnavailable, match="may not be executed"):
        bisheng.BishengCompiler().identity()


def test_a_program_of_another_machine(cann: Path) -> None:
    program(cann, "bisheng", "\x7fELF of another machine")
    with pytest.raises(BackendUnavailable, match=r"bisheng cannot be started"):
        bisheng.BishengCompiler().identity()
    with pytest.raises(CompileError, match="cannot be started"):
        bisheng.BishengCompiler().compile(npu_build("gemm_plain"))


def test_a_missing_linker_and_missing_headers(cann: Path) -> None:
    (cann / "bin" / "ld.lld").unlink()
    with pytest.raises(BackendUnavailable, match=r"ld\.lld"):
        bisheng.BishengCompiler().compile(npu_build("gemm_plain"))
    program(cann, "ld.lld", GOOD)
    (cann / f"{platform.machine()}-linux" / "include").rmdir()
    with pytest.raises(BackendUnavailable, match=r"(?s)no kernel headers.*-linux/include"):
        bisheng.BishengCompiler().compile(npu_build("gemm_plain"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho 'gemm_plain.asc:3: error: no such call' >&2; exit 1\n", "no such call"),
        ("#!/bin/sh\nexit 139\n", "exit status 139"),
        ("#!/bin/sh\nexit 0\n", r"without making unit\.o"),
    ],
)
def test_a_compiler_that_fails(cann: Path, text: str, said: str) -> None:
    program(cann, "bisheng", text)
    with pytest.raises(CompileError, match=said) as caught:
        bisheng.BishengCompiler().compile(npu_build("gemm_plain"))
    assert "--npu-arch=dav-3510" in str(caught.value)


def test_torch_npu_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("libhccl.so: cannot open shared object file")

    monkeypatch.setattr(detect, "import_module", broken)
    reason = detect.import_torch_npu()
    assert reason is not None
    assert "libhccl.so" in reason
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in reason
