"""How much faster the CPU's kernels and the portable forms are than the float64 references, in one run.

    python bench/cpu_references.py --op 'flash_mla.*decode' --op 'deep_gmm.*' --out rows.jsonl

Reference, portable form and kernel of a case take turns on one thread, in CPU time of the process; the ratio is that of
their best times (the machine may be shared, and what others do only ever adds time). Cases tagged "profile:hardware"
are too large for a host. Decode of few keys has a fourth call, `least`: what no form in torch can do without (gather
keys and widen them, two products), which bounds the ratio that any such form could have.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import deepinfer
from deepinfer.bench import rows, runner
from deepinfer.registry import Case, Op, get_spec
from deepinfer.registry.spec import Args

NAMES = ("reference", "portable", "kernel")


def best_times(calls: list[Callable[[], Any]], rounds: int, seconds: float) -> list[float]:
    """Best time of each call in seconds; they take turns, at most `rounds` times and about `seconds` in all.

    A turn is one call that is not timed and one that is.
    """
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    for count in range(rounds):
        for index, call in enumerate(calls):
            call()  # another call may have given memory back to the system; taking it again costs 2 us a page
            start = time.process_time()
            call()
            best[index] = min(best[index], time.process_time() - start)
        if count and time.perf_counter() > end:
            break
    return best


def least_decode(args: Args) -> Callable[[], Any] | None:
    """The calls of torch that decode of equally long requests cannot do without, once per request, nothing else."""
    q, cache, table, d_v = (args[name] for name in ("q", "kv_cache", "block_table", "d_v"))
    n, (b, s_q, heads, d) = int(args["seq_lens"][0]), q.shape
    if cache.dtype not in (torch.float32, torch.bfloat16) or n % cache.shape[1] or n > 1024:
        return None  # longer ones gain from taking keys in blocks
    ids = table[:, : n // cache.shape[1]].unbind(0)
    queries, weights = q.float().view(b, -1, d).unbind(0), torch.rand(s_q * heads, n)

    def call() -> None:
        for row, blocks in zip(queries, ids, strict=True):
            keys = cache.index_select(0, blocks).view(n, d)
            keys = keys if keys.dtype is torch.float32 else keys.float()
            torch.mm(row, keys.t())
            torch.mm(weights, keys.narrow(1, 0, d_v))

    return call


def measured(device: Any, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    spec = get_spec(case.op)
    op, args = Op(spec), case.build()
    given = tuple(args[param.name] for param in spec.params)
    absent = (None,) * len(spec.returns)
    calls = [lambda: spec.reference(args), lambda: spec.portable(args, absent), lambda: op(*given)]
    least = least_decode(args) if case.op == "flash_mla.decode" else None
    names = NAMES if least is None else (*NAMES, "least")
    calls += [] if least is None else [least]
    times = dict(zip(names, best_times(calls, options.rounds, options.seconds), strict=True))
    return {
        "bench": "cpu_references", "op": case.op, "case": case.id, "device": device.props.name,
        "driver_kind": "host", "clock": "cpu", "threads": torch.get_num_threads(),
        **{f"{name}_ms": round(1e3 * value, 3) for name, value in times.items()},
        **{f"{name}_ratio": round(times["reference"] / times[name], 2) for name in names[1:]},
        "kernel": op.resolve(device, given).kernel.name,
        "commit": rows.commit(), "versions": {"torch": torch.__version__, "deepinfer": deepinfer.__version__},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", action="append", required=True, help="pattern of ops (repeatable)")
    parser.add_argument("--case", action="append", help="pattern of case names (repeatable)")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=1.5, help="about how long a case may take")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = deepinfer.set_backend("cpu")
    for case in runner.select(device, options.op, options.case):
        row = measured(device, case, options)
        ratios = [f"{name} {row[f'{name}_ratio']:6.2f} x" for name in (*NAMES[1:], "least") if f"{name}_ratio" in row]
        print(f"{row['op']:38} {row['case'][:56]:56} reference {row['reference_ms']:9.2f} ms, {', '.join(ratios)} "
              f"({row['kernel']})", flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
