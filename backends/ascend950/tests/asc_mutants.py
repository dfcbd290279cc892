"""The mutation suite: kernels built with one deliberate mistake each must be stopped or give a wrong result.

    python backends/ascend950/tests/asc_mutants.py        prints one line per mutant and the score
    python backends/ascend950/tests/asc_mutants.py bench/evidence/ascend_sim.jsonl      and adds a row with the figure

A mutant is a number that kernels test with MUTANT(n). Every one is run under the eager and the lazy schedule.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import asc_attention
from asc_ranks import attempts
from deepinfer_ascend950.device import AscendDevice, open_simulated
from deepinfer_ascend950.drivers.sim import SimDriver
from deepinfer_ascend950.ops import base, ep, gemm, index, swiglu

from deepinfer.bench.rows import versions
from deepinfer.errors import DriverError
from deepinfer.hal import Arg
from deepinfer.ops.deep_gmm import data
from deepinfer.ops.deep_gmm.operand import FP8_ROWS, FP8_TILES, MXFP4_ROWS, MXFP8_ROWS, PLAIN, widen_exact
from deepinfer.ops.deep_gmm.swiglu import activate, quantize
from deepinfer.registry import get_spec

NUMBERS: dict[str, Sequence[int]] = {
    "gemm_plain": range(1, 13),
    "gemm_mx": (*range(20, 27), 28, 29),
    **asc_attention.NUMBERS,
    "ep_reduce": range(50, 52),
    "gemm_vec": (27, *range(60, 65)),
    "ep_exchange": range(70, 78),
    "group_index": range(80, 85),
    "swiglu": range(90, 94),
}
# Mutants that may survive, each with the reason.
ACCEPTED: dict[tuple[str, int], str] = {}


@dataclass(frozen=True)
class Scenario:
    """One launch and the judgement of its result."""

    entry: str
    grid: int
    args: list[Arg]
    right: Callable[[], bool]
    keep: tuple[object, ...]  # what `args` points at


def _close(got: torch.Tensor, wanted: torch.Tensor, limit: float) -> bool:
    return bool((got.double() - wanted).abs().max() <= limit * wanted.abs().max())  # false for NaN


def _gemm(entry: str, recipe: str, b_recipe: str, m: int, n: int, k: int, addend: bool, scale_rows: int) -> Scenario:
    g = torch.Generator().manual_seed(0)
    a, sa = data.random((m, k), recipe, torch.bfloat16, g)
    b, sb = data.random((n, k), b_recipe, torch.bfloat16, g)
    if recipe == MXFP8_ROWS:  # as mx_expand leaves them: an even number per row
        sa, sb = (torch.nn.functional.pad(x, (0, x.shape[1] % 2), value=127) for x in (sa, sb) if x is not None)
    bias, c, d = torch.randn(n, generator=g), torch.randn(m, n, generator=g) if addend else None, torch.empty(m, n)
    values = {"a": a, "a_scale": sa, "b": b, "b_scale": sb, "bias": bias, "c": c}
    wanted = (
        widen_exact(a, sa, recipe) @ widen_exact(b, sb, b_recipe).t() + bias.double() + (0 if c is None else c.double())
    )
    d.fill_(torch.nan)
    return Scenario(
        entry,
        2,
        gemm.gemm_arguments(gemm.DENSE, values, d, k, scale_rows),
        lambda: _close(d, wanted, 1e-4),
        (values, d),
    )


def _reduce() -> Scenario:
    g = torch.Generator().manual_seed(2)
    rows, index, y = (
        torch.randn(20, 5000, generator=g),
        torch.randint(0, 20, (9, 6), generator=g),
        torch.full((9, 5000), torch.nan),
    )
    tail = (5000 * 4, 48, 8, 0, 0, 5000 * 4, 20, 9, 6, 5000, 8, ep.TYPES[rows.dtype], 0, ep.TYPES[y.dtype], 0)
    pointers = [base.read(rows), base.read(index), base.read(None), base.read(None), base.write(y)]
    wanted = rows.double()[index].sum(1)
    packed = base.arguments(pointers, "7q8i", tail)
    return Scenario("ep_reduce", 2, packed, lambda: _close(y, wanted, 1e-5), (rows, index))


def _layout() -> list[Scenario]:
    """Both launches of an expert layout on three blocks."""
    g = torch.Generator().manual_seed(5)
    ids = torch.randint(-1, 70, (1000, 8), generator=g).int()
    spec = get_spec("deep_ep.expert_layout")
    args = {"ids": ids, "experts": 68, "alignment": 16, "capacity": 1000 * 8 + 68 * 15 + 8}
    wanted = spec.reference(args)
    starts, counts, total, row_of, source = (torch.full_like(x, 77) for x in wanted)
    table = torch.full((3 * index.pitch(68),), 99, dtype=torch.int32)
    tail = (32, 4, 1, 68, 1000, 8, 68, index.pitch(68), 334, 16, source.numel(), 4, 4, 0)
    tables = [base.write(x) for x in (table, starts, counts, total, row_of, source)]
    packed = base.arguments([base.read(ids), *tables], "4q10i", tail)
    right = lambda: all(torch.equal(a, b) for a, b in zip((starts, counts, total, row_of, source), wanted, strict=True))  # noqa: E731
    keep = (ids, table, starts, counts, total, row_of, source)
    return [Scenario("group_count", 3, packed, lambda: True, keep), Scenario("group_place", 3, packed, right, keep)]


def _activation(form: str) -> Scenario:
    g = torch.Generator().manual_seed(6)
    h, route = torch.randn(9, 2 * 2500, generator=g) * 4, torch.rand(9, generator=g)
    wanted = activate(h.double(), 2.5, route.double())
    rows = {"": torch.full((9, 2500), torch.nan)}.get(form, torch.zeros(9, 2500).to(torch.float8_e4m3fn))
    blocks = 20 if form == "fp8_1x128" else 79
    scales = {"fp8_1x128": torch.full((9, blocks), torch.nan), "mxfp8": torch.zeros(9, blocks, dtype=torch.uint8)}.get(
        form
    )
    recipe = {"": PLAIN, "fp8_1x128": FP8_ROWS, "mxfp8": MXFP8_ROWS}[form]
    step = (20000, 4, 2500 * rows.element_size(), blocks * scales.element_size() if scales is not None else 0)
    tail = (*step, 9, 2500, 0, 0, swiglu.FORMS[form], 1, 2.5, 0)
    packed = base.arguments([base.read(h), base.read(route), base.write(rows), base.write(scales)], "4q6ifi", tail)

    def right() -> bool:
        if not form:
            return _close(rows, wanted, 1e-5)
        exact = widen_exact(*quantize(wanted.float(), recipe), recipe)
        return _close(widen_exact(rows, scales, recipe), exact, 2**-4)  # a neighbouring code at most

    return Scenario("swiglu", 2, packed, right, (h, route, rows, scales))


def scenarios(source: str) -> list[Scenario]:
    """Launches that between them reach every mutant of a kernel file."""
    if source == "gemm_plain":
        return [_gemm("gemm_bf16", PLAIN, PLAIN, 200, 300, 600, False, 1)]
    if source == "gemm_mx":
        return [
            _gemm("gemm_mx", MXFP8_ROWS, MXFP8_ROWS, 200, 300, 1248, False, 1),
            _gemm("gemm_mx_fp4", MXFP8_ROWS, MXFP4_ROWS, 200, 300, 1248, False, 1),
        ]
    if source == "gemm_vec":
        return [
            _gemm("gemm_fp8_scaled", FP8_ROWS, FP8_TILES, 200, 300, 704, True, 128),
            _gemm("gemm_fp8_scaled", FP8_ROWS, FP8_ROWS, 100, 121, 704, False, 1),
            _gemm("gemm_bf16_add", PLAIN, PLAIN, 200, 300, 600, True, 1),
            _gemm("gemm_mx_fp4_add", MXFP8_ROWS, MXFP4_ROWS, 100, 121, 704, True, 1),
        ]
    if source == "group_index":
        return _layout()
    if source == "swiglu":
        return [_activation(form) for form in ("", "fp8_1x128", "mxfp8")]
    if source in asc_attention.NUMBERS:
        return [Scenario(*parts) for parts in asc_attention.launches(source)]
    return [_reduce()]


def _judge_exchange(sim: SimDriver, mutant: int) -> tuple[bool, str]:
    try:
        attempts(sim, mutant)
    except DriverError as error:
        return True, str(error).split(": ", 2)[-1].splitlines()[0]
    except AssertionError:
        return True, "wrong result"
    return False, "survived"


def judge(device: AscendDevice, source: str, mutant: int) -> tuple[bool, str]:
    """(caught, how) of one mutant; mutant 0 is the correct kernel."""
    if source == "ep_exchange":
        return _judge_exchange(device.raw_driver, mutant)  # type: ignore[arg-type]
    code = device.executable(source, (f"-DDEEPINFER_MUTANT={mutant}",))
    for policy in (0, 1):
        device.raw_driver.set_option("policy", policy)  # type: ignore[attr-defined]
        for scenario in scenarios(source):
            try:
                code.launch(
                    scenario.entry, (scenario.grid, 1, 1), (1, 1, 1), scenario.args, stream=device.current_stream()
                )
            except DriverError as error:
                return True, str(error).split(": ", 2)[-1].splitlines()[0]
            if not scenario.right():
                return True, "wrong result"
            if device.raw_driver.warnings():  # type: ignore[attr-defined]
                return True, "warning: " + device.raw_driver.warnings()[0]  # type: ignore[attr-defined]
    return False, "survived"


def score() -> tuple[int, int, list[tuple[str, int]]]:
    """(caught, all, survivors) over all mutants, one line printed for each."""
    device, caught, survivors = open_simulated(0), 0, []
    with device.raw_driver.options(policy=0, seed=1, deadline_s=10, strict=1):  # type: ignore[attr-defined]
        for source, numbers in NUMBERS.items():
            if judge(device, source, 0)[0]:
                raise SystemExit(f"{source}: the correct kernel fails: {judge(device, source, 0)[1]}")
            for number in numbers:
                found, how = judge(device, source, number)
                caught += found
                survivors += [] if found else [(source, number)]
                print(f"{source:12} {number:3}  {'caught  ' if found else 'SURVIVED'}  {how[:150]}", flush=True)
    return caught, caught + len(survivors), survivors


def _commit() -> str:
    """The last commit of this backend, with "+" when its files have changed since."""
    here = Path(__file__).parents[1]

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *args, "--", "."], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return git("log", "-1", "--format=%h") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def evidence(path: Path, caught: int, total: int, survivors: list[tuple[str, int]], seconds: float) -> None:
    """Append what a run found to a JSONL file, in place of an older row of its kind."""
    row = {
        "bench": "kernel_mutants",
        "caught": caught,
        "total": total,
        "misses": [f"{source} {number}" for source, number in survivors],
        "clock": "wall",
        "seconds": round(seconds, 1),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
        "device": "Ascend 950 simulator",
        "driver_kind": "simulated",
        "versions": versions(),
    }
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    kept = [line for line in lines if json.loads(line).get("bench") != row["bench"]]
    path.write_text("".join(line + "\n" for line in [*kept, json.dumps(row, sort_keys=True)]), "utf-8")


def main() -> int:
    """Run all mutants; the exit status is the number that survived unexplained."""
    began = time.perf_counter()
    caught, total, survivors = score()
    print(f"mutation score: {caught} of {total} ({100 * caught / total:.1f} %)")
    for survivor in survivors:
        print(f"{survivor}: {ACCEPTED.get(survivor, 'NOT EXPLAINED')}")
    for path in sys.argv[1:]:
        evidence(Path(path), caught, total, survivors, time.perf_counter() - began)
    return sum(survivor not in ACCEPTED for survivor in survivors)


if __name__ == "__main__":
    raise SystemExit(main())
