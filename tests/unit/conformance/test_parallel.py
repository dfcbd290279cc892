"""The suite in several processes: the same results in the same order, and failures that are not lost."""

from __future__ import annotations

import pytest

from deepinfer import conformance
from deepinfer.conformance import parallel, suite
from deepinfer.errors import InvalidArgument


def test_two_processes_give_the_results_of_one() -> None:
    chosen = {"levels": ["L0", "L2"], "ops": ["quant.pack_scales"]}
    seen: list[int] = []
    alone = conformance.run("cpu", **chosen)
    shared = conformance.run("cpu", **chosen, jobs=2, progress=lambda done, total, result: seen.append(total - done))
    assert [(r.id, r.outcome, r.kernel) for r in shared.results] == [(r.id, r.outcome, r.kernel) for r in alone.results]
    assert shared.kernels == alone.kernels
    assert shared.environment["jobs"] == 2
    assert seen == list(range(len(alone.results) - 1, -1, -1))


def test_every_item_is_handed_out_once_and_long_ones_first() -> None:
    items = suite.collect(suite.target("cpu"))
    order = list(parallel.chunks(items))
    assert sorted(number for numbers in order for number in numbers) == list(range(len(items)))
    assert all(len({items[number].subject for number in numbers}) == 1 for numbers in order)
    assert items[order[0][0]].level == "L3"
    homes = {(items[n].subject, items[n].case): set[int]() for n in range(len(items)) if items[n].level == "L2"}
    for home, numbers in enumerate(order):
        for number in numbers:
            homes.get((items[number].subject, items[number].case), set()).add(home)
    assert all(len(found) == 1 for found in homes.values()), "a case is in one process"


def test_fewer_than_one_process_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="jobs"):
        conformance.run("cpu", levels=["L0"], jobs=0)
