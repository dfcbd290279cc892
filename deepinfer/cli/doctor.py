"""`deepinfer doctor`: opens every backend, driver and device that can be opened and compares one op with its reference.

A backend that is simply not there is no failure; one that says it is available but cannot do the op is.
"""

from __future__ import annotations

import argparse
import platform
from typing import Any

import torch

import deepinfer
from deepinfer.cli.output import print_json, print_table
from deepinfer.conformance.compare import close
from deepinfer.errors import DeepInferError
from deepinfer.hal import Device, discovery, plugin, use_backend
from deepinfer.registry import Op, get_spec

SMOKE = "norm.rms_norm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--backend", help="check this backend only (name, alias or full specification)")


def versions() -> dict[str, str]:
    """What a bug report needs."""
    return {
        "deepinfer": deepinfer.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
    }


def smoke(device: Device) -> list[str]:
    """Problems of the smoke op on `device`, compared with its float64 reference."""
    spec = get_spec(SMOKE)
    case = next(case for case in spec.cases() if "quick" in case.tags and "edge" not in case.tags)
    args = case.build()
    values = [device.to_device(v) if isinstance(v, torch.Tensor) else v for v in args.values()]
    with use_backend(device):
        results = Op(spec)(*values)
    problems: list[str] = []
    for name, got, wanted in zip(spec.returns, results, spec.reference(args), strict=True):
        problems += close(name, device.to_host(got), wanted, spec.tolerance(args, name))
    return problems


def check(spec: str) -> dict[str, Any]:
    """Open one device and run the smoke op."""
    try:
        device = deepinfer.device(spec)
        problems = smoke(device)
    except Exception as error:  # whatever a backend raises is its result, not the doctor's end
        remark = str(error) if isinstance(error, DeepInferError) else f"{type(error).__name__}: {error}"
        return {"device": spec, "result": "FAIL", "name": "", "arch": "", "kind": "", "version": "", "remark": remark}
    fallback = device.statistics.get(f"fallback:{SMOKE}", 0)
    remark = "; ".join(problems) or (f"{SMOKE} on the portable tier" if fallback else f"{SMOKE} equals its reference")
    return {
        "device": device.spec, "result": "FAIL" if problems else "PASS", "name": device.props.name,
        "arch": device.props.arch, "kind": device.props.kind.name.lower(),
        "version": plugin.probe(discovery.load(device.backend), device.driver).version, "remark": remark,
    }


def check_all(specs: list[str]) -> list[dict[str, Any]]:
    """One row per device; simulated devices of one driver and architecture are alike, so only the first is checked."""
    rows: list[dict[str, Any]] = []
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for spec in specs:
        key = _simulated_kind(spec)
        if key is not None and key in first:
            first[key]["alike"] += 1
            continue
        rows.append({**check(spec), "alike": 0})
        if key is not None:
            first[key] = rows[-1]
    for row in rows:
        row["remark"] += f" (and {row['alike']} more devices alike)" if row["alike"] else ""
    return rows


def _simulated_kind(spec: str) -> tuple[str, str] | None:
    """(driver, architecture) of a simulated device; None for others and for those that do not open."""
    try:
        device = deepinfer.device(spec)
    except DeepInferError:
        return None
    return (f"{device.backend}/{device.driver}", device.props.arch) if device.simulated else None


def absent() -> list[dict[str, Any]]:
    """Backends and drivers that offer no device, with their reasons."""
    found: list[dict[str, Any]] = []
    for name in discovery.names():
        state = discovery.state(name)
        if state.backend is None:
            result = "FAIL" if state.status == "failed" else "-"
            found.append({"device": name, "result": result, "remark": state.error, "fix": state.fix or ""})
            continue
        for driver in state.backend.drivers:
            probe = plugin.probe(state.backend, driver)
            if not probe.available:
                label = f"{name}/{driver}" if driver else name
                remark = "; ".join(probe.reasons)
                found.append({"device": label, "result": "-", "remark": remark, "fix": probe.fix or ""})
    return found


def run(options: argparse.Namespace) -> int:
    if options.backend is not None:
        rows, missing = [check(options.backend)], []
    else:
        rows, missing = check_all(deepinfer.devices()), absent()
    failed = any(row["result"] == "FAIL" for row in [*rows, *missing])
    if options.json:
        print_json({"versions": versions(), "devices": rows, "unavailable": missing, "ok": not failed})
        return int(failed)
    print_table("Versions", ["what", "version"], [{"what": k, "version": v} for k, v in versions().items()])
    print_table("Devices", ["device", "result", "name", "arch", "kind", "version", "remark"], rows)
    if missing:
        print_table("Not available", ["device", "result", "remark", "fix"], missing)
    return int(failed)
