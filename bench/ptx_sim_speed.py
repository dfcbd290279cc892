"""How fast the PTX simulator runs the shipped SM100 product by a pair of CTAs, 256 x 128 x 512, with its checker and
without.

    python bench/ptx_sim_speed.py [--out bench/evidence/cuda_sim.jsonl]

Prints, and appends to --out, CPU seconds of the best of several launches and instructions per second. Needs no GPU; one
core; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import ctypes as ct
import dataclasses
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from deepinfer_cuda import jit, simdevice
from deepinfer_cuda.kernels.gemm import Product, prepare
from deepinfer_cuda.kernels.gemm_tiles import SM100_TILES

from deepinfer.hal import Image

ROWS, COLS, DEPTH, REPEATS = 256, 128, 512, 7


class Statistics(ct.Structure):
    """di_sim_statistics"""

    _fields_ = (
        ("struct_size", ct.c_uint32), ("launches", ct.c_uint64), ("warp_instructions", ct.c_uint64),
        ("thread_instructions", ct.c_uint64), ("async_steps", ct.c_uint64), ("mma_macs", ct.c_uint64),
        ("seconds", ct.c_double),
    )


class Control(ct.Structure):
    """di_sim_control"""

    _fields_ = (
        ("struct_size", ct.c_uint32), ("set", ct.CFUNCTYPE(ct.c_int, ct.c_char_p, ct.c_char_p)),
        ("finding_count", ct.c_void_p), ("finding", ct.c_void_p), ("clear", ct.CFUNCTYPE(None)),
        ("statistics", ct.CFUNCTYPE(None, ct.POINTER(Statistics))),
    )


def measure(checker: str) -> dict[str, Any]:
    """One row: the best launch of several."""
    device: Any = simdevice.open_simulated(0, "sm_100")
    control: Any = device._sim._extension_table("sim.control", Control)
    if control.set(b"checker", checker.encode()):
        raise RuntimeError(f"the simulator does not take checker={checker}")
    tile = next(tile for tile in SM100_TILES if tile.symbol.endswith("128x128x8_c2"))
    image = jit.default_cache().get(tile.unit.build("sm_100", "ptx"), jit.NvrtcCompiler()).image
    module = device.load(Image(image, "ptx", tile.symbol))
    a, b = (torch.randint(-4, 5, (n, DEPTH), dtype=torch.int8).bfloat16() for n in (ROWS, COLS))
    d = torch.zeros(ROWS, COLS, dtype=torch.bfloat16)
    small = SimpleNamespace(props=dataclasses.replace(device.props, compute_units=2), encode=device.encode)
    launch = prepare(module, small, tile, Product(a, b, d, (), None, None))
    best = float("inf")
    for _ in range(REPEATS):
        control.clear()
        start = time.process_time()
        launch(SimpleNamespace(handle=0))
        best = min(best, time.process_time() - start)
    if not torch.equal(d, (a.double() @ b.double().t()).bfloat16()):
        raise RuntimeError("the simulated product is wrong")
    found = Statistics(ct.sizeof(Statistics))
    control.statistics(ct.byref(found))
    control.set(b"checker", b"on")
    return {
        "what": "speed of the PTX simulator", "kernel": tile.symbol, "problem": [ROWS, COLS, DEPTH], "ctas": 2,
        "checker": checker, "cpu_s": round(best, 4), "warp_instructions": found.warp_instructions,
        "thread_instructions": found.thread_instructions, "mma_macs": found.mma_macs,
        "thread_instructions_per_s": round(found.thread_instructions / best),
        "date": datetime.now(UTC).date().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSONL file that gets the rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for checker in ("on", "off"):
        line = json.dumps(measure(checker), sort_keys=True)
        print(line)
        if options.out:
            with options.out.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
