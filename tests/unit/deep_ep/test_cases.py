"""Every listed case on the cpu backend, and proof that a case can fail."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.deep_ep import local
from deepinfer.ops.deep_ep.cases import ep_cases
from deepinfer.ops.deep_ep.transport import Incoming

CASES = ep_cases()
QUICK = [case for case in CASES if "quick" in case.tags]
FULL = [case for case in CASES if "full" in case.tags]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.id)
def test_quick_case(case):
    assert case.run("cpu") == []


@pytest.mark.long
@pytest.mark.parametrize("case", FULL, ids=lambda case: case.id)
def test_full_case(case):
    assert case.run("cpu") == []


def test_ids_are_unique_and_there_are_enough():
    assert len({case.id for case in CASES}) == len(CASES)
    assert len(CASES) >= 150


def test_cases_are_deterministic():
    case = QUICK[3]
    first, second = case.inputs(), case.inputs()
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.topk_idx, other.topk_idx)
        assert torch.equal(one.x, other.x)


def test_bench_reports_each_repeat():
    case = dataclasses.replace(QUICK[0], tags=frozenset({"bench"}))
    times = case.bench("cpu", repeats=3)
    assert set(times) == {"dispatch", "combine"}
    assert all(len(values) == 3 and min(values) > 0 for values in times.values())


def _mutate(monkeypatch, change):
    """Let every exchange of more than the hello go through `change(transport, incoming)`."""
    plain = local.LocalTransport.exchange

    def exchange(self, out, deadline):
        incoming = plain(self, out, deadline)
        return incoming if not out.planes else change(self, out, incoming)

    monkeypatch.setattr(local.LocalTransport, "exchange", exchange)


def _swap_last_rows(transport, out, incoming):
    planes = [plane.clone() for plane in incoming.planes]
    for plane in planes:
        if plane.shape[0] > 1:
            plane[[-1, -2]] = plane[[-2, -1]]
    return Incoming(incoming.counts, tuple(planes))


def _flip_a_bit(transport, out, incoming):
    planes = [plane.clone() for plane in incoming.planes]
    if planes[0].numel():
        planes[0][-1, -1] ^= 1
    return Incoming(incoming.counts, tuple(planes))


def _zero_weights(transport, out, incoming):
    planes = [plane.clone() for plane in incoming.planes]
    if len(planes) > 1 and out.header.operation == "dispatch":
        planes[-1][:, planes[-1].shape[1] // 2 :] = 0
    return Incoming(incoming.counts, tuple(planes))


def _wrong_lane(transport, out, incoming):
    planes = list(incoming.planes)
    if out.header.operation == "dispatch" and planes[-1].numel():
        meta = planes[-1].view(torch.int32).clone()
        half = meta.shape[1] // 2
        meta[:, :half] = meta[:, :half].flip(1)
        planes[-1] = meta.view(torch.uint8)
    return Incoming(incoming.counts, tuple(planes))


@pytest.mark.parametrize("change", [_swap_last_rows, _flip_a_bit, _zero_weights, _wrong_lane])
def test_a_broken_transport_is_caught(monkeypatch, change):
    case = next(c for c in QUICK if c.params["ranks"] == 3 and c.params["layout"] == "experts")
    _mutate(monkeypatch, change)
    try:
        texts = case.run("cpu")
    except InvalidArgument:
        texts = ["ranks disagree about counts"]
    assert texts


def test_rows_written_past_the_valid_ones_are_caught(monkeypatch):
    from deepinfer.ops.deep_ep import portable

    case = next(c for c in QUICK if not c.params["sync"] and c.params["layout"] == "tokens" and c.params["T"] > 3)
    plain = portable._capacity_rows

    def spill(call, capacity):
        results = plain(call, capacity)
        results[0].view(torch.uint8)[-1] = 0
        return results

    monkeypatch.setattr(portable, "_capacity_rows", spill)
    assert any("keep their bytes" in text for text in case.run("cpu"))


@pytest.mark.parametrize("fused", [True, False], ids=["fused-multiply-add", "double"])
def test_another_arithmetic_is_caught(monkeypatch, fused):
    """A wider or fused accumulation changes bits somewhere in the weighted float32 cases."""
    from deepinfer.ops.deep_ep import reduce as reduce_module

    def block(rows, place, unused, weights, bias):
        acc = torch.zeros(place.shape[0], rows.shape[1], dtype=torch.float64) if bias is None else bias.double()
        for lane in range(place.shape[1]):
            for token, row in enumerate(place[:, lane].tolist()):
                if not unused[token, lane]:
                    acc[token] += rows[row].double() * (1.0 if weights is None else weights[row].double())
            acc = acc.float().double() if fused else acc
        return acc.float()

    monkeypatch.setattr(reduce_module, "_block", block)
    chosen = [c for c in QUICK if c.params["dtype"] == "f32" and c.params["weights"] and c.params["hidden"] >= 64]
    assert any(case.run("cpu") for case in chosen)
