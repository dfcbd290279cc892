"""Random traffic on one engine: requests start, stream, are dropped and finish in any order, in pools from the smallest
that holds one of them. Whatever happens, every token and log-probability equals that of the request served alone, to
the bit, and after every step each cache block is accounted for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from deepinfer.engine import LLM, SamplingParams

MAX_LEN = 64
Key = tuple[tuple[int, ...], SamplingParams]
Sample = tuple[list[int], list[float], str | None, int | str | None]


def check_blocks(llm: LLM) -> None:
    """Every block is free or has exactly its users; whoever waits holds nothing; entries describe their blocks."""
    core = llm._parts.core
    pool, scheduler = core.pool, core.scheduler
    users = Counter(block for sequence in scheduler.running for block in sequence.blocks)
    assert [pool.references(block) for block in range(pool.count)] == [users[block] for block in range(pool.count)]
    assert pool.free == pool.count - len(users)
    assert sorted([*pool._empty, *pool._cached, *users]) == list(range(pool.count))
    rows = [sequence.row for sequence in scheduler.running]
    assert len(set(rows)) == len(rows)
    assert sorted([*rows, *scheduler._rows]) == list(range(scheduler.max_sequences))
    for sequence in scheduler.waiting:
        assert (sequence.blocks, sequence.row, sequence.computed) == ([], -1, 0)
    for sequence in scheduler.running:
        assert sequence.pending >= 1
        assert len(sequence.blocks) * pool.page >= sequence.computed
        assert core.table.blocks[sequence.row, : len(sequence.blocks)].tolist() == sequence.blocks


def parameters(r: random.Random) -> SamplingParams:
    greedy = r.random() < 0.3
    options: dict[str, Any] = {
        "max_tokens": r.choice([1, 2, 5, 12]), "ignore_eos": True, "n": r.choice([1, 1, 1, 2, 3]),
        "seed": r.randint(0, 3), "temperature": 0.0 if greedy else r.choice([0.5, 1.0, 3.0]),
        "logprobs": r.choice([None, 0, 2]),
    }  # fmt: skip
    if r.random() < 0.5:
        options |= r.choice([
            {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.9, "min_p": 0.01},
            {"repetition_penalty": 1.3}, {"presence_penalty": 0.5, "frequency_penalty": 0.3},
            {"logit_bias": {3: 2.0, 7: -2.0}}, {"stop_token_ids": list(range(0, 99, 7)), "min_tokens": 1},
        ])  # fmt: skip
    return SamplingParams(**options)


def prompts(r: random.Random) -> list[int]:
    """Prompts that share beginnings in whole and in broken blocks."""
    length = r.choice([1, 3, 4, 8, 9, 16, 23, 40])
    start = [(7 * i) % 99 for i in range(r.choice([0, 4, 8, 13, 20]))]
    return (start + [r.randrange(99) for _ in range(length)])[:length]


@dataclass
class Traffic:
    """Open streams of one engine and what they have delivered."""

    llm: LLM
    alone: Callable[[list[int], SamplingParams], list[Sample]]
    open: list[tuple[Iterator[Any], list[int], SamplingParams, dict[int, list[int]]]] = field(default_factory=list)

    def start(self, r: random.Random) -> None:
        prompt, params = prompts(r), parameters(r)
        stream = self.llm.generate_stream([prompt], params, priority=r.randint(0, 2), cache_salt=r.choice([None, "a"]))
        self.open.append((stream, prompt, params, {index: [] for index in range(params.n)}))

    def advance(self, at: int) -> bool:
        """One increment; False when the stream has ended."""
        stream, prompt, params, got = self.open[at]
        piece = next(stream, None)
        check_blocks(self.llm)
        if piece is None:
            self.open.pop(at)
            assert [got[index] for index in sorted(got)] == [sample[0] for sample in self.alone(prompt, params)]
            return False
        assert piece.error is None
        got[piece.index] += piece.token_ids
        return True

    def drop(self, at: int) -> None:
        stream, prompt, params, got = self.open.pop(at)
        stream.close()  # type: ignore[attr-defined]  # a generator
        check_blocks(self.llm)
        for index, sample in enumerate(self.alone(prompt, params)):
            assert got[index] == sample[0][: len(got[index])]

    def batch(self, r: random.Random) -> None:
        given = [(prompts(r), parameters(r)) for _ in range(r.randint(1, 4))]
        results = self.llm.generate([p for p, _ in given], [s for _, s in given], use_tqdm=False)
        check_blocks(self.llm)
        for (prompt, params), result in zip(given, results, strict=True):
            assert result.error is None
            assert samples(result) == self.alone(prompt, params)


def samples(result: Any) -> list[Sample]:
    return [
        (o.token_ids, [t[i].logprob for i, t in zip(o.token_ids, o.logprobs or [], strict=False)], o.finish_reason,
         o.stop_reason)
        for o in result.outputs
    ]  # fmt: skip


@pytest.fixture(scope="module")
def alone(checkpoints: Callable[..., Path]) -> Iterator[Callable[[list[int], SamplingParams], list[Sample]]]:
    """What a request gives when it is the only one of an engine without a prefix cache, all tokens in one chunk."""
    known: dict[Key, list[Sample]] = {}
    options = {"block_size": 64, "num_blocks": 8, "max_model_len": MAX_LEN, "enable_prefix_caching": False}
    with LLM(checkpoints("v3-groups-yarn"), "cpu", "float32", **options) as llm:

        def get(prompt: list[int], params: SamplingParams) -> list[Sample]:
            key = (tuple(prompt), params)
            if key not in known:
                (result,) = llm.generate([prompt], params, use_tqdm=False)
                known[key] = samples(result)
            return known[key]

        yield get


@pytest.fixture(scope="module")
def engines(checkpoints: Callable[..., Path]) -> Iterator[Callable[[int], LLM]]:
    """Four engines of different pools, used again by every example, so that most meet a cache that others filled."""
    shapes = [(4, 16, 3, 5), (4, 20, 4, 9), (1, 70, 5, 64), (16, 9, 8, 32)]  # block size, blocks, sequences, budget
    made: dict[int, LLM] = {}

    def get(number: int) -> LLM:
        if number not in made:
            page, blocks, rows, budget = shapes[number]
            made[number] = LLM(
                checkpoints("v3-groups-yarn"), "cpu", "float32", block_size=page, num_blocks=blocks, max_num_seqs=rows,
                max_num_batched_tokens=budget, max_model_len=MAX_LEN,
            )  # fmt: skip
        return made[number]

    yield get
    for llm in made.values():
        llm.close()


def run(engines: Callable[[int], LLM], alone: Any, number: int, seed: int, actions: int) -> None:
    r = random.Random(seed)
    llm = engines(number)
    traffic = Traffic(llm, alone)
    for _ in range(actions):
        choice = r.random()
        if (choice < 0.3 and len(traffic.open) < 8) or not traffic.open:
            traffic.start(r)
        elif choice < 0.75:
            traffic.advance(r.randrange(len(traffic.open)))
        elif choice < 0.9:
            traffic.drop(r.randrange(len(traffic.open)))
        else:
            traffic.batch(r)
    while traffic.open:
        traffic.advance(r.randrange(len(traffic.open)))
    assert llm._parts.core.scheduler.idle
    assert llm.statistics()["free_blocks"] == llm.statistics()["blocks"]


@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 3), st.integers(0, 10**6))
def test_random_traffic(engines, alone, number: int, seed: int) -> None:
    run(engines, alone, number, seed, 30)


@pytest.mark.long
@settings(max_examples=200, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 3), st.integers(0, 10**6))
def test_random_traffic_long(engines, alone, number: int, seed: int) -> None:
    run(engines, alone, number, seed, 80)
