"""Checks and times the grouped and masked bf16 products on a Hopper GPU; writes JSONL rows.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton:bench python bench/sm90_grouped.py --out rows.jsonl

Timing as in sm90_gemm.py (state "sust"); yardsticks are torch._grouped_mm and a loop of cuBLAS products.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from deepinfer_cuda.plugin import create
from sm90_gemm import sustained

import deepinfer
from deepinfer.ops import deep_gmm

SIZES = [[200, 0, 56, 192], [0, 0, 0], [1, 1, 1, 1], [64, 128, 64], [0, 300], [129], [63, 65, 127, 1, 0, 256]]
GROUPED = [(4, 8192, 4096, 7168), (8, 4096, 7168, 2048), (4, 8192, 4096, 2048)]
MASKED = [(32, 1024, 16, 4096, 7168), (32, 1024, 128, 4096, 7168), (32, 1024, 192, 4096, 7168)]


def ints(*shape: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape, device="cuda").bfloat16()


def check_grouped(sizes: list[int], n: int, k: int, wide: bool) -> list[str]:
    """Integer inputs: equal bits in the groups' rows, untouched bytes elsewhere, NaN in gaps without effect."""
    dtype = torch.int64 if wide else torch.int32
    counts = torch.tensor(sizes, device="cuda", dtype=dtype)
    starts = torch.zeros_like(counts)
    row = 3
    for g, size in enumerate(sizes):
        starts[g], row = row, row + size + g % 3
    a, b = ints(row + 5, k), ints(len(sizes), n, k)
    owner = torch.full((row + 5,), -1, device="cuda")
    for g, size in enumerate(sizes):
        owner[int(starts[g]):int(starts[g]) + size] = g
    a[owner < 0] = torch.nan
    out = torch.full((row + 5, n), 9.0, device="cuda", dtype=torch.bfloat16)
    want = out.clone()
    for g in range(len(sizes)):
        want[owner == g] = (a[owner == g].float() @ b[g].float().t()).bfloat16()
    with deepinfer.fallback("error"):
        deep_gmm.grouped_gemm(a, b, counts, starts=starts, out=out)
    return [] if torch.equal(out, want) else [f"grouped {sizes} n={n} k={k}: differs"]


def check_masked(sizes: list[int], capacity: int, n: int, k: int) -> list[str]:
    counts = torch.tensor(sizes, device="cuda", dtype=torch.int32)
    a, b = ints(len(sizes), capacity, k), ints(len(sizes), n, k)
    used = torch.arange(capacity, device="cuda") < counts.clamp(0, capacity).unsqueeze(1)
    a[~used] = torch.nan
    out = torch.full((len(sizes), capacity, n), 9.0, device="cuda", dtype=torch.bfloat16)
    want = torch.where(used.unsqueeze(-1), torch.bmm(a.float(), b.float().transpose(1, 2)).bfloat16(), out)
    with deepinfer.fallback("error"):
        deep_gmm.masked_grouped_gemm(a, b, counts, out=out)
    return [] if torch.equal(out, want) else [f"masked {sizes} capacity={capacity} n={n} k={k}: differs"]


def row(op: str, params: dict[str, Any], kernel: str, times: list[float], flops: float, device: Any) -> dict[str, Any]:
    ordered, median = sorted(times), statistics.median(times)
    return {
        "op": op, "params": params, "case": ",".join(f"{k}={v}" for k, v in params.items()), "kernel": kernel,
        "device": device.props.name, "driver_kind": "hardware", "clock": "device", "state": "sust",
        "median_us": round(median, 2), "p10": round(ordered[len(ordered) // 10], 2),
        "p90": round(ordered[-1 - len(ordered) // 10], 2), "n": len(times), "tflops": round(flops / median * 1e-6, 1),
    }


def time_grouped(shape: tuple[int, int, int, int], device: Any) -> list[dict[str, Any]]:
    groups, mean, n, k = shape
    a, b = (torch.randn(s, device="cuda").bfloat16() for s in ((groups * mean, k), (groups, n, k)))
    counts = torch.full((groups,), mean, device="cuda", dtype=torch.int32)
    ends = counts.cumsum(0).int()
    out = torch.empty(groups * mean, n, device="cuda", dtype=torch.bfloat16)

    def loop() -> None:
        for g in range(groups):
            torch.mm(a[g * mean:(g + 1) * mean], b[g].t(), out=out[g * mean:(g + 1) * mean])

    times = sustained({
        "sm90_grouped_gemm_bf16": lambda: deep_gmm.grouped_gemm(a, b, counts, out=out),
        "torch._grouped_mm": lambda: torch._grouped_mm(a, b.transpose(1, 2), offs=ends),
        "cublas loop": loop,
    }, rounds=7)
    params = {"groups": groups, "M": groups * mean, "N": n, "K": k, "mean": mean, "dtype": "bf16"}
    flops = 2.0 * groups * mean * n * k
    return [row("deep_gmm.grouped_gemm", params, name, values, flops, device) for name, values in times.items()]


def time_masked(shape: tuple[int, int, int, int, int], device: Any) -> list[dict[str, Any]]:
    groups, capacity, mean, n, k = shape
    a, b = (torch.randn(s, device="cuda").bfloat16() for s in ((groups, capacity, k), (groups, n, k)))
    spread = (torch.rand(groups, device="cuda") * 0.6 + 0.7) * mean if mean == 192 else torch.full((groups,), mean)
    counts = spread.int().to("cuda")
    out = torch.empty(groups, capacity, n, device="cuda", dtype=torch.bfloat16)
    times = sustained({
        "sm90_masked_grouped_gemm_bf16": lambda: deep_gmm.masked_grouped_gemm(a, b, counts, out=out),
    }, rounds=7)
    params = {"groups": groups, "Mmax": capacity, "N": n, "K": k, "mean": mean, "dtype": "bf16"}
    flops = 2.0 * int(counts.sum()) * n * k
    return [row("deep_gmm.masked_grouped_gemm", params, name, values, flops, device) for name, values in times.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    deepinfer.register_backend("cuda", create)
    device = deepinfer.set_backend("cuda:0")
    problems = [
        problem for sizes in SIZES for n, k in ((256, 128), (264, 72), (8, 8), (512, 1024))
        for problem in (*check_grouped(sizes, n, k, wide=n == 8), *check_masked(sizes, 200, n, k))
    ]
    print("problems:", problems)
    rows = [r for shape in GROUPED for r in time_grouped(shape, device)]
    rows += [r for shape in MASKED for r in time_masked(shape, device)]
    for r in rows:
        print(r["op"], r["case"], r["kernel"], r["median_us"], r["tflops"])
    if options.out:
        versions = {"torch": str(torch.__version__), "deepinfer": deepinfer.__version__}
        lines = [json.dumps({**r, "commit": options.commit, "versions": versions}) for r in rows]
        options.out.write_text("\n".join(lines) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
