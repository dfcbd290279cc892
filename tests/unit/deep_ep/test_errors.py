"""Wrong arguments are refused by name before anything is sent; ranks that disagree or stay away end in an error."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch

import deepinfer
from deepinfer.errors import CommTimeout, InvalidArgument, UnsupportedError
from deepinfer.ops.deep_ep import ExpertBuffer, LocalGroup, Placement, size_hint
from deepinfer.ops.quantized import Quantized

SHAPE = {"max_tokens": 4, "hidden": 8, "num_experts": 4, "top_k": 2, "dtype": torch.float32}
IDS = torch.zeros(2, 2, dtype=torch.int64)
X = torch.ones(2, 8)


def _alone(function, **changes):
    """Run `function(buffer)` on a group of one rank."""

    def step(rank):
        with ExpertBuffer(group, **(SHAPE | changes)) as buffer:
            return function(buffer)

    group = LocalGroup(1)
    return group.run(step)[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_tokens": -1}, ["max_tokens", "-1"]),
        ({"max_tokens": 2**30}, ["max_tokens", str(2**30)]),
        ({"hidden": 2.5}, ["hidden", "2.5"]),
        ({"num_experts": -4}, ["num_experts", "-4"]),
        ({"num_experts": "4"}, ["num_experts", "'4'"]),
        ({"top_k": True}, ["top_k", "True"]),
        ({"dtype": torch.int8}, ["dtype", "int8", "bfloat16"]),
        ({"timeout": 0}, ["timeout", "0"]),
        ({"timeout": float("nan")}, ["timeout", "nan"]),
        ({"transport": "pigeon"}, ["transport", "pigeon", "local"]),
        ({"placement": Placement.contiguous(6, 1)}, ["placement", "6", "4"]),
    ],
)
def test_constructor_refuses(changes, words):
    with pytest.raises(InvalidArgument) as caught:
        _alone(lambda buffer: None, **changes)
    assert all(word in str(caught.value) for word in words), caught.value


def test_experts_must_divide():
    group = LocalGroup(3)
    with pytest.raises(InvalidArgument, match=r"num_experts: got 8, must be a multiple of 3 .*nearest legal value: 6"):
        group.run(lambda rank: ExpertBuffer(group, 4, 8, 8, 2))


def test_group_must_be_a_group_and_the_thread_bound():
    with pytest.raises(InvalidArgument, match="group: got 'list'"):
        ExpertBuffer([0, 1], 4, 8, 4, 2)
    with pytest.raises(InvalidArgument, match="bound to no rank"):
        ExpertBuffer(LocalGroup(2), 4, 8, 4, 2)
    with pytest.raises(InvalidArgument, match="size: got 0"):
        LocalGroup(0)
    with pytest.raises(InvalidArgument, match="devices: got 1"):
        LocalGroup(2, ["cpu"])


FP8 = torch.zeros(2, 8, dtype=torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1.0], IDS), ["x", "list"]),
        ((torch.ones(2, 2, 8), IDS), ["x", "2 dimensions"]),
        ((torch.ones(2, 7), IDS), ["hidden", "7", "8"]),
        ((X.half(), IDS), ["x", "float16", "float32"]),
        ((X.to("meta"), IDS), ["x", "meta", "cpu"]),
        ((X, IDS[:1]), ["topk_idx", "[1, 2]", "[2, 2]"]),
        ((X, torch.zeros(2, 3).long()), ["topk_idx", "[2, 3]"]),
        ((X, IDS.float()), ["topk_idx", "float32", "int32"]),
        ((X, None), ["topk_idx", "NoneType"]),
        ((X, IDS, torch.ones(2, 2).double()), ["topk_weights", "float64"]),
        ((X, IDS, torch.ones(2)), ["topk_weights", "2 dim"]),
        ((Quantized(FP8, torch.ones(2, 1), (2, 128)), IDS), ["block", "(2, 128)"]),
        ((Quantized(FP8, torch.ones(2, 2), (1, 128)), IDS), ["scale", "[2, 2]", "[2, 1]"]),
        ((Quantized(FP8, torch.ones(2, 1).half(), (1, 128)), IDS), ["scale", "float16"]),
        ((Quantized(X, torch.ones(2, 1), (1, 128)), IDS), ["data", "float32", "float8"]),
        ((Quantized(torch.zeros(2, 4, dtype=torch.float8_e4m3fn), torch.ones(2, 1), (1, 4)), IDS), ["hidden", "4"]),
        ((Quantized(FP8, torch.ones(2, 8), (1, 1)), IDS), ["40 bytes", "32"]),
    ],
)
def test_dispatch_refuses(arguments, words):
    with pytest.raises(InvalidArgument) as caught:
        _alone(lambda buffer: buffer.dispatch(*arguments))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layout": "rows"}, ["layout", "rows", "tokens"]),
        ({"alignment": 0, "layout": "experts"}, ["alignment", "0"]),
        ({"alignment": 16}, ["alignment", "16", "experts"]),
        ({"alignment": 1.5, "layout": "experts"}, ["alignment", "1.5"]),
        ({"out": X}, ["out", "sync=False"]),
        ({"out": X, "sync": False}, ["out", "[2, 8]", "[4, 8]"]),
        ({"out": torch.ones(4, 8).half(), "sync": False}, ["out", "float16"]),
        ({"out": torch.ones(8, 4).t(), "sync": False}, ["out", "contiguous"]),
        ({"out": Quantized(FP8, torch.ones(2, 1), (1, 128)), "sync": False}, ["out", "format"]),
    ],
)
def test_dispatch_refuses_options(options, words):
    with pytest.raises(InvalidArgument) as caught:
        _alone(lambda buffer: buffer.dispatch(X, IDS, **options))
    assert all(word in str(caught.value) for word in words), caught.value


def test_validate_reads_the_ids():
    high = torch.tensor([[0, 4], [1, -1]])
    with pytest.raises(InvalidArgument, match=r"topk_idx: got 4, must be < num_experts = 4"):
        _alone(lambda buffer: buffer.dispatch(X, high, validate=True))
    with pytest.raises(InvalidArgument, match=r"topk_idx\[1\]: got \[3, 3\]"):
        _alone(lambda buffer: buffer.dispatch(X, torch.tensor([[0, 1], [3, 3]]), validate=True))
    holes = torch.tensor([[-1, -1], [3, -1]])
    assert _alone(lambda buffer: buffer.dispatch(X, holes, validate=True)[3].num_rows) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": torch.ones(3, 8)}, ["y", "[3, 8]", "[4, 8]"]),
        ({"y": torch.ones(4, 8).half()}, ["y", "float16"]),
        ({"weights": torch.ones(4, 2)}, ["weights", "one weight per row"]),
        ({"weights": torch.ones(4).half()}, ["weights", "float16"]),
        ({"bias": torch.ones(8)}, ["bias", "[T,hidden]"]),
        ({"bias": torch.ones(2, 8).long()}, ["bias", "int64"]),
        ({"reduce": "max"}, ["reduce", "max", "ranks"]),
        ({"out": torch.ones(4, 8)}, ["out", "[2, 8]"]),
        ({"handle": None}, ["handle", "NoneType"]),
    ],
)
def test_combine_refuses(change, words):
    def step(buffer):
        rows, _, _, handle = buffer.dispatch(X, torch.tensor([[0, 1], [2, 3]]), layout="experts")
        return buffer.combine(**({"y": rows, "handle": handle} | change))

    with pytest.raises(InvalidArgument) as caught:
        _alone(step)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_refused_call_leaves_the_buffer_usable():
    def step(buffer):
        with pytest.raises(InvalidArgument):
            buffer.dispatch(X.half(), IDS)
        return buffer.dispatch(X, IDS)[3].num_rows

    assert _alone(step) == 2


def test_slots_need_the_experts_layout():
    def step(buffer):
        rows, _, _, handle = buffer.dispatch(X, IDS)
        buffer.combine(rows, handle, reduce="slots")

    with pytest.raises(InvalidArgument, match="needs layout 'experts'"):
        _alone(step)


def test_foreign_handles_are_refused():
    group = LocalGroup(1)

    def step(rank):
        with ExpertBuffer(group, **SHAPE) as first, ExpertBuffer(group, **SHAPE) as second:
            rows, _, _, handle = first.dispatch(X, IDS)
            with pytest.raises(InvalidArgument, match="dispatch of this buffer"):
                second.combine(rows, handle)

    group.run(step)


@pytest.mark.parametrize("tokens", [3, 4, 5])
def test_max_tokens_c52(tokens):
    """C52: below, at and above the maximum; the rank that has too many hears both numbers, the others time out."""
    group = LocalGroup(3)
    together = threading.Barrier(3)

    def step(rank):
        with ExpertBuffer(group, **(SHAPE | {"num_experts": 6})) as buffer:
            count = tokens if rank == 1 else 2
            buffer.timeout = 30.0 if tokens <= 4 else 1.0
            together.wait()
            return buffer.dispatch(torch.ones(count, 8), torch.zeros(count, 2).long())[3].tokens

    outcomes = group.outcomes(step)
    if tokens <= 4:
        assert [entry.value for entry in outcomes] == [2, tokens, 2]
        return
    assert isinstance(outcomes[1].error, InvalidArgument)
    assert "5" in str(outcomes[1].error)
    assert "max_tokens = 4" in str(outcomes[1].error)
    for rank in (0, 2):
        assert isinstance(outcomes[rank].error, CommTimeout)
        assert outcomes[rank].error.missing == (1,)


def test_run_raises_the_cause_with_the_other_ranks_as_notes():
    group = LocalGroup(2)

    def step(rank):
        with ExpertBuffer(group, **SHAPE) as buffer:
            buffer.timeout = 0.2
            buffer.dispatch(X if rank else X.half(), IDS)

    with pytest.raises(InvalidArgument, match="float16") as caught:
        group.run(step)
    assert any("rank 1: CommTimeout" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("changes", "word"), [({"hidden": 16}, "hidden"), ({"top_k": 3}, "top_k"), ({"dtype": torch.bfloat16}, "dtype")]
)
def test_ranks_that_disagree_about_the_buffer(changes, word):
    group = LocalGroup(2)
    outcomes = group.outcomes(lambda rank: ExpertBuffer(group, **(SHAPE | (changes if rank else {})), timeout=30.0))
    assert all(isinstance(entry.error, InvalidArgument) and word in str(entry.error) for entry in outcomes)


def test_ranks_that_make_different_calls():
    group = LocalGroup(2)

    def step(rank):
        with ExpertBuffer(group, **SHAPE, timeout=30.0) as buffer:
            rows, _, _, handle = buffer.dispatch(X, IDS)
            return buffer.combine(rows, handle) if rank else buffer.dispatch(X, IDS)

    outcomes = group.outcomes(step)
    assert "rank 0 calls dispatch while rank 1 calls combine" in str(outcomes[0].error)
    assert "rank 1 calls combine while rank 0 calls dispatch" in str(outcomes[1].error)


def test_ranks_that_send_different_formats_or_placements():
    group = LocalGroup(2)
    quantized = Quantized(FP8, torch.ones(2, 1), (1, 128))

    def formats(rank):
        with ExpertBuffer(group, **SHAPE, timeout=30.0) as buffer:
            buffer.dispatch(quantized if rank else X, IDS)

    assert all("format" in str(entry.error) for entry in group.outcomes(formats))

    def placements(rank):
        with ExpertBuffer(group, **SHAPE, timeout=30.0) as buffer:
            if rank:
                buffer.placement = Placement.of(4, [3, 2, 1, 0])
            buffer.dispatch(X, IDS)

    assert all("placement" in str(entry.error) for entry in group.outcomes(placements))


def test_a_broken_buffer_says_so_and_can_be_replaced():
    group = LocalGroup(2)
    ready = threading.Barrier(2)

    def step(rank):
        buffer = ExpertBuffer(group, **SHAPE)
        buffer.timeout = 0.2
        if rank == 0:
            with pytest.raises(CommTimeout, match=r"rank 1 did not arrive within 0\.2 s"):
                buffer.dispatch(X, IDS)
            with pytest.raises(CommTimeout, match="unusable since"):
                buffer.dispatch(X, IDS)
        ready.wait()
        buffer.close()
        with ExpertBuffer(group, **SHAPE, timeout=30.0) as fresh:
            return fresh.dispatch(X, IDS)[3].num_rows

    assert group.run(step) == [4, 0]


def test_a_peer_that_closes_is_noticed_at_once_c53():
    """C53: one rank leaves; the others hear it long before their deadline, and closing twice is nothing."""
    group = LocalGroup(3)

    def step(rank):
        buffer = ExpertBuffer(group, **(SHAPE | {"num_experts": 3}), timeout=20.0)
        if rank == 2:
            buffer.close()
            buffer.close()
            return 0.0
        began = time.monotonic()
        with pytest.raises(CommTimeout) as caught:
            buffer.dispatch(X, IDS)
        assert 2 in caught.value.missing or "gave up" in str(caught.value)
        buffer.close()
        return time.monotonic() - began

    assert max(group.run(step)) < 15.0, "its deadline is 20 s"


def test_the_timeout_may_be_changed_but_not_to_nonsense():
    def step(buffer):
        buffer.timeout = 2
        with pytest.raises(InvalidArgument, match="timeout: got -1"):
            buffer.timeout = -1
        return buffer.timeout

    assert _alone(step) == 2.0


def test_closed_buffers_refuse_calls():
    def step(buffer):
        buffer.close()
        buffer.dispatch(X, IDS)

    with pytest.raises(InvalidArgument, match="closed"):
        _alone(step)


def test_a_dropped_buffer_runs_no_collective():
    """The destructor of a buffer whose peers are gone returns at once."""
    group = LocalGroup(2)

    def step(rank):
        buffer = ExpertBuffer(group, **SHAPE, timeout=20.0)
        if rank == 0:
            began = time.monotonic()
            del buffer
            gc.collect()
            return time.monotonic() - began
        return 0.0

    assert max(group.run(step)) < 2.0


def test_missing_rank_in_the_constructor():
    group = LocalGroup(2)
    with group.bind(0), pytest.raises(CommTimeout) as caught:
        ExpertBuffer(group, **SHAPE, timeout=0.1)
    assert caught.value.missing == (1,)


def test_no_transport_says_why():
    class Strange:
        def rank(self):
            return 0

        def size(self):
            return 1

    with pytest.raises(UnsupportedError) as caught:
        ExpertBuffer(Strange(), **SHAPE)
    assert any(reason.startswith("shared_memory: ") for reason in caught.value.reasons)
    assert any(reason.startswith("local: ") for reason in caught.value.reasons)


def test_size_hint_is_pure_and_checks():
    assert size_hint(128, 512, 64, 8, ranks=4) == size_hint(128, 512, 64, 8, torch.bfloat16, ranks=4)
    assert size_hint(0, 0, 0, 0, ranks=1) > 0
    with pytest.raises(InvalidArgument, match="ranks"):
        size_hint(128, 512, 64, 8, ranks=0)
    with pytest.raises(InvalidArgument, match="hidden"):
        size_hint(128, -1, 64, 8, ranks=2)


def test_the_null_backend_runs_the_same_exchange():
    """Another device of host memory, without kernels of its own: the portable tier as fallback."""
    group = LocalGroup(2, ["null", "null"])

    def step(rank):
        with ExpertBuffer(group, **SHAPE) as buffer:
            assert buffer.device.backend == "null"
            rows, _, _, handle = buffer.dispatch(X, IDS, layout="experts")
            return buffer.combine(rows, handle)

    assert all(torch.equal(y, X * 2) for y in group.run(step))
    assert deepinfer.device("null").statistics["fallback:deep_ep.reduce"] > 0
