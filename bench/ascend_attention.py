"""Modelled times of the Ascend 950 attention kernels on the hardware benchmark shapes: clock "model", not measured.

    python bench/ascend_attention.py --out bench/baselines/ascend950_attention.jsonl

The kernels run on the simulator, whose timeline knows rates and waits (sim/src/cost.h). A launch is one AI core's first
two jobs plus as many steady ones as its share holds; a job is as in kernels/mla_args.h. Memory bounds a launch too: the
bytes of the op's own cost at 1.6 TB/s. "limit" names the busiest unit, "cube" the share of the cube's peak that useful
products reach (those of the formula 2 * rows * keys * (d_qk + d_v), not what a kernel adds), "bound" the largest
share that any kernel could reach at that bandwidth.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from ascend_products import BANDWIDTH, Slice, launch
from deepinfer_ascend950.model_clock import CLOCK_HZ, CORES, CUBE_RATE
from deepinfer_ascend950.ops import cache as cache_ops
from deepinfer_ascend950.ops import fused, merge, mla
from deepinfer_ascend950.ops.attention import parts_of

from deepinfer.bench import rows
from deepinfer.ops.flash_mla import data
from deepinfer.ops.flash_mla.cache_cases import Shape as CacheShape
from deepinfer.ops.flash_mla.formats import LAYOUTS

STEADY = (2, 4)  # jobs on a core whose difference is the steady cost
PAGE, POOL = 64, 2048


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def attend(problem: mla.Problem) -> Slice:
    return launch("mla_attend", problem.entry, problem.pack())


def _q(b: int, s: int, h: int, d: int) -> torch.Tensor:
    return data.queries((b, s, h, d), torch.bfloat16, generator())


def _results(b: int, s: int, h: int, d_v: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(b, s, h, d_v).bfloat16(), torch.empty(b, h, s)


def _lists(b: int, count: int) -> torch.Tensor:
    return torch.randint(POOL, (b, 1, count), generator=generator(), dtype=torch.int32)


@cache
def sparse(jobs: int, h: int, d: int, formats: tuple[str, ...], keys: tuple[int, ...]) -> Slice:
    """Tokens of up to 64 heads that attend to lists; format "" is the tensor of sparse prefill."""
    q, (out, lse), pools = _q(jobs, 1, h, d), _results(jobs, 1, h, 512), []
    for name, count in zip(formats, keys, strict=True):
        if not name:
            kv = data.rows(POOL, d, generator()).bfloat16()
            cut = mla.plain_rows(d, 2 * d)
            pools.append(mla.Pool(kv, _lists(jobs, count), None, cut, POOL, POOL, 0, count))
            continue
        cached = data.cache(name, POOL // PAGE, PAGE, d, generator(), False)
        pools.append(mla.paged_pool(cached, name, _lists(jobs, count), None, count))
    return attend(mla.Problem(q, tuple(pools), out, lse, mla.SPARSE, d**-0.5))


@cache
def dense(jobs: int, tokens: int, h: int, name: str, keys: int, parts: int) -> Slice:
    """Requests of one job each; `parts` > 1 walks that share of the keys and leaves float32 states."""
    d, share = LAYOUTS[name].width or 576, -(-keys // parts)
    table = torch.arange(-(-share // PAGE), dtype=torch.int32).expand(jobs, -1).contiguous()
    cached = data.cache(name, table.shape[1], PAGE, d, generator(), False)
    pool = mla.paged_pool(cached, name, table, torch.full((jobs,), share, dtype=torch.int32), share)
    q, (out, lse) = _q(jobs, tokens, h, d), _results(jobs, tokens, h, 512)
    return attend(mla.Problem(q, (pool,), out.float() if parts > 1 else out, lse, mla.PAGED, d**-0.5))


@cache
def per_head(jobs: int, keys: int) -> Slice:
    """Jobs of 64 tokens of one head, keys of 192 and values of 128 channels."""
    k, v = (data.rows(keys * jobs, w, generator()).bfloat16().view(keys, jobs, w) for w in (192, 128))
    width = 192 * 2
    cut = mla.Rows(((0, k.stride(0) * 2, width, 0), (0, v.stride(0) * 2, 256, width)), 0, 0, 0, 0, 0, 0, 0, 640)
    pool = mla.Pool(k, None, None, cut, keys, keys, 0, 0)
    q, (out, lse) = _q(1, 64, jobs, 192), _results(1, 64, jobs, 128)
    cu = [torch.tensor([0, n], dtype=torch.int32) for n in (64, keys)]
    return attend(mla.Problem(q, (pool,), out, lse, mla.HEADS, 192**-0.5, cu_q=cu[0], cu_k=cu[1], values=v))


def whole(run: Callable[[int], Slice], jobs: int) -> Slice:
    """The busiest core of a launch of that many equal jobs."""
    share = -(-jobs // CORES)
    if share <= STEADY[0]:
        return run(share)
    low, high = (run(n) for n in STEADY)
    return low.plus(high.plus(low, -1.0), (share - STEADY[0]) / (STEADY[1] - STEADY[0]))


def row(op: str, params: dict[str, Any], kernel: str, cost: Slice, flops: float, nbytes: float) -> rows.Row:
    on_core, in_memory = cost.cycles / CLOCK_HZ, nbytes / BANDWIDTH
    seconds = max(on_core, in_memory)
    unit, busy = (cost.limit, cost.busy[cost.limit] / CLOCK_HZ) if on_core > in_memory else ("memory", in_memory)
    seen = {"limit": f"{unit} {busy / seconds:.2f}"}
    if flops:
        peak = flops / 2 / CUBE_RATE["bf16"] / CORES / CLOCK_HZ
        seen |= {"cube": f"{peak / seconds:.3f}", "bound": f"{peak / max(peak, in_memory):.3f}"}
    return {
        "op": op, "params": params, "case": ",".join(f"{key}={value}" for key, value in params.items()),
        "kernel": kernel, "device": "Ascend 950 simulator", "driver_kind": "simulator", "clock": "model",
        "state": "sust", "median_us": round(seconds * 1e6, 3), "p10": None, "p90": None, "n": 1,
        "gbps": round(nbytes / seconds / 1e9, 1), "tflops": round(flops / seconds / 1e12, 2), "roofline": None,
        "commit": rows.commit(), "versions": rows.versions({"model": "sim/src/cost.h", **seen}),
    }  # fmt: skip


def _row_bytes(name: str, d: int) -> int:
    return LAYOUTS[name].token_bytes if name else 2 * d


def sparse_rows() -> Iterator[rows.Row]:
    for h, topk, d in ((64, 512, 512), (64, 512, 576), (64, 2048, 576), (128, 1024, 512), (128, 2048, 576)):
        tokens, jobs = 4096, 4096 * (h // 64)
        cost = whole(lambda n, d=d, topk=topk: sparse(n, 64, d, ("",), (topk,)), jobs)
        moved = tokens * h * (d + 512) * 2.0 + 32768 * d * 2  # rows once: the second-level cache serves the rest
        yield row("flash_mla.sparse_prefill", {"s_q": tokens, "h": h, "d_qk": d, "topk": topk}, "mla_attend", cost,
                  2.0 * tokens * h * topk * (d + 512), moved)  # fmt: skip
    for h, formats, keys in (
        (64, ("v41_fp8",), (640,)), (64, ("v4_fp8",), (512,)), (64, ("v32_fp8",), (2048,)),
        (128, ("v32_fp8",), (2048,)),
        (64, ("v41_fp8", "v41_fp4"), (128, 512)), (128, ("v4_fp8", "v4_fp8"), (128, 1024)),
    ):  # fmt: skip
        b, d = 128, LAYOUTS[formats[0]].width
        cost = whole(lambda n, d=d, f=formats, k=keys: sparse(n, 64, d, f, k), b * (h // 64))
        moved = b * h * (d + 512) * 2.0 + b * sum(k * _row_bytes(f, d) for f, k in zip(formats, keys, strict=True))
        params = {"b": b, "s_q": 1, "h": h, "d_qk": d, "topk": "+".join(map(str, keys)), "format": "+".join(formats)}
        yield row("flash_mla.sparse_decode", params, "mla_attend", cost, 2.0 * b * h * sum(keys) * (d + 512), moved)


@cache
def turned(tokens: int, h: int, back: bool) -> Slice:
    """Queries rotated, or results rotated back and quantised."""
    rows_in = _q(1, tokens, h, 512)[0]
    positions, table = torch.zeros(tokens, dtype=torch.int32), torch.zeros(1, 64)
    if not back:
        out = torch.empty(tokens, h, 576).bfloat16()
        return launch("rotate", "rotate", fused.rotate_arguments(rows_in, positions, table, out, None, 64))
    result, scales = rows_in.float(), torch.zeros(tokens, h, 16, dtype=torch.uint8)
    codes = torch.zeros(tokens, h, 512).to(torch.float8_e4m3fn)
    return launch("rotate", "rotate", fused.rotate_arguments(result, positions, table, codes, scales, 0))


def fused_rows() -> Iterator[rows.Row]:
    """The composition: three launches, each with its own busiest core."""
    tokens, h, keys = 1024, 64, (128, 512)
    cost = whole(lambda n: sparse(n, 64, 512, ("v41_fp8", "v41_fp4"), keys), tokens)
    for back in (False, True):  # a group of 16 heads is a job of these launches, for 64 vector cores
        cost = cost.plus(whole(lambda n, back=back: turned(n, 16, back), tokens * h // 16 // 2), 1.0)
    flops, held = 2.0 * tokens * h * sum(keys) * 1024, 32768 * (528 + 288)
    params = {"s_q": tokens, "h": h, "topk": "128+512", "format": "v41_fp8+v41_fp4"}
    moved = tokens * h * (1024 + 528.0) + held  # rows once: the second-level cache serves the rest
    yield row("flash_mla.sparse_attention_fused", params, "rotate+mla_attend+rotate", cost, flops, moved)


def dense_rows() -> Iterator[rows.Row]:
    for b, h, s_q, length, name in (
        (128, 128, 1, 4096, "bf16"), (128, 64, 2, 4096, "bf16"), (4, 128, 1, 8192, "bf16"), (4, 16, 1, 8192, "bf16"),
        (128, 128, 1, 4096, "v41_fp8"), (4, 128, 1, 8192, "v41_fp8"), (128, 128, 1, 4096, "v32_fp8"),
    ):  # fmt: skip
        together, d = min(mla.jobs_tokens(h), s_q), LAYOUTS[name].width or 576
        jobs, parts = b * -(-s_q // together) * -(-h // 64), parts_of(b, s_q, h, length, CORES)
        shape = (together, min(h, 64), name, length, parts)
        cost = whole(lambda n, shape=shape: dense(n, *shape), jobs * parts)
        if parts > 1:
            cost = cost.plus(whole(lambda n, p=parts: merged(n, p), b * s_q * h), 1.0)
        flops = 2.0 * b * s_q * h * length * (d + 512)
        moved = b * length * _row_bytes("" if name == "bf16" else name, d)
        params = {"b": b, "s_q": s_q, "h": h, "d_qk": d, "len": length, "format": name, "parts": parts}
        kernel = "mla_attend" + ("+merge_states" if parts > 1 else "")
        yield row("flash_mla.decode", params, kernel, cost, flops, moved + b * s_q * h * (d + 512) * 2.0)
    for n, h in ((4096, 16), (4096, 64)):  # causal: half of the keys on average
        together = mla.jobs_tokens(h)
        cost = whole(lambda k, t=together, h=h: dense(k, t, h, "bf16", 2048, 1), n // together)
        yield row("flash_mla.prefill", {"kind": "latent", "s_q": n, "h": h, "d_qk": 576, "len": n}, "mla_attend", cost,
                  1.0 * n * n * h * 1088, n * h * 1088 * 2.0 + n * 1152)  # fmt: skip
    cost = whole(lambda k: per_head(k, 2048), 4096 // 64 * 16)
    yield row("flash_mla.prefill", {"kind": "per_head", "s_q": 4096, "h": 16, "d_qk": 192, "len": 4096}, "mla_attend",
              cost, 1.0 * 4096 * 4096 * 16 * 320, 4096 * 16 * 640 * 2.0)  # fmt: skip


@cache
def merged(n: int, parts: int) -> Slice:
    """Rows of one head and token."""
    outs, lses = torch.randn(parts, 1, n, 1, 512), torch.randn(parts, 1, 1, n)
    out, lse = torch.empty(1, n, 1, 512).bfloat16(), torch.empty(1, 1, n)  # named: arguments hold addresses only
    return launch("merge_states", "merge_states", merge.merge_arguments(outs, lses, None, out, lse))


@cache
def stored(n: int, name: str) -> Slice:
    made = CacheShape(name, n, PAGE, 64).make_write(generator())
    args = cache_ops.cache_arguments(made["kv_cache"], made["rows"], made["slots"], name, writes=True)
    return launch("kv_cache", "kv_cache_write", args)


def small_rows() -> Iterator[rows.Row]:
    for name in ("bf16", "v32_fp8", "v41_fp8", "v41_fp4"):
        d = LAYOUTS[name].width or 576
        cost = whole(lambda n, f=name: stored(n, f), 1024)
        moved = 1024 * (2.0 * d + _row_bytes("" if name == "bf16" else name, d))
        params = {"s_q": 1024, "d_qk": d, "format": name}
        yield row("flash_mla.kv_cache_write", params, "kv_cache_write", cost, 0, moved)
    for h in (16, 128):
        cost = whole(lambda n: merged(n, 8), 64 * h)
        params = {"n": 8, "b": 64, "h": h, "d": 512}
        yield row("flash_mla.merge_states", params, "merge_states", cost, 0, 64 * h * 9 * 516 * 4.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSONL file to append to")
    out, found = parser.parse_args().out, []
    for entry in (*sparse_rows(), *fused_rows(), *dense_rows(), *small_rows()):
        seen = entry["versions"]
        name = f"{entry['op']:24} {entry['case']:60} {entry['kernel']:24}"
        share = f"cube {seen.get('cube', '-')} of {seen.get('bound', '-')}"
        print(f"{name} {entry['median_us']:10.1f} us  {share}  {seen['limit']}", flush=True)
        found.append(entry)
    if out is not None:
        rows.append(out, found)


if __name__ == "__main__":
    main()
