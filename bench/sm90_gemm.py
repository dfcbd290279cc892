"""Checks and times `sm90_gemm_bf16` against cuBLAS on a Hopper GPU; writes JSONL rows.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10 python bench/sm90_gemm.py --out rows.jsonl

State "sust": preheated, both implementations interleaved in slots of about 25 ms, order rotated, median over rounds of
the mean time per call. Correctness first: integer inputs must give equal bits, random ones bf16 rounding of float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import deepinfer
from deepinfer.ops import deep_gmm
from deepinfer.registry import pin

SHAPES = [(8192, 8192, 8192), (32768, 4096, 7168), (4096, 4096, 7168), (4096, 24576, 1536), (64, 7168, 16384),
          (128, 4096, 7168), (64, 4096, 7168), (128, 7168, 2048), (64, 2112, 7168)]
FEW = [(m, n, k) for n, k in [(4096, 7168), (7168, 2048), (2112, 7168), (24576, 1536), (7168, 16384)]
       for m in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
RAGGED = [(1, 8, 8), (64, 64, 64), (65, 72, 40), (129, 264, 200), (300, 520, 1000), (257, 1032, 4096), (5, 4096, 72),
          (4097, 248, 128), (8192, 256, 8), (130, 8, 8192), (7, 9, 129), (130, 130, 130), (257, 4095, 1001)]


def check(shape: tuple[int, int, int], device: deepinfer.hal.Device) -> list[str]:
    """Problems of one shape: integer inputs bitwise, random inputs by rounding."""
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(m * 31 + n * 7 + k)
    problems = []
    a = torch.randint(-4, 5, (m, k), device="cuda", generator=generator).bfloat16()
    b = torch.randint(-4, 5, (n, k), device="cuda", generator=generator).bfloat16()
    with pin(device, "deep_gmm.gemm", "sm90_gemm_bf16"):
        got = deep_gmm.gemm(a, b)
        if not torch.equal(got, (a.float() @ b.float().t()).bfloat16()):
            problems.append(f"{shape}: integer inputs differ")
        a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
        out = torch.full((m + 2, n), 7.0, device="cuda", dtype=torch.bfloat16)
        got = deep_gmm.gemm(a, b, out=out[1:-1])
    want = a[:512].double() @ b.double().t()
    error = ((got[:512].double() - want).abs() / (want.abs() + 1e-2 * k**0.5)).max().item()
    if error > 2**-7:
        problems.append(f"{shape}: relative error {error}")
    if not (out[0] == 7).all() or not (out[-1] == 7).all():
        problems.append(f"{shape}: wrote outside its rows")
    return problems


def slot(call: Callable[[], object], seconds: float, estimate: float) -> tuple[float, int]:
    """Mean microseconds per call over about `seconds` of back-to-back calls."""
    count = max(3, int(seconds / estimate))
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e3 / count, count


def sustained(calls: dict[str, Callable[[], object]], rounds: int = 9) -> dict[str, list[float]]:
    """Per implementation the microseconds of each round."""
    estimates = {name: slot(call, 0.01, 1e-3)[0] * 1e-6 for name, call in calls.items()}
    end = time.perf_counter() + 0.4
    while time.perf_counter() < end:
        for call in calls.values():
            call()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for index in range(rounds):
        for name in names[index % len(names):] + names[: index % len(names)]:
            times[name].append(slot(calls[name], 0.025, estimates[name])[0])
    return times


def measure(
    shape: tuple[int, int, int], kernel: str, device: deepinfer.hal.Device, rounds: int = 9
) -> list[dict[str, object]]:
    m, n, k = shape
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    out, reference = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    with pin(device, "deep_gmm.gemm", kernel):
        times = sustained({
            kernel: lambda: deep_gmm.gemm(a, b, out=out),
            "cublas": lambda: torch.mm(a, b.t(), out=reference),
        }, rounds)
    rows = []
    for name, values in times.items():
        median = statistics.median(values)
        ordered = sorted(values)
        rows.append({
            "op": "deep_gmm.gemm", "params": {"M": m, "N": n, "K": k, "dtype": "bf16"}, "case": f"M={m},N={n},K={k}",
            "kernel": name, "device": device.props.name, "driver_kind": "hardware", "clock": "device", "state": "sust",
            "median_us": round(median, 2), "p10": round(ordered[len(ordered) // 10], 2),
            "p90": round(ordered[-1 - len(ordered) // 10], 2), "n": len(values),
            "tflops": round(2.0 * m * n * k / median * 1e-6, 1),
            "gbps": round((m * k + n * k + m * n) * 2 / median * 1e-3, 1),
        })
    rows[0]["ratio_to_cublas"] = round(rows[1]["median_us"] / rows[0]["median_us"], 4)  # type: ignore[operator]
    return rows


def overhead(device: deepinfer.hal.Device) -> dict[str, float]:
    """Host microseconds per enqueued call, op and bare launch, with GPU work smaller than the enqueue."""
    a, b = torch.randn(64, 64, device="cuda").bfloat16(), torch.randn(64, 64, device="cuda").bfloat16()
    out = torch.empty(64, 64, device="cuda", dtype=torch.bfloat16)
    found: dict[str, float] = {}
    calls = {"op": lambda: deep_gmm.gemm(a, b, out=out), "torch.mm": lambda: torch.mm(a, b.t(), out=out)}
    for name, call in calls.items():
        for _ in range(50):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(2000):
            call()
        found[f"{name}_us"] = round((time.perf_counter() - start) / 2000 * 1e6, 2)
        torch.cuda.synchronize()
    args = (a, None, "plain", b, None, "plain", None, "", None, None, torch.bfloat16)
    entry = deep_gmm.api._gemm.resolve(device, args, (out,))
    prepared, stream = next(iter(entry.plan.state[0]._found.values())), device.current_stream()
    start = time.perf_counter()
    for _ in range(2000):
        prepared(stream)
    found["launch_us"] = round((time.perf_counter() - start) / 2000 * 1e6, 2)
    torch.cuda.synchronize()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--few", action="store_true", help="products of 1 to 256 rows")
    options = parser.parse_args()
    from deepinfer_cuda.plugin import create

    start = time.perf_counter()
    probe = create().probe()
    print("probe", round((time.perf_counter() - start) * 1e3, 1), "ms", probe)
    deepinfer.register_backend("cuda", create)
    device = deepinfer.set_backend("cuda:0")
    print(device)
    start = time.perf_counter()
    shapes = FEW if options.few else SHAPES
    problems = [problem for shape in RAGGED + shapes for problem in check(shape, device)]
    print("checked", len(RAGGED + shapes), "shapes in", round(time.perf_counter() - start, 1), "s; problems:", problems)
    versions = {"torch": str(torch.__version__), "deepinfer": deepinfer.__version__}
    rows = [row for shape in shapes for row in measure(shape, "sm90_gemm_bf16", device, 5 if options.few else 9)]
    print("overhead", overhead(device))
    for row in rows:
        print(row["case"], row["kernel"], row["median_us"], row["tflops"], row.get("ratio_to_cublas", ""))
    if options.out:
        lines = [json.dumps({**row, "commit": options.commit, "versions": versions}) for row in rows]
        options.out.write_text("\n".join(lines) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
