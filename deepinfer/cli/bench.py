"""`deepinfer bench run | compare | picture`: microbenchmarks from the op specifications."""

from __future__ import annotations

import argparse
from pathlib import Path

from deepinfer.cli.output import check_target, print_json, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    run_parser = actions.add_parser("run", help="measure and write JSONL rows")
    run_parser.add_argument("--backend", help="device specification (default: the automatic choice)")
    run_parser.add_argument("--op", action="append", help="only ops that match this pattern (repeatable)")
    run_parser.add_argument("--state", choices=["sust", "cool"], default="sust", help="thermal state (default sust)")
    run_parser.add_argument("--out", type=Path, help="append the rows to this JSONL file")
    run_parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    compare_parser = actions.add_parser("compare", help="compare two runs; exit status 1 when one got slower")
    compare_parser.add_argument("before", type=Path)
    compare_parser.add_argument("after", type=Path)
    compare_parser.add_argument("--threshold", type=float, default=0.05, help="allowed slowdown (default 0.05 = 5 %%)")
    compare_parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    picture_parser = actions.add_parser("picture", help="draw the roofline share of a run as SVG")
    picture_parser.add_argument("rows", type=Path)
    picture_parser.add_argument("out", type=Path)


def run(options: argparse.Namespace) -> int:
    from deepinfer import bench

    if options.action != "compare":
        check_target("--out", options.out)
    if options.action == "run":
        rows = bench.run(options.backend, ops=options.op, state=options.state, out=options.out)
        columns = ["op", "case", "kernel", "median_us", "p10", "p90", "gbps", "tflops", "roofline"]
        print_json(rows) if options.json else print_table("Benchmark", columns, rows)
        return 0
    if options.action == "compare":
        comparison = bench.compare(options.before, options.after, threshold=options.threshold)
        columns = ["op", "case", "before_us", "after_us", "ratio", "verdict"]
        print_json(comparison.rows) if options.json else print_table("Comparison", columns, comparison.rows)
        return 0 if comparison.ok else 1
    bench.picture(options.rows, options.out)
    print(f"wrote {options.out}")
    return 0
