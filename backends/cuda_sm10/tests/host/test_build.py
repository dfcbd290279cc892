"""Kernels compile without a GPU: cubin and PTX through NVRTC, cached by content, with the compiler's own errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from deepinfer_cuda import jit
from deepinfer_cuda.kernels.gemm import TILES

from deepinfer.errors import InvalidArgument
from deepinfer.jit import Build, BuildCache, CompileError, warmup

KERNELS = jit.PACKAGE / "kernels"
SOURCES = sorted(path.relative_to(KERNELS).with_suffix("").as_posix() for path in KERNELS.rglob("*.cu"))
ARCH_OF = {"sm90": "sm_90", "sm100": "sm_100"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> BuildCache:
    return BuildCache([tmp_path_factory.mktemp("jit")])


@pytest.mark.parametrize("source", SOURCES)
def test_every_kernel_compiles_to_cubin_and_ptx(source: str, cache: BuildCache) -> None:
    arch = ARCH_OF[source.split("/", maxsplit=1)[0]]
    builds = [jit.kernel_build(source, arch, fmt) for fmt in ("cubin", "ptx")]
    cubin, ptx = warmup(cache, builds, jit.NvrtcCompiler())
    assert cubin.image[:4] == b"\x7fELF"
    assert f".target {arch}a".encode() in ptx.image
    assert b".version 9.0" in ptx.image  # what the driver floor understands
    assert BuildCache(cache.roots, forbid_compile=True).get(builds[0], jit.NvrtcCompiler()).cached


def test_compile_errors_carry_the_log(cache: BuildCache) -> None:
    source = '#include "ptx/types.cuh"\n__global__ void f() { nonsense; }'
    build = Build("broken", source, jit.headers(), jit.FLAGS, "90a")
    with pytest.raises(CompileError, match=r"(?s)broken.*identifier \"nonsense\" is undefined"):
        cache.get(build, jit.NvrtcCompiler())


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="sm_80"):
        jit.kernel_build("sm90/gemm_bf16", "sm_80")


def test_key_holds_no_path() -> None:
    build = jit.kernel_build("sm90/gemm_bf16", "sm_90")
    texts = [build.source, *build.flags, *build.headers, *build.headers.values()]
    assert not [text for text in texts if str(Path.cwd()) in text or str(jit.PACKAGE) in text]


def test_host_and_device_agree_on_shared_memory(cache: BuildCache) -> None:
    asserts = ""
    for t in TILES:
        kernel = f"di::sm90::GemmBf16<{t.rows}, {t.cols}, {t.stages}, {t.cluster}>"
        asserts += f"static_assert({kernel}::kSharedBytes == {t.shared_bytes});\n"
        asserts += f"static_assert({kernel}::kThreads == {t.threads});\n"
    source = f'#include "kernels/sm90/gemm_bf16.cuh"\n{asserts}__global__ void f() {{}}'
    cache.get(Build("layout", source, jit.headers(), jit.FLAGS, "90a", "ptx"), jit.NvrtcCompiler())
