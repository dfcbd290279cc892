"""Scheduler, block pool and prefix index without a model: random work, every invariant after every step."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.batch import BatchTable
from deepinfer.engine.blocks import BlockPool
from deepinfer.engine.outputs import RequestMetrics, RequestOutput
from deepinfer.engine.params import SamplingParams
from deepinfer.engine.prefix import PrefixIndex, root_key
from deepinfer.engine.request import Request, Sequence, Status
from deepinfer.engine.scheduler import Scheduler


class Bench:
    """A scheduler with stand-in tokens: the next token is a function of the tokens before it."""

    def __init__(self, blocks: int, page: int, rows: int, budget: int, hash_function=None) -> None:
        self.index = PrefixIndex(page, hash_function) if hash_function else PrefixIndex(page)
        self.pool = BlockPool(blocks, page, self.index)
        self.table = BatchTable(rows, blocks, page)
        self.scheduler = Scheduler(self.pool, self.table, rows, budget)
        self.requests: list[Request] = []
        admit = self.scheduler._admit

        def checked_admit() -> None:
            before = [r.output.metrics.preemptions for r in self.requests]
            admit()
            assert before == [r.output.metrics.preemptions for r in self.requests], "admission drove a sequence out"

        self.scheduler._admit = checked_admit
        self.content: dict[int, list] = {}  # block -> what was written, by offset

    def add(self, prompt: list[int], new: int, priority: int = 0) -> Sequence:
        order = len(self.requests)
        output = RequestOutput(order, None, prompt, [], RequestMetrics(time.monotonic()))
        params = SamplingParams(max_tokens=new)
        request = Request(
            order, prompt, params, output, frozenset(), frozenset(), 0, len(prompt) + new, priority, root_key({})
        )
        request.sequences = [Sequence(request, 0, None)]
        self.requests.append(request)
        self.scheduler.add(request.sequences[0])
        return request.sequences[0]

    def step(self) -> dict[Sequence, int]:
        plan = self.scheduler.schedule()
        self.check_plan(plan)
        page = self.pool.page
        for sequence, count in plan.items():
            for position in range(sequence.computed, sequence.computed + count):
                block = sequence.blocks[position // page]
                self.content.setdefault(block, [None] * page)[position % page] = tuple(sequence.tokens[: position + 1])
        for sequence, count in plan.items():
            for position in range(sequence.computed + count):  # what attention would read
                found = self.content[sequence.blocks[position // page]][position % page]
                assert found == tuple(sequence.tokens[: position + 1]), f"position {position} reads foreign rows"
        done = [s for s, count in plan.items() if count == s.pending]
        self.scheduler.settle(plan.items())
        for sequence in done:
            sequence.tokens.append((sum(sequence.tokens) * 7 + len(sequence.tokens)) % 5)
            if len(sequence.tokens) >= sequence.request.limit:
                self.scheduler.finish(sequence)
        self.check_blocks()
        return plan

    def check_plan(self, plan: dict[Sequence, int]) -> None:
        counts = list(plan.values())
        assert sum(counts) <= self.scheduler.max_tokens
        assert len(plan) <= self.scheduler.max_sequences
        assert counts == sorted(counts, key=lambda count: count > 1), "single tokens come first"
        for sequence, count in plan.items():
            assert 1 <= count <= sequence.pending
            assert sequence.status is Status.RUNNING
            assert len(sequence.blocks) * self.pool.page >= sequence.computed + count
            row = self.table.blocks[sequence.row, : len(sequence.blocks)]
            assert row.tolist() == sequence.blocks

    def check_blocks(self) -> None:
        users = Counter(block for s in self.scheduler.running for block in s.blocks)
        assert [users[b] for b in range(self.pool.count)] == [self.pool.references(b) for b in range(self.pool.count)]
        assert self.pool.free == self.pool.count - len(users)
        rows = [s.row for s in self.scheduler.running]
        assert len(set(rows)) == len(rows)
        assert all(not s.blocks and s.row == -1 and s.computed == 0 for s in self.scheduler.waiting)


work = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(work, st.integers(1, 7), st.integers(0, 12), st.integers(1, 5), st.integers(0, 20), st.integers(0, 3))
def test_every_request_finishes_and_no_block_is_lost(jobs, page, extra, rows, slack, shared) -> None:
    run_jobs(jobs, page, extra, rows, slack, shared)


@pytest.mark.long
@settings(max_examples=1500, deadline=None)
@given(work, st.integers(1, 7), st.integers(0, 12), st.integers(1, 5), st.integers(0, 20), st.integers(0, 3))
def test_scheduler_long(jobs, page, extra, rows, slack, shared) -> None:
    run_jobs(jobs, page, extra, rows, slack, shared)


def run_jobs(jobs, page: int, extra: int, rows: int, slack: int, shared: int, hash_function=None) -> Bench:
    """Pools from the smallest that holds the largest request; prompts share beginnings to provoke reuse."""
    largest = max(-(-(prompt + new) // page) for prompt, new, _ in jobs)
    bench = Bench(largest + extra, page, rows, rows + slack, hash_function)
    sequences = []
    for number, (prompt, new, priority) in enumerate(jobs):
        tokens = [(number if i >= shared * page else 0) + i % 3 for i in range(prompt)]
        sequences.append(bench.add(tokens, new, priority))
    total = sum(prompt + new for prompt, new, _ in jobs)
    for _ in range(50 * total + 1000):
        if bench.scheduler.idle:
            break
        assert bench.step(), "an empty step while work is left"
    assert bench.scheduler.idle, "no progress"
    assert bench.pool.free == bench.pool.count
    for sequence in sequences:
        expected = list(sequence.request.prompt_ids)
        while len(expected) < sequence.request.limit:
            expected.append((sum(expected) * 7 + len(expected)) % 5)
        assert sequence.tokens == expected, "preemption or reuse changed the tokens"
    return bench


def test_constant_hash_never_gives_foreign_rows() -> None:  # C72
    jobs = [(30, 6, 0), (30, 6, 0), (17, 9, 0), (30, 3, 0), (9, 9, 0)]
    for shared in (0, 1, 3):
        run_jobs(jobs, 4, 6, 3, 5, shared, hash_function=lambda data: b"same")


def test_equal_blocks_behind_different_prefixes_are_different() -> None:  # C72
    bench = Bench(64, 4, 4, 64, hash_function=lambda data: data[-32:])  # blind to what came before the block
    for prompt in ([1] * 4 + [5] * 5, [2] * 4 + [7] * 5, [2] * 4 + [5] * 5):
        last = bench.add(prompt, 1)
        bench.step()
    assert last.request.output.metrics.cached_tokens == 4


def test_a_prefix_is_visible_only_after_its_step() -> None:  # C73
    bench = Bench(64, 4, 4, 64)
    a, b = bench.add([1] * 17, 2), bench.add([1] * 17, 2)
    plan = bench.step()
    assert plan == {a: 17, b: 17}, "two equal prompts of one step must not share what neither has written"
    c = bench.add([1] * 17, 2)
    plan = bench.step()
    assert plan[c] == 1
    assert c.request.output.metrics.cached_tokens == 16


def test_the_last_known_token_is_always_computed() -> None:
    bench = Bench(64, 4, 4, 64)
    bench.add([1] * 16, 1)
    bench.step()
    again = bench.add([1] * 16, 1)
    assert bench.step()[again] == 4


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 40])
def test_hit_length_is_the_prefix_in_whole_blocks(length) -> None:  # C77
    bench = Bench(64, 4, 4, 64)
    bench.add(list(range(length)) + [90] * 3, 1)
    bench.step()
    other = bench.add(list(range(length)) + [91] * 3, 1)
    bench.step()
    assert other.request.output.metrics.cached_tokens == length // 4 * 4


def test_root_fields_are_tagged() -> None:  # C71
    assert root_key({"adapter": "x", "salt": None}) != root_key({"adapter": None, "salt": "x"})


def test_eviction_takes_the_oldest_prefix_from_its_end() -> None:
    bench = Bench(8, 4, 2, 64)
    bench.add([1] * 16, 1)
    bench.step()
    bench.add([2] * 12, 1)
    bench.step()
    while not bench.scheduler.idle:
        bench.step()
    bench.add([3] * 7, 1)  # 2 blocks: one empty one is left, then the last full block of [1] * 16 goes
    bench.step()
    assert len(bench.pool.match(root_key({}), [2] * 12, 12)) == 3
    assert len(bench.pool.match(root_key({}), [1] * 16, 16)) == 3


def test_a_long_prompt_never_stalls_decoding_and_short_prompts_pass_it() -> None:
    bench = Bench(400, 4, 8, 32)
    decoding = bench.add([1, 2], 200)
    bench.step()
    long = bench.add([3] * 1000, 4)
    bench.step()
    short = bench.add([4] * 10, 4)
    for _ in range(3):
        assert bench.step()[decoding] == 1
    assert len(short.tokens) > 10, "the short prompt waits behind the long one"
    assert long.computed >= 4 * 15, "the oldest prompt gets at least half of the budget"


def test_priorities_are_served_first() -> None:
    bench = Bench(64, 4, 1, 16)
    late = bench.add([1] * 4, 4, priority=5)
    early = bench.add([2] * 4, 4, priority=-1)
    bench.step()
    assert early.status is Status.RUNNING
    assert late.status is Status.WAITING


def test_the_victim_loses_the_least_work() -> None:
    bench = Bench(8, 4, 3, 64)
    big, small = bench.add([1] * 15, 20), bench.add([2] * 7, 20)
    while not big.request.output.metrics.preemptions and not small.request.output.metrics.preemptions:
        bench.step()
    assert small.request.output.metrics.preemptions == 1
    assert big.request.output.metrics.preemptions == 0


def test_fork_shares_full_blocks_and_copies_the_last() -> None:
    bench = Bench(16, 4, 4, 64)
    parent = bench.add([1] * 10, 5)
    child = Sequence(parent.request, 1, None)
    parent.request.sequences.append(child)
    bench.step()
    child.tokens = [*parent.tokens[:10], 3]
    source, copy = bench.scheduler.fork(parent, child)
    assert child.blocks[:2] == parent.blocks[:2]
    assert (parent.blocks[2], child.blocks[2]) == (source, copy)
    bench.content[copy] = list(bench.content[source])
    while not bench.scheduler.idle:
        bench.step()
    assert bench.pool.free == 16


def test_releasing_twice_is_an_error() -> None:
    from deepinfer.errors import DeepInferError

    pool = BlockPool(2, 4, None)
    block = pool.take()
    pool.release([block])
    with pytest.raises(DeepInferError, match="released more often"):
        pool.release([block])
