"""Runs the cases tagged "bench" on a device and makes rows of the times.

Invariants: the fallback is off, so what is timed is the backend's own kernel; outputs are allocated before timing;
cases tagged "profile:hardware" run on hardware alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepinfer.bench import ceilings as ceiling
from deepinfer.bench import rows, timing
from deepinfer.bench.rows import Row
from deepinfer.config import logger
from deepinfer.errors import UnsupportedError, invalid
from deepinfer.hal import current_device, discovery, plugin, use_backend
from deepinfer.hal import device as open_device
from deepinfer.hal.device import Device
from deepinfer.hal.types import DriverKind
from deepinfer.registry import Case, Op, OpSpec, all_specs, fallback, get_spec
from deepinfer.registry.dispatch import make_call

MAX_SETS = 32
HOST_CACHE = 32 << 20  # bytes assumed for a host that does not tell


def run(
    backend: str | None = None,
    *,
    ops: Iterable[str] | None = None,
    cases: Iterable[str] | None = None,
    state: str = "sust",
    out: str | Path | None = None,
    ceilings: str | Path | None = None,
    max_seconds: float = math.inf,
    progress: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Measure and return rows (fields in `deepinfer.bench.rows.FIELDS`).

    Args:
        backend: name[/driver][:index]; None = the current device.
        ops, cases: shell patterns (or families) that limit what is measured; None = everything tagged "bench".
        state: "sust" or "cool", see `deepinfer.bench.timing`.
        out: JSONL file that the rows are appended to as they are made.
        ceilings: JSON file of ceilings; None = measure them first.
        max_seconds: a case whose first call takes longer is left out (and said so in the log).
        progress: called with each row.

    Returns:
        The rows in the order of the specs: times in microseconds, bytes and operations per second as in `FIELDS`.

    Raises:
        InvalidArgument: unknown state, or nothing matches the patterns.
        BackendUnavailable: the device cannot be opened.

    >>> rows = run("cpu", ops=["norm.rms_norm"], out="rows.jsonl")  # doctest: +SKIP
    """
    if state not in rows.STATES:
        raise invalid("state", state, f"must be one of {rows.STATES}", nearest="'sust'")
    device = open_device(backend) if backend else current_device()
    chosen = list(select(device, ops, cases))
    if not chosen:
        raise invalid("ops", (ops, cases), "must match at least one case tagged 'bench'", nearest="'deep_gmm.*'")
    modelled = timing.clock_of(device) == "model"
    limit = None if modelled else (ceiling.load(ceilings) if ceilings else ceiling.measured(device, state))
    made: list[Row] = []
    for case in chosen:
        row = _row(device, case, state, limit, max_seconds)
        if row is None:
            continue
        made.append(row)
        if out is not None:
            rows.append(out, [row])
        if progress is not None:
            progress(row)
    return made


def select(device: Device, ops: Iterable[str] | None, cases: Iterable[str] | None) -> Iterator[Case]:
    """Bench cases that match, in the order of the specs."""
    hardware = device.props.kind is DriverKind.HARDWARE
    op_patterns, case_patterns = _patterns(ops), _patterns(cases)
    for spec in all_specs():
        if not any(fnmatchcase(spec.name, pattern) or spec.family == pattern for pattern in op_patterns):
            continue
        for case in spec.cases():
            wanted = "bench" in case.tags and (hardware or "profile:hardware" not in case.tags)
            if wanted and any(fnmatchcase(case.id, pattern) for pattern in case_patterns):
                yield case


def _patterns(given: Iterable[str] | None) -> tuple[str, ...]:
    return ("*",) if given is None else tuple(given)


def _row(
    device: Device, case: Case, state: str, limit: ceiling.Ceilings | None, max_seconds: float
) -> Row | None:
    spec = get_spec(case.op)
    op = Op(spec)
    args = case.build()
    unit = ceiling.unit_of(args)
    with use_backend(device), fallback("error"):
        sets = _input_sets(device, spec, args)
        try:
            kernel = _require_native(op, device, sets[0])
        except UnsupportedError as refusal:
            logger.warning("bench: %s %s is left out: %s", case.op, case.id, refusal)
            return None
        start = time.perf_counter()
        outs = op(*sets[0])
        device.synchronize()
        if time.perf_counter() - start > max_seconds:
            logger.warning("bench: %s %s is left out: a call takes more than %g s", case.op, case.id, max_seconds)
            return None
        sample = timing.measure(device, [partial(op, *one, out=outs) for one in sets], state)
        call = make_call(spec, sets[0], (None,) * len(spec.returns), device.torch_device)
    return _fields(device, case, kernel, sample, state, spec.cost(call), limit, unit)


def _require_native(op: Op, device: Device, args: tuple[Any, ...]) -> str:
    entry = op.resolve(device, args)
    if entry.is_fallback:
        raise UnsupportedError("no kernel of the backend takes it", entry.reasons)
    return str(entry.kernel.name)


def _input_sets(device: Device, spec: OpSpec, args: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Copies of the arguments, as many as it takes to exceed the last-level cache, at most `MAX_SETS`."""
    nbytes = sum(value.nbytes for value in args.values() if isinstance(value, torch.Tensor))
    cache = device.props.l2_bytes or (HOST_CACHE if device.props.kind is DriverKind.HOST else 0)
    count = 1 if not nbytes else min(MAX_SETS, 1 + 2 * cache // nbytes)
    return [tuple(_fresh(device, args[param.name]) for param in spec.params) for _ in range(count)]


def _fresh(device: Device, value: Any) -> Any:
    return device.to_device(value).clone() if isinstance(value, torch.Tensor) else value


def _fields(
    device: Device, case: Case, kernel: str, sample: timing.Sample, state: str, cost: Any,
    limit: ceiling.Ceilings | None, unit: str,
) -> Row:
    median = sample.quantile(0.5)
    extra = {device.backend: plugin.probe(discovery.load(device.backend), device.driver).version}
    if device.props.kind is DriverKind.HOST:
        extra["threads"] = str(torch.get_num_threads())
    return {
        "op": case.op, "params": dict(case.params), "case": case.id, "kernel": kernel, "device": device.props.name,
        "driver_kind": device.props.kind.name.lower(), "clock": sample.clock, "state": state,
        "median_us": round(median, 3), "p10": round(sample.quantile(0.1), 3), "p90": round(sample.quantile(0.9), 3),
        "n": len(sample.times_us), "gbps": round(cost.nbytes / median / 1e3, 3),
        "tflops": round(cost.flops / median / 1e6, 4),
        "roofline": None if limit is None else round(limit.floor_us(cost, unit) / median, 4),
        "commit": rows.commit(), "versions": rows.versions(extra),
    }
