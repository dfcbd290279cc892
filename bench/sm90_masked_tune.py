"""Times the masked grouped product and tiles of the dense one on a Hopper GPU at several fillings of the groups.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton:bench python bench/sm90_masked_tune.py

The host knows the capacity of groups, not their counts: the tile has to do for all fillings. Launches are prepared;
tiles are interleaved (state "sust" of sm90_gemm.py) and checked against each other. Prints microseconds per tile.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch
from deepinfer_cuda.kernels.base import load
from deepinfer_cuda.kernels.gemm import Product, prepare
from deepinfer_cuda.kernels.gemm_tiles import MASKED_TILES, TILES, choose_masked
from deepinfer_cuda.plugin import create
from sm90_gemm import sustained

import deepinfer

SHAPES = ("32,1024,4096,7168", "32,1024,7168,2048")
MEANS = (16, 64, 96, 128, 192, 256, 320, 512, 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=SHAPES, help="groups,capacity,N,K")
    parser.add_argument("--dense", type=int, default=3, help="how many of the dense product's tiles to time beside it")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(7)
    deepinfer.register_backend("cuda", create)
    device = deepinfer.set_backend("cuda:0")
    stream, tiles = device.current_stream(), [t for t in (*MASKED_TILES, *TILES[:options.dense]) if not t.sums]
    for text in options.shapes:
        groups, capacity, n, k = (int(part) for part in text.split(","))
        chosen = choose_masked(capacity, n, k, device.props.compute_units, groups, MASKED_TILES)
        print(text, "chosen", chosen.symbol)
        a, b = (torch.randn(s, device="cuda").bfloat16() for s in ((groups, capacity, k), (groups, n, k)))
        counts = torch.zeros(groups, device="cuda", dtype=torch.int32)
        outs = [torch.zeros(groups, capacity, n, device="cuda", dtype=torch.bfloat16) for _ in tiles]
        launches = {
            tile.symbol[5:]: partial(
                prepare(load(device, tile.unit), device, tile, Product(a, b, out, (counts,))), stream
            )
            for tile, out in zip(tiles, outs, strict=True)
        }
        for mean in MEANS:
            spread = torch.rand(groups, device="cuda") * 0.6 + 0.7 if mean not in (16, 64, 96, 128) else 1.0
            counts.copy_((torch.full((groups,), float(mean), device="cuda") * spread).clamp(0, capacity).int())
            times = {name: statistics.median(v) for name, v in sustained(launches, rounds=options.rounds).items()}
            used = torch.arange(capacity, device="cuda") < counts[:, None]
            for name, out in zip(launches, outs, strict=True):
                if not torch.allclose(out[used], outs[0][used], rtol=2e-2, atol=0.5):
                    print("WRONG", name)
            print(f"  mean {mean:5}", "  ".join(f"{name} {value:.1f}" for name, value in times.items()), flush=True)


if __name__ == "__main__":
    main()
