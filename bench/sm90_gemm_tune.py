"""Times every tile of `sm90_gemm_bf16`, split along K and not, beside cuBLAS, interleaved, on a Hopper GPU.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton:bench python bench/sm90_gemm_tune.py 128,4096,7168

Launches are prepared, so host time shows only where a product takes less than a launch. Every variant is checked first.
`k4` in a name: four CTAs share K; `pdl`: the launch may start while the kernel before it ends; `b2`: raster bands of 2.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from deepinfer_cuda.kernels.base import load
from deepinfer_cuda.kernels.gemm import Product, prepare
from deepinfer_cuda.kernels.gemm_tiles import DENSE_TILES, PARTS, TILES, Tile, choose_dense
from deepinfer_cuda.plugin import create
from sm90_gemm import sustained

import deepinfer

LARGE = 2**34  # FLOP from which K is long enough without a split


def replace_band(tile: Tile, band: int) -> Tile:
    """The same compiled tile walked in bands of `band`."""
    chosen: type[Tile] = type("Banded", (Tile,), {"band": band})
    return chosen(tile.rows, tile.cols, tile.stages, tile.cluster, tile.sums, tile.parts)


def candidates(m: int, n: int, k: int) -> Iterator[tuple[str, Tile, bool]]:
    """(name, tile, dependent launch) worth a try at this size."""
    if m * n * k >= LARGE:
        for tile in TILES:
            for band in (2, 4, 8) if not tile.sums else ():
                yield f"{tile.symbol[15:]}_b{band}", replace_band(tile, band), False
        return
    for tile in DENSE_TILES:
        for parts in PARTS if tile.sums else (1,):
            tiles = -(-m // tile.rows) * -(-n // tile.cols)
            if parts == 1 or tiles * parts <= 2 * 132:
                for dependent in (False, True):
                    suffix = f"{f'_k{parts}' if tile.sums else ''}{'_pdl' if dependent else ''}"
                    yield tile.symbol[15:] + suffix, replace(tile, parts=parts), dependent


def variants(device: deepinfer.hal.Device, a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Prepared launches by name, checked against each other before timing."""
    found: dict[str, Callable[[], object]] = {}
    reference, stream = torch.mm(a, b.t()), device.current_stream()
    for name, tile, dependent in candidates(a.shape[0], b.shape[0], a.shape[1]):
        out = torch.empty_like(reference)
        prepared = prepare(load(device, tile.unit), device, tile, Product(a, b, out), dependent)
        prepared(stream)
        torch.cuda.synchronize()
        if not torch.allclose(out.float(), reference.float(), rtol=2e-2, atol=0.5):
            print("WRONG", name)
        found[name] = partial(prepared, stream)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+", help="M,N,K")
    parser.add_argument("--show", type=int, default=10)
    options = parser.parse_args()
    deepinfer.register_backend("cuda", create)
    device = deepinfer.set_backend("cuda:0")
    for text in options.shapes:
        m, n, k = (int(part) for part in text.split(","))
        a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        cublas = partial(torch.mm, a, b.t(), out=out)
        calls: dict[str, Callable[[], object]] = {"cublas": cublas, **variants(device, a, b)}
        times = {name: statistics.median(values) for name, values in sustained(calls, rounds=3).items()}
        chosen = choose_dense(m, n, k, device.props.compute_units)
        print(text, "chosen", chosen.symbol, chosen.parts, "cublas", round(times["cublas"], 2))
        for name, value in sorted(times.items(), key=lambda item: item[1])[: options.show]:
            print(f"  {name:34s} {value:9.2f} us {2e-6 * m * n * k / value:7.1f} TFLOP/s {times['cublas'] / value:.3f}")


if __name__ == "__main__":
    main()
