"""Two buffers and two threads per rank at once, outstanding dispatches, and many rounds without a race."""

from __future__ import annotations

import threading

import torch

import deepinfer
from deepinfer.errors import UnsupportedError
from deepinfer.ops.deep_ep import ExpertBuffer, LocalGroup, Placement


def _round_trip(buffer, seed, layout):
    """Dispatch random rows, return them unchanged, check that each came back once per used slot."""
    generator = torch.Generator().manual_seed(seed)
    tokens = int(torch.randint(0, buffer.geometry.max_tokens + 1, (1,), generator=generator))
    x = torch.randint(-9, 10, (tokens, buffer.geometry.hidden), generator=generator).float()
    ids = torch.randint(-1, buffer.geometry.num_experts, (tokens, buffer.geometry.top_k), generator=generator)
    rows, _, _, handle = buffer.dispatch(x, ids, layout=layout)
    y = buffer.combine(rows, handle)
    homes = torch.where(ids < 0, -1, ids // buffer.geometry.local_slots)
    times = [(line >= 0).sum() if layout == "experts" else len(set(line.tolist()) - {-1}) for line in homes]
    return torch.equal(y, x * torch.tensor(times, dtype=torch.float32).reshape(-1, 1))


def test_two_buffers_in_two_threads_per_rank():
    group = LocalGroup(3)

    def step(rank):
        first = ExpertBuffer(group, 8, 16, 6, 3, torch.float32)
        second = ExpertBuffer(group, 5, 4, 9, 2, torch.float32)
        good = []

        def work(buffer, layout):
            with group.bind(rank):
                good.append(all(_round_trip(buffer, 100 * rank + i, layout) for i in range(15)))

        threads = [
            threading.Thread(target=work, args=entry) for entry in ((first, "experts"), (second, "tokens"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first.close()
        second.close()
        return good

    assert group.run(step) == [[True, True]] * 3


def test_outstanding_dispatches_may_be_combined_in_any_order_and_twice():
    group = LocalGroup(2)

    def step(rank):
        with ExpertBuffer(group, 4, 8, 4, 2, torch.float32) as buffer:
            held = []
            for i in range(4):
                x = torch.full((i, 8), rank + 10.0 * i)
                held.append((x, *buffer.dispatch(x, torch.tensor([0, 3]).repeat(i, 1), layout="experts")))
            for x, rows, _, _, handle in [*reversed(held), held[2]]:
                assert torch.equal(buffer.combine(rows, handle), x * 2)

    group.run(step)


def test_results_do_not_depend_on_timing():
    group = LocalGroup(4)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 16, 32, generator=generator).bfloat16()
    ids = torch.randint(0, 8, (4, 16, 4), generator=generator)

    def step(rank):
        pauses = torch.Generator().manual_seed(rank)
        found = []
        with ExpertBuffer(group, 16, 32, 8, 4) as buffer:
            for _ in range(8):
                threading.Event().wait(float(torch.rand(1, generator=pauses)) * 2e-3)
                rows, local, _, handle = buffer.dispatch(x[rank], ids[rank], layout="experts", alignment=4)
                found.append((rows, local, buffer.combine(rows, handle)))
        return all(torch.equal(a, b) for entry in found for a, b in zip(entry, found[0], strict=True))

    assert group.run(step) == [True] * 4


def test_a_new_placement_takes_effect_between_calls():
    group = LocalGroup(2)

    def step(rank):
        with ExpertBuffer(group, 4, 8, 2, 1, torch.float32, placement=Placement.of(2, [0, 1])) as buffer:
            x, ids = torch.full((4, 8), float(rank)), torch.zeros(4, 1, dtype=torch.int32)
            before = buffer.dispatch(x, ids)[3].num_rows
            buffer.placement = Placement.of(2, [1, 0])
            return before, buffer.dispatch(x, ids)[3].num_rows

    assert group.run(step) == [(8, 0), (0, 8)]


def test_a_buffer_may_be_used_on_a_thread_with_another_device():
    """Ops of a buffer run on its own device, wherever the call comes from."""
    group = LocalGroup(1, ["null"])
    with group.bind(0):
        buffer = ExpertBuffer(group, 2, 4, 2, 1, torch.float32)
    before = buffer.device.statistics.get("fallback:deep_ep.send_plan", 0)
    with deepinfer.use_backend("cpu"):
        x = torch.ones(2, 4, requires_grad=True)
        rows, _, _, handle = buffer.dispatch(x, torch.tensor([[0], [1]]), layout="experts")
        y = buffer.combine(rows, handle)
    assert torch.equal(y, torch.ones(2, 4))
    assert not y.requires_grad
    assert buffer.device.statistics["fallback:deep_ep.send_plan"] == before + 1
    buffer.close()


def test_ranks_inherit_the_callers_policies():
    group = LocalGroup(2, ["null", "null"])

    def step(rank):
        with ExpertBuffer(group, 2, 4, 2, 1, torch.float32) as buffer:
            buffer.dispatch(torch.ones(2, 4), torch.tensor([[0], [1]]))

    with deepinfer.fallback("error"):
        assert all(isinstance(entry.error, UnsupportedError) for entry in group.outcomes(step))


def test_mailboxes_are_dropped_when_all_ranks_have_them():
    group = LocalGroup(3)
    group.run(lambda rank: [ExpertBuffer(group, 1, 1, 3, 1).close() for _ in range(3)])
    assert group._boxes == {}
