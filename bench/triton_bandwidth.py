"""Bandwidth of the small ops on a GPU, as a share of copy bandwidth measured in the same rounds; JIT figures.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton:bench python bench/triton_bandwidth.py --out rows.jsonl

State "sust": preheated, all ops and the copy interleaved in slots of 25 ms, order rotated, median of the rounds. Every
op moves 64 MB and more (each input once, each output once, indices included). Quantised bytes are compared with the
specification's reference on a slice of the same data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from deepinfer_cpu.plugin import create as create_cpu
from deepinfer_cuda.plugin import create
from sm90_gemm import sustained

import deepinfer
from deepinfer.ops import flash_mla, moe, norm, quant, rope, sampling
from deepinfer.ops.flash_mla.formats import LAYOUTS, new_cache
from deepinfer.ops.quant.blocks import quantize_fp8_blocks, quantize_mxfp4_blocks
from deepinfer.registry import Op, get_spec

ROWS, COLS = 16384, 7168
Job = tuple[Callable[[], object], float]


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def copies() -> dict[str, Job]:
    source, target = randn(ROWS, COLS), torch.empty(ROWS, COLS, device="cuda", dtype=torch.bfloat16)
    return {"copy": (lambda: target.copy_(source), 4.0 * ROWS * COLS)}


def norms() -> dict[str, Job]:
    x, residual, weight = randn(ROWS, COLS), randn(ROWS, COLS), randn(COLS)
    y, total = torch.empty_like(x), torch.empty_like(x)
    add = Op(get_spec("norm.fused_add_rms_norm"))
    return {
        "norm.rms_norm": (lambda: norm.rms_norm(x, weight, eps=1e-6, out=y), 4.0 * x.numel()),
        "norm.fused_add_rms_norm": (lambda: add(x, residual, weight, 1e-6, out=(y, total)), 8.0 * x.numel()),
    }


def quantisers() -> dict[str, Job]:
    x, jobs = randn(ROWS, COLS), {}
    for block in ((1, 128), (1, 32), (128, 128), (32, 32)):
        for kind in ("f32", "ue8m0"):
            out = quant.quantize_fp8(x, block=block, scale_dtype=kind)
            given = (out.data, out.scale)
            bytes_moved = 3.0 * x.numel() + out.scale.nbytes
            call = lambda b=block, k=kind, g=given: quant.quantize_fp8(x, block=b, scale_dtype=k, out=g)  # noqa: E731
            jobs[f"quant.quantize_fp8 {block[0]}x{block[1]} {kind}"] = (call, bytes_moved)
    packed = quant.quantize_mxfp4(x)
    jobs["quant.quantize_mxfp4 1x32"] = (
        lambda: quant.quantize_mxfp4(x, out=(packed.data, packed.scale)), 2.5 * x.numel() + packed.scale.nbytes
    )
    weight, y = quant.quantize_fp8(x, block=(128, 128)), torch.empty_like(x)
    jobs["quant.dequantize e4m3 128x128"] = (
        lambda: quant.dequantize(weight, dtype=torch.bfloat16, out=y), 3.0 * x.numel() + weight.scale.nbytes
    )
    jobs["quant.dequantize e2m1 1x32"] = (
        lambda: quant.dequantize(packed, dtype=torch.bfloat16, out=y), 2.5 * x.numel() + packed.scale.nbytes
    )
    scale = torch.exp2(torch.randint(-20, 20, (1 << 18, 56), device="cuda").float())
    flat = quant.pack_scales(scale, validate=False)
    jobs["quant.pack_scales ue8m0x4_mn"] = (
        lambda: quant.pack_scales(scale, validate=False, out=flat), 1.0 * scale.nbytes + flat.nbytes
    )
    return jobs


def caches() -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for name, layout in LAYOUTS.items():
        width = layout.width or 576
        count = 131072 if width > 128 else 524288
        cache = new_cache(name, count // 64, 64, width if not layout.quantised else 0, device="cuda")
        pages = torch.randperm(count // 64, device="cuda") * 64  # whole pages in random order, as a block table has
        slots = (pages[:, None] + torch.arange(64, device="cuda")).flatten()
        rows = randn(count, width, dtype=torch.float32 if name == "f32" else torch.bfloat16)
        stored = layout.token_bytes or width * rows.element_size()
        moved = float(count * (stored + width * rows.element_size() + 8))
        back = torch.empty_like(rows)
        write = lambda c=cache, r=rows, s=slots, n=name: flash_mla.kv_cache_write(c, r, s, format=n)  # noqa: E731
        write()
        read = lambda c=cache, b=back, s=slots, n=name: flash_mla.kv_cache_read(  # noqa: E731
            c, s, format=n, dtype=b.dtype, out=b
        )
        jobs[f"flash_mla.kv_cache_write {name}"] = (write, moved)
        jobs[f"flash_mla.kv_cache_read {name}"] = (read, moved)
    return jobs


def others() -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    x, table = randn(4096, 128, 192), rope.build_table(8192, 64, 1e4).cuda()
    positions, y = torch.arange(4096, device="cuda"), torch.empty(4096, 128, 192, device="cuda", dtype=torch.bfloat16)
    jobs["rope.apply 192/64"] = (lambda: rope.apply(x, positions, table, out=y), 4.0 * x.numel() + 4096 * 256)
    logits = randn(256, 129280, dtype=torch.float32)
    mask = torch.randint(-(2**31), 2**31, (256, 4040), device="cuda").int()
    masked = torch.empty_like(logits)
    jobs["sampling.apply_token_mask"] = (
        lambda: sampling.apply_token_mask(logits, mask, out=masked), 2.0 * logits.nbytes + mask.nbytes
    )
    gate_up = randn(ROWS, 4096)
    weights = torch.rand(ROWS, device="cuda")
    swiglu = Op(get_spec("moe.swiglu_quantize"))
    for kind, size in (("", 2.0), ("fp8_1x128", 1.0 + 4 / 128), ("mxfp8", 1.0 + 1 / 32)):
        out = swiglu(gate_up, weights, 10.0, kind)
        call = lambda k=kind, o=out: swiglu(gate_up, weights, 10.0, k, out=o)  # noqa: E731
        jobs[f"moe.swiglu_quantize {kind or 'plain'}"] = (call, gate_up.numel() * (2.0 + size / 2))
    scores = randn(131072, 256, dtype=torch.float32)
    bias = torch.randn(256, device="cuda")
    jobs["moe.route 256/8"] = (
        lambda: moe.route(scores, 8, scoring="sigmoid", bias=bias, n_group=8, topk_group=4, group_score="top2_sum"),
        scores.nbytes + 131072.0 * 64,
    )
    outs, lses = randn(4, 2, 1024, 16, 512), randn(4, 2, 16, 1024, dtype=torch.float32)
    merge = Op(get_spec("flash_mla.merge_states"))
    given = merge(outs, lses, None)
    jobs["flash_mla.merge_states 4"] = (
        lambda: merge(outs, lses, None, out=given), 1.25 * (outs.nbytes + lses.nbytes)
    )
    rows, index = randn(32768, 7168), torch.randperm(32768, device="cuda").view(4096, 8).int()
    factor, total = torch.rand(32768, device="cuda"), torch.empty(4096, 7168, device="cuda", dtype=torch.bfloat16)
    reduce = Op(get_spec("deep_ep.reduce"))
    jobs["deep_ep.reduce 8"] = (
        lambda: reduce(rows, index, factor, None, torch.bfloat16, out=(total,)), rows.nbytes + 2.0 * total.numel()
    )
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
    """Seconds to compile one kernel of each compiler into an empty cache."""
    from deepinfer_cuda import jit
    from deepinfer_triton.code import TritonCompiler
    from deepinfer_triton.kernel import Program, specialise

    from deepinfer.jit import BuildCache
    from deepinfer.registry.dispatch import make_call

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = BuildCache([Path(folder)])
        start = time.perf_counter()
        cache.get(jit.kernel_build("sm90/gemm_bf16", device.props.arch), jit.NvrtcCompiler())
        found["nvrtc_gemm_s"] = round(time.perf_counter() - start, 2)
        spec = get_spec("norm.rms_norm")
        call = make_call(spec, (randn(4, 1536), randn(1536), 1e-6), (None,), device.torch_device)
        from deepinfer_triton.norm import RmsNorm

        programs: Any = RmsNorm().programs(call)
        program: Program = programs[0]
        build = specialise(call, program)
        start = time.perf_counter()
        cache.get(build.as_build(device.props.arch, "cubin"), TritonCompiler(build))
        found["triton_rms_norm_s"] = round(time.perf_counter() - start, 2)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    deepinfer.register_backend("cuda", create)
    deepinfer.register_backend("cpu", create_cpu)
    device = deepinfer.set_backend("cuda:0")
    figures: dict[str, Any] = cold(device)
    rows: list[dict[str, Any]] = []
    with deepinfer.fallback("error"):
        figures |= {"bytes_differ": exact(), **overhead()}
        for part in (norms, quantisers, caches, others):
            jobs = copies() | part()
            times = sustained({name: job[0] for name, job in jobs.items()}, rounds=options.rounds)
            rates = {name: jobs[name][1] / statistics.median(values) * 1e-3 for name, values in times.items()}
            for name, values in times.items():
                row = {
                    "op": name.partition(" ")[0], "case": name, "device": device.props.name, "driver_kind": "hardware",
                    "clock": "device", "state": "sust", "median_us": round(statistics.median(values), 2),
                    "n": len(values), "mbytes": round(jobs[name][1] * 1e-6, 1), "gbps": round(rates[name], 1),
                    "share_of_copy": round(rates[name] / rates["copy"], 4),
                }
                rows.append(row)
                print(f"{name:42} {row['median_us']:9} us {row['gbps']:8} GB/s {row['share_of_copy']:.3f}", flush=True)
            torch.cuda.empty_cache()
    print(figures)
    if options.out:
        import triton

        versions = {"torch": str(torch.__version__), "triton": triton.__version__, "deepinfer": deepinfer.__version__}
        rows.append({"op": "jit", "device": device.props.name, **figures})
        common = {"commit": options.commit, "versions": versions}
        options.out.write_text("".join(json.dumps({**r, **common}) + "\n" for r in rows))
    return 1 if figures["bytes_differ"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
