"""`deepinfer conformance NAME`: runs the conformance suite on a backend and reports."""

from __future__ import annotations

import argparse
from pathlib import Path

from deepinfer.cli.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", help="device specification, e.g. cpu, ascend/sim, cuda_sm90/sim:0")
    parser.add_argument("--quick", action="store_true", help="the quick tier only (minutes)")
    levels = ["L0", "L1", "L2", "L3"]
    parser.add_argument("--level", action="append", choices=levels, help="only these levels (repeatable)")
    parser.add_argument("--op", action="append", help="only ops that match this pattern (repeatable)")
    parser.add_argument("--model", type=Path, help="model directory for level L3")
    parser.add_argument("--report", type=Path, help="write the JSON report here")
    parser.add_argument("--json", action="store_true", help="print the JSON report instead of text")


def run(options: argparse.Namespace) -> int:
    from deepinfer import conformance

    report = conformance.run(
        options.backend, quick=options.quick, report=options.report, levels=options.level, ops=options.op,
        model=options.model,
    )
    if options.json:
        print_json(report.to_json())
    else:
        print(report.text())
    return 0 if report.ok else 1
