"""`deepinfer backends`: every backend the core knows or finds, its state, drivers and devices."""

from __future__ import annotations

import argparse
from typing import Any

from deepinfer.cli.output import print_json, print_table
from deepinfer.hal import discovery
from deepinfer.hal.backend import KNOWN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def rows() -> list[dict[str, Any]]:
    """One row per backend and driver."""
    aliases = {entry.name: entry.aliases for entry in KNOWN}
    found: list[dict[str, Any]] = []
    for name in discovery.names():
        state = discovery.state(name)
        base = {"backend": name, "state": state.status, "aliases": ", ".join(aliases.get(name, ()))}
        if state.backend is None:
            found.append({**base, "driver": "", "devices": 0, "remark": state.error, "fix": state.fix or ""})
            continue
        for driver in state.backend.drivers:
            probe = state.backend.probe(driver)
            found.append({
                **base, "driver": driver, "devices": probe.device_count if probe.available else 0,
                "remark": "; ".join(probe.reasons), "fix": probe.fix or "",
            })
    return found


def run(options: argparse.Namespace) -> int:
    if options.json:
        print_json(rows())
    else:
        print_table("Backends", ["backend", "driver", "state", "devices", "aliases", "remark", "fix"], rows())
    return 0
