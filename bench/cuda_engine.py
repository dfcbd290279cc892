"""Runs the engine with the shipped checkpoint on a CUDA device and compares its greedy tokens with the cpu's.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton python bench/cuda_engine.py

Tokens must be equal, or first differ where the cpu's two best log-probabilities lie within the tolerance: float32
sums in another order may decide a tie. Lists which ops ran on the portable tier.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from deepinfer_cpu.plugin import create as create_cpu
from deepinfer_cuda.plugin import create

import deepinfer
from deepinfer import LLM, SamplingParams

MODEL = Path(__file__).resolve().parents[1] / "examples/models/tiny-v3"
PROMPTS = [[1, 5, 9, 20, 31], [7, 7, 7], list(range(40, 140)), [2], [100, 90, 80, 70, 60, 50, 40]]
TIE = 2e-3


def generate(device: str, dtype: str, count: int) -> tuple[list[list[int]], list[list[float]], float]:
    """Tokens, gaps between the two best log-probabilities at each step, seconds of the second of two runs."""
    llm = LLM(MODEL, device=device, dtype=dtype)
    params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, logprobs=2)
    llm.generate(PROMPTS, params)
    start = time.perf_counter()
    outputs = [request.outputs[0] for request in llm.generate(PROMPTS, params)]
    seconds = time.perf_counter() - start
    gaps = []
    for output in outputs:
        best = [sorted((entry.logprob for entry in step.values()), reverse=True) for step in output.logprobs or []]
        gaps.append([values[0] - values[1] for values in best])
    return [list(output.token_ids) for output in outputs], gaps, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    deepinfer.register_backend("cuda", create)
    deepinfer.register_backend("cpu", create_cpu)
    rows, problems = [], 0
    for dtype in ("float32", "bfloat16"):
        want, gaps, cpu_seconds = generate("cpu", dtype, options.tokens)
        device = deepinfer.device(options.device)
        device.statistics.clear()
        got, _, seconds = generate(options.device, dtype, options.tokens)
        equal = 0
        for a, b, gap in zip(got, want, gaps, strict=True):
            first = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
            equal += first is None
            if first is not None:
                print(dtype, "differs at", first, "where the cpu's gap is", gap[first])
                problems += gap[first] > (TIE if dtype == "float32" else 0.1)
        row = {
            "op": "engine", "case": f"tiny-v3 greedy {dtype}", "device": device.props.name, "requests": len(want),
            "equal": equal, "tokens": options.tokens, "seconds": round(seconds, 3),
            "cpu_seconds": round(cpu_seconds, 3),
            "fallback": dict(sorted(device.statistics.items())), "commit": options.commit,
        }
        rows.append(row)
        print(json.dumps(row))
    if options.out:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return int(problems > 0)


if __name__ == "__main__":
    raise SystemExit(main())
