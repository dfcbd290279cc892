"""Bandwidth of the small ops on a GPU, as a share of copy bandwidth measured in the same rounds; JIT figures.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton:bench python bench/triton_bandwidth.py --out rows.jsonl

State "sust": preheated, all ops and the copies interleaved in slots of 25 ms, order rotated, median of the rounds.
Every op moves 64 MB and more (see triton_cases.py); launches are prepared: the device is timed and not the host.
Shares are of a copy of 470 MB, and of a copy of as many bytes as the op moves, up to that.
Quantised bytes are compared with those of the specification and of the CPU backend.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from deepinfer_cpu.plugin import create as create_cpu
from deepinfer_cuda.plugin import create
from deepinfer_triton.compile import TritonCompiler
from deepinfer_triton.device.codec import reciprocal
from deepinfer_triton.kernel import specialise
from sm90_gemm import sustained
from triton_cases import COLS, PARTS, ROWS, Case, kernel_of, launcher, randn
from triton_tune import compile_all

import deepinfer
from deepinfer.jit import BuildCache
from deepinfer.ops import quant
from deepinfer.ops.flash_mla.formats import LAYOUTS, new_cache
from deepinfer.ops.quant.blocks import quantize_fp8_blocks, quantize_mxfp4_blocks
from deepinfer.registry import Op, get_spec


def copy_jobs(sizes: dict[str, float]) -> dict[str, tuple[Callable[[], object], float]]:
    """By name, a copy that moves as many bytes, half read and half written; 470 MB at most."""
    source, target = (torch.empty(ROWS * COLS, device="cuda", dtype=torch.bfloat16).normal_() for _ in range(2))
    jobs: dict[str, tuple[Callable[[], object], float]] = {}
    for name, moved in sizes.items():
        count = min(int(moved) // 4, ROWS * COLS)
        jobs[name] = (partial(target[:count].copy_, source[:count]), 4.0 * count)
    return jobs


def exact() -> list[str]:
    """Names of quantised results whose bytes differ from the specification's on the host."""
    x = randn(512, COLS) * torch.exp2(torch.randint(-12, 12, (512, 1), device="cuda")).bfloat16()
    bad = []
    for block in ((1, 128), (1, 32), (128, 128), (32, 32)):
        for kind in ("f32", "ue8m0"):
            got = quant.quantize_fp8(x, block=block, scale_dtype=kind)
            data, scale = quantize_fp8_blocks(x.cpu(), block, kind == "ue8m0")
            same = torch.equal(got.data.cpu().view(torch.uint8), data.view(torch.uint8))
            if not (same and torch.equal(got.scale.cpu(), scale)):
                bad.append(f"fp8 {block} {kind}")
    packed, (codes, exponents) = quant.quantize_mxfp4(x), quantize_mxfp4_blocks(x.cpu(), (1, 32))
    if not (torch.equal(packed.data.cpu(), codes) and torch.equal(packed.scale.cpu(), exponents)):
        bad.append("mxfp4")
    return bad + exact_reciprocals() + exact_caches(x)


@triton.jit
def _reciprocals(wrong, BLOCK: tl.constexpr):
    """How many of BLOCK mantissas have a reciprocal that is not the correctly rounded one."""
    bits = 0x3F800000 + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scale = bits.to(tl.float32, bitcast=True)
    bad = reciprocal(scale) != tl.div_rn(tl.full([BLOCK], 1.0, tl.float32), scale)
    tl.atomic_add(wrong, tl.sum(bad.to(tl.int32), axis=0))


def exact_reciprocals() -> list[str]:
    """The quotients rest on this: all 2^23 mantissas through the hardware's reciprocal and its correction."""
    wrong = torch.zeros(1, device="cuda", dtype=torch.int32)
    _reciprocals[((1 << 23) // 1024,)](wrong, BLOCK=1024)
    return [f"{wrong.item()} reciprocals"] if wrong.item() else []


def exact_caches(x: torch.Tensor) -> list[str]:
    """As `exact`, for the records that the cache writer leaves."""
    bad = []
    for name, layout in LAYOUTS.items():
        if not layout.quantised:
            continue
        rows = x[:, : layout.width].contiguous()
        cache = new_cache(name, len(x) // 64, 64, 0, device="cuda").fill_(0)
        host = cache.cpu()
        slots = torch.arange(len(x), device="cuda")
        Op(get_spec("flash_mla.kv_cache_write"))(cache, rows, slots, name)
        with deepinfer.use_backend("cpu"):
            Op(get_spec("flash_mla.kv_cache_write"))(host, rows.cpu(), slots.cpu(), name)
        if not torch.equal(cache.cpu(), host):
            bad.append(f"kv_cache_write {name}")
    return bad


def overhead() -> dict[str, float]:
    """Host microseconds per enqueued call of a small op: through the op, and the bare prepared launch."""
    x, weight = randn(8, 128), randn(128)
    y = torch.empty_like(x)
    op = Op(get_spec("norm.rms_norm"))
    entry = op.resolve(deepinfer.current_device(), (x, weight, 1e-6), (y,))
    op(x, weight, 1e-6, out=(y,))
    program, stream = entry.plan.state[0], deepinfer.current_device().current_stream()
    calls: dict[str, Callable[[], object]] = {
        "op_us": lambda: op(x, weight, 1e-6, out=(y,)), "launch_us": lambda: program.run(stream, (x, weight), (y,)),
        "stream_us": lambda: deepinfer.current_device().current_stream(),
        "resolve_us": lambda: op.resolve(deepinfer.current_device(), (x, weight, 1e-6), (y,)),
    }
    found: dict[str, float] = {}
    for name, call in calls.items():
        for _ in range(100):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(2000):
            call()
        found[name] = round((time.perf_counter() - start) / 2000 * 1e6, 2)
        torch.cuda.synchronize()
    return found


def cold(device: Any) -> dict[str, float]:
    """Seconds to compile one Triton kernel into an empty cache."""
    x, weight = randn(4, 1536), randn(1536)
    case = Case("", "norm.rms_norm", (x, weight, 1e-6), (torch.empty_like(x),), 1.0)
    call = case.call(device)
    build = specialise(call, kernel_of(case.op).programs(call)[0])
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        BuildCache([Path(folder)]).get(build.as_build(device.props.arch, "cubin"), TritonCompiler(build))
        return {"triton_rms_norm_s": round(time.perf_counter() - start, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of case names; default all")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    deepinfer.register_backend("cuda", create)
    deepinfer.register_backend("cpu", create_cpu)
    torch.manual_seed(0)
    device = deepinfer.set_backend("cuda:0")
    figures: dict[str, Any] = cold(device)
    rows: list[dict[str, Any]] = []
    with deepinfer.fallback("error"):
        figures |= {"bytes_differ": exact(), **overhead()}
        for part in PARTS:
            cases = [case for case in part() if not options.names or case.name.startswith(tuple(options.names))]
            if not cases:
                continue
            for error in compile_all(device, cases, every=False):
                print(error)
            jobs = {case.name: (launcher(device, case), case.moved) for case in cases}
            jobs |= copy_jobs({"copy": 4.0 * ROWS * COLS} | {f"copy as {case.name}": case.moved for case in cases})
            times = sustained({name: job[0] for name, job in jobs.items()}, rounds=options.rounds)
            rates = {name: jobs[name][1] / statistics.median(values) * 1e-3 for name, values in times.items()}
            for name in ("copy", *(case.name for case in cases)):
                values, equal = times[name], rates.get(f"copy as {name}", rates["copy"])
                row = {
                    "op": name.partition(" ")[0], "case": name, "device": device.props.name, "driver_kind": "hardware",
                    "clock": "device", "state": "sust", "median_us": round(statistics.median(values), 2),
                    "n": len(values), "mbytes": round(jobs[name][1] * 1e-6, 1), "gbps": round(rates[name], 1),
                    "share_of_copy": round(rates[name] / rates["copy"], 4),
                    "share_of_equal_copy": round(rates[name] / equal, 4),
                }
                rows.append(row)
                print(f"{name:42} {row['median_us']:9} us {row['gbps']:8} GB/s {row['share_of_copy']:.3f}"
                      f" {row['share_of_equal_copy']:.3f}", flush=True)
            torch.cuda.empty_cache()
    print(figures)
    if options.out:
        versions = {"torch": str(torch.__version__), "triton": triton.__version__, "deepinfer": deepinfer.__version__}
        rows.append({"op": "jit", "device": device.props.name, **figures})
        common = {"commit": options.commit, "versions": versions}
        options.out.write_text("".join(json.dumps({**r, **common}) + "\n" for r in rows))
    return 1 if figures["bytes_differ"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
