"""The suite as pytest tests. Run by `pytest --pyargs deepinfer.conformance --backend NAME`.

One test per op case (its checks share the case's data and run together), one per check elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import pytest
import torch

from deepinfer.conformance import plugin, suite
from deepinfer.conformance.item import Item, Target


def _share_cores(config: pytest.Config) -> None:
    """Under xdist each worker takes its share of the cores, so that workers do not fight over them."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


@lru_cache(maxsize=1)
def _target(backend: str, full: bool, model: str | None, toml: str | None) -> Target:
    return suite.target(backend, full=full, model=model, profile=Path(toml) if toml else None)


def _chosen(config: pytest.Config) -> Target:
    backend = plugin.option(config, "backend")
    if not backend:
        raise pytest.UsageError("--backend NAME is required: name[/driver][:index] of the device to test, e.g. cpu")
    toml = plugin.option(config, "conformance-toml")
    return _target(backend, plugin.option(config, "tier") == "full", plugin.option(config, "model"), toml)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One parameter per item, with the item's id."""
    _share_cores(metafunc.config)
    target = _chosen(metafunc.config)
    levels = (plugin.option(metafunc.config, "levels") or "").split(",")
    ops = plugin.option(metafunc.config, "ops")
    profile_name = plugin.option(metafunc.config, "case-profile")
    items = suite.collect(target, levels, ops.split(",") if ops else None, profile_name)
    groups = [tuple(group) for _, group in groupby(items, _group)]
    metafunc.parametrize("items", groups, ids=[_group(group[0]) for group in groups])


def _group(item: Item) -> str:
    return f"{item.level}/{item.subject}/{item.case}" if item.level == "L2" else item.id


def test_items(
    items: tuple[Item, ...], pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    """Runs the checks of one case of the suite."""
    results = [suite.execute(item, _chosen(pytestconfig)) for item in items]
    record_property(plugin.RESULT, [asdict(result) for result in results])
    broken = [f"{result.id}\n{result.message}" for result in results if not result.ok]
    if broken:
        pytest.fail("\n".join(broken), pytrace=False)
    if all(result.outcome == "skipped" for result in results):
        pytest.skip(results[0].message)
    if all(result.outcome == "expected_failure" for result in results):
        pytest.xfail(results[0].message)
