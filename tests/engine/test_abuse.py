"""The engine under wrong arguments, odd text, dropped iterators, exceptions, closing at a bad moment, and threads."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer import LLM, SamplingParams
from deepinfer.engine.chat import load_template
from deepinfer.engine.eos import end_tokens
from deepinfer.errors import CheckpointError, DeepInferError, InvalidArgument
from deepinfer.models.config import load_config
from tests.engine.conftest import SHIPPED

GREEDY = SamplingParams(max_tokens=3, temperature=0.0)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(SHIPPED, "cpu", max_num_seqs=4, num_blocks=64) as engine:
        yield engine


@pytest.mark.parametrize("prompts", [
    None, 3, 1.5, b"x", bytearray(b"x"), memoryview(b"x"), {}, {"prompt": "x"}, {"a"}, iter(["a"]), object(), int,
    np.array([1, 2]), torch.tensor([1, 2]), np.int64(3),
], ids=lambda value: type(value).__name__)
def test_what_is_no_list_of_prompts_is_refused(llm: LLM, prompts: Any) -> None:
    for call in (llm.generate, llm.generate_stream, llm.score):
        with pytest.raises(InvalidArgument, match="prompts"):
            call(prompts)


@pytest.mark.parametrize("bad", [
    None, [], [None], [1.5], ["a"], [[1]], [True], [-1], [10**9], [2**70], [1] * 5000, 3, b"x", bytearray(b"x"),
    np.array(3), torch.tensor([1.5]), np.array([], dtype=np.int64), "\ud800", "a" * 5000, object(),
], ids=lambda value: repr(value)[:20])
def test_one_result_per_prompt_in_order(llm: LLM, bad: Any) -> None:
    good = llm.generate(["def ", "é🤗\0"], GREEDY, use_tqdm=False)
    results = llm.generate(["def ", bad, "é🤗\0"], GREEDY, use_tqdm=False)
    assert [result.error is not None for result in results] == [False, True, False]
    assert [r.outputs[0].token_ids for r in (results[0], results[2])] == [r.outputs[0].token_ids for r in good]
    assert isinstance(results[1].error, DeepInferError)
    assert results[1].outputs[0].finish_reason == "error"


ODD: tuple[Any, ...] = (
    -1, 0, 1.5, "1", True, 2**31, 2**70, 10**400, float("nan"), float("inf"), 1e308, [], [1], {}, "x", [""], "\ud800",
    ["a", "a"], np.int64(2), np.float32(0.5), torch.tensor(1), object(), {"a": 1}, {-1: 1.0}, {1: float("nan")},
    {1: 10**400}, {2**70: 1.0}, {True: 1.0}, [True], [2**70], [-1], ["a"], [1, 1], iter([1]), range(2), b"x", [b"x"],
)


@pytest.mark.parametrize("name", [
    "n", "temperature", "top_p", "top_k", "min_p", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "seed",
    "include_stop_str_in_output", "logprobs", "prompt_logprobs", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias", "detokenize", "skip_special_tokens", "structured_outputs",
])
def test_odd_parameters_are_refused_or_served(llm: LLM, name: str) -> None:
    served, messages = [], []
    for value in ODD:
        try:
            served.append(SamplingParams(**{"max_tokens": 2, "temperature": 0.0, name: value}))
        except InvalidArgument as error:
            messages.append(str(error))
    assert all(name in message for message in messages)
    results = llm.generate([[1, 2]] * len(served), served, use_tqdm=False)
    assert len(results) == len(served)
    for result in results:
        assert all(output.finish_reason for output in result.outputs)


@pytest.mark.parametrize(("name", "value"), [
    ("priority", "x"), ("priority", 1.5), ("priority", True), ("priority", [1, 2]), ("cache_salt", 3),
    ("cache_salt", b"a"), ("sampling_params", {}), ("sampling_params", [None]), ("sampling_params", [GREEDY] * 2),
    ("sampling_params", 1),
])
def test_odd_options_are_refused_by_name(llm: LLM, name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=name):
        llm.generate(["a"], **{name: value})


def test_huge_max_tokens_end_at_the_models_length(llm: LLM) -> None:
    prompt = [65] * (llm.max_model_len - 4)
    params = SamplingParams(max_tokens=2**31 - 1, temperature=0.0, ignore_eos=True)
    (result,) = llm.generate([prompt], params, use_tqdm=False)
    assert (len(result.outputs[0].token_ids), result.outputs[0].finish_reason) == (4, "length")


def test_streams_that_are_dropped_leave_nothing_behind(llm: LLM) -> None:
    long = SamplingParams(max_tokens=200, temperature=0.0)
    llm.generate_stream(["import ", "def "], long)  # never asked for anything
    started = llm.generate_stream(["import ", "def "], long)
    next(started)
    del started
    gc.collect()
    core = llm._parts.core
    assert not core.scheduler.waiting
    assert not core.scheduler.running
    steps = llm.statistics()["steps"]
    llm.generate(["a"], GREEDY, use_tqdm=False)
    assert llm.statistics()["steps"] - steps <= 4  # nobody else's tokens were computed


def test_an_exception_in_the_consumer_of_a_stream_frees_it(llm: LLM) -> None:
    def consume() -> None:
        for _ in llm.generate_stream(["import "] * 3, SamplingParams(max_tokens=200, temperature=0.0)):
            raise KeyError("the caller's own")

    with pytest.raises(KeyError):
        consume()
    gc.collect()
    assert not llm._parts.core.scheduler.running


def test_progress_must_be_callable_and_its_errors_come_through() -> None:
    with pytest.raises(InvalidArgument, match="progress"):
        LLM(SHIPPED, "cpu", num_blocks=64, progress=3)  # type: ignore[arg-type]  # on purpose

    def fails(*_: int) -> None:
        raise KeyError("the caller's own")

    with pytest.raises(KeyError):
        LLM(SHIPPED, "cpu", num_blocks=64, progress=fails)


def test_after_close_every_call_says_so() -> None:
    engine = LLM(SHIPPED, "cpu", num_blocks=64)
    stream = engine.generate_stream("import ", GREEDY)
    next(stream)
    engine.close()
    engine.close()
    with pytest.raises(InvalidArgument, match="closed"):
        list(stream)
    for call in (engine.generate, engine.generate_stream, engine.score):
        with pytest.raises(InvalidArgument, match="closed"):
            call(["a"])
    assert engine.max_model_len > 0


def test_closing_under_a_running_thread_ends_it_with_an_error() -> None:
    engine = LLM(SHIPPED, "cpu", max_num_seqs=2, num_blocks=64)
    seen: list[BaseException | None] = []

    def work() -> None:
        try:
            engine.generate(["import "] * 8, SamplingParams(max_tokens=400, temperature=0.0), use_tqdm=False)
            seen.append(None)
        except DeepInferError as error:
            seen.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.3)
    engine.close()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(seen[0], InvalidArgument)


def test_two_engines_and_many_threads() -> None:
    prompts = ["import ", "def ", "class "]
    with LLM(SHIPPED, "cpu", max_num_seqs=4, num_blocks=64) as a, LLM(SHIPPED, "cpu", num_blocks=64) as b:
        wanted = [result.outputs[0].token_ids for result in a.generate(prompts, GREEDY, use_tqdm=False)]
        failures: list[BaseException] = []

        def guarded(job: Callable[[], None]) -> None:
            try:
                job()
            except BaseException as error:
                failures.append(error)

        def serve(engine: LLM) -> None:
            for _ in range(3):
                results = engine.generate(prompts, GREEDY, use_tqdm=False)
                assert [result.outputs[0].token_ids for result in results] == wanted

        def drop() -> None:
            for _ in range(3):
                stream = a.generate_stream(prompts, SamplingParams(max_tokens=50, temperature=0.0))
                next(stream)
                stream.close()  # type: ignore[attr-defined]  # a generator

        jobs: list[Callable[[], None]] = [lambda: serve(a), lambda: serve(b), lambda: serve(a), drop, drop]
        threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        assert not failures
        assert a.statistics()["free_blocks"] == a.statistics()["blocks"]


@pytest.mark.parametrize(("option", "value"), [
    ("model", "x" * 5000), ("model", "a\0b"), ("model", "\ud800"), ("tokenizer", "/no/such/folder"),
    ("tokenizer", "x" * 5000), ("tokenizer", str(SHIPPED / "config.json")),
], ids=lambda value: str(value)[:12].encode("ascii", "replace").decode())
def test_folders_that_cannot_be_opened(option: str, value: str) -> None:
    """A tokenizer that was asked for by name is not silently done without."""
    given = {"model": SHIPPED, "device": "cpu", "num_blocks": 64} | {option: value}
    with pytest.raises((CheckpointError, InvalidArgument)) as caught:
        LLM(**given)
    assert value[:5] in str(caught.value)


@pytest.mark.parametrize("names", [
    "x", 3, [("a", 1)], {1: 2}, {"messages": []}, {"add_generation_prompt": False}, [],
], ids=str)
def test_variables_of_a_template_are_checked(llm: LLM, names: Any) -> None:
    for call in (llm.chat, llm.chat_stream):
        with pytest.raises(InvalidArgument, match="chat_template_kwargs"):
            call([{"role": "user", "content": "x"}], GREEDY, chat_template_kwargs=names)


def test_flags_are_flags(llm: LLM) -> None:
    with pytest.raises(InvalidArgument, match="full_vocab"):
        llm.score(["abc"], full_vocab="no")  # type: ignore[arg-type]  # on purpose
    for call in (lambda flag: llm.generate(["a"], GREEDY, use_tqdm=flag),
                 lambda flag: llm.chat([{"role": "user", "content": "x"}], GREEDY, use_tqdm=flag)):
        with pytest.raises(InvalidArgument, match="use_tqdm"):
            call(lambda *_: None)
    with pytest.raises(InvalidArgument, match="add_generation_prompt"):
        llm.chat([{"role": "user", "content": "x"}], GREEDY, add_generation_prompt="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("template", [
    b"\xff\xfe", b"{{ " + b"(" * 5000 + b"1" + b")" * 5000 + b" }}", b"{{ 1" + b"0" * 5000 + b" }}", b"{% for %}",
    b"{% include 'x' %}{% endblock %}",
], ids=["bytes", "deep", "long", "syntax", "block"])
def test_templates_that_cannot_be_read_name_their_file(template: bytes, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(template)
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        load_template(tmp_path, {})


@pytest.mark.parametrize("digits", ["²", "9" * 5000, "٣", "", "-1", "1.5"])
def test_odd_ids_of_an_end_token_are_left_out(digits: str, tmp_path: Path) -> None:
    """C68: a model without tokenizer.json; its tokenizer_config.json names the end token by text."""
    added = {"eos_token": "<end>", "added_tokens_decoder": {digits: {"content": "<end>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(added), "utf-8")
    assert end_tokens(tmp_path, replace(load_config(SHIPPED), eos_token_ids=(5,)), None) == {5}
