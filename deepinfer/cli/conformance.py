"""`deepinfer conformance NAME`: runs the conformance suite on a backend and reports."""

from __future__ import annotations

import argparse
from fnmatch import fnmatchcase
from pathlib import Path

from deepinfer.cli.output import check_target, print_json
from deepinfer.errors import invalid


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", help="device specification, e.g. cpu, ascend/sim, cuda_sm90/sim:0")
    parser.add_argument("--quick", action="store_true", help="the quick tier only (minutes)")
    levels = ["L0", "L1", "L2", "L3"]
    parser.add_argument("--level", action="append", choices=levels, help="only these levels (repeatable)")
    parser.add_argument("--op", action="append", help="only ops that match this pattern (repeatable)")
    shared = "processes that share the checks (default: one per usable core, up to 8; one on hardware)"
    parser.add_argument("--jobs", type=int, metavar="N", help=shared)
    parser.add_argument("--model", type=Path, help="model directory for level L3")
    parser.add_argument("--report", type=Path, help="write the JSON report here")
    parser.add_argument("--json", action="store_true", help="print the JSON report instead of text")


def _check_pattern(pattern: str) -> None:
    """A pattern that limits the run to nothing is a slip of the pen, not a wish."""
    from deepinfer.conformance.op_items import EXCHANGE
    from deepinfer.registry import spec_names

    ops = [*spec_names(), EXCHANGE]
    if not any(fnmatchcase(name, pattern) or name.partition(".")[0] == pattern for name in ops):
        raise invalid("--op", pattern, f"must match one of {', '.join(ops)}")


def run(options: argparse.Namespace) -> int:
    from deepinfer import conformance

    check_target("--report", options.report)
    for pattern in options.op or ():
        _check_pattern(pattern)
    report = conformance.run(
        options.backend, quick=options.quick, report=options.report, levels=options.level, ops=options.op,
        model=options.model, jobs=options.jobs,
    )
    if options.json:
        print_json(report.to_json())
    else:
        print(report.text())
    return 0 if report.ok else 1
