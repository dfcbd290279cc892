"""Asks a static prover whether the SM100 bf16 GEMM is well synchronised and free of races; prints its verdicts.

    python -m venv /tmp/prover && /tmp/prover/bin/pip install sentryward==0.1.1
    python bench/sentryward_gemm.py --sentryward /tmp/prover/bin/sentryward [--out bench/evidence/cuda_sim.jsonl]

A second opinion beside the simulator: it covers every schedule of one launch, but models neither fences nor
tcgen05.wait::ld, and knows fixed shapes only. The kernel is compiled with two stages, so that K = 192 turns every
buffer over, and one CTA (or pair) works on three tiles, so that both accumulators are reused. `unsupported` and
`timeout` are no passes; the exit status is 0 only when every verdict is `race_free`. --out gets a row per verdict with
the key of the compiled kernel, which changes with its sources.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deepinfer_cuda import jit

from deepinfer.jit import Build

STAGES, DEPTH = 2, 192
# CTAs per tile: block columns, problem rows and columns
SHAPES = {1: (64, 128, 192), 2: (128, 256, 384)}


def unit(ctas: int) -> Build:
    """The kernel under the name `proof`."""
    cols = SHAPES[ctas][0]
    source = f'#include "kernels/sm100/gemm_bf16.cuh"\nDI_SM100_GEMM_BF16(proof, {cols}, {STAGES}, {ctas}, false)\n'
    return jit.translation_unit("proof", source, "sm_100", "ptx")


def ptx(ctas: int) -> str:
    return jit.NvrtcCompiler().compile(unit(ctas))[0].decode()


def tensor_map(parameter: str, name: str, rows: int, cols: int, box_rows: int) -> dict[str, Any]:
    """As tensor_map.slab_map: [1, rows, cols] bf16 and a box of box_rows x 64, 128-byte swizzle."""
    return {
        "parameter": parameter, "object": name, "element_type": "bf16", "rank": 3, "global_shape": [cols, rows, 1],
        "global_strides_bytes": [cols * 2, rows * cols * 2], "box_shape": [64, box_rows, 1],
        "element_strides": [1, 1, 1], "swizzle": "128B", "interleave": "none", "oob_fill": "zero",
    }


def launch(ctas: int) -> dict[str, Any]:
    """The prover's description of one launch of one CTA or pair."""
    block_cols, rows, cols = SHAPES[ctas]
    stage = (128 + block_cols // ctas) * 64 * 2
    shared = 1024 + STAGES * stage + 4 * 2 * 4096 + 8 * (2 * STAGES + 5)
    scalars = [("proof_param_3", 8, "s64", cols * 2), ("proof_param_3", 16, "s64", 0)]
    problem = {0: 0, 8: 0, 16: 1, 20: rows, 24: cols, 28: DEPTH, 32: 2, 36: 0}
    scalars += [("proof_param_4", at, "u64" if at < 16 else "u32", value) for at, value in problem.items()]
    return {
        "schema": "spverify.kernel-input/v1",
        "launch": {
            "grid_dim": [ctas, 1, 1], "block_dim": [192, 1, 1], "cluster_dim": [ctas, 1, 1],
            "dynamic_shared_bytes": shared,
        },
        "declarations": [{"parameter": "proof_param_3", "offset": 0, "type": "pointer", "object": "d"}],
        "arguments": [{"parameter": p, "offset": at, "type": kind, "value": v} for p, at, kind, v in scalars],
        "tma_descriptors": [
            tensor_map("proof_param_0", "a", rows, DEPTH, 128),
            tensor_map("proof_param_1", "b", cols, DEPTH, block_cols // ctas),
            tensor_map("proof_param_2", "d", rows, cols, 32),
        ],
    }


def prove(command: str, ctas: int, timeout: int, folder: Path) -> dict[str, Any]:
    kernel, config = folder / f"proof{ctas}.ptx", folder / f"proof{ctas}.json"
    kernel.write_text(ptx(ctas))
    config.write_text(json.dumps(launch(ctas)))
    call = [command, str(kernel), "--input", str(config), "--timeout", str(timeout)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise RuntimeError(f"{command} printed nothing; exit {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(command: str, ctas: int, found: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The verdict as a line of evidence."""
    interpreter = Path(command).with_name("python")
    asked = "import importlib.metadata as m; print(m.version('sentryward'))"
    version = subprocess.run([interpreter, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "what": "static proof", "prover": f"sentryward {version}", "kernel": "sm100_gemm_bf16", "ctas": ctas,
        "problem": [*SHAPES[ctas][1:], DEPTH], "stages": STAGES, "tiles per cta": 3, "result": found["result"],
        "checks": found["checks"], "reasons": found.get("diagnostics", [])[:3], "seconds": round(seconds, 1),
        "key": unit(ctas).key(jit.NvrtcCompiler().identity()), "date": datetime.now(UTC).date().isoformat(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentryward", default="sentryward", help="the prover's command")
    parser.add_argument("--timeout", type=int, default=600, help="seconds per kernel")
    parser.add_argument("--ctas", type=int, nargs="*", default=[1, 2], choices=[1, 2])
    parser.add_argument("--out", type=Path, help="JSONL file that gets a row per verdict")
    options = parser.parse_args()
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        for ctas in options.ctas:
            start = time.perf_counter()
            found = prove(options.sentryward, ctas, options.timeout, Path(folder))
            if options.out:
                with options.out.open("a") as file:
                    line = row(options.sentryward, ctas, found, time.perf_counter() - start)
                    file.write(json.dumps(line, sort_keys=True) + "\n")
            rows, cols = SHAPES[ctas][1:]
            print(f"{ctas} CTA(s), {rows} x {cols} x {DEPTH}: {found['result']} {found['checks']}")
            for item in [*found.get("diagnostics", []), *found.get("warnings", [])][:5]:
                print("  ", json.dumps(item)[:600])
            verdicts.append(found["result"])
    return 0 if all(verdict == "race_free" for verdict in verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
