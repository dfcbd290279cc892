"""`deepinfer backends`: every backend the core knows or finds, its state, drivers and devices."""

from __future__ import annotations

import argparse
from typing import Any

from deepinfer.cli.output import print_json, print_table
from deepinfer.hal import discovery, plugin
from deepinfer.hal.backend import ARCH_ALIASES, KNOWN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def aliases(name: str) -> list[str]:
    """Every other name that selects backend `name`: the core's, those of architectures, and the backend's own."""
    known = [alias for entry in KNOWN if entry.name == name for alias in entry.aliases]
    known += [alias for alias, target in ARCH_ALIASES.items() if target.backend == name]
    backend = discovery.state(name).backend
    return known + [alias for alias in (backend.aliases if backend else ()) if alias not in known]


def rows() -> list[dict[str, Any]]:
    """One row per backend and driver."""
    found: list[dict[str, Any]] = []
    for name in discovery.names():
        state = discovery.state(name)
        base = {"backend": name, "state": state.status, "aliases": ", ".join(aliases(name))}
        if state.backend is None:
            nothing = {"driver": "", "devices": 0, "version": ""}
            found.append({**base, **nothing, "remark": state.error, "fix": state.fix or ""})
            continue
        for driver in state.backend.drivers:
            probe = plugin.probe(state.backend, driver)
            found.append({
                **base, "driver": driver, "devices": probe.device_count if probe.available else 0,
                "version": probe.version, "remark": "; ".join(probe.reasons), "fix": probe.fix or "",
            })
    return found


def run(options: argparse.Namespace) -> int:
    if options.json:
        print_json(rows())
    else:
        columns = ["backend", "driver", "state", "devices", "version", "aliases", "remark", "fix"]
        print_table("Backends", columns, rows())
    return 0
