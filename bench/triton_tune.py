"""Times choices of the Triton kernels on a GPU: tiles, warps and repeats of every case in triton_cases.py.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton:bench python bench/triton_tune.py [NAME...]

All choices are compiled first, by many processes. Choices whose results have other bits than the first one's are named:
sums may differ with the number of warps, quantised bytes may not. Prints the share of copy bandwidth per choice,
measured interleaved with the copy and the other choices of the case. `--once` runs each case once, for a profiler.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import torch
from deepinfer_cpu.plugin import create as create_cpu
from deepinfer_cuda.plugin import create
from deepinfer_triton.compile import TritonBuild, TritonCompiler
from deepinfer_triton.kernel import Program, specialise
from sm90_gemm import slot
from triton_cases import PARTS, Case, kernel_of, launcher

import deepinfer
from deepinfer.config import cache_dir
from deepinfer.hal import Device
from deepinfer.jit import BuildCache

Choice = tuple[dict[str, Any], int | None]  # module attributes to replace, warps
TILES = ("blocks.TILE", "quant.TILE")


def _grid(names: tuple[str, ...], sizes: tuple[int, ...], warps: tuple[int, ...]) -> list[Choice]:
    return [(dict.fromkeys(names, size), count) for size in sizes for count in warps]


def _pairs(name: str) -> list[Choice]:
    """Choices of the packed fp4 paths, which keep values and warps together."""
    return [({name: (size, count)}, None) for size in (1024, 2048, 4096, 8192) for count in (1, 2, 4, 8)
            if 8 <= size // count // 32 <= 64]


DEFAULT: Choice = ({}, None)
CHOICES: dict[str, list[Choice]] = {
    "norm.rms_norm": [({}, warps) for warps in (4, 8, 16)],
    "norm.fused_add_rms_norm": [({}, warps) for warps in (4, 8, 16)],
    "quant.quantize_fp8": _grid(TILES, (2048, 4096, 8192), (4, 8)),
    "quant.quantize_mxfp4": _pairs("quant.PAIRS"),
    "quant.dequantize": _grid(TILES, (1024, 2048, 4096), (2, 4, 8)),
    "quant.pack_scales": [
        ({"quant.PackScales.rows_tile": rows, "quant.PackScales.k_tile": columns}, warps)
        for rows in (32, 64, 128) for columns in (32, 64) for warps in (1, 2, 4, 8)
    ],
    "flash_mla.kv_cache_write": _grid(("flash_mla.TILE", "flash_mla.PLAIN_TILE"), (1024, 2048, 4096), (2, 4, 8)),
    "flash_mla.kv_cache_read": _grid(("flash_mla.TILE", "flash_mla.PLAIN_TILE"), (1024, 2048, 4096), (2, 4, 8)),
    "flash_mla.merge_states": _grid(("flash_mla.MERGE_TILE",), (512, 1024, 2048, 4096), (2, 4, 8)),
    "rope.apply": _grid(("rope.TILE",), (2048, 4096, 8192), (2, 4, 8)),
    "sampling.apply_token_mask": _grid(("sampling.BLOCK",), (1024, 2048, 4096), (4, 8)),
    "moe.swiglu_quantize": _grid(("moe.TILE",), (512, 1024, 2048, 4096), (1, 2, 4, 8)),
    "moe.route": [({"moe.WARP_EXPERTS": counts}, None) for counts in ((128, 256), ())],
    "deep_ep.reduce": _grid(("grouping.BLOCK",), (512, 1024, 2048), (2, 4, 8)),
}
FP4 = {
    "flash_mla.kv_cache_write": _pairs("flash_mla.WRITE_PAIRS"),
    "flash_mla.kv_cache_read": _pairs("flash_mla.READ_PAIRS"),
}


def choices_of(case: Case) -> list[Choice]:
    return FP4[case.op] if "fp4" in case.name and case.op in FP4 else CHOICES.get(case.op, [])


@contextlib.contextmanager
def replaced(values: dict[str, Any]) -> Iterator[None]:
    """The attributes "module.name" or "module.class.name" of the package are `values` inside the block."""
    places = []
    for name, value in values.items():
        module, *path = name.split(".")
        owner: Any = import_module(f"deepinfer_triton.{module}")
        for part in path[:-1]:
            owner = getattr(owner, part)
        places.append((owner, path[-1], getattr(owner, path[-1])))
        setattr(owner, path[-1], value)
    try:
        yield
    finally:
        for owner, attribute, value in places:
            setattr(owner, attribute, value)


def programs_of(device: Device, case: Case, choice: Choice) -> list[Program]:
    values, warps = choice
    with replaced(values):
        found = kernel_of(case.op).programs(case.call(device))
    return [replace(program, warps=warps) if warps else program for program in found]


def compile_one(job: tuple[str, dict[str, Any], str]) -> str:
    """Compile one specialisation into the cache; in a process of its own. Returns the error, if any."""
    function, fields, arch = job
    module, _, name = function.partition(".")
    build = TritonBuild(getattr(import_module(f"deepinfer_triton.device.{module}"), name), **fields)
    try:
        BuildCache([cache_dir() / "jit"]).get(build.as_build(arch, "cubin"), TritonCompiler(build))
    except Exception as error:  # the choice is skipped and says why
        return f"{function}: {str(error)[:300]}"
    return ""


def compile_all(device: Device, cases: list[Case], every: bool) -> list[str]:
    """Compile what the kernels choose by themselves, or `every` choice; returns what went wrong."""
    jobs = {}
    for case in cases:
        call = case.call(device)
        for choice in choices_of(case) if every else [DEFAULT]:
            for program in programs_of(device, case, choice):
                build = specialise(call, program)
                names = ("signature", "constants", "divisible", "warps", "stages", "fuse")
                fields = {name: getattr(build, name) for name in names}
                jobs[repr((program.function, fields))] = (program.function, fields, device.props.arch)
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 16), get_context("spawn")) as pool:
        return [error for error in pool.map(compile_one, jobs.values(), chunksize=4) if error]


def label(choice: Choice) -> str:
    values, warps = choice
    return ",".join([*(str(v) for v in dict.fromkeys(map(str, values.values()))), f"w{warps}"])


def measure(device: Device, case: Case, copy: Any, rounds: int, seconds: float) -> None:
    calls, wanted = {}, None
    for choice in choices_of(case):
        try:
            run = launcher(device, case, programs_of(device, case, choice))
            for tensor in case.written:
                tensor.view(torch.uint8).fill_(0xA5)
            run()
            torch.cuda.synchronize()
        except Exception as error:
            print("   skipped", label(choice), str(error)[:200])
            continue
        got = [tensor.view(torch.uint8).clone() for tensor in case.written]
        wanted = wanted or got
        if not all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)):
            print("   BITS DIFFER", label(choice))
        calls[label(choice)] = run
    if not calls:
        return
    everything = {"copy": copy[0], **calls}
    estimates = {name: slot(call, 0.004, 1e-4)[0] * 1e-6 for name, call in everything.items()}
    times: dict[str, list[float]] = {name: [] for name in everything}
    for _ in range(rounds):
        for name, call in everything.items():
            times[name].append(slot(call, seconds, estimates[name])[0])
    rates = {name: case.moved / statistics.median(values) for name, values in times.items()}
    top = copy[1] / statistics.median(times["copy"])
    shares = sorted(((rates[name] / top, name) for name in calls), reverse=True)
    line = "  ".join(f"{name} {share:.3f}" for share, name in shares)
    best = statistics.median(times[shares[0][1]])
    print(f"{case.name:40} {best:8.2f} us of {case.moved * 1e-6:.0f} MB: {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of case names; default all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.006)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    deepinfer.register_backend("cuda", create)
    deepinfer.register_backend("cpu", create_cpu)
    device = deepinfer.set_backend("cuda:0")
    torch.manual_seed(0)
    source = torch.randn(16384, 7168, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    start = time.perf_counter()
    cases = [case for part in PARTS for case in part()]
    cases = [case for case in cases if not options.names or case.name.startswith(tuple(options.names))]
    print(f"{len(cases)} cases after {time.perf_counter() - start:.1f} s", flush=True)
    if options.once:
        for case in cases:
            launcher(device, case)()
        torch.cuda.synchronize()
        return 0
    for error in compile_all(device, cases, every=True):
        print("   not compiled", error)
    print(f"compiled after {time.perf_counter() - start:.1f} s", flush=True)
    if options.rounds == 0:
        return 0
    for case in cases:
        measure(device, case, (lambda: target.copy_(source), 2.0 * source.nbytes), options.rounds, options.seconds)
    print(f"done after {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
