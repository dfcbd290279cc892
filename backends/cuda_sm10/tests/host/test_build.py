"""Kernels compile without a GPU: cubin and PTX through NVRTC, cached by content, with the compiler's own errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from deepinfer_cuda import aot, jit
from deepinfer_cuda.kernels.base import Unit
from deepinfer_cuda.kernels.gemm_tiles import MASKED_TILES, TILES

from deepinfer.errors import InvalidArgument
from deepinfer.jit import Build, BuildCache, CompileError

INSTANCES = [(arch, unit) for arch in aot.DEFAULT_ARCHS for unit in aot.units(arch)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> BuildCache:
    return BuildCache([tmp_path_factory.mktemp("jit")])


@pytest.mark.parametrize(("arch", "unit"), INSTANCES, ids=lambda value: getattr(value, "symbol", None))
def test_every_kernel_compiles(arch: str, unit: Unit, cache: BuildCache) -> None:
    build = unit.build(arch)
    assert cache.get(build, jit.NvrtcCompiler()).image[:4] == b"\x7fELF"
    assert BuildCache(cache.roots, forbid_compile=True).get(build, jit.NvrtcCompiler()).cached


@pytest.mark.parametrize("arch", aot.DEFAULT_ARCHS)
def test_simulators_get_ptx_that_the_driver_floor_understands(arch: str, cache: BuildCache) -> None:
    ptx = cache.get(aot.units(arch)[-1].build(arch, "ptx"), jit.NvrtcCompiler()).image
    assert f".target {arch}a".encode() in ptx
    assert b".version 9.0" in ptx


def test_a_build_holds_one_kernel_and_only_the_headers_it_includes() -> None:
    for arch, unit in INSTANCES:
        build = unit.build(arch)
        assert unit.header in build.headers
        assert not [name for name in build.headers if name.startswith("kernels/") and name != unit.header]
        for name, text in build.headers.items():
            assert set(jit.closure(text)) <= set(build.headers), name
    for arch in aot.DEFAULT_ARCHS:
        assert len({unit.symbol for unit in aot.units(arch)}) == len(aot.units(arch))


def test_an_unknown_header_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"layout/sum\.cuh.*layout/sums\.cuh"):
        jit.closure('#include "layout/sum.cuh"')


def test_compile_errors_carry_the_log(cache: BuildCache) -> None:
    source = '#include "ptx/types.cuh"\n__global__ void f() { nonsense; }'
    build = Build("broken", source, jit.headers(), jit.FLAGS, "90a")
    with pytest.raises(CompileError, match=r"(?s)broken.*identifier \"nonsense\" is undefined"):
        cache.get(build, jit.NvrtcCompiler())


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="sm_80"):
        TILES[0].unit.build("sm_80")


def test_key_holds_no_path() -> None:
    build = TILES[0].unit.build("sm_90")
    texts = [build.source, *build.flags, *build.headers, *build.headers.values()]
    assert not [text for text in texts if str(Path.cwd()) in text or str(jit.PACKAGE) in text]


def test_host_and_device_agree_on_shared_memory(cache: BuildCache) -> None:
    asserts = ""
    for t in dict.fromkeys((*TILES, *MASKED_TILES)):
        arguments = f"<{', '.join(str(value) for value in t.arguments)}>"
        kernel = f"di::sm90::GemmBf16{arguments}" if t.arguments else "di::sm90::MaskedBf16"
        asserts += f"static_assert({kernel}::kSharedBytes == {t.shared_bytes});\n"
        asserts += f"static_assert({kernel}::kThreads == {t.threads});\n"
    headers = "".join(f'#include "{name}"\n' for name in sorted({t.header for t in (*TILES, *MASKED_TILES)}))
    source = f"{headers}{asserts}__global__ void f() {{}}"
    cache.get(Build("layout", source, jit.headers(), jit.FLAGS, "90a", "ptx"), jit.NvrtcCompiler())


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_compiles_ahead_into_a_folder_that_the_run_time_cache_reads(tmp_path: Path) -> None:
    """The target of CMake compiles what is missing; here that is one kernel of sm_103."""
    root, build = tmp_path / "cache", tmp_path / "build"
    compiler = jit.NvrtcCompiler()
    wanted = aot.builds("sm_103")
    filled = BuildCache([root / "jit"])
    for request in wanted[1:]:  # stand-ins, so that the test compiles one kernel and sees the others left alone
        filled.get(request, SimpleNamespace(identity=compiler.identity, compile=lambda build: (b"as it was", "")))
    options = ["-DDEEPINFER_CUDA_AOT=sm_103", f"-DDEEPINFER_CUDA_AOT_ROOT={root}"]
    options.append(f"-DPython3_EXECUTABLE={sys.executable}")
    listing = f'project(aot LANGUAGES NONE)\nadd_subdirectory("{jit.PACKAGE.parent}" cuda_sm10)\n'
    (tmp_path / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.22)\n{listing}")
    subprocess.run(["cmake", "-S", str(tmp_path), "-B", str(build), *options], check=True, capture_output=True)
    command = ["cmake", "--build", str(build), "--target", "deepinfer_cuda_aot"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert f"{len(wanted)}/{len(wanted)}" in done.stdout
    forbidding = BuildCache([root / "jit"], forbid_compile=True)
    assert forbidding.get(wanted[0], compiler).image[:4] == b"\x7fELF"
    assert all(forbidding.get(request, compiler).image == b"as it was" for request in wanted[1:])


def test_the_run_time_cache_reads_what_was_installed_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = BuildCache([tmp_path / "aot"])
    monkeypatch.setattr(jit, "PACKAGE", tmp_path)
    monkeypatch.setenv("DEEPINFER_CACHE_DIR", str(tmp_path / "user"))
    request = Build("probe", "// a kernel", {}, jit.FLAGS, "90a")
    never = SimpleNamespace(identity=jit.NvrtcCompiler().identity, compile=lambda build: pytest.fail("was compiled"))
    installed.get(request, SimpleNamespace(identity=never.identity, compile=lambda build: (b"image", "")))
    assert jit.default_cache().get(request, never).image == b"image"
