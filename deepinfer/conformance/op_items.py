"""Lists the checks of level L2: every op x case x check, the refusals, and the collective cases of Deep EP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from deepinfer.conformance import op_checks, op_errors
from deepinfer.conformance.item import Breach, Item, Target, require_none
from deepinfer.conformance.op_checks import Check
from deepinfer.conformance.prepared import prepared
from deepinfer.hal.types import Cap
from deepinfer.registry import Case, OpSpec, all_specs
from deepinfer.registry.kernels import candidates

EXCHANGE = "deep_ep.exchange"


def selected(tags: Iterable[str], full: bool, profile_name: str | None) -> bool:
    """Whether a case with these tags runs: quick always, untimed ones in the long tier, profile:NAME when asked for."""
    found = set(tags)
    named = {tag.removeprefix("profile:") for tag in found if tag.startswith("profile:")}
    if named:
        return profile_name in named
    if "quick" in found:
        return True
    return full and ("full" in found or "bench" not in found)


def items(target: Target, ops: Iterable[str] | None = None, profile_name: str | None = None) -> Iterator[Item]:
    """All L2 items for `target`; `ops` limits them to ops by shell pattern or family."""
    patterns = None if ops is None else tuple(ops)
    for spec in all_specs():
        if _asked(patterns, spec.name, spec.family):
            yield from _spec_items(target, spec, profile_name)
    if _asked(patterns, EXCHANGE, "deep_ep"):
        yield from _collective_items(target, profile_name)


def _asked(patterns: tuple[str, ...] | None, name: str, family: str) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) or family == pattern for pattern in patterns)


def _spec_items(target: Target, spec: OpSpec, profile_name: str | None) -> Iterator[Item]:
    cases = [case for case in spec.cases() if selected(case.tags, target.full, profile_name)]
    checks = _checks(target, spec)
    for case in cases:
        for name, check in checks.items():
            yield Item("L2", spec.name, case.id, name, partial(_run, check, case))
    yield from op_errors.items(spec, cases[0] if cases else None)


def _run(check: Check, case: Case, target: Target) -> str | None:
    try:
        return check(prepared(target, case))
    except Breach as breach:
        raise Breach(f"{breach}\n(seed {case.seed})") from None


def _checks(target: Target, spec: OpSpec) -> dict[str, Check]:
    """The checks that can apply to `spec` on this device, so that none has to be skipped."""
    checks = dict(op_checks.ALWAYS)
    if type(spec).poison is not OpSpec.poison:
        checks["poison"] = op_checks.poison
    claims = any(candidate.kernel.batch_invariant for candidate in candidates(target.device, spec.name))
    if claims and type(spec).batch_variants is not OpSpec.batch_variants:
        checks["batch invariance"] = op_checks.invariance
    if target.device.supports(Cap.ASYNC_STREAMS):
        checks["stream"] = op_checks.stream
    if target.device.supports(Cap.GRAPHS):
        checks["graph"] = op_checks.graph
    return checks


def _collective_items(target: Target, profile_name: str | None) -> Iterator[Item]:
    try:
        from deepinfer.ops.deep_ep.cases import ep_cases
    except ModuleNotFoundError as error:
        if error.name != "deepinfer.ops.deep_ep.cases":
            raise
        return
    for case in ep_cases():
        if selected(case.tags, target.full, profile_name):
            yield Item("L2", case.op, case.id, "reference", partial(_run_collective, case))


def _run_collective(case: Any, target: Target) -> str:
    require_none(case.run(target.device))
    return "LocalGroup"
