"""What starting costs on a CUDA device: cold compilation of each kernel, and a process that finds everything cached.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton python bench/cuda_start.py [--out rows.jsonl]

Cold: one translation unit at a time, with NVRTC's own cache switched off. Warm: fresh processes over a full cache; each
prints the seconds of its steps, `import torch` first, which the library does not decide. Best of the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["CUDA_CACHE_DISABLE"] = "1"  # before NVRTC is loaded

WARM = """
import json, time
marks = [("start", time.perf_counter())]
def mark(name):
    marks.append((name, time.perf_counter()))
import torch
mark("import torch")
import deepinfer.ops
mark("import deepinfer")
from deepinfer_cuda.plugin import create
deepinfer.register_backend("cuda", create)
device = deepinfer.set_backend("cuda:0")
mark("open the device")
import deepinfer_cuda.kernels
from deepinfer_cuda import aot
mark("declare kernels")
modules = aot.load_all(device, jobs=8)
mark("load all modules")
a = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
deepinfer.ops.deep_gmm.gemm(a, a)
device.synchronize()
mark("first op")
steps = {name: round(at - before, 3) for (_, before), (name, at) in zip(marks, marks[1:])}
steps["after torch"] = round(marks[-1][1] - marks[1][1], 3)
print(json.dumps({"modules": modules, **steps}))
"""


def cold(arch: str) -> dict[str, float]:
    """Seconds per translation unit."""
    from deepinfer_cuda import aot, jit

    compiler = jit.NvrtcCompiler()
    compiler.identity()
    found: dict[str, float] = {}
    for build in aot.builds(arch):
        start = time.perf_counter()
        compiler.compile(build)
        found[build.name] = round(time.perf_counter() - start, 3)
    return found


def warm(runs: int) -> list[dict[str, float]]:
    """Steps of fresh processes; the first one fills the cache."""
    found = []
    with tempfile.TemporaryDirectory() as cache:
        variables = {**os.environ, "DEEPINFER_CACHE_DIR": cache}
        for _ in range(runs + 1):
            command = [sys.executable, "-c", WARM]
            done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"a fresh process failed: {done.stderr[-2000:]}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    compiled, (filling, *cached) = cold(options.arch), warm(options.runs)
    best = min(cached, key=lambda steps: steps["after torch"])
    for name, seconds in compiled.items():
        print(f"cold {name:40} {seconds:6.3f} s")
    print("filling an empty cache, 8 at a time:", filling)
    print("warm:", best)
    rows = [{"what": "cold", "kernel": name, "seconds": seconds} for name, seconds in compiled.items()]
    rows += [{"what": "fill", **filling}, {"what": "warm", **best}]
    if options.out:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 0 if max(compiled.values()) < 3 and best["after torch"] < 2 else 1


if __name__ == "__main__":
    raise SystemExit(main())
