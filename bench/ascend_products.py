"""Modelled times of the Ascend 950 products and exchange kernels on the benchmark shapes: clock "model", not measured.

    python bench/ascend_products.py --out bench/baselines/ascend950_products.jsonl

One AI core's share is run on the simulator, whose timeline knows rates and waits (sim/src/cost.h); a launch of many
tiles is that core's first tiles plus as many steady ones as its share holds. What the model leaves out (latency, bank
conflicts, scalar programs, and for exchanges the links) makes every figure a lower bound. Memory bounds a launch too:
operands and results once at 1.6 TB/s. "limit" names the busiest unit, "cube" the share of the cube's peak reached.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "backends" / "ascend950")]

from deepinfer_ascend950.device import open_simulated  # noqa: E402
from deepinfer_ascend950.drivers.sim import Timeline  # noqa: E402
from deepinfer_ascend950.ep.windows import BLOCKS, HEAD, ROWS, Windows, record_bytes  # noqa: E402
from deepinfer_ascend950.model_clock import CLOCK_HZ, CORES, CUBE_RATE  # noqa: E402
from deepinfer_ascend950.ops import base, ep, gemm  # noqa: E402

from deepinfer.bench import rows  # noqa: E402
from deepinfer.ops.deep_gmm import data  # noqa: E402
from deepinfer.ops.deep_gmm.gemm_cases import HARDWARE_BENCH  # noqa: E402
from deepinfer.ops.deep_gmm.grouped_cases import HARDWARE_BENCH as GROUPED_BENCH  # noqa: E402

# pair -> (source, entry, tile columns, rows of B per scale, cube rate)
KINDS = {
    "bf16": ("gemm_plain", "gemm_bf16", 256, 1, CUBE_RATE["bf16"]),
    "mxfp8_rows": ("gemm_mx", "gemm_mx", 256, 1, CUBE_RATE["fp8"]),
    "fp8_fp4": ("gemm_mx", "gemm_mx_fp4", 256, 1, CUBE_RATE["fp8"]),
    "fp8": ("gemm_vec", "gemm_fp8_scaled", 128, 128, CUBE_RATE["fp8"]),
}
BANDWIDTH = 1.6e12  # bytes/s of the 950PR
SHORT, LONG = 1024, 2048  # of K; a tile's cycles are affine in it
DEVICE = open_simulated(0)


@dataclass(frozen=True)
class Slice:
    """One core's modelled cycles, and how long its units were busy."""

    cycles: float
    busy: dict[str, float]

    def plus(self, other: Slice, times: float) -> Slice:
        busy = {unit: value + times * other.busy[unit] for unit, value in self.busy.items()}
        return Slice(self.cycles + times * other.cycles, busy)

    @property
    def limit(self) -> str:
        return max(self.busy, key=lambda unit: self.busy[unit])


def launch(source: str, entry: str, args: list[Any]) -> Slice:
    """Run on one block and read the timeline."""
    DEVICE.executable(source).launch(entry, (1, 1, 1), (1, 1, 1), args, stream=DEVICE.current_stream())
    line: Timeline = DEVICE.raw_driver.timeline()  # type: ignore[attr-defined]
    return Slice(line.cycles, {f"{core} {pipe}": value for (core, pipe), value in line.busy.items()})


@cache
def product(kind: str, m: int, tiles: int, k: int) -> Slice:
    """`tiles` tiles of m rows on one core."""
    source, entry, columns, scale_rows, _ = KINDS[kind]
    dtype, a_recipe, b_recipe = data.PAIRS[kind]
    g = torch.Generator().manual_seed(0)
    a, a_scale = data.bulk((m, k), a_recipe, dtype, g)
    b, b_scale = data.bulk((columns * tiles, k), b_recipe, dtype, g)
    values = {"a": a, "a_scale": a_scale, "b": b, "b_scale": b_scale}
    d = torch.empty(m, columns * tiles, dtype=torch.bfloat16)
    return launch(source, entry, gemm.gemm_arguments(gemm.DENSE, values, d, k, scale_rows))


def at_depth(kind: str, m: int, tiles: int, k: int) -> Slice:
    """The same at any K."""
    low, high = product(kind, m, tiles, SHORT), product(kind, m, tiles, LONG)
    return low.plus(high.plus(low, -1.0), (k - SHORT) / (LONG - SHORT))


def whole(kind: str, m: int, tiles: int, k: int) -> Slice:
    """The busiest core of a launch of `tiles` tiles of m rows."""
    share = -(-tiles // CORES)
    if share <= 2:
        return at_depth(kind, m, share, k)
    second, third = at_depth(kind, m, 2, k), at_depth(kind, m, 3, k)
    return second.plus(third.plus(second, -1.0), share - 2)


def row(op: str, params: dict[str, Any], kernel: str, cost: Slice, flops: float, nbytes: float, rate: int) -> rows.Row:
    """One row; `rate` is the cube's products per cycle for these operands."""
    on_core, in_memory = cost.cycles / CLOCK_HZ, nbytes / BANDWIDTH
    seconds = max(on_core, in_memory)
    unit, busy = (cost.limit, cost.busy[cost.limit] / CLOCK_HZ) if on_core > in_memory else ("memory", in_memory)
    limit = {"limit": f"{unit} {busy / seconds:.2f}"}
    if op.startswith("deep_gmm."):
        limit["cube"] = f"{flops / 2 / rate / CORES / CLOCK_HZ / seconds:.3f}"
    return {
        "op": op, "params": params, "case": ",".join(f"{key}={value}" for key, value in params.items()),
        "kernel": kernel, "device": "Ascend 950 simulator", "driver_kind": "simulator", "clock": "model",
        "state": "sust", "median_us": round(seconds * 1e6, 3), "p10": None, "p90": None, "n": 1,
        "gbps": round(nbytes / seconds / 1e9, 1), "tflops": round(flops / seconds / 1e12, 2), "roofline": None,
        "commit": rows.commit(), "versions": rows.versions({"model": "sim/src/cost.h", **limit}),
    }  # fmt: skip


def nbytes(kind: str, m: int, n: int, k: int, groups: int = 1) -> float:
    """Operands, their scales and the bfloat16 result."""
    a, b = {"bf16": (2, 2), "mxfp8_rows": (1 + 1 / 32, 1 + 1 / 32), "fp8_fp4": (1 + 1 / 32, 0.5 + 1 / 32)}.get(
        kind, (1.03125, 1.0)
    )
    return m * k * a + groups * n * k * b + m * n * 2


def products() -> Iterator[rows.Row]:
    for kind, (_, entry, columns, _, rate) in KINDS.items():
        for m, n, k in HARDWARE_BENCH:
            tile = min(m, 128)
            cost = whole(kind, tile, -(-m // 128) * -(-n // columns), k)
            params = {"M": m, "N": n, "K": k, "dtype": kind}
            yield row("deep_gmm.gemm", params, entry, cost, 2.0 * m * n * k, nbytes(kind, m, n, k), rate)
        for groups, each, n, k in GROUPED_BENCH:
            m = groups * each
            cost = whole(kind, 128, groups * -(-each // 128) * -(-n // columns), k)
            params = {"groups": groups, "M": m, "N": n, "K": k, "dtype": kind}
            yield row(
                "deep_gmm.grouped_gemm", params, entry, cost, 2.0 * m * n * k, nbytes(kind, m, n, k, groups), rate
            )


@cache
def moved(entry: str, count: int, width: int) -> Slice:
    """`count` rows of `width` bytes through one core's push or pull."""
    planes = [torch.zeros(count, width, dtype=torch.uint8), torch.zeros(count, 64, dtype=torch.uint8)]
    layout = Windows(1, count * record_bytes([width, 64]))
    window, heads = torch.zeros(layout.nbytes, dtype=torch.uint8), torch.zeros(1, HEAD, dtype=torch.int64)
    heads[0, ROWS], heads[0, BLOCKS] = count, 1
    if entry == "ep_pull":
        return launch("ep_exchange", entry, layout.pull(0, 1, window, planes, heads))
    table, index = torch.tensor([window.data_ptr()]), torch.arange(count)
    fault = torch.zeros(2, dtype=torch.int32)
    return launch("ep_exchange", entry, layout.push(0, 1, planes, index, heads, [window], table, fault))


@cache
def reduced(tokens: int, lanes: int, hidden: int) -> Slice:
    """Tokens of one core in the last step of a combine."""
    source, index = (
        torch.zeros(tokens * lanes, hidden, dtype=torch.bfloat16),
        torch.arange(tokens * lanes).view(tokens, lanes),
    )
    weights, y = torch.ones(tokens * lanes), torch.empty(tokens, hidden, dtype=torch.bfloat16)
    tail = (hidden * 2, lanes * 8, 8, 4, 0, hidden * 2, tokens * lanes, tokens, lanes, hidden, 8)
    kinds = (ep.TYPES[source.dtype], 0, ep.TYPES[y.dtype], 0)
    pointers = [base.read(source), base.read(index), base.read(weights), base.read(None), base.write(y)]
    return launch("ep_reduce", "ep_reduce", base.arguments(pointers, "7q8i", (*tail, *kinds)))


def exchanges() -> Iterator[rows.Row]:
    hidden, lanes = 7168, 8
    for tokens in (128, 4096):
        for dtype, width in (("bf16", hidden * 2), ("fp8_ue8m0", hidden + hidden // 32)):
            for entry in ("ep_push", "ep_pull"):
                count = tokens * lanes  # every token to eight ranks
                low, high = moved(entry, 8, width), moved(entry, 16, width)
                cost = low.plus(high.plus(low, -1.0), (-(-count // CORES) - 8) / 8)
                params = {"T": tokens, "ranks": lanes, "hidden": hidden, "dtype": dtype}
                yield row("deep_ep.exchange", params, entry, cost, 0.0, 2.0 * count * width, CUBE_RATE["bf16"])
        low, high = reduced(2, lanes, hidden), reduced(4, lanes, hidden)
        cost = low.plus(high.plus(low, -1.0), (-(-tokens // CORES) - 2) / 2)
        params = {"T": tokens, "top_k": lanes, "hidden": hidden, "dtype": "bf16"}
        work = 2.0 * tokens * lanes * hidden
        yield row("deep_ep.reduce", params, "ep_reduce", cost, work, work + 2.0 * tokens * hidden, CUBE_RATE["bf16"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSONL file to append to")
    out = parser.parse_args().out
    found = [*products(), *exchanges()]
    for entry in found:
        seen = entry["versions"]
        name = f"{entry['op']:22} {entry['case']:44} {entry['kernel']:16}"
        print(f"{name} {entry['median_us']:10.1f} us  cube {seen.get('cube', '-')}  {seen['limit']}")
    if out is not None:
        rows.append(out, found)


if __name__ == "__main__":
    main()
