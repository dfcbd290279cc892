"""Compiles every CUDA kernel of this package ahead of use, into a folder that the build cache reads.

    python -m deepinfer_cuda.aot --root build/cuda_aot --arch sm_90 --arch sm_100

The folder becomes a cache: set DEEPINFER_CACHE_DIR to it, or install its `jit` folder as `deepinfer_cuda/aot`. Entries
are named by content, as those that are made at run time. Needs neither a GPU nor a toolkit.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from deepinfer.hal import Device
from deepinfer.jit import Build, BuildCache, Compiled, Progress, warmup
from deepinfer_cuda import jit
from deepinfer_cuda.kernels.base import CudaKernel, Unit, load
from deepinfer_cuda.kernels.gemm import KERNELS

DEFAULT_ARCHS = ("sm_90", "sm_100")


def units(arch: str) -> list[Unit]:
    """Every kernel instance for devices of architecture `arch`, each once."""
    kernels: Sequence[CudaKernel] = [kernel for kernel in KERNELS if arch in kernel.archs]
    return list(dict.fromkeys(unit for kernel in kernels for unit in kernel.units()))


def builds(arch: str, fmt: str = "cubin") -> list[Build]:
    """Their translation units."""
    return [unit.build(arch, fmt) for unit in units(arch)]


def load_all(device: Device, jobs: int = 2) -> int:
    """Compile (or fetch) and load everything that `device` may run; the number of modules."""
    fmt = "ptx" if device.simulated else "cubin"
    warmup(jit.default_cache(), builds(device.props.arch, fmt), jit.NvrtcCompiler(), jobs=jobs)
    return len([load(device, unit) for unit in units(device.props.arch)])


def compile_all(
    root: Path, archs: Sequence[str] = DEFAULT_ARCHS, fmt: str = "cubin", jobs: int = 2, verbose: bool = False
) -> list[Compiled]:
    """Fill `<root>/jit`; what is there already is not compiled again."""
    def show(step: Progress) -> None:
        print(f"[{step.done}/{step.total}] {step.name}{' (cached)' if step.cached else ''}", flush=True)

    wanted = [build for arch in archs for build in builds(arch, fmt)]
    cache = BuildCache([root / "jit"])
    return warmup(cache, wanted, jit.NvrtcCompiler(), jobs=jobs, report=show if verbose else None)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m deepinfer_cuda.aot", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="cache folder to fill")
    parser.add_argument("--arch", action="append", choices=sorted(jit.ARCHITECTURES), help="default: sm_90 and sm_100")
    parser.add_argument("--fmt", choices=("cubin", "ptx"), default="cubin", help="ptx is what the simulator runs")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(argv)
    compile_all(options.root, options.arch or DEFAULT_ARCHS, options.fmt, options.jobs, verbose=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
