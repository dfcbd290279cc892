"""Kernels compile without a GPU: cubin and PTX through NVRTC, cached by content, with the compiler's own errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from deepinfer_cuda import aot, jit
from deepinfer_cuda.kernels.base import Unit
from deepinfer_cuda.kernels.gemm_tiles import TILES

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
    for t in TILES:
        kernel = f"di::sm90::GemmBf16<{', '.join(str(value) for value in t.arguments)}>"
        asserts += f"static_assert({kernel}::kSharedBytes == {t.shared_bytes});\n"
        asserts += f"static_assert({kernel}::kThreads == {t.threads});\n"
    source = f'#include "kernels/sm90/gemm_bf16.cuh"\n{asserts}__global__ void f() {{}}'
    cache.get(Build("layout", source, jit.headers(), jit.FLAGS, "90a", "ptx"), jit.NvrtcCompiler())
