"""Grouping rows on several blocks, under every schedule, against the references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinfer_ascend950.drivers.sim import SimDriver
from deepinfer_ascend950.ops.index import MAX_GROUPS, ROWS_PER_BLOCK

import deepinfer
from deepinfer import fallback
from deepinfer.errors import UnsupportedError
from deepinfer.ops.deep_ep.geometry import expert_capacity
from deepinfer.registry import Op, get_spec


def check(name: str, args: dict[str, Any]) -> None:
    spec = get_spec(name)
    with deepinfer.use_backend("ascend950/sim"), fallback("error"):
        found = Op(spec)(*(args[param.name] for param in spec.params))
    for label, got, wanted in zip(spec.returns, found, spec.reference(args), strict=True):
        assert torch.equal(got.long(), wanted.long()), label


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize(("rows", "groups", "alignment"), [(3 * ROWS_PER_BLOCK + 7, 70, 16), (900, 300, 1), (5, 3, 4)])
def test_groups_of_rows(sim: SimDriver, rows: int, groups: int, alignment: int, policy: int) -> None:
    sim.set_option("policy", policy)
    g = torch.Generator().manual_seed(rows)
    ids = torch.randint(-1, groups + 1, (rows, 2), generator=g)[:, 0]  # strided, some of no group
    check("deep_gmm.group_rows", {"ids": ids, "groups": groups, "alignment": alignment})


@pytest.mark.parametrize("policy", [0, 1])
def test_pairs_by_expert_and_slots_by_rank(sim: SimDriver, policy: int) -> None:
    sim.set_option("policy", policy)
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(-1, 12, (4, 700), generator=g).int().t()
    args = {"ids": ids, "experts": 11, "alignment": 8, "capacity": expert_capacity(700, 4, 11, 8) + 5}
    check("deep_ep.expert_layout", args)
    check("deep_ep.send_plan", {"slots": ids.long() * 3, "ranks": 4, "slots_per_rank": 9})


def test_the_most_groups_and_one_more() -> None:
    ids = torch.tensor([MAX_GROUPS - 1, 0, MAX_GROUPS - 1])
    check("deep_gmm.group_rows", {"ids": ids, "groups": MAX_GROUPS, "alignment": 1})
    with pytest.raises(UnsupportedError, match=f"{MAX_GROUPS + 1} groups"):
        check("deep_gmm.group_rows", {"ids": ids, "groups": MAX_GROUPS + 1, "alignment": 1})
