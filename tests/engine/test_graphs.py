"""Decode graphs: padding changes nothing, replays give the eager tokens, what cannot be captured is said or refused."""

from __future__ import annotations

import gc
import logging
import re
import weakref
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deepinfer
from deepinfer.engine import LLM, SamplingParams
from deepinfer.engine.batch import BatchTable, PaddedStep, build_step
from deepinfer.engine.graphs import PATIENCE, default_sizes
from deepinfer.engine.host_reads import HostReads
from deepinfer.errors import InvalidArgument, UnsupportedError
from deepinfer.hal import use_backend
from deepinfer.hal.discovery import unregister_backend
from deepinfer.ops.deep_gmm import portable
from tests.engine.recording import RecordingDevice, factory

PAGE, BLOCKS = 4, 24
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], list(range(20, 60)), [6], [5, 3, 5]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=0)


@dataclass(eq=False)
class Running:
    """What a step's input is built from."""

    row: int
    computed: int
    tokens: list[int]


@pytest.fixture(autouse=True)
def device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording device computes in host memory; its portable products read no counts, as on an accelerator."""
    monkeypatch.setattr(portable, "by_group", portable.by_tile)


@pytest.fixture
def recording():
    """Registers the recording backend with the given flaws; returns the name of its device."""

    def make(*flaws: str) -> str:
        deepinfer.register_backend("recording", factory(*flaws))
        return "recording"

    yield make
    unregister_backend("recording")


@pytest.fixture(scope="module")
def model(checkpoints):
    with engine(checkpoints("v3-groups-yarn"), "cpu", block_size=PAGE, num_blocks=BLOCKS, max_model_len=40) as llm:
        yield llm._parts.core.model


def engine(path, device: str, **options) -> LLM:
    shared = {"block_size": 8, "num_blocks": 60, "max_model_len": 80, "max_num_seqs": 8, "seed": 0}
    return LLM(path, device, "float32", **{**shared, **options})


def outcome(llm: LLM, prompts=PROMPTS, params=GREEDY):
    """(tokens, log-probabilities of the chosen ones) per prompt."""
    found = []
    for output in llm.generate(prompts, params, use_tqdm=False):
        assert output.error is None, output.error
        best = output.outputs[0]
        found.append((best.token_ids, [e[t].logprob for e, t in zip(best.logprobs, best.token_ids, strict=True)]))
    return found


def assert_same(found, wanted, bound: float = 5e-5) -> None:
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    for (_, mine), (_, other) in zip(found, wanted, strict=True):
        assert torch.allclose(torch.tensor(mine), torch.tensor(other), rtol=0, atol=bound)


# -- padded steps ----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 10 * PAGE), min_size=1, max_size=4),
    spare=st.integers(0, 5),
    seed=st.integers(0, 2**31 - 1),
)
def test_padding_changes_neither_results_nor_other_rows_of_the_cache(model, lengths, spare, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = BatchTable(len(lengths) + spare, 10, PAGE)
    free = torch.randperm(BLOCKS, generator=generator).tolist()
    order = torch.randperm(len(lengths) + spare, generator=generator).tolist()
    sequences = []
    for row, length in zip(order, lengths, strict=False):
        need = -(-length // PAGE)
        length = min(length, len(free) * PAGE)
        if not length:
            continue
        table.set_blocks(row, 0, [free.pop() for _ in range(min(need, len(free)))])
        tokens = torch.randint(0, 99, (length,), generator=generator).tolist()
        sequences.append(Running(row, length - 1, tokens))
    start = [torch.randn(layer.shape, generator=generator) for layer in model.new_cache(BLOCKS, PAGE)]
    caches = [[layer.clone() for layer in start] for _ in range(2)]
    with use_backend("cpu"), torch.inference_mode():
        plain = build_step(table, dict.fromkeys(sequences, 1), model.device, False)
        padded = PaddedStep(model.device, len(sequences) + spare, table.width(max(len(s.tokens) for s in sequences)))
        padded.fill(table, sequences)
        wanted = model.logits(model.forward(plain, caches[0]))
        found = model.logits(model.forward(padded.step, caches[1]))[: len(sequences)]
    assert torch.equal(found, wanted)  # the cpu's kernels are batch invariant
    written = {table.blocks[s.row, s.computed // PAGE] * PAGE + s.computed % PAGE for s in sequences}
    kept = torch.tensor([slot not in written for slot in range(BLOCKS * PAGE)])
    for before, one, two in zip(start, *caches, strict=True):
        for after in (one, two):
            rows = after.view(-1, after.shape[-1])
            assert torch.equal(rows[kept], before.view(-1, before.shape[-1])[kept])
            assert not torch.equal(rows[~kept], before.view(-1, before.shape[-1])[~kept])
        assert torch.equal(one, two)


def test_a_cleared_step_touches_nothing(model) -> None:
    cache = model.new_cache(BLOCKS, PAGE)
    for layer in cache:
        layer.fill_(7.0)
    with use_backend("cpu"), torch.inference_mode():
        logits = model.logits(model.forward(PaddedStep(model.device, 3, 2).step, cache))
    assert logits.shape == (3, 99)
    assert logits.isfinite().all()
    assert all((layer == 7.0).all() for layer in cache)


def test_refilling_with_fewer_sequences_leaves_nothing_of_the_old_ones(model) -> None:
    table = BatchTable(4, 4, PAGE)
    for row in range(4):
        table.set_blocks(row, 0, [4 * row, 4 * row + 1])
    many = [Running(r, 5, [r] * 6) for r in range(4)]
    reused, fresh = (PaddedStep(model.device, 4, 2) for _ in range(2))
    address = reused.step.tokens.data_ptr()
    reused.fill(table, many)
    assert reused.step.seq_lens.tolist() == [6] * 4
    reused.fill(table, many[1:2])
    fresh.fill(table, many[1:2])
    for name in ("tokens", "positions", "slots", "block_table", "seq_lens", "cu_q"):
        assert torch.equal(getattr(reused.step, name), getattr(fresh.step, name)), name
    assert reused.step.tokens.data_ptr() == address
    assert reused.step.slots.tolist() == [21, -1, -1, -1]
    assert reused.step.seq_lens.tolist() == [6, 0, 0, 0]
    reused.clear()
    assert reused.step.slots.tolist() == [-1] * 4


@given(page=st.integers(1, 9), blocks=st.integers(1, 70), data=st.data())
@settings(max_examples=50, deadline=None)
def test_every_width_is_foreseen(page, blocks, data) -> None:
    table = BatchTable(1, blocks, page)
    longest = data.draw(st.integers(1, blocks * page))
    width = table.width(longest)
    assert width in table.widths()
    assert width * page >= longest
    assert table.widths() == sorted(set(table.widths()))


@given(st.integers(1, 1000))
def test_default_sizes_pad_by_less_than_half(most) -> None:
    sizes = default_sizes(most)
    assert sizes[-1] == most
    assert list(sizes) == sorted(set(sizes))
    for count in range(1, most + 1):
        assert next(size for size in sizes if size >= count) < 1.5 * count + 1


# -- replays ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graphs", ["auto", [3, 8], [1, 2, 4, 6]])
def test_replays_give_the_eager_tokens(graphs, checkpoints, recording) -> None:
    path = checkpoints("v3-groups-yarn")
    name = recording()
    with engine(path, name, decode_graphs=False) as llm:
        wanted = outcome(llm)
        assert llm.decode_graphs().mode == "off"
        assert llm.statistics()["graph_steps"] == 0
    with engine(path, name, decode_graphs=graphs) as llm:
        assert_same(outcome(llm), wanted)
        first = llm.decode_graphs()
        assert_same(outcome(llm), wanted)
        report = llm.decode_graphs()
        assert report.reasons == ()
        assert report.replayed > first.replayed > 0
        assert llm.statistics()["graph_steps"] == report.replayed
        assert report.replayed + report.eager.total() == llm.statistics()["steps"]
        if graphs == "auto":
            assert first.eager["before its shape was captured"] >= PATIENCE - 1
        else:
            assert {size for size, _ in report.captured} == set(graphs)
            assert llm.device.shared == [False] + [True] * (len(report.captured) - 1)
            assert set(report.eager) == {"with prompt tokens"}
        assert isinstance(llm.device, RecordingDevice)
        assert llm.device.replays == report.replayed


def test_batches_beyond_the_largest_graph_run_eagerly(checkpoints, recording) -> None:
    path, name = checkpoints("v3-groups-yarn"), recording()
    with engine(path, name, decode_graphs=False) as eager, engine(path, name, decode_graphs=[2]) as llm:
        assert_same(outcome(llm), outcome(eager))
        report = llm.decode_graphs()
        assert report.eager["more than 2 sequences"] > 0
        assert report.replayed == 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=3, temperature=0.9, top_p=0.8, max_tokens=16, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.0, max_tokens=12, repetition_penalty=1.3, min_tokens=4, logprobs=0),
        SamplingParams(seed=1, n=3, max_tokens=9, ignore_eos=True, logprobs=0),
    ],
)
def test_sampling_behind_a_replay(params, checkpoints, recording) -> None:
    """Seeds, penalties, minimum lengths and several samples of one prompt do not see the graph."""
    path, name = checkpoints("v3-groups-yarn"), recording()
    found = []
    for graphs in (False, [1, 3, 8]):
        with engine(path, name, decode_graphs=graphs) as llm:
            outputs = llm.generate(PROMPTS[:3], params, use_tqdm=False)
            found.append([[sample.token_ids for sample in output.outputs] for output in outputs])
            assert (llm.decode_graphs().replayed > 0) == bool(graphs)
    assert found[0] == found[1]


def test_prompt_scores_are_not_replayed(checkpoints, recording) -> None:
    path = checkpoints("v3-groups-yarn")
    with engine(path, recording(), decode_graphs=[1, 8]) as llm, engine(path, "cpu") as cpu:
        for mine, other in zip(llm.score([[5], [7, 8, 9]]), cpu.score([[5], [7, 8, 9]]), strict=True):
            assert torch.allclose(mine, other, atol=5e-5, equal_nan=True)
        assert llm.decode_graphs().replayed == 0


def test_one_token_prompts_and_preemption(checkpoints, recording) -> None:
    """A pool that cannot hold all sequences: rows move, sequences are put back, and replays follow."""
    path, name = checkpoints("v3-groups-yarn"), recording()
    prompts = [[1], [2], [3, 4], [5] * 9, [6]]
    tight = {"num_blocks": 10, "block_size": 4, "max_model_len": 40, "max_num_seqs": 4, "enable_prefix_caching": False}
    with engine(path, name, decode_graphs=False, **tight) as llm:
        wanted = outcome(llm, prompts)
    with engine(path, name, decode_graphs=[1, 2, 4], **tight) as llm:
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == [tokens for tokens, _ in wanted]
        assert sum(output.metrics.preemptions for output in outputs) > 0
        assert llm.decode_graphs().replayed > 0


# -- what cannot be captured -----------------------------------------------------------------------------------------

FLAWS = {
    "no graphs": "lacks the capability GRAPHS",
    "capture": "the runtime refuses to capture",
    "frozen": "differs from the same step run eagerly",
    "host read": r"recording\.py:\d+ reads a value on the host",
}


@pytest.mark.parametrize(("flaw", "reason"), FLAWS.items())
def test_auto_says_why_and_runs_eagerly(flaw, reason, checkpoints, recording, caplog) -> None:
    path = checkpoints("v3-groups-yarn")
    with engine(path, "cpu") as llm:
        wanted = outcome(llm)
    with caplog.at_level(logging.INFO, logger="deepinfer"), engine(path, recording(flaw)) as llm:
        assert_same(outcome(llm), wanted)
        report = llm.decode_graphs()
    assert report.replayed == 0
    assert report.captured == ()
    assert report.eager["without graphs"] > 0
    (said,) = report.reasons
    assert said in str(report)
    assert [m for m in caplog.messages if "without graphs" in m and said in m], caplog.messages
    assert re.search(reason, said)


@pytest.mark.parametrize("flaw", ["no graphs", "capture", "host read"])
def test_given_sizes_that_cannot_be_captured_are_an_error(flaw, checkpoints, recording) -> None:
    with pytest.raises(UnsupportedError, match=FLAWS[flaw]):
        engine(checkpoints("v3-groups-yarn"), recording(flaw), decode_graphs=[2, 4])


def test_a_graph_that_computes_something_else_fails_every_request(checkpoints, recording) -> None:
    """With sizes given nothing falls back silently, not even later."""
    with engine(checkpoints("v3-groups-yarn"), recording("frozen"), decode_graphs=[8]) as llm:
        for _ in range(2):
            for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False):
                assert "differs from the same step run eagerly" in str(output.error)
        stats = llm.statistics()
        assert stats["free_blocks"] == stats["blocks"]


@pytest.mark.parametrize("bad", [True, "always", [], [0], [9], [1.5], 4, ["2"], None, [True]])
def test_option_is_checked(bad, checkpoints) -> None:
    with pytest.raises(InvalidArgument, match="decode_graphs"):
        engine(checkpoints("v3-groups-yarn"), "cpu", decode_graphs=bad)


def test_closing_drops_weights_cache_and_graphs(checkpoints, recording) -> None:
    llm = engine(checkpoints("v3-groups-yarn"), recording(), decode_graphs=[8])
    outcome(llm)
    core = llm._parts.core
    graph = next(iter(core.graphs._graphs.values()))
    held = [core.model.embedding, core.model.norm, core.model.layers[0].input_norm, core.cache[0], graph.logits]
    alive = [weakref.ref(tensor.untyped_storage()) for tensor in held]
    objects = [weakref.ref(core.model.head), weakref.ref(graph), weakref.ref(core.model.layers[0])]
    before = llm.decode_graphs().replayed
    del held, graph
    llm.close()
    llm.close()
    gc.collect()
    assert [entry() for entry in objects] == [None] * 3
    assert not any(entry() is not None for entry in alive)
    assert llm.decode_graphs().replayed == before
    assert llm.vocab_size == 99
    with pytest.raises(InvalidArgument, match="closed"):
        llm.generate([[1]], use_tqdm=False)


# -- the watch on host reads -----------------------------------------------------------------------------------------

READS = {
    "item": lambda x: x.max().item(),
    "bool": lambda x: bool((x > 2).any()),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 2],
    "mask assignment": lambda x: x.clone().index_put_((x > 2,), torch.zeros(())),
    "masked_select": lambda x: x.masked_select(x > 2),
    "unique": lambda x: x.unique(),
    "where": lambda x: torch.where(x > 2),
    "ragged repeat": lambda x: x.repeat_interleave(x.long()),
}
QUIET = {
    "where": lambda x: torch.where(x > 2, x, 0),
    "gather": lambda x: x[torch.tensor([1, 0])],
    "repeat": lambda x: x.repeat_interleave(2),
    "fill": lambda x: x.masked_fill(x > 2, 0.0),
    "scatter": lambda x: torch.zeros(9).scatter_add_(0, x.long(), x),
    "copy": lambda x: torch.empty(5).copy_(x).to(torch.bfloat16),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", READS)
def test_host_reads_are_found(name, mode) -> None:
    x = torch.arange(5.0)
    with mode(), HostReads() as watch:
        READS[name](x)
    assert len(watch.found) == 1
    assert "test_graphs.py:" in watch.found[0]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", QUIET)
def test_device_work_is_not_reported(name, mode) -> None:
    x, index = torch.arange(5.0), QUIET[name]
    with mode(), HostReads() as watch:
        index(x)
    assert watch.found == []


def test_copies_between_host_and_device_are_found() -> None:
    """The meta device stands for an accelerator: copies to it cross a border too."""
    x, far = torch.ones(3), torch.empty(3, device="meta")
    with HostReads() as watch:
        x.to("meta")
        far.copy_(x)
        far.to(torch.float64)
        x.to(torch.float64)
    assert len(watch.found) == 2
    assert all("copies between cpu and meta" in reason for reason in watch.found)


# -- the conformance item ----------------------------------------------------------------------------------------------


def test_conformance_compares_graphs_with_eager_steps(recording) -> None:
    from deepinfer.conformance.engine_items import items
    from deepinfer.conformance.item import Target
    from deepinfer.hal import discovery

    def item(*flaws: str):
        name = recording(*flaws)
        target = Target(discovery.load(name), deepinfer.device(name), None, model=None)
        found = [entry for entry in items(target) if "graphs" in entry.check]
        return target, found

    target, (entry,) = item()
    assert entry.run(target) is None
    assert target.device.replays > 0
    assert item("no graphs")[1] == []
    for flaw in ("capture", "frozen"):
        target, (entry,) = item(flaw)
        with pytest.raises(UnsupportedError, match=FLAWS[flaw]):
            entry.run(target)
