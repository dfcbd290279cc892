"""The engine with the shipped checkpoint on a CUDA device: its tokens beside the cpu's, decode graphs beside eager.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton python bench/cuda_engine.py --out rows.jsonl

1. Greedy tokens must equal the cpu's, or first differ where the cpu's two best log-probabilities lie within the
   tolerance: float32 sums in another order may decide a tie. The row lists which ops ran on the portable tier.
2. Decode speed: two engines in one process, one eager and one with captured graphs, on the same prompts in alternating
   rounds. A round takes the time of NEW tokens and that of one token; the difference is decoding alone, and the median
   counts. Their tokens must be equal, also for a batch that no graph has, which is padded to the next larger one.
3. A capture that breaks off must leave the device usable.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from deepinfer_cpu.plugin import create as create_cpu
from deepinfer_cuda.plugin import create

import deepinfer
from deepinfer import LLM, SamplingParams
from deepinfer.errors import UnsupportedError

MODEL = Path(__file__).resolve().parents[1] / "examples/models/tiny-v3"
PROMPTS = [[1, 5, 9, 20, 31], [7, 7, 7], list(range(40, 140)), [2], [100, 90, 80, 70, 60, 50, 40]]
TIE = {"float32": 2e-3, "bfloat16": 0.1}
SIZES, PROMPT_TOKENS, LONGEST = (1, 8, 32), 64, 256
Row = dict[str, Any]


def greedy(count: int, logprobs: int | None = None) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, logprobs=logprobs)


def described(device: deepinfer.hal.Device, commit: str) -> Row:
    """What every row says about the run."""
    versions = {"deepinfer": deepinfer.__version__, "torch": torch.__version__}
    used = {name: count for name, count in sorted(device.statistics.items()) if name.startswith("fallback:")}
    return {"device": device.props.name, "fallback": used, "commit": commit, "versions": versions}


def generate(device: str, dtype: str, count: int) -> tuple[list[list[int]], list[list[float]], float]:
    """Tokens, gaps between the two best log-probabilities at each step, seconds of the second of two runs."""
    with LLM(MODEL, device=device, dtype=dtype) as llm:
        llm.generate(PROMPTS, greedy(count, 2), use_tqdm=False)
        start = time.perf_counter()
        outputs = [request.outputs[0] for request in llm.generate(PROMPTS, greedy(count, 2), use_tqdm=False)]
        seconds = time.perf_counter() - start
    gaps = []
    for output in outputs:
        best = [sorted((entry.logprob for entry in step.values()), reverse=True) for step in output.logprobs or []]
        gaps.append([values[0] - values[1] for values in best])
    return [list(output.token_ids) for output in outputs], gaps, seconds


def as_on_cpu(options: argparse.Namespace, dtype: str) -> tuple[Row, bool]:
    """Part 1 for one dtype."""
    want, gaps, cpu_seconds = generate("cpu", dtype, options.tokens)
    device = deepinfer.device(options.device)
    device.statistics.clear()
    got, _, seconds = generate(options.device, dtype, options.tokens)
    equal, good = 0, True
    for a, b, gap in zip(got, want, gaps, strict=True):
        first = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
        equal += first is None
        if first is not None:
            print(dtype, "differs at", first, "where the cpu's gap is", gap[first])
            good &= gap[first] <= TIE[dtype]
    row = {
        "op": "engine", "case": f"tiny-v3 greedy {dtype}", "requests": len(want), "equal": equal,
        "tokens": options.tokens, "seconds": round(seconds, 3), "cpu_seconds": round(cpu_seconds, 3),
    }
    return row | described(device, options.commit), good


def prompts(batch: int) -> list[list[int]]:
    """Distinct prompts of byte tokens."""
    return [[(31 * row + 7 * i * i + i) % 250 for i in range(PROMPT_TOKENS)] for row in range(batch)]


def tokens(llm: LLM, given: list[list[int]], count: int) -> list[list[int]]:
    outputs = llm.generate(given, greedy(count), use_tqdm=False)
    failed = [output.error for output in outputs if output.error is not None]
    if failed:
        raise failed[0]
    return [list(output.outputs[0].token_ids) for output in outputs]


def decode_seconds(llm: LLM, given: list[list[int]], count: int) -> float:
    """Time of count - 1 decode steps."""
    times = []
    for new in (count, 1):
        start = time.perf_counter()
        tokens(llm, given, new)
        times.append(time.perf_counter() - start)
    return max(times[0] - times[1], 1e-9)


def speed(options: argparse.Namespace, engines: dict[str, LLM], batch: int) -> tuple[Row, bool]:
    """Part 2 for one batch; the engines are opened by the first."""
    if not engines:
        engines.update(open_engines(options))
    given, count = prompts(batch), options.tokens
    device = engines["eager"].device
    device.statistics.clear()
    rivals = {name: llm for name, llm in engines.items() if name != "auto"}
    found = {name: tokens(llm, given, count) for name, llm in engines.items()}
    again = tokens(engines["graph"], given, count)
    row = {"op": "engine.decode", "case": f"tiny-v3 bfloat16 batch={batch}"} | described(device, options.commit)
    times: dict[str, list[float]] = {name: [] for name in rivals}
    before = engines["graph"].decode_graphs().replayed
    for _ in range(options.rounds):
        for name, llm in rivals.items():
            times[name].append(decode_seconds(llm, given, count))
    rate = {name: batch * (count - 1) / statistics.median(values) for name, values in times.items()}
    report = engines["graph"].decode_graphs()
    same = zip(found["eager"], found["graph"], found["auto"], again, strict=True)
    row |= {
        "requests": batch, "tokens": count, "rounds": options.rounds,
        "equal": sum(a == b == c == d for a, b, c, d in same),
        "auto_replayed": engines["auto"].decode_graphs().replayed,
        "eager_tps": round(rate["eager"], 1), "graph_tps": round(rate["graph"], 1),
        "ratio": round(rate["graph"] / rate["eager"], 2), "replayed": report.replayed - before,
        "graphs": [list(key) for key in report.captured], "reasons": list(report.reasons),
    }
    return row, row["equal"] == batch and not report.reasons


def open_engines(options: argparse.Namespace) -> dict[str, LLM]:
    """The same engine eagerly, with given sizes and with "auto"; where the device refuses sizes, the row says why."""
    shared: Row = {"device": options.device, "dtype": "bfloat16", "max_model_len": LONGEST, "num_blocks": 256}
    shared |= {"max_num_seqs": SIZES[-1], "enable_prefix_caching": False, "seed": 0}
    start = time.perf_counter()
    made = {"eager": LLM(MODEL, decode_graphs=False, **shared)}
    middle, taken = time.perf_counter(), deepinfer.device(options.device).memory_info()[0]
    try:
        made["graph"] = LLM(MODEL, decode_graphs=SIZES, **shared)
    except UnsupportedError as error:
        print(error)
        made["graph"] = LLM(MODEL, decode_graphs="auto", **shared)
    taken -= deepinfer.device(options.device).memory_info()[0]
    print(f"opened in {middle - start:.1f} s, with graphs in {time.perf_counter() - middle:.1f} s, {taken} bytes more")
    made["auto"] = LLM(MODEL, decode_graphs="auto", **shared)
    return made


def broken_capture(options: argparse.Namespace) -> tuple[Row, bool]:
    """Part 3: a host read in a capture raises; afterwards another thread, this one and a new capture work."""
    device = deepinfer.device(options.device)
    x = torch.arange(8.0, device=device.torch_device)
    device.synchronize()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved(device.torch_device)
    refused = []
    reads = {"item": lambda: x.sum().item(), "from host": lambda: x + torch.tensor([1.0], device=x.device)}
    for name, act in reads.items():
        try:
            with device.graph():
                y = torch.empty(1 << 26, device=device.torch_device)
                act()
        except RuntimeError as error:
            refused.append(f"{name}: {str(error).splitlines()[0][:80]}")
        del y
    usual = torch.cuda.current_stream(device.torch_device) == torch.cuda.default_stream(device.torch_device)
    big = torch.empty(1 << 27, device=device.torch_device)  # must come from the usual pool
    del big
    gc.collect()
    torch.cuda.empty_cache()
    kept = torch.cuda.memory_reserved(device.torch_device) - reserved
    results: list[float] = []
    graph = device.graph()
    with graph:
        y = x * 2 + 1
        other = threading.Thread(target=lambda: results.append(float((x.to("cpu") + 1).sum())))
        other.start()
        other.join()
    x.copy_(torch.arange(8.0) + 1)
    graph.replay()
    device.synchronize()
    good = y.tolist() == [2 * (i + 1) + 1.0 for i in range(8)] and results == [36.0] and len(refused) == 2
    good &= usual and kept < 1 << 29
    row = {"op": "graph.broken_capture", "case": "host read, host copy, then a capture", "refused": refused, "ok": good}
    row["bytes_kept"] = kept
    return row | described(device, options.commit), good


def attempt(rows: list[Row], part: Callable[[], tuple[Row, bool]]) -> bool:
    """Run one part, print its row; a failing part is shown and does not keep the next from running."""
    try:
        row, good = part()
    except Exception:
        traceback.print_exc()
        return False
    rows.append(row)
    print(json.dumps(row), flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, action="append", help="default: 1, 8, 32 and 5 (padded to 8)")
    parser.add_argument("--skip", action="append", default=[], choices=("cpu", "speed", "broken"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    deepinfer.register_backend("cuda", create)
    deepinfer.register_backend("cpu", create_cpu)
    rows: list[Row] = []
    parts: list[Callable[[], tuple[Row, bool]]] = []
    if "cpu" not in options.skip:
        parts += [partial(as_on_cpu, options, dtype) for dtype in ("float32", "bfloat16")]
    if "speed" not in options.skip:
        engines: dict[str, LLM] = {}
        parts += [partial(speed, options, engines, batch) for batch in options.batch or [*SIZES, 5]]
    if "broken" not in options.skip:
        parts.append(partial(broken_capture, options))
    results = [attempt(rows, part) for part in parts]
    if options.out:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return int(not all(results))


if __name__ == "__main__":
    raise SystemExit(main())
