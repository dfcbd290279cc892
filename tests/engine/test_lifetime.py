"""What may go wrong around a step: interrupts, finalizers inside it, errors of other code, forks, dropped engines."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deepinfer.engine import LLM, SamplingParams
from deepinfer.errors import DeepInferError, InvalidArgument

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)


@pytest.fixture
def llm(checkpoints: Callable[..., Any]) -> Iterator[LLM]:
    with LLM(checkpoints("v3-groups-yarn"), "cpu", "float32", block_size=4, num_blocks=60, max_num_seqs=4) as engine:
        yield engine


def tokens(llm: LLM, prompt: list[int]) -> list[int]:
    (result,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    assert result.error is None
    return result.outputs[0].token_ids


def idle(llm: LLM) -> bool:
    core = llm._parts.core
    return core.scheduler.idle and core.pool.free == core.pool.count


def inside_a_step(llm: LLM, monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any], call: int = 3) -> None:
    """Run `action` in the middle of step number `call` from now."""
    model, calls = llm._parts.core.model, []
    logits = model.logits

    def hooked(hidden: Any) -> Any:
        calls.append(0)
        if len(calls) == call:
            action()
        return logits(hidden)

    monkeypatch.setattr(model, "logits", hooked)


@pytest.mark.parametrize("error", [KeyError("k"), TypeError("t"), OSError("o"), RuntimeError("r")])
def test_any_error_of_a_step_ends_its_requests_alone(llm, monkeypatch, error) -> None:
    wanted = tokens(llm, [1, 2, 3])

    def fails() -> None:
        raise error

    inside_a_step(llm, monkeypatch, fails)
    first, second = llm.generate([[1, 2, 3], [4]], GREEDY, use_tqdm=False)
    for result in (first, second):
        assert isinstance(result.error, DeepInferError)
        assert result.error.__cause__ is error
        assert result.outputs[0].finish_reason == "error"
    assert first.outputs[0].token_ids == wanted[:2]
    assert tokens(llm, [1, 2, 3]) == wanted
    assert idle(llm)


def test_an_interrupt_in_one_thread_leaves_no_other_waiting(llm, monkeypatch) -> None:
    """A thread drives a step that serves a stream of another caller, and is interrupted after it was settled."""
    wanted = tokens(llm, [9, 9, 9])
    stream = llm.generate_stream([[4, 5, 6]], LONG)
    next(stream)

    def interrupt() -> None:
        raise KeyboardInterrupt

    inside_a_step(llm, monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
    rest = list(stream)
    assert rest[-1].finish_reason == "error"
    assert "KeyboardInterrupt" in str(rest[-1].error)
    assert tokens(llm, [9, 9, 9]) == wanted
    assert idle(llm)


def test_a_stream_collected_in_the_middle_of_a_step_ends_with_it(llm, monkeypatch) -> None:
    wanted = tokens(llm, [1, 2, 3])
    held = [llm.generate_stream([[4, 5, 6]] * 2, LONG)]
    next(held[0])
    inside_a_step(llm, monkeypatch, held.clear)
    assert tokens(llm, [1, 2, 3]) == wanted
    assert idle(llm)


@pytest.mark.parametrize("name", ["generate", "generate_stream", "score", "close"])
def test_a_call_from_inside_a_step_is_refused(llm, monkeypatch, name) -> None:
    wanted, seen = tokens(llm, [1, 2, 3]), []

    def nested() -> None:
        with pytest.raises(InvalidArgument, match="inside one of its own steps") as caught:
            getattr(llm, name)(*([[[1]]] if name != "close" else []))
        seen.append(caught.value)

    inside_a_step(llm, monkeypatch, nested)
    assert tokens(llm, [1, 2, 3]) == wanted
    assert seen
    assert idle(llm)


def test_a_request_that_nobody_will_run_is_an_error_not_an_endless_loop(llm, monkeypatch) -> None:
    scheduler = llm._parts.core.scheduler
    monkeypatch.setattr(scheduler, "add", lambda sequence: None)
    (result,) = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
    assert "lost" in str(result.error)


def test_what_was_queued_before_an_interrupt_is_taken_back(llm, monkeypatch) -> None:
    intake, calls = llm._parts.intake, []
    make = intake.make

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return make(*args, **options)

    monkeypatch.setattr(intake, "make", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1], [2], [3]], GREEDY, use_tqdm=False)
    assert idle(llm)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_so_and_does_not_hang(llm) -> None:
    wanted = tokens(llm, [1, 2, 3])
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with llm._lock:
            holding.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        code = 1
        try:
            llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
        except InvalidArgument as error:
            code = 0 if "fork" in str(error) else 2
        llm.close()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    release.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(status) == 0
    assert tokens(llm, [1, 2, 3]) == wanted


MEMORY = """
import gc, sys
from pathlib import Path
from deepinfer import LLM, SamplingParams

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def serve(close):
    llm = LLM(sys.argv[1], "cpu", num_blocks=64)  # 28 MB of cache, 16 MB of weights
    llm.generate(["abc"], SamplingParams(max_tokens=2), use_tqdm=False)
    stream = llm.generate_stream(["abc"], SamplingParams(max_tokens=50))
    next(stream)
    if close:
        llm.close()

for i in range(8):
    serve(i % 2)
before = resident()
for i in range(int(sys.argv[2])):
    serve(i % 2)
print((resident() - before) >> 20)
"""


def grown(count: int) -> int:
    """MiB that `count` engines leave behind in a fresh process."""
    from tests.engine.conftest import SHIPPED

    command = [sys.executable, "-c", MEMORY, str(SHIPPED), str(count)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads resident memory from /proc")
def test_engines_that_are_dropped_give_their_memory_back() -> None:
    gc.collect()
    assert grown(10) < 100


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads resident memory from /proc")
def test_fifty_engines_give_their_memory_back() -> None:
    assert grown(50) < 150
