"""Times every tile and raster band of `sm90_gemm_bf16` beside cuBLAS, interleaved, on a Hopper GPU.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:bench python bench/sm90_gemm_tune.py 8192,8192,8192 4096,4096,7168
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial

import torch
from deepinfer_cuda.kernels import gemm
from deepinfer_cuda.plugin import create
from sm90_gemm import sustained

import deepinfer


def replace_band(tile: gemm.Tile, band: int) -> gemm.Tile:
    """The same compiled tile walked in bands of `band`."""
    chosen = type("Banded", (gemm.Tile,), {"band": band})
    return chosen(tile.rows, tile.cols, tile.stages, tile.cluster)


def variants(device: deepinfer.hal.Device, a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Prepared launches by name, checked against each other before timing."""
    kernel, found = gemm.Sm90Gemm(), {}
    reference = torch.mm(a, b.t())
    for tile in gemm.TILES:
        for group in (2, 4, 8):
            out = torch.empty_like(reference)
            code = kernel.load(device)
            banded = replace_band(tile, group)
            prepared = gemm.prepare(code, device, banded, (a, b, out), (), masked=False)
            stream = device.current_stream()
            prepared(stream)
            torch.cuda.synchronize()
            if not torch.allclose(out.float(), reference.float(), rtol=2e-2, atol=0.5):
                print("WRONG", tile, group)
            found[f"{tile.rows}x{tile.cols}x{tile.stages}_c{tile.cluster}_g{group}"] = lambda p=prepared, s=stream: p(s)
    return found


def main() -> None:
    deepinfer.register_backend("cuda", create)
    device = deepinfer.set_backend("cuda:0")
    for text in sys.argv[1:]:
        m, n, k = (int(part) for part in text.split(","))
        a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        cublas = partial(torch.mm, a, b.t(), out=out)
        calls: dict[str, Callable[[], object]] = {"cublas": cublas, **variants(device, a, b)}
        times = {name: statistics.median(values) for name, values in sustained(calls, rounds=3).items()}
        best = {"cublas": calls["cublas"]}
        for name in sorted(times, key=times.__getitem__)[:2]:
            best[name] = calls[name]
        again = {name: statistics.median(values) for name, values in sustained(best, rounds=7).items()}
        ratios = {name: (round(value, 1), round(again["cublas"] / value, 4)) for name, value in again.items()}
        print("final", text, ratios)
        for name, value in sorted(times.items(), key=lambda item: item[1])[:8]:
            rate, ratio = 2e-6 * m * n * k / value, times["cublas"] / value
            print(f"{text} {name:24s} {value:9.1f} us {rate:7.1f} TFLOP/s {ratio:.3f} of cublas")


if __name__ == "__main__":
    main()
